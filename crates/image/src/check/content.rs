//! Pass 1: whether an inode's content matches its kind and size.

use std::io;

use pext4_ondisk::directory::FileType;
use pext4_ondisk::extent;
use pext4_ondisk::geometry::Geometry;
use pext4_ondisk::indirect;
use pext4_ondisk::inode::{BLOCK_AREA, Inode, InodeFlags};
use pext4_ondisk::{InodeNumber, xattr};

use super::attributes::Attributes;
use super::catalogue::Kind;
use super::inode::{InodeSubject, Mapped, check_large, has_map};
use super::mapping::Collector;

/// The maximum number of logical blocks of a file: their numbers have 32 bits.
const MAX_BLOCKS: u64 = 1 << 32;
/// The maximum size of an attribute value whose bytes are read to check its hash.
const MAX_VALUE_SIZE: u64 = 16 << 20;

/// Checks size and content.
pub(super) fn check(subject: &InodeSubject<'_>, mapped: &Mapped, attributes: &Attributes) {
    if subject.number == InodeNumber::RESIZE {
        return check_large(subject);
    }
    // The size of an orphan may have changed already while its blocks are not freed yet.
    if subject.examination.orphans.contains(subject.number) {
        return;
    }
    if subject.inode.has_inline_data() {
        return check_inline(subject, mapped, attributes);
    }
    match subject.kind {
        Some(FileType::Regular) => check_regular(subject, mapped),
        Some(FileType::Directory) => check_directory(subject, mapped),
        Some(FileType::Symlink) => check_symlink(subject, mapped),
        Some(_) => check_special(subject),
        None => {}
    }
}

fn block_size(subject: &InodeSubject<'_>) -> u64 {
    u64::from(subject.examination.volume.geometry.block_size)
}

/// The maximum size in bytes of a file that an inode's map can address.
pub(super) fn max_size(inode: &Inode, geometry: &Geometry) -> u64 {
    let pointers = u64::from(geometry.block_size / 4);
    let by_map = indirect::DIRECT as u64 + pointers + pointers.pow(2) + pointers.pow(3);
    let blocks = match inode.has_extents() {
        true => MAX_BLOCKS,
        false => by_map.min(MAX_BLOCKS),
    };
    let block_size = u64::from(geometry.block_size);
    // The size of a file that uses all blocks would be one byte too large.
    (blocks * block_size).min(MAX_BLOCKS * block_size - 1)
}

fn check_regular(subject: &InodeSubject<'_>, mapped: &Mapped) {
    check_large(subject);
    let max = max_size(subject.inode, &subject.examination.volume.geometry);
    if subject.inode.size > max {
        let size = subject.inode.size;
        return subject.report(Kind::InodeSize, || {
            format!("{size} bytes, but its map can address only {max}")
        });
    }
    if subject.inode.flags.contains(InodeFlags::VERITY) {
        return;
    }
    let last = mapped.written_end.saturating_sub(1);
    // As for e2fsck, a map without nodes may have a written block that begins exactly at the end,
    // as may any map of a file of one block.
    let is_strict = has_extent_nodes(subject.inode) && subject.inode.size > block_size(subject);
    let reach = if is_strict {
        subject.inode.size.next_multiple_of(block_size(subject))
    } else {
        subject.inode.size + 1
    };
    if reach <= last * block_size(subject) {
        subject.report(Kind::InodeSize, || {
            let size = subject.inode.size;
            format!("{size} bytes, but logical block {last} is written")
        });
    }
    if subject.inode.flags.contains(InodeFlags::EA_INODE) {
        check_value(subject, mapped);
    }
}

/// Whether extents are in nodes outside the inode.
fn has_extent_nodes(inode: &Inode) -> bool {
    let root = extent::Node::parse(&inode.block);
    inode.has_extents() && root.is_ok_and(|root| root.depth() > 0)
}

/// Checks the hash of an attribute's value that is stored in this inode. A value with shared blocks
/// is not read, since many inodes may share them; they are reported elsewhere.
fn check_value(subject: &InodeSubject<'_>, mapped: &Mapped) {
    let size = subject.inode.size;
    if size > MAX_VALUE_SIZE {
        return subject.report(Kind::ValueInode, || format!("a value of {size} bytes"));
    }
    if mapped.is_partial() || mapped.is_shared() || !has_map(subject) {
        return;
    }
    match value_hash(subject, size) {
        Err(error) => subject.report(Kind::Unreadable, || format!("attribute value: {error}")),
        Ok(None) => subject.report(Kind::ValueInode, || "a value with a hole".to_owned()),
        Ok(Some(hash)) => {
            let stored = subject.inode.value_hash();
            if hash != stored {
                subject.report(Kind::ValueInode, || {
                    format!("hash is {stored:#010X}, should be {hash:#010X}")
                });
            }
        }
    }
}

/// The hash of the value's bytes; `None` if the value has a hole.
fn value_hash(subject: &InodeSubject<'_>, size: u64) -> io::Result<Option<u32>> {
    let volume = &subject.examination.volume;
    let runs = Collector::collect(volume, subject.number, subject.inode);
    let mut hash = volume.geometry.value_seed;
    let mut left = usize::try_from(size).unwrap_or(0);
    let mut logical = 0;
    while left > 0 {
        let Some(block) = runs.place(logical) else {
            return Ok(None);
        };
        let bytes = volume.block(block)?;
        let taken = left.min(bytes.len());
        hash = xattr::value_hash(hash, &bytes[..taken]);
        left -= taken;
        logical += 1;
    }
    Ok(Some(hash))
}

fn check_directory(subject: &InodeSubject<'_>, mapped: &Mapped) {
    if mapped.is_partial() {
        return;
    }
    let (size, block_size) = (subject.inode.size, block_size(subject));
    let blocks = size / block_size;
    let superblock = &subject.examination.volume.superblock;
    let ahead = u64::from(superblock.preallocated_directory_blocks);
    let fits = blocks <= mapped.mapped_end && mapped.mapped_end <= blocks + ahead;
    if size == 0 || !size.is_multiple_of(block_size) || !fits {
        subject.report(Kind::InodeSize, || {
            format!(
                "a directory of {size} bytes with {} blocks",
                mapped.mapped_end
            )
        });
    }
}

fn check_symlink(subject: &InodeSubject<'_>, mapped: &Mapped) {
    let inode = subject.inode;
    if mapped.is_partial() {
        return;
    }
    if inode.flags.contains(InodeFlags::ENCRYPT) {
        return check_encrypted_symlink(subject, mapped);
    }
    if inode.is_fast_symlink() {
        if let Err(corrupt) = inode.fast_symlink_target() {
            subject.report(Kind::Symlink, || corrupt.problem().to_owned());
        }
        return;
    }
    let (size, block_size) = (inode.size, block_size(subject));
    let block = match mapped.first {
        // A shorter target is stored in the inode, and Linux would look for it there.
        Some(block)
            if mapped.mapped_end == 1 && (BLOCK_AREA as u64..block_size).contains(&size) =>
        {
            block
        }
        _ => {
            let blocks = mapped.mapped_end;
            return subject.report(Kind::Symlink, || {
                format!("a target of {size} bytes in {blocks} blocks")
            });
        }
    };
    let volume = &subject.examination.volume;
    match volume.block(block) {
        Err(error) => subject.report(Kind::Unreadable, || format!("symbolic link: {error}")),
        Ok(bytes) => {
            let length = bytes.iter().position(|&byte| byte == 0);
            let length = length.unwrap_or(bytes.len()) as u64;
            if length != size {
                subject.report(Kind::Symlink, || {
                    format!("a target of {length} bytes, by its size {size}")
                });
            }
        }
    }
}

/// Checks an encrypted target: 16 bits with its length, then ciphertext, which may be any bytes.
fn check_encrypted_symlink(subject: &InodeSubject<'_>, mapped: &Mapped) {
    let inode = subject.inode;
    let (size, block_size) = (inode.size, block_size(subject));
    if inode.is_fast_symlink() {
        return check_ciphertext(subject, &inode.block);
    }
    let is_long = (BLOCK_AREA as u64..block_size).contains(&size);
    let (Some(block), 1, true) = (mapped.first, mapped.mapped_end, is_long) else {
        let blocks = mapped.mapped_end;
        return subject.report(Kind::Symlink, || {
            format!("an encrypted target of {size} bytes in {blocks} blocks")
        });
    };
    match subject.examination.volume.block(block) {
        Err(error) => subject.report(Kind::Unreadable, || format!("symbolic link: {error}")),
        Ok(bytes) => check_ciphertext(subject, &bytes),
    }
}

fn check_ciphertext(subject: &InodeSubject<'_>, bytes: &[u8]) {
    const LENGTH_SIZE: u64 = 2;
    let length = bytes
        .first_chunk()
        .map_or(0, |word| u16::from_le_bytes(*word));
    let (stored, size) = (u64::from(length) + LENGTH_SIZE, subject.inode.size);
    if stored != size {
        subject.report(Kind::Symlink, || {
            format!("an encrypted target of {stored} bytes, by its size {size}")
        });
    }
}

fn check_special(subject: &InodeSubject<'_>) {
    if subject.inode.size != 0 {
        subject.report(Kind::SpecialFile, || {
            format!("a size of {} bytes", subject.inode.size)
        });
    }
}

/// Checks inline content. A regular file may be longer than its data; the rest reads as zeroes.
fn check_inline(subject: &InodeSubject<'_>, mapped: &Mapped, attributes: &Attributes) {
    let size = subject.inode.size;
    let area = BLOCK_AREA as u64;
    let more = match attributes.inline {
        Some(more) => more as u64,
        None if attributes.is_partial => return,
        None => {
            return subject.report(Kind::InlineData, || {
                "there is no system.data for it".to_owned()
            });
        }
    };
    match subject.kind {
        Some(FileType::Regular) => check_regular(subject, mapped),
        _ if size == area + more => {}
        _ => subject.report(Kind::InlineData, || {
            format!("{size} bytes, there is room for {}", area + more)
        }),
    }
}
