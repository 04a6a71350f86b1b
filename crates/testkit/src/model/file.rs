//! File contents: read, write, truncate, allocate, seek.

use std::ops::Range;
use std::sync::Arc;

use pext4_fs::AllocateMode;

use super::{Body, Expected, File, KnownTime, Model, Refusals, Verdict};
use crate::content::pattern;
use crate::errno::{EBADF, EFBIG, EINVAL, EISDIR, ELOOP, ENODEV, ENXIO, EOPNOTSUPP, EPERM};
use crate::op::{Op, Target};

/// Bytes in a page of memory, the unit of some kernel operations.
const PAGE: u64 = 4096;

impl File {
    /// Makes a range of bytes, which is zero already, a hole. Returns whether a block was surely
    /// unmapped: zeroing a part of a block changes data, not the mapping.
    fn punch(&mut self, bytes: Range<u64>, block_size: u64) -> bool {
        let (size, Range { start, end }) = (self.content.size(), bytes);
        let before = self.required.count();
        self.required
            .remove(start.div_ceil(block_size), end / block_size);
        let unmapped = self.required.count() != before;
        // A hole that reaches past the end of the file may free the rest of the last page too.
        let reach = match end >= size {
            true => end.max(size.next_multiple_of(PAGE)),
            false => end,
        };
        self.required
            .remove(start / block_size, reach.div_ceil(block_size));
        self.possible
            .remove(start.div_ceil(block_size), end.min(size) / block_size);
        unmapped
    }
}

impl Model {
    pub(super) fn apply_file(&mut self, op: &Op) -> Verdict {
        match op {
            Op::Read { of, offset, length } => self.read(of, *offset, *length),
            Op::Write {
                of,
                offset,
                length,
                fill,
            } => self.write(of, *offset, *length, *fill),
            Op::Truncate { of, size } => self.truncate(of, *size),
            Op::Allocate {
                of,
                mode,
                offset,
                length,
            } => self.allocate(of, *mode, *offset, *length),
            Op::SeekData { of, offset } => self.seek(of, *offset, Expected::DataFrom),
            Op::SeekHole { of, offset } => self.seek(of, *offset, Expected::HoleFrom),
            _ => self.apply_attributes(op),
        }
    }

    /// The inode of a regular file, or why it cannot be read or written.
    fn regular(&self, of: &Target) -> Result<u32, Refusals> {
        let inode = self.resolve(of)?;
        match &self.existing(inode).body {
            Body::Regular(_) => Ok(inode),
            Body::Directory { .. } => Err([EISDIR, EINVAL, EBADF, ENODEV, EOPNOTSUPP].into()),
            Body::Symlink(_) => Err([EINVAL, ELOOP, EBADF, EOPNOTSUPP, EPERM].into()),
            Body::Special(..) => Err([EINVAL, ENXIO, ENODEV, EBADF, EOPNOTSUPP, EPERM].into()),
        }
    }

    fn file_of(&self, inode: u32) -> &File {
        self.existing(inode)
            .file()
            .expect("checked to be a regular file")
    }

    fn change_file(&mut self, inode: u32) -> &mut File {
        match &mut self.change(inode).body {
            Body::Regular(file) => file,
            _ => unreachable!("checked to be a regular file"),
        }
    }

    fn seek(&self, of: &Target, offset: u64, found: fn(u32, u64) -> Expected) -> Verdict {
        let inode = self.resolve(of)?;
        match self.existing(inode).file() {
            // POSIX and the kernel do not define seeking for data on such files.
            None => Ok(Expected::Anything),
            Some(file) if offset >= file.content.size() => Err(ENXIO.into()),
            Some(_) => Ok(found(inode, offset)),
        }
    }

    fn read(&mut self, of: &Target, offset: u64, length: u64) -> Verdict {
        let inode = self.regular(of)?;
        let bytes = self.file_of(inode).content.read(offset, length);
        self.forget_access(inode);
        Ok(Expected::Bytes(bytes))
    }

    fn write(&mut self, of: &Target, offset: u64, length: u64, fill: u64) -> Verdict {
        let inode = self.regular(of)?;
        if length == 0 {
            return Ok(Expected::Count(0));
        }
        let room = self.largest_file().saturating_sub(offset);
        if room == 0 {
            return Err([EFBIG, EINVAL].into());
        }
        let bytes = pattern(fill, length as usize);
        let count = length.min(room);
        self.write_bytes(inode, offset, &bytes[..count as usize]);
        Ok(Expected::Count(count))
    }

    pub(super) fn write_bytes(&mut self, inode: u32, offset: u64, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let (block_size, step) = (self.block_size, self.step);
        let file = self.change_file(inode);
        let before = (file.content.size(), file.possible.count());
        let end = offset + bytes.len() as u64;
        file.content.write(offset, bytes);
        file.required
            .add(offset / block_size, end.div_ceil(block_size));
        file.possible
            .add(offset / block_size, end.div_ceil(block_size));
        // A block that is possible may have been mapped before.
        let grown = before != (file.content.size(), file.possible.count());
        let node = self.change(inode);
        node.modified = KnownTime::Recent;
        if grown {
            node.sized = step;
        }
    }

    fn truncate(&mut self, of: &Target, size: u64) -> Verdict {
        let inode = self.regular(of)?;
        if size > self.largest_file() {
            return Err([EFBIG, EINVAL].into());
        }
        let (blocks, step) = (size.div_ceil(self.block_size), self.step);
        let file = self.change_file(inode);
        let before = file.content.size();
        file.content.resize(size);
        if size <= before {
            file.required.remove(blocks, u64::MAX);
        }
        if size < before {
            file.possible.remove(blocks, u64::MAX);
        }
        let node = self.change(inode);
        node.sized = step;
        node.modified = if size == before {
            KnownTime::Unknown
        } else {
            KnownTime::Recent
        };
        Ok(Expected::Done)
    }

    fn allocate(&mut self, of: &Target, mode: AllocateMode, offset: u64, length: u64) -> Verdict {
        let inode = match self.regular(of) {
            Err(mut refusals) if length == 0 => {
                refusals.0.push(EINVAL);
                return Err(refusals);
            }
            other => other?,
        };
        if length == 0
            || offset
                .checked_add(length)
                .is_none_or(|end| end > i64::MAX as u64)
        {
            return Err([EINVAL, EFBIG].into());
        }
        if self.file_of(inode).has_block_map && mode != AllocateMode::PunchHole {
            // Linux sets the time even if nothing changes.
            self.change(inode).modified = KnownTime::Unknown;
            return Err([EOPNOTSUPP, EFBIG].into());
        }
        if offset + length > self.largest_file() && mode != AllocateMode::PunchHole {
            return Err(EFBIG.into());
        }
        self.allocate_range(inode, mode, offset, offset + length);
        Ok(Expected::Done)
    }

    fn allocate_range(&mut self, inode: u32, mode: AllocateMode, start: u64, end: u64) {
        let (block_size, step) = (self.block_size, self.step);
        let file = self.change_file(inode);
        let size = file.content.size();
        let before = (size, file.possible.count());
        let blocks = (start / block_size, end.div_ceil(block_size));
        if let AllocateMode::PunchHole | AllocateMode::ZeroRange { .. } = mode {
            file.content.zero(start, end - start);
        }
        let grows = matches!(
            mode,
            AllocateMode::Extend | AllocateMode::ZeroRange { keep_size: false }
        );
        let mapping = if mode == AllocateMode::PunchHole {
            file.punch(start..end, block_size)
        } else {
            file.required.add(blocks.0, blocks.1);
            file.possible.add(blocks.0, blocks.1);
            if grows && end > size {
                file.content.resize(end);
            }
            before != (file.content.size(), file.possible.count())
        };
        let node = self.change(inode);
        if mapping {
            node.sized = step;
        }
        node.modified = KnownTime::Unknown;
    }

    /// An allocation that ran out of space half way: some blocks may be allocated, and the size may
    /// have grown to `size`.
    pub(super) fn partly_allocated(&mut self, op: &Op, size: u64) -> Result<(), String> {
        let Op::Allocate {
            of,
            mode,
            offset,
            length,
        } = op
        else {
            return Ok(());
        };
        let Ok(inode) = self.resolve(of) else {
            return Ok(());
        };
        let before = self.file_of(inode).content.size();
        let grows = matches!(
            mode,
            AllocateMode::Extend | AllocateMode::ZeroRange { keep_size: false }
        );
        let most = if grows {
            before.max(offset + length)
        } else {
            before
        };
        if size < before || size > most {
            return Err(format!(
                "after ENOSPC the size is {size}, not within {before}..={most}"
            ));
        }
        let blocks = (
            offset / self.block_size,
            (offset + length).div_ceil(self.block_size),
        );
        let file = self.change_file(inode);
        file.content.resize(size);
        file.possible.add(blocks.0, blocks.1);
        self.change(inode).modified = KnownTime::Unknown;
        Ok(())
    }

    /// A write that ran out of space before its first byte: blocks may have been allocated and
    /// stay.
    pub(super) fn write_without_space(&mut self, op: &Op) {
        let (of, offset, length) = match op {
            Op::Write {
                of, offset, length, ..
            }
            | Op::Allocate {
                of, offset, length, ..
            } => (of, *offset, *length),
            _ => return,
        };
        let Ok(inode) = self.regular(of) else { return };
        let end = offset.saturating_add(length).div_ceil(self.block_size);
        let start = offset / self.block_size;
        let node = Arc::make_mut(self.nodes.get_mut(&inode).expect("just resolved"));
        node.modified = KnownTime::Unknown;
        if let Body::Regular(file) = &mut node.body {
            file.possible.add(start, end);
        }
    }
}
