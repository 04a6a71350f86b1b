//! Parses times that users write.

use pext4_ondisk::time::Time;

use super::error::ParseError;

/// Parses a time like `@1700000000`, `@1700000000.5`, `2023-11-14`, `2023-11-14T22:13:20Z`, with or
/// without a fraction, or `2023-11-14 22:13:20`. All times are UTC, unless their offset from it
/// follows, as in `2023-11-14T23:13:20+01:00`.
///
/// # Errors
///
/// The text is not a time. The message shows the format.
pub fn parse_time(text: &str) -> Result<Time, ParseError> {
    let time = match text.strip_prefix('@') {
        Some(number) => Time::from_decimal(number),
        None => civil(text),
    };
    time.ok_or_else(|| {
        let form = "write @SECONDS or 2023-11-14T22:13:20Z";
        ParseError(format!("`{text}` is no time; {form}"))
    })
}

fn civil(text: &str) -> Option<Time> {
    let (date, clock) = text.split_once(['T', ' ']).unwrap_or((text, "00:00:00"));
    let (clock, east) = match (clock.strip_suffix('Z'), clock.rfind(['+', '-'])) {
        (Some(clock), _) => (clock, 0),
        (None, None) => (clock, 0),
        (None, Some(sign)) => (&clock[..sign], offset(&clock[sign..])?),
    };
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, "0"));
    let nanoseconds = Time::from_decimal(&format!("0.{fraction}"))
        .filter(|_| !fraction.is_empty())?
        .nanoseconds;
    let numbers = |text: &str, separator: char| {
        let parts: Vec<i64> = text
            .split(separator)
            .map(|part| part.parse().ok())
            .collect::<Option<_>>()?;
        <[i64; 3]>::try_from(parts).ok()
    };
    let [year, month, day] = numbers(date, '-')?;
    let [hour, minute, second] = numbers(clock, ':')?;
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = match month {
        2 => 28 + i64::from(is_leap),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    };
    let is_sound = (1..=12).contains(&month)
        && (1..=days).contains(&day)
        && (0..24).contains(&hour)
        && (0..60).contains(&minute)
        && (0..=60).contains(&second)
        && (0..=9999).contains(&year);
    is_sound.then(|| Time {
        seconds: day_number(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second - east,
        nanoseconds,
    })
}

/// The seconds that a zone like `+01:00` or `-0330` is east of Greenwich.
fn offset(zone: &str) -> Option<i64> {
    let digits: String = zone[1..].chars().filter(|&digit| digit != ':').collect();
    let has_form = matches!(zone.as_bytes(), [_, _, _, b':', _, _] | [_, _, _, _, _]);
    if !has_form || digits.len() != 4 || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let (hours, minutes) = (
        digits[..2].parse::<i64>().ok()?,
        digits[2..].parse::<i64>().ok()?,
    );
    let seconds = hours * 3600 + minutes * 60;
    let is_west = zone.starts_with('-');
    (hours < 24 && minutes < 60).then_some(if is_west { -seconds } else { seconds })
}

/// Days from 1970-01-01 to a day of the Gregorian calendar, computed with years that begin in March
/// and cycles of 400 years.
fn day_number(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let (cycle, of_cycle) = (year.div_euclid(400), year.rem_euclid(400));
    let march_month = (month + 9) % 12;
    let of_year = (153 * march_month + 2) / 5 + day - 1;
    cycle * 146_097 + of_cycle * 365 + of_cycle / 4 - of_cycle / 100 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::parse_time;
    use pext4_ondisk::time::Time;

    #[test]
    fn times_are_read_in_every_form() {
        for (text, seconds, nanoseconds) in [
            ("@0", 0, 0),
            ("@1700000000.25", 1_700_000_000, 250_000_000),
            ("@-1.25", -2, 750_000_000),
            ("1970-01-01", 0, 0),
            ("2023-11-14T22:13:20Z", 1_700_000_000, 0),
            ("2000-02-29 12:34:56", 951_827_696, 0),
            ("2000-02-29 12:34:56.25", 951_827_696, 250_000_000),
            ("1969-12-31T23:59:58.5Z", -2, 500_000_000),
            ("1901-12-13T20:45:52", -2_147_483_648, 0),
            // As `date -Is`, `date -Ins` (with a point) and `date --rfc-3339=s` show them.
            ("2023-11-14T22:13:20+00:00", 1_700_000_000, 0),
            ("2023-11-14T23:43:20.25+01:30", 1_700_000_000, 250_000_000),
            ("2023-11-14 17:13:20-05:00", 1_700_000_000, 0),
            ("2023-11-14T22:13:20+0000", 1_700_000_000, 0),
            ("1970-01-01T00:00:00+00:01", -60, 0),
        ] {
            let time = Time {
                seconds,
                nanoseconds,
            };
            assert_eq!(parse_time(text), Ok(time), "{text}");
        }
        for text in [
            "",
            "@",
            "now",
            "2023-13-01",
            "2023-1",
            "@1.x",
            "2023-02-29",
            "1900-02-29",
            "2023-01-01T00:00:00.",
            "2023-01-01T00:00:00.5x",
            "2023-01-01T25:00:00",
            "2023-01-01T00:00:00+00:00Z",
            "2023-01-01T00:00:00+",
            "2023-01-01T00:00:00+1",
            "2023-01-01T00:00:00+1:000",
            "2023-01-01T00:00:00+24:00",
            "2023-01-01T00:00:00+01:60",
            "2023-01-01T00:00:00+0:1:0",
            "2023-01-01T+1:00:00",
            "2023-01-01+01:00",
        ] {
            assert!(parse_time(text).is_err(), "{text}");
        }
    }
}
