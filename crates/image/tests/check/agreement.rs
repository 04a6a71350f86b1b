//! Images on which the checker and e2fsck once disagreed: both find the same wrong, or nothing.

use pext4_ondisk::extent::Extent;
use pext4_ondisk::inode::InodeFlags;
use pext4_ondisk::{BlockNumber, LogicalBlock, mmp};

use super::image::{Image, make, names};

/// The findings of an image, made by mke2fs with these options and changed, beside what e2fsck
/// says: whether something is wrong.
fn judged(options: &str, change: impl FnOnce(&mut Image)) -> Option<(Vec<&'static str>, bool)> {
    let options: Vec<&str> = options.split_whitespace().collect();
    let mut image = make(8 << 20, &options)?;
    change(&mut image);
    let (status, told) = image.e2fsck();
    eprintln!("{options:?}: e2fsck ends with {status}\n{told}");
    let report = image.check().expect("it can be checked");
    Some((names(&report), status != 0))
}

/// Both find something wrong, the checker this.
fn both_find(kind: &str, options: &str, change: impl FnOnce(&mut Image)) {
    if let Some((found, is_wrong)) = judged(options, change) {
        assert!(found.contains(&kind) && is_wrong, "{options}: {found:?}");
    }
}

/// Neither finds anything.
fn neither_finds(options: &str, change: impl FnOnce(&mut Image)) {
    if let Some((found, is_wrong)) = judged(options, change) {
        assert!(found.is_empty() && !is_wrong, "{options}: {found:?}");
    }
}

#[test]
fn a_block_just_behind_the_end_of_a_file_with_nodes() {
    both_find("inode-size", "-b 1024", |image| {
        let sparse = image.find("/sparse");
        image.edit_inode(sparse, |inode| inode.size = (inode.size - 1) / 1024 * 1024);
    });
}

#[test]
fn a_logical_cluster_in_two_clusters() {
    let options = "-b 1024 -O bigalloc,^metadata_csum -C 4096";
    both_find("cluster-misaligned", options, |image| {
        let large = image.find("/large");
        image.edit_inode(large, |inode| {
            let entry = inode.block[12..24].try_into().expect("12 bytes");
            let whole = Extent::decode(&entry).expect("a sound extent");
            let second = Extent {
                logical: LogicalBlock(1),
                start: BlockNumber(whole.start.get() + 5),
                length: 1,
                ..whole
            };
            let first = Extent { length: 1, ..whole };
            inode.block[2..4].copy_from_slice(&2u16.to_le_bytes());
            inode.block[12..24].copy_from_slice(&first.encode());
            inode.block[24..36].copy_from_slice(&second.encode());
        });
    });
}

/// The last word of a value belongs to it as a whole.
#[test]
fn a_value_whose_last_word_leaves_the_inode() {
    both_find("xattr-entry", "-b 1024 -O ^metadata_csum", |image| {
        image.debugfs(&["ea_set /large user.q 1"]);
        let large = image.find("/large");
        image.edit_slot(large, |slot| {
            let last = slot.len() - 1;
            // Behind the fields of 32 extra bytes and the magic number of the list.
            let entry = 164;
            let offset = u16::try_from(last - entry).expect("inside the inode");
            slot[entry + 2..entry + 4].copy_from_slice(&offset.to_le_bytes());
            slot[last] = b'1';
        });
    });
}

#[test]
fn a_sequence_of_multiple_mount_protection_that_nobody_clears() {
    for sequence in [mmp::SEQUENCE_CHECKING, 0xFF4D_4D51] {
        both_find("mmp-block", "-b 1024 -O mmp", |image| {
            let (block, seed) = (image.superblock().mmp_block.get(), image.seed());
            let mut mmp = mmp::Mmp::clean(5);
            mmp.sequence = sequence;
            mmp.encode(image.block(block), seed);
        });
    }
}

#[test]
fn kinds_of_dot_and_dot_dot_without_the_feature() {
    both_find(
        "entry-file-type",
        "-b 1024 -O ^filetype,^metadata_csum",
        |image| {
            let root = image.blocks(2)[0];
            image.block(root)[7] = 2;
        },
    );
}

#[test]
fn fast_commits_that_leave_no_log() {
    both_find("journal-superblock", "-b 1024 -J size=1", |image| {
        let first = image.blocks(8)[0];
        image.block(first)[0x2B] |= 0x20;
    });
}

#[test]
fn flexible_groups_that_are_too_large_and_not_used() {
    both_find("superblock-field", "-b 1024 -O ^flex_bg", |image| {
        image.edit_superblock(|superblock| superblock.log_groups_per_flex = 32);
    });
}

/// Descriptors of 32 bytes count the blocks of a group with 16 bits.
#[test]
fn groups_of_more_blocks_than_can_be_counted() {
    let Some(mut image) = make(32 << 20, &["-b", "16384", "-O", "^64bit"]) else {
        return;
    };
    image.edit_superblock(|superblock| {
        superblock.blocks_per_group = 131_072;
        superblock.clusters_per_group = 131_072;
    });
    let (status, told) = image.e2fsck();
    assert_ne!(status, 0, "{told}");
    let error = image.check().expect_err("no such groups");
    let says = "131072 blocks in a group";
    assert!(error.to_string().contains(says), "{error}");
}

/// The checker finds this; e2fsck asks about it and ends as if nothing were wrong.
fn asked_about(kind: &str, options: &str, change: impl FnOnce(&mut Image)) {
    if let Some((found, _)) = judged(options, change) {
        assert!(found.contains(&kind), "{options}: {found:?}");
    }
}

#[test]
fn features_of_the_first_revision() {
    let options = "-b 1024 -I 128 -O ^extents,^64bit,^metadata_csum";
    asked_about("superblock-field", options, |image| {
        image.edit_superblock(|superblock| superblock.revision = 0);
    });
}

#[test]
fn extra_sizes_that_no_feature_promises() {
    asked_about("superblock-field", "-b 1024 -O ^extra_isize", |image| {
        image.edit_superblock(|superblock| superblock.want_extra_isize = 33);
    });
}

/// libext2fs stores names of namespaces that it does not know, and Linux hides them.
#[test]
fn an_attribute_without_a_prefix_is_no_damage() {
    neither_finds("-b 1024", |image| {
        image.debugfs(&["ea_set /large btrfs.compression zstd"]);
    });
}

#[test]
fn inodes_of_afs_are_no_damage_where_the_feature_is() {
    neither_finds("-b 1024", |image| {
        image.debugfs(&["feature imagic_inodes"]);
        let large = image.find("/large");
        image.edit_inode(large, |inode| inode.flags |= InodeFlags::IMAGIC);
    });
}

#[test]
fn flags_of_an_index_without_a_meaning_are_no_damage() {
    neither_finds("-b 1024 -O ^metadata_csum", |image| {
        image.e2fsck_repairs(&["-fyD"]);
        let many = image.find("/many");
        let root = image.blocks(many)[0];
        image.block(root)[31] = 2;
    });
}

#[test]
fn extra_sizes_of_inodes_that_have_none_are_no_damage() {
    neither_finds("-b 1024 -I 128", |image| {
        image.edit_superblock(|superblock| {
            superblock.want_extra_isize = 8;
            superblock.min_extra_isize = 200;
        });
    });
}

#[test]
fn a_journal_whose_size_is_no_number_of_blocks() {
    both_find("journal-inode", "-b 1024 -J size=1", |image| {
        image.edit_inode(8, |inode| inode.size += 1);
    });
}

#[test]
fn a_prefix_without_a_number_in_a_block_of_attributes() {
    both_find("xattr-entry", "-b 1024 -I 128 -O ^metadata_csum", |image| {
        let block = attribute_block(image);
        image.block(block)[32 + 1] = 0;
    });
}

/// The hash covers the rest of a value's last word: it is wrong if only the value is right.
#[test]
fn bytes_behind_a_value_that_its_hash_leaves_out() {
    both_find("xattr-hash", "-b 1024 -I 128 -O ^metadata_csum", |image| {
        let block = attribute_block(image);
        // A value of three bytes is at the end of the block.
        image.block(block)[1023] = 0x55;
    });
}

/// The block of attributes of a file that has one, whose only value is three bytes long.
fn attribute_block(image: &mut Image) -> u64 {
    image.debugfs(&["ea_set /sparse user.a abc"]);
    let file = image.find("/sparse");
    let block = image.inode(file).attribute_block.get();
    assert_ne!(block, 0, "an inode of 128 bytes has no room");
    block
}
