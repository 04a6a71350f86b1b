//! Numbers that fast commits have chosen.

use pext4_ondisk::{GroupNumber, InodeNumber};

use super::FOUR_GROUPS;
use crate::groups::testing::Ground;

/// A replay with many new inodes asks this for each of them.
#[test]
fn only_slots_that_were_never_written_are_looked_at() {
    let shape = [FOUR_GROUPS, &["-E", "lazy_itable_init=1"]].concat();
    let Some(ground) = Ground::make(&shape, "64M") else {
        return;
    };
    let inode = |index| ground.store.geometry.inode_at(GroupNumber(2), index);
    let inode = |index| inode(index).expect("the group has 512");
    let looked_at = |index| {
        let slots = ground.groups.unwritten_slots_before(inode(index));
        let slots = slots.expect("there is such a number");
        (slots.size_hint().1, slots.collect::<Vec<InodeNumber>>())
    };
    assert_eq!(looked_at(3), (Some(3), [0, 1, 2].map(inode).to_vec()));
    let mut handle = ground.handle();
    let claimed = ground
        .groups
        .claim_known_inode(&mut handle, inode(400), false);
    claimed.expect("it is free");
    assert_eq!(looked_at(402), (Some(1), vec![inode(401)]));
    assert_eq!(looked_at(400), (Some(0), vec![]));
    assert_eq!(looked_at(5), (Some(0), vec![]));
}
