//! The mapping file: changes of owners and attributes.

mod index;

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

use globset::Glob;
use pext4_ondisk::directory::KIND_MASK;
use pext4_ondisk::owner::{self, GroupText, OwnerText, Party};
use pext4_ondisk::shown::Shown;
use pext4_ondisk::time::Time;
use pext4_sync::atomic::{AtomicBool, Ordering};

use super::error::{Error, ParseError};
use super::lookup;
use super::patterns::glob;
use super::time::parse_time;
use super::tree::{Id, Metadata, NONE, ROOT, Tree};
use crate::words::words;
use index::PatternIndex;

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
    /// The patterns of `paths`.
    patterns: PatternIndex,
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
    mode: Option<u16>,
    owner: Owner,
    mtime: Option<Time>,
    /// The line of the mapping file and the path there, if only one path can match the pattern.
    literal: Option<(usize, String)>,
    has_matched: Matched,
}

/// Whether a rule has matched a file of this build.
#[derive(Debug, Default)]
struct Matched(AtomicBool);

impl Clone for Matched {
    /// The clone is for another build.
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Matched {
    fn note(&self) {
        // Threads that scan share it: it is written once.
        if !self.is_set() {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
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
        let mut patterns = Vec::new();
        let lines = text.as_ref().split(|&byte| byte == b'\n');
        for (number, line) in (1..).zip(lines) {
            let done = map.add_line(number, line, &mut patterns);
            done.map_err(|problem| ParseError(format!("line {number}: {problem}")))?;
        }
        let index = PatternIndex::new(&patterns);
        map.patterns = index.map_err(|error| ParseError(error.to_string()))?;
        Ok(map)
    }

    /// Adds a line; if it is for paths, also its pattern and whether only one path or name matches
    /// that.
    fn add_line(
        &mut self,
        number: usize,
        line: &[u8],
        patterns: &mut Vec<(Glob, bool)>,
    ) -> Result<(), String> {
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
                patterns.push((glob(pattern)?, is_literal(pattern)));
                Ok(())
            }
            [word, ..] => Err(format!(
                "`{}`: uid, gid or path is expected",
                Shown(word.as_bytes())
            )),
        }
    }

    /// Whether any line is for paths.
    pub(super) fn has_paths(&self) -> bool {
        !self.paths.is_empty()
    }

    /// Whether ids are mapped at all.
    pub(super) fn maps_ids(&self) -> bool {
        !self.uids.is_empty() || !self.gids.is_empty()
    }

    /// The mapped user ID.
    pub(super) fn uid(&self, id: u32) -> u32 {
        mapped(&self.uids, id)
    }

    /// The mapped group ID.
    pub(super) fn gid(&self, id: u32) -> u32 {
        mapped(&self.gids, id)
    }

    /// Applies the lines that match one of a file's paths.
    pub(super) fn apply_to(&self, paths: &[Vec<u8>], metadata: &mut Metadata) {
        for number in self.patterns.matching(paths) {
            let rule = &self.paths[number];
            rule.has_matched.note();
            rule.apply(metadata);
        }
    }

    /// Refuses a line that states the path or the name of no file, or a path that is not the one by
    /// which the file got its attributes: both are mistakes of who wrote it. A pattern may match
    /// nothing. `is_archive` says whether the source of a number is an archive. Builds the tree's
    /// index if it is missing.
    ///
    /// # Errors
    ///
    /// `Impossible`, with the line.
    pub(super) fn check_paths(
        &self,
        tree: &mut Tree,
        is_archive: impl Fn(u16) -> bool,
    ) -> Result<(), Error> {
        let stated = self.paths.iter().enumerate();
        let stated = stated.filter_map(|(number, rule)| Some((number, rule.literal.as_ref()?)));
        let stated: Vec<_> = stated.collect();
        if stated.is_empty() {
            return Ok(());
        }
        tree.make_index();
        let tree = &*tree;
        // The hard link of an archive has the attributes that its file has, by whatever name.
        let is_copy = |name: Id| {
            let node = tree.node(name);
            node.link != NONE && is_archive(node.source)
        };
        let names = stated.iter().filter_map(|(_, (_, path))| stated_name(path));
        let named = first_of_names(tree, names.collect(), is_copy);
        let found = stated.iter().map(|(_, (_, path))| match stated_name(path) {
            Some(name) => named.get(name).copied(),
            None => stated_file(tree, path),
        });
        let found: Vec<Option<Id>> = found.collect();
        let firsts = first_names(tree, found.iter().flatten().copied());
        for ((number, (line, path)), found) in stated.into_iter().zip(found) {
            let refuse = |problem: String| {
                Err(Error::impossible(format!(
                    "line {line} of the mapping: {problem}"
                )))
            };
            let shown = Shown(path.as_bytes());
            let Some(found) = found else {
                return refuse(format!(
                    "nothing in the image is called `{shown}`; `path` with a pattern like `{path}*` may \
                     match nothing"
                ));
            };
            let file = tree.owner(found);
            let first = firsts.get(&file).copied().unwrap_or(found);
            let deciding = if is_copy(first) { file } else { first };
            // A name without a path may be that of other files, too.
            let is_for_one = path.contains('/');
            let is_effective = self.paths[number].has_matched.is_set()
                && (!is_copy(found) || self.matches(number, tree, file))
                && (!is_for_one || have_same_attributes(tree, deciding, found));
            if !is_effective {
                return refuse(format!("`{shown}` {}", way_to(tree, deciding)));
            }
        }
        Ok(())
    }

    /// Whether a line matches the path of a file.
    fn matches(&self, number: usize, tree: &Tree, file: Id) -> bool {
        let path = tree.path(file).into_os_string().into_encoded_bytes();
        self.patterns.matching(&[path]).contains(&number)
    }
}

/// What to say of the path of a line that changes nothing, if that to `deciding` does.
fn way_to(tree: &Tree, deciding: Id) -> String {
    let path = tree.path(deciding).into_os_string().into_encoded_bytes();
    let shown = Shown(&path);
    match lookup::find(tree, &path) {
        Some(_) => format!("leads to `/{shown}`, which is the path to state"),
        None => format!(
            "is a hard link to what was `/{shown}` before that was hidden or replaced; `path` with a \
             pattern like `/{shown}*` changes it"
        ),
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
    let mut rule = PathRule {
        mode: None,
        owner: (None, None),
        mtime: None,
        literal: is_literal(pattern).then(|| (line, pattern.to_owned())),
        has_matched: Matched::default(),
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

/// Whether only one path or one name matches a pattern.
fn is_literal(pattern: &str) -> bool {
    !pattern.contains(['*', '?', '[', '{', '\\'])
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

impl PathRule {
    fn apply(&self, metadata: &mut Metadata) {
        // A symbolic link always has all permissions.
        if let Some(mode) = self.mode
            && !metadata.is_symlink()
        {
            metadata.mode = metadata.mode & KIND_MASK | mode;
        }
        set_owner(metadata, self.owner);
        if let Some(time) = self.mtime {
            (metadata.seconds, metadata.nanoseconds) = (time.seconds, time.nanoseconds);
        }
    }
}

pub(super) fn set_owner(metadata: &mut Metadata, (uid, gid): Owner) {
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

/// The name that a path in a mapping is, if it is one at any depth.
fn stated_name(path: &str) -> Option<&[u8]> {
    let trimmed = path.trim_end_matches('/');
    let is_whole = path.starts_with('/') || path.starts_with("./") || trimmed.contains('/');
    (!is_whole).then_some(trimmed.as_bytes())
}

/// The file of the image that a path in a mapping states.
fn stated_file(tree: &Tree, path: &str) -> Option<Id> {
    match path.trim_end_matches('/') {
        "" | "." => Some(ROOT),
        trimmed => lookup::find(tree, trimmed.as_bytes()),
    }
}

/// All names of the tree but the root's, also those that are gone.
fn all_names(tree: &Tree) -> impl Iterator<Item = Id> {
    (1..tree.nodes.len()).map(|id| Id::try_from(id).expect("ids are numbers of 32 bits"))
}

/// For each of these names its first file in the tree; one that is a copy only if all are.
fn first_of_names<'a>(
    tree: &Tree,
    names: HashSet<&'a [u8]>,
    is_copy: impl Fn(Id) -> bool,
) -> HashMap<&'a [u8], Id> {
    let mut found: HashMap<&[u8], Id> = HashMap::new();
    if names.is_empty() {
        return found;
    }
    for id in all_names(tree) {
        if let Some(&name) = names.get(tree.name(id))
            && found
                .get(name)
                .is_none_or(|&before| is_copy(before) && !is_copy(id))
            && !tree.is_gone(id)
        {
            found.insert(name, id);
        }
    }
    found
}

/// For the files that these are names of: the first name of each in the order of the image, by
/// which it gets its attributes.
fn first_names(tree: &Tree, names: impl Iterator<Item = Id>) -> HashMap<Id, Id> {
    let files: HashSet<Id> = names.map(|name| tree.owner(name)).collect();
    let mut first: HashMap<Id, ((PathBuf, PathBuf), Id)> = HashMap::new();
    for id in all_names(tree) {
        let file = tree.owner(id);
        if !files.contains(&file) || tree.is_gone(id) {
            continue;
        }
        // The files of a directory come before those of the directories in it.
        let path = tree.path(id);
        let directory = path.parent().map(PathBuf::from).unwrap_or_default();
        let one = ((directory, path), id);
        match first.get_mut(&file) {
            Some(before) if *before <= one => {}
            Some(before) => *before = one,
            None => drop(first.insert(file, one)),
        }
    }
    first
        .into_iter()
        .map(|(file, (_, id))| (file, id))
        .collect()
}

/// Whether two names of a file were given the same attributes.
fn have_same_attributes(tree: &Tree, one: Id, other: Id) -> bool {
    let of = |id: Id| {
        let node = tree.node(id);
        let time = (node.seconds, node.nanoseconds);
        (node.mode, node.uid, node.gid, time)
    };
    of(one) == of(other)
}

#[cfg(test)]
mod tests {
    use super::{Map, parse_owner};

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
