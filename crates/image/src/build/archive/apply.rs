//! Laying an archive's records over what is there.
//!
//! A directory that an archive does not name comes into being with the first entry below it. A
//! symbolic link on the way to an entry is followed, inside the image: `..` stops at its root. In
//! the layers of a container image the names `.wh.NAME` and `.wh..wh..opq` hide what layers below
//! have put there.

use super::super::error::{Error, Result};
use super::super::rules::Rules;
use super::super::tree::{Facts, Id, ROOT, Tree, judge_name};
use super::Record;

/// Symbolic links that one path may lead through.
const MOST_LINKS: u32 = 40;
/// Before a name that a layer hides.
const WHITEOUT: &[u8] = b".wh.";
/// Before the names of a layer's own records.
const MARKS: &[u8] = b".wh..wh.";
/// In a directory whose older contents are hidden.
const OPAQUE: &[u8] = b".wh..wh..opq";

/// One archive being laid over a tree.
pub(in crate::build) struct Layer<'a> {
    pub archive: &'a std::path::Path,
    pub rules: &'a Rules,
    /// Which of the sources it is.
    pub number: u16,
    /// Whether it is a container's layer.
    pub has_whiteouts: bool,
    /// Directories whose older contents are hidden.
    opaque: Vec<Id>,
    /// The directory of the entry before, for the next one is mostly in the same.
    last: Option<(Vec<u8>, Id)>,
}

impl<'a> Layer<'a> {
    pub fn new(
        archive: &'a std::path::Path,
        rules: &'a Rules,
        number: u16,
        has_whiteouts: bool,
    ) -> Self {
        Self {
            archive,
            rules,
            number,
            has_whiteouts,
            opaque: Vec::new(),
            last: None,
        }
    }

    /// Lays one record over the tree.
    pub fn apply(&mut self, tree: &mut Tree, mut record: Record) -> Result<()> {
        record.facts.source = self.number;
        let path = std::mem::take(&mut record.path);
        self.rules.apply(|| path.clone(), &mut record.facts);
        let Some((folder, name)) = split(&path) else {
            return self.apply_root(tree, &record);
        };
        if self.has_whiteouts && names(folder).any(|name| name.starts_with(MARKS)) {
            return Ok(());
        }
        let parent = self.folder(tree, folder, &record.facts)?;
        if self.has_whiteouts && name.starts_with(WHITEOUT) {
            self.hide(tree, parent, name);
            return Ok(());
        }
        let unsound = |problem: &str| {
            let shown = String::from_utf8_lossy(&path);
            Error::unsound(self.archive, format!("{shown}: {problem}"))
        };
        record.facts.attributes = tree.sets.number_of(std::mem::take(&mut record.attributes));
        if let Some(link) = &record.link {
            let target = self
                .find(tree, link)?
                .ok_or_else(|| unsound("it is a hard link to what is not there (yet)"))?;
            let target = tree.owner(target);
            if tree.node(target).is_directory() {
                return Err(unsound("it is a hard link to a directory"));
            }
            return self.link(tree, parent, name, target);
        }
        if let Some(target) = &record.target {
            record.facts.size = target.len() as u64;
            record.facts.content = u64::from(tree.keep_text(target)?);
        }
        let id = tree.put(parent, name, &record.facts)?;
        if let Some(segments) = record.segments {
            tree.segments.insert(id, segments);
        }
        Ok(())
    }

    fn apply_root(&self, tree: &mut Tree, record: &Record) -> Result<()> {
        if record.facts.mode & 0o170_000 != 0o040_000 {
            return Err(Error::unsound(self.archive, "its root is no directory"));
        }
        let mut facts = record.facts;
        facts.attributes = tree.sets.number_of(record.attributes.clone());
        tree.set_root(&facts);
        Ok(())
    }

    fn link(&self, tree: &mut Tree, parent: Id, name: &[u8], target: Id) -> Result<()> {
        if tree.child(parent, name) == Some(target) {
            return Ok(());
        }
        let node = *tree.node(target);
        let facts = Facts {
            mode: node.mode,
            uid: node.uid,
            gid: node.gid,
            size: node.size,
            seconds: node.seconds,
            nanoseconds: node.nanoseconds,
            content: node.content,
            attributes: node.attributes,
            source: self.number,
        };
        let id = tree.put(parent, name, &facts)?;
        tree.node_mut(id).link = target;
        Ok(())
    }

    fn hide(&mut self, tree: &mut Tree, parent: Id, name: &[u8]) {
        self.last = None;
        if name == OPAQUE {
            self.opaque.push(parent);
            return;
        }
        if let Some(hidden) = tree.child(parent, &name[WHITEOUT.len()..]) {
            if tree.node(hidden).source < self.number {
                tree.remove(hidden);
            } else {
                self.opaque.push(hidden);
            }
        }
    }

    /// Hides what the layer's marks hide.
    pub fn finish(self, tree: &mut Tree) {
        tree.hide_below(&self.opaque, self.number);
    }

    /// The directory of an entry, made if need be.
    fn folder(&mut self, tree: &mut Tree, path: &[u8], of: &Facts) -> Result<Id> {
        if let Some((last, id)) = &self.last
            && last == path
        {
            return Ok(*id);
        }
        let made = Facts {
            mode: 0o040_755,
            seconds: of.seconds,
            nanoseconds: of.nanoseconds,
            source: self.number,
            ..Facts::default()
        };
        let id = self.walk(tree, path, Some(&made))?.ok_or_else(|| {
            let shown = String::from_utf8_lossy(path);
            Error::unsound(self.archive, format!("{shown}: it is no directory"))
        })?;
        self.last = Some((path.to_vec(), id));
        Ok(id)
    }

    /// The record at a path, if there is one.
    fn find(&self, tree: &mut Tree, path: &[u8]) -> Result<Option<Id>> {
        let Some((folder, name)) = split(path) else {
            return Ok(Some(ROOT));
        };
        let parent = self.walk(tree, folder, None)?;
        Ok(parent.and_then(|parent| tree.child(parent, name)))
    }

    /// The directory at a path; where `made` is given, missing ones come into being with it.
    fn walk(&self, tree: &mut Tree, path: &[u8], made: Option<&Facts>) -> Result<Option<Id>> {
        let mut rest: Vec<Vec<u8>> = names(path).map(<[u8]>::to_vec).rev().collect();
        let (mut at, mut links) = (ROOT, 0);
        while let Some(name) = rest.pop() {
            if name == b".." {
                at = tree.node(at).parent;
                continue;
            }
            let found = tree.child(at, &name);
            let Some(found) = found else {
                // A link may lead through names that the image cannot hold.
                let Some(made) = made.filter(|_| judge_name(&name).is_none()) else {
                    return Ok(None);
                };
                let mut made = *made;
                self.rules.apply(|| path.to_vec(), &mut made);
                at = tree.put(at, &name, &made)?;
                continue;
            };
            let found = tree.owner(found);
            if tree.node(found).is_directory() {
                at = found;
            } else if tree.node(found).mode & 0o170_000 == 0o120_000 && links < MOST_LINKS {
                links += 1;
                let target = tree.target(found);
                if target.starts_with(b"/") {
                    at = ROOT;
                }
                rest.extend(names(target).rev().map(<[u8]>::to_vec));
            } else {
                return Ok(None);
            }
        }
        Ok(Some(at))
    }
}

/// The names of a path.
fn names(path: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    path.split(|&byte| byte == b'/')
        .filter(|name| !matches!(*name, b"" | b"."))
}

/// A path's folder and last name; `None` for the root.
fn split(path: &[u8]) -> Option<(&[u8], &[u8])> {
    if path.is_empty() {
        return None;
    }
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(slash) => Some((&path[..slash], &path[slash + 1..])),
        None => Some((b"", path)),
    }
}
