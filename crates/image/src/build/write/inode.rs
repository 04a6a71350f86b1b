//! Encodes the inodes.

use pext4_ondisk::directory::FileType;
use pext4_ondisk::extent::{self, Extent};
use pext4_ondisk::feature::ReadOnlyCompat;
use pext4_ondisk::inode::{Inode, InodeFlags};
use pext4_ondisk::time::Time;
use pext4_ondisk::{BlockNumber, InodeNumber, LogicalBlock};

use super::super::error::{Error, Result};
use super::super::tree::Id;
use super::{Image, build_tree};
use crate::mkfs::contents::extra_size;
use crate::mkfs::layout::MAX_EXTENT_BLOCKS;

/// Encodes inodes, and reuses their memory.
pub(super) struct InodeEncoder<'a> {
    image: &'a Image<'a>,
    blank: Inode,
    inode: Inode,
    /// The last set with attributes, and its encoded attributes: neighbours often have the same.
    last_set: (u32, Vec<u8>),
    seed: Option<u32>,
}

impl<'a> InodeEncoder<'a> {
    pub fn new(image: &'a Image<'a>) -> Self {
        let geometry = image.geometry();
        let blank = Inode::new(geometry.inode_size, extra_size(geometry.inode_size));
        Self {
            image,
            inode: blank.clone(),
            blank,
            last_set: (0, Vec::new()),
            seed: geometry.checksum_seed(),
        }
    }

    /// Encodes the inode of a node into `slot`. `inline` is its content if that is stored in the
    /// inode.
    pub fn encode(
        &mut self,
        id: Id,
        number: InodeNumber,
        inline: Option<&[u8]>,
        slot: &mut [u8],
    ) -> Result<()> {
        let image = self.image;
        let node = image.tree.node(id);
        let placed = &image.placement.attributes[node.attributes as usize];
        self.inode.clone_from(&self.blank);
        let inode = &mut self.inode;
        let time = Time {
            seconds: node.seconds,
            nanoseconds: node.nanoseconds,
        };
        inode.mode = node.mode;
        (inode.uid, inode.gid) = (node.uid, node.gid);
        inode.links = node.links;
        (inode.accessed, inode.changed, inode.modified) = (time, time, time);
        inode.created = inode.created.map(|_| time);
        inode.clamp_times();
        inode.attribute_block = BlockNumber(placed.block);
        if placed.set != 0 {
            if self.last_set.0 != placed.set {
                self.last_set = (placed.set, image.split_set(placed.set).tail);
            }
            inode.tail.copy_from_slice(&self.last_set.1);
        }
        match node.file_type() {
            FileType::Symlink if inode.set_fast_symlink_target(image.tree.target(id)) => {}
            FileType::CharacterDevice | FileType::BlockDevice => {
                let low = u32::try_from(node.size & u64::from(u32::MAX)).expect("masked");
                let high = u32::try_from(node.size >> 32).expect("what is left of 64 bits");
                inode.set_device(high, low);
            }
            FileType::Fifo | FileType::Socket => {}
            _ => match inline {
                Some(content) => {
                    inode.size = content.len() as u64;
                    let fits = inode.set_inline_content(content);
                    fits.expect("the shape says that there is room");
                }
                None => self.map(id),
            },
        }
        self.count(id)?;
        self.inode.encode(slot, number, self.seed);
        Ok(())
    }

    /// Sets size, flags and block map of a file that has blocks or may get some.
    fn map(&mut self, id: Id) {
        let image = self.image;
        let node = image.tree.node(id);
        self.inode.flags.insert(InodeFlags::EXTENTS);
        self.inode.size = node.size;
        if node.is_directory() {
            let shape = image.shape.directory(image.tree, id);
            self.inode.size = u64::from(shape.blocks) * image.shape.block_size;
            self.inode
                .flags
                .set(InodeFlags::INDEX, shape.plan.is_some());
        }
        if let Some(map) = image.placement.maps.get(&id) {
            self.inode.block = build_tree(map, image.block_size()).root;
            return;
        }
        let blocks = image.shape.content_blocks(image.tree, id);
        let mut entries = [[0; extent::ENTRY_SIZE]; 4];
        let mut count = 0;
        for start in (0..blocks).step_by(usize::try_from(MAX_EXTENT_BLOCKS).expect("it is small")) {
            let extent = Extent {
                logical: LogicalBlock(u32::try_from(start).expect("at most four extents")),
                start: BlockNumber(node.first_block + start),
                length: u32::try_from(MAX_EXTENT_BLOCKS.min(blocks - start))
                    .expect("at most one extent"),
                unwritten: false,
            };
            entries[count] = extent.encode();
            count += 1;
        }
        extent::write_node(&mut self.inode.block, 0, &entries[..count]);
    }

    /// Sets `i_blocks`.
    fn count(&mut self, id: Id) -> Result<()> {
        let image = self.image;
        let blocks = image.placement.blocks_of(image.tree, image.shape, id);
        let geometry = image.geometry();
        let huge_file = geometry
            .features
            .has_read_only_compat(ReadOnlyCompat::HUGE_FILE);
        let sectors = blocks * u64::from(geometry.block_size / 512);
        if !self
            .inode
            .set_sectors(sectors, geometry.block_size, huge_file)
        {
            let problem = "it takes more blocks than an inode can count without huge_file";
            return Err(Error::unsound(image.tree.shown_path(id), problem));
        }
        Ok(())
    }
}
