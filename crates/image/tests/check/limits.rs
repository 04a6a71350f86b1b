//! Images whose structures lead to the same blocks again and again: what is read and kept follows
//! what the image holds, not how large it says that it is.

use std::sync::Arc;

use pext4_block::{Device, RamDevice};
use pext4_image::check::{Finding, Kind};
use pext4_image::mkfs::{self, mkfs};
use pext4_ondisk::BlockNumber;
use pext4_ondisk::geometry::Geometry;
use pext4_ondisk::group_descriptor::{GroupDescriptor, GroupFlags};
use pext4_ondisk::superblock::{self, Superblock};

use super::image::check_device;

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
    assert_eq!(limits[0].place.group, Some(READ + 1));
    let left = GROUPS - 1 - READ;
    let told = format!("inode tables of {left} groups");
    assert!(limits[0].text.contains(&told), "{limits:?}");
    assert!(!report.is_complete);
    assert!(report.inodes <= sound.inodes * u64::from(READ + 1));
}
