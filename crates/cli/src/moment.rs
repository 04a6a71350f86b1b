//! Times as text, in UTC, since an image has no time zone; and the time of `SOURCE_DATE_EPOCH`.

use std::os::unix::ffi::OsStrExt;

use anyhow::Result;
use pext4_fs::Time;
use pext4_ondisk::shown::Shown;

use crate::failure::Misuse;

/// `2038-01-19 03:14:08 UTC`.
pub fn show(seconds: i64) -> String {
    let (year, month, day) = date(seconds.div_euclid(86_400));
    let second = seconds.rem_euclid(86_400);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

/// As [`show`], with nanoseconds.
pub fn show_with_nanoseconds(time: Time) -> String {
    let whole = show(time.seconds);
    let (before, zone) = whole.rsplit_once(' ').expect("it ends in the zone");
    format!("{before}.{:09} {zone}", time.nanoseconds)
}

/// RFC 3339, for programs.
pub fn show_rfc3339(time: Time) -> String {
    let whole = show(time.seconds);
    let whole = whole.trim_end_matches(" UTC").replacen(' ', "T", 1);
    format!("{whole}.{:09}Z", time.nanoseconds)
}

/// The seconds since 1970 that `SOURCE_DATE_EPOCH` says, if it is set.
///
/// # Errors
///
/// It is no number. A sign or a blank is none: the specification has digits only.
pub fn source_date_epoch() -> Result<Option<i64>> {
    let Some(text) = std::env::var_os("SOURCE_DATE_EPOCH") else {
        return Ok(None);
    };
    match text.to_str().and_then(seconds) {
        Some(seconds) => Ok(Some(seconds)),
        None => Err(Misuse(format!(
            "SOURCE_DATE_EPOCH is `{}`; it must be the number of seconds since 1970, in digits only",
            Shown(text.as_bytes())
        ))
        .into()),
    }
}

fn seconds(text: &str) -> Option<i64> {
    let is_digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_digits)
}

/// Year, month and day in the Gregorian calendar of a day, counted from the start of 1970.
///
/// It counts in 400-year cycles of 146,097 days from 1 March of the year 0, so that the leap day is
/// the last day of a year.
fn date(day: i64) -> (i64, i64, i64) {
    let shifted = day + 719_468;
    let (cycle, of_cycle) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let of_cycle_years =
        (of_cycle - of_cycle / 1460 + of_cycle / 36_524 - of_cycle / 146_096) / 365;
    let of_year = of_cycle - (365 * of_cycle_years + of_cycle_years / 4 - of_cycle_years / 100);
    let march_month = (5 * of_year + 2) / 153;
    let of_month = of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 {
        march_month + 3
    } else {
        march_month - 9
    };
    let year = of_cycle_years + cycle * 400 + i64::from(month <= 2);
    (year, month, of_month)
}

#[cfg(test)]
mod tests {
    use super::{Time, seconds, show, show_rfc3339, show_with_nanoseconds};
    use pext4_image::build::parse_time;

    #[test]
    fn days_are_those_of_the_calendar() {
        assert_eq!(show(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(show(951_827_696), "2000-02-29 12:34:56 UTC");
        assert_eq!(show(2_147_483_648), "2038-01-19 03:14:08 UTC");
        assert_eq!(show(-1), "1969-12-31 23:59:59 UTC");
        assert_eq!(show(-2_147_483_648), "1901-12-13 20:45:52 UTC");
        assert_eq!(show(15_032_385_535), "2446-05-10 22:38:55 UTC");
        assert_eq!(show(4_107_542_400), "2100-03-01 00:00:00 UTC");
    }

    #[test]
    fn what_is_shown_is_read_again() {
        for seconds in [0, 951_782_400, 4_107_542_399, -86_400 * 365, 1_714_564_800] {
            let time = Time {
                seconds,
                nanoseconds: 120,
            };
            assert_eq!(parse_time(&show_rfc3339(time)), Ok(time));
        }
    }

    #[test]
    fn an_epoch_is_digits_only() {
        assert_eq!(seconds("0"), Some(0));
        assert_eq!(seconds("1700000000"), Some(1_700_000_000));
        for text in [
            "",
            " 5",
            "5 ",
            "+5",
            "-1",
            "5.0",
            "soon",
            "9223372036854775808",
        ] {
            assert_eq!(seconds(text), None, "{text}");
        }
    }

    #[test]
    fn nanoseconds_count_forward_also_before_1970() {
        let time = Time {
            seconds: -1,
            nanoseconds: 500_000_000,
        };
        assert_eq!(
            show_with_nanoseconds(time),
            "1969-12-31 23:59:59.500000000 UTC"
        );
        assert_eq!(show_rfc3339(time), "1969-12-31T23:59:59.500000000Z");
    }
}
