//! Formatting of numbers.

/// A whole number with separated thousands: `1,234,567`.
#[must_use]
pub fn thousands(value: f64) -> String {
    if !value.is_finite() {
        return "-".to_owned();
    }
    let digits = format!("{value:.0}");
    let (sign, digits) = digits
        .strip_prefix('-')
        .map_or(("", &*digits), |rest| ("-", rest));
    let mut text = sign.to_owned();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A share in percent, with as many digits as are significant.
#[must_use]
pub fn share(value: f64) -> String {
    if !value.is_finite() {
        return "-".to_owned();
    }
    let percent = value * 100.0;
    if percent.abs() < 9.95 {
        format!("{percent:.1} %")
    } else {
        format!("{percent:.0} %")
    }
}

/// A time given in nanoseconds, in a suitable unit.
#[must_use]
pub fn nanoseconds(value: f64) -> String {
    if value < 9_995.0 {
        format!("{value:.0} ns")
    } else if value < 9_995_000.0 {
        format!("{:.1} us", value / 1e3)
    } else {
        format!("{:.1} ms", value / 1e6)
    }
}

#[cfg(test)]
mod tests {
    use super::{nanoseconds, share, thousands};

    #[test]
    fn for_people() {
        assert_eq!(thousands(0.4), "0");
        assert_eq!(thousands(999.0), "999");
        assert_eq!(thousands(1_000.0), "1,000");
        assert_eq!(thousands(-1_234_567.2), "-1,234,567");
        assert_eq!(thousands(f64::NAN), "-");
        assert_eq!(share(1.0), "100 %");
        assert_eq!(share(0.0123), "1.2 %");
        assert_eq!(share(f64::INFINITY), "-");
        assert_eq!(nanoseconds(640.4), "640 ns");
        assert_eq!(nanoseconds(12_345.0), "12.3 us");
        assert_eq!(nanoseconds(12_345_678.0), "12.3 ms");
    }
}
