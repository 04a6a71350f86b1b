//! Damage that only Linux minds.

use pext4_ondisk::BlockNumber;
use pext4_ondisk::journal::RecordChecksum;

use super::{DEVICE_BLOCKS, Rig};
use crate::recovery::Replay;

fn damaged(rig: &Rig) -> Vec<BlockNumber> {
    let plan = Replay::plan(&rig.device, &rig.area, &rig.superblock, DEVICE_BLOCKS);
    plan.expect("nothing that counts is damaged")
        .damaged_superseded(&rig.device)
}

#[test]
fn damage_to_superseded_versions_is_told_and_to_revoked_ones_it_is_not() {
    for mut rig in Rig::all() {
        let at = rig.at;
        rig.log(&[(4, 1), (5, 1), (6, 1)]).commit();
        rig.log(&[(5, 2), (6, 2)]).commit();
        rig.revoke(&[4]).log(&[(5, 3)]).commit();
        assert_eq!(damaged(&rig), []);
        // The revoked one, then one that is written again twice, then one that is once.
        rig.damage(at + 1, 0).damage(at + 2, 0);
        let is_summed = rig.format().checksum != RecordChecksum::None;
        let expected = [BlockNumber(5)];
        assert_eq!(damaged(&rig), expected[..usize::from(is_summed)]);
        // The same block's in the next transaction, which lies behind the end of the ring.
        rig.damage(3, 0);
        let expected = [BlockNumber(5), BlockNumber(5)];
        let count = expected.len() * usize::from(is_summed);
        assert_eq!(damaged(&rig), expected[..count]);
    }
}
