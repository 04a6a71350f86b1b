//! Fields that must be zero, and times.

use pext4_ondisk::InodeNumber;
use pext4_ondisk::feature::{Incompat, ReadOnlyCompat};
use pext4_ondisk::inode::InodeFlags;

use super::InodeSubject;
use crate::check::catalogue::Kind;
use crate::check::volume::EXTRA_SIZE_AT;

const OBSOLETE_ADDRESS_AT: usize = 0x70;

pub(super) fn check_zeroes(subject: &InodeSubject<'_>, slot: &[u8]) {
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
            !is_wide && inode.attribute_block.get() >> 32 != 0,
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
pub(super) fn check_times(subject: &InodeSubject<'_>, slot: &[u8]) {
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
