//! A reader of whole images that uses only the decoders under test.

use std::fs;
use std::path::Path;

use pext4_ondisk::directory::{FileType, Format};
use pext4_ondisk::extent::{Bounds, Node};
use pext4_ondisk::geometry::Geometry;
use pext4_ondisk::group_descriptor::{GroupDescriptor, GroupFlags};
use pext4_ondisk::inode::{Inode, InodeFlags};
use pext4_ondisk::superblock::{self, Superblock};
use pext4_ondisk::{
    BlockNumber, GroupNumber, InodeNumber, LogicalBlock, bitmap, directory, indirect,
};

/// An image in memory, with its superblock and descriptors decoded.
pub struct Image {
    bytes: Vec<u8>,
    pub superblock: Superblock,
    pub geometry: Geometry,
    pub descriptors: Vec<GroupDescriptor>,
}

/// An extent node: its block and its depth.
pub type NodePlace = (BlockNumber, u16);

impl Image {
    pub fn open(path: &Path) -> Self {
        let bytes = fs::read(path).expect("the image was just made");
        let superblock = Superblock::decode(superblock_at(&bytes, 1024)).expect("sound");
        let geometry = Geometry::of(&superblock).expect("sound");
        let mut image = Self {
            bytes,
            superblock,
            geometry,
            descriptors: Vec::new(),
        };
        image.descriptors = geometry
            .groups()
            .map(|group| {
                let bytes = image.descriptor_bytes(group);
                GroupDescriptor::decode(bytes, &geometry, group).expect("sound")
            })
            .collect();
        image
    }

    pub fn block(&self, block: BlockNumber) -> &[u8] {
        let size = u64::from(self.geometry.block_size);
        let start = usize::try_from(block.get() * size).expect("small images");
        &self.bytes[start..start + usize::try_from(size).expect("small blocks")]
    }

    pub fn block_mut(&mut self, block: BlockNumber) -> &mut [u8] {
        let size = u64::from(self.geometry.block_size);
        let start = usize::try_from(block.get() * size).expect("small images");
        &mut self.bytes[start..start + usize::try_from(size).expect("small blocks")]
    }

    pub fn set_inode(&mut self, number: InodeNumber, inode: &Inode) {
        let (group, index) = self.geometry.inode_group(number).expect("in range");
        let table = self.descriptor(group).inode_table;
        let (block, offset) = self.geometry.inode_slot(table, index).expect("in range");
        let (seed, size) = (self.geometry.checksum_seed(), inode.slot_size());
        let offset = usize::try_from(offset).expect("small");
        inode.encode(
            &mut self.block_mut(block)[offset..offset + size],
            number,
            seed,
        );
    }

    /// Frees a block: in the bitmap, in its group's descriptor and in the superblock.
    pub fn free(&mut self, block: BlockNumber) {
        let geometry = self.geometry;
        let group = geometry.group_of(block).expect("in range");
        let bit = geometry.cluster_in_group(block).expect("in range");
        let mut descriptor = self.descriptor(group).clone();
        let bits = self.block_mut(descriptor.block_bitmap);
        assert!(bitmap::clear(bits, bit), "it was in use");
        if let Some(seed) = geometry.checksum_seed() {
            let clusters = geometry.clusters_per_group;
            descriptor.block_bitmap_checksum = bitmap::block_bitmap_checksum(seed, bits, clusters);
        }
        descriptor.free_clusters += 1;
        let (home, offset) = geometry.descriptor_location(group);
        let offset = usize::try_from(offset).expect("small");
        let size = usize::from(geometry.descriptor_size);
        let slot = &mut self.block_mut(home)[offset..offset + size];
        descriptor.encode(slot, &geometry, group);
        self.descriptors[usize::try_from(group.get()).expect("small")] = descriptor;
        self.superblock.free_blocks += 1;
        let bytes = self.superblock.encode();
        self.bytes[1024..1024 + bytes.len()].copy_from_slice(&bytes);
    }

    pub fn save(&self, path: &Path) {
        fs::write(path, &self.bytes).expect("the image can be written");
    }

    /// The bytes of a group's superblock, if it has one.
    pub fn superblock_bytes(&self, group: GroupNumber) -> Option<&[u8; superblock::SIZE]> {
        let block = self.geometry.superblock_copy(group)?;
        let start = block.get() * u64::from(self.geometry.block_size);
        let start = if group.get() == 0 {
            superblock::OFFSET
        } else {
            start
        };
        Some(superblock_at(
            &self.bytes,
            usize::try_from(start).expect("small images"),
        ))
    }

    pub fn descriptor_bytes(&self, group: GroupNumber) -> &[u8] {
        let (block, offset) = self.geometry.descriptor_location(group);
        let offset = usize::try_from(offset).expect("small");
        &self.block(block)[offset..offset + usize::from(self.geometry.descriptor_size)]
    }

    pub fn descriptor(&self, group: GroupNumber) -> &GroupDescriptor {
        &self.descriptors[usize::try_from(group.get()).expect("small")]
    }

    pub fn slot(&self, number: InodeNumber) -> &[u8] {
        let (group, index) = self.geometry.inode_group(number).expect("in range");
        let table = self.descriptor(group).inode_table;
        let (block, offset) = self.geometry.inode_slot(table, index).expect("in range");
        let offset = usize::try_from(offset).expect("small");
        &self.block(block)[offset..offset + usize::from(self.geometry.inode_size)]
    }

    pub fn inode(&self, number: InodeNumber) -> Inode {
        let seed = self.geometry.checksum_seed();
        Inode::decode(self.slot(number), number, seed).expect("sound")
    }

    /// Inodes that the bitmaps say are in use.
    pub fn used_inodes(&self) -> Vec<InodeNumber> {
        let mut used = Vec::new();
        for group in self.geometry.groups() {
            let descriptor = self.descriptor(group);
            if descriptor.flags.contains(GroupFlags::INODE_UNINIT) {
                continue;
            }
            let bits = self.block(descriptor.inode_bitmap);
            let slots = (0..self.geometry.inodes_per_group).filter(|&bit| bitmap::test(bits, bit));
            used.extend(slots.filter_map(|bit| self.geometry.inode_at(group, bit)));
        }
        used
    }

    pub fn directory_format(&self) -> Format {
        Format::of(&self.geometry.features)
    }

    pub fn bounds(&self) -> Bounds {
        Bounds {
            first: BlockNumber(u64::from(self.geometry.first_data_block)),
            end: BlockNumber(self.geometry.blocks_count),
        }
    }

    /// The extent nodes of an inode, from the top.
    pub fn extent_nodes(&self, inode: &Inode) -> Vec<NodePlace> {
        let root = Node::parse(&inode.block).expect("sound");
        let mut level = vec![root];
        let mut places = Vec::new();
        while level.first().is_some_and(|node| node.depth() > 0) {
            let mut below = Vec::new();
            for node in level {
                for slot in 0..node.len() {
                    let index = node.index(slot, &self.bounds()).expect("sound");
                    places.push((index.child, node.depth() - 1));
                    below.push(Node::parse(self.block(index.child)).expect("sound"));
                }
            }
            level = below;
        }
        places
    }

    /// The device block of a file's block.
    pub fn map(&self, inode: &Inode, logical: LogicalBlock) -> Option<BlockNumber> {
        if !inode.has_extents() {
            let read = |block, index| {
                Ok::<u32, pext4_ondisk::Corrupt>(indirect::entry(self.block(block), index))
            };
            let size = self.geometry.block_size;
            return indirect::lookup(&inode.block, size, logical, read).expect("in reach");
        }
        let mut node = Node::parse(&inode.block).expect("sound");
        loop {
            let slot = node.count_up_to(logical).checked_sub(1)?;
            if node.depth() == 0 {
                let extent = node.extent(slot, &self.bounds()).expect("sound");
                let part = extent.part(u64::from(logical.get()), extent.end())?;
                return (part.logical == logical).then_some(part.start);
            }
            let child = node.index(slot, &self.bounds()).expect("sound").child;
            node = Node::parse(self.block(child)).expect("sound");
        }
    }

    /// The blocks of a file without holes.
    pub fn blocks_of(&self, inode: &Inode) -> Vec<BlockNumber> {
        let count = inode.size.div_ceil(u64::from(self.geometry.block_size));
        (0..u32::try_from(count).expect("small"))
            .map(|logical| self.map(inode, LogicalBlock(logical)).expect("no hole"))
            .collect()
    }

    /// The inode of a name in the root directory.
    pub fn find(&self, name: &[u8]) -> (InodeNumber, Inode) {
        let root = self.inode(InodeNumber::ROOT);
        assert_eq!(root.file_type(), Some(FileType::Directory));
        let first = usize::from(root.flags.contains(InodeFlags::INDEX));
        for block in &self.blocks_of(&root)[first..] {
            let leaf = self.block(*block);
            if let Some(record) =
                directory::find(leaf, self.directory_format(), name).expect("sound")
            {
                let number = record.entry().expect("a name has an entry").inode;
                return (number, self.inode(number));
            }
        }
        panic!("{} is missing", String::from_utf8_lossy(name));
    }
}

fn superblock_at(bytes: &[u8], start: usize) -> &[u8; superblock::SIZE] {
    bytes[start..].first_chunk().expect("images are larger")
}
