//! Images corrupted on purpose, and a walk that survives any content.
//!
//! A *specimen* is a small image with files of all kinds, made by mke2fs from a folder; dumpe2fs
//! and debugfs report where its metadata is located. Mutations change a field of it: to zero, to
//! all ones, by one bit, by one, or to a number that occurs elsewhere in the image. Opening,
//! walking and writing to the result may fail with any error, but must not panic, hang, or write
//! outside the image.

use std::fmt;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use pext4_block::{Device, RamDevice};
use pext4_fs::{
    AllocateMode, CreateAttributes, InodeNumber, MountOptions, RenameMode, SetXattrMode, Volume,
};
use pext4_ondisk::feature::ReadOnlyCompat;
use pext4_ondisk::superblock::{self, Superblock};

use crate::Random;
use crate::content::pattern;
use crate::effort::scratch;
use crate::oracle::check::e2fsck;
use crate::oracle::debugfs::{blocks_of, command, extent_nodes_of, pointer_blocks_of, regions};
use crate::oracle::format::{Features, Format};
use crate::oracle::{output, run, tool};

/// Most inodes that a walk of a corrupt image visits.
const MAX_INODES: usize = 400;
/// Most entries that it reads from one directory.
const MAX_ENTRIES: usize = 1000;
/// Most seeks between data and holes in one file.
const MAX_STEPS: usize = 50;

/// A range of metadata on the device.
#[derive(Clone, Debug)]
pub struct MetadataRange {
    /// The kind of structure.
    pub what: String,
    /// First byte on the device.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
}

/// An image with files and metadata of all kinds.
pub struct Specimen {
    /// The whole image.
    pub device: RamDevice,
    /// The locations of its metadata.
    pub spots: Vec<MetadataRange>,
}

impl fmt::Debug for Specimen {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Specimen").finish_non_exhaustive()
    }
}

/// Fills a folder with files of all kinds, which mke2fs copies into an image.
fn populate(folder: &Path) -> Result<()> {
    let at = |name: &str| folder.join(name);
    std::fs::create_dir_all(at("dir/deeper/deepest"))?;
    std::fs::create_dir(at("many"))?;
    for number in 0..300 {
        std::fs::write(at(&format!("many/a-name-of-some-length-{number}")), b"")?;
    }
    std::fs::write(at("small"), pattern(1, 100))?;
    std::fs::write(at("large"), pattern(2, 70_000))?;
    std::fs::hard_link(at("small"), at("dir/linked"))?;
    symlink("small", at("fast"))?;
    symlink("s".repeat(200), at("slow"))?;
    let sparse = std::fs::File::create(at("sparse"))?;
    for piece in 0..200_u64 {
        std::os::unix::fs::FileExt::write_all_at(&sparse, &pattern(3 + piece, 1024), piece * 4096)?;
    }
    for (name, length) in [("user.short", 10), ("user.long", 600)] {
        let flags = rustix::fs::XattrFlags::empty();
        // If the folder does not support attributes, the specimen just has fewer of them.
        let _ = rustix::fs::setxattr(at("small"), name, &pattern(9, length), flags);
    }
    Ok(())
}

impl Specimen {
    /// A clean image with these features and 1 KiB blocks.
    pub fn make(features: Features) -> Result<Self> {
        let scratch = scratch();
        let (folder, image) = (scratch.path().join("folder"), scratch.path().join("image"));
        std::fs::create_dir(&folder)?;
        populate(&folder).context("filling the folder")?;
        let folder = folder.to_string_lossy().into_owned();
        Format::new(6 << 20, 1024, features)
            .inodes(512)
            .with(&["-d", &folder])
            .make(&image)?;
        // Rebuilds large directories with an index.
        output(tool("e2fsck").arg("-fyD").arg(&image))?;
        e2fsck(&image).context("the specimen")?;
        let spots = spots(&image)?;
        Ok(Self {
            device: RamDevice::load(&image)?,
            spots,
        })
    }

    /// The same, with transactions in its journal that need replay.
    pub fn with_journal(features: Features) -> Result<Self> {
        let scratch = scratch();
        let image = scratch.path().join("image");
        Self::make(features)?.device.save(&image)?;
        write_journal(&image, 3)?;
        let mut spots = spots(&image)?;
        let journal = blocks_of(&image, "<8>")?;
        spots.extend(journal.iter().take(40).map(|&block| spot("Journal", block)));
        Ok(Self {
            device: RamDevice::load(&image)?,
            spots,
        })
    }

    /// A copy with one to `most` changed fields, and their description. Every kind of structure is
    /// equally likely, and fields that are not zero are likelier than zeroes.
    #[must_use]
    pub fn mutate(&self, random: &mut Random, most: u64) -> (RamDevice, String) {
        let device = self.device.fork();
        let mut kinds: Vec<&str> = self.spots.iter().map(|spot| spot.what.as_str()).collect();
        kinds.sort_unstable();
        kinds.dedup();
        let mut told = Vec::new();
        for _ in 0..=random.below(most) {
            let kind = *random.pick(&kinds);
            let spots: Vec<&MetadataRange> =
                self.spots.iter().filter(|spot| spot.what == kind).collect();
            let width = *random.pick(&[1, 2, 4, 4]);
            let mut place = (*random.pick(&spots), 0);
            for _ in 0..20 {
                let spot = *random.pick(&spots);
                place = (spot, random.below(spot.length / width) * width);
                let mut bytes = [0; 4];
                let bytes = &mut bytes[..width as usize];
                device
                    .read_at(spot.offset + place.1, bytes)
                    .expect("spots lie within");
                if bytes.iter().any(|&byte| byte != 0) {
                    break;
                }
            }
            told.push(self.change(&device, place.0, place.1, width as usize, random));
        }
        (device, told.join(", "))
    }

    /// A copy with one changed field: field number `index` of all 4-byte fields in the ranges whose
    /// name contains `what`. `None` past the last.
    #[must_use]
    pub fn nth(&self, what: &str, index: u64, random: &mut Random) -> Option<(RamDevice, String)> {
        let mut rest = index * 4;
        for spot in self.spots.iter().filter(|spot| spot.what.contains(what)) {
            if rest < spot.length {
                let device = self.device.fork();
                let told = self.change(&device, spot, rest, 4, random);
                return Some((device, told));
            }
            rest -= spot.length;
        }
        None
    }

    fn change(
        &self,
        device: &RamDevice,
        spot: &MetadataRange,
        within: u64,
        width: usize,
        random: &mut Random,
    ) -> String {
        let offset = spot.offset + within;
        let mut bytes = [0; 8];
        device
            .read_at(offset, &mut bytes[..width])
            .expect("spots lie within");
        let before = u64::from_le_bytes(bytes);
        let after = match random.below(8) {
            0 => 0,
            1 => u64::MAX,
            2 => before.wrapping_add(1),
            3 => before.wrapping_sub(1),
            4 => random.below(self.device.size() / 1024),
            5 => random.word(),
            6 => u64::from(u32::from_le_bytes([bytes[3], bytes[2], bytes[1], bytes[0]])),
            _ => before ^ 1 << random.below(width as u64 * 8),
        };
        device
            .write_at(offset, &after.to_le_bytes()[..width])
            .expect("spots lie within");
        format!(
            "{} at {offset} (+{within}): {before:#x} to {after:#x} ({width} bytes)",
            spot.what
        )
    }
}

fn spot(what: &str, block: u64) -> MetadataRange {
    MetadataRange {
        what: what.to_owned(),
        offset: block * 1024,
        length: 1024,
    }
}

/// The locations of metadata in an image with 1 KiB blocks.
fn spots(image: &Path) -> Result<Vec<MetadataRange>> {
    let mut spots = Vec::new();
    for region in regions(image)? {
        if region.what.starts_with("Backup") || region.what.starts_with("Reserved") {
            continue;
        }
        // Of an inode table only the used part: 400 inodes and a few after them.
        let blocks = region
            .blocks
            .take(if region.what == "Inode table" { 20 } else { 64 });
        spots.extend(blocks.map(|block| spot(&region.what, block)));
    }
    for directory in ["/", "/dir", "/dir/deeper", "/many"] {
        let what = format!("Directory {directory}");
        spots.extend(
            blocks_of(image, directory)?
                .into_iter()
                .map(|block| spot(&what, block)),
        );
    }
    for block in extent_nodes_of(image, "/sparse")? {
        spots.push(spot("Extent node", block));
    }
    for block in pointer_blocks_of(image, "/sparse")? {
        spots.push(spot("Pointer block", block));
    }
    if let Some(block) = xattr_block(image)? {
        spots.push(spot("Attribute block", block));
    }
    Ok(spots)
}

fn xattr_block(image: &Path) -> Result<Option<u64>> {
    let told = crate::oracle::debugfs::ask(image, "stat /small")?;
    let number = told
        .split("File ACL: ")
        .nth(1)
        .and_then(|rest| rest.split_whitespace().next());
    Ok(number
        .and_then(|number| number.parse().ok())
        .filter(|&block| block != 0))
}

/// Makes debugfs write transactions into the journal: copies of directory blocks, and a revoke.
/// They have checksums of this version if the image has any: debugfs 1.47.0 would write those of
/// version 1 without them, and a wrong one for the revoke.
pub fn write_journal(image: &Path, version: u8) -> Result<()> {
    let scratch = scratch();
    let data = scratch.path().join("data");
    let mut blocks = blocks_of(image, "/dir")?;
    if blocks.is_empty() {
        // Inline data has no block.
        blocks = blocks_of(image, "/lost+found")?;
    }
    let block = *blocks.first().context("a directory has a block")?;
    let mut bytes = vec![0; 1024];
    let device = RamDevice::load(image)?;
    device.read_at(block * 1024, &mut bytes)?;
    std::fs::write(&data, &bytes)?;
    let mut superblock = [0; superblock::SIZE];
    device.read_at(superblock::OFFSET, &mut superblock)?;
    let features = Superblock::decode(&superblock)?.features.read_only_compat;
    let open = match features.contains(ReadOnlyCompat::METADATA_CSUM) {
        true => format!("jo -c -v {version}"),
        false => "jo".to_owned(),
    };
    let data = data.display();
    let requests = [
        open,
        format!("jw -b {block} {data}"),
        format!("jw -r {block}"),
        format!("jw -b {block} {data}"),
        "jc".to_owned(),
    ];
    command(image, &requests)?;
    run(tool("dumpe2fs").arg("-h").arg(image)).map(|_| ())
}

/// Opens a corrupt image and reads everything within limits; every error is accepted.
pub fn walk_corrupt(device: Arc<dyn Device>) {
    let options = MountOptions {
        read_only: true,
        ..MountOptions::default()
    };
    if let Ok(volume) = Volume::open(device, options) {
        look_around(&volume);
        let _ = volume.close();
    }
}

fn look_around(volume: &Volume) {
    let mut todo = vec![InodeNumber::ROOT];
    let mut seen = 0;
    while let Some(directory) = todo.pop() {
        let mut names = Vec::new();
        let _ = volume.read_directory(directory, 0, &mut |entry| {
            names.push(entry.name.to_vec());
            names.len() < MAX_ENTRIES
        });
        for name in names {
            seen += 1;
            if seen > MAX_INODES {
                return;
            }
            let Ok(entry) = volume.lookup(directory, &name) else {
                continue;
            };
            inspect(volume, entry.inode);
            if name != b"." && name != b".." {
                todo.push(entry.inode);
            }
            volume.forget(entry.inode, 1);
        }
    }
}

fn inspect(volume: &Volume, inode: InodeNumber) {
    let _ = volume.attributes(inode);
    let _ = volume.read_link(inode);
    for name in volume.xattr_names(inode).unwrap_or_default() {
        let _ = volume.xattr(inode, &name);
    }
    let _ = volume.extents(inode, 0, MAX_ENTRIES);
    let mut bytes = vec![0; 20_000];
    let mut at = 0;
    for _ in 0..MAX_STEPS {
        let Ok(data) = volume.seek_data(inode, at) else {
            break;
        };
        let _ = volume.read(inode, data, &mut bytes);
        let Ok(hole) = volume.seek_hole(inode, data) else {
            break;
        };
        at = hole.max(data + 1);
    }
}

/// Opens a corrupt image for writing and tries all kinds of operations; every error is accepted.
pub fn write_corrupt(device: Arc<dyn Device>) {
    let options = MountOptions {
        // Nobody else has it, so that there is nobody to wait for.
        is_device_shared: false,
        ..MountOptions::default()
    };
    let Ok(volume) = Volume::open(device, options) else {
        return;
    };
    look_around(&volume);
    let root = InodeNumber::ROOT;
    let new = CreateAttributes {
        permissions: 0o644,
        uid: 0,
        gid: 0,
    };
    if let Ok(entry) = volume.create(root, b"new", &new) {
        let _ = volume.write(entry.inode, 0, &pattern(5, 9000));
        let _ = volume.allocate(entry.inode, AllocateMode::Extend, 20_000, 50_000);
        let _ = volume.set_xattr(entry.inode, b"user.new", b"value", SetXattrMode::Any);
        let _ = volume.fsync(entry.inode);
        let _ = volume.allocate(entry.inode, AllocateMode::PunchHole, 1000, 5000);
        volume.forget(entry.inode, 1);
    }
    for name in [b"small".as_slice(), b"large", b"sparse"] {
        let Ok(entry) = volume.lookup(root, name) else {
            continue;
        };
        let _ = volume.write(entry.inode, 3000, &pattern(6, 3000));
        let size = pext4_fs::SetAttributes {
            size: Some(1500),
            ..Default::default()
        };
        let _ = volume.set_attributes(entry.inode, &size);
        let _ = volume.set_xattr(entry.inode, b"user.long", &[1; 300], SetXattrMode::Any);
        let _ = volume.unlink(root, name);
        volume.forget(entry.inode, 1);
    }
    if let Ok(many) = volume.lookup(root, b"many") {
        for number in 0..30_u32 {
            let name = format!("another-name-of-some-length-{number}");
            if let Ok(entry) = volume.create(many.inode, name.as_bytes(), &new) {
                volume.forget(entry.inode, 1);
            }
            let name = format!("a-name-of-some-length-{number}");
            let _ = volume.unlink(many.inode, name.as_bytes());
        }
        volume.forget(many.inode, 1);
    }
    let _ = volume.rename(root, b"dir", root, b"moved", RenameMode::Replace);
    let _ = volume
        .make_directory(root, b"made", &new)
        .map(|entry| volume.forget(entry.inode, 1));
    let _ = volume.remove_directory(root, b"made");
    let _ = volume.sync();
    let _ = volume.close();
}
