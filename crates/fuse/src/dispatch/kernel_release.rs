//! The release of the running kernel, by which what it leaves to a server is told.

use std::sync::LazyLock;

/// Whether the kernel's release is this one, by its first two numbers, or a later one.
pub(super) fn is_at_least(release: (u32, u32)) -> bool {
    static RUNNING: LazyLock<(u32, u32)> = LazyLock::new(|| {
        let name = rustix::system::uname();
        numbers(&name.release().to_string_lossy())
    });
    *RUNNING >= release
}

fn numbers(release: &str) -> (u32, u32) {
    let mut numbers = release
        .split(|byte: char| !byte.is_ascii_digit())
        .map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::numbers;

    #[test]
    fn a_release_begins_with_two_numbers() {
        assert_eq!(numbers("6.18.44-fc"), (6, 18));
        assert_eq!(numbers("5.4-rc1"), (5, 4));
        assert_eq!(numbers("7"), (7, 0));
        assert_eq!(numbers(""), (0, 0));
    }
}
