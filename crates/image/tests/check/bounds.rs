//! Images that require more work than their size justifies: reads and memory are bounded by the
//! size of the image, and a cancellation takes effect soon.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use pext4_block::{Device, RamDevice};
use pext4_image::check::{self, Kind, Options, Pass, Step};
use pext4_ondisk::checksum::InodeSeed;
use pext4_ondisk::feature::ReadOnlyCompat;
use pext4_ondisk::group_descriptor::GroupFlags;
use pext4_ondisk::indirect::set_entry;
use pext4_ondisk::inode::{BLOCK_AREA, InodeFlags};
use pext4_ondisk::{BlockNumber, InodeNumber, orphan_file};
use pext4_sync::atomic::{AtomicU64, Ordering};

use super::bases::{Base, base};
use super::image::{Image, have_tools, make, make_from};

/// Size of the images.
pub const SIZE: u64 = 16 << 20;
/// Blocks of 1 KiB that many files share.
const SHARED: u64 = 4000;

/// A device that counts the bytes that are read, and tells where it has holes if it is to.
pub struct Counting {
    device: Arc<RamDevice>,
    tells_holes: bool,
    read: AtomicU64,
}

impl Counting {
    pub fn of(image: &Image) -> Arc<Self> {
        Arc::new(Self {
            device: image.device(),
            tells_holes: false,
            read: AtomicU64::new(0),
        })
    }

    /// With a hole wherever the image has 64 KiB of zeroes.
    pub fn with_holes(image: &Image) -> Arc<Self> {
        const PIECE: usize = 64 << 10;
        let device = RamDevice::new(image.bytes.len() as u64);
        for (offset, piece) in (0..).step_by(PIECE).zip(image.bytes.chunks(PIECE)) {
            if piece.iter().any(|&byte| byte != 0) {
                device.write_at(offset, piece).expect("it fits");
            }
        }
        Arc::new(Self {
            device: Arc::new(device),
            tells_holes: true,
            read: AtomicU64::new(0),
        })
    }

    pub fn bytes(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }
}

impl Device for Counting {
    fn size(&self) -> u64 {
        self.device.size()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.read.fetch_add(into.len() as u64, Ordering::Relaxed);
        self.device.read_at(offset, into)
    }

    fn write_at(&self, _: u64, _: &[u8]) -> io::Result<()> {
        panic!("a checker does not write")
    }

    fn flush(&self) -> io::Result<()> {
        panic!("a checker does not write")
    }

    fn next_data(&self, at: u64, end: u64) -> io::Result<Option<Range<u64>>> {
        match self.tells_holes {
            true => self.device.next_data(at, end),
            false => Ok(Some(at..end)),
        }
    }
}

/// An image of this size with 200 files that have the block map of `/bulk`, each modified by this
/// change.
pub fn sharing(size: u64, edit: fn(&mut pext4_ondisk::inode::Inode)) -> Option<Image> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    super::image::populate(folder.path());
    let content = vec![5; usize::try_from(SHARED * 1024).expect("small")];
    std::fs::write(folder.path().join("bulk"), content).expect("a file");
    let options = ["-b", "1024", "-N", "1024"];
    let mut image = make_from(size, &options, Some(folder.path()))?;
    let (bulk, many) = (image.find("/bulk"), image.find("/many"));
    let bulk = image.inode(bulk);
    for (name, number) in image.entries(many) {
        if name.starts_with(b"a-rather-long-name") {
            image.edit_inode(number, |inode| {
                inode.size = bulk.size;
                inode.flags = bulk.flags;
                inode.block = bulk.block;
                edit(inode);
            });
        }
    }
    Some(image)
}

pub fn check_on(device: Arc<dyn Device>) -> check::Report {
    let options = Options {
        threads: 2,
        ..Options::default()
    };
    check::check(device, &options).expect("it can be checked")
}

#[test]
fn values_that_lie_in_one_place_are_not_read_for_each_inode() {
    if !have_tools() {
        return;
    }
    let Some(image) = sharing(SIZE, |inode| inode.flags |= InodeFlags::EA_INODE) else {
        return;
    };
    let device = Counting::of(&image);
    let report = check_on(Arc::clone(&device) as Arc<dyn Device>);
    assert!(report.counts.iter().any(|one| one.0 == Kind::BlockShared));
    assert!(device.bytes() < 4 * SIZE, "{} bytes", device.bytes());
}

#[test]
fn a_value_with_a_hole_is_none() {
    if !have_tools() {
        return;
    }
    let Some(mut image) = make(SIZE, &["-b", "1024", "-O", "ea_inode"]) else {
        return;
    };
    let hollow = image.find("/hollow");
    image.edit_inode(hollow, |inode| inode.flags |= InodeFlags::EA_INODE);
    let report = image.check().expect("it can be checked");
    let of_it = |one: &&check::Finding| one.kind == Kind::ValueInode;
    let texts: Vec<_> = report.findings.iter().filter(of_it).collect();
    assert_eq!(texts.len(), 1, "{:?}", report.findings);
    assert!(texts[0].text.contains("a hole"), "{texts:?}");
}

/// Descriptors may claim any number of inodes that are holes of the image.
#[test]
fn tables_that_are_holes_are_not_read() {
    if !have_tools() {
        return;
    }
    let options = ["-b", "1024", "-N", "131072", "-O", "^has_journal"];
    let Some(mut image) = make_from(8 * SIZE, &options, None) else {
        return;
    };
    let geometry = image.geometry();
    for group in 0..geometry.group_count {
        image.edit_descriptor(group, |descriptor| {
            descriptor.flags.remove(GroupFlags::INODE_UNINIT);
            descriptor.unused_inodes = 0;
        });
    }
    let (whole, sparse) = (Counting::of(&image), Counting::with_holes(&image));
    let expected = check_on(Arc::clone(&whole) as Arc<dyn Device>);
    let report = check_on(Arc::clone(&sparse) as Arc<dyn Device>);
    assert_eq!(report.findings, expected.findings);
    assert_eq!(report.inodes, expected.inodes);
    let tables = 131_072 * u64::from(geometry.inode_size);
    assert!(whole.bytes() > tables, "{} bytes", whole.bytes());
    assert!(sparse.bytes() < tables / 8, "{} bytes", sparse.bytes());
}

#[test]
fn directories_that_lie_in_one_place_are_not_read_again_and_again() {
    if !have_tools() {
        return;
    }
    let Some(image) = sharing(SIZE, |inode| inode.mode = 0o040_755) else {
        return;
    };
    let device = Counting::of(&image);
    let report = check_on(Arc::clone(&device) as Arc<dyn Device>);
    assert!(report.counts.iter().any(|one| one.0 == Kind::BlockShared));
    assert!(!report.is_complete, "not all names were read");
    // Read once for names, and twice for paths.
    assert!(device.bytes() < 5 * SIZE, "{} bytes", device.bytes());
}

/// All of its blocks could be a hole of the image, and take no space.
#[test]
fn a_directory_of_broken_blocks_is_not_read_to_its_end() {
    const BLOCKS: u64 = 4096;
    if !have_tools() {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let content = vec![1; usize::try_from(BLOCKS * 1024).expect("small")];
    std::fs::write(folder.path().join("bulk"), content).expect("a file");
    let Some(mut image) = make_from(SIZE, &["-b", "1024"], Some(folder.path())) else {
        return;
    };
    let sound = Counting::of(&image);
    assert!(check_on(Arc::clone(&sound) as Arc<dyn Device>).is_clean());
    let bulk = image.find("/bulk");
    image.edit_inode(bulk, |inode| inode.mode = 0o040_755);
    let device = Counting::of(&image);
    let report = check_on(Arc::clone(&device) as Arc<dyn Device>);
    let broken = report
        .counts
        .iter()
        .find(|one| one.0 == Kind::DirectoryRecord);
    assert_eq!(broken.map(|one| one.1), Some(1000));
    let limits = report
        .findings
        .iter()
        .filter(|one| one.kind == Kind::LimitReached);
    let limits: Vec<_> = limits.map(|one| one.place.inode).collect();
    assert_eq!(limits, [Some(InodeNumber(bulk))]);
    assert!(!report.is_complete, "not all was read");
    // Read once for names, and twice for paths.
    let read = device.bytes() - sound.bytes();
    assert!(read < BLOCKS * 1024, "{read} bytes");
}

#[test]
fn blocks_that_no_directory_can_have_are_not_read() {
    if !have_tools() {
        return;
    }
    let Some(mut image) = make_from(SIZE, &["-b", "1024"], None) else {
        return;
    };
    let lost = image.find("/lost+found");
    let block = u32::try_from(image.blocks(lost)[11]).expect("a small image");
    // Its last block is beyond 2 GiB.
    let logical: u32 = 3_000_000;
    image.edit_inode(lost, |inode| {
        assert_eq!(inode.block[2], 1, "it has one extent");
        inode.block[2] = 2;
        inode.block[16] = 11;
        inode.block[24..28].copy_from_slice(&logical.to_le_bytes());
        inode.block[28..32].copy_from_slice(&[1, 0, 0, 0]);
        inode.block[32..36].copy_from_slice(&block.to_le_bytes());
        inode.size = (u64::from(logical) + 1) * 1024;
    });
    image.block(block.into()).fill(1);
    let report = image.check().expect("it can be checked");
    let of_kind = |kind| report.findings.iter().filter(move |one| one.kind == kind);
    let limits: Vec<_> = of_kind(Kind::LimitReached).collect();
    assert_eq!(limits.len(), 1, "{limits:?}");
    assert_eq!(limits[0].place.inode, Some(InodeNumber(lost)));
    assert!(limits[0].text.contains("2097152"), "{limits:?}");
    assert_eq!(of_kind(Kind::DirectoryRecord).count(), 0);
    assert!(!report.is_complete);
}

/// More names than are kept, in a directory without an index.
#[test]
fn names_that_are_not_compared_are_reported() {
    /// More than are kept.
    const NAMES: usize = (1 << 22) + 1000;
    const BLOCK: usize = 4096;
    if !have_tools() {
        return;
    }
    // The shortest records, all of one name and inode, except for the last, which fills the block.
    let mut block = [11, 0, 0, 0, 12, 0, 1, 0, b'n', 0, 0, 0].repeat(BLOCK / 12);
    block.resize(BLOCK, 0);
    block[BLOCK - 16 + 4] = 16;
    let count = NAMES.div_ceil(BLOCK / 12);
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(folder.path().join("names"), block.repeat(count)).expect("a file");
    let options = ["-b", "4096", "-O", "^has_journal,^metadata_csum"];
    let Some(mut image) = make_from(64 << 20, &options, Some(folder.path())) else {
        return;
    };
    let names = image.find("/names");
    image.edit_inode(names, |inode| inode.mode = 0o040_755);
    let report = check_on(image.device());
    assert!(!report.is_complete, "not all names were compared");
    let is_it = |one: &&check::Finding| one.kind == Kind::LimitReached;
    let told: Vec<_> = report.findings.iter().filter(is_it).collect();
    assert_eq!(told.len(), 1, "{:?}", report.findings);
    assert_eq!(told[0].place.inode, Some(InodeNumber(names)));
}

/// A few bytes of an inode claim nearly all blocks, four times.
fn claim_all(inode: &mut pext4_ondisk::inode::Inode) {
    const LENGTH: u16 = 16_000;
    let mut map = vec![0x0A, 0xF3, 4, 0, 4, 0, 0, 0, 0, 0, 0, 0];
    for entry in 0..4 {
        map.extend_from_slice(&(entry * u32::from(LENGTH)).to_le_bytes());
        map.extend_from_slice(&LENGTH.to_le_bytes());
        map.extend_from_slice(&[0, 0, 1, 0, 0, 0]);
    }
    inode.block.copy_from_slice(&map);
}

#[test]
fn blocks_are_not_counted_for_each_of_many_files_that_claim_them_all() {
    if !have_tools() {
        return;
    }
    let Some(image) = sharing(SIZE, claim_all) else {
        return;
    };
    let report = check_on(image.device());
    assert!(!report.is_complete, "not all was counted");
    let is_it = |one: &&check::Finding| one.text.contains("were not counted");
    let told: Vec<_> = report.findings.iter().filter(is_it).collect();
    assert_eq!(told.len(), 1, "{:?}", report.findings);
    assert!(
        told[0].kind == Kind::BlockShared && told[0].place.inode.is_some(),
        "{told:?}"
    );
    // The owners are reported nevertheless, without claims that are not certain.
    let is_named =
        |one: &check::Finding| one.kind == Kind::BlockInMetadata && one.text.contains("inode 2,");
    assert!(report.findings.iter().any(is_named));
    let unknown = [
        Kind::BlockMarkedFree,
        Kind::BlockMarkedUsed,
        Kind::GroupFreeBlocks,
    ];
    assert!(!report.counts.iter().any(|one| unknown.contains(&one.0)));
}

#[test]
fn a_block_of_orphans_in_many_places_is_read_once() {
    if !have_tools() {
        return;
    }
    let Some(mut image) = base(Base::Plain) else {
        return;
    };
    let small = image.find("/small");
    let number = image.superblock().orphan_file_inode.get();
    let home = image.blocks(number)[0];
    let (generation, seed) = (image.inode(number).generation, image.seed());
    let mut slots = vec![0; orphan_file::slots_per_block(1024)];
    slots[0] = small;
    let seed = seed.map(|seed| InodeSeed::new(seed, InodeNumber(number), generation));
    orphan_file::encode(image.block(home), &slots, BlockNumber(home), seed);
    image.edit_inode(number, |inode| {
        inode.flags.remove(InodeFlags::EXTENTS);
        inode.block = [0; BLOCK_AREA];
        let home = u32::try_from(home).expect("a small image");
        (0..12).for_each(|slot| set_entry(&mut inode.block, slot, home));
        inode.size = 12 * 1024;
    });
    let report = image.check().expect("it can be checked");
    let again = |one: &check::Finding| one.kind == Kind::OrphanEntry;
    assert!(!report.findings.iter().any(again), "{:?}", report.findings);
    let is_one = |one: &check::Finding| {
        one.kind == Kind::OrphansPending && one.text.starts_with("1 inode waits")
    };
    assert!(report.findings.iter().any(is_one), "{:?}", report.findings);
}

#[test]
fn an_orphan_file_that_is_not_read_is_said_to_be_none_that_was_checked() {
    let options = [
        "-b",
        "1024",
        "-O",
        "orphan_file",
        "-E",
        "orphan_file_size=65M",
    ];
    let Some(image) = make(80 << 20, &options) else {
        return;
    };
    let report = image.check().expect("it can be checked");
    let is_it = |one: &check::Finding| one.kind == Kind::LimitReached;
    assert!(report.findings.iter().any(is_it), "{:?}", report.findings);
    assert!(!report.is_complete);
}

/// A mount would cut or delete what an orphan slot names.
#[test]
fn the_file_systems_own_files_are_no_orphans() {
    if !have_tools() {
        return;
    }
    let Some(mut image) = base(Base::Plain) else {
        return;
    };
    let number = image.superblock().orphan_file_inode.get();
    let home = image.blocks(number)[0];
    let (generation, seed) = (image.inode(number).generation, image.seed());
    let own = [image.find("/lost+found"), number];
    let mut slots = vec![0; orphan_file::slots_per_block(1024)];
    slots[..2].copy_from_slice(&own);
    let seed = seed.map(|seed| InodeSeed::new(seed, InodeNumber(number), generation));
    orphan_file::encode(image.block(home), &slots, BlockNumber(home), seed);
    image.edit_superblock(|superblock| {
        superblock.features.read_only_compat |= ReadOnlyCompat::ORPHAN_PRESENT;
    });
    let report = image.check().expect("it can be checked");
    let refused = report.findings.iter();
    let refused = refused.filter(|one| one.kind == Kind::OrphanEntry);
    let refused: Vec<u32> = refused
        .filter_map(|one| Some(one.place.inode?.get()))
        .collect();
    assert_eq!(refused, own, "{:?}", report.findings);
    let waits = |one: &check::Finding| one.kind == Kind::OrphansPending;
    assert!(!report.findings.iter().any(waits), "{:?}", report.findings);
}

/// Cancels a check at the first step for which `is_time` says so. Returns the bytes that were read
/// before, and after it.
pub fn read_around_a_cancel(
    image: &Image,
    is_time: impl Fn(Step) -> bool + Send + Sync + 'static,
) -> (u64, u64) {
    let device = Counting::of(image);
    let before = Arc::new(AtomicU64::new(0));
    let mut options = Options {
        threads: 1,
        ..Options::default()
    };
    let (cancel, read, noted) = (
        Arc::clone(&options.cancel),
        Arc::clone(&device),
        Arc::clone(&before),
    );
    options.progress = Some(Box::new(move |step: Step| {
        if is_time(step) && !cancel.swap(true, Ordering::Relaxed) {
            noted.store(read.bytes(), Ordering::Relaxed);
        }
    }));
    let ended = check::check(Arc::clone(&device) as Arc<dyn Device>, &options);
    assert!(matches!(ended, Err(check::Error::Interrupted)));
    let before = before.load(Ordering::Relaxed);
    (before, device.bytes() - before)
}

#[test]
fn a_cancel_ends_the_reading_of_a_directory() {
    if !have_tools() {
        return;
    }
    let Some(image) = make(SIZE, &["-b", "1024"]) else {
        return;
    };
    // The step is reported before its directory is examined.
    let (before, after) = read_around_a_cancel(&image, |step| step.pass == Pass::Directories);
    assert!(before > 0);
    assert_eq!(after, 0);
}

#[test]
fn a_directory_is_read_once_for_all_paths_through_it() {
    if !have_tools() {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    for number in 0..200 {
        let name = format!("{number:03}-{}", "n".repeat(200));
        let child = folder.path().join(name);
        std::fs::create_dir(&child).expect("a folder");
        std::fs::write(child.join("file"), b"").expect("a file");
    }
    let options = ["-b", "1024", "-N", "1024"];
    let Some(mut image) = make_from(SIZE, &options, Some(folder.path())) else {
        return;
    };
    let parents = image.entries(2);
    let mut blocks = image.blocks(2).len() as u64;
    for (name, number) in parents {
        if name.len() > 200 {
            blocks += image.blocks(number).len() as u64;
            let (_, file) = image.entries(number).pop().expect("a file");
            image.edit_inode(file, |inode| inode.links = 2);
        }
    }
    let device = Counting::of(&image);
    let (read, before) = (Arc::clone(&device), Arc::new(AtomicU64::new(0)));
    let noted = Arc::clone(&before);
    let options = Options {
        threads: 1,
        progress: Some(Box::new(move |step: Step| {
            if step.pass == Pass::Paths && noted.load(Ordering::Relaxed) == 0 {
                noted.store(read.bytes(), Ordering::Relaxed);
            }
        })),
        ..Options::default()
    };
    let report = check::check(Arc::clone(&device) as Arc<dyn Device>, &options);
    let report = report.expect("it can be checked");
    let has_path = |one: &&check::Finding| {
        let path = one.place.path.as_deref();
        path.is_some_and(|path| path.starts_with(b"/") && path.ends_with(b"n/file"))
    };
    assert_eq!(report.findings.iter().filter(has_path).count(), 200);
    let taken = device.bytes() - before.load(Ordering::Relaxed);
    assert!(
        taken <= 2 * blocks * 1024 + 64 * 1024,
        "{taken} bytes for {blocks} blocks"
    );
}

/// Nothing is known of the inodes of a group whose table is lost.
#[test]
fn names_that_lead_to_a_lost_table_are_no_findings() {
    if !have_tools() {
        return;
    }
    let Some(mut image) = base(Base::Plain) else {
        return;
    };
    let (directory, file) = (image.find("/dir"), image.find("/dir/inner"));
    let block = image.blocks(directory)[0];
    image.edit_leaf(directory, block, |bytes| {
        let mut words = bytes.chunks_exact_mut(4);
        let name = words.find(|word| **word == file.to_le_bytes());
        name.expect("its entry")
            .copy_from_slice(&2000u32.to_le_bytes());
    });
    let finds = |image: &Image, kind| {
        let report = image.check().expect("it can be checked");
        report.findings.iter().any(|one| one.kind == kind)
    };
    assert!(finds(&image, Kind::EntryUninitialised));
    image.edit_descriptor(1, |descriptor| {
        descriptor.inode_table = BlockNumber(1 << 20)
    });
    image.copy_descriptors();
    assert!(finds(&image, Kind::DescriptorPlace));
    assert!(!finds(&image, Kind::EntryUninitialised));
}
