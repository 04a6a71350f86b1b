//! Inode times: 34 bits of seconds and 30 bits of nanoseconds in two words.
//!
//! The first word is a signed count of seconds since 1970. The second word, if the inode has room
//! for it, adds two bits that extend the count by multiples of 2^32, and 30 bits of nanoseconds.
//!
//! One pattern is special: old kernels wrote a negative first word with both extension bits set for
//! dates before 1970, and checkers still read it so. It is decoded that way and never encoded:
//! times in the 68 years that it would otherwise mean (from 2310 on) become the last second before
//! them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use thiserror::Error;

/// Largest time in seconds: 2^34 - 2^31 - 1.
const MAX_SECONDS: i64 = (1 << 34) - (1 << 31) - 1;
const AFTER_MAX: i64 = MAX_SECONDS + 1;
/// Smallest time in seconds: -2^31.
const MIN_SECONDS: i64 = -(1 << 31);
/// The seconds that the special pattern would mean.
const AMBIGUOUS: std::ops::Range<i64> = (3 << 32) - (1 << 31)..3 << 32;
const LAST_NANOSECOND: u32 = 999_999_999;

/// A point in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time {
    /// Seconds since the start of 1970 UTC; negative before.
    pub seconds: i64,
    /// Nanoseconds, below 1,000,000,000.
    pub nanoseconds: u32,
}

impl Time {
    /// A time in whole seconds.
    #[must_use]
    pub const fn from_seconds(seconds: i64) -> Self {
        Self {
            seconds,
            nanoseconds: 0,
        }
    }

    /// The present, by the clock of the system.
    #[must_use]
    pub fn now() -> Self {
        SystemTime::now().into()
    }

    /// Parses seconds since 1970 in decimal, with an optional fraction after a point; digits after
    /// the ninth are ignored. Negative before 1970.
    #[must_use]
    pub fn from_decimal(text: &str) -> Option<Self> {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        let seconds: i64 = match whole {
            "" | "-" if !fraction.is_empty() => 0,
            whole => whole.parse().ok()?,
        };
        if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let digits = fraction.bytes().chain(std::iter::repeat(b'0')).take(9);
        let nanoseconds = digits.fold(0, |number, digit| number * 10 + u32::from(digit - b'0'));
        if whole.starts_with('-') && nanoseconds > 0 {
            // -1.25 is a quarter of a second before -1.
            return Some(Self {
                seconds: seconds.checked_sub(1)?,
                nanoseconds: LAST_NANOSECOND + 1 - nanoseconds,
            });
        }
        Some(Self {
            seconds,
            nanoseconds,
        })
    }

    /// Decodes the two words of an inode, or the first alone.
    #[must_use]
    pub fn decode(seconds: u32, extra: Option<u32>) -> Self {
        let base = i64::from(seconds.cast_signed());
        let Some(extra) = extra else {
            return Self::from_seconds(base);
        };
        let epoch = extra & 3;
        let written_by_old_kernels = epoch == 3 && base < 0;
        let extension = if written_by_old_kernels {
            0
        } else {
            i64::from(epoch) << 32
        };
        Self {
            seconds: base + extension,
            nanoseconds: (extra >> 2).min(LAST_NANOSECOND),
        }
    }

    /// Encodes the nearest time that fits into two words.
    #[must_use]
    pub fn encode(self) -> (u32, u32) {
        let time = self.clamp_wide();
        let [low, high] = halves(time.seconds);
        let rounded_up = high.wrapping_add(low >> 31);
        (low, rounded_up & 3 | time.nanoseconds << 2)
    }

    /// Encodes the nearest time that fits into the first word alone.
    #[must_use]
    pub fn encode_narrow(self) -> u32 {
        let [low, _] = halves(self.clamp_narrow().seconds);
        low
    }

    /// The nearest time that an inode with both words can store.
    #[must_use]
    pub fn clamp_wide(self) -> Self {
        let seconds = match self.seconds {
            ..MIN_SECONDS => return Self::from_seconds(MIN_SECONDS),
            AFTER_MAX.. => return Self::from_seconds(MAX_SECONDS),
            seconds if AMBIGUOUS.contains(&seconds) => AMBIGUOUS.start - 1,
            seconds => seconds,
        };
        Self {
            seconds,
            nanoseconds: self.nanoseconds.min(LAST_NANOSECOND),
        }
    }

    /// The nearest time that an inode with only the first word can store: whole seconds up to 2038.
    #[must_use]
    pub fn clamp_narrow(self) -> Self {
        Self::from_seconds(self.seconds.clamp(i64::from(i32::MIN), i64::from(i32::MAX)))
    }
}

impl From<SystemTime> for Time {
    fn from(time: SystemTime) -> Self {
        let whole = |seconds: u64| i64::try_from(seconds).unwrap_or(i64::MAX);
        match time.duration_since(UNIX_EPOCH) {
            Ok(since) => Self {
                seconds: whole(since.as_secs()),
                nanoseconds: since.subsec_nanos(),
            },
            Err(before) => {
                let before = before.duration();
                match before.subsec_nanos() {
                    0 => Self::from_seconds(-whole(before.as_secs())),
                    nanoseconds => Self {
                        seconds: -1 - whole(before.as_secs()),
                        nanoseconds: LAST_NANOSECOND + 1 - nanoseconds,
                    },
                }
            }
        }
    }
}

/// The system cannot represent a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{} seconds since 1970 are a time that the system cannot represent", .0.seconds)]
pub struct TimeOutOfRange(Time);

impl TryFrom<Time> for SystemTime {
    type Error = TimeOutOfRange;

    fn try_from(time: Time) -> Result<Self, TimeOutOfRange> {
        let distance = Duration::from_secs(time.seconds.unsigned_abs());
        let second = match time.seconds {
            ..0 => UNIX_EPOCH.checked_sub(distance),
            0.. => UNIX_EPOCH.checked_add(distance),
        };
        let nanoseconds = Duration::from_nanos(time.nanoseconds.into());
        let moment = second.and_then(|second| second.checked_add(nanoseconds));
        moment.ok_or(TimeOutOfRange(time))
    }
}

/// Low and high half, in two's complement.
fn halves(seconds: i64) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = seconds.to_le_bytes();
    [
        u32::from_le_bytes([a, b, c, d]),
        u32::from_le_bytes([e, f, g, h]),
    ]
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime, UNIX_EPOCH};

    use super::{AMBIGUOUS, MAX_SECONDS, MIN_SECONDS, Time, TimeOutOfRange};
    use proptest::prelude::*;

    #[test]
    fn times_of_the_system_go_both_ways() {
        let quarter = Duration::from_millis(250);
        let cases = [
            (UNIX_EPOCH, 0, 0),
            (UNIX_EPOCH + quarter, 0, 250_000_000),
            (UNIX_EPOCH - quarter, -1, 750_000_000),
            (UNIX_EPOCH - Duration::from_secs(3), -3, 0),
            (
                UNIX_EPOCH - Duration::from_secs(3) - quarter,
                -4,
                750_000_000,
            ),
        ];
        for (moment, seconds, nanoseconds) in cases {
            let time = Time {
                seconds,
                nanoseconds,
            };
            assert_eq!(Time::from(moment), time);
            assert_eq!(SystemTime::try_from(time), Ok(moment));
        }
        let last = Time {
            seconds: i64::MAX,
            nanoseconds: u32::MAX,
        };
        assert_eq!(SystemTime::try_from(last), Err(TimeOutOfRange(last)));
        assert!(Time::now() > Time::from_seconds(1_700_000_000));
    }

    #[test]
    fn known_words() {
        let cases = [
            (0, 0, 0),
            (-1, u32::MAX, 0),
            (MIN_SECONDS, 0x8000_0000, 0),
            (0x7FFF_FFFF, 0x7FFF_FFFF, 0),
            (0x8000_0000, 0x8000_0000, 1),
            (0x1_0000_0000, 0, 1),
            (MAX_SECONDS, 0x7FFF_FFFF, 3),
        ];
        for (seconds, low, epoch) in cases {
            let time = Time {
                seconds,
                nanoseconds: 5,
            };
            assert_eq!(time.encode(), (low, epoch | 5 << 2), "{seconds}");
            assert_eq!(Time::decode(low, Some(epoch | 5 << 2)), time);
        }
    }

    #[test]
    fn the_old_pattern_is_a_date_before_1970_and_never_written() {
        assert_eq!(Time::decode(u32::MAX, Some(3)), Time::from_seconds(-1));
        let (low, extra) = Time::from_seconds(AMBIGUOUS.end - 1).encode();
        assert_eq!(Time::decode(low, Some(extra)).seconds, AMBIGUOUS.start - 1);
    }

    #[test]
    fn decimals_have_fractions_and_signs() {
        let at = |seconds, nanoseconds| {
            Some(Time {
                seconds,
                nanoseconds,
            })
        };
        assert_eq!(Time::from_decimal("12"), at(12, 0));
        assert_eq!(Time::from_decimal("12.5"), at(12, 500_000_000));
        assert_eq!(Time::from_decimal("-0.75"), at(-1, 250_000_000));
        assert_eq!(Time::from_decimal("-.75"), at(-1, 250_000_000));
        assert_eq!(Time::from_decimal("-3"), at(-3, 0));
        assert_eq!(Time::from_decimal("1.0000000019"), at(1, 1));
        for text in ["", "-", ".", "x", "1.-5", "1.5x", "99999999999999999999"] {
            assert_eq!(Time::from_decimal(text), None, "{text}");
        }
        let first = format!("{}.5", i64::MIN);
        assert_eq!(Time::from_decimal(&first), None);
    }

    #[test]
    fn out_of_range_becomes_the_nearest_end() {
        let last = Time {
            seconds: i64::MAX,
            nanoseconds: 7,
        };
        assert_eq!(
            last.clamp_wide(),
            Time::from_seconds(MAX_SECONDS),
            "as Linux has it"
        );
        assert_eq!(Time::from_seconds(i64::MIN).encode(), (0x8000_0000, 0));
        assert_eq!(Time::from_seconds(1 << 40).encode_narrow(), 0x7FFF_FFFF);
        assert_eq!(
            Time::decode(0x8000_0000, None),
            Time::from_seconds(MIN_SECONDS)
        );
    }

    proptest! {
        #[test]
        fn what_fits_comes_back(
            seconds in MIN_SECONDS..=MAX_SECONDS,
            nanoseconds in 0u32..1_000_000_000,
        ) {
            let time = Time { seconds, nanoseconds };
            let (low, extra) = time.encode();
            prop_assert_eq!(Time::decode(low, Some(extra)), time.clamp_wide());
        }

        #[test]
        fn any_words_decode(low: u32, extra: u32) {
            let time = Time::decode(low, Some(extra));
            prop_assert!(time.nanoseconds < 1_000_000_000);
            prop_assert_eq!(time.clamp_wide(), time);
        }
    }
}
