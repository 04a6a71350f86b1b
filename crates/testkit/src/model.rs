//! A plain file system in memory that behaves like ext4: the reference for all other subjects.
//!
//! Life cycle: created by [`Model::empty`] or [`Model::fresh`] (as mke2fs leaves an image), then
//! given each operation with the subject's answer ([`Model::follow`]), which changes the model and
//! reports where the subject was wrong. Where ext4 may choose (which of two errors comes first,
//! when space runs out, where data is located), the model accepts every permitted choice and adopts
//! it. The subject also chooses the inode numbers; the model requires it to keep them.
//!
//! Nodes are behind `Arc`s: a clone is cheap, and the crash rig and the linearisation check clone a
//! model for every step.

mod attributes;
mod compare;
mod file;
mod judge;
mod namespace;

pub use judge::tell;

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use pext4_fs::{FileType, Time};

use crate::content::{Content, Ranges};
use crate::errno::{EBADF, EINVAL, ENAMETOOLONG, ENOENT, ENOTDIR, ESTALE};
use crate::op::{Base, Name, Op, Target};
use crate::outcome::{Listed, SET_GROUP_ID};

/// Longest name in bytes.
pub const LONGEST_NAME: usize = 255;
/// The root's inode number.
pub const ROOT: u32 = 2;
/// The inode number of the `lost+found` that mke2fs makes.
const LOST_AND_FOUND: u32 = 11;

/// A set of errors, each of which is correct.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusals(pub Vec<i32>);

impl From<i32> for Refusals {
    fn from(errno: i32) -> Self {
        Self(vec![errno])
    }
}

impl<const N: usize> From<[i32; N]> for Refusals {
    fn from(errnos: [i32; N]) -> Self {
        Self(errnos.to_vec())
    }
}

/// The description of a correct answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expected {
    /// Success without a value.
    Done,
    /// The facts of this inode.
    File(u32),
    /// These bytes.
    Bytes(Vec<u8>),
    /// This many bytes.
    Count(u64),
    /// An offset at which this inode can have data, from the given one on.
    DataFrom(u32, u64),
    /// An offset at which this inode can have a hole, from the given one on.
    HoleFrom(u32, u64),
    /// These entries, in any order.
    Entries(Vec<Listed>),
    /// The listing of a directory that was removed: nothing, or an error.
    RemovedDirectory,
    /// These names, in any order.
    Names(Vec<Name>),
    /// Any consistent numbers of free and total space.
    Space,
    /// Any answer, including an error.
    Anything,
}

/// The model's answer to an operation.
pub type Verdict = Result<Expected, Refusals>;

/// A time of an inode, as far as the model knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KnownTime {
    /// Exactly this time.
    Exactly(Time),
    /// The time of an operation in this run.
    Recent,
    /// Any time.
    Unknown,
}

/// A regular file's content and its allocated blocks.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct File {
    /// The bytes.
    pub content: Content,
    /// Blocks that must be allocated.
    pub required: Ranges,
    /// Blocks that may be allocated.
    pub possible: Ranges,
    /// Whether the blocks are mapped by pointers, not by extents.
    pub has_block_map: bool,
}

/// The kind of a node, with its content.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Body {
    /// A regular file.
    Regular(File),
    /// A directory.
    Directory {
        /// Its entries.
        entries: BTreeMap<Name, u32>,
        /// The inode of `..`.
        parent: u32,
    },
    /// A symbolic link.
    Symlink(Name),
    /// A fifo, a socket or a device.
    Special(FileType, (u32, u32)),
}

/// An inode of the model.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its kind and content.
    pub body: Body,
    /// Permission bits.
    pub permissions: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Link count (of a directory: 2 and its subdirectories).
    pub links: u32,
    /// Whether a directory ever had more subdirectories than its link count can hold.
    pub overflowed: bool,
    /// Extended attributes.
    pub xattrs: BTreeMap<Name, Arc<[u8]>>,
    /// Last access.
    pub accessed: KnownTime,
    /// Last modification.
    pub modified: KnownTime,
    /// Step at which its metadata changed last: what `fsync` must have made durable.
    pub touched: u64,
    /// Step at which size or allocation changed last: what `fdatasync` must have made durable.
    pub sized: u64,
}

impl Node {
    /// The kind of file.
    #[must_use]
    pub fn kind(&self) -> FileType {
        match &self.body {
            Body::Regular(_) => FileType::Regular,
            Body::Directory { .. } => FileType::Directory,
            Body::Symlink(_) => FileType::Symlink,
            Body::Special(kind, _) => *kind,
        }
    }

    /// The entries, if it is a directory.
    #[must_use]
    pub fn entries(&self) -> Option<&BTreeMap<Name, u32>> {
        match &self.body {
            Body::Directory { entries, .. } => Some(entries),
            _ => None,
        }
    }

    /// The regular file, if it is one.
    #[must_use]
    pub fn file(&self) -> Option<&File> {
        match &self.body {
            Body::Regular(file) => Some(file),
            _ => None,
        }
    }

    fn is_directory(&self) -> bool {
        matches!(self.body, Body::Directory { .. })
    }
}

/// The model.
#[derive(Clone, Debug)]
pub struct Model {
    nodes: BTreeMap<u32, Arc<Node>>,
    slots: BTreeMap<u8, u32>,
    block_size: u64,
    root: u32,
    /// The number of the next inode if no subject chooses one.
    next: u32,
    /// Operations applied so far.
    step: u64,
    /// Whether the volume may run out of space or inodes.
    pub may_fill: bool,
    /// Most bytes of content that may lie in an inode instead of blocks.
    pub inline_room: u64,
    /// Whether new files have extents; without them blocks cannot be preallocated.
    pub has_extents: bool,
    /// Whether directory entries have a file type.
    pub has_types: bool,
    /// Whether attribute values may have inodes of their own, each charged to all owners.
    pub has_value_inodes: bool,
    /// Blocks in a cluster, the unit in which space is taken.
    pub cluster: u64,
    /// Whether inodes without names stay as if they were held open (concurrent histories).
    pub keeps_unnamed: bool,
    /// Start of the run in seconds since 1970.
    started: i64,
}

impl Model {
    /// An empty root directory.
    #[must_use]
    pub fn empty(block_size: u32) -> Self {
        let mut model = Self {
            nodes: BTreeMap::new(),
            slots: BTreeMap::new(),
            block_size: block_size.into(),
            root: ROOT,
            next: 12,
            step: 0,
            may_fill: false,
            inline_room: 0,
            has_extents: true,
            has_types: true,
            has_value_inodes: false,
            cluster: 1,
            keeps_unnamed: false,
            started: now(),
        };
        model.nodes.insert(ROOT, Arc::new(directory(ROOT, 0o755)));
        model
    }

    /// A tree as mke2fs leaves it: `lost+found` in the root.
    #[must_use]
    pub fn fresh(block_size: u32) -> Self {
        let mut model = Self::empty(block_size);
        model
            .nodes
            .insert(LOST_AND_FOUND, Arc::new(directory(ROOT, 0o700)));
        let root = Arc::make_mut(model.nodes.get_mut(&ROOT).expect("made above"));
        root.links = 3;
        if let Body::Directory { entries, .. } = &mut root.body {
            entries.insert(b"lost+found".to_vec(), LOST_AND_FOUND);
        }
        model
    }

    /// A tree whose root is an empty directory with an inode number that the volume chose.
    #[must_use]
    pub fn rooted(block_size: u32, root: u32, permissions: u16) -> Self {
        let mut model = Self::empty(block_size);
        model.nodes.clear();
        model
            .nodes
            .insert(root, Arc::new(directory(root, permissions)));
        model.root = root;
        model
    }

    /// Bytes in a block.
    #[must_use]
    pub fn block_size(&self) -> u64 {
        self.block_size
    }

    /// Operations applied so far.
    #[must_use]
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Inode number of the root.
    #[must_use]
    pub fn root(&self) -> u32 {
        self.root
    }

    /// The largest size of a file. Without extents it is Linux's limit for inodes that count blocks
    /// in units of 512 bytes (no `huge_file`).
    #[must_use]
    pub fn largest_file(&self) -> u64 {
        match self.block_size {
            size if self.has_extents => u64::from(u32::MAX) * size,
            1024 => 17_247_252_480,
            2048 => 275_415_851_008,
            _ => 2_196_873_666_560,
        }
    }

    /// An inode.
    #[must_use]
    pub fn node(&self, inode: u32) -> Option<&Node> {
        self.nodes.get(&inode).map(AsRef::as_ref)
    }

    /// All inodes by number.
    pub fn nodes(&self) -> impl Iterator<Item = (u32, &Node)> + '_ {
        self.nodes
            .iter()
            .map(|(&inode, node)| (inode, node.as_ref()))
    }

    /// The inode of a target.
    pub fn resolve(&self, target: &Target) -> Result<u32, Refusals> {
        let start = match target.base {
            Base::Root => self.root,
            Base::Slot(slot) => *self.slots.get(&slot).ok_or(EBADF)?,
            Base::Inode(number) if self.nodes.contains_key(&number) => number,
            Base::Inode(_) => return Err([ESTALE, ENOENT].into()),
        };
        target
            .path
            .iter()
            .try_fold(start, |directory, name| self.entry(directory, name))
    }

    /// The inode of a name.
    fn entry(&self, directory: u32, name: &[u8]) -> Result<u32, Refusals> {
        let node = self.existing(directory);
        let Body::Directory { entries, parent } = &node.body else {
            return Err(if name.len() > LONGEST_NAME {
                [ENOTDIR, ENAMETOOLONG].into()
            } else {
                ENOTDIR.into()
            });
        };
        if name.len() > LONGEST_NAME {
            return Err(ENAMETOOLONG.into());
        }
        match name {
            b"." => Ok(directory),
            b".." => Ok(*parent),
            _ if node.links == 0 => Err([ENOENT, ESTALE].into()),
            _ => entries.get(name).copied().ok_or_else(|| ENOENT.into()),
        }
    }

    fn existing(&self, inode: u32) -> &Node {
        self.nodes
            .get(&inode)
            .expect("the model names only inodes it has")
    }

    /// The inode for a change; records that its metadata changes in this step.
    fn change(&mut self, inode: u32) -> &mut Node {
        let step = self.step;
        let node = self
            .nodes
            .get_mut(&inode)
            .expect("the model names only inodes it has");
        let node = Arc::make_mut(node);
        node.touched = step;
        node
    }

    /// Deletes an inode that cannot be reached any more.
    fn reap(&mut self, inode: u32) {
        let unnamed = self.node(inode).is_some_and(|node| node.links == 0);
        if unnamed && !self.keeps_unnamed && !self.slots.values().any(|&held| held == inode) {
            self.nodes.remove(&inode);
        }
    }

    /// Applies an operation; the model chooses the numbers of new inodes.
    pub fn run(&mut self, op: &Op) -> Verdict {
        self.apply(op, None)
    }

    fn apply(&mut self, op: &Op, number: Option<u32>) -> Verdict {
        self.step += 1;
        match op {
            Op::Lookup(at) => Ok(Expected::File(self.resolve(at)?)),
            Op::Create { .. }
            | Op::MakeDirectory { .. }
            | Op::MakeNode { .. }
            | Op::MakeSymlink { .. }
            | Op::Link { .. }
            | Op::Unlink(_)
            | Op::RemoveDirectory(_)
            | Op::Rename { .. }
            | Op::CreateUnnamed { .. } => self.apply_namespace(op, number),
            Op::Hold { of, slot } => {
                let inode = self.resolve(of)?;
                // In this order: the slot may be the last holder of the inode that it is to hold
                // again.
                let before = self.slots.insert(*slot, inode);
                before.into_iter().for_each(|before| self.reap(before));
                Ok(Expected::Done)
            }
            Op::Release(slot) => {
                self.release(*slot);
                Ok(Expected::Done)
            }
            Op::Remount => {
                self.release_all();
                Ok(Expected::Done)
            }
            Op::Sync => Ok(Expected::Done),
            Op::SyncFile { of, .. } => {
                let node = self.existing(self.resolve(of)?);
                // Of the other kinds, some can be opened for this and some cannot.
                let can = matches!(node.body, Body::Regular(_) | Body::Directory { .. });
                Ok(if can {
                    Expected::Done
                } else {
                    Expected::Anything
                })
            }
            Op::Statistics => Ok(Expected::Space),
            Op::List { directory, .. } => self.list(directory),
            _ => self.apply_file(op),
        }
    }

    /// Releases all slots, as closing the file system does.
    pub fn release_all(&mut self) {
        let slots: Vec<u8> = self.slots.keys().copied().collect();
        slots.into_iter().for_each(|slot| self.release(slot));
    }

    fn release(&mut self, slot: u8) {
        if let Some(inode) = self.slots.remove(&slot) {
            self.reap(inode);
        }
    }

    /// The slots in use and the inodes they hold.
    #[must_use]
    pub fn slots(&self) -> &BTreeMap<u8, u32> {
        &self.slots
    }

    fn list(&mut self, directory: &Target) -> Verdict {
        let inode = self.resolve(directory)?;
        let node = self.existing(inode);
        let Some(entries) = node.entries() else {
            return Err(ENOTDIR.into());
        };
        if node.links == 0 {
            return Ok(Expected::RemovedDirectory);
        }
        let listed = entries.iter().map(|(name, &inode)| Listed {
            name: name.clone(),
            inode,
            kind: self.has_types.then(|| self.existing(inode).kind()),
        });
        let listed = listed.collect();
        self.forget_access(inode);
        Ok(Expected::Entries(listed))
    }

    fn forget_access(&mut self, inode: u32) {
        let node = self
            .nodes
            .get_mut(&inode)
            .expect("the model names only inodes it has");
        Arc::make_mut(node).accessed = KnownTime::Unknown;
    }

    /// Makes all times of last access unknown, after everything was read.
    pub fn forget_accesses(&mut self) {
        for node in self.nodes.values_mut() {
            if node.accessed != KnownTime::Unknown {
                Arc::make_mut(node).accessed = KnownTime::Unknown;
            }
        }
    }

    /// A hash of the tree; equal trees have equal hashes, whatever operations led to them.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.slots.hash(&mut hasher);
        for (inode, node) in &self.nodes {
            (
                inode,
                &node.body,
                node.permissions,
                node.uid,
                node.gid,
                node.links,
            )
                .hash(&mut hasher);
            node.xattrs.hash(&mut hasher);
        }
        hasher.finish()
    }

    /// Splits a place into its directory's inode and the name, checking the directory.
    fn place<'a>(&self, at: &'a Target) -> Result<(u32, &'a Name), Refusals> {
        let (directory, name) = at.split().ok_or(EINVAL)?;
        let inode = self.resolve(&directory)?;
        if !self.existing(inode).is_directory() {
            return Err(if name.len() > LONGEST_NAME {
                [ENOTDIR, ENAMETOOLONG].into()
            } else {
                ENOTDIR.into()
            });
        }
        Ok((inode, name))
    }

    /// The group that a new entry inherits from a directory with the set-group-id bit.
    fn inherited_group(&self, directory: u32) -> Option<u32> {
        let node = self.existing(directory);
        (node.permissions & SET_GROUP_ID != 0).then_some(node.gid)
    }
}

fn directory(parent: u32, permissions: u16) -> Node {
    Node {
        body: Body::Directory {
            entries: BTreeMap::new(),
            parent,
        },
        permissions,
        uid: 0,
        gid: 0,
        links: 2,
        overflowed: false,
        xattrs: BTreeMap::new(),
        accessed: KnownTime::Unknown,
        modified: KnownTime::Unknown,
        touched: 0,
        sized: 0,
    }
}

/// Seconds since 1970.
fn now() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs() as i64)
}
