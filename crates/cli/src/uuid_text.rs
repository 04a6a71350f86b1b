//! UUIDs on the command line.

use std::time::{Duration, SystemTime};

use uuid::{Builder, Uuid};

/// What is said of a text that is none of these.
const FORM: &str = "write 8-4-4-4-12 hexadecimal digits, or `random`, `time` or `clear`";

/// From the start of the Gregorian calendar, where the time of a UUID begins, to 1970.
const FROM_GREGORIAN_TO_1970: Duration = Duration::from_secs(12_219_292_800);

/// A UUID, or as in mke2fs and tune2fs `random` for a new one, `time` for a new one that is made of
/// the time, and `clear` for zeroes.
///
/// # Errors
///
/// The text is none of these. The message shows the form.
pub fn parse(text: &str) -> Result<Uuid, String> {
    match text {
        "random" => Ok(Uuid::new_v4()),
        "time" => Ok(of_now()),
        "clear" => Ok(Uuid::nil()),
        text => Uuid::parse_str(text).map_err(|_| FORM.to_owned()),
    }
}

/// A UUID of the present time. What makes it differ from those of other machines is random, and
/// marked as such, since the address of a network card would tell where it was made.
fn of_now() -> Uuid {
    const MULTICAST: u8 = 1;
    let random = Uuid::new_v4().into_bytes();
    let [low, high, .., a, b, c, d, e, f] = random;
    let node = [a | MULTICAST, b, c, d, e, f];
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let since = now
        .unwrap_or_default()
        .saturating_add(FROM_GREGORIAN_TO_1970);
    let ticks = u64::try_from(since.as_nanos() / 100).unwrap_or(u64::MAX);
    let counter = u16::from_le_bytes([low, high]);
    Builder::from_gregorian_timestamp(ticks, counter, &node).into_uuid()
}

/// A UUID for `build`, of which nothing may be random.
///
/// # Errors
///
/// The text is none, or `random` or `time`.
pub fn parse_stated(text: &str) -> Result<Uuid, String> {
    match text {
        "random" | "time" => {
            let problem = "the same sources and options give the same bytes, so nothing is random; \
                           without this option it is made from them";
            Err(problem.to_owned())
        }
        text => Uuid::parse_str(text).map_err(|_| "write 8-4-4-4-12 hexadecimal digits".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::{parse, parse_stated};

    #[test]
    fn only_builds_refuse_what_is_random() {
        let text = "12345678-1234-5678-1234-567812345678";
        for parse in [parse, parse_stated] {
            assert_eq!(parse(text).expect("a UUID").to_string(), text);
            let told = parse("tenant").expect_err("a name");
            assert!(told.contains("8-4-4-4-12 hexadecimal digits"), "{told}");
        }
        for (word, version) in [("random", 4), ("time", 1)] {
            assert_ne!(parse(word), parse(word));
            assert_eq!(parse(word).expect("a UUID").get_version_num(), version);
            let told = parse_stated(word).expect_err("not the same each time");
            assert!(told.contains("nothing is random"), "{told}");
        }
        assert!(parse("clear").expect("a UUID").is_nil());
    }
}
