//! Copies of the fields of an inode's state that can be read without its lock.
//!
//! A thread that changes the state calls [`PublishedFields::update`] before it releases the lock.
//! Single fields are then read one by one: two of them are consistent only if the reader holds a
//! lock that keeps both from changing. Groups of fields (the attributes that `stat` returns; the
//! root of the map) are published together once they have been read twice without a change in
//! between. The times of a directory that are not in its state yet are read together with its
//! attributes (`name_changes.rs`).

use bitflags::bitflags;
use pext4_ondisk::extent::{self, Extent};
use pext4_ondisk::inode::{BLOCK_AREA, Inode as Slot};
use pext4_ondisk::time::Time;
use pext4_ondisk::{BlockNumber, InodeNumber, LogicalBlock};
use pext4_sync::Published;
use pext4_sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::inode::State;
use crate::inode::name_changes::{NameChanges, times_after};
use crate::types::{Attributes, DeviceNumber, FileType};

/// Words of [`Attributes`].
const ATTRIBUTE_WORDS: usize = 13;
const ROOT_WORDS: usize = BLOCK_AREA.div_ceil(8);
const EXTENT_WORDS: usize = 2;
/// Set if the attributes contain a creation time.
const HAS_CREATED: u64 = 1 << 32;

bitflags! {
    /// What can be said of a state with yes or no.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) struct Marks: u32 {
        /// See [`State::dead`].
        const DEAD = 1 << 0;
        /// The slot has room for the later half of the times.
        const HAS_WIDE_TIMES = 1 << 1;
        /// `i_block` is a map that is not empty.
        const MAPS_BLOCKS = 1 << 2;
        /// It is recorded as an orphan.
        const IS_ORPHAN = 1 << 3;
        /// See [`State::truncate_is_unfinished`].
        const TRUNCATE_IS_UNFINISHED = 1 << 4;
        /// See [`State::tail_is_zero`].
        const TAIL_IS_ZERO = 1 << 5;
    }
}

impl Marks {
    fn of(state: &State) -> Self {
        let slot = &state.slot;
        let mut marks = Self::empty();
        marks.set(Self::DEAD, state.dead);
        marks.set(Self::HAS_WIDE_TIMES, slot.has_wide_times());
        marks.set(Self::MAPS_BLOCKS, maps_blocks(slot));
        marks.set(Self::IS_ORPHAN, state.orphan.is_some());
        marks.set(Self::TRUNCATE_IS_UNFINISHED, state.truncate_is_unfinished);
        marks.set(Self::TAIL_IS_ZERO, state.tail_is_zero);
        marks
    }
}

/// Whether a slot maps blocks: short links, special files and content in the inode use `i_block`
/// for other purposes.
fn maps_blocks(slot: &Slot) -> bool {
    let is_empty = if slot.has_extents() {
        extent::is_empty_root(&slot.block)
    } else {
        slot.block == [0; BLOCK_AREA]
    };
    let has_map = matches!(
        slot.file_type(),
        Some(FileType::Regular | FileType::Directory | FileType::Symlink)
    );
    !is_empty && has_map && !slot.is_fast_symlink() && !slot.has_inline_data()
}

/// Fields of an inode, for readers without its lock.
pub(super) struct PublishedFields {
    marks: AtomicU32,
    size: AtomicU64,
    flags: AtomicU32,
    /// The mode in the upper half, the group in the lower: a new file in a directory needs both to
    /// get its group.
    mode_and_group: AtomicU64,
    owner: AtomicU32,
    links: AtomicU32,
    generation: AtomicU32,
    /// The block of attributes; 0 is none.
    attribute_block: AtomicU64,
    /// Times of a directory that are not in the state yet.
    pub(super) names: NameChanges,
    attributes: Published<ATTRIBUTE_WORDS>,
    /// The root of the map, which most changes do not affect.
    root: Published<ROOT_WORDS>,
    /// A written extent in that root: its first block in the file and its length, and its first
    /// block on the device. Expires with the root.
    extent: Published<EXTENT_WORDS>,
}

impl PublishedFields {
    pub(super) fn new(state: &State) -> Self {
        let fields = Self {
            marks: AtomicU32::new(0),
            size: AtomicU64::new(0),
            flags: AtomicU32::new(0),
            mode_and_group: AtomicU64::new(0),
            owner: AtomicU32::new(0),
            links: AtomicU32::new(0),
            generation: AtomicU32::new(0),
            attribute_block: AtomicU64::new(0),
            names: NameChanges::new(),
            attributes: Published::new(),
            root: Published::new(),
            extent: Published::new(),
        };
        fields.update(state);
        fields
    }

    /// Copies the fields after a change of the state, whose lock the caller holds.
    pub(super) fn update(&self, state: &State) {
        // First, so that nobody who has seen a new field is then shown old attributes.
        self.expire_attributes();
        let slot = &state.slot;
        self.marks.store(Marks::of(state).bits(), Ordering::Release);
        self.size.store(slot.size, Ordering::Release);
        self.flags.store(slot.flags.bits(), Ordering::Release);
        let mode_and_group = u64::from(slot.mode) << 32 | u64::from(slot.gid);
        self.mode_and_group.store(mode_and_group, Ordering::Release);
        self.owner.store(slot.uid, Ordering::Release);
        self.links.store(u32::from(slot.links), Ordering::Release);
        self.generation.store(slot.generation, Ordering::Release);
        self.attribute_block
            .store(slot.attribute_block.get(), Ordering::Release);
        if self.root.expire_unless(|| words_of(&slot.block)) {
            self.extent.expire_if_shown();
        }
    }

    /// Makes readers stop using the published attributes, which are about to change. The caller
    /// holds the lock of the state.
    pub(super) fn expire_attributes(&self) {
        self.attributes.expire();
    }

    /// The nearest time that the inode can hold.
    pub(super) fn clamp_time(&self, time: Time) -> Time {
        if self.has(Marks::HAS_WIDE_TIMES) {
            time.clamp_wide()
        } else {
            time.clamp_narrow()
        }
    }

    /// Whether all of these marks are set.
    pub(super) fn has(&self, marks: Marks) -> bool {
        Marks::from_bits_retain(self.marks.load(Ordering::Acquire)).contains(marks)
    }

    pub(super) fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    pub(super) fn flags(&self) -> u32 {
        self.flags.load(Ordering::Acquire)
    }

    /// Mode and group, consistent with each other.
    pub(super) fn mode_and_group(&self) -> (u16, u32) {
        let both = self.mode_and_group.load(Ordering::Acquire);
        #[expect(
            clippy::cast_possible_truncation,
            reason = "both parts were packed at these widths"
        )]
        let parts = ((both >> 32) as u16, both as u32);
        parts
    }

    pub(super) fn owner(&self) -> u32 {
        self.owner.load(Ordering::Acquire)
    }

    pub(super) fn attribute_block(&self) -> BlockNumber {
        BlockNumber(self.attribute_block.load(Ordering::Acquire))
    }

    pub(super) fn links(&self) -> u32 {
        self.links.load(Ordering::Acquire)
    }

    pub(super) fn generation(&self) -> u32 {
        self.generation.load(Ordering::Acquire)
    }

    /// The published attributes of this inode.
    pub(super) fn attributes(&self, inode: InodeNumber, file_type: FileType) -> Option<Attributes> {
        if file_type != FileType::Directory {
            let words = self.attributes.read()?;
            return Some(unpack(&words, inode, file_type));
        }
        let (words, names) = self.attributes.read_with(|| self.names.newest())?;
        Some(with_names(unpack(&words, inode, file_type), names))
    }

    /// The published root of the map.
    pub(super) fn root(&self) -> Option<[u8; BLOCK_AREA]> {
        let words = self.root.read()?;
        let mut root = [0; BLOCK_AREA];
        for (bytes, word) in root.chunks_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes()[..bytes.len()]);
        }
        Some(root)
    }

    /// The published extent of the map, which is written.
    pub(super) fn extent(&self) -> Option<Extent> {
        let [in_file, start] = self.extent.read()?;
        Some(Extent {
            logical: LogicalBlock(low(in_file)),
            start: BlockNumber(start),
            length: high(in_file),
            unwritten: false,
        })
    }

    /// Publishes a written extent of a root that was published. The caller holds the lock of the
    /// state, and one under which the root has not changed since it was read.
    pub(super) fn publish_extent(&self, extent: &Extent) {
        let in_file = pair(extent.logical.get(), extent.length);
        self.extent.offer(|| [in_file, extent.start.get()]);
    }

    /// Publishes `attributes`, which the caller has read from the state and whose lock it holds.
    /// Returns them with the directory times that are not in the state yet.
    pub(super) fn publish_attributes(&self, attributes: Attributes) -> Attributes {
        self.attributes.offer(|| pack(&attributes));
        with_names(attributes, self.names.newest())
    }

    /// Publishes the root of the map and returns it. The caller holds the lock of the state.
    pub(super) fn publish_root(&self, state: &State) -> [u8; BLOCK_AREA] {
        self.root.offer(|| words_of(&state.slot.block));
        state.slot.block
    }
}

/// The attributes, with the time of a later change of names if there is one.
fn with_names(attributes: Attributes, names: Option<Time>) -> Attributes {
    let Some(time) = names else {
        return attributes;
    };
    let (modified, changed) = times_after(time, (attributes.modified, attributes.changed));
    Attributes {
        modified,
        changed,
        ..attributes
    }
}

fn words_of(root: &[u8; BLOCK_AREA]) -> [u64; ROOT_WORDS] {
    let mut words = [0; ROOT_WORDS];
    for (word, bytes) in words.iter_mut().zip(root.chunks(8)) {
        let mut whole = [0; 8];
        whole[..bytes.len()].copy_from_slice(bytes);
        *word = u64::from_le_bytes(whole);
    }
    words
}

fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

fn low(word: u64) -> u32 {
    u32::try_from(word & u64::from(u32::MAX)).expect("masked")
}

fn high(word: u64) -> u32 {
    low(word >> 32)
}

fn pack(attributes: &Attributes) -> [u64; ATTRIBUTE_WORDS] {
    let created = attributes.created.unwrap_or_default();
    let (accessed, modified, changed) =
        (attributes.accessed, attributes.modified, attributes.changed);
    let has_created = if attributes.created.is_some() {
        HAS_CREATED
    } else {
        0
    };
    [
        pair(attributes.links, u32::from(attributes.mode)),
        pair(attributes.uid, attributes.gid),
        attributes.size,
        attributes.sectors,
        accessed.seconds.cast_unsigned(),
        modified.seconds.cast_unsigned(),
        changed.seconds.cast_unsigned(),
        created.seconds.cast_unsigned(),
        pair(accessed.nanoseconds, modified.nanoseconds),
        pair(changed.nanoseconds, created.nanoseconds),
        u64::from(attributes.flags) | has_created,
        pair(attributes.device.major, attributes.device.minor),
        pair(attributes.generation, attributes.project),
    ]
}

fn unpack(words: &[u64; ATTRIBUTE_WORDS], inode: InodeNumber, file_type: FileType) -> Attributes {
    let time = |seconds: usize, nanoseconds: u32| Time {
        seconds: words[seconds].cast_signed(),
        nanoseconds,
    };
    let mode = u16::try_from(high(words[0])).expect("it was packed from 16 bits");
    let created = time(7, high(words[9]));
    Attributes {
        inode,
        generation: low(words[12]),
        file_type,
        mode,
        links: low(words[0]),
        uid: low(words[1]),
        gid: high(words[1]),
        size: words[2],
        sectors: words[3],
        accessed: time(4, low(words[8])),
        modified: time(5, high(words[8])),
        changed: time(6, low(words[9])),
        created: (words[10] & HAS_CREATED != 0).then_some(created),
        flags: low(words[10]),
        project: high(words[12]),
        device: DeviceNumber {
            major: low(words[11]),
            minor: high(words[11]),
        },
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use pext4_ondisk::InodeNumber;
    use pext4_ondisk::time::Time;

    use super::{pack, unpack};
    use crate::groups::testing::image;
    use crate::inode::extents::Mapping;
    use crate::types::{Attributes, DeviceNumber, FileType};
    use crate::{CreateAttributes, MountOptions, Volume};

    fn time(seconds: i64, nanoseconds: u32) -> Time {
        Time {
            seconds,
            nanoseconds,
        }
    }

    #[test]
    fn attributes_come_back_as_they_were_published() {
        let attributes = Attributes {
            inode: InodeNumber(12),
            generation: 34,
            file_type: FileType::Regular,
            mode: 0o107_777,
            uid: u32::MAX,
            gid: 7,
            size: u64::MAX - 1,
            sectors: 1 << 40,
            links: 65_000,
            device: DeviceNumber { major: 8, minor: 1 },
            accessed: time(-1, 999_999_999),
            modified: time(1 << 33, 2),
            changed: time(3, 4),
            created: Some(time(5, 6)),
            flags: 0x8000_0010,
            project: u32::MAX - 2,
        };
        let through = |attributes: &Attributes| {
            unpack(&pack(attributes), attributes.inode, attributes.file_type)
        };
        assert_eq!(through(&attributes), attributes);
        let young = Attributes {
            created: None,
            ..attributes
        };
        assert_eq!(through(&young), young);
    }

    #[test]
    fn an_extent_is_known_until_the_map_changes() {
        let Some(device) = image(&[], "16M") else {
            return;
        };
        let volume = Volume::open(device, MountOptions::default()).expect("a mount");
        let new = CreateAttributes::default();
        let root = volume.inodes.get(InodeNumber::ROOT).expect("the root");
        let mut changes = 0;
        for number in 0..400 {
            for _ in 0..5 {
                let missing = volume.lookup(InodeNumber::ROOT, b"missing");
                assert!(missing.is_err());
            }
            let known = root.known_extent().expect("it was looked up often");
            let mapped = volume.inodes.lookup(&root, known.logical);
            assert_eq!(mapped.expect("sound"), Mapping::Mapped(known));
            let (size, name) = (root.size(), format!("a-name-of-some-length-{number}"));
            let created = volume.create(InodeNumber::ROOT, name.as_bytes(), &new);
            let _ = created.expect("there is room");
            if root.size() > size {
                assert_eq!(root.known_extent(), None, "it may have become longer");
                changes += 1;
            }
        }
        assert!(changes > 1, "{changes} blocks were added");
        volume.close().expect("a sound device");
    }
}
