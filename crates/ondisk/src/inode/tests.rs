//! Slots of every size and extra size, checksums, and the fields with a second meaning.

use proptest::prelude::*;

use super::{Inode, InodeFlags};
use crate::number::InodeNumber;
use crate::time::Time;

const NUMBER: InodeNumber = InodeNumber(12);

#[test]
fn a_field_counts_only_if_the_extra_part_covers_it() {
    let mut slot = [0xFF; 256];
    slot[0x80..0x82].copy_from_slice(&16u16.to_le_bytes());
    slot[0x8C..0x90].copy_from_slice(&[4, 0, 0, 0]);
    let inode = Inode::decode(&slot, NUMBER, None).expect("16 is a legal extra size");
    assert_eq!(
        inode.accessed,
        Time {
            seconds: -1,
            nanoseconds: 1
        }
    );
    assert_eq!(inode.created, None);
    assert_eq!(inode.version, 0xFFFF_FFFF);
    assert_eq!(inode.project, 0);
    assert_eq!(inode.tail.len(), 256 - 128 - 16);
}

#[test]
fn checksums_cover_every_byte_but_their_own() {
    for (size, extra) in [(128, 0), (256, 0), (256, 4), (256, 32), (1024, 40)] {
        let mut inode = Inode::new(size, extra);
        inode.mode = 0o100_644;
        inode.generation = 99;
        let mut slot = vec![0; usize::from(size)];
        inode.encode(&mut slot, NUMBER, Some(7));
        assert!(
            Inode::decode(&slot, NUMBER, Some(7)).is_ok(),
            "{size} {extra}"
        );
        assert!(Inode::decode(&slot, InodeNumber(13), Some(7)).is_err());
        for at in (0..slot.len())
            .step_by(3)
            .filter(|at| !(0x80..0x82).contains(at))
        {
            slot[at] ^= 0x20;
            assert!(
                Inode::decode(&slot, NUMBER, Some(7)).is_err(),
                "{size} {extra} {at:#x}"
            );
            slot[at] ^= 0x20;
        }
    }
}

#[test]
fn a_slot_of_zeroes_needs_no_checksum() {
    assert_eq!(
        Inode::decode(&[0; 256], NUMBER, Some(7)).map(|inode| inode.mode),
        Ok(0)
    );
}

#[test]
fn impossible_extra_sizes_are_refused() {
    for extra in [2u16, 3, 30, 132, 0xFFFC] {
        let mut slot = [0; 256];
        slot[0x80..0x82].copy_from_slice(&extra.to_le_bytes());
        assert!(Inode::decode(&slot, NUMBER, None).is_err(), "{extra}");
    }
    assert!(Inode::decode(&[0; 127], NUMBER, None).is_err());
}

#[test]
fn devices_take_the_old_form_where_they_can() {
    let mut inode = Inode::new(256, 32);
    for (major, minor, word) in [(8, 1, 0), (259, 3, 1), (1, 256, 1), (0xFFF, 0xF_FFFF, 1)] {
        inode.set_device(major, minor);
        assert_eq!(inode.device(), (major, minor));
        let used = inode.block[4 * word..4 * word + 4]
            .iter()
            .any(|&byte| byte != 0);
        assert!(used, "{major}:{minor} lies in word {word}");
    }
}

#[test]
fn space_changes_its_unit_when_it_must() {
    let mut inode = Inode::new(256, 32);
    assert!(inode.set_sectors(8, 4096, false));
    assert!(!inode.set_sectors(1 << 32, 4096, false));
    assert_eq!(inode.sectors(4096), 8);
    assert!(inode.set_sectors(1 << 48, 4096, true));
    assert!(inode.flags.contains(InodeFlags::HUGE_FILE));
    assert_eq!((inode.blocks, inode.sectors(4096)), (1 << 45, 1 << 48));
    assert!(inode.set_sectors(16, 4096, true));
    assert_eq!((inode.blocks, inode.flags), (16, InodeFlags::empty()));
}

#[test]
fn short_links_hold_59_bytes() {
    let mut inode = Inode::new(256, 32);
    inode.mode = 0o120_777;
    assert!(inode.set_fast_symlink_target(&[b'x'; 59]));
    assert_eq!(inode.fast_symlink_target(), Ok(&[b'x'; 59][..]));
    assert!(!inode.set_fast_symlink_target(&[b'x'; 60]));
    assert!(!inode.set_fast_symlink_target(b""));
    inode.block[4] = 0;
    assert!(
        inode.fast_symlink_target().is_err(),
        "size and text disagree"
    );
}

#[test]
fn value_inodes_count_in_times() {
    let mut inode = Inode::new(256, 32);
    inode.set_value_references(0xDEAD_BEEF_0000_0003);
    inode.set_value_hash(0xFEDC_BA98);
    let mut slot = [0; 256];
    inode.encode(&mut slot, NUMBER, None);
    let again = Inode::decode(&slot, NUMBER, None).expect("sound");
    assert_eq!(again.value_references(), 0xDEAD_BEEF_0000_0003);
    assert_eq!(again.value_hash(), 0xFEDC_BA98);
    assert_eq!(
        slot[0x0C..0x10],
        [0xEF, 0xBE, 0xAD, 0xDE],
        "the high half is in ctime"
    );
}

proptest! {
    #[test]
    fn any_bytes_come_back(
        mut slot in proptest::collection::vec(any::<u8>(), 1024),
        power in 7u32..11,
        extra in 0u16..60,
    ) {
        let size = 1usize << power;
        slot.truncate(size);
        if size > 128 {
            slot[0x80..0x82].copy_from_slice(&(extra * 4).to_le_bytes());
            // Nanoseconds in range, and not the pattern of old kernels.
            for word in [0x87, 0x8B, 0x8F, 0x97] {
                slot[word] &= 0x7F;
                slot[word - 3] &= !1;
            }
        }
        if let Ok(inode) = Inode::decode(&slot, NUMBER, None) {
            let mut again = vec![0; size];
            inode.encode(&mut again, NUMBER, None);
            prop_assert_eq!(&again, &slot);
        }
    }

    #[test]
    fn no_slot_makes_it_panic(slot in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = Inode::decode(&slot, NUMBER, Some(1));
    }
}
