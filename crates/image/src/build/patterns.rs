//! Patterns of paths and names.
//!
//! A pattern without a slash matches names at any depth, one with a slash matches whole paths from
//! the root of the image. `*` and `?` do not match a slash, `**` does. A slash at the end, which
//! does not count as one, restricts a pattern for what is left out to directories.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

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

/// Patterns of paths that are left out.
#[derive(Clone, Debug, Default)]
pub(super) struct PathPatterns {
    of_all: GlobSet,
    of_directories: GlobSet,
}

impl PathPatterns {
    /// Compiles patterns.
    ///
    /// # Errors
    ///
    /// The error names the invalid pattern.
    pub(super) fn new(patterns: &[String]) -> Result<Self, String> {
        let (mut of_all, mut of_directories) = (GlobSetBuilder::new(), GlobSetBuilder::new());
        for pattern in patterns {
            let set = match pattern.ends_with('/') {
                true => &mut of_directories,
                false => &mut of_all,
            };
            set.add(path_pattern(pattern)?);
        }
        let build = |set: GlobSetBuilder| set.build().map_err(|error| error.to_string());
        Ok(Self {
            of_all: build(of_all)?,
            of_directories: build(of_directories)?,
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.of_all.is_empty() && self.of_directories.is_empty()
    }

    /// Whether a pattern matches a path, without a leading slash. `is_directory` is called only if
    /// it matters.
    pub(super) fn is_match(&self, path: &[u8], is_directory: impl FnOnce() -> bool) -> bool {
        let path = Path::new(OsStr::from_bytes(path));
        self.of_all.is_match(path) || (self.of_directories.is_match(path) && is_directory())
    }
}

fn path_pattern(pattern: &str) -> Result<Glob, String> {
    let glob = glob(pattern)?;
    match glob.glob().is_empty() {
        true => Err(format!("pattern `{pattern}`: the root cannot be left out")),
        false => Ok(glob),
    }
}

/// Patterns for names of attributes, as [`Builder::exclude_attribute`] takes them.
///
/// [`Builder::exclude_attribute`]: super::Builder::exclude_attribute
#[derive(Clone, Debug, Default)]
pub struct AttributePatterns(GlobSet);

impl AttributePatterns {
    /// Compiles patterns.
    ///
    /// # Errors
    ///
    /// The error names the invalid pattern.
    pub fn parse(patterns: &[String]) -> Result<Self, ParseError> {
        let mut set = GlobSetBuilder::new();
        for pattern in patterns {
            set.add(name_pattern(pattern).map_err(ParseError)?);
        }
        let set = set.build().map_err(|error| ParseError(error.to_string()))?;
        Ok(Self(set))
    }

    /// Whether one of the patterns matches a name.
    #[must_use]
    pub fn matches(&self, name: &[u8]) -> bool {
        !self.0.is_empty() && self.0.is_match(Path::new(OsStr::from_bytes(name)))
    }
}

fn name_pattern(pattern: &str) -> Result<Glob, String> {
    Glob::new(pattern).map_err(|error| format!("pattern `{pattern}`: {}", error.kind()))
}

#[cfg(test)]
mod tests {
    use super::{PathPatterns, glob};

    fn matches(patterns: &[&str], path: &str, is_directory: bool) -> bool {
        let patterns: Vec<_> = patterns.iter().map(ToString::to_string).collect();
        let patterns = PathPatterns::new(&patterns).unwrap();
        patterns.is_match(path.as_bytes(), || is_directory)
    }

    #[test]
    fn patterns_match_names_or_whole_paths() {
        let patterns = ["*.o", "/proc", "var/**/tmp"];
        for path in ["a.o", "x/y/a.o", "proc", "var/tmp", "var/a/b/tmp"] {
            assert!(matches(&patterns, path, false), "{path}");
        }
        for path in ["a.c", "x/proc", "tmp", "var/tmp2"] {
            assert!(!matches(&patterns, path, true), "{path}");
        }
        for pattern in ["[", "", "/", "./", "//"] {
            assert!(PathPatterns::new(&[pattern.into()]).is_err(), "{pattern}");
        }
    }

    #[test]
    fn a_slash_at_the_end_is_for_directories_and_makes_no_whole_path() {
        for (pattern, path) in [("cache/", "a/cache"), ("/a/", "a"), ("a/*/", "a/b")] {
            assert!(matches(&[pattern], path, true), "{pattern}");
            assert!(!matches(&[pattern], path, false), "{pattern}");
            assert!(matches(&[pattern, "*"], path, false), "{pattern}");
        }
        assert!(!matches(&["/a/"], "b/a", true));
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
