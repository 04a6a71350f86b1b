//! Images for the tests of the checker: created by mke2fs, modified through the codecs.

use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use pext4_block::{Device, RamDevice};
use pext4_image::check::{self, Options, Report};
use pext4_ondisk::checksum::InodeSeed;
use pext4_ondisk::geometry::Geometry;
use pext4_ondisk::group_descriptor::GroupDescriptor;
use pext4_ondisk::inode::Inode;
use pext4_ondisk::superblock::{self, Superblock};
use pext4_ondisk::{
    BlockNumber, GroupNumber, InodeNumber, LogicalBlock, directory, extent, indirect,
};

/// The path of a program of e2fsprogs, which may be only in root's search path.
pub fn tool(name: &str) -> Command {
    let places = ["/usr/sbin", "/sbin"].map(|folder| Path::new(folder).join(name));
    let path = places.into_iter().find(|path| path.exists());
    let mut command = Command::new(path.unwrap_or_else(|| PathBuf::from(name)));
    command.env("MKE2FS_SKIP_CHECK_MSG", "1").env("LC_ALL", "C");
    command
}

/// Whether e2fsprogs is installed. Prints a message if not.
pub fn have_tools() -> bool {
    let is_there = tool("mke2fs").arg("-V").output().is_ok();
    if !is_there {
        eprintln!("SKIPPED: mke2fs is not installed (package e2fsprogs)");
    }
    is_there
}

pub fn run(command: &mut Command) -> Result<String, String> {
    let output = command.output().expect("the program is there");
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        Ok(text)
    } else {
        Err(text)
    }
}

/// A directory for images: in memory if there is one, since every corruption is written out.
pub fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .expect("a temporary folder")
}

/// Files of all kinds.
pub fn populate(folder: &Path) {
    let at = |name: &str| folder.join(name);
    std::fs::create_dir_all(at("dir/deeper")).expect("a folder");
    std::fs::create_dir(at("many")).expect("a folder");
    for number in 0..200 {
        let name = format!("many/a-rather-long-name-to-fill-blocks-quickly-{number}");
        std::fs::write(at(&name), b"").expect("a file");
    }
    std::fs::write(at("small"), [7; 100]).expect("a file");
    std::fs::write(at("large"), vec![8; 50_000]).expect("a file");
    std::fs::write(at("dir/inner"), [9; 3000]).expect("a file");
    std::fs::hard_link(at("small"), at("dir/linked")).expect("a link");
    symlink("small", at("fast")).expect("a link");
    symlink("m".repeat(90), at("middling")).expect("a link");
    symlink("s".repeat(200), at("slow")).expect("a link");
    let hollow = std::fs::File::create(at("hollow")).expect("a file");
    hollow.set_len(70_000).expect("a hole");
    let sparse = std::fs::File::create(at("sparse")).expect("a file");
    for piece in 0..40 {
        sparse
            .write_all_at(&[3; 1024], piece * 8192)
            .expect("a sparse file");
    }
    for (name, length) in [("user.short", 10), ("user.long", 500)] {
        let flags = rustix::fs::XattrFlags::empty();
        if rustix::fs::setxattr(at("large"), name, &vec![b'v'; length], flags).is_err() {
            eprintln!("SKIPPED: attributes, the temporary folder holds none");
        }
    }
}

/// An image of `size` by mke2fs with these options, filled from a directory; `None`, with a
/// message, if this mke2fs does not support them.
pub fn make(size: u64, options: &[&str]) -> Option<Image> {
    let scratch = tempfile::tempdir().expect("a temporary folder");
    let folder = scratch.path().join("folder");
    std::fs::create_dir(&folder).expect("a folder");
    populate(&folder);
    make_from(size, options, Some(&folder))
}

/// The same from another directory, or empty.
pub fn make_from(size: u64, options: &[&str], folder: Option<&Path>) -> Option<Image> {
    let scratch = scratch();
    let path = scratch.path().join("image");
    let file = std::fs::File::create(&path).expect("a file");
    file.set_len(size).expect("a sparse file");
    drop(file);
    let mut command = tool("mke2fs");
    command.args([
        "-q",
        "-F",
        "-t",
        "ext4",
        "-E",
        "hash_seed=00000001-0000-0002-0000-000300000004",
    ]);
    command.args(["-U", "00010203-0405-0607-0809-0a0b0c0d0e0f"]);
    command.args(options);
    if let Some(folder) = folder {
        command.arg("-d").arg(folder);
    }
    if let Err(text) = run(command.arg(&path)) {
        let is_old = text.contains("Invalid filesystem option set");
        assert!(is_old, "{command:?}: {text}");
        eprintln!("SKIPPED: mke2fs {options:?}: {text}");
        return None;
    }
    Some(Image::load(&path))
}

/// An image in memory that tests modify.
#[derive(Clone)]
pub struct Image {
    pub bytes: Vec<u8>,
}

impl Image {
    pub fn load(path: &Path) -> Self {
        Self {
            bytes: std::fs::read(path).expect("the image just made"),
        }
    }

    /// Modifies it with debugfs.
    pub fn debugfs(&mut self, requests: &[&str]) {
        let scratch = scratch();
        let path = self.save(scratch.path());
        for request in requests {
            let mut command = tool("debugfs");
            command.args(["-w", "-R", request]).arg(&path);
            run(&mut command).expect("debugfs does what it is asked");
        }
        self.bytes = std::fs::read(&path).expect("the image");
    }

    /// Repairs and optimizes it with e2fsck.
    pub fn e2fsck_repairs(&mut self, options: &[&str]) {
        let scratch = scratch();
        let path = self.save(scratch.path());
        let _ = tool("e2fsck").args(options).arg(&path).output();
        self.bytes = std::fs::read(&path).expect("the image");
    }

    /// Resizes it with resize2fs.
    pub fn resize2fs(&mut self, size: &str) {
        let scratch = scratch();
        let path = self.save(scratch.path());
        run(tool("resize2fs").arg("-f").arg(&path).arg(size)).expect("it can be that large");
        self.bytes = std::fs::read(&path).expect("the image");
    }

    fn save(&self, folder: &Path) -> PathBuf {
        let path = folder.join("image");
        std::fs::write(&path, &self.bytes).expect("room for an image");
        path
    }

    /// The result of e2fsck.
    pub fn e2fsck(&self) -> (i32, String) {
        let scratch = scratch();
        let path = self.save(scratch.path());
        let output = tool("e2fsck").arg("-fn").arg(&path).output();
        let output = output.expect("e2fsck is beside mke2fs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        (output.status.code().unwrap_or(-1), text)
    }

    pub fn device(&self) -> Arc<RamDevice> {
        let device = RamDevice::new(self.bytes.len() as u64);
        device.write_at(0, &self.bytes).expect("it fits");
        Arc::new(device)
    }

    /// The result of our checker.
    pub fn check(&self) -> check::Result<Report> {
        check_device(self.device(), 2)
    }

    pub fn superblock(&self) -> Superblock {
        let bytes = self.bytes[1024..2048].try_into().expect("1024 bytes");
        Superblock::decode_unverified(&bytes).expect("a superblock")
    }

    pub fn set_superblock(&mut self, superblock: &Superblock) {
        self.bytes[1024..1024 + superblock::SIZE].copy_from_slice(&superblock.encode());
    }

    pub fn edit_superblock(&mut self, edit: impl FnOnce(&mut Superblock)) {
        let mut superblock = self.superblock();
        edit(&mut superblock);
        self.set_superblock(&superblock);
    }

    pub fn geometry(&self) -> Geometry {
        Geometry::of(&self.superblock()).expect("a possible superblock")
    }

    pub fn seed(&self) -> Option<u32> {
        self.geometry().checksum_seed()
    }

    /// The bytes of a block.
    pub fn block(&mut self, block: u64) -> &mut [u8] {
        let size = self.geometry().block_size as usize;
        let start = usize::try_from(block).expect("small") * size;
        &mut self.bytes[start..start + size]
    }

    pub fn descriptor(&self, group: u32) -> GroupDescriptor {
        let geometry = self.geometry();
        let bytes = &self.bytes[self.descriptor_range(group)];
        GroupDescriptor::decode_unverified(bytes, &geometry, GroupNumber(group)).expect("sized")
    }

    pub fn descriptor_range(&self, group: u32) -> std::ops::Range<usize> {
        let geometry = self.geometry();
        let (block, offset) = geometry.descriptor_location(GroupNumber(group));
        let start = block.get() * u64::from(geometry.block_size) + u64::from(offset);
        let start = usize::try_from(start).expect("small");
        start..start + usize::from(geometry.descriptor_size)
    }

    pub fn edit_descriptor(&mut self, group: u32, edit: impl FnOnce(&mut GroupDescriptor)) {
        let (geometry, range) = (self.geometry(), self.descriptor_range(group));
        let mut descriptor = self.descriptor(group);
        edit(&mut descriptor);
        descriptor.encode(&mut self.bytes[range], &geometry, GroupNumber(group));
    }

    /// Writes the descriptors over their copies.
    pub fn copy_descriptors(&mut self) {
        let geometry = self.geometry();
        for index in 0..geometry.descriptor_blocks {
            let bytes = self.block(geometry.descriptor_block(index).get()).to_vec();
            for copy in geometry.descriptor_block_copies(index) {
                self.block(copy.get()).copy_from_slice(&bytes);
            }
        }
    }

    pub fn slot_range(&self, inode: u32) -> std::ops::Range<usize> {
        let geometry = self.geometry();
        let (group, index) = geometry.inode_group(InodeNumber(inode)).expect("an inode");
        let table = self.descriptor(group.get()).inode_table;
        let (block, offset) = geometry.inode_slot(table, index).expect("in the table");
        let start = block.get() * u64::from(geometry.block_size) + u64::from(offset);
        let start = usize::try_from(start).expect("small");
        start..start + usize::from(geometry.inode_size)
    }

    pub fn inode(&self, inode: u32) -> Inode {
        let slot = &self.bytes[self.slot_range(inode)];
        Inode::decode(slot, InodeNumber(inode), None).expect("an inode")
    }

    pub fn set_inode(&mut self, number: u32, inode: &Inode) {
        let (range, seed) = (self.slot_range(number), self.seed());
        inode.encode(&mut self.bytes[range], InodeNumber(number), seed);
    }

    pub fn edit_inode(&mut self, number: u32, edit: impl FnOnce(&mut Inode)) {
        let mut inode = self.inode(number);
        edit(&mut inode);
        self.set_inode(number, &inode);
    }

    /// Modifies bytes of an inode and updates its checksum.
    pub fn edit_slot(&mut self, number: u32, edit: impl FnOnce(&mut [u8])) {
        let range = self.slot_range(number);
        edit(&mut self.bytes[range]);
        self.edit_inode(number, |_| {});
    }

    /// The inode number of a path.
    pub fn find(&mut self, path: &str) -> u32 {
        let mut inode = 2;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            inode = self
                .entries(inode)
                .into_iter()
                .find(|(found, _)| found == name.as_bytes())
                .unwrap_or_else(|| panic!("{path} has {name}"))
                .1;
        }
        inode
    }

    /// Names of a directory.
    pub fn entries(&mut self, inode: u32) -> Vec<(Vec<u8>, u32)> {
        let format = directory::Format::of(&self.superblock().features);
        let mut found = Vec::new();
        for block in self.blocks(inode) {
            let bytes = self.block(block).to_vec();
            for entry in directory::entries(&bytes, format).map_while(Result::ok) {
                found.push((entry.name.to_vec(), entry.inode.get()));
            }
        }
        found
    }

    /// The blocks of a file, in order.
    pub fn blocks(&mut self, inode: u32) -> Vec<u64> {
        let inode = self.inode(inode);
        let size = u64::from(self.geometry().block_size);
        let count = u32::try_from(inode.size.div_ceil(size)).expect("small");
        if inode.has_extents() {
            let root = inode.block.to_vec();
            return self.extents(&root);
        }
        (0..count)
            .filter_map(|logical| {
                let block_size = self.geometry().block_size;
                indirect::lookup(
                    &inode.block,
                    block_size,
                    LogicalBlock(logical),
                    |block, step| {
                        Ok::<u32, pext4_ondisk::Corrupt>(indirect::entry(
                            self.block(block.get()),
                            step,
                        ))
                    },
                )
                .expect("a sound map")
            })
            .map(BlockNumber::get)
            .collect()
    }

    fn extents(&mut self, node: &[u8]) -> Vec<u64> {
        let parsed = extent::Node::parse(node).expect("a sound node");
        let entries = parsed.entries().to_vec();
        let mut blocks = Vec::new();
        for entry in entries {
            if parsed.depth() == 0 {
                let extent = extent::Extent::decode(&entry).expect("a sound extent");
                let start = extent.start.get();
                blocks.extend(start..start + u64::from(extent.length));
            } else {
                let child = extent::Index::decode(&entry).child.get();
                let bytes = self.block(child).to_vec();
                blocks.extend(self.extents(&bytes));
            }
        }
        blocks
    }

    /// Modifies a directory leaf and updates its checksum.
    pub fn edit_leaf(&mut self, inode: u32, block: u64, edit: impl FnOnce(&mut [u8])) {
        let (seed, generation) = (self.seed(), self.inode(inode).generation);
        let bytes = self.block(block);
        edit(bytes);
        if let Some(seed) = seed {
            directory::stamp_leaf(InodeSeed::new(seed, InodeNumber(inode), generation), bytes);
        }
    }

    /// Modifies an extent node and updates its checksum.
    pub fn edit_node(&mut self, inode: u32, block: u64, edit: impl FnOnce(&mut [u8])) {
        let (seed, generation) = (self.seed(), self.inode(inode).generation);
        let bytes = self.block(block);
        edit(bytes);
        if let Some(seed) = seed {
            extent::stamp_node(InodeSeed::new(seed, InodeNumber(inode), generation), bytes);
        }
    }

    /// Updates the checksums of a group's bitmaps.
    pub fn stamp_bitmaps(&mut self, group: u32) {
        let (geometry, descriptor) = (self.geometry(), self.descriptor(group));
        let Some(seed) = self.seed() else { return };
        let bits = self.block(descriptor.block_bitmap.get()).to_vec();
        let blocks =
            pext4_ondisk::bitmap::block_bitmap_checksum(seed, &bits, geometry.clusters_per_group);
        let bits = self.block(descriptor.inode_bitmap.get()).to_vec();
        let inodes =
            pext4_ondisk::bitmap::inode_bitmap_checksum(seed, &bits, geometry.inodes_per_group);
        self.edit_descriptor(group, |descriptor| {
            descriptor.block_bitmap_checksum = blocks;
            descriptor.inode_bitmap_checksum = inodes;
        });
    }
}

/// The result of our checker for a device.
pub fn check_device(device: Arc<dyn Device>, threads: usize) -> check::Result<Report> {
    let options = Options {
        threads,
        ..Options::default()
    };
    check::check(device, &options)
}

/// Findings by name, for messages.
pub fn names(report: &Report) -> Vec<&'static str> {
    report.counts.iter().map(|(kind, _)| kind.name()).collect()
}
