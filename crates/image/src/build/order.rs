//! The order of all files: names sorted by their bytes in each directory, directories in
//! depth-first order from the root, and inode numbers in that order.
//!
//! A directory's inode is followed by those of its files, then by each subdirectory with its
//! contents, so files that are listed together are close together. `lost+found` is inode 11, as
//! mke2fs makes it. A digest of all names and attributes in this order identifies the input; what a
//! file has for all its names, such as a map of holes that may be long, is in it once.

use pext4_block::Progress;
use pext4_ondisk::inode::MAX_LINKS;
use pext4_sync::thread;
use sha2::{Digest as _, Sha256};

use super::error::{Error, Result};
use super::tree::{Id, Metadata, NONE, ROOT, Tree};

/// The inode of `lost+found`.
pub(super) const LOST_FOUND: u32 = 11;
const LOST_FOUND_NAME: &[u8] = b"lost+found";
/// How many bytes are collected before they are hashed.
const HASH_BUFFER_BYTES: usize = 64 << 10;

/// A directory and its names.
pub(super) struct Directory {
    pub node: Id,
    /// Index of its first name in `Order::children`.
    first: u32,
    count: u32,
}

/// All files that have an inode, in order.
pub(super) struct Order {
    /// Names, grouped by directory and sorted.
    children: Vec<Id>,
    /// In order from the root. `content` of a directory's node is its index here.
    pub directories: Vec<Directory>,
    /// The nodes that have inodes: the root, `lost+found`, and the others, numbered from `first`.
    pub inodes: Vec<Id>,
    /// The inode number of the third of them.
    pub first: u32,
    /// Number of names, without `lost+found` if no source contained it.
    pub names: u64,
    pub digest: [u8; 32],
}

impl Order {
    /// The names of a directory.
    pub fn children(&self, directory: &Directory) -> &[Id] {
        let start = directory.first as usize;
        &self.children[start..start + directory.count as usize]
    }

    /// The inode number of `inodes[place]`.
    pub fn inode(&self, place: usize) -> u32 {
        match place {
            0 => 2,
            1 => LOST_FOUND,
            _ => self.first + u32::try_from(place - 2).expect("inodes were counted"),
        }
    }
}

/// Sorts the tree and assigns inode numbers from `first` on. Adds `lost+found` with
/// `lost_found_metadata` if no source contained it.
pub(super) fn order(
    tree: &mut Tree,
    first: u32,
    lost_found_metadata: &Metadata,
    threads: usize,
    progress: &Progress,
) -> Result<Order> {
    let lost_found = find_lost_found(tree)?;
    if lost_found.is_none() {
        tree.add(ROOT, LOST_FOUND_NAME, lost_found_metadata)?;
    }
    let mut builder = OrderBuilder::sorted(tree, first, threads, progress)?;
    builder.run(tree)?;
    builder.order.names -= u64::from(lost_found.is_none());
    Ok(builder.order)
}

fn find_lost_found(tree: &Tree) -> Result<Option<Id>> {
    for (id, node) in (0..).zip(&tree.nodes).skip(1) {
        if node.parent == ROOT && !node.is_removed && tree.name(id) == LOST_FOUND_NAME {
            if !node.is_directory() {
                let problem = "it must be a directory: e2fsck needs it";
                return Err(Error::unsound(tree.shown_path(id), problem));
            }
            return Ok(Some(id));
        }
    }
    Ok(None)
}

/// All names that are not removed, grouped by directory, and the start of each node's group.
fn group(tree: &Tree) -> Result<(Vec<Id>, Vec<u32>)> {
    let too_many = || Error::impossible("more names than can be counted");
    let present = || {
        (0u32..)
            .zip(&tree.nodes)
            .skip(1)
            .filter(|(_, node)| !node.is_removed)
    };
    let mut starts = vec![0u32; tree.nodes.len() + 1];
    for (_, node) in present() {
        starts[node.parent as usize + 1] += 1;
    }
    let mut sum = 0u32;
    for start in &mut starts {
        sum = sum.checked_add(*start).ok_or_else(too_many)?;
        *start = sum;
    }
    let mut children = vec![NONE; sum as usize];
    for (id, node) in present() {
        let next = &mut starts[node.parent as usize];
        children[*next as usize] = id;
        *next += 1;
    }
    // Each start has advanced to the end of its group, which is the start of the next group.
    starts.pop();
    starts.insert(0, 0);
    Ok((children, starts))
}

/// Sorts every group by name, with several threads.
fn sort(tree: &Tree, children: &mut [Id], starts: &[u32], threads: usize) {
    let share = children.len().div_ceil(threads.max(1)).max(4096);
    let mut parts = Vec::new();
    let (mut rest, mut at, mut group) = (children, 0usize, 0usize);
    while !rest.is_empty() {
        let from = group;
        while group + 1 < starts.len() && (starts[group] as usize) < at + share {
            group += 1;
        }
        let end = if group + 1 < starts.len() {
            starts[group] as usize
        } else {
            at + rest.len()
        };
        let (part, behind) = rest.split_at_mut(end - at);
        rest = behind;
        parts.push((part, at, &starts[from..=group]));
        at = end;
    }
    thread::at_once(parts, &|(part, first, groups)| {
        sort_groups(tree, part, first, groups)
    });
}

/// Sorts the groups in `part`, which starts at index `first` of the children.
fn sort_groups(tree: &Tree, part: &mut [Id], first: usize, starts: &[u32]) {
    let mut keyed: Vec<(u64, Id)> = Vec::new();
    let mut at = 0;
    let ends = starts.iter().skip(1).map(|&end| end as usize - first);
    for end in ends.chain([part.len()]) {
        let end = end.min(part.len());
        let group = &mut part[at..end];
        at = end;
        if group.len() < 2 {
            continue;
        }
        keyed.clear();
        keyed.extend(group.iter().map(|&id| (name_prefix(tree.name(id)), id)));
        keyed.sort_unstable_by(|a, b| {
            a.0.cmp(&b.0)
                .then_with(|| tree.name(a.1).cmp(tree.name(b.1)))
        });
        group
            .iter_mut()
            .zip(&keyed)
            .for_each(|(slot, (_, id))| *slot = *id);
    }
}

/// The first eight bytes of a name as a number that sorts like the bytes.
fn name_prefix(name: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    let length = name.len().min(8);
    bytes[..length].copy_from_slice(&name[..length]);
    u64::from_be_bytes(bytes)
}

struct OrderBuilder<'p> {
    order: Order,
    starts: Vec<u32>,
    next: u32,
    hasher: Sha256,
    /// What is to be hashed next.
    buffer: Vec<u8>,
    progress: &'p Progress,
}

impl<'p> OrderBuilder<'p> {
    /// A builder with the names of the tree, sorted.
    fn sorted(tree: &Tree, first: u32, threads: usize, progress: &'p Progress) -> Result<Self> {
        let (mut children, starts) = group(tree)?;
        sort(tree, &mut children, &starts, threads);
        Ok(Self {
            order: Order {
                children,
                directories: Vec::new(),
                inodes: Vec::new(),
                first,
                names: 0,
                digest: [0; 32],
            },
            starts,
            next: first,
            hasher: Sha256::new(),
            buffer: Vec::with_capacity(2 * HASH_BUFFER_BYTES),
            progress,
        })
    }

    fn run(&mut self, tree: &mut Tree) -> Result<()> {
        let sets: Vec<[u8; 32]> = (0..tree.sets.len())
            .map(|set| Sha256::digest(tree.sets.canonical(number(set))).into())
            .collect();
        let mut stack = vec![ROOT];
        self.order.inodes.extend([ROOT, NONE]);
        tree.node_mut(ROOT).inode = 2;
        self.hash_name(tree, ROOT, &sets);
        while let Some(id) = stack.pop() {
            self.progress.check()?;
            let (start, end) = (self.starts[id as usize], self.starts[id as usize + 1]);
            self.number_directory(tree, id)?;
            tree.node_mut(id).content = self.order.directories.len() as u64;
            self.order.directories.push(Directory {
                node: id,
                first: start,
                count: end - start,
            });
            self.order.names += u64::from(end - start);
            let mut subdirectories = 0u32;
            for at in start..end {
                let child = self.order.children[at as usize];
                let is_directory = tree.node(child).is_directory();
                subdirectories += u32::from(is_directory);
                let is_first = !is_directory && self.number_file(tree, child)?;
                self.hash_name(tree, child, &sets);
                if is_first {
                    self.hash_segments(tree, child);
                }
            }
            let children = &self.order.children[start as usize..end as usize];
            let below = children
                .iter()
                .rev()
                .filter(|&&child| tree.node(child).is_directory());
            stack.extend(below);
            tree.node_mut(id).links = u16::try_from(subdirectories + 2)
                .ok()
                .filter(|&links| links <= MAX_LINKS)
                // The format's value for "too many to count".
                .unwrap_or(1);
        }
        self.hasher.update(&self.buffer);
        self.order.digest = std::mem::take(&mut self.hasher).finalize().into();
        Ok(())
    }

    fn allocate_number(&mut self, id: Id) -> Result<u32> {
        let number = self.next;
        self.next = number
            .checked_add(1)
            .filter(|&next| next < u32::MAX)
            .ok_or_else(|| Error::impossible("more files than inodes can be numbered"))?;
        self.order.inodes.push(id);
        Ok(number)
    }

    fn number_directory(&mut self, tree: &mut Tree, id: Id) -> Result<()> {
        if id == ROOT {
            return Ok(());
        }
        let is_lost_found = tree.node(id).parent == ROOT && tree.name(id) == LOST_FOUND_NAME;
        tree.node_mut(id).inode = if is_lost_found {
            self.order.inodes[1] = id;
            LOST_FOUND
        } else {
            self.allocate_number(id)?
        };
        Ok(())
    }

    /// Numbers a file at its first name, and counts its names. Whether this is the first.
    fn number_file(&mut self, tree: &mut Tree, name: Id) -> Result<bool> {
        let owner = tree.owner(name);
        let is_first = tree.node(owner).inode == 0;
        if is_first {
            tree.node_mut(owner).inode = self.allocate_number(owner)?;
            // Path rules may give its names different attributes. The first name in order decides,
            // not the one that was found first.
            tree.copy_metadata(owner, name);
        }
        let links = tree.node(owner).links + 1;
        if links > MAX_LINKS {
            let problem = format!("it has more names than the {MAX_LINKS} that ext4 can count");
            return Err(Error::unsound(tree.shown_path(name), problem));
        }
        tree.node_mut(owner).links = links;
        Ok(is_first)
    }

    /// Adds a name and its inode's metadata to the digest.
    fn hash_name(&mut self, tree: &Tree, name: Id, sets: &[[u8; 32]]) {
        let owner = tree.owner(name);
        let node = tree.node(owner);
        let buffer = &mut self.buffer;
        let text = tree.name(name);
        buffer.extend(u16::try_from(text.len()).unwrap_or(u16::MAX).to_le_bytes());
        buffer.extend_from_slice(text);
        buffer.extend(node.mode.to_le_bytes());
        for number in [node.uid, node.gid, node.nanoseconds, node.inode] {
            buffer.extend(number.to_le_bytes());
        }
        buffer.extend(node.size.to_le_bytes());
        buffer.extend(node.seconds.to_le_bytes());
        buffer.extend(sets[node.attributes as usize]);
        if node.is_symlink() {
            buffer.extend_from_slice(tree.target(owner));
        }
        self.hash_full_buffer();
    }

    /// Adds the parts of a file that hold data to the digest, if it has holes.
    fn hash_segments(&mut self, tree: &Tree, name: Id) {
        for segment in tree.segments.get(&tree.owner(name)).into_iter().flatten() {
            self.buffer.extend(segment.start.to_le_bytes());
            self.buffer.extend(segment.end.to_le_bytes());
            self.hash_full_buffer();
        }
    }

    fn hash_full_buffer(&mut self) {
        if self.buffer.len() >= HASH_BUFFER_BYTES {
            self.hasher.update(&self.buffer);
            self.buffer.clear();
        }
    }
}

fn number(index: usize) -> u32 {
    u32::try_from(index).expect("sets are counted in 32 bits")
}

#[cfg(test)]
mod tests {
    use super::super::error::Error;
    use super::super::tree::{Id, Metadata, ROOT, Tree};
    use super::{Order, OrderBuilder, order};
    use pext4_block::Progress;

    fn metadata(mode: u16) -> Metadata {
        Metadata {
            mode,
            ..Metadata::default()
        }
    }

    fn ordered(tree: &mut Tree, threads: usize) -> Order {
        let progress = Progress::default();
        order(tree, 13, &metadata(0o040_700), threads, &progress).unwrap()
    }

    fn made(names: &[&str], threads: usize) -> (Tree, Order) {
        let mut tree = Tree::new(&metadata(0o040_755));
        let b = tree.add(ROOT, b"b", &metadata(0o040_755)).unwrap();
        for name in names {
            tree.add(ROOT, name.as_bytes(), &metadata(0o100_644))
                .unwrap();
            tree.add(b, name.as_bytes(), &metadata(0o100_644)).unwrap();
        }
        let order = ordered(&mut tree, threads);
        (tree, order)
    }

    #[test]
    fn the_scan_order_does_not_matter() {
        let (tree, order) = made(&["x", "a", "longer-name-2", "longer-name-1"], 1);
        let (_, other) = made(&["longer-name-1", "longer-name-2", "x", "a"], 3);
        assert_eq!(order.digest, other.digest);
        let names: Vec<String> = order
            .inodes
            .iter()
            .map(|&id| tree.path(id).display().to_string())
            .collect();
        let expected = [
            "",
            "lost+found",
            "a",
            "longer-name-1",
            "longer-name-2",
            "x",
            "b",
            "b/a",
            "b/longer-name-1",
            "b/longer-name-2",
            "b/x",
        ];
        assert_eq!(names, expected);
        for (place, &id) in order.inodes.iter().enumerate() {
            assert_eq!(tree.node(id).inode, order.inode(place));
        }
        assert_eq!(tree.node(ROOT).links, 4);
        assert_eq!(order.names, 9);
    }

    #[test]
    fn many_groups_are_sorted_by_any_number_of_threads() {
        let build = |threads| {
            let mut tree = Tree::new(&metadata(0o040_755));
            for number in 0..300u32 {
                let name = format!("{:03}", (number * 7) % 300);
                let id = tree
                    .add(ROOT, name.as_bytes(), &metadata(0o040_755))
                    .unwrap();
                for file in 0..40u32 {
                    let name = format!("file-with-{:02}", (file * 11) % 40);
                    tree.add(id, name.as_bytes(), &metadata(0o100_644)).unwrap();
                }
            }
            let order = ordered(&mut tree, threads);
            for directory in &order.directories {
                let names: Vec<&[u8]> = order
                    .children(directory)
                    .iter()
                    .map(|&id| tree.name(id))
                    .collect();
                assert!(names.is_sorted(), "{names:?}");
            }
            order.digest
        };
        assert_eq!(build(1), build(2));
        assert_eq!(build(1), build(9));
    }

    /// A file with holes and so many other names.
    fn with_holes(others: usize) -> Tree {
        let mut tree = Tree::new(&metadata(0o040_755));
        let mut add = |name: &str| -> Id {
            let metadata = metadata(0o100_644);
            tree.add(ROOT, name.as_bytes(), &metadata).unwrap()
        };
        let first = add("0");
        let others: Vec<Id> = (0..others).map(|other| add(&format!("b{other}"))).collect();
        for other in others {
            tree.node_mut(other).link = first;
        }
        tree.segments.insert(first, Box::new([SEGMENT]));
        tree
    }

    const SEGMENT: std::ops::Range<u64> = 0x1234_5678_9ABC..0x7654_3210_FEDC;

    #[test]
    fn a_map_of_holes_is_hashed_once_for_all_names_of_a_file() {
        let progress = Progress::default();
        for others in [0, 1, 20] {
            let mut tree = with_holes(others);
            let mut builder = OrderBuilder::sorted(&tree, 13, 1, &progress).unwrap();
            builder.run(&mut tree).unwrap();
            let (start, end) = (SEGMENT.start.to_le_bytes(), SEGMENT.end.to_le_bytes());
            let map = [start, end].concat();
            let windows = builder.buffer.windows(map.len());
            assert_eq!(windows.filter(|window| *window == map).count(), 1);
        }
        let digest = |segment| {
            let mut tree = with_holes(1);
            let segments = tree.segments.values_mut().next().expect("the file's");
            segments[0] = segment;
            ordered(&mut tree, 1).digest
        };
        assert_ne!(digest(SEGMENT), digest(0..SEGMENT.end));
    }

    #[test]
    fn it_stops_when_it_is_asked() {
        let progress = Progress::default();
        progress.stop();
        let mut tree = with_holes(0);
        let stopped = order(&mut tree, 13, &metadata(0o040_700), 1, &progress);
        assert!(matches!(stopped, Err(Error::Interrupted)));
    }
}
