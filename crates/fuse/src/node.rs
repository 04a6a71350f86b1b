//! Conversion between node numbers of FUSE and inode numbers of ext4.
//!
//! FUSE's root is 1, ext4's is 2; ext4's inode 1 (the list of bad blocks) has no name and is never
//! shown. So node 1 stands for inode 2, node 2 for no inode, and all others are equal. Only the
//! *node* number differs: `stat` always shows ext4's own number.

use pext4_fs::InodeNumber;

/// FUSE's number of the root.
pub(crate) const ROOT_NODE: u64 = 1;

/// A bit that no inode number has.
const NO_INODE: u64 = 1 << 32;

/// The inode behind a node, or `None` for a number that was never given to the kernel.
pub(crate) fn inode_of(node: u64) -> Option<InodeNumber> {
    match u32::try_from(node).ok()? {
        0 | 2 => None,
        1 => Some(InodeNumber::ROOT),
        number => Some(InodeNumber(number)),
    }
}

/// The node that stands for an inode.
pub(crate) fn node_of(inode: InodeNumber) -> u64 {
    if inode == InodeNumber::ROOT {
        ROOT_NODE
    } else {
        u64::from(inode.get())
    }
}

/// Whether the node with the inode's own number stands for this inode. An entry of a corrupt
/// directory may name an inode for which this is false.
pub(crate) fn is_own_node(inode: InodeNumber) -> bool {
    inode_of(u64::from(inode.get())) == Some(inode)
}

/// The node that a listing gives to a name whose inode cannot be read: the inode's own number, or,
/// if the kernel would take that for the root, a number that stands for no inode.
pub(crate) fn unreadable_node(inode: InodeNumber) -> u64 {
    let number = u64::from(inode.get());
    if is_own_node(inode) {
        number
    } else {
        number | NO_INODE
    }
}

#[cfg(test)]
mod tests {
    use super::{InodeNumber, ROOT_NODE, inode_of, is_own_node, node_of, unreadable_node};

    #[test]
    fn root_trades_its_number_and_all_others_keep_theirs() {
        assert_eq!(inode_of(ROOT_NODE), Some(InodeNumber::ROOT));
        assert_eq!(node_of(InodeNumber::ROOT), ROOT_NODE);
        for inode in [1, 2].map(InodeNumber) {
            assert!(!is_own_node(inode));
            assert_eq!(inode_of(unreadable_node(inode)), None);
        }
        for number in [3, 11, 12, u32::MAX] {
            assert_eq!(inode_of(u64::from(number)), Some(InodeNumber(number)));
            assert_eq!(node_of(InodeNumber(number)), u64::from(number));
            assert_eq!(unreadable_node(InodeNumber(number)), u64::from(number));
        }
    }

    #[test]
    fn numbers_never_given_out_name_no_inode() {
        for node in [0, 2, u64::from(u32::MAX) + 1, u64::MAX] {
            assert_eq!(inode_of(node), None, "node {node}");
        }
    }
}
