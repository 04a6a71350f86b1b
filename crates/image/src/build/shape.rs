//! Computes how many blocks everything takes before any block is assigned: data, directories with
//! their indexes, long symbolic links, attribute blocks and extent tree nodes.

use std::ops::Range;

use pext4_ondisk::directory::{FileType, Format, record_length, usable_length};
use pext4_ondisk::dirhash::Hasher;
use pext4_ondisk::extent;
use pext4_ondisk::feature::{Compat, Features, Incompat, ReadOnlyCompat};
use pext4_ondisk::htree::{Plan, TooMany};
use pext4_ondisk::inode::{Inode, inline};
use pext4_sync::atomic::{AtomicUsize, Ordering};
use pext4_sync::{Class, Mutex};

use super::attributes;
use super::error::{Error, Result};
use super::order::Order;
use super::threads::run_on_threads;
use super::tree::{INLINE, Id, NONE, ROOT, Tree};
use crate::mkfs::contents::{extra_size, lost_found_blocks};
use crate::mkfs::layout::MAX_EXTENT_BLOCKS;

/// How many directories a thread takes at a time.
const DIRECTORIES_PER_TURN: usize = 64;
/// The number of extents that fit into an inode.
pub(super) const EXTENTS_IN_INODE: usize = 4;

/// The size of a directory.
pub(super) struct DirectoryShape {
    /// Number of blocks; 0 if the directory is stored in its inode.
    pub blocks: u32,
    /// The plan of its index, if it has one.
    pub plan: Option<Box<Plan>>,
}

/// What a set of attributes takes. How it is split is computed again when it is written, since
/// every file may have a set of its own.
#[derive(Clone, Copy, Default)]
pub(super) struct SetShape {
    /// Bytes of inline data that fit beside the attributes; 0 if inline data is not possible.
    pub room: u32,
    /// Whether some of the attributes are in a block.
    pub has_block: bool,
}

/// The size of everything.
pub(super) struct Shape {
    pub block_size: u64,
    pub format: Format,
    /// Parallel to `Order::directories`.
    pub directories: Vec<DirectoryShape>,
    /// Parallel to `Tree::sets`.
    pub sets: Vec<SetShape>,
    /// Upper bound of the number of blocks that everything takes.
    pub blocks: u64,
    /// Whether the index of a directory needs a third level.
    pub needs_large_dir: bool,
}

/// The properties of the file system on which the shape depends.
pub(super) struct Parameters<'a> {
    pub features: &'a Features,
    pub block_size: u32,
    pub inode_size: u16,
    pub hasher: Hasher,
    /// Whether `large_dir` may be turned on if a directory needs it.
    pub may_grow_levels: bool,
    pub threads: usize,
}

impl Shape {
    /// Computes the shape, and marks the files whose contents are stored in their inodes.
    pub fn new(tree: &mut Tree, order: &Order, parameters: &Parameters<'_>) -> Result<Self> {
        let mut shape = Self {
            block_size: u64::from(parameters.block_size),
            format: Format::of(parameters.features),
            directories: Vec::new(),
            sets: Vec::new(),
            blocks: 0,
            needs_large_dir: false,
        };
        shape.sets = shape_sets(tree, order, parameters)?;
        if parameters.features.has_incompat(Incompat::INLINE_DATA) {
            shape.mark_inline_files(tree, order);
        }
        shape.plan_directories(tree, order, parameters)?;
        shape.blocks = shape.count(tree, order)?;
        Ok(shape)
    }

    /// The shape of the directory `id`.
    pub fn directory(&self, tree: &Tree, id: Id) -> &DirectoryShape {
        let place = usize::try_from(tree.node(id).content).expect("a place among directories");
        &self.directories[place]
    }

    /// Number of content blocks that a file maps.
    pub fn content_blocks(&self, tree: &Tree, id: Id) -> u64 {
        let node = tree.node(id);
        match node.file_type() {
            FileType::Directory => u64::from(self.directory(tree, id).blocks),
            FileType::Symlink => u64::from(node.size >= pext4_ondisk::inode::BLOCK_AREA as u64),
            FileType::Regular if node.first_block == INLINE => 0,
            FileType::Regular => match tree.segments.get(&id) {
                None => node.size.div_ceil(self.block_size),
                Some(segments) => block_ranges(segments, self.block_size)
                    .iter()
                    .map(|range| range.end - range.start)
                    .sum(),
            },
            _ => 0,
        }
    }

    /// Marks the files whose contents fit into their inodes. Files with holes always get blocks.
    fn mark_inline_files(&self, tree: &mut Tree, order: &Order) {
        for &id in &order.inodes {
            let node = tree.node(id);
            let room = u64::from(self.sets[node.attributes as usize].room);
            // An inode without any room cannot have inline data, not even of length 0.
            let fits = room > 0 && node.size <= room;
            if node.is_regular() && fits && !tree.segments.contains_key(&id) {
                tree.node_mut(id).first_block = INLINE;
            }
        }
    }

    fn count(&self, tree: &Tree, order: &Order) -> Result<u64> {
        let mut users = vec![0u64; self.sets.len()];
        let mut blocks = 0u64;
        // An extent ends where a group does, if the group's metadata is there.
        let group_blocks = 8 * self.block_size;
        let extent_blocks = group_blocks.min(MAX_EXTENT_BLOCKS);
        for &id in &order.inodes {
            let content = self.content_blocks(tree, id);
            let pieces = tree.segments.get(&id).map_or(1, |segments| segments.len());
            // A long file may also be split around metadata.
            let cuts = pieces as u64 + 2 * (content / extent_blocks) + 1;
            let nodes = if cuts > EXTENTS_IN_INODE as u64 + 1 {
                let cuts = usize::try_from(cuts).unwrap_or(usize::MAX);
                extent::nodes_needed(cuts, as_memory_size(self.block_size)) as u64
            } else {
                0
            };
            blocks = blocks.saturating_add(content).saturating_add(nodes);
            users[tree.node(id).attributes as usize] += 1;
        }
        let references = u64::from(pext4_ondisk::xattr::MAX_REFERENCES);
        for (users, set) in users.iter().zip(&self.sets) {
            if set.has_block {
                blocks += users.div_ceil(references);
            }
        }
        Ok(blocks)
    }

    fn plan_directories(
        &mut self,
        tree: &Tree,
        order: &Order,
        parameters: &Parameters<'_>,
    ) -> Result<()> {
        let planner = DirectoryPlanner {
            tree,
            order,
            parameters,
            format: self.format,
            sets: &self.sets,
            next: AtomicUsize::new(0),
            done: Mutex::new(Class::Leaf, Vec::with_capacity(order.directories.len())),
        };
        run_on_threads(parameters.threads, &|| planner.work());
        let mut done = planner.done.into_inner();
        done.sort_unstable_by_key(|(place, _)| *place);
        for (place, planned) in done {
            let (shape, is_large) = planned.map_err(|TooMany| {
                let path = tree.shown_path(order.directories[place].node);
                Error::unsound(path, "it has more names than a directory's index can hold")
            })?;
            self.needs_large_dir |= is_large;
            self.directories.push(shape);
        }
        Ok(())
    }
}

fn as_memory_size(block_size: u64) -> usize {
    usize::try_from(block_size).expect("a block fits into memory")
}

/// Plans all directories with several threads.
struct DirectoryPlanner<'a> {
    tree: &'a Tree,
    order: &'a Order,
    parameters: &'a Parameters<'a>,
    format: Format,
    sets: &'a [SetShape],
    next: AtomicUsize,
    done: Mutex<Vec<(usize, Planned)>>,
}

/// A directory's shape, and whether it needs a third level.
type Planned = std::result::Result<(DirectoryShape, bool), TooMany>;

impl DirectoryPlanner<'_> {
    fn work(&self) {
        loop {
            let start = self.next.fetch_add(DIRECTORIES_PER_TURN, Ordering::Relaxed);
            let all = self.order.directories.len();
            if start >= all {
                return;
            }
            let planned: Vec<(usize, Planned)> = (start..all.min(start + DIRECTORIES_PER_TURN))
                .map(|place| (place, self.plan(place)))
                .collect();
            self.done.lock().extend(planned);
        }
    }

    /// Whether a directory is stored in its inode. The root and `lost+found` never are.
    fn fits_inline<'b>(&self, id: Id, names: impl Iterator<Item = &'b [u8]>) -> bool {
        let node = self.tree.node(id);
        let room = self.sets[node.attributes as usize].room as usize;
        let is_lost_found = node.inode == super::order::LOST_FOUND;
        room > 0 && id != ROOT && !is_lost_found && inline_regions(names, room).is_some()
    }

    fn plan(&self, place: usize) -> Planned {
        let directory = &self.order.directories[place];
        let names = || {
            let children = self.order.children(directory).iter();
            children.map(|&id| self.tree.name(id))
        };
        if self.fits_inline(directory.node, names()) {
            let (blocks, plan) = (0, None);
            return Ok((DirectoryShape { blocks, plan }, false));
        }
        let block_size = self.parameters.block_size as usize;
        let linear = linear_blocks(names(), block_size, self.format);
        let has_index = self.parameters.features.has_compat(Compat::DIR_INDEX);
        if linear == 1 || !has_index {
            let least = match self.tree.node(directory.node).inode {
                super::order::LOST_FOUND => lost_found_blocks(block_size),
                _ => 1,
            };
            let blocks = linear.max(least);
            return Ok((DirectoryShape { blocks, plan: None }, false));
        }
        let levels = if self.parameters.features.has_incompat(Incompat::LARGEDIR) {
            2
        } else {
            1
        };
        let of = |levels| {
            Plan::of(
                block_size,
                self.format,
                names(),
                &self.parameters.hasher,
                levels,
            )
        };
        let (plan, is_large) = match of(levels) {
            Err(TooMany) if self.parameters.may_grow_levels => (of(2)?, true),
            planned => (planned?, false),
        };
        let blocks = u32::try_from(plan.blocks()).map_err(|_| TooMany)?;
        let plan = Some(Box::new(plan));
        Ok((DirectoryShape { blocks, plan }, is_large))
    }
}

/// How many of these names go into each of the two regions of a directory with `bytes` bytes of
/// inline data, in order; `None` if they do not fit.
pub(super) fn inline_regions<'a>(
    names: impl Iterator<Item = &'a [u8]>,
    bytes: usize,
) -> Option<[usize; 2]> {
    let content = vec![0; bytes];
    let mut counts = [0; 2];
    let mut names = names.map(|name| record_length(name.len())).peekable();
    for (count, number) in counts.iter_mut().zip(0..) {
        let mut left = inline::region(&content, number).map_or(0, |region| region.len());
        while let Some(length) = names.next_if(|&length| length <= left) {
            left -= length;
            *count += 1;
        }
    }
    names.peek().is_none().then_some(counts)
}

/// Number of blocks of a directory without an index.
fn linear_blocks<'a>(
    names: impl Iterator<Item = &'a [u8]>,
    block_size: usize,
    format: Format,
) -> u32 {
    let room = usable_length(block_size, format);
    let (mut blocks, mut used) = (1, record_length(1) + record_length(2));
    for name in names {
        let length = record_length(name.len());
        if used + length > room {
            blocks += 1;
            used = 0;
        }
        used += length;
    }
    blocks
}

/// Computes what each set of attributes takes. The error names a file that has a set which cannot
/// be stored.
fn shape_sets(tree: &Tree, order: &Order, parameters: &Parameters<'_>) -> Result<Vec<SetShape>> {
    let mut inode = Inode::new(parameters.inode_size, extra_size(parameters.inode_size));
    let has_inline_data = parameters.features.has_incompat(Incompat::INLINE_DATA);
    let mut shape = |number: u32| {
        let attributes = tree.sets.get(number);
        let block_size = parameters.block_size as usize;
        let split = attributes::split(&attributes, inode.tail.len(), block_size)?;
        inode.tail.copy_from_slice(&split.tail);
        let room = match has_inline_data {
            true => inode.inline_room().unwrap_or(0),
            false => 0,
        };
        Ok(SetShape {
            room: u32::try_from(room).expect("less than an inode"),
            has_block: !split.block.is_empty(),
        })
    };
    // Found once, and only if it is needed.
    let mut users = None;
    let numbers = 0..u32::try_from(tree.sets.len()).expect("sets are counted in 32 bits");
    numbers
        .map(|number| {
            shape(number).or_else(|problem: String| {
                let users = users.get_or_insert_with(|| users_of_sets(tree, order));
                match users[number as usize] {
                    // Its files were replaced by a later source.
                    NONE => Ok(SetShape::default()),
                    id => Err(Error::unsound(tree.shown_path(id), problem)),
                }
            })
        })
        .collect()
}

/// For each set of attributes the first file in order that has it; [`NONE`] if none has.
fn users_of_sets(tree: &Tree, order: &Order) -> Vec<Id> {
    let mut users = vec![NONE; tree.sets.len()];
    for &id in order.inodes.iter().rev() {
        users[tree.node(id).attributes as usize] = id;
    }
    users
}

/// The blocks of a file that contain data, as ranges that do not touch.
pub(super) fn block_ranges(segments: &[Range<u64>], block_size: u64) -> Vec<Range<u64>> {
    let mut ranges: Vec<Range<u64>> = Vec::with_capacity(segments.len());
    for segment in segments {
        let range = segment.start / block_size..segment.end.div_ceil(block_size);
        match ranges.last_mut() {
            Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
            _ => ranges.push(range),
        }
    }
    ranges
}

/// Fails for files that the format, or the format without some features, cannot represent.
pub(super) fn check_files(
    tree: &Tree,
    order: &Order,
    features: &Features,
    block_size: u64,
) -> Result<()> {
    for &id in &order.inodes {
        if let Some(problem) = file_problem(tree, id, features, block_size) {
            return Err(Error::unsound(tree.shown_path(id), problem));
        }
    }
    Ok(())
}

fn file_problem(tree: &Tree, id: Id, features: &Features, block_size: u64) -> Option<String> {
    let node = tree.node(id);
    let without = |name: &str| format!("it cannot be held without the feature {name}");
    let has = |feature| features.has_read_only_compat(feature);
    if node.attributes != 0 && !features.has_compat(Compat::EXT_ATTR) {
        return Some(without("ext_attr"));
    }
    match node.file_type() {
        FileType::Regular if node.size.div_ceil(block_size) > u64::from(u32::MAX) => Some(format!(
            "its {} bytes are more than ext4 holds in a file",
            node.size
        )),
        FileType::Regular if node.size >> 31 > 0 && !has(ReadOnlyCompat::LARGE_FILE) => {
            Some(without("large_file"))
        }
        FileType::Symlink if node.size == 0 => Some("it is a link that leads nowhere".to_owned()),
        FileType::Symlink if node.size >= block_size => Some(format!(
            "it is a link to a path of {} bytes, a block holds {}",
            node.size,
            block_size - 1
        )),
        FileType::Directory if node.links == 1 && !has(ReadOnlyCompat::DIR_NLINK) => {
            Some(without("dir_nlink"))
        }
        // Linux counts the links of a directory without an index whatever their number.
        FileType::Directory if node.links == 1 && !features.has_compat(Compat::DIR_INDEX) => {
            Some(without("dir_index"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{block_ranges, inline_regions};

    #[test]
    fn inline_names_fill_the_regions_in_order() {
        let regions = |lengths: &[usize], bytes| {
            let names: Vec<Vec<u8>> = lengths.iter().map(|&length| vec![b'a'; length]).collect();
            inline_regions(names.iter().map(Vec::as_slice), bytes)
        };
        assert_eq!(regions(&[], 60), Some([0, 0]));
        // 56 bytes hold a record of 36 and one of 20; later names go into the second region.
        assert_eq!(regions(&[28, 12], 60), Some([2, 0]));
        assert_eq!(regions(&[28, 13], 60), None);
        assert_eq!(regions(&[28, 13, 1], 100), Some([1, 2]));
        assert_eq!(regions(&[28, 13, 20], 100), None);
    }

    #[test]
    fn segments_that_share_a_block_are_merged() {
        let segments = [0..10, 4000..4097, 20_000..30_000, 40_960..40_961];
        assert_eq!(block_ranges(&segments, 4096), [0..2, 4..8, 10..11]);
        assert_eq!(block_ranges(&[], 4096), []);
    }
}
