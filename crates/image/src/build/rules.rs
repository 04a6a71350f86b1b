//! Rules that exclude or change files between the sources and the image.
//!
//! A pattern without a slash matches names at any depth, one with a slash matches whole paths from
//! the root of the image. `*` and `?` do not match a slash, `**` does. If a directory is excluded,
//! its contents are excluded too. An entry of an archive has two paths if symbolic links are on it;
//! a match of either counts.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::words::words;
use globset::{Glob, GlobBuilder, GlobMatcher, GlobSet, GlobSetBuilder};
use pext4_ondisk::owner::{self, GroupText, OwnerText, Party};
use pext4_ondisk::shown::Shown;
use pext4_ondisk::time::Time;

use super::error::{Error, ParseError};
use super::lookup;
use super::time::parse_time;
use super::tree::{Id, Metadata, Tree};

/// Changes of owners and attributes, parsed from a mapping file:
///
/// ```text
/// # the user 1000 of the source is 0 in the image, 1001 is 1, and so on for ten
/// uid 1000 0 10
/// gid 1000 0 10
/// path /usr/bin/sudo  mode=4755 owner=0:0
/// path *.pem          mode=0600 mtime=@0
/// ```
///
/// Words are quoted as in a shell ([`words`](crate::words)), so a path may have blanks. IDs that no
/// line names do not change. IDs in access control lists and capabilities change like
/// owners. If several `path` lines match a file, the last one wins.
#[derive(Clone, Debug, Default)]
pub struct Map {
    uids: Vec<IdRange>,
    gids: Vec<IdRange>,
    paths: Vec<PathRule>,
}

#[derive(Clone, Copy, Debug)]
struct IdRange {
    /// The line of the mapping file.
    line: usize,
    from: u32,
    to: u32,
    count: u32,
}

#[derive(Clone, Debug)]
struct PathRule {
    pattern: GlobMatcher,
    mode: Option<u16>,
    owner: Owner,
    mtime: Option<Time>,
    /// The line of the mapping file and the path there, if only one path can match the pattern.
    literal: Option<(usize, String)>,
}

/// A user and a group, as far as they change.
pub type Owner = (Option<u32>, Option<u32>);

impl Map {
    /// Parses a mapping file.
    ///
    /// # Errors
    ///
    /// A line is invalid. The message gives the number of the first such line.
    pub fn parse(text: impl AsRef<[u8]>) -> Result<Self, ParseError> {
        let mut map = Self::default();
        let lines = text.as_ref().split(|&byte| byte == b'\n');
        for (number, line) in (1..).zip(lines) {
            let done = map.add_line(number, line);
            done.map_err(|problem| ParseError(format!("line {number}: {problem}")))?;
        }
        Ok(map)
    }

    fn add_line(&mut self, number: usize, line: &[u8]) -> Result<(), String> {
        let words = words(line)?.into_iter().map(String::from_utf8);
        let words: Vec<String> = words
            .collect::<Result<_, _>>()
            .map_err(|_| "it is no text in UTF-8".to_owned())?;
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match words.as_slice() {
            [] => Ok(()),
            ["uid", numbers @ ..] => add_range(&mut self.uids, id_range(number, numbers)?),
            ["gid", numbers @ ..] => add_range(&mut self.gids, id_range(number, numbers)?),
            ["path", pattern, changes @ ..] => {
                self.paths.push(path_rule(number, pattern, changes)?);
                Ok(())
            }
            [word, ..] => Err(format!(
                "`{}`: uid, gid or path is expected",
                Shown(word.as_bytes())
            )),
        }
    }
}

/// Adds a range, unless a line before it says something else about the same ids.
fn add_range(ranges: &mut Vec<IdRange>, range: IdRange) -> Result<(), String> {
    let meets = |other: &&IdRange| {
        let behind = |range: &IdRange| u64::from(range.from) + u64::from(range.count);
        u64::from(range.from) < behind(other) && u64::from(other.from) < behind(&range)
    };
    if let Some(other) = ranges.iter().find(meets) {
        let id = range.from.max(other.from);
        return Err(format!(
            "line {} says already what {id} becomes",
            other.line
        ));
    }
    ranges.push(range);
    Ok(())
}

fn id_range(line: usize, words: &[&str]) -> Result<IdRange, String> {
    let numbers: Option<Vec<u32>> = words.iter().map(|word| word.parse().ok()).collect();
    let (from, to, count) = match numbers.as_deref() {
        Some(&[from, to]) => (from, to, 1),
        Some(&[_, _, 0]) => return Err("a count of 0 changes nothing".to_owned()),
        Some(&[from, to, count]) => (from, to, count),
        _ => return Err("write two or three numbers: FROM TO [COUNT]".to_owned()),
    };
    // Ids beyond the last one would be nobody's either.
    owner::check_id(to.saturating_add(count - 1))?;
    Ok(IdRange {
        line,
        from,
        to,
        count,
    })
}

fn path_rule(line: usize, pattern: &str, changes: &[&str]) -> Result<PathRule, String> {
    if changes.is_empty() {
        return Err("it says no change: mode=, owner= or mtime= is expected".to_owned());
    }
    let is_literal = !pattern.contains(['*', '?', '[', '{', '\\']);
    let mut rule = PathRule {
        pattern: glob(pattern)?.compile_matcher(),
        mode: None,
        owner: (None, None),
        mtime: None,
        literal: is_literal.then(|| (line, pattern.to_owned())),
    };
    for change in changes {
        match change.split_once('=') {
            Some(("mode", octal)) => {
                // `from_str_radix` accepts a sign.
                let is_digits = octal.bytes().all(|byte| byte.is_ascii_digit());
                let mode = u16::from_str_radix(octal, 8).ok();
                let mode = mode.filter(|&mode| is_digits && mode <= 0o7777);
                rule.mode = Some(mode.ok_or_else(|| format!("`{octal}` is no octal mode"))?);
            }
            Some(("owner", owner)) => rule.owner = owner_and_group(owner)?,
            Some(("mtime", time)) => {
                rule.mtime = Some(parse_time(time).map_err(|ParseError(problem)| problem)?);
            }
            _ => return Err(format!("`{change}`: mode=, owner= or mtime= is expected")),
        }
    }
    Ok(rule)
}

/// Parses an owner in the forms of chown(1): `USER`, `USER:GROUP` or `:GROUP`, as numbers. The only
/// name is `root`, since other names are those of an image that does not exist yet.
///
/// # Errors
///
/// The text has another form, or an id is nobody's. The message shows the form.
pub fn parse_owner(text: &str) -> Result<Owner, ParseError> {
    owner_and_group(text).map_err(ParseError)
}

fn owner_and_group(text: &str) -> Result<Owner, String> {
    let id = |party: Party<'_>| match party {
        Party::Id(id) => Ok(id),
        Party::Name("root") => Ok(0),
        Party::Name(name) => Err(format!(
            "`{text}`: of names only root has a known number; write that of `{name}`, like 1000:1000"
        )),
    };
    let owner = OwnerText::parse(text)?;
    let group = match owner.group {
        GroupText::Unchanged => None,
        GroupText::OfUser(name) => Some(Party::Name(name)),
        GroupText::Stated(party) => Some(party),
    };
    Ok((owner.user.map(id).transpose()?, group.map(id).transpose()?))
}

fn glob(pattern: &str) -> Result<Glob, String> {
    let trimmed = pattern.trim_end_matches('/');
    let anchor = ["/", "./"]
        .iter()
        .find(|anchor| pattern.starts_with(**anchor));
    let whole = match anchor {
        // The pattern for the root becomes empty, like the root's path.
        Some(anchor) => trimmed.strip_prefix(anchor).unwrap_or_default().to_owned(),
        None if trimmed.is_empty() => return Err("an empty pattern matches nothing".to_owned()),
        None if trimmed.contains('/') => trimmed.to_owned(),
        None => format!("**/{trimmed}"),
    };
    GlobBuilder::new(&whole)
        .literal_separator(true)
        .build()
        .map_err(|error| format!("pattern `{pattern}`: {}", error.kind()))
}

/// Compiles patterns for paths.
///
/// # Errors
///
/// The error names the invalid pattern.
pub(super) fn path_patterns(patterns: &[String]) -> Result<GlobSet, String> {
    let mut set = GlobSetBuilder::new();
    for pattern in patterns {
        let glob = glob(pattern)?;
        if glob.glob().is_empty() {
            return Err(format!("pattern `{pattern}`: the root cannot be left out"));
        }
        set.add(glob);
    }
    set.build().map_err(|error| error.to_string())
}

/// Compiles patterns for names of attributes.
///
/// # Errors
///
/// The error names the invalid pattern.
pub(super) fn name_patterns(patterns: &[String]) -> Result<GlobSet, String> {
    let mut set = GlobSetBuilder::new();
    for pattern in patterns {
        set.add(Glob::new(pattern).map_err(|error| error.to_string())?);
    }
    set.build().map_err(|error| error.to_string())
}

/// All rules of a build.
#[derive(Clone, Debug, Default)]
pub(super) struct Rules {
    pub exclude: GlobSet,
    pub exclude_attributes: GlobSet,
    pub owner: Owner,
    pub mtime: Option<Time>,
    /// Later times are reduced to this, in seconds since 1970.
    pub latest: Option<i64>,
    /// Whether the inodes have no room for times beyond 2038 and for fractions of a second.
    pub has_narrow_times: bool,
    pub map: Map,
}

impl Rules {
    /// Whether a path, without a leading slash, is excluded.
    pub fn excludes(&self, path: &[u8]) -> bool {
        !self.exclude.is_empty() && self.exclude.is_match(Path::new(OsStr::from_bytes(path)))
    }

    /// The nearest time that the inodes can store. What is derived from times, as the UUID is, is
    /// derived from these, since only these can be read back.
    pub fn storable(&self, time: Time) -> Time {
        match self.has_narrow_times {
            true => time.clamp_narrow(),
            false => time.clamp_wide(),
        }
    }

    /// Whether any rule needs the path of a file.
    pub fn needs_paths(&self) -> bool {
        !self.exclude.is_empty() || !self.map.paths.is_empty()
    }

    /// Whether an attribute is excluded.
    pub fn excludes_attribute(&self, name: &[u8]) -> bool {
        !self.exclude_attributes.is_empty()
            && self
                .exclude_attributes
                .is_match(Path::new(OsStr::from_bytes(name)))
    }

    /// Whether ids are mapped at all.
    pub fn maps_ids(&self) -> bool {
        !self.map.uids.is_empty() || !self.map.gids.is_empty()
    }

    /// The mapped user ID.
    pub fn uid(&self, id: u32) -> u32 {
        mapped(&self.map.uids, id)
    }

    /// The mapped group ID.
    pub fn gid(&self, id: u32) -> u32 {
        mapped(&self.map.gids, id)
    }

    /// Refuses a mapping that states the path or the name of no file, which is a mistake of who
    /// wrote it. A pattern may match nothing. Builds the tree's index if it is missing.
    ///
    /// # Errors
    ///
    /// `Impossible`, with the line.
    pub fn check_paths(&self, tree: &mut Tree) -> Result<(), Error> {
        let stated = self
            .map
            .paths
            .iter()
            .filter_map(|rule| rule.literal.as_ref());
        for (line, path) in stated {
            tree.make_index();
            let trimmed = path.trim_end_matches('/');
            let is_whole = path.starts_with('/') || path.starts_with("./");
            let bytes = trimmed.as_bytes();
            let is_there = match is_whole || trimmed.contains('/') {
                true => matches!(trimmed, "" | ".") || lookup::find(tree, bytes).is_some(),
                false => (1..tree.nodes.len())
                    .map(|id| Id::try_from(id).expect("ids are numbers of 32 bits"))
                    .any(|id| tree.name(id) == bytes && !tree.is_gone(id)),
            };
            if !is_there {
                return Err(Error::impossible(format!(
                    "line {line} of the mapping: nothing in the image is called `{}`; `path` with a \
                     pattern like `{path}*` may match nothing",
                    Shown(path.as_bytes())
                )));
            }
        }
        Ok(())
    }

    /// Applies the rules to owner, mode and times; the time becomes one that inodes can store. A
    /// rule for paths applies if it matches one of `paths`, which is called only if there are such
    /// rules. Returns true if the mode changed: the caller must then adapt the access control list.
    pub fn apply(&self, paths: impl FnOnce() -> Vec<Vec<u8>>, metadata: &mut Metadata) -> bool {
        let is_changed = self.change(paths, metadata);
        let time = self.storable(Time {
            seconds: metadata.seconds,
            nanoseconds: metadata.nanoseconds,
        });
        (metadata.seconds, metadata.nanoseconds) = (time.seconds, time.nanoseconds);
        is_changed
    }

    /// As [`Rules::apply`], but the time may be one that inodes cannot store.
    pub fn change(&self, paths: impl FnOnce() -> Vec<Vec<u8>>, metadata: &mut Metadata) -> bool {
        let mode = metadata.mode;
        (metadata.uid, metadata.gid) = (self.uid(metadata.uid), self.gid(metadata.gid));
        set_owner(metadata, self.owner);
        if let Some(time) = self.mtime {
            (metadata.seconds, metadata.nanoseconds) = (time.seconds, time.nanoseconds);
        }
        if !self.map.paths.is_empty() {
            let paths = paths();
            let matches = |rule: &&PathRule| {
                let is_match = |path| rule.pattern.is_match(Path::new(OsStr::from_bytes(path)));
                paths.iter().any(|path| is_match(path))
            };
            let matching = self.map.paths.iter().filter(matches);
            matching.for_each(|rule| rule.apply(metadata));
        }
        if let Some(latest) = self.latest
            && (metadata.seconds, metadata.nanoseconds) > (latest, 0)
        {
            (metadata.seconds, metadata.nanoseconds) = (latest, 0);
        }
        metadata.mode != mode
    }
}

impl PathRule {
    fn apply(&self, metadata: &mut Metadata) {
        // A symbolic link always has all permissions.
        if let Some(mode) = self.mode
            && !metadata.is_symlink()
        {
            metadata.mode = metadata.mode & 0o170_000 | mode;
        }
        set_owner(metadata, self.owner);
        if let Some(time) = self.mtime {
            (metadata.seconds, metadata.nanoseconds) = (time.seconds, time.nanoseconds);
        }
    }
}

fn set_owner(metadata: &mut Metadata, (uid, gid): Owner) {
    metadata.uid = uid.unwrap_or(metadata.uid);
    metadata.gid = gid.unwrap_or(metadata.gid);
}

fn mapped(ranges: &[IdRange], id: u32) -> u32 {
    ranges
        .iter()
        .find_map(|range| {
            let offset = id.checked_sub(range.from)?;
            (offset < range.count).then(|| range.to + offset)
        })
        .unwrap_or(id)
}

#[cfg(test)]
mod tests {
    use super::{Map, Rules, glob, parse_owner, path_patterns};
    use crate::build::tree::Metadata;

    #[test]
    fn patterns_match_names_or_whole_paths() {
        let rules = Rules {
            exclude: path_patterns(&["*.o".into(), "/proc".into(), "var/**/tmp".into()]).unwrap(),
            ..Rules::default()
        };
        for path in ["a.o", "x/y/a.o", "proc", "var/tmp", "var/a/b/tmp"] {
            assert!(rules.excludes(path.as_bytes()), "{path}");
        }
        for path in ["a.c", "x/proc", "tmp", "var/tmp2"] {
            assert!(!rules.excludes(path.as_bytes()), "{path}");
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
        assert!(glob("").is_err());
    }

    #[test]
    fn a_mapping_changes_ids_ranges_and_paths() {
        let text =
            "# map\nuid 1000 0 10 # ten\ngid 5 7\n\npath /bin/su mode=4755 owner=0:1 mtime=@9\n";
        let rules = Rules {
            map: Map::parse(text).unwrap(),
            latest: Some(100),
            ..Rules::default()
        };
        let mut metadata = Metadata {
            mode: 0o100_644,
            uid: 1003,
            gid: 5,
            seconds: 1000,
            ..Metadata::default()
        };
        assert!(!rules.apply(|| vec![b"etc/x".to_vec()], &mut metadata));
        assert_eq!((metadata.uid, metadata.gid, metadata.seconds), (3, 7, 100));
        assert!(rules.apply(|| vec![b"bin/su".to_vec()], &mut metadata));
        assert_eq!(
            (metadata.mode, metadata.uid, metadata.gid),
            (0o104_755, 0, 1)
        );
        assert_eq!(metadata.seconds, 9);
    }

    #[test]
    fn paths_of_a_mapping_are_quoted_as_in_a_shell() {
        let map = "path '/a b' mode=0600\npath /c\\ d mode=0600\npath \"*/e f\" mode=0600\r\n";
        let rules = Rules {
            map: Map::parse(map).unwrap(),
            ..Rules::default()
        };
        for path in ["a b", "c d", "x/e f"] {
            let mut metadata = Metadata {
                mode: 0o100_644,
                ..Metadata::default()
            };
            assert!(rules.apply(|| vec![path.into()], &mut metadata), "{path}");
        }
    }

    #[test]
    fn owners_are_numbers_or_root() {
        assert_eq!(parse_owner("1000:100"), Ok((Some(1000), Some(100))));
        let last = 4_294_967_294;
        assert_eq!(parse_owner("0:4294967294"), Ok((Some(0), Some(last))));
        assert_eq!(parse_owner("1000"), Ok((Some(1000), None)));
        assert_eq!(parse_owner(":5"), Ok((None, Some(5))));
        for text in ["root:root", "root:", "0:0", "+0:root"] {
            assert_eq!(parse_owner(text), Ok((Some(0), Some(0))), "{text}");
        }
        for text in ["", ":", "1000:", "root:wheel", "-1:0", "0:4294967295"] {
            assert!(parse_owner(text).is_err(), "{text}");
        }
        Map::parse("uid 0 4294967290 5").expect("the last one is 4294967294");
    }

    #[test]
    fn errors_name_the_invalid_line() {
        for (text, word) in [
            ("user 1 2", "line 1"),
            ("uid 1", "FROM"),
            ("\nuid 4294967295 4294967295 2", "line 2"),
            ("uid 0 4294967290 6", "4294967295 is the id of no user"),
            ("gid 5 4294967295", "4294967295 is the id of no user"),
            (
                "path x owner=0:4294967295",
                "4294967295 is the id of no user",
            ),
            ("path x mode=9", "octal"),
            ("path x mode=+755", "octal"),
            ("path x owner=me", "only root has a known number"),
            ("path x colour=red", "mode="),
            ("path x", "no change: mode="),
            ("path 'a b mode=0600", "a quote (') is not closed"),
            ("uid 5 0 0", "a count of 0"),
            (
                "uid 1000 0 10\nuid 1 1\nuid 990 0 11",
                "line 3: line 1 says already what 1000",
            ),
            ("gid 7 1\ngid 7 2", "line 2: line 1 says already what 7"),
        ] {
            let told = Map::parse(text).unwrap_err().to_string();
            assert!(told.contains(word), "{text}: {told}");
        }
        let told = Map::parse(b"uid 1 2\npath \xff mode=0\n").unwrap_err();
        assert_eq!(told.to_string(), "line 2: it is no text in UTF-8");
        Map::parse("uid 10 0 5\nuid 15 0 5\ngid 10 0").expect("ranges beside each other");
    }
}
