//! UUIDs on the command line.

use uuid::Uuid;

/// A UUID, or a new one for `random`.
///
/// # Errors
///
/// The text is neither. The message shows the form.
pub fn parse(text: &str) -> Result<Uuid, String> {
    match text {
        "random" => Ok(Uuid::new_v4()),
        text => Uuid::parse_str(text)
            .map_err(|_| "write 8-4-4-4-12 hexadecimal digits, or `random`".to_owned()),
    }
}

/// A UUID for `build`, of which nothing may be random.
///
/// # Errors
///
/// The text is none, or `random`.
pub fn parse_stated(text: &str) -> Result<Uuid, String> {
    match text {
        "random" => {
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
        assert_ne!(parse("random"), parse("random"));
        let told = parse_stated("random").expect_err("not the same each time");
        assert!(told.contains("nothing is random"), "{told}");
    }
}
