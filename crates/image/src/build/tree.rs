//! The names, attributes and content locations of the image, in memory.
//!
//! Each name is a node of 72 bytes. Names and symbolic link targets are stored in one arena.
//! Sources are laid over one another in their order: a directory of a later source is merged with
//! an earlier one and replaces its attributes; any other file replaces the earlier file. The node
//! of a replaced or removed name stays (`is_removed`), since other names may be hard links to it. A
//! node's parent always precedes it.
//!
//! The index from parent and name to node is built only when a second source or an archive needs
//! it: the names in a single directory of the host are unique.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hashbrown::HashTable;
use pext4_ondisk::directory::FileType;

use super::attributes::Sets;
use super::error::{Error, Result};

/// The index of a node.
pub(super) type Id = u32;

/// The root directory's record.
pub(super) const ROOT: Id = 0;
/// No node.
pub(super) const NONE: u32 = u32::MAX;
/// `first_block` of a file whose content is stored in its inode.
pub(super) const INLINE: u64 = u64::MAX;

/// The metadata of a file, as a source describes it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Metadata {
    /// File type and permissions, as `st_mode`.
    pub mode: u16,
    pub uid: u32,
    pub gid: u32,
    /// Size in bytes of a file or a symbolic link's target; for a device its numbers, `major << 32
    /// | minor`.
    pub size: u64,
    pub seconds: i64,
    pub nanoseconds: u32,
    /// For a file in an archive, the offset of its content. For a symbolic link, the offset of its
    /// target in the arena. For a directory, its index in `Order::directories` once that is known.
    pub content: u64,
    /// The number of its set of extended attributes; 0 is the empty set.
    pub attributes: u32,
    /// The number of its source.
    pub source: u16,
}

impl Metadata {
    /// The file type; `None` for undefined bits.
    pub fn file_type(&self) -> Option<FileType> {
        FileType::from_mode(self.mode)
    }

    pub fn is_directory(&self) -> bool {
        self.file_type() == Some(FileType::Directory)
    }

    pub fn is_symlink(&self) -> bool {
        self.file_type() == Some(FileType::Symlink)
    }
}

/// A name and its file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    pub size: u64,
    pub seconds: i64,
    pub content: u64,
    /// The first block of the content, once it was placed, or [`INLINE`]. Files that are not one
    /// run have a `place::BlockMap`.
    pub first_block: u64,
    pub nanoseconds: u32,
    pub uid: u32,
    pub gid: u32,
    name: u32,
    pub parent: Id,
    pub attributes: u32,
    /// For a hard link to an earlier node, that node; else [`NONE`].
    pub link: Id,
    /// Its inode number, once assigned.
    pub inode: u32,
    pub mode: u16,
    pub source: u16,
    /// The link count: names, or 2 plus the subdirectories. Counted when inode numbers are
    /// assigned.
    pub links: u16,
    name_length: u8,
    pub is_removed: bool,
}

impl Node {
    pub fn file_type(&self) -> FileType {
        FileType::from_mode(self.mode).expect("sources name a kind of file")
    }

    pub fn is_directory(&self) -> bool {
        FileType::from_mode(self.mode) == Some(FileType::Directory)
    }

    pub fn is_regular(&self) -> bool {
        FileType::from_mode(self.mode) == Some(FileType::Regular)
    }

    pub fn is_symlink(&self) -> bool {
        FileType::from_mode(self.mode) == Some(FileType::Symlink)
    }

    fn set(&mut self, metadata: &Metadata) {
        self.mode = metadata.mode;
        self.uid = metadata.uid;
        self.gid = metadata.gid;
        self.size = metadata.size;
        self.seconds = metadata.seconds;
        self.nanoseconds = metadata.nanoseconds;
        self.content = metadata.content;
        self.attributes = metadata.attributes;
        self.source = metadata.source;
    }
}

/// The original mtimes of nodes, indexed by their numbers: with a rule for times, most files have
/// one.
#[derive(Default)]
pub(super) struct OriginalTimes(Vec<(i64, u32)>);

impl OriginalTimes {
    /// For a node without one: a fraction of a second that no time has.
    const ABSENT: (i64, u32) = (0, u32::MAX);

    pub fn get(&self, id: Id) -> Option<(i64, u32)> {
        let time = self.0.get(id as usize).copied();
        time.filter(|&time| time != Self::ABSENT)
    }

    pub fn insert(&mut self, id: Id, time: (i64, u32)) {
        let place = id as usize;
        if place >= self.0.len() {
            self.0.resize(place + 1, Self::ABSENT);
        }
        self.0[place] = time;
    }
}

/// All names of the image.
pub(super) struct Tree {
    pub nodes: Vec<Node>,
    texts: Vec<u8>,
    index: HashTable<Id>,
    is_indexed: bool,
    /// Whether a symbolic link was ever added.
    pub has_symlinks: bool,
    hasher: RandomState,
    pub sets: Sets,
    /// For files with holes, the ranges that contain data. In an archive their bytes are
    /// contiguous.
    pub segments: HashMap<Id, Box<[Range<u64>]>>,
    /// For files of the host whose mtime changes in the image, the original mtime.
    pub original_times: OriginalTimes,
    /// For files of the host that a symbolic link of an earlier source has led elsewhere, the path
    /// of their directory in their source.
    pub source_directories: HashMap<Id, Arc<Path>>,
}

impl Tree {
    /// A tree with an empty root directory.
    pub fn new(root: &Metadata) -> Self {
        let mut tree = Self {
            nodes: Vec::new(),
            texts: Vec::new(),
            index: HashTable::new(),
            is_indexed: false,
            has_symlinks: false,
            hasher: RandomState::new(),
            sets: Sets::new(),
            segments: HashMap::new(),
            original_times: OriginalTimes::default(),
            source_directories: HashMap::new(),
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

    /// The length of a file's data in bytes, without its holes.
    pub fn data_bytes(&self, id: Id) -> u64 {
        self.segments.get(&id).map_or(self.node(id).size, |all| {
            all.iter().map(|range| range.end - range.start).sum()
        })
    }

    /// The target of a symbolic link.
    pub fn target(&self, id: Id) -> &[u8] {
        let node = self.node(id);
        let start = usize::try_from(node.content).expect("a place in memory");
        let length = usize::try_from(node.size).expect("a length in memory");
        &self.texts[start..start + length]
    }

    /// Appends a text to the arena and returns its offset.
    pub fn store_text(&mut self, text: &[u8]) -> Result<u32> {
        let place = u32::try_from(self.texts.len())
            .map_err(|_| Error::impossible("the names take more than 4 GiB"))?;
        self.texts.extend_from_slice(text);
        Ok(place)
    }

    /// The path of a node in the image, without a leading slash.
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

    /// The path of a file of the host in its source.
    pub fn source_path(&self, id: Id) -> PathBuf {
        match self.source_directories.get(&id) {
            Some(directory) => directory.join(OsStr::from_bytes(self.name(id))),
            None => self.path(id),
        }
    }

    /// The path of a node, for messages.
    pub fn shown_path(&self, id: Id) -> PathBuf {
        PathBuf::from("/").join(self.path(id))
    }

    /// The node that has a name's inode: its own, or the target of the hard link.
    pub fn owner(&self, id: Id) -> Id {
        match self.node(id).link {
            NONE => id,
            link => link,
        }
    }

    /// Copies the metadata of one of a file's names to the file.
    pub fn copy_metadata(&mut self, owner: Id, name: Id) {
        let of = *self.node(name);
        let node = self.node_mut(owner);
        (node.mode, node.uid, node.gid) = (of.mode, of.uid, of.gid);
        (node.seconds, node.nanoseconds) = (of.seconds, of.nanoseconds);
        node.attributes = of.attributes;
        // All names of a file were found with the same mtime.
        if let Some(time) = self.original_times.get(name) {
            self.original_times.insert(owner, time);
        }
    }

    fn push(&mut self, parent: Id, name: &[u8], metadata: &Metadata) -> Result<Id> {
        let id = u32::try_from(self.nodes.len())
            .ok()
            .filter(|&id| id < NONE)
            .ok_or_else(|| Error::impossible("more files than inodes can be numbered"))?;
        let mut node = Node {
            size: 0,
            seconds: 0,
            content: 0,
            first_block: 0,
            nanoseconds: 0,
            uid: 0,
            gid: 0,
            name: self.store_text(name)?,
            parent,
            attributes: 0,
            link: NONE,
            inode: 0,
            mode: 0,
            source: 0,
            links: 0,
            name_length: u8::try_from(name.len()).expect("names were checked"),
            is_removed: false,
        };
        node.set(metadata);
        self.has_symlinks |= node.is_symlink();
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

    /// Builds the index, if it does not exist yet.
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

    /// Frees the indexes of names and of sets. Call it when no source follows.
    pub fn drop_indexes(&mut self) {
        self.is_indexed = false;
        self.index = HashTable::new();
        self.sets.drop_index();
    }

    /// The node of a name in a directory. The index must exist.
    pub fn child(&self, parent: Id, name: &[u8]) -> Option<Id> {
        let hash = self.hash(parent, name);
        let is_it = |&id: &Id| self.node(id).parent == parent && self.name(id) == name;
        self.index.find(hash, is_it).copied()
    }

    /// Adds a name to a directory that does not contain it.
    pub fn add(&mut self, parent: Id, name: &[u8], metadata: &Metadata) -> Result<Id> {
        self.push(parent, name, metadata)
    }

    /// Adds a name to a directory, and replaces or merges an existing one. The index must exist.
    pub fn put(&mut self, parent: Id, name: &[u8], metadata: &Metadata) -> Result<Id> {
        if let Some(old) = self.child(parent, name) {
            let both = self.node(old).is_directory() && metadata.is_directory();
            if both {
                self.node_mut(old).set(metadata);
                return Ok(old);
            }
            self.remove(old);
        }
        self.push(parent, name, metadata)
    }

    /// Replaces the metadata of the root.
    pub fn set_root(&mut self, metadata: &Metadata) {
        self.node_mut(ROOT).set(metadata);
    }

    /// Replaces the metadata of a node.
    pub fn set_metadata(&mut self, id: Id, metadata: &Metadata) {
        self.node_mut(id).set(metadata);
    }

    /// Removes a name, and with it everything below it. The index must exist.
    pub fn remove(&mut self, id: Id) {
        let hash = self.hash(self.node(id).parent, self.name(id));
        if let Ok(entry) = self.index.find_entry(hash, |&other| other == id) {
            entry.remove();
        }
        self.node_mut(id).is_removed = true;
    }

    /// All nodes, with those that were replaced or removed.
    pub fn ids(&self) -> impl Iterator<Item = Id> + use<> {
        let count = Id::try_from(self.nodes.len()).expect("ids are numbers of 32 bits");
        0..count
    }

    /// Whether a node, or a directory above it, was replaced or removed.
    pub fn is_gone(&self, id: Id) -> bool {
        let mut at = id;
        while at != ROOT && !self.node(at).is_removed {
            at = self.node(at).parent;
        }
        at != ROOT
    }

    /// For each set of attributes the first node that has it and is not gone; [`NONE`] if only
    /// removed files have it.
    pub fn users_of_sets(&self) -> Vec<Id> {
        let mut users = vec![NONE; self.sets.len()];
        let mut is_gone = vec![false; self.nodes.len()];
        for (id, node) in (ROOT..).zip(&self.nodes) {
            // Parents precede children.
            let parent_is_gone = is_gone[node.parent as usize];
            is_gone[id as usize] = id != ROOT && (node.is_removed || parent_is_gone);
            let user = &mut users[node.attributes as usize];
            if *user == NONE && !is_gone[id as usize] {
                *user = id;
            }
        }
        users
    }

    /// Removes everything below these directories that is from a source before `layer`, except
    /// directories that contain something newer.
    pub fn remove_below(&mut self, directories: &[Id], layer: u16) {
        if directories.is_empty() {
            return;
        }
        let opaque: HashSet<Id> = directories.iter().copied().collect();
        let mut is_below = vec![false; self.nodes.len()];
        for index in 1..self.nodes.len() {
            let parent = self.nodes[index].parent;
            is_below[index] = is_below[parent as usize] || opaque.contains(&parent);
        }
        // Parents precede children, so in reverse order all children are visited before their
        // parents.
        let mut holds_newer = vec![false; self.nodes.len()];
        for index in (1..self.nodes.len()).rev() {
            let node = self.nodes[index];
            if node.is_removed {
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

#[cfg(test)]
mod tests {
    use super::super::attributes::to_stored;
    use super::{Metadata, NONE, Node, OriginalTimes, ROOT, Tree};

    fn metadata(mode: u16, source: u16) -> Metadata {
        Metadata {
            mode,
            source,
            ..Metadata::default()
        }
    }

    const DIRECTORY: u16 = 0o040_755;
    const FILE: u16 = 0o100_644;

    #[test]
    fn a_node_has_72_bytes() {
        assert_eq!(size_of::<Node>(), 72);
    }

    #[test]
    fn original_times_have_16_bytes_each() {
        let mut times = OriginalTimes::default();
        times.insert(5, (-1, 999_999_999));
        times.insert(2, (0, 0));
        assert_eq!(times.get(5), Some((-1, 999_999_999)));
        assert_eq!(times.get(2), Some((0, 0)));
        assert!([0, 3, 4, 6, NONE].iter().all(|&id| times.get(id).is_none()));
        assert_eq!(size_of_val(&times.0[0]), 16);
    }

    #[test]
    fn later_files_replace_and_directories_merge() {
        let mut tree = Tree::new(&metadata(DIRECTORY, 0));
        let dir = tree.add(ROOT, b"dir", &metadata(DIRECTORY, 0)).unwrap();
        let old = tree.add(dir, b"old", &metadata(FILE, 0)).unwrap();
        tree.make_index();
        assert_eq!(
            tree.put(ROOT, b"dir", &metadata(0o040_700, 1)).unwrap(),
            dir
        );
        assert_eq!(tree.node(dir).mode, 0o040_700);
        assert_eq!(tree.child(dir, b"old"), Some(old));
        let new = tree.put(dir, b"old", &metadata(FILE, 1)).unwrap();
        assert_ne!(new, old);
        assert!(tree.node(old).is_removed);
        assert_eq!(tree.child(dir, b"old"), Some(new));
        assert_eq!(tree.shown_path(new).to_str(), Some("/dir/old"));
        assert_eq!(tree.node(new).link, NONE);
    }

    #[test]
    fn sets_of_attributes_know_a_user_that_is_there() {
        let mut tree = Tree::new(&metadata(DIRECTORY, 0));
        tree.make_index();
        let sets: Vec<u32> = (0..5u8)
            .map(|value| {
                let one = to_stored(b"user.a", &[value]).expect("a sound one");
                tree.sets.intern(vec![one])
            })
            .collect();
        let with = |mode, set: usize| Metadata {
            attributes: sets[set],
            ..metadata(mode, 0)
        };
        let gone = tree.put(ROOT, b"gone", &with(DIRECTORY, 0)).unwrap();
        let below = tree.put(gone, b"below", &with(DIRECTORY, 1)).unwrap();
        tree.put(below, b"file", &with(FILE, 2)).unwrap();
        let old = tree.put(ROOT, b"file", &with(FILE, 3)).unwrap();
        let new = tree.put(ROOT, b"file", &with(FILE, 1)).unwrap();
        let other = tree.put(ROOT, b"other", &with(FILE, 3)).unwrap();
        tree.put(ROOT, b"third", &with(FILE, 3)).unwrap();
        tree.remove(gone);
        assert!(tree.node(old).is_removed);
        let users = tree.users_of_sets();
        let of = |set: usize| users[sets[set] as usize];
        assert_eq!((users[0], users.len()), (ROOT, tree.sets.len()));
        assert_eq!(
            [of(0), of(1), of(2), of(3), of(4)],
            [NONE, new, NONE, other, NONE]
        );
    }

    #[test]
    fn only_lower_layers_are_hidden() {
        let mut tree = Tree::new(&metadata(DIRECTORY, 0));
        tree.make_index();
        let dir = tree.put(ROOT, b"dir", &metadata(DIRECTORY, 0)).unwrap();
        let sub = tree.put(dir, b"sub", &metadata(DIRECTORY, 0)).unwrap();
        tree.put(sub, b"low", &metadata(FILE, 0)).unwrap();
        tree.put(sub, b"high", &metadata(FILE, 1)).unwrap();
        tree.put(dir, b"sub", &metadata(DIRECTORY, 1)).unwrap();
        tree.remove_below(&[dir], 1);
        assert_eq!(tree.child(dir, b"sub"), Some(sub));
        assert_eq!(tree.child(sub, b"low"), None);
        assert!(tree.child(sub, b"high").is_some());
    }
}
