//! Valid images of every kind: the checker reports nothing, like e2fsck.

use std::sync::Arc;
use std::time::Duration;

use pext4_block::{Access, FileDevice, RamDevice};
use pext4_image::mkfs;
use pext4_ondisk::InodeNumber;
use pext4_ondisk::feature::{Compat, ReadOnlyCompat};
use pext4_ondisk::indirect::set_entry;
use pext4_ondisk::inode::InodeFlags;

use super::bases::{Base, VAULT, base, set_context, write_journal};
use super::corruptions::Edit;
use super::image::{Image, check_device, have_tools, make, make_from, names, run, scratch, tool};

/// Options of mke2fs, each with the size of the image in KiB.
const VARIANTS: &[(u64, &str)] = &[
    (8192, "-b 1024"),
    (8192, "-b 2048"),
    (16384, "-b 4096"),
    (16384, "-b 1024 -O orphan_file,metadata_csum_seed"),
    (8192, "-b 1024 -O ^has_journal"),
    (8192, "-b 1024 -O ^has_journal,^metadata_csum"),
    (8192, "-b 1024 -O ^metadata_csum,uninit_bg"),
    (8192, "-b 1024 -O ^64bit"),
    (
        8192,
        "-b 1024 -O ^64bit,^metadata_csum,^flex_bg,^resize_inode",
    ),
    (8192, "-b 1024 -O ^flex_bg"),
    (8192, "-b 1024 -O ^sparse_super,^resize_inode"),
    (8192, "-b 1024 -O sparse_super2,^sparse_super,^resize_inode"),
    (40960, "-b 1024 -O meta_bg,^resize_inode"),
    (40960, "-b 1024 -O meta_bg,^resize_inode -g 1024"),
    (20480, "-b 1024 -g 512 -G 4"),
    (8192, "-b 1024 -O ^extents,^64bit"),
    (8192, "-b 4096 -O ^extents,^64bit"),
    (8192, "-b 1024 -I 128"),
    (8192, "-b 1024 -I 512"),
    (8192, "-b 1024 -I 1024"),
    (8192, "-b 1024 -O inline_data"),
    (16384, "-b 4096 -I 1024 -O inline_data"),
    (8192, "-b 1024 -O ^dir_index"),
    (8192, "-b 1024 -O ^filetype"),
    (8192, "-b 1024 -O large_dir,stable_inodes"),
    (8192, "-b 1024 -O ea_inode -I 128"),
    (8192, "-b 1024 -O quota"),
    (
        8192,
        "-b 1024 -O quota,project -E quotatype=usrquota:grpquota:prjquota",
    ),
    (8192, "-b 1024 -O mmp"),
    (65536, "-b 1024 -O bigalloc -C 16384"),
    (65536, "-b 4096 -O bigalloc -C 32768"),
    (8192, "-b 1024 -O casefold"),
    (8192, "-b 1024 -O encrypt"),
    (8192, "-b 1024 -E packed_meta_blocks=1"),
    (8192, "-b 1024 -N 16384"),
    (8192, "-b 1024 -J size=2 -O fast_commit"),
    (262_144, "-b 8192"),
    (524_288, "-b 65536"),
    (8192, "-b 1024 -r 0 -O none"),
];

fn assert_clean(image: &Image, what: &str) {
    let (code, text) = image.e2fsck();
    let report = image
        .check()
        .unwrap_or_else(|error| panic!("{what}: {error}"));
    let told: Vec<String> = report
        .findings
        .iter()
        .map(|finding| {
            format!(
                "{} {}: {}",
                finding.kind.name(),
                finding.place,
                finding.text
            )
        })
        .collect();
    assert!(
        told.is_empty(),
        "{what}: {told:#?}\ne2fsck ({code}): {text}"
    );
    assert!(
        code == 0 && !text.contains("? no"),
        "{what}: e2fsck says {text}"
    );
    assert!(report.is_clean() && report.files > 0);
}

/// The blocks of values in separate inodes count for the quota of each owner.
#[test]
fn values_in_inodes_are_clean() {
    if let Some(image) = base(Base::Values) {
        assert_clean(&image, "values");
    }
}

/// mke2fs 1.47 writes 65,535 into copies of the superblock in all groups beyond that one.
#[test]
fn copies_in_groups_beyond_16_bits_are_clean() {
    let folder = scratch();
    let path = folder.path().join("image");
    let file = std::fs::File::create(&path).expect("a file");
    file.set_len(20_020_000 << 10).expect("a sparse file");
    // Copies are in groups that are powers of 3, 5 and 7: the last one is 5^7.
    let options = "-q -F -t ext4 -b 1024 -g 256 -N 625600 -O ^resize_inode -E lazy_itable_init=1";
    let mut command = tool("mke2fs");
    if let Err(text) = run(command.args(options.split(' ')).arg(&path)) {
        eprintln!("SKIPPED: mke2fs: {text}");
        return;
    }
    let device = FileDevice::open(&path, Access::ReadOnly, Duration::ZERO).expect("an image");
    let report = check_device(Arc::new(device), 2).expect("an ext4");
    assert_eq!(names(&report), [""; 0]);
}

/// Without the feature, the number of a quota file matters only where it takes a file from its
/// user.
#[test]
fn quota_files_without_the_feature_are_clean_if_no_user_has_them() {
    let Some(mut image) = base(Base::Plain) else {
        return;
    };
    let orphans = image.superblock().orphan_file_inode;
    for number in [InodeNumber(3), orphans, InodeNumber(1000)] {
        image.edit_superblock(|superblock| superblock.user_quota_inode = number);
        assert_clean(&image, &format!("a quota file {number}"));
    }
}

/// The map of an image without backups of its descriptors has no data, so its size says nothing.
#[test]
fn a_resize_inode_without_backups_may_have_any_size() {
    if let Some(mut image) = make(8 << 20, &["-b", "2048"]) {
        image.edit_inode(7, |inode| inode.size = 0);
        assert_clean(&image, "a resize inode of no size");
    }
}

/// Encrypted names are ciphertext: any bytes of some lengths.
#[test]
fn encrypted_files_are_clean() {
    if let Some(mut image) = base(Base::Encrypted) {
        assert_clean(&image, "encrypted");
        // Without readable names casefolding has no effect.
        let folder = image.find(&format!("{VAULT}/ciphertext-folder"));
        image.edit_inode(folder, |inode| inode.flags |= InodeFlags::CASEFOLD);
        assert_clean(&image, "encrypted, and folding case");
        // An unknown version of the context.
        let inside = ["a-file", "folder", "fast-link", "slow-link"];
        let inside = inside.map(|what| format!("{VAULT}/ciphertext-{what}"));
        for path in inside.iter().map(String::as_str).chain([VAULT]) {
            set_context(&mut image, path, b"\x03 of any length");
        }
        assert_clean(&image, "encrypted by what is to come");
    }
}

/// In a casefolded directory a name belongs where it is in any case.
#[test]
fn names_in_another_case_are_clean() {
    if let Some(mut image) = base(Base::Folded) {
        let many = image.find("/many");
        assert!(image.inode(many).flags.contains(InodeFlags::INDEX));
        for block in image.blocks(many).into_iter().skip(1) {
            image.edit_leaf(many, block, |bytes| {
                let next = |bytes: &[u8]| bytes.windows(8).position(|found| found == b"a-rather");
                while let Some(at) = next(bytes) {
                    bytes[at..at + 8].make_ascii_uppercase();
                }
            });
        }
        assert_clean(&image, "in upper case");
    }
}

/// Strict encoding applies only to casefolded directories.
#[test]
fn names_of_a_strict_encoding_are_clean() {
    if let Some(mut image) = base(Base::Strict) {
        let requests = [
            "mknod aside p",
            "ln aside dir/\u{C9}t\u{E9}",
            "unlink aside",
        ];
        image.debugfs(&requests);
        let many = image.find("/many");
        let block = image.blocks(many)[0];
        image.edit_leaf(many, block, |bytes| {
            let at = bytes.windows(8).position(|found| found == b"a-rather");
            bytes[at.expect("it is there")] = 0xC3;
        });
        assert_clean(&image, "a strict encoding");
    }
}

/// tune2fs adds a journal with a name to a mounted file system.
#[test]
fn a_journal_with_a_name_is_clean() {
    if !have_tools() {
        return;
    }
    let (Some(mut journalled), Some(mut image)) = (base(Base::Plain), base(Base::NoJournal)) else {
        return;
    };
    let log = journalled.blocks(8);
    let mut bytes = journalled.block(log[0]).to_vec();
    // The rest of an empty log has no meaning, but zeroes would become a hole in debugfs.
    bytes.resize(log.len() * 1024, b'-');
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), bytes).expect("a journal");
    image.debugfs(&[&format!("write {} .journal", file.path().display())]);
    let number = image.find("/.journal");
    image.edit_inode(number, |inode| inode.flags |= InodeFlags::IMMUTABLE);
    image.edit_superblock(|superblock| {
        superblock.features.compat |= Compat::HAS_JOURNAL;
        superblock.journal_inode = InodeNumber(number);
    });
    let report = image.check().expect("an ext4");
    assert!(report.is_clean(), "{:#?}", report.findings);
    let (code, text) = image.e2fsck();
    assert!(code == 0 && !text.contains("? no"), "{text}");
}

/// What e2fsck accepts: an AFS flag, a deletion time, an odd link count, the upper half of a count,
/// a feature without effect, the permissions of the user quota file, bad blocks under a superblock
/// copy and under an unused part of an inode table, and without the orphan file feature the
/// journal's inode number for the orphan file.
#[test]
fn irrelevant_fields_of_special_inodes_are_clean() {
    let edits: [(Base, Edit); 9] = [
        (Base::Plain, |image| {
            image.edit_inode(8, |inode| inode.flags |= InodeFlags::IMAGIC);
        }),
        (Base::Plain, |image| {
            image.edit_inode(7, |inode| inode.deletion_time = 3_422_552_064);
        }),
        (Base::Plain, |image| {
            image.edit_superblock(|superblock| {
                let features = &mut superblock.features.read_only_compat;
                features.remove(ReadOnlyCompat::HUGE_FILE);
            });
            image.edit_inode(6, |inode| inode.blocks = 1 << 40);
        }),
        (Base::NoJournal, |image| {
            // Clusters of one block.
            image.edit_superblock(|superblock| {
                superblock.features.read_only_compat |= ReadOnlyCompat::BIGALLOC;
            });
        }),
        (Base::Plain, |image| {
            image.edit_inode(7, |inode| inode.links = 39_549);
        }),
        (Base::Quota, |image| {
            image.edit_inode(3, |inode| inode.mode = 0o100_644);
        }),
        (Base::Plain, |image| {
            image.edit_inode(1, |inode| set_entry(&mut inode.block, 0, 8193));
        }),
        (Base::Plain, |image| {
            let table = image.descriptor(1).inode_table.get();
            let table = u32::try_from(table).expect("a small image");
            image.edit_inode(1, |inode| set_entry(&mut inode.block, 0, table + 9));
        }),
        (Base::NoSums, |image| {
            image.edit_superblock(|superblock| superblock.orphan_file_inode = InodeNumber(8));
        }),
    ];
    for (start, edit) in edits {
        if let Some(mut image) = base(start) {
            edit(&mut image);
            let report = image.check().expect("an ext4");
            assert!(report.is_clean(), "{:#?}", report.findings);
            let (code, text) = image.e2fsck();
            assert!(code == 0 && !text.contains("? no"), "{text}");
        }
    }
}

/// A directory that was being deleted and a file that was being truncated at a power cut: a mount
/// continues.
#[test]
fn orphans_are_clean() {
    let Some(mut image) = base(Base::Plain) else {
        return;
    };
    image.debugfs(&["mkdir gone"]);
    let (gone, cut) = (image.find("/gone"), image.find("/dir/inner"));
    image.debugfs(&["unlink gone"]);
    image.edit_inode(2, |inode| inode.links -= 1);
    image.edit_inode(gone, |inode| {
        inode.links = 0;
        inode.deletion_time = cut;
    });
    image.edit_inode(cut, |inode| inode.size = 1500);
    image.edit_superblock(|superblock| superblock.last_orphan = InodeNumber(gone));
    let report = image.check().expect("an ext4");
    assert_eq!(
        names(&report),
        ["orphans-pending"],
        "{:#?}",
        report.findings
    );
    image.e2fsck_repairs(&["-p"]);
    assert_clean(&image, "after what waited was done");
}

/// A directory with so many subdirectories that it does not count them any more, from before the
/// feature for it.
#[test]
fn links_that_count_no_more_are_clean_without_the_feature() {
    if !have_tools() {
        return;
    }
    let Some(mut image) = make(8 << 20, &["-b", "1024", "-O", "^dir_nlink"]) else {
        return;
    };
    image.e2fsck_repairs(&["-fyD"]);
    let many = image.find("/many");
    image.debugfs(&["mkdir many/below"]);
    image.edit_inode(many, |inode| inode.links = 1);
    assert_clean(&image, "a directory that counts no more");
}

#[test]
fn quotas_of_several_owners_are_clean() {
    if let Some(image) = base(Base::Quota) {
        assert_clean(&image, "quotas");
    }
}

#[test]
fn images_of_every_kind_are_clean() {
    if !have_tools() {
        return;
    }
    for &(size, options) in VARIANTS {
        let words: Vec<&str> = options.split(' ').collect();
        let Some(mut image) = make(size << 10, &words) else {
            continue;
        };
        if options.contains("quota") {
            // mke2fs 1.47.0 does not count in the quota files what it copies from a directory.
            image.e2fsck_repairs(&["-fy"]);
        }
        assert_clean(&image, options);
    }
}

#[test]
fn an_image_with_indexes_is_clean() {
    if !have_tools() {
        return;
    }
    for options in [
        "-b 1024",
        "-b 1024 -O ^metadata_csum",
        "-b 1024 -O ^64bit,^extents",
    ] {
        let words: Vec<&str> = options.split(' ').collect();
        let Some(mut image) = make(8 << 20, &words) else {
            continue;
        };
        image.e2fsck_repairs(&["-fyD"]);
        let many = image.find("/many");
        let flags = image.inode(many).flags;
        assert!(flags.contains(pext4_ondisk::inode::InodeFlags::INDEX));
        assert_clean(&image, options);
    }
}

#[test]
fn our_own_images_are_clean() {
    use mkfs::FileSystem::{Ext2, Ext3, Ext4};
    for (size, block_size, file_system) in [
        (3 << 20, 1024, Ext4),
        (300 << 20, 4096, Ext4),
        (1 << 30, 1024, Ext4),
        (3 << 20, 1024, Ext2),
        (300 << 20, 1024, Ext3),
        (300 << 20, 4096, Ext3),
    ] {
        let device = Arc::new(RamDevice::new(size));
        let options = mkfs::Options {
            file_system,
            block_size: Some(block_size),
            ..mkfs::Options::default()
        };
        mkfs::mkfs(&*device, &options).expect("a plain image");
        let report = check_device(device, 3).expect("an ext4");
        assert_eq!(names(&report), [""; 0], "{:?}", report.findings);
    }
}

/// An image with the old layout of the first descriptors, grown by resize2fs: in the `meta_bg`
/// groups, superblock copies have no descriptors behind them.
#[test]
fn descriptors_of_both_kinds_are_clean() {
    if !have_tools() {
        return;
    }
    let options = ["-b", "1024", "-O", "^resize_inode,^has_journal"];
    let Some(mut image) = make(100 << 20, &options) else {
        return;
    };
    image.debugfs(&["feature meta_bg", "ssv first_meta_bg 1"]);
    image.resize2fs("300M");
    let superblock = image.superblock();
    assert_eq!(
        (superblock.first_meta_bg, superblock.blocks_count),
        (1, 300 << 10)
    );
    assert_clean(&image, "descriptors of both kinds");
}

/// Without the feature, the flag that counts `i_blocks` in blocks has no effect.
#[test]
fn a_flag_without_its_feature_is_clean() {
    if !have_tools() {
        return;
    }
    if let Some(mut image) = make(8 << 20, &["-b", "1024", "-O", "^huge_file"]) {
        let large = image.find("/large");
        image.edit_inode(large, |inode| {
            inode.flags |= pext4_ondisk::inode::InodeFlags::HUGE_FILE;
        });
        assert_clean(&image, "a coarse unit without the feature");
    }
}

/// After an interrupted growth, only the log contains the new size.
#[test]
fn a_log_may_lead_to_where_the_file_system_was_growing() {
    let Some(mut image) = base(Base::NoSums) else {
        return;
    };
    let block = write_journal(&mut image, "jo");
    let size = image.superblock().blocks_count;
    image.bytes.resize(image.bytes.len() * 2, 0);
    let number = |block: u64| u32::try_from(block).expect("small").to_be_bytes();
    let descriptor = image.blocks(8)[1];
    let tag = &mut image.block(descriptor)[12..16];
    assert_eq!(tag, number(block));
    tag.copy_from_slice(&number(size + 100));
    let report = image.check().expect("an ext4");
    assert_eq!(names(&report), ["journal-pending"]);
}

/// What e2fsck and Linux both accept.
#[test]
fn trifles_are_clean() {
    type Trifle = (&'static str, fn(&mut Image));
    const TRIFLES: [Trifle; 9] = [
        ("a policy for errors of none", |image| {
            image.bytes[1024 + 0x3C] = 0;
        }),
        ("an orphan file without the feature", |image| {
            image.bytes[1024 + 0x280..][..4].fill(0xFF);
        }),
        ("an entry that tells no kind", |image| {
            let directory = image.find("/dir");
            let block = image.blocks(directory)[0];
            image.block(block)[24 + 7] = 0;
        }),
        ("'.' that tells no kind", |image| {
            let directory = image.find("/dir");
            let block = image.blocks(directory)[0];
            image.block(block)[7] = 0;
        }),
        ("'.' with room to spare", |image| {
            let found = image.find("/lost+found");
            let block = image.blocks(found)[0];
            let bytes = image.block(block);
            bytes.copy_within(12..24, 24);
            bytes[4..6].copy_from_slice(&24u16.to_le_bytes());
            bytes[28..30].copy_from_slice(&1000u16.to_le_bytes());
        }),
        ("an extra size of what is not in use", |image| {
            let range = image.slot_range(4);
            image.bytes[range][0x81] = 0xFF;
        }),
        ("the address of a fragment of a journal", |image| {
            image.edit_slot(8, |slot| slot[0x70] = 1);
        }),
        (
            "attributes nowhere, and in an inode without links",
            |image| {
                image.edit_slot(9, |slot| slot[0x68..0x6C].fill(0x7F));
            },
        ),
        ("the bytes behind a value that ends in a word", |image| {
            // They affect the hash. An even number of equal additional words cancels out.
            let large = image.find("/large");
            let block = image.inode(large).attribute_block.get();
            let bytes = image.block(block);
            let at = (32..512).find(|&at| bytes[at..at + 4] == 500u32.to_le_bytes());
            bytes[at.expect("the size of a value")..][..2].copy_from_slice(&[58, 1]);
        }),
    ];
    if !have_tools() {
        return;
    }
    let Some(image) = make(8 << 20, &["-b", "1024", "-O", "^metadata_csum"]) else {
        return;
    };
    for (what, edit) in TRIFLES {
        let mut image = image.clone();
        edit(&mut image);
        assert_clean(&image, what);
    }
}

#[test]
fn bad_blocks_have_no_owner() {
    if !have_tools() {
        return;
    }
    let list = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(list.path(), "5000\n5001\n5100\n").expect("a list");
    let path = list.path().to_string_lossy().into_owned();
    if let Some(image) = make_from(8 << 20, &["-b", "1024", "-l", &path], None) {
        let report = image.check().expect("an ext4");
        assert_eq!(names(&report), [""; 0], "{:?}", report.findings);
        assert_eq!(image.e2fsck().0, 0);
    }
}

/// Makes the first extent of a file point to a block.
fn lead_to(image: &mut Image, path: &str, block: u64) {
    const START: usize = 12 + 8;
    let number = image.find(path);
    let block = u32::try_from(block).expect("a small image");
    image.edit_inode(number, |inode| {
        inode.block[START..][..4].copy_from_slice(&block.to_le_bytes());
    });
}

#[test]
fn files_may_share_blocks_where_the_image_says_so() {
    if !have_tools() {
        return;
    }
    let Some(mut image) = make(8 << 20, &["-b", "1024"]) else {
        return;
    };
    let large = image.find("/large");
    let shared = image.blocks(large)[0];
    lead_to(&mut image, "/dir/inner", shared);
    let report = image.check().expect("an ext4");
    assert!(
        names(&report).contains(&"block-shared"),
        "{:?}",
        report.findings
    );
    image.debugfs(&["feature shared_blocks"]);
    // The previous blocks of the file are leaked now.
    image.e2fsck_repairs(&["-fy"]);
    let inner = image.find("/dir/inner");
    assert_eq!(image.blocks(inner)[0], shared, "e2fsck leaves them shared");
    assert_clean(&image, "shared blocks");
    let table = image.descriptor(0).inode_table.get();
    lead_to(&mut image, "/dir/inner", table);
    image.e2fsck_repairs(&["-fy"]);
    assert_clean(&image, "blocks shared with metadata");
}
