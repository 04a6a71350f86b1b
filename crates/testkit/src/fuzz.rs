//! The bodies of the fuzz targets. A plain test also runs them on bytes from seeds, so that the
//! targets stay correct even if nobody fuzzes.
//!
//! No target may panic, hang or take excessive memory. What a decoder accepts must survive a round
//! trip: encoding the decoded value and decoding it again changes nothing.

use std::sync::{Arc, OnceLock};

use pext4_block::{Device, RamDevice};
use pext4_image::check;
use pext4_jbd2::LogArea;
use pext4_jbd2::recovery::{self, Replay, ReplayedDevice};
use pext4_ondisk::casefold::Naming;
use pext4_ondisk::directory::{self, Entry, FileType, Format};
use pext4_ondisk::geometry::Geometry;
use pext4_ondisk::group_descriptor::GroupDescriptor;
use pext4_ondisk::htree::{self, RootInfo};
use pext4_ondisk::inode::Inode;
use pext4_ondisk::journal::descriptor::tags;
use pext4_ondisk::journal::format::RecordFormat;
use pext4_ondisk::journal::superblock::JournalSuperblock;
use pext4_ondisk::journal::{commit, fast_commit, header, revoke};
use pext4_ondisk::mmp::Mmp;
use pext4_ondisk::orphan_file::OrphanBlock;
use pext4_ondisk::superblock::Superblock;
use pext4_ondisk::{BlockNumber, GroupNumber, InodeNumber, LogicalBlock, Tid, extent, xattr};

use crate::mutate::{Specimen, walk_corrupt, write_corrupt};
use crate::oracle::format::Features;

/// Bytes in a block of the targets.
const BLOCK: usize = 1024;
/// Blocks in the log of the recovery target.
const LOG_BLOCKS: u32 = 64;
/// Bytes of the input that describe one change of the image target.
const CHANGE: usize = 8;

/// Passes the bytes to every decoder.
pub fn ondisk(data: &[u8]) {
    let mut block = data.to_vec();
    block.resize(BLOCK.max(data.len().min(1 << 16)), 0);
    groups(&block);
    files(&block);
    directories(&block);
    attributes(&block);
    journals(&block);
}

fn groups(block: &[u8]) {
    let Some(bytes) = block.first_chunk::<BLOCK>() else {
        return;
    };
    let Ok(superblock) = Superblock::decode_unverified(bytes) else {
        return;
    };
    let again = Superblock::decode_unverified(&superblock.encode());
    assert!(again.is_ok(), "what was decoded can be decoded again");
    let Ok(geometry) = Geometry::of(&superblock) else {
        return;
    };
    let length = usize::from(geometry.descriptor_size).min(block.len());
    let group = GroupNumber(0);
    if let Ok(descriptor) = GroupDescriptor::decode_unverified(&block[..length], &geometry, group) {
        let _ = descriptor.check(&geometry, group);
    }
}

fn files(block: &[u8]) {
    for length in [128, 256, BLOCK] {
        if let Ok(inode) = Inode::decode(&block[..length], InodeNumber(12), None) {
            let mut slot = vec![0; length];
            inode.encode(&mut slot, InodeNumber(12), None);
            let again = Inode::decode(&slot, InodeNumber(12), None);
            assert_eq!(
                again.ok(),
                Some(inode),
                "an inode survives its own encoding"
            );
        }
    }
    for length in [60, BLOCK] {
        let Ok(node) = extent::Node::parse(&block[..length]) else {
            continue;
        };
        let _ = node.count_up_to(LogicalBlock(77));
        for entry in node.entries() {
            let _ = extent::Extent::decode(entry);
        }
    }
    let home = BlockNumber(9);
    let _ = OrphanBlock::decode(block, InodeNumber(12), home, None);
    let _ = Mmp::decode(block, None);
}

fn directories(block: &[u8]) {
    for (has_tail, naming) in [
        (false, Naming::Exact),
        (true, Naming::Exact),
        (true, Naming::Folded),
    ] {
        let format = Format {
            has_tail,
            has_file_types: true,
            naming,
        };
        let _ = directory::entries(block, format)
            .take_while(Result::is_ok)
            .count();
        let _ = directory::find(block, format, b"name");
        let _ = directory::is_empty(block, format);
        let mut copy = block.to_vec();
        let entry = Entry {
            inode: InodeNumber(12),
            file_type: Some(FileType::Regular),
            name: b"new-name",
        };
        if let Ok(directory::Inserted::At(_)) = directory::insert(&mut copy, format, &entry) {
            let found = directory::find(&copy, format, b"new-name");
            assert!(found.is_ok(), "an entry that went in can be read");
            let _ = directory::remove(&mut copy, format, b"new-name");
        }
        for index in [
            htree::Index::root(block, has_tail),
            htree::Index::node(block, has_tail),
        ] {
            let Ok(index) = index else { continue };
            let _ = index.check(1000);
            let _ = index.search(0x8000_0000);
            let _ = index.entries().count();
        }
    }
    let _ = directory::dots(block);
    let _ = RootInfo::decode(block).map(|info| info.check(1));
}

fn attributes(block: &[u8]) {
    if let Ok(decoded) = xattr::Block::decode(block) {
        let mut again = vec![0; block.len()];
        if decoded.encode(&mut again).is_ok() {
            let twice = xattr::Block::decode(&again).expect("own bytes are sound");
            assert_eq!(twice.attributes.len(), decoded.attributes.len());
        }
        replace_first_value(block, decoded.attributes);
    }
    let _ = xattr::decode_inode_area(&block[..96]);
}

/// Replaces a value in the encoded list, where that can be done, and compares what is decoded then.
fn replace_first_value(block: &[u8], mut attributes: Vec<xattr::Attribute>) {
    let Some(first) = attributes.first_mut() else {
        return;
    };
    let xattr::Value::Inline(old) = &first.value else {
        return;
    };
    let new = xattr::Attribute::new(first.index, &first.name, &vec![0x5A; old.len()]);
    if let Some(xattr::Replaced::By(content)) = xattr::replace_value(block, &new) {
        *first = new;
        let mut changed = vec![0; block.len()];
        content.put_into(&mut changed);
        let changed = xattr::Block::decode(&changed).expect("own bytes are sound");
        assert_eq!((changed.references, changed.attributes), (1, attributes));
    }
}

fn journals(block: &[u8]) {
    let _ = header::Header::decode(block);
    let _ = fast_commit::Scan::new(Tid(5)).block(block);
    let Some(bytes) = block.first_chunk::<BLOCK>() else {
        return;
    };
    let Ok(superblock) = JournalSuperblock::decode(bytes) else {
        return;
    };
    let format = RecordFormat::of(&superblock);
    let _ = tags(&format, block).len();
    let _ = revoke::records(&format, block).map(Iterator::count);
    let _ = commit::verify(&format, block);
    let _ = format.verify_tail(block);
}

/// Treats the bytes as a journal and replays it.
pub fn recovery(data: &[u8]) {
    let blocks = 4 * LOG_BLOCKS;
    let device = RamDevice::new(u64::from(blocks) * BLOCK as u64);
    let start = u64::from(2 * LOG_BLOCKS);
    let most = LOG_BLOCKS as usize * BLOCK;
    let bytes = &data[..data.len().min(most)];
    device
        .write_at(start * BLOCK as u64, bytes)
        .expect("it fits");
    let runs = [(BlockNumber(start), LOG_BLOCKS)];
    let Ok(area) = LogArea::new(BLOCK as u32, &runs) else {
        return;
    };
    let Ok(mut superblock) = recovery::read_superblock(&device, &area) else {
        return;
    };
    let seen = Replay::plan(&device, &area, &superblock, blocks.into());
    let before: Arc<dyn Device> = Arc::new(device.fork());
    let done = recovery::recover(&device, &area, &mut superblock, blocks.into());
    let is_complete = |replay: &Replay| replay.refuse_fast_commits().is_ok();
    assert_eq!(
        done.is_ok(),
        seen.as_ref().is_ok_and(is_complete) && superblock.read_only_compat.is_empty()
    );
    let Ok(replay) = seen else { return };
    let replayed = ReplayedDevice::new(before, Arc::new(replay));
    let content = |device: &dyn Device, block: u64| {
        let mut bytes = vec![0; BLOCK];
        let read = device.read_at(block * BLOCK as u64, &mut bytes);
        read.expect("within");
        bytes
    };
    let journal = start..start + u64::from(LOG_BLOCKS);
    for block in (0..u64::from(blocks)).filter(|block| !journal.contains(block)) {
        assert!(
            done.is_err() || content(&device, block) == content(&replayed, block),
            "what a replay brings home is what its plan shows"
        );
    }
}

/// Changes a valid image as the bytes say, and uses it.
pub fn image(data: &[u8]) {
    if let Some(device) = changed(data) {
        let (one, two) = (Arc::new(device.fork()), Arc::new(device));
        walk_corrupt(one);
        write_corrupt(two);
    }
}

/// Changes a valid image as the bytes say, and checks it.
pub fn check(data: &[u8]) {
    if let Some(device) = changed(data) {
        let options = check::Options {
            threads: 1,
            ..check::Options::default()
        };
        let _ = check::check(Arc::new(device), &options);
    }
}

/// A valid image, changed as the bytes say.
fn changed(data: &[u8]) -> Option<RamDevice> {
    static SPECIMENS: OnceLock<Vec<Specimen>> = OnceLock::new();
    let specimens = SPECIMENS.get_or_init(|| {
        let all = [Features::NoChecksums, Features::Upstream];
        all.map(|features| Specimen::with_journal(features).expect("mke2fs makes it"))
            .into()
    });
    let (&which, changes) = data.split_first()?;
    let specimen = &specimens[usize::from(which) % specimens.len()];
    let device = specimen.device.fork();
    for change in changes.chunks_exact(CHANGE).take(16) {
        let spot = &specimen.spots[usize::from(change[0]) % specimen.spots.len()];
        let within = u64::from(u16::from_le_bytes([change[1], change[2]])) % (spot.length - 4);
        let width = 1 + usize::from(change[3]) % 4;
        device
            .write_at(spot.offset + within, &change[4..4 + width])
            .expect("within");
    }
    Some(device)
}

#[cfg(test)]
mod tests {
    use pext4_ondisk::journal::feature::{JournalIncompat, JournalReadOnlyCompat};

    use super::*;

    #[test]
    fn a_journal_may_be_unreadable_and_unwritable_at_once() {
        let unknown = 1 << 31;
        for (incompat, read_only_compat) in [(0, 0), (0, unknown), (unknown, 0), (unknown, unknown)]
        {
            let mut superblock = JournalSuperblock::new(BLOCK as u32, LOG_BLOCKS, [7; 16]);
            superblock.incompat = JournalIncompat::from_bits_retain(incompat);
            superblock.read_only_compat = JournalReadOnlyCompat::from_bits_retain(read_only_compat);
            recovery(&superblock.encode());
        }
    }
}
