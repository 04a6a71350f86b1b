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

/// A number of tasks: `1 task`, `2 tasks`.
#[must_use]
pub fn tasks(count: u32) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} task{plural}")
}

/// A size as the other commands show it: `7.5 GiB`, rounded down to one digit after the point.
#[must_use]
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let (mut unit, mut tenths) = (0, u128::from(bytes) * 10);
    while tenths >= 10 * 1024 {
        (unit, tenths) = (unit + 1, tenths / 1024);
    }
    match (tenths / 10, tenths % 10) {
        (whole, 0) => format!("{whole} {}", UNITS[unit]),
        (whole, tenth) => format!("{whole}.{tenth} {}", UNITS[unit]),
    }
}

#[cfg(test)]
mod tests {
    use super::{nanoseconds, share, size, tasks, thousands};

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

    #[test]
    fn tasks_and_sizes() {
        assert_eq!([tasks(1), tasks(96)], ["1 task", "96 tasks"]);
        let sizes = [0, 1023, 1024, 7 << 30 | 1 << 29, (1 << 30) - 1, u64::MAX].map(size);
        let expected = [
            "0 bytes",
            "1023 bytes",
            "1 KiB",
            "7.5 GiB",
            "1023.9 MiB",
            "15.9 EiB",
        ];
        assert_eq!(sizes, expected);
    }
}
