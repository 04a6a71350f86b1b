//! Requests for file content: read, write, `fallocate`, `lseek`, `fsync`.

use std::ops::Range;

use pext4_fs::{AllocateMode, Attributes, Error, InodeNumber};
use pext4_ondisk::inode::InodeFlags;
use rustix::fs::{FallocateFlags, OFlags};

use super::{Answer, Dispatch, Errno, kernel_release};
use crate::node::inode_of;

const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;

/// What `lseek` searches for; the kernel answers the other kinds itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whence {
    /// The next byte that is not in a hole.
    Data,
    /// The next hole, or the end of the file.
    Hole,
}

impl Whence {
    /// The kind with `lseek`'s number.
    ///
    /// # Errors
    ///
    /// `EINVAL` for another kind.
    pub fn from_number(number: i32) -> Answer<Self> {
        match number {
            SEEK_DATA => Ok(Self::Data),
            SEEK_HOLE => Ok(Self::Hole),
            _ => Err(Errno::INVALID),
        }
    }
}

/// Whether a read or listing changes the access time. It does not if the file was opened with
/// `O_NOATIME`, or if the kernel reads the bytes around those that it writes (`O_WRONLY`).
pub(super) fn is_access(flags: i32) -> bool {
    let flags = OFlags::from_bits_retain(flags.cast_unsigned());
    flags & OFlags::RWMODE != OFlags::WRONLY && !flags.contains(OFlags::NOATIME)
}

pub(super) fn is_append_only(attributes: &Attributes) -> bool {
    attributes.flags & InodeFlags::APPEND.bits() != 0
}

/// The mode that the flags of `fallocate` stand for.
fn allocate_mode(flags: u32) -> Answer<AllocateMode> {
    const KEEP_SIZE: u32 = FallocateFlags::KEEP_SIZE.bits();
    const ZERO_RANGE: u32 = FallocateFlags::ZERO_RANGE.bits();
    const KEEP_AND_PUNCH: u32 = KEEP_SIZE | FallocateFlags::PUNCH_HOLE.bits();
    const KEEP_AND_ZERO: u32 = KEEP_SIZE | ZERO_RANGE;
    match flags {
        0 => Ok(AllocateMode::Extend),
        KEEP_SIZE => Ok(AllocateMode::KeepSize),
        KEEP_AND_PUNCH => Ok(AllocateMode::PunchHole),
        ZERO_RANGE => Ok(AllocateMode::ZeroRange { keep_size: false }),
        KEEP_AND_ZERO => Ok(AllocateMode::ZeroRange { keep_size: true }),
        _ => Err(Errno::NOT_SUPPORTED),
    }
}

/// Whether the running kernel stamps a file at every `fallocate`.
fn kernel_stamps_always() -> bool {
    kernel_release::is_at_least((6, 1))
}

/// Whether `fallocate` up to byte `end` changes bytes of a file of `size` bytes and keeps its size.
/// Older kernels do not stamp the file then.
fn changes_bytes_only(mode: AllocateMode, end: u64, size: u64) -> bool {
    match mode {
        AllocateMode::PunchHole | AllocateMode::ZeroRange { keep_size: true } => true,
        AllocateMode::ZeroRange { keep_size: false } => end <= size,
        // `Extend` and `KeepSize`.
        _ => false,
    }
}

/// Where in a buffer that begins at `start` the bytes of a range are.
fn place(range: &Range<u64>, start: u64) -> Range<usize> {
    let within = |at: u64| usize::try_from(at - start).expect("within a buffer");
    within(range.start)..within(range.end)
}

impl Dispatch {
    /// Reads into `into` and returns the number of bytes, which is less than asked for only at the
    /// end of the file. `flags` are those with which the file was opened.
    ///
    /// # Errors
    ///
    /// The volume's.
    pub fn read(&self, node: u64, offset: u64, into: &mut [u8], flags: i32) -> Answer<usize> {
        let inode = Self::inode(node)?;
        let length = self.answer(self.volume.read(inode, offset, into))?;
        if is_access(flags) {
            self.note_access(inode, self.access_times.files);
        }
        Ok(length)
    }

    /// Whether a request that makes the file grow to `size` would wait for a commit, which the
    /// transport's threads must not do.
    #[must_use]
    pub fn write_waits(&self, node: u64, size: u64) -> bool {
        inode_of(node).is_some_and(|inode| self.volume.write_waits(inode, size))
    }

    /// Writes `from` and leaves the file's times as they are: with its writeback cache the kernel
    /// keeps them itself, for direct writes too, and has reported them to callers of `stat`. It
    /// sends them later, unless its clock has not moved since it sent the last ones; a stamp of our
    /// clock, which may be a little behind, would then move them back.
    ///
    /// # Errors
    ///
    /// The volume's.
    pub fn write(&self, node: u64, offset: u64, from: &[u8]) -> Answer<usize> {
        let inode = Self::inode(node)?;
        let attributes = self.answer(self.volume.attributes(inode))?;
        if is_append_only(&attributes) {
            return self.append(inode, offset, from);
        }
        // The kernel takes a short reply to a direct write for a failure of the device, and ignores
        // the count of a write from its cache.
        match self.write_all(inode, offset, from) {
            (_, Some(error)) => Err(self.errno(&error)),
            (count, None) => Ok(count),
        }
    }

    /// Writes to an append-only file: only behind its end and into gaps (see `AppendGaps`). From
    /// its page cache the kernel writes whole pages, with the old bytes before the new ones.
    fn append(&self, inode: InodeNumber, offset: u64, from: &[u8]) -> Answer<usize> {
        let range = offset..offset.saturating_add(from.len() as u64);
        let size = self.size_with_gap_before(inode, offset)?;
        let inside = offset..size.clamp(offset, range.end);
        let mut new = self.append_gaps.fill(inode, &inside);
        let is_unchanged = self.has_bytes_outside(&new, inode, &inside, from);
        if !matches!(is_unchanged, Ok(true)) {
            new.into_iter()
                .for_each(|gap| self.append_gaps.add(inode, gap));
            return is_unchanged.and(Err(Errno::NOT_PERMITTED));
        }
        new.push(inside.end..range.end);
        let written = self.write_parts(inode, (offset, from), &new);
        let done = written.as_ref().map_or(0, |done| *done);
        self.append_gaps
            .fill(inode, &(offset..offset + done as u64));
        if done < from.len() {
            // The kernel, or the repetition of this request, may write the rest again.
            for gap in new.iter().filter(|part| part.end <= size) {
                let rest = gap.start.max(offset + done as u64)..gap.end;
                self.append_gaps.add(inode, rest);
            }
        }
        self.answer(written)
    }

    /// Writes these parts of `from`, which begins at `offset`. Returns how many bytes of `from` the
    /// file has then; fails if none of the parts could be written.
    fn write_parts(
        &self,
        inode: InodeNumber,
        (offset, from): (u64, &[u8]),
        parts: &[Range<u64>],
    ) -> Result<usize, Error> {
        let mut has_written = false;
        for part in parts.iter().filter(|part| !part.is_empty()) {
            let within = place(part, offset);
            match self.write_all(inode, part.start, &from[within.clone()]) {
                (_, None) => has_written = true,
                (0, Some(error)) if !has_written => return Err(error),
                (count, Some(_)) => return Ok(within.start + count),
            }
        }
        Ok(from.len())
    }

    /// The size of an append-only file that will grow beyond `offset`. If `offset` is behind its
    /// end, what is between is a gap.
    fn size_with_gap_before(&self, inode: InodeNumber, offset: u64) -> Answer<u64> {
        let size = || {
            self.answer(self.volume.attributes(inode))
                .map(|found| found.size)
        };
        let mut before = size()?;
        // It ends, as every turn but the last finds the file longer, and still shorter than
        // `offset`.
        while before < offset {
            self.append_gaps.add(inode, before..offset);
            let now = size()?;
            if now == before {
                break;
            }
            self.append_gaps.fill(inode, &(before..offset));
            before = now;
        }
        Ok(before)
    }

    /// Whether the file has these bytes, which begin at the start of the range `inside`, but for
    /// those in gaps.
    fn has_bytes_outside(
        &self,
        gaps: &[Range<u64>],
        inode: InodeNumber,
        inside: &Range<u64>,
        from: &[u8],
    ) -> Answer<bool> {
        let starts = std::iter::once(inside.start).chain(gaps.iter().map(|gap| gap.end));
        let ends = gaps.iter().map(|gap| gap.start).chain([inside.end]);
        for part in starts.zip(ends).map(|(start, end)| start..end) {
            let expected = &from[place(&part, inside.start)];
            let mut old = vec![0; expected.len()];
            let read = self.answer(self.volume.read(inode, part.start, &mut old))?;
            if read < old.len() || old != expected {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn write_all(&self, inode: InodeNumber, offset: u64, from: &[u8]) -> (usize, Option<Error>) {
        let mut done = 0;
        while done < from.len() {
            let (at, rest) = (offset + done as u64, &from[done..]);
            match self.retry_if_full(|| self.volume.write_from_cache(inode, at, rest)) {
                Ok(count) => done += count,
                Err(error) => return (done, Some(error)),
            }
        }
        (done, None)
    }

    /// `fallocate(2)` with its flags.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` for other combinations of flags than those of [`AllocateMode`]; the volume's.
    pub fn allocate(&self, node: u64, flags: u32, offset: u64, length: u64) -> Answer<()> {
        let mode = allocate_mode(flags)?;
        let inode = Self::inode(node)?;
        let attributes = self.answer(self.volume.attributes(inode))?;
        let end = offset.saturating_add(length);
        if mode == AllocateMode::Extend && is_append_only(&attributes) {
            // The kernel may still have bytes in its cache that belong into what is allocated.
            self.size_with_gap_before(inode, end)?;
        }
        let kernel_stamps =
            kernel_stamps_always() || !changes_bytes_only(mode, end, attributes.size);
        self.allocate_in(inode, mode, (offset, length), kernel_stamps)?;
        self.commit_change()
    }

    /// If the kernel stamps the file, as it does for writes, its times are kept here.
    fn allocate_in(
        &self,
        inode: InodeNumber,
        mode: AllocateMode,
        (offset, length): (u64, u64),
        kernel_stamps: bool,
    ) -> Answer<()> {
        let allocate = || match kernel_stamps {
            true => self.volume.allocate_from_cache(inode, mode, offset, length),
            false => self.volume.allocate(inode, mode, offset, length),
        };
        self.answer(self.retry_if_full(allocate))
    }

    /// The next data or hole at or behind `offset`.
    ///
    /// # Errors
    ///
    /// `ENXIO` where there is none; the volume's.
    pub fn seek(&self, node: u64, offset: u64, whence: Whence) -> Answer<u64> {
        let inode = Self::inode(node)?;
        self.answer(match whence {
            Whence::Data => self.volume.seek_data(inode, offset),
            Whence::Hole => self.volume.seek_hole(inode, offset),
        })
    }

    /// Makes a file or directory durable; returns after the commit.
    ///
    /// # Errors
    ///
    /// The volume's.
    pub fn sync(&self, node: u64, data_only: bool) -> Answer<()> {
        let inode = Self::inode(node)?;
        self.answer(match data_only {
            true => self.volume.fdatasync(inode),
            false => self.volume.fsync(inode),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pext4_fs::{CreateAttributes, SetAttributes, SetTime, Time, Volume};

    use super::{
        AllocateMode, Dispatch, Errno, InodeFlags, InodeNumber, Whence, allocate_mode,
        changes_bytes_only, is_access,
    };
    use crate::node::node_of;
    use crate::testing;

    const PAGE: usize = 4096;

    /// An empty append-only file, and the requests for it.
    struct Log {
        volume: Arc<Volume>,
        dispatch: Dispatch,
        inode: InodeNumber,
    }

    impl Log {
        fn new() -> Self {
            let volume = Arc::new(testing::volume());
            let made = volume.create(InodeNumber::ROOT, b"log", &CreateAttributes::default());
            let inode = made.expect("room").inode;
            let append_only = SetAttributes {
                flags: Some((InodeFlags::APPEND | InodeFlags::EXTENTS).bits()),
                ..SetAttributes::default()
            };
            let set = volume.set_attributes(inode, &append_only);
            set.expect("a flag that is supported");
            Self {
                dispatch: testing::dispatch(&volume),
                volume,
                inode,
            }
        }

        fn write(&self, page: usize, bytes: &[u8]) -> super::Answer<usize> {
            let offset = (page * PAGE) as u64;
            self.dispatch.write(node_of(self.inode), offset, bytes)
        }

        fn allocate(&self, length: u64) {
            let done = self.dispatch.allocate(node_of(self.inode), 0, 0, length);
            done.expect("there is room");
        }

        fn content(&self) -> Vec<u8> {
            let mut bytes = vec![0; 64 * PAGE];
            let read = self.volume.read(self.inode, 0, &mut bytes);
            bytes.truncate(read.expect("it can be read"));
            bytes
        }
    }

    #[test]
    fn pages_of_an_append_only_file_arrive_in_any_order() {
        let log = Log::new();
        let pages = [1, 2, 3, 4, 5].map(|byte| [byte; PAGE]);
        for page in [3, 1, 4, 0, 2] {
            assert_eq!(log.write(page, &pages[page]), Ok(PAGE), "page {page}");
        }
        assert!(log.content() == pages.concat());
        assert_eq!(log.write(1, &pages[1]), Ok(PAGE), "the same once more");
        for page in 0..5 {
            let refused = log.write(page, &[9; PAGE]);
            assert_eq!(refused, Err(Errno::NOT_PERMITTED), "page {page}");
        }
        assert!(log.content() == pages.concat());
    }

    #[test]
    fn bytes_that_were_in_the_cache_reach_what_fallocate_added() {
        let log = Log::new();
        assert_eq!(log.write(0, &[1; 100]), Ok(100));
        log.allocate(10 * PAGE as u64);
        let mut page = [2; PAGE];
        page[..100].fill(1);
        assert_eq!(log.write(0, &page), Ok(PAGE), "100 bytes are old");
        assert_eq!(log.write(0, &[3; PAGE]), Err(Errno::NOT_PERMITTED));
        assert_eq!(log.content()[..PAGE], page);
        log.volume.hold(log.inode);
        log.dispatch.forget(node_of(log.inode), 1);
        assert_eq!(
            log.write(4, &[4; PAGE]),
            Ok(PAGE),
            "the kernel has it still"
        );
        log.dispatch.forget(node_of(log.inode), 1);
        let late = log.write(5, &[4; PAGE]);
        assert_eq!(late, Err(Errno::NOT_PERMITTED), "nothing waits any more");
    }

    #[test]
    fn a_repeated_append_finds_its_gap_again() {
        let log = Log::new();
        assert_eq!(log.write(1, &[2; PAGE]), Ok(PAGE));
        let mut mixed = [1; 2 * PAGE];
        mixed[2 * PAGE - 1] = 9;
        let refused = log.write(0, &mixed);
        assert_eq!(refused, Err(Errno::NOT_PERMITTED), "it ends in old bytes");
        assert_eq!(log.write(0, &[1; PAGE]), Ok(PAGE));
    }

    #[test]
    fn a_write_across_the_largest_size_is_refused_as_such_and_keeps_what_fits() {
        let volume = Arc::new(testing::volume());
        let made = volume.create(InodeNumber::ROOT, b"file", &CreateAttributes::default());
        let inode = made.expect("room").inode;
        let dispatch = testing::dispatch(&volume);
        let largest = u64::from(u32::MAX) * 1024;
        let offset = largest - PAGE as u64;
        let written = dispatch.write(node_of(inode), offset, &[7; 2 * PAGE]);
        assert_eq!(written, Err(Errno(27)));
        let mut read = [0; 2 * PAGE];
        assert_eq!(volume.read(inode, offset, &mut read).ok(), Some(PAGE));
        assert_eq!(read[..PAGE], [7; PAGE]);
    }

    #[test]
    fn a_write_keeps_the_times_which_the_kernel_sends() {
        let volume = Arc::new(testing::volume());
        let made = volume.create(InodeNumber::ROOT, b"file", &CreateAttributes::default());
        let inode = made.expect("room").inode;
        let ahead = Time {
            seconds: 1 << 32,
            nanoseconds: 0,
        };
        let set = SetAttributes {
            modified: Some(SetTime::To(ahead)),
            changed: Some(SetTime::To(ahead)),
            ..SetAttributes::default()
        };
        volume.set_attributes(inode, &set).expect("a time");
        let written = testing::dispatch(&volume).write(node_of(inode), 0, &[7; PAGE]);
        assert_eq!(written, Ok(PAGE));
        let kept = volume.attributes(inode).expect("it is there");
        assert_eq!((kept.modified, kept.changed), (ahead, ahead));
    }

    #[test]
    fn a_read_changes_the_access_time_unless_it_serves_a_write_or_is_opened_without() {
        assert!(is_access(0) && is_access(2 | 0o100_000));
        assert!(!is_access(1) && !is_access(0o1_000_000));
    }

    #[test]
    fn flags_of_fallocate_say_what_is_asked_or_are_refused() {
        assert_eq!(allocate_mode(0), Ok(AllocateMode::Extend));
        assert_eq!(allocate_mode(1), Ok(AllocateMode::KeepSize));
        assert_eq!(allocate_mode(3), Ok(AllocateMode::PunchHole));
        assert_eq!(
            allocate_mode(0x10),
            Ok(AllocateMode::ZeroRange { keep_size: false })
        );
        assert_eq!(
            allocate_mode(0x11),
            Ok(AllocateMode::ZeroRange { keep_size: true })
        );
        for flags in [2, 0x08, 0x13, 0x20, 0x40, u32::MAX] {
            assert_eq!(
                allocate_mode(flags),
                Err(Errno::NOT_SUPPORTED),
                "flags {flags:#x}"
            );
        }
    }

    #[test]
    fn a_range_that_is_zeroed_stamps_the_file_if_the_kernel_does_not() {
        let volume = Arc::new(testing::volume());
        let made = volume.create(InodeNumber::ROOT, b"file", &CreateAttributes::default());
        let inode = made.expect("room").inode;
        volume.write(inode, 0, &[1; PAGE]).expect("room");
        let old = Time {
            seconds: 5,
            nanoseconds: 0,
        };
        let set = SetAttributes {
            modified: Some(SetTime::To(old)),
            ..SetAttributes::default()
        };
        let dispatch = testing::dispatch(&volume);
        let size = PAGE as u64;
        for mode in [0x03, 0x11, 0x10].map(|flags| allocate_mode(flags).expect("it is known")) {
            assert!(changes_bytes_only(mode, size, size), "{mode:?}");
            for kernel_stamps in [true, false] {
                volume.set_attributes(inode, &set).expect("a time");
                let done = dispatch.allocate_in(inode, mode, (0, size), kernel_stamps);
                done.expect("there is room");
                let modified = volume.attributes(inode).expect("it is there").modified;
                assert_eq!(modified == old, kernel_stamps, "{mode:?}");
            }
        }
        for mode in [AllocateMode::Extend, AllocateMode::KeepSize] {
            assert!(!changes_bytes_only(mode, size, size), "{mode:?}");
        }
        // The kernel stamps a file that grows.
        let zero = AllocateMode::ZeroRange { keep_size: false };
        assert!(!changes_bytes_only(zero, size + 1, size));
    }

    #[test]
    fn only_data_and_holes_are_asked_for() {
        assert_eq!(Whence::from_number(3), Ok(Whence::Data));
        assert_eq!(Whence::from_number(4), Ok(Whence::Hole));
        assert_eq!(Whence::from_number(0), Err(Errno::INVALID));
    }
}
