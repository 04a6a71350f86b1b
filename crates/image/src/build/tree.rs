//! What the image will hold, in memory: names, attributes, and where contents are to be read.
//!
//! One record of 72 bytes a name; names and the targets of symbolic links lie in one arena.
//! Sources are laid over one another in their order: a later one's directory joins an earlier one's
//! and gives it its attributes; anything else takes the earlier one's place. A name that was
//! replaced or removed is *gone*: its record stays, since other names may be hard links to it.
//! A record's parent always comes before it.
//!
//! The index (from parent and name to record) is made only when a second source or an archive needs
//! it: the names of one directory of the host are known to differ.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use hashbrown::HashTable;
use pext4_ondisk::directory::FileType;

use super::attributes::Sets;
use super::error::{Error, Result};

/// A record's number.
pub(super) type Id = u32;

/// The root directory's record.
pub(super) const ROOT: Id = 0;
/// No record.
pub(super) const NONE: u32 = u32::MAX;
/// The place of a file whose content lies in its inode.
pub(super) const INSIDE: u64 = u64::MAX;

/// What a source says about a file.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Facts {
    /// Kind and permissions, as `st_mode`.
    pub mode: u16,
    pub uid: u32,
    pub gid: u32,
    /// Bytes of a file or of a link's target; of a device its numbers, `major << 32 | minor`.
    pub size: u64,
    pub seconds: i64,
    pub nanoseconds: u32,
    /// Of a file in an archive: where its content begins. Of a symbolic link: its target's place in
    /// the arena. Of a directory, once it was ordered: its place among the directories.
    pub content: u64,
    /// The set of attributes; 0 is the empty one.
    pub attributes: u32,
    /// Which of the sources it is from.
    pub source: u16,
}

/// One name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    pub size: u64,
    pub seconds: i64,
    pub content: u64,
    /// The first block of the content, once it was placed, or [`INSIDE`]; see `place::Map` for what lies in
    /// pieces.
    pub place: u64,
    pub nanoseconds: u32,
    pub uid: u32,
    pub gid: u32,
    name: u32,
    pub parent: Id,
    pub attributes: u32,
    /// Of a hard link to an earlier record: that record.
    pub link: Id,
    /// Its inode, once numbers were given.
    pub inode: u32,
    pub mode: u16,
    pub source: u16,
    /// Names, or 2 and the subdirectories; counted when numbers are given.
    pub links: u16,
    name_length: u8,
    pub is_gone: bool,
}

impl Node {
    pub fn file_type(&self) -> FileType {
        FileType::from_mode(self.mode).expect("sources name a kind of file")
    }

    pub fn is_directory(&self) -> bool {
        self.mode & 0o170_000 == 0o040_000
    }

    pub fn is_regular(&self) -> bool {
        self.mode & 0o170_000 == 0o100_000
    }

    fn set(&mut self, facts: &Facts) {
        self.mode = facts.mode;
        self.uid = facts.uid;
        self.gid = facts.gid;
        self.size = facts.size;
        self.seconds = facts.seconds;
        self.nanoseconds = facts.nanoseconds;
        self.content = facts.content;
        self.attributes = facts.attributes;
        self.source = facts.source;
    }
}

/// All names of the image.
pub(super) struct Tree {
    pub nodes: Vec<Node>,
    texts: Vec<u8>,
    index: HashTable<Id>,
    is_indexed: bool,
    hasher: RandomState,
    pub sets: Sets,
    /// Of files with holes: the ranges that hold data. In an archive they follow each other.
    pub segments: HashMap<Id, Box<[Range<u64>]>>,
    /// Of files of the host that get another time in the image: the one with which they were found.
    pub found_times: HashMap<Id, (i64, u32)>,
}

impl Tree {
    /// A root directory with nothing in it.
    pub fn new(root: &Facts) -> Self {
        let mut tree = Self {
            nodes: Vec::new(),
            texts: Vec::new(),
            index: HashTable::new(),
            is_indexed: false,
            hasher: RandomState::new(),
            sets: Sets::new(),
            segments: HashMap::new(),
            found_times: HashMap::new(),
        };
        tree.push(ROOT, b"", root).expect("the first of all names");
        tree
    }

    pub fn node(&self, id: Id) -> &Node {
        &self.nodes[id as usize]
    }

    pub fn node_mut(&mut self, id: Id) -> &mut Node {
        &mut self.nodes[id as usize]
    }

    pub fn name(&self, id: Id) -> &[u8] {
        let node = self.node(id);
        let start = node.name as usize;
        &self.texts[start..start + usize::from(node.name_length)]
    }

    /// The target of a symbolic link.
    pub fn target(&self, id: Id) -> &[u8] {
        let node = self.node(id);
        let start = usize::try_from(node.content).expect("a place in memory");
        let length = usize::try_from(node.size).expect("a length in memory");
        &self.texts[start..start + length]
    }

    /// Keeps the target of a symbolic link; its place.
    pub fn keep_text(&mut self, text: &[u8]) -> Result<u32> {
        let place = u32::try_from(self.texts.len())
            .map_err(|_| Error::impossible("the names take more than 4 GiB"))?;
        self.texts.extend_from_slice(text);
        Ok(place)
    }

    /// The path of a record in the image, without a slash before it.
    pub fn path(&self, id: Id) -> PathBuf {
        let mut names = Vec::new();
        let mut at = id;
        while at != ROOT {
            names.push(self.name(at));
            at = self.node(at).parent;
        }
        names.reverse();
        PathBuf::from(OsStr::from_bytes(&names.join(&b'/')))
    }

    /// The path for a message.
    pub fn shown_path(&self, id: Id) -> PathBuf {
        PathBuf::from("/").join(self.path(id))
    }

    /// The record that has a name's inode: its own, or the one it is a hard link to.
    pub fn owner(&self, id: Id) -> Id {
        match self.node(id).link {
            NONE => id,
            link => link,
        }
    }

    /// Gives a file the attributes that one of its names has.
    pub fn take_attributes(&mut self, owner: Id, name: Id) {
        let of = *self.node(name);
        let node = self.node_mut(owner);
        (node.mode, node.uid, node.gid) = (of.mode, of.uid, of.gid);
        (node.seconds, node.nanoseconds) = (of.seconds, of.nanoseconds);
        node.attributes = of.attributes;
        // The file is one, so that all its names were found with one time.
        if let Some(&time) = self.found_times.get(&name) {
            self.found_times.insert(owner, time);
        }
    }

    fn push(&mut self, parent: Id, name: &[u8], facts: &Facts) -> Result<Id> {
        let id = u32::try_from(self.nodes.len())
            .ok()
            .filter(|&id| id < NONE)
            .ok_or_else(|| Error::impossible("more files than inodes can be numbered"))?;
        let mut node = Node {
            size: 0,
            seconds: 0,
            content: 0,
            place: 0,
            nanoseconds: 0,
            uid: 0,
            gid: 0,
            name: self.keep_text(name)?,
            parent,
            attributes: 0,
            link: NONE,
            inode: 0,
            mode: 0,
            source: 0,
            links: 0,
            name_length: u8::try_from(name.len()).expect("names were checked"),
            is_gone: false,
        };
        node.set(facts);
        self.nodes.push(node);
        if self.is_indexed && id != ROOT {
            self.enter(id);
        }
        Ok(id)
    }

    fn hash(&self, parent: Id, name: &[u8]) -> u64 {
        self.hasher.hash_one((parent, name))
    }

    fn enter(&mut self, id: Id) {
        let hash = self.hash(self.node(id).parent, self.name(id));
        let mut index = std::mem::take(&mut self.index);
        index.insert_unique(hash, id, |&other| {
            self.hash(self.node(other).parent, self.name(other))
        });
        self.index = index;
    }

    /// Makes the index, if it is not there yet.
    pub fn make_index(&mut self) {
        if self.is_indexed {
            return;
        }
        self.is_indexed = true;
        self.index.reserve(self.nodes.len(), |_| 0);
        for id in 1..self.nodes.len() {
            self.enter(u32::try_from(id).expect("ids are numbers of 32 bits"));
        }
    }

    /// The record of a name in a directory. The index must have been made.
    pub fn child(&self, parent: Id, name: &[u8]) -> Option<Id> {
        let hash = self.hash(parent, name);
        let is_it = |&id: &Id| self.node(id).parent == parent && self.name(id) == name;
        self.index.find(hash, is_it).copied()
    }

    /// Puts a name into a directory that has none like it.
    pub fn add(&mut self, parent: Id, name: &[u8], facts: &Facts) -> Result<Id> {
        self.push(parent, name, facts)
    }

    /// Puts a name into a directory, over what was there. The index must have been made.
    pub fn put(&mut self, parent: Id, name: &[u8], facts: &Facts) -> Result<Id> {
        if let Some(old) = self.child(parent, name) {
            let both = self.node(old).is_directory() && facts.mode & 0o170_000 == 0o040_000;
            if both {
                self.node_mut(old).set(facts);
                return Ok(old);
            }
            self.remove(old);
        }
        self.push(parent, name, facts)
    }

    /// Gives the root the attributes that a source has for it.
    pub fn set_root(&mut self, facts: &Facts) {
        self.node_mut(ROOT).set(facts);
    }

    /// Gives a record what a source says about it.
    pub fn renew(&mut self, id: Id, facts: &Facts) {
        self.node_mut(id).set(facts);
    }

    /// Takes a name out, and thereby what lies below it. The index must have been made.
    pub fn remove(&mut self, id: Id) {
        let hash = self.hash(self.node(id).parent, self.name(id));
        if let Ok(entry) = self.index.find_entry(hash, |&other| other == id) {
            entry.remove();
        }
        self.node_mut(id).is_gone = true;
    }

    /// Takes out everything below these directories that is from a source before `layer`, but for
    /// directories that hold something newer.
    pub fn hide_below(&mut self, directories: &[Id], layer: u16) {
        if directories.is_empty() {
            return;
        }
        let opaque: HashSet<Id> = directories.iter().copied().collect();
        let mut is_below = vec![false; self.nodes.len()];
        for index in 1..self.nodes.len() {
            let parent = self.nodes[index].parent;
            is_below[index] = is_below[parent as usize] || opaque.contains(&parent);
        }
        // Parents come before children, so that here all children are judged before their parents.
        let mut holds_newer = vec![false; self.nodes.len()];
        for index in (1..self.nodes.len()).rev() {
            let node = self.nodes[index];
            if node.is_gone {
                continue;
            }
            if is_below[index] && node.source < layer && !holds_newer[index] {
                self.remove(u32::try_from(index).expect("ids are numbers of 32 bits"));
            } else {
                holds_newer[node.parent as usize] = true;
            }
        }
    }
}

/// What makes a name unfit for the image, if something does.
pub(super) fn judge_name(name: &[u8]) -> Option<String> {
    match name {
        b"" => Some("an empty name".to_owned()),
        b"." | b".." => Some("a name that means another directory".to_owned()),
        _ if name.len() > pext4_ondisk::directory::NAME_MAX => Some(format!(
            "its name has {} bytes, ext4 holds {}",
            name.len(),
            pext4_ondisk::directory::NAME_MAX
        )),
        _ if name.contains(&0) => Some("its name holds a NUL byte".to_owned()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{Facts, NONE, Node, ROOT, Tree, judge_name};

    fn facts(mode: u16, source: u16) -> Facts {
        Facts {
            mode,
            source,
            ..Facts::default()
        }
    }

    const DIRECTORY: u16 = 0o040_755;
    const FILE: u16 = 0o100_644;

    #[test]
    fn a_record_is_small() {
        assert_eq!(size_of::<Node>(), 72);
    }

    #[test]
    fn later_files_replace_and_directories_join() {
        let mut tree = Tree::new(&facts(DIRECTORY, 0));
        let dir = tree.add(ROOT, b"dir", &facts(DIRECTORY, 0)).unwrap();
        let old = tree.add(dir, b"old", &facts(FILE, 0)).unwrap();
        tree.make_index();
        assert_eq!(tree.put(ROOT, b"dir", &facts(0o040_700, 1)).unwrap(), dir);
        assert_eq!(tree.node(dir).mode, 0o040_700);
        assert_eq!(tree.child(dir, b"old"), Some(old));
        let new = tree.put(dir, b"old", &facts(FILE, 1)).unwrap();
        assert_ne!(new, old);
        assert!(tree.node(old).is_gone);
        assert_eq!(tree.child(dir, b"old"), Some(new));
        assert_eq!(tree.shown_path(new).to_str(), Some("/dir/old"));
        assert_eq!(tree.node(new).link, NONE);
    }

    #[test]
    fn what_is_hidden_is_only_what_lies_deeper_in_the_layers() {
        let mut tree = Tree::new(&facts(DIRECTORY, 0));
        tree.make_index();
        let dir = tree.put(ROOT, b"dir", &facts(DIRECTORY, 0)).unwrap();
        let sub = tree.put(dir, b"sub", &facts(DIRECTORY, 0)).unwrap();
        tree.put(sub, b"low", &facts(FILE, 0)).unwrap();
        tree.put(sub, b"high", &facts(FILE, 1)).unwrap();
        tree.put(dir, b"sub", &facts(DIRECTORY, 1)).unwrap();
        tree.hide_below(&[dir], 1);
        assert_eq!(tree.child(dir, b"sub"), Some(sub));
        assert_eq!(tree.child(sub, b"low"), None);
        assert!(tree.child(sub, b"high").is_some());
    }

    #[test]
    fn names_are_judged() {
        assert!(judge_name(b"fine").is_none());
        for bad in [&b""[..], b"..", b".", b"a\0b", &[b'x'; 256]] {
            assert!(judge_name(bad).is_some(), "{bad:?}");
        }
    }
}
