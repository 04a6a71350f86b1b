//! Pass 1, one inode: its fields, its map, and whether the two agree.

use pext4_ondisk::directory::FileType;
use pext4_ondisk::feature::{Compat, Features, Incompat, ReadOnlyCompat};
use pext4_ondisk::inode::{Inode, InodeFlags};
use pext4_ondisk::{BlockNumber, InodeNumber};

use super::catalogue::Kind;
use super::claims::Claimed;
use super::findings::Place;
use super::inodes::{Directory, DirectoryRun, Gathered, State};
use super::mapping::{self, Run, Visitor};
use super::volume::{EXTRA_SIZE_AT, decode_leniently};
use super::{Examination, attributes, content, special};

const OBSOLETE_ADDRESS_AT: usize = 0x70;
/// Files of at least this size in bytes need the `large_file` feature.
const LARGE: u64 = 1 << 31;

/// The result for one slot of an inode table.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Examined {
    pub(super) state: State,
    pub(super) links: u16,
}

/// An inode in use, with the context of its checks.
pub(super) struct InodeSubject<'a> {
    pub(super) examination: &'a Examination,
    pub(super) number: InodeNumber,
    pub(super) inode: &'a Inode,
    pub(super) kind: Option<FileType>,
}

impl InodeSubject<'_> {
    pub(super) fn report(&self, kind: Kind, text: impl FnOnce() -> String) {
        self.examination
            .findings
            .add(kind, Place::inode(self.number), text);
    }

    pub(super) fn features(&self) -> &Features {
        &self.examination.volume.geometry.features
    }

    fn has(&self, flag: InodeFlags) -> bool {
        self.inode.flags.contains(flag)
    }
}

/// Checks a slot.
pub(super) fn examine(
    examination: &Examination,
    gathered: &mut Gathered,
    number: InodeNumber,
    slot: &[u8],
) -> Examined {
    if slot.iter().all(|&byte| byte == 0) {
        if number == InodeNumber::ROOT {
            special::report_missing_root(examination, "it is not in use");
        }
        return Examined::default();
    }
    let Some(inode) = decode(examination, number, slot) else {
        return Examined::default();
    };
    let inode = examination.volume.as_of_creator(inode);
    let is_orphan = examination.orphans.contains(number);
    if inode.links == 0 && !is_orphan {
        unused(examination, number, &inode);
        return Examined::default();
    }
    gathered.counts.inodes += 1;
    let subject = InodeSubject {
        examination,
        number,
        inode: &inode,
        kind: inode.file_type(),
    };
    check_fields(&subject, slot, is_orphan);
    special::check(&subject);
    let mapped = map(&subject, gathered);
    check_contents(&subject, gathered, &mapped);
    note_directory(&subject, gathered, &mapped);
    let mut state = State::used(subject.kind.map_or(0, FileType::to_entry));
    if inode.flags.contains(InodeFlags::EA_INODE) {
        state = state.with_value();
    }
    if subject.kind == Some(FileType::Directory) {
        gathered.counts.directories += 1;
        if may_overflow(&subject) {
            state = state.with_overflow();
        }
    } else {
        gathered.counts.files += 1;
    }
    Examined {
        state,
        links: inode.links,
    }
}

fn may_overflow(subject: &InodeSubject<'_>) -> bool {
    subject.inode.links == 1 && subject.has(InodeFlags::INDEX)
}

/// The inode in a slot. A wrong checksum is reported and the fields are used; with an impossible
/// extra size the inode is decoded without its extra part.
fn decode(examination: &Examination, number: InodeNumber, slot: &[u8]) -> Option<Inode> {
    let seed = examination.volume.seed;
    let report = |kind, corrupt: &pext4_ondisk::Corrupt| {
        examination
            .findings
            .corrupt(kind, Place::inode(number), corrupt);
    };
    let corrupt = match Inode::decode(slot, number, seed) {
        Ok(inode) => return Some(inode),
        Err(corrupt) => corrupt,
    };
    match Inode::decode(slot, number, None) {
        Ok(inode) => {
            report(Kind::InodeChecksum, &corrupt);
            Some(inode)
        }
        Err(corrupt) => {
            let inode = decode_leniently(slot, number).ok();
            // In an unused inode the size has no meaning, but the checksums of reserved ones cover
            // it all the same.
            let is_covered = seed.is_some() && number < examination.volume.geometry.first_inode;
            if is_covered || inode.as_ref().is_none_or(|inode| inode.links != 0) {
                report(Kind::InodeExtraSize, &corrupt);
            }
            inode
        }
    }
}

/// Checks an inode that has no links and is no orphan.
fn unused(examination: &Examination, number: InodeNumber, inode: &Inode) {
    let first = examination.volume.geometry.first_inode;
    let report = |text: String| {
        let place = Place::inode(number);
        examination
            .findings
            .add(Kind::InodeNotDeleted, place, || text);
    };
    if is_inode_number(examination, inode.deletion_time) {
        let next = inode.deletion_time;
        report(format!(
            "its time of deletion is inode number {next}, as in a list of orphans, but it is in none"
        ));
    }
    if number == InodeNumber::ROOT {
        special::report_missing_root(examination, "it has no links");
    } else if number < first {
        special::check_unused(examination, number, inode);
    } else if inode.mode != 0 && inode.deletion_time == 0 {
        report(format!(
            "mode {:06o}, no links, no time of deletion",
            inode.mode
        ));
    }
}

/// Whether a time of deletion is the inode number of the next orphan: no clock shows such an early
/// time, unless the superblock has other times as early.
fn is_inode_number(examination: &Examination, time: u32) -> bool {
    let superblock = &examination.volume.superblock;
    let count = superblock.inodes_count;
    let written = [
        superblock.mount_time,
        superblock.write_time,
        superblock.make_time,
    ];
    let mut written = written.into_iter().filter(|&time| time != 0);
    time != 0 && time < count && written.all(|time| time >= i64::from(count))
}

fn check_fields(subject: &InodeSubject<'_>, slot: &[u8], is_orphan: bool) {
    let inode = subject.inode;
    let is_reserved = subject.number < subject.examination.volume.geometry.first_inode;
    if subject.kind.is_none() && !is_reserved {
        subject.report(Kind::InodeMode, || format!("mode {:06o}", inode.mode));
    }
    let is_deleted = match is_own(subject) {
        true => is_inode_number(subject.examination, inode.deletion_time),
        false => inode.deletion_time != 0,
    };
    if is_deleted && !is_orphan {
        let time = inode.deletion_time;
        subject.report(Kind::InodeDeletionTime, || {
            format!("{} links, deleted at {time}", inode.links)
        });
    }
    check_flags(subject);
    check_zeroes(subject, slot);
    check_times(subject, slot);
}

/// Whether it is an inode of the file system itself, for which fewer rules hold.
fn is_own(subject: &InodeSubject<'_>) -> bool {
    let first = subject.examination.volume.geometry.first_inode;
    subject.number < first && subject.number != InodeNumber::ROOT
}

/// Flags, whether the inode must not have them, and what is wrong if it has.
type FlagRule = (InodeFlags, bool, &'static str);

fn flag_rules(subject: &InodeSubject<'_>) -> [FlagRule; 11] {
    let is = |kind| subject.kind == Some(kind);
    let incompat = |bits| subject.features().has_incompat(bits);
    let has_map = is(FileType::Regular) || is(FileType::Directory) || is(FileType::Symlink);
    let is_directory = is(FileType::Directory);
    let is_special = subject.kind.is_some() && !has_map;
    let has_inline_data = subject.has(InodeFlags::INLINE_DATA);
    [
        (
            InodeFlags::EXTENTS,
            !incompat(Incompat::EXTENTS),
            "extents without the feature",
        ),
        (
            InodeFlags::EXTENTS,
            has_inline_data,
            "extents and inline data at once",
        ),
        (
            InodeFlags::EXTENTS,
            subject.inode.is_fast_symlink(),
            "extents, and the target of the link is in the inode",
        ),
        (
            InodeFlags::INLINE_DATA,
            !incompat(Incompat::INLINE_DATA),
            "inline data without the feature",
        ),
        (
            InodeFlags::INDEX,
            !is_directory,
            "an index, and it is no directory",
        ),
        (
            InodeFlags::INDEX,
            !subject.features().has_compat(Compat::DIR_INDEX),
            "an index without the feature",
        ),
        (
            InodeFlags::INDEX,
            has_inline_data,
            "an index and inline data at once",
        ),
        (
            InodeFlags::IMAGIC,
            !is_own(subject),
            "an inode of AFS, which needs a feature that is not known here",
        ),
        (
            InodeFlags::EA_INODE,
            !incompat(Incompat::EA_INODE),
            "an attribute's value without the feature",
        ),
        (
            InodeFlags::EXTENTS,
            is_special,
            "extents, and it has no content",
        ),
        (
            InodeFlags::IMMUTABLE | InodeFlags::APPEND,
            is_special || is(FileType::Symlink),
            "immutable or append-only, which only files and directories may be",
        ),
    ]
}

/// The rules on directories whose names are folded.
fn casefold_rules(subject: &InodeSubject<'_>) -> [FlagRule; 2] {
    let is_directory = subject.kind == Some(FileType::Directory);
    let has_feature = subject.features().has_incompat(Incompat::CASEFOLD);
    [
        (
            InodeFlags::CASEFOLD,
            !is_directory,
            "names whose case does not matter, and it is no directory",
        ),
        (
            InodeFlags::CASEFOLD,
            !has_feature,
            "names whose case does not matter, without the feature",
        ),
    ]
}

/// Reports the first rule on flags that the inode breaks.
fn check_flags(subject: &InodeSubject<'_>) {
    let mut broken = flag_rules(subject)
        .into_iter()
        .chain(casefold_rules(subject))
        .filter(|(flags, is_forbidden, _)| *is_forbidden && subject.inode.flags.intersects(*flags));
    let has_clusters = subject.examination.volume.geometry.has_bigalloc();
    let text = match broken.next() {
        Some((_, _, text)) => text,
        None if has_clusters && uses_block_map(subject) => {
            "a block map in a file system of clusters"
        }
        None => return,
    };
    subject.report(Kind::InodeFlags, || text.to_owned());
}

fn uses_block_map(subject: &InodeSubject<'_>) -> bool {
    has_map(subject)
        && subject.number != InodeNumber::RESIZE
        && !subject.inode.has_extents()
        && subject.inode.block.iter().any(|&byte| byte != 0)
}

/// Whether the block area maps blocks.
pub(super) fn has_map(subject: &InodeSubject<'_>) -> bool {
    let mappable = match subject.kind {
        Some(FileType::Regular | FileType::Directory) => true,
        Some(FileType::Symlink) => !subject.inode.is_fast_symlink(),
        _ => false,
    };
    mappable && !subject.inode.has_inline_data()
}

fn check_zeroes(subject: &InodeSubject<'_>, slot: &[u8]) {
    let inode = subject.inode;
    let is_wide = subject.features().has_incompat(Incompat::SIXTY_FOUR_BIT);
    let is_huge = subject
        .features()
        .has_read_only_compat(ReadOnlyCompat::HUGE_FILE);
    let address = &slot[OBSOLETE_ADDRESS_AT..OBSOLETE_ADDRESS_AT + 4];
    let may_have_address = subject.number == InodeNumber::RESIZE
        || subject.examination.hidden.contains(&subject.number);
    let fields = [
        (
            address != [0; 4] && !may_have_address,
            "the address of a fragment",
        ),
        (
            !is_wide && inode.file_acl.get() >> 32 != 0,
            "the upper half of the attribute block",
        ),
        (
            !is_huge && inode.blocks >> 32 != 0,
            "the upper half of the block count",
        ),
    ];
    for (is_set, what) in fields {
        if is_set {
            subject.report(Kind::InodeField, || format!("{what} is not zero"));
        }
    }
}

/// Reports times before 1970 with both epoch bits set, which only an old bug wrote.
fn check_times(subject: &InodeSubject<'_>, slot: &[u8]) {
    if subject.has(InodeFlags::EA_INODE) {
        return;
    }
    let extra = usize::from(subject.inode.extra_isize);
    let word = |at: usize| {
        let bytes = slot.get(at..)?.first_chunk()?;
        Some(u32::from_le_bytes(*bytes))
    };
    let times = [
        ("access", 0x08, 0x8C),
        ("change", 0x0C, 0x84),
        ("modification", 0x10, 0x88),
        ("birth", 0x90, 0x94),
    ];
    for (name, seconds_at, extra_at) in times {
        if EXTRA_SIZE_AT + extra < extra_at + 4 {
            continue;
        }
        if let (Some(seconds), Some(epoch)) = (word(seconds_at), word(extra_at))
            && seconds >> 31 != 0
            && epoch & 3 == 3
        {
            subject.report(Kind::InodeTime, || format!("time of {name}"));
        }
    }
}

/// The result of a walk over an inode's map.
#[derive(Debug, Default)]
pub(super) struct Mapped {
    /// The number of clusters, including those of the map itself.
    clusters: u64,
    /// The first logical block behind the last written one.
    pub(super) written_end: u64,
    /// The first logical block behind the last mapped one.
    pub(super) mapped_end: u64,
    /// Parts of the map were skipped, so the counts have no meaning.
    is_partial: bool,
    /// Blocks of its data were claimed before, by another inode or by itself.
    is_shared: bool,
    /// The location of logical block 0, if it is mapped and written.
    pub(super) first: Option<BlockNumber>,
    /// For a directory: the index of its first run in the gathered list.
    first_run: usize,
}

impl Mapped {
    /// Whether parts of the map were skipped.
    pub(super) fn is_partial(&self) -> bool {
        self.is_partial
    }

    /// Whether blocks of its data were claimed before.
    pub(super) fn is_shared(&self) -> bool {
        self.is_shared
    }
}

/// Claims the blocks of a walk.
struct Claimer<'a, 'b> {
    subject: &'a InodeSubject<'a>,
    mapped: Mapped,
    /// The list to which a directory's runs are added.
    runs: Option<&'b mut Vec<DirectoryRun>>,
    /// The last cluster that was claimed: its number on the device and in the file.
    last: Option<(u64, u64)>,
}

fn map(subject: &InodeSubject<'_>, gathered: &mut Gathered) -> Mapped {
    let is_directory = subject.kind == Some(FileType::Directory);
    let runs = &mut gathered.directories.runs;
    let mapped = Mapped {
        first_run: runs.len(),
        ..Mapped::default()
    };
    if !has_map(subject) || subject.number == InodeNumber::RESIZE {
        return mapped;
    }
    let mut claimer = Claimer {
        subject,
        mapped,
        runs: is_directory.then_some(runs),
        last: None,
    };
    let volume = &subject.examination.volume;
    mapping::walk(volume, subject.number, subject.inode, &mut claimer);
    claimer.mapped
}

impl Claimer<'_, '_> {
    fn report(&self, kind: Kind, block: Option<BlockNumber>, text: String) {
        let mut place = Place::inode(self.subject.number);
        place.block = block.map(BlockNumber::get);
        self.subject.examination.findings.add(kind, place, || text);
    }

    fn claim_run(&mut self, start: BlockNumber, length: u64) {
        let examination = self.subject.examination;
        let claimed = examination.claims.claim_run(start, length);
        self.mapped.is_shared |= claimed != Claimed::First;
        if claimed == Claimed::Uncounted && examination.claims.cut_short() {
            let text = "files claim so many blocks of each other that the blocks of this file and of \
                        later ones were not counted";
            self.report(Kind::BlockShared, Some(start), text.to_owned());
        }
    }

    /// Claims a run. In a file system with clusters, two runs may share one.
    fn claim(&mut self, run: Run) {
        let examination = self.subject.examination;
        let ratio = u64::from(examination.volume.geometry.blocks_per_cluster);
        let (start, length) = (run.start.get(), u64::from(run.length));
        if ratio == 1 {
            self.mapped.clusters += length;
            self.claim_run(run.start, length);
            return;
        }
        let logical = u64::from(run.logical);
        if logical % ratio != start % ratio {
            let text = format!("logical block {logical} is block {start}, {ratio} in a cluster");
            self.report(Kind::ClusterMisaligned, Some(run.start), text);
        }
        let mut first = start / ratio;
        let end = (start + length).div_ceil(ratio);
        match self.last {
            Some(last) if last == (first, logical / ratio) => first += 1,
            Some((other, cluster)) if cluster == logical / ratio => {
                let text = format!("logical cluster {cluster} is in clusters {other} and {first}");
                self.report(Kind::ClusterMisaligned, Some(run.start), text);
            }
            _ => {}
        }
        self.last = Some((end - 1, (logical + length - 1) / ratio));
        if first < end {
            self.mapped.clusters += end - first;
            let start = BlockNumber(first * ratio);
            self.claim_run(start, (end - first) * ratio);
        }
    }
}

impl Visitor for Claimer<'_, '_> {
    fn node(&mut self, block: BlockNumber) -> bool {
        self.mapped.clusters += 1;
        let is_new = self.subject.examination.claims.claim(block, 1);
        self.mapped.is_partial |= !is_new;
        is_new
    }

    fn run(&mut self, run: Run) {
        self.claim(run);
        self.mapped.mapped_end = self.mapped.mapped_end.max(run.end());
        if !run.unwritten {
            self.mapped.written_end = self.mapped.written_end.max(run.end());
            if run.logical == 0 {
                self.mapped.first = Some(run.start);
            }
        }
        if let Some(runs) = &mut self.runs {
            runs.push(DirectoryRun {
                start: run.start.get(),
                logical: run.logical,
                length: run.length,
            });
            if run.unwritten {
                let text = format!("logical block {}, {} long", run.logical, run.length);
                self.report(Kind::ExtentUnwritten, Some(run.start), text);
            }
        }
    }

    fn fault(&mut self, kind: Kind, block: Option<BlockNumber>, text: String) {
        self.mapped.is_partial = true;
        self.report(kind, block, text);
    }

    fn flaw(&mut self, kind: Kind, block: Option<BlockNumber>, text: String) {
        self.report(kind, block, text);
    }
}

/// Attributes, content, size and space, which depend on each other.
fn check_contents(subject: &InodeSubject<'_>, gathered: &mut Gathered, mapped: &Mapped) {
    let attributes = attributes::check(subject);
    content::check(subject, mapped, &attributes);
    gathered.usage.charge(subject, attributes.values);
    if mapped.is_partial || attributes.is_partial || subject.number == InodeNumber::RESIZE {
        return;
    }
    let volume = &subject.examination.volume;
    let clusters = mapped.clusters + attributes.clusters;
    let sectors_per_cluster =
        u64::from(volume.geometry.block_size / 512) * u64::from(volume.geometry.blocks_per_cluster);
    let expected = clusters.saturating_mul(sectors_per_cluster);
    // Without the feature the inode's flag for the larger unit is ignored.
    let has_units = subject
        .features()
        .has_read_only_compat(ReadOnlyCompat::HUGE_FILE);
    let counted = match has_units {
        true => subject.inode.sectors(volume.geometry.block_size),
        false => subject.inode.blocks,
    };
    if counted != expected {
        subject.report(Kind::InodeBlocks, || {
            format!("counts {counted} sectors, has {expected}")
        });
    }
}

/// Reports a size that needs `large_file` if the feature is not set.
pub(super) fn check_large(subject: &InodeSubject<'_>) {
    let is_known = subject
        .features()
        .has_read_only_compat(ReadOnlyCompat::LARGE_FILE);
    if subject.inode.size >= LARGE && !is_known {
        subject.report(Kind::FeatureMissing, || {
            format!("{} bytes, without large_file", subject.inode.size)
        });
    }
}

fn note_directory(subject: &InodeSubject<'_>, gathered: &mut Gathered, mapped: &Mapped) {
    if subject.kind != Some(FileType::Directory) {
        return;
    }
    let block_size = u64::from(subject.examination.volume.geometry.block_size);
    let blocks = subject.inode.size.div_ceil(block_size);
    let directories = &mut gathered.directories;
    let runs = directories.runs.len() - mapped.first_run;
    let (Ok(first_run), Ok(runs)) = (u32::try_from(mapped.first_run), u32::try_from(runs)) else {
        return;
    };
    directories.list.push(Directory {
        inode: subject.number.get(),
        generation: subject.inode.generation,
        blocks: u32::try_from(blocks).unwrap_or(u32::MAX),
        first_run,
        runs,
        is_indexed: subject.has(InodeFlags::INDEX),
        is_encrypted: subject.has(InodeFlags::ENCRYPT),
        folds_case: subject.has(InodeFlags::CASEFOLD),
        is_inline: subject.inode.has_inline_data(),
    });
}
