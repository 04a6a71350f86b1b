//! Random changes of fields of every structure, on images of many kinds: the checker and e2fsck
//! must agree on whether something is wrong.
//!
//! A seed selects an image, a location in it, a change and whether checksums are updated
//! afterwards: without that, most fields would never be checked. `PEXT4_SEED` runs one seed alone,
//! `PEXT4_TEST_EFFORT` multiplies the number of seeds.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::OnceLock;

use fastrand::Rng;
use pext4_image::check::Grade;
use pext4_ondisk::checksum::InodeSeed;
use pext4_ondisk::inode::InodeFlags;
use pext4_ondisk::{BlockNumber, GroupNumber, InodeNumber, checksum, extent, htree, xattr};

use super::image::{Image, have_tools, make};

/// Number of seeds without `PEXT4_TEST_EFFORT`.
const SEEDS: u64 = 600;
/// Number of inodes whose slots may be changed; the first user inode is 11.
const INODES: u32 = 40;

/// Options of mke2fs, and whether e2fsck builds indexes afterwards. Blocks have 1 KiB unless the
/// options say otherwise.
const BASES: &[(&str, bool)] = &[
    ("-O orphan_file,metadata_csum_seed", true),
    ("-O ^metadata_csum,uninit_bg", true),
    ("-O ^metadata_csum", true),
    ("-O ^extents,^64bit,^metadata_csum", false),
    ("-O ^extents,^64bit", true),
    ("-r 0 -O none", false),
    ("-O inline_data", false),
    ("-O ea_inode", false),
    ("-O meta_bg,^resize_inode -g 1024", true),
    ("-O bigalloc -C 16384", true),
    ("-O casefold", true),
    ("-O encrypt,stable_inodes", true),
    (
        "-O large_dir,sparse_super2,^sparse_super,^resize_inode",
        true,
    ),
    ("-O ^has_journal -I 128", true),
    ("-O mmp", true),
    ("-O ^flex_bg,^dir_nlink,^huge_file,^extra_isize", true),
    ("-O quota -E quotatype=usrquota:grpquota", false),
    (
        "-O quota,project,ea_inode -E quotatype=usrquota:grpquota:prjquota",
        true,
    ),
    ("-b 4096 -O orphan_file,mmp", true),
    ("-b 4096 -O ^extents,^64bit,^metadata_csum,uninit_bg", true),
];

/// A structure of an image whose checksum can be updated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Superblock,
    Descriptor(u32),
    BlockBitmap(u32),
    InodeBitmap(u32),
    Slot(u32),
    Leaf(u32, u64),
    Index(u32, u64),
    Node(u32, u64),
    Pointers(u64),
    Attributes(u64),
    Journal(u64),
    OrphanFile(u32, u64),
    Quota(u64),
    Mmp(u64),
}

impl Place {
    /// The number of its kind: all kinds are equally likely.
    fn kind(self) -> u8 {
        match self {
            Self::Superblock => 0,
            Self::Descriptor(_) => 1,
            Self::BlockBitmap(_) => 2,
            Self::InodeBitmap(_) => 3,
            Self::Slot(number) if number < 11 => 4,
            Self::Slot(_) => 5,
            Self::Leaf(..) => 6,
            Self::Index(..) => 7,
            Self::Node(..) => 8,
            Self::Pointers(_) => 9,
            Self::Attributes(_) => 10,
            Self::Journal(_) => 11,
            Self::OrphanFile(..) => 12,
            Self::Quota(_) => 13,
            Self::Mmp(_) => 14,
        }
    }

    fn range(self, image: &mut Image) -> Range<usize> {
        // Before the superblock is changed: it is the last of several structures.
        let size = |image: &Image| image.geometry().block_size as usize;
        let start_of =
            |image: &Image, number: u64| usize::try_from(number).expect("small") * size(image);
        let block = |image: &Image, number: u64| {
            let start = start_of(image, number);
            start..start + size(image)
        };
        match self {
            Self::Superblock => 1024..2048,
            Self::Descriptor(group) => image.descriptor_range(group),
            Self::BlockBitmap(group) => block(image, image.descriptor(group).block_bitmap.get()),
            Self::InodeBitmap(group) => block(image, image.descriptor(group).inode_bitmap.get()),
            Self::Slot(number) => image.slot_range(number),
            Self::Leaf(_, number)
            | Self::Index(_, number)
            | Self::Node(_, number)
            | Self::Pointers(number)
            | Self::Attributes(number)
            | Self::Journal(number)
            | Self::Quota(number)
            | Self::OrphanFile(_, number) => block(image, number),
            // The rest of its block has no meaning.
            Self::Mmp(number) => {
                let start = start_of(image, number);
                start..start + 1024
            }
        }
    }

    /// Updates the checksum of the structure, if it has one.
    fn stamp(self, image: &mut Image) {
        match self {
            Self::Superblock => stamp_superblock(&mut image.bytes[1024..2048]),
            Self::Descriptor(group) => stamp_descriptor(image, group),
            Self::BlockBitmap(group) | Self::InodeBitmap(group) => image.stamp_bitmaps(group),
            Self::Slot(number) => stamp_slot(image, number),
            Self::Leaf(inode, block) => image.edit_leaf(inode, block, |_| {}),
            Self::Node(inode, block) => image.edit_node(inode, block, |_| {}),
            Self::Index(inode, number) => {
                let (seed, generation) = (image.seed(), image.inode(inode).generation);
                let bytes = image.block(number);
                if let Some(seed) = seed {
                    htree::stamp(InodeSeed::new(seed, InodeNumber(inode), generation), bytes);
                }
            }
            Self::Attributes(number) => {
                let seed = image.seed();
                let bytes = image.block(number);
                if let Some(seed) = seed {
                    xattr::stamp_block(seed, BlockNumber(number), bytes);
                }
            }
            Self::OrphanFile(inode, number) => stamp_orphans(image, inode, number),
            Self::Mmp(number) => {
                let seed = image.seed();
                let bytes = image.block(number);
                if let Some(seed) = seed {
                    let sum = checksum::crc32c(seed, &bytes[..1020]);
                    bytes[1020..1024].copy_from_slice(&sum.to_le_bytes());
                }
            }
            Self::Pointers(_) | Self::Journal(_) | Self::Quota(_) => {}
        }
    }
}

fn stamp_superblock(bytes: &mut [u8]) {
    const METADATA_CSUM: u8 = 4;
    if bytes[0x65] & METADATA_CSUM != 0 {
        let sum = checksum::crc32c(!0, &bytes[..1020]);
        bytes[1020..].copy_from_slice(&sum.to_le_bytes());
    }
}

fn stamp_descriptor(image: &mut Image, group: u32) {
    let (geometry, range) = (image.geometry(), image.descriptor_range(group));
    let descriptor = image.descriptor(group);
    descriptor.encode(&mut image.bytes[range], &geometry, GroupNumber(group));
}

fn stamp_orphans(image: &mut Image, inode: u32, number: u64) {
    let (seed, generation) = (image.seed(), image.inode(inode).generation);
    let bytes = image.block(number);
    if let Some(seed) = seed {
        let state = checksum::crc32c(seed, &inode.to_le_bytes());
        let state = checksum::crc32c(state, &generation.to_le_bytes());
        let state = checksum::crc32c(state, &number.to_le_bytes());
        // The slots, a magic number, and the checksum.
        let end = bytes.len() - 4;
        let sum = checksum::crc32c(state, &bytes[..end - 4]);
        bytes[end..].copy_from_slice(&sum.to_le_bytes());
    }
}

fn stamp_slot(image: &mut Image, number: u32) {
    let (seed, range) = (image.seed(), image.slot_range(number));
    let slot = &mut image.bytes[range];
    let Some(seed) = seed else { return };
    let generation = u32::from_le_bytes(slot[0x64..0x68].try_into().expect("4 bytes"));
    // The upper half exists if the extra part includes it.
    let has_high = slot.len() > 128 && u16::from_le_bytes([slot[0x80], slot[0x81]]) >= 4;
    slot[0x7C..0x7E].fill(0);
    if has_high {
        slot[0x82..0x84].fill(0);
    }
    let state = checksum::crc32c(seed, &number.to_le_bytes());
    let state = checksum::crc32c(state, &generation.to_le_bytes());
    let sum = checksum::crc32c(state, slot).to_le_bytes();
    slot[0x7C..0x7E].copy_from_slice(&sum[..2]);
    if has_high {
        slot[0x82..0x84].copy_from_slice(&sum[2..]);
    }
}

struct Base {
    options: &'static str,
    image: Image,
    /// By kind.
    places: Vec<Vec<Place>>,
}

fn base(index: usize) -> Option<&'static Base> {
    static MADE: [OnceLock<Option<Base>>; BASES.len()] = [const { OnceLock::new() }; BASES.len()];
    MADE[index].get_or_init(|| make_base(index)).as_ref()
}

fn make_base(index: usize) -> Option<Base> {
    let (options, is_indexed) = BASES[index];
    let mut words = vec!["-N", "1024"];
    if !options.contains("-b ") {
        words.extend(["-b", "1024"]);
    }
    words.extend(options.split(' '));
    let size = if options.contains("bigalloc") { 64 } else { 10 };
    let mut image = make(size << 20, &words)?;
    if options.contains("encrypt") {
        // No others, so that encrypted files have inodes that are changed.
        image = super::image::make_from(size << 20, &words, None)?;
        super::bases::encrypt(&mut image);
    }
    image.debugfs(&["mknod pipe p", "mknod device c 5 1"]);
    if is_indexed {
        image.e2fsck_repairs(&["-fyD"]);
    }
    if options.contains("ea_inode") {
        super::bases::set_value(&mut image);
        image.e2fsck_repairs(&["-fy"]);
    }
    if options.contains("quota") {
        super::bases::share_out(&mut image);
    }
    let mut kinds: BTreeMap<u8, Vec<Place>> = BTreeMap::new();
    for place in places(&mut image) {
        kinds.entry(place.kind()).or_default().push(place);
    }
    Some(Base {
        options,
        image,
        places: kinds.into_values().collect(),
    })
}

fn places(image: &mut Image) -> Vec<Place> {
    let superblock = image.superblock();
    let groups = image.geometry().group_count.min(3);
    let mut places = vec![Place::Superblock];
    for group in 0..groups {
        places.push(Place::Descriptor(group));
        places.push(Place::BlockBitmap(group));
        places.push(Place::InodeBitmap(group));
    }
    places.extend((1..INODES).map(Place::Slot));
    let journal = superblock.journal_inode.get();
    if journal != 0 {
        places.push(Place::Journal(image.blocks(journal)[0]));
    }
    let orphans = superblock.orphan_file_inode.get();
    if orphans != 0 {
        let blocks = image.blocks(orphans);
        places.extend(
            blocks
                .into_iter()
                .take(2)
                .map(|block| Place::OrphanFile(orphans, block)),
        );
    }
    let protection = superblock.mmp_block.get();
    if protection != 0 {
        places.push(Place::Mmp(protection));
    }
    let quotas = [
        superblock.user_quota_inode,
        superblock.group_quota_inode,
        superblock.project_quota_inode,
    ];
    for quota in quotas.into_iter().filter(|number| number.get() != 0) {
        places.extend(image.blocks(quota.get()).into_iter().map(Place::Quota));
    }
    for number in 2..INODES {
        if number == 2 || number >= 11 {
            places.extend(places_of(image, number));
        }
    }
    places
}

/// The metadata blocks of a file.
fn places_of(image: &mut Image, number: u32) -> Vec<Place> {
    let inode = image.inode(number);
    if inode.links == 0 || inode.mode == 0 {
        return Vec::new();
    }
    let mut places = Vec::new();
    if inode.attribute_block.get() != 0 {
        places.push(Place::Attributes(inode.attribute_block.get()));
    }
    let kind = inode.mode >> 12;
    if !matches!(kind, 4 | 8) || inode.has_inline_data() {
        return places;
    }
    if kind == 4 {
        let is_indexed = inode.flags.contains(InodeFlags::INDEX);
        for (position, block) in image.blocks(number).into_iter().enumerate() {
            let is_index =
                is_indexed && (position == 0 || htree::looks_like_node(image.block(block)));
            places.push(match is_index {
                true => Place::Index(number, block),
                false => Place::Leaf(number, block),
            });
        }
    }
    if inode.has_extents() {
        let root = extent::Node::parse(&inode.block).expect("a sound node");
        if root.depth() == 1 {
            let children = root.entries().iter().map(extent::Index::decode);
            places.extend(children.map(|child| Place::Node(number, child.child.get())));
        }
    } else {
        for slot in [12, 13] {
            let block = pext4_ondisk::indirect::entry(&inode.block, slot);
            if block != 0 {
                places.push(Place::Pointers(u64::from(block)));
            }
        }
    }
    places
}

/// Changes one field. Returns a description.
fn change(image: &mut Image, place: Place, random: &mut Rng) -> String {
    let range = place.range(image);
    let width = [1, 2, 4, 4][random.u64(..4) as usize];
    let mut at = 0;
    for _ in 0..6 {
        at = range.start + random.u64(..(range.len() / width) as u64) as usize * width;
        if image.bytes[at..at + width].iter().any(|&byte| byte != 0) {
            break;
        }
    }
    let mut bytes = [0; 8];
    bytes[..width].copy_from_slice(&image.bytes[at..at + width]);
    let before = u64::from_le_bytes(bytes);
    let after = match random.u64(..10) {
        0 => 0,
        1 => u64::MAX,
        2 => before.wrapping_add(1),
        3 => before.wrapping_sub(1),
        4 => random.u64(..10_240),
        5 => random.u64(..40),
        6 => random.u64(..),
        _ => before ^ 1 << random.u64(..width as u64 * 8),
    };
    image.bytes[at..at + width].copy_from_slice(&after.to_le_bytes()[..width]);
    let after = after & (u64::MAX >> (64 - 8 * width));
    let within = at - range.start;
    format!("{place:?} +{within:#x} ({width}): {before:#x} to {after:#x}")
}

/// Questions of e2fsck, not reflected in its exit status, that we report only as notes, or that
/// depend on the clock: totals that the next mount recomputes, long records of '.', times in the
/// future.
const PASSING: [&str; 4] = [
    "Split? no",
    "blocks count wrong (",
    "inodes count wrong (",
    "is in the future",
];

/// The result of e2fsck; `None` if it reports nothing about the file system: it crashed, or failed
/// because it may not write.
fn e2fsck_complains(image: &Image) -> (Option<bool>, String) {
    let (code, text) = image.e2fsck();
    let asks = || {
        let lines: Vec<&str> = [""].into_iter().chain(text.lines()).collect();
        let asked = lines.windows(2).filter(|pair| pair[1].contains("? no"));
        let told = asked.map(|pair| {
            if pair[1] == "Fix? no" {
                pair[0]
            } else {
                pair[1]
            }
        });
        told.into_iter()
            .any(|line| PASSING.iter().all(|passing| !line.contains(passing)))
    };
    let complains = match code {
        _ if text.contains("Bad file descriptor") => None,
        // e2fsck asks about problems before its first pass, but does not report them in its exit
        // status.
        0 => Some(asks()),
        code => (code > 0).then_some(true),
    };
    (complains, text)
}

/// What Linux refuses and e2fsck does not check: where an empty log begins, attribute values in
/// inodes and the references to them, the owner of a quota file and the position of an entry in it,
/// the extra size of the reserved inodes and the location of their attributes, orphan lists, files
/// that claim to be values, attribute names with a NUL byte. Duplicate names in a directory without
/// an index it finds only within a block.
const OURS_ALONE: [&str; 15] = [
    "inode-extra-size inode 7:",
    "inode-extra-size inode 8:",
    "block-outside inode 3: attributes",
    "block-outside inode 4: attributes",
    "block-outside inode 8: attributes",
    "the orphan list names it",
    "an attribute's value without the feature",
    "a name holds a NUL byte",
    "name-duplicate ",
    "quota-inode inode 3: magic",
    "quota-tree ",
    "log runs from block",
    "value-inode ",
    "value-references ",
    "holds an attribute",
];

/// How checker and e2fsck disagree about the change of a seed.
fn disagreement(seed: u64) -> Option<String> {
    let mut random = Rng::with_seed(seed);
    let base = base(random.u64(..BASES.len() as u64) as usize)?;
    let mut image = base.image.clone();
    let mut told = Vec::new();
    let is_stamped = random.u64(..8) > 0;
    let places = (0..=random.u64(..6) / 5).map(|_| {
        let kind = &base.places[random.u64(..base.places.len() as u64) as usize];
        kind[random.u64(..kind.len() as u64) as usize]
    });
    // Structures that locate others are last.
    let mut places: Vec<Place> = places.collect();
    places.sort_by_key(|place| std::cmp::Reverse(place.kind()));
    for place in places {
        told.push(change(&mut image, place, &mut random));
        if is_stamped {
            place.stamp(&mut image);
        }
    }
    if image.bytes == base.image.bytes {
        return None;
    }
    let (ours, found) = match image.check() {
        Ok(report) => {
            let bad = report
                .findings
                .iter()
                .filter(|one| one.kind.grade() > Grade::Note);
            let bad: Vec<String> = bad
                .map(|one| format!("{} {}: {}", one.kind.name(), one.place, one.text))
                .collect();
            (!report.is_clean(), bad)
        }
        Err(error) => (true, vec![error.to_string()]),
    };
    let (theirs, text) = e2fsck_complains(&image);
    let is_ours_alone = |one: &String| OURS_ALONE.iter().any(|known| one.contains(known));
    if ours && theirs == Some(false) && found.iter().all(is_ours_alone) {
        return None;
    }
    (theirs? != ours).then(|| {
        format!(
            "PEXT4_SEED={seed}, {}, sums {is_stamped}: {}\n{found:#?}\n{text}",
            base.options,
            told.join("; ")
        )
    })
}

fn run(remainder: u64, of: u64) {
    if !have_tools() {
        return;
    }
    let number = |name| {
        std::env::var(name)
            .ok()
            .and_then(|text: String| text.parse().ok())
    };
    let seeds: Vec<u64> = match number("PEXT4_SEED") {
        Some(seed) => vec![seed],
        None => (0..SEEDS * number("PEXT4_TEST_EFFORT").unwrap_or(1)).collect(),
    };
    let mut failures = 0;
    for seed in seeds.into_iter().filter(|seed| seed % of == remainder) {
        if let Some(told) = disagreement(seed) {
            eprintln!("#### {told}");
            failures += 1;
        }
    }
    assert_eq!(failures, 0, "disagreements, told above");
}

#[test]
fn changed_fields_first_part() {
    run(0, 2);
}

#[test]
fn changed_fields_second_part() {
    run(1, 2);
}
