//! Writes directories.

use pext4_ondisk::InodeNumber;
use pext4_ondisk::checksum::InodeSeed;
use pext4_ondisk::directory::{self, Entry, FileType};
use pext4_ondisk::htree::{BuiltBlock, Plan};
use pext4_ondisk::inode::{BLOCK_AREA, inline};

use super::super::error::Result;
use super::super::shape::inline_regions;
use super::super::tree::{Id, ROOT, Tree};
use super::{Image, WriteBuffer};

/// The names in a directory.
fn children<'a>(image: &Image<'a>, id: Id) -> &'a [Id] {
    let place = usize::try_from(image.tree.node(id).content).expect("a place among directories");
    image.order.children(&image.order.directories[place])
}

fn parent(tree: &Tree, id: Id) -> InodeNumber {
    let above = if id == ROOT { id } else { tree.node(id).parent };
    InodeNumber(tree.node(above).inode)
}

/// The content of a directory that is stored in its inode with up to `room` bytes. It has the
/// minimum length or the full `room`, since other implementations also use all the room when they
/// let it grow.
pub(super) fn inline_content(image: &Image<'_>, id: Id, room: usize) -> Vec<u8> {
    let tree = image.tree;
    let children = children(image, id);
    let names = || children.iter().map(|&id| tree.name(id));
    let (bytes, counts) = [BLOCK_AREA, room]
        .into_iter()
        .find_map(|bytes| Some((bytes, inline_regions(names(), bytes)?)))
        .expect("the shape says that it fits");
    let format = image.shape.format.inline();
    let mut content = vec![0; bytes];
    inline::set_parent(&mut content, parent(tree, id));
    let mut rest = children;
    for (count, number) in counts.into_iter().zip(0..) {
        let (here, behind) = rest.split_at(count);
        rest = behind;
        let Ok(region) = inline::region(&content, number) else {
            break;
        };
        if here.is_empty() {
            directory::init_empty(&mut content[region], format);
        } else {
            let entries = here.iter().map(|&id| entry(tree, id));
            let fits = directory::write_leaf(&mut content[region], format, entries);
            assert!(fits, "the entries of a region were cut to fit");
        }
    }
    content
}

/// Writes the blocks of a directory to the write buffer.
pub(super) fn write(image: &Image<'_>, id: Id, data: &mut WriteBuffer) -> Result<()> {
    let tree = image.tree;
    let own = InodeNumber(tree.node(id).inode);
    let parent = parent(tree, id);
    let children = children(image, id);
    let shape = image.shape.directory(tree, id);
    let mut writer = Writer {
        image,
        own,
        data,
        blocks: BlockIter::new(image, id, u64::from(shape.blocks)),
    };
    match &shape.plan {
        Some(plan) => writer.indexed(plan, parent, children),
        None => writer.linear(parent, children),
    }
}

/// Iterates over the blocks of a directory.
struct BlockIter {
    runs: Vec<(u64, u64)>,
}

impl BlockIter {
    fn new(image: &Image<'_>, id: Id, blocks: u64) -> Self {
        let mut runs: Vec<(u64, u64)> = match image.placement.maps.get(&id) {
            None => vec![(image.tree.node(id).first_block, blocks)],
            Some(map) => map
                .runs
                .iter()
                .map(|run| (run.start.get(), u64::from(run.length)))
                .collect(),
        };
        runs.reverse();
        Self { runs }
    }

    fn next(&mut self) -> Option<u64> {
        let (start, left) = self.runs.last_mut()?;
        let block = *start;
        (*start, *left) = (*start + 1, *left - 1);
        if *left == 0 {
            self.runs.pop();
        }
        Some(block)
    }
}

struct Writer<'a, 'b> {
    image: &'a Image<'a>,
    own: InodeNumber,
    data: &'b mut WriteBuffer,
    blocks: BlockIter,
}

fn entry(tree: &Tree, name: Id) -> Entry<'_> {
    let owner = tree.node(tree.owner(name));
    Entry {
        inode: InodeNumber(owner.inode),
        file_type: Some(owner.file_type()),
        name: tree.name(name),
    }
}

impl Writer<'_, '_> {
    fn indexed(&mut self, plan: &Plan, parent: InodeNumber, children: &[Id]) -> Result<()> {
        let tree = self.image.tree;
        let own = self.own;
        let mut done = Ok(());
        plan.write(
            own,
            parent,
            |position| entry(tree, children[position]),
            |block| {
                if done.is_ok() {
                    done = self.put(block);
                }
            },
        );
        done
    }

    fn put(&mut self, mut block: BuiltBlock) -> Result<()> {
        if let Some(seed) = self.image.geometry().checksum_seed() {
            block.stamp(InodeSeed::new(seed, self.own, 0));
        }
        self.next_block()?.copy_from_slice(&block.bytes);
        Ok(())
    }

    /// The buffer for the next block of the directory.
    fn next_block(&mut self) -> Result<&mut [u8]> {
        let block = self.blocks.next().expect("as many were placed as are made");
        let block_size = self.image.block_size();
        self.data
            .room(self.image.output, block * block_size as u64, block_size)
    }

    fn linear(&mut self, parent: InodeNumber, children: &[Id]) -> Result<()> {
        let tree = self.image.tree;
        let format = self.image.shape.format;
        let room = directory::usable_length(self.image.block_size(), format);
        let dot = |inode, name| Entry {
            inode,
            file_type: Some(FileType::Directory),
            name,
        };
        let mut first = vec![dot(self.own, b"."), dot(parent, b"..")];
        let mut rest = children;
        loop {
            let mut used: usize = first.iter().map(length).sum();
            let count = rest
                .iter()
                .take_while(|&&id| {
                    used += length(&entry(tree, id));
                    used <= room
                })
                .count();
            let (here, behind) = rest.split_at(count);
            let entries = first
                .drain(..)
                .chain(here.iter().map(|&id| entry(tree, id)));
            self.leaf(entries.collect())?;
            rest = behind;
            if rest.is_empty() {
                break;
            }
        }
        // The remaining blocks are empty.
        while !self.blocks.runs.is_empty() {
            self.leaf(Vec::new())?;
        }
        Ok(())
    }

    fn leaf(&mut self, entries: Vec<Entry<'_>>) -> Result<()> {
        let (own, format) = (self.own, self.image.shape.format);
        let seed = self.image.geometry().checksum_seed();
        let block = self.next_block()?;
        if entries.is_empty() {
            directory::init_empty(block, format);
        } else {
            let fits = directory::write_leaf(block, format, entries);
            assert!(fits, "the entries of a block were cut to fit");
        }
        if let Some(seed) = seed {
            directory::stamp_leaf(InodeSeed::new(seed, own, 0), block);
        }
        Ok(())
    }
}

fn length(entry: &Entry<'_>) -> usize {
    directory::record_length(entry.name.len())
}
