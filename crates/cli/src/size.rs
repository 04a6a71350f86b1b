//! Sizes as text: `512M`, `10G`, `1T`. Units are powers of 1024.

use crate::count::count;

/// The letters of units and their powers of two, from small to large.
const UNITS: [(char, u32); 6] = [
    ('K', 10),
    ('M', 20),
    ('G', 30),
    ('T', 40),
    ('P', 50),
    ('E', 60),
];

/// The number of bytes in a size like `10G`, `1.5T`, `512MiB` or `1048576`.
///
/// # Errors
///
/// A message with the expected form.
pub fn parse(text: &str) -> Result<u64, String> {
    bytes(text).ok_or_else(|| format!("`{text}` is no size; write 512M, 10G or 1T"))
}

/// As [`parse`], for a place in a file.
///
/// # Errors
///
/// As [`parse`]; no file is as long as that.
pub fn parse_offset(text: &str) -> Result<u64, String> {
    let offset = parse(text)?;
    let possible = i64::try_from(offset).is_ok();
    possible.then_some(offset).ok_or_else(|| {
        let longest = i64::MAX;
        format!("{longest} bytes are the most that a file can have")
    })
}

fn bytes(text: &str) -> Option<u64> {
    let end = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.');
    let (number, unit) = text.split_at(end.unwrap_or(text.len()));
    let shift = shift_of(unit)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let whole = whole.parse::<u64>().ok()?.checked_mul(1 << shift)?;
    whole.checked_add(fraction_of(fraction, shift)?)
}

/// The power of two of a unit: nothing or `B`, or a letter alone, with `B` or with `iB`.
fn shift_of(unit: &str) -> Option<u32> {
    let mut letters = unit.chars();
    let Some(first) = letters.next() else {
        return Some(0);
    };
    if unit.eq_ignore_ascii_case("b") {
        return Some(0);
    }
    let known = UNITS
        .iter()
        .find(|(letter, _)| letter.eq_ignore_ascii_case(&first))?;
    matches!(letters.as_str(), "" | "B" | "b" | "iB").then_some(known.1)
}

/// The number of bytes in the digits after a point, rounded down.
fn fraction_of(digits: &str, shift: u32) -> Option<u64> {
    if digits.is_empty() {
        return Some(0);
    }
    if digits.len() > 9 {
        return None;
    }
    let numerator = u128::from(digits.parse::<u64>().ok()?) << shift;
    let denominator = 10u128.pow(u32::try_from(digits.len()).ok()?);
    u64::try_from(numerator / denominator).ok()
}

/// A size for people: `7.5 GiB`, with at most one digit after the point.
pub fn show(bytes: u64) -> String {
    let unit = UNITS.iter().rev().find(|(_, shift)| bytes >> shift > 0);
    let Some((letter, shift)) = unit else {
        return count(bytes, "byte", "bytes");
    };
    let tenths = (u128::from(bytes) * 10) >> shift;
    match (tenths / 10, tenths % 10) {
        (whole, 0) => format!("{whole} {letter}iB"),
        (whole, tenth) => format!("{whole}.{tenth} {letter}iB"),
    }
}

#[cfg(test)]
mod tests {
    use super::{parse, show};

    #[test]
    fn sizes_are_powers_of_1024() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("512b", 512),
            ("64k", 65536),
            ("1.5K", 1536),
            ("512M", 512 << 20),
            ("512MiB", 512 << 20),
            ("10G", 10 << 30),
            ("10GB", 10 << 30),
            ("0.25T", 256 << 30),
            ("16T", 16 << 40),
            ("15E", 15 << 60),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in [
            "",
            "G",
            "ten",
            "-1",
            "1 G",
            "1Q",
            "1Gi",
            "16E",
            "1.1.1G",
            ".5G",
            "1.0000000001G",
        ] {
            let told = parse(text).expect_err(text);
            assert!(told.contains("write 512M, 10G or 1T"), "{told}");
        }
    }

    #[test]
    fn sizes_are_shown_with_one_digit_at_most() {
        assert_eq!(show(0), "0 bytes");
        assert_eq!(show(1), "1 byte");
        assert_eq!(show(1023), "1023 bytes");
        assert_eq!(show(1024), "1 KiB");
        assert_eq!(show(7 << 30 | 1 << 29), "7.5 GiB");
        assert_eq!(show((1 << 30) - 1), "1023.9 MiB");
        assert_eq!(show(u64::MAX), "15.9 EiB");
    }
}
