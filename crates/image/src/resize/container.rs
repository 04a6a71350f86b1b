//! What a file system lies in: a file, a block device, or a range of one.

use pext4_block::{Device, FileDevice, RangeEnd};

/// What a file system lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Container {
    is_block_device: bool,
    /// What bounds the range that it is of the file or device; `None` for all of it.
    range_end: Option<RangeEnd>,
}

impl Container {
    pub(super) fn of(device: &FileDevice) -> Self {
        Self {
            is_block_device: device.is_block_device(),
            range_end: device.range_end(),
        }
    }

    /// Whether it is a file of its own, whose length follows that of the file system.
    pub(super) fn follows(self) -> bool {
        !self.is_block_device && self.range_end.is_none()
    }

    /// Whether a clone can take its place.
    pub(super) fn can_be_replaced(self) -> bool {
        !self.is_block_device
    }

    /// Whether what lies behind the file system may be something else. A partition and a block
    /// device are the file system's as a whole. A range that is in no table is not, be it one of a
    /// file or of a block device.
    pub(super) fn may_have_other_data(self) -> bool {
        match self.range_end {
            None => !self.is_block_device,
            Some(end) => !end.is_owned(),
        }
    }

    /// Whether a shrink clears what it leaves of the old file system in here.
    pub(super) fn is_cleared(self) -> bool {
        self.can_be_replaced() || self.may_have_other_data()
    }

    /// Says that there is no room for `bytes` in `device`, and how to make it.
    pub(super) fn refusal(self, device: &FileDevice, bytes: u64) -> String {
        let room = device.size();
        let range = device.range().unwrap_or(0..room);
        let kind = match self.is_block_device {
            true => "device",
            false => "file",
        };
        let (place, advice) = match self.range_end {
            Some(RangeEnd::Partition) => (
                "its partition has".to_owned(),
                "make the partition larger first, in the disk's table".to_owned(),
            ),
            Some(RangeEnd::Given) => (
                format!("the part of the {kind} that was opened has"),
                "open a larger part".to_owned(),
            ),
            Some(RangeEnd::Neighbour) => (
                format!(
                    "by the disk's table its room ends before byte {}, and has",
                    range.end
                ),
                "it does not grow over what the table names behind that".to_owned(),
            ),
            Some(RangeEnd::File) | None => {
                let length = range.start.saturating_add(bytes);
                let advice = match self.is_block_device {
                    true => format!("it needs a device of {length} bytes"),
                    false => format!("make the file longer first (`truncate -s {length}`)"),
                };
                let place = match range.start {
                    0 => format!("the {kind} has"),
                    start => format!("from byte {start} on the {kind} has"),
                };
                (place, advice)
            }
        };
        format!("{place} only {room} bytes, the file system would have {bytes}: {advice}")
    }
}
