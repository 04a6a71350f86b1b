//! Patterns of paths and names.
//!
//! A pattern without a slash matches names at any depth, one with a slash matches whole paths from
//! the root of the image. `*` and `?` do not match a slash, `**` does.

use globset::{Glob, GlobBuilder, GlobSet, GlobSetBuilder};

use super::error::ParseError;

/// Compiles a pattern for paths.
///
/// # Errors
///
/// The pattern is invalid, or empty.
pub(super) fn glob(pattern: &str) -> Result<Glob, String> {
    let mut trimmed = pattern;
    while let Some(rest) = trimmed.strip_prefix('/').or(trimmed.strip_prefix("./")) {
        trimmed = rest;
    }
    let is_whole = trimmed.len() < pattern.len();
    let trimmed = trimmed.trim_end_matches('/');
    let whole = match is_whole {
        // The pattern for the root becomes empty, like the root's path.
        true => trimmed.to_owned(),
        false if trimmed.is_empty() => return Err("an empty pattern matches nothing".to_owned()),
        false if trimmed.contains('/') => trimmed.to_owned(),
        false => format!("**/{trimmed}"),
    };
    GlobBuilder::new(&whole)
        .literal_separator(true)
        .build()
        .map_err(|error| format!("pattern `{pattern}`: {}", error.kind()))
}

/// A pattern of [`Builder::exclude`](super::Builder::exclude), if it is valid.
///
/// # Errors
///
/// It is invalid, empty, or only matches the root.
pub fn check_pattern(pattern: &str) -> Result<String, ParseError> {
    path_pattern(pattern).map_err(ParseError)?;
    Ok(pattern.to_owned())
}

/// A pattern of [`Builder::exclude_attribute`](super::Builder::exclude_attribute), if it is valid.
///
/// # Errors
///
/// It is invalid.
pub fn check_attribute_pattern(pattern: &str) -> Result<String, ParseError> {
    name_pattern(pattern).map_err(ParseError)?;
    Ok(pattern.to_owned())
}

/// Compiles patterns for paths.
///
/// # Errors
///
/// The error names the invalid pattern.
pub(super) fn path_patterns(patterns: &[String]) -> Result<GlobSet, String> {
    let mut set = GlobSetBuilder::new();
    for pattern in patterns {
        set.add(path_pattern(pattern)?);
    }
    set.build().map_err(|error| error.to_string())
}

fn path_pattern(pattern: &str) -> Result<Glob, String> {
    let glob = glob(pattern)?;
    match glob.glob().is_empty() {
        true => Err(format!("pattern `{pattern}`: the root cannot be left out")),
        false => Ok(glob),
    }
}

/// Compiles patterns for names of attributes.
///
/// # Errors
///
/// The error names the invalid pattern.
pub(super) fn name_patterns(patterns: &[String]) -> Result<GlobSet, String> {
    let mut set = GlobSetBuilder::new();
    for pattern in patterns {
        set.add(name_pattern(pattern)?);
    }
    set.build().map_err(|error| error.to_string())
}

fn name_pattern(pattern: &str) -> Result<Glob, String> {
    Glob::new(pattern).map_err(|error| format!("pattern `{pattern}`: {}", error.kind()))
}

#[cfg(test)]
mod tests {
    use super::{glob, path_patterns};

    #[test]
    fn patterns_match_names_or_whole_paths() {
        let set = path_patterns(&["*.o".into(), "/proc".into(), "var/**/tmp".into()]).unwrap();
        for path in ["a.o", "x/y/a.o", "proc", "var/tmp", "var/a/b/tmp"] {
            assert!(set.is_match(path), "{path}");
        }
        for path in ["a.c", "x/proc", "tmp", "var/tmp2"] {
            assert!(!set.is_match(path), "{path}");
        }
        for pattern in ["[", "", "/", "./", "//"] {
            assert!(path_patterns(&[pattern.into()]).is_err(), "{pattern}");
        }
    }

    #[test]
    fn the_root_pattern_matches_only_the_root() {
        let matcher = |pattern| glob(pattern).unwrap().compile_matcher();
        assert!(matcher("/").is_match(""));
        assert!(!matcher("/").is_match("bin") && !matcher("/").is_match("bin/su"));
        assert!(matcher("./bin/su").is_match("bin/su") && matcher("./bin").is_match("bin"));
        assert!(!matcher("./su").is_match("bin/su"));
        for pattern in ["//su", "/./su", ".//su/", "././su"] {
            assert!(matcher(pattern).is_match("su") && !matcher(pattern).is_match("bin/su"));
        }
        assert!(glob("").is_err());
    }
}
