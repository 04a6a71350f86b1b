//! A range of a file or block device as a device of its own, and what says where it ends.

use std::io;
use std::ops::Range;

use super::{FileDevice, Kind, error};
use crate::device::{Device, check_range};
use crate::partition_table::Disk;

/// What says where a range of a file or block device ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeEnd {
    /// Who opened it: what lies in the range belongs to it.
    Given,
    /// The table of partitions, which has one that begins where the range does: what lies in the
    /// range belongs to it.
    Partition,
    /// Something else that the table of partitions names, which begins or ends there. The table
    /// does not have the range itself, so something else may lie behind the range's file system.
    Neighbour,
    /// Only the end of the file or device, so something else may lie behind the range's file
    /// system.
    File,
}

impl RangeEnd {
    /// Whether all that lies in the range belongs to it.
    #[must_use]
    pub fn is_owned(self) -> bool {
        matches!(self, Self::Given | Self::Partition)
    }
}

impl FileDevice {
    /// The device that is `length` bytes at `start` of this one: a partition of a disk image, for
    /// example. Without a length, it ends with the partition that begins there by the table of this
    /// device. If none does, it ends where the table names something else: another partition
    /// behind it or around it, or the copy of the table at the end of the disk; or else with this
    /// device. The lock remains as it is.
    ///
    /// # Errors
    ///
    /// The range does not lie within the device; its table cannot be read.
    pub fn into_range(self, start: u64, length: Option<u64>) -> io::Result<Self> {
        let (length, range_end) = match length {
            Some(length) => (length, RangeEnd::Given),
            // The first sector has no table then, but a boot sector of the file system.
            None if start == 0 => (self.size, RangeEnd::File),
            None => {
                let (end, by) = self.with_disk(|disk| disk.end_of(start))?;
                (end.saturating_sub(start), by)
            }
        };
        check_range(self.size, start, length)
            .map_err(|source| error(&self.path, "use a part of it", source))?;
        Ok(Self {
            start: self.start + start,
            size: length,
            range_end: Some(range_end),
            ..self
        })
    }

    /// The partitions of a disk, in bytes of this device, in the order of its table; none if it has
    /// no table.
    ///
    /// # Errors
    ///
    /// The table cannot be read.
    pub fn partitions(&self) -> io::Result<Vec<Range<u64>>> {
        self.with_disk(|disk| disk.partitions())
    }

    fn with_disk<T>(&self, ask: impl FnOnce(&Disk<'_>) -> io::Result<T>) -> io::Result<T> {
        ask(&Disk {
            size: self.size,
            sector: self.sector_size(),
            read: &|at, into| self.read_at(at, into),
        })
    }

    /// Bytes of a logical sector of a block device, the least that it reads or writes at once, if
    /// the system knows them; `None` for a regular file.
    #[must_use]
    pub fn sector_size(&self) -> Option<u64> {
        if self.kind != Kind::Block {
            return None;
        }
        let bytes = rustix::fs::ioctl_blksszget(&self.file).ok()?;
        (bytes > 0).then_some(bytes.into())
    }

    /// Where the device lies in its file, in bytes; `None` if it is all of it.
    #[must_use]
    pub fn range(&self) -> Option<Range<u64>> {
        self.range_end.map(|_| self.start..self.start + self.size)
    }

    /// What says where the range ends; `None` if the device is all of its file.
    #[must_use]
    pub fn range_end(&self) -> Option<RangeEnd> {
        self.range_end
    }
}
