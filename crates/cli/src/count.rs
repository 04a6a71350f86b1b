//! Numbers of things in messages.

use std::fmt::Display;

/// A number and what it counts: `1 file`, `2 files`.
pub fn count(number: impl Into<u64>, one: impl Display, many: impl Display) -> String {
    match number.into() {
        1 => format!("1 {one}"),
        number => format!("{number} {many}"),
    }
}

#[cfg(test)]
mod tests {
    use super::count;

    #[test]
    fn one_is_singular() {
        assert_eq!(count(0u32, "name", "names"), "0 names");
        assert_eq!(count(1u64, "name", "names"), "1 name");
    }
}
