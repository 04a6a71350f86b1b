//! Images whose structures lead to the same blocks again and again: what is read and kept follows
//! what the image holds, not how large it says that it is.

use std::sync::Arc;

use pext4_block::{Device, RamDevice};
use pext4_image::check::{Finding, Kind, Pass};
use pext4_image::mkfs::{self, mkfs};
use pext4_ondisk::geometry::Geometry;
use pext4_ondisk::group_descriptor::{GroupDescriptor, GroupFlags};
use pext4_ondisk::indirect::set_entry;
use pext4_ondisk::inode::{BLOCK_AREA, InodeFlags};
use pext4_ondisk::superblock::{self, Superblock};
use pext4_ondisk::{BlockNumber, GroupNumber, InodeNumber};

use super::bases::{Base, base};
use super::bounds::{Counting, check_on, read_around_a_cancel, sharing};
use super::image::{Image, check_device, have_tools};

/// Changes the descriptors of all groups.
fn edit_descriptors(device: &RamDevice, mut edit: impl FnMut(&mut GroupDescriptor)) -> Geometry {
    let mut bytes = [0; superblock::SIZE];
    device
        .read_at(superblock::OFFSET, &mut bytes)
        .expect("it is there");
    let superblock = Superblock::decode(&bytes).expect("a superblock");
    let geometry = Geometry::of(&superblock).expect("a possible one");
    let mut bytes = vec![0; usize::from(geometry.descriptor_size)];
    for group in geometry.groups() {
        let (block, offset) = geometry.descriptor_location(group);
        let at = block.get() * u64::from(geometry.block_size) + u64::from(offset);
        device.read_at(at, &mut bytes).expect("it is there");
        let mut descriptor = GroupDescriptor::decode(&bytes, &geometry, group).expect("sound");
        edit(&mut descriptor);
        descriptor.encode(&mut bytes, &geometry, group);
        device.write_at(at, &bytes).expect("it fits");
    }
    geometry
}

/// Each would bring its inodes again, with all that is kept of them.
#[test]
fn a_table_that_all_groups_share_is_not_read_for_each_of_them() {
    const GROUPS: u32 = 64;
    const PER_GROUP: u32 = 32_768;
    /// Those that are read beside the first: of a million inodes.
    const READ: u32 = (1 << 20) / PER_GROUP;
    let device = Arc::new(RamDevice::new(u64::from(GROUPS) * (128 << 20)));
    let options = mkfs::Options {
        block_size: Some(4096),
        inodes: Some(u64::from(GROUPS * PER_GROUP)),
        features: vec!["^has_journal".to_owned(), "^resize_inode".to_owned()],
        ..mkfs::Options::default()
    };
    mkfs(&*device, &options).expect("it fits");
    let shared = Arc::clone(&device) as Arc<dyn Device>;
    let sound = check_device(Arc::clone(&shared), 2).expect("it can be checked");
    assert!(sound.is_clean(), "{:?}", sound.findings);
    let mut first: Option<BlockNumber> = None;
    let geometry = edit_descriptors(&device, |descriptor| {
        descriptor.inode_table = *first.get_or_insert(descriptor.inode_table);
        descriptor.flags.remove(GroupFlags::INODE_UNINIT);
        descriptor.unused_inodes = 0;
    });
    assert_eq!(
        (geometry.group_count, geometry.inodes_per_group),
        (GROUPS, PER_GROUP)
    );
    let report = check_device(shared, 2).expect("it can be checked");
    let of_kind = |kind| report.findings.iter().filter(move |one| one.kind == kind);
    let overlaps = of_kind(Kind::MetadataOverlap).count();
    assert_eq!(overlaps, GROUPS as usize - 1, "all are reported");
    let limits: Vec<&Finding> = of_kind(Kind::LimitReached).collect();
    assert_eq!(limits.len(), 1, "{limits:?}");
    assert_eq!(limits[0].place.group, Some(GroupNumber(READ + 1)));
    let left = GROUPS - 1 - READ;
    let told = format!("inode tables of {left} groups");
    assert!(limits[0].text.contains(&told), "{limits:?}");
    assert!(!report.is_complete);
    assert!(report.inodes <= sound.inodes * u64::from(READ + 1));
}

/// A quota file whose tree leads to its leaf from everywhere: each block of a tree is entered once,
/// but its leaves may be named any number of times.
fn with_references_without_end() -> Option<Image> {
    /// More nodes than can lead to the entries of a file system of this size.
    const NODES: u32 = 1024;
    const FIRST_NODE: u32 = 12 + 256;
    let mut image = base(Base::Quota)?;
    let header = image.blocks(3)[0];
    // Blocks at the end, which nothing uses: the leaf, the node that stands for all lowest ones,
    // and so on.
    let free: Vec<u32> = (16_300..16_320).collect();
    let (leaf, lowest, double) = (free[0], free[1], free[2]);
    let (root, below, nodes, maps) = (free[3], free[4], &free[5..9], &free[9..13]);
    let mut fill = |block: u32, entries: &mut dyn Iterator<Item = u32>| {
        let bytes = image.block(u64::from(block));
        bytes.fill(0);
        entries
            .zip(0..)
            .for_each(|(entry, slot)| set_entry(bytes, slot, entry));
    };
    fill(leaf, &mut std::iter::empty());
    fill(lowest, &mut std::iter::repeat_n(7, 256));
    fill(root, &mut std::iter::once(2));
    fill(below, &mut (3..7));
    fill(double, &mut maps.iter().copied());
    for (part, (&node, &map)) in (0..).zip(nodes.iter().zip(maps)) {
        let first = FIRST_NODE + 256 * part;
        fill(node, &mut (first..first + 256));
        fill(map, &mut std::iter::repeat_n(lowest, 256));
    }
    let count = FIRST_NODE + NODES;
    image.block(header)[20..24].copy_from_slice(&count.to_le_bytes());
    image.block(header)[24..32].fill(0);
    image.edit_inode(3, |inode| {
        inode.flags.remove(InodeFlags::EXTENTS);
        inode.block = [0; BLOCK_AREA];
        let header = u32::try_from(header).expect("a small image");
        let places = [header, root, below].into_iter();
        let places = places.chain(nodes.iter().copied()).chain([leaf]);
        places
            .zip(0..)
            .for_each(|(place, slot)| set_entry(&mut inode.block, slot, place));
        set_entry(&mut inode.block, 13, double);
        inode.size = u64::from(count) * 1024;
    });
    Some(image)
}

#[test]
fn a_quota_tree_that_is_not_read_to_its_end_is_not_said_to_be_checked() {
    if !have_tools() {
        return;
    }
    let Some(image) = with_references_without_end() else {
        return;
    };
    let report = image.check().expect("it can be checked");
    let is_it =
        |one: &&Finding| one.kind == Kind::LimitReached && one.place.inode == Some(InodeNumber(3));
    assert_eq!(report.findings.iter().filter(is_it).count(), 1);
    assert!(!report.is_complete);
}

#[test]
fn a_cancel_ends_the_walk_of_a_quota_tree() {
    if !have_tools() {
        return;
    }
    let Some(image) = with_references_without_end() else {
        return;
    };
    // The quota files come behind the groups.
    let (before, taken) = read_around_a_cancel(&image, |step| {
        step.pass == Pass::Groups && step.done == step.total
    });
    assert!(before > 0);
    // The headers and maps of two files.
    assert!(taken < 32 << 10, "{taken} bytes");
}

/// An image may be long and hold little: what directories may take is what it holds.
#[test]
fn directories_share_no_more_blocks_than_have_data() {
    if !have_tools() {
        return;
    }
    let Some(image) = sharing(256 << 20, |inode| inode.mode = 0o040_755) else {
        return;
    };
    let report = check_on(Counting::with_holes(&image));
    let is_it = |one: &&Finding| {
        one.kind == Kind::BlockShared && one.text.contains("directories have more blocks")
    };
    assert_eq!(report.findings.iter().filter(is_it).count(), 1);
    assert!(!report.is_complete, "not all names were read");
}
