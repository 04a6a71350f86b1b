//! Which patterns of a mapping file match a path, without trying each.
//!
//! A mapping may have a line for each of thousands of files, and every file of the sources asks.
//! Patterns that only one path or one name matches are looked up by it; all others are compiled to
//! sets, each of which is tried at once.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use globset::{Candidate, Glob, GlobSet, GlobSetBuilder};

/// The most patterns in a set: the size of a set is limited.
const PATTERNS_IN_SET: usize = 256;

/// What a pattern without a slash matches: a name below any directory.
const AT_ANY_DEPTH: &str = "**/";

/// Patterns, by their numbers: the order in which they were added.
#[derive(Clone, Debug, Default)]
pub(super) struct PatternIndex {
    /// Patterns that match one path.
    paths: HashMap<Vec<u8>, Vec<usize>>,
    /// Patterns that match one name at any depth.
    names: HashMap<Vec<u8>, Vec<usize>>,
    /// All others, in sets with the number of each.
    sets: Vec<(GlobSet, Vec<usize>)>,
}

impl PatternIndex {
    /// An index of patterns, each with whether it has no characters with a meaning.
    ///
    /// # Errors
    ///
    /// A pattern is too large.
    pub(super) fn new(patterns: &[(Glob, bool)]) -> Result<Self, globset::Error> {
        let mut index = Self::default();
        let mut others = Vec::new();
        for (number, (glob, is_literal)) in patterns.iter().enumerate() {
            let text = glob.glob();
            let (map, key) = match (is_literal, text.strip_prefix(AT_ANY_DEPTH)) {
                (false, _) => {
                    others.push((number, glob));
                    continue;
                }
                (true, Some(name)) => (&mut index.names, name),
                (true, None) => (&mut index.paths, text),
            };
            map.entry(key.into()).or_default().push(number);
        }
        for piece in others.chunks(PATTERNS_IN_SET) {
            index.add_sets(piece)?;
        }
        Ok(index)
    }

    /// Adds a set, or several if one is too large.
    fn add_sets(&mut self, patterns: &[(usize, &Glob)]) -> Result<(), globset::Error> {
        let mut set = GlobSetBuilder::new();
        for (_, glob) in patterns {
            set.add((*glob).clone());
        }
        match set.build() {
            Ok(set) => {
                let numbers = patterns.iter().map(|(number, _)| *number);
                self.sets.push((set, numbers.collect()));
                Ok(())
            }
            Err(error) if patterns.len() == 1 => Err(error),
            Err(_) => {
                let (first, second) = patterns.split_at(patterns.len() / 2);
                self.add_sets(first)?;
                self.add_sets(second)
            }
        }
    }

    /// The numbers of the patterns that match one of these paths, in order.
    pub(super) fn matching(&self, paths: &[Vec<u8>]) -> Vec<usize> {
        let mut found = Vec::new();
        for path in paths {
            let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
            let by_path = self.paths.get(path).into_iter().flatten();
            let by_name = self.names.get(name).into_iter().flatten();
            found.extend(by_path.chain(by_name));
            let candidate = Candidate::new(Path::new(OsStr::from_bytes(path)));
            for (set, numbers) in &self.sets {
                let matched = set.matches_candidate(&candidate);
                found.extend(matched.into_iter().map(|at| numbers[at]));
            }
        }
        found.sort_unstable();
        found.dedup();
        found
    }
}

#[cfg(test)]
mod tests {
    use super::super::{glob, is_literal};
    use super::{PATTERNS_IN_SET, PatternIndex};

    const PATTERNS: [&str; 16] = [
        "*.pem", "/bin/su", "su", "/", "bin/", "b*n/su", "./etc", "etc/**", "**/su", "a]b",
        "{a,b}", "a\\*b", "su", "/x//y", "??", "[s]u",
    ];

    fn index(patterns: &[&str]) -> PatternIndex {
        let patterns = patterns.iter().map(|text| {
            let glob = glob(text).expect("it is valid");
            (glob, is_literal(text))
        });
        let patterns: Vec<_> = patterns.collect();
        PatternIndex::new(&patterns).expect("they are small")
    }

    #[test]
    fn the_same_patterns_match_as_if_each_were_tried() {
        let index = index(&PATTERNS);
        let matchers = PATTERNS.map(|text| glob(text).expect("it is valid").compile_matcher());
        let paths = [
            "", "bin", "bin/su", "bun/su", "su", "x/su", "su/x", "etc", "etc/a/b", "x/etc",
            "a.pem", "x/a.pem", "a]b", "a", "x/b", "a*b", "x//y", "x/y", "ab", "a/", "/bin/su",
        ];
        for path in paths {
            let expected = (0..PATTERNS.len()).filter(|&number| matchers[number].is_match(path));
            let expected: Vec<usize> = expected.collect();
            assert_eq!(index.matching(&[path.into()]), expected, "{path}");
        }
        let both = index.matching(&["bin/su".into(), "etc".into()]);
        assert_eq!(both, [1, 2, 5, 6, 8, 12, 14, 15]);
    }

    #[test]
    fn only_patterns_with_a_meaning_are_tried() {
        let many: Vec<String> = (0..5000)
            .map(|number| match number % 4 {
                0 => format!("*.{number}"),
                1 => format!("name{number}"),
                2 => format!("/a/path{number}"),
                _ => format!("path/{number}/"),
            })
            .collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let index = index(&many);
        let tried: usize = index.sets.iter().map(|(_, numbers)| numbers.len()).sum();
        assert_eq!(tried, 1250);
        assert_eq!(index.sets.len(), 1250_usize.div_ceil(PATTERNS_IN_SET));
        assert_eq!(index.matching(&["x/name4.4996".into()]), [4996]);
        assert_eq!(index.matching(&["path/4999".into()]), [4999]);
    }
}
