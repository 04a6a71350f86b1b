//! One corruption for each finding: the checker reports it, and e2fsck complains too, or the test
//! states why it does not.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use pext4_block::{Access, Device, FileDevice};
use pext4_image::check::{Grade, Kind};
use pext4_image::mkfs;
use pext4_ondisk::BlockNumber;
use pext4_ondisk::feature::{Compat, Incompat};
use pext4_ondisk::indirect::{entry, set_entry};
use pext4_ondisk::inode::InodeFlags;

use super::bases::{Base, base, write_journal};
use super::corruptions::Beside::{self, Complains, NotAsked, Silent};
use super::corruptions::volume::add_fast_commits;
use super::corruptions::{Edit, corruptions};
use super::e2fsck::complaints;
use super::image::{Image, check_device, have_tools, make, names, scratch};

/// A program that another test is starting holds the image's lock until it executes: opening waits
/// this long.
const PATIENCE: Duration = Duration::from_secs(10);

/// Findings that no modification of a small image causes; tested elsewhere.
const ELSEWHERE: [Kind; 2] = [Kind::Unreadable, Kind::LimitReached];

#[test]
fn every_finding_has_a_corruption() {
    let covered: BTreeSet<Kind> = corruptions()
        .into_iter()
        .map(|(kind, ..)| kind)
        .chain(ELSEWHERE)
        .collect();
    let missing: Vec<&str> = Kind::ALL
        .iter()
        .filter(|kind| !covered.contains(kind))
        .map(|kind| kind.name())
        .collect();
    assert_eq!(missing, [""; 0]);
}

/// Runs the corruptions whose index in the list has this remainder.
fn run(remainder: usize, of: usize) {
    if !have_tools() {
        return;
    }
    let mut failures = Vec::new();
    let all = corruptions().into_iter().enumerate();
    for (_, (kind, start, beside, edit)) in all.filter(|(index, _)| index % of == remainder) {
        let Some(mut image) = base(start) else {
            continue;
        };
        edit(&mut image);
        failures.extend(judge(kind, beside, &image));
    }
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

fn judge(kind: Kind, beside: Beside, image: &Image) -> Vec<String> {
    let name = kind.name();
    let mut failures = Vec::new();
    match image.check() {
        Err(error) => failures.push(format!("{name}: {error}")),
        Ok(report) => {
            let found = names(&report);
            if !found.contains(&name) {
                failures.push(format!("{name}: found only {found:?}"));
            }
            let is_bad = kind.grade() > Grade::Note;
            let is_alone = found.len() == 1 && report.is_complete;
            if is_bad == report.is_clean() && (is_bad || is_alone) {
                failures.push(format!("{name}: clean is {}", report.is_clean()));
            }
        }
    }
    if matches!(beside, NotAsked(_)) {
        return failures;
    }
    let (code, text) = image.e2fsck();
    match (beside, code != 0 || !complaints(&text).is_empty()) {
        (Complains, false) => failures.push(format!("{name}: e2fsck has nothing to say: {text}")),
        (Silent(why), true) => failures.push(format!("{name}: e2fsck ({why}): {text}")),
        _ => {}
    }
    failures
}

#[test]
fn each_corruption_is_named_and_e2fsck_agrees_first_part() {
    run(0, 2);
}

#[test]
fn each_corruption_is_named_and_e2fsck_agrees_second_part() {
    run(1, 2);
}

/// What no base has, since it lacks features that all bases have.
#[test]
fn old_images_are_judged_as_by_e2fsck() {
    let cases: [(Kind, &str, Edit); 3] = [
        (Kind::SuperblockField, "^64bit", |image| {
            image.edit_superblock(|superblock| superblock.desc_size = 65);
        }),
        (Kind::ResizeInode, "^resize_inode", |image| {
            image.edit_inode(7, |inode| inode.size = 1 << 46);
        }),
        (Kind::InodeFlags, "^extents,^64bit,^has_journal", |image| {
            image.edit_inode(8, |inode| inode.flags |= InodeFlags::EXTENTS);
        }),
    ];
    for (kind, features, edit) in cases {
        let Some(mut image) = make(8 << 20, &["-b", "1024", "-O", features]) else {
            return;
        };
        image.e2fsck_repairs(&["-fyD"]);
        edit(&mut image);
        let failures = judge(kind, Complains, &image);
        assert!(failures.is_empty(), "{}", failures.join("\n\n"));
    }
    for size in [1, 32, 64, 1024] {
        let Some(mut image) = make(8 << 20, &["-b", "1024", "-O", "^64bit"]) else {
            return;
        };
        image.e2fsck_repairs(&["-fyD"]);
        image.edit_superblock(|superblock| superblock.desc_size = size);
        assert_eq!(image.e2fsck().0, 0, "{size}");
        let kept = |name: &&str| *name != Kind::BackupSuperblock.name();
        let report = image.check().expect("an ext4");
        assert_eq!(names(&report).into_iter().find(kept), None, "{size}");
    }
}

/// Nothing follows from a state that only a replay makes sound.
#[test]
fn what_waits_for_fast_commits_is_not_judged() {
    let journal = ["-b", "1024", "-N", "2048", "-J", "size=4"];
    let Some(mut image) = make(24 << 20, &journal) else {
        return;
    };
    write_journal(&mut image, "jo -c -v 3");
    add_fast_commits(&mut image);
    assert_eq!(
        image.e2fsck().0,
        0,
        "nothing is wrong: {:?}",
        image.e2fsck()
    );
    let small = image.find("/small");
    image.edit_inode(small, |inode| inode.links = 7);
    let report = image.check().expect("an ext4");
    assert_eq!(names(&report), ["journal-unsupported"]);
    assert!(!report.is_complete && report.worst() == Some(Grade::Note));
    let told = &report.findings[0].text;
    assert!(told.contains("fast commits that wait"), "{told}");
}

/// Nor does anything from a state whose replay needs a journal on another device: it is not read.
#[test]
fn what_waits_for_an_external_journal_is_not_judged() {
    let Some(mut image) = base(Base::NoJournal) else {
        return;
    };
    image.edit_superblock(|superblock| {
        superblock.features.compat |= Compat::HAS_JOURNAL;
        superblock.journal_uuid = [7; 16];
    });
    assert!(image.check().expect("an ext4").is_clean());
    image.edit_superblock(|superblock| superblock.features.incompat |= Incompat::RECOVER);
    let small = image.find("/small");
    image.edit_inode(small, |inode| inode.links = 7);
    let report = image.check().expect("an ext4");
    assert_eq!(names(&report), ["journal-unsupported"]);
    assert!(!report.is_complete && report.worst() == Some(Grade::Note));
    let told = &report.findings[0].text;
    assert!(told.contains("on another device"), "{told}");
    assert!(told.contains("`e2fsck -j DEVICE`"), "{told}");
}

/// The owners of a shared block are named, even if one is not a file.
#[test]
fn blocks_shared_with_lists_of_the_system_name_them() {
    let Some(mut image) = base(Base::Plain) else {
        return;
    };
    let large = image.find("/large");
    let block = image.blocks(large)[3];
    let pointer = u32::try_from(block).expect("a small image");
    image.edit_inode(1, |inode| set_entry(&mut inode.block, 0, pointer));
    // And one with the map of descriptors' copies.
    let map = u64::from(entry(&image.inode(7).block, 13));
    let other = image.find("/small");
    image.edit_inode(other, |inode| inode.attribute_block = BlockNumber(map));
    let report = image.check().expect("an ext4");
    let texts: Vec<&str> = report.findings.iter().map(|one| &*one.text).collect();
    for expected in [
        format!("block {block}: used by inode 1, inode {large}"),
        format!("block {map}: used by inode 7, inode {other}"),
    ] {
        assert!(texts.contains(&&*expected), "{expected}: {texts:#?}");
    }
}

/// The superblock is read before and after the replay.
#[test]
fn a_defect_of_a_superblock_is_counted_once() {
    let Some(mut image) = base(Base::Dirty) else {
        return;
    };
    image.bytes[1024 + 0x3FC] ^= 1;
    let report = image.check().expect("an ext4");
    assert!(names(&report).contains(&Kind::JournalPending.name()));
    let is_it = |one: &&(Kind, u64)| one.0 == Kind::SuperblockChecksum;
    let count = report.counts.iter().find(is_it);
    assert_eq!(count, Some(&(Kind::SuperblockChecksum, 1)));
}

#[test]
fn the_document_lists_every_finding() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/CHECK.md");
    let document = std::fs::read_to_string(path).expect("the checker's document");
    for kind in Kind::ALL {
        let row = format!(
            "| `{}` | {} | {} |",
            kind.name(),
            kind.grade(),
            kind.meaning()
        );
        assert!(document.contains(&row), "{row}");
    }
}

/// Groups of blocks of 8 KiB and more have fewer blocks than a bitmap has bits.
#[test]
fn a_backup_of_the_superblock_is_found_in_blocks_of_every_size() {
    const BLOCKS: u64 = 70_000;
    let folder = scratch();
    let path = folder.path().join("image");
    for block_size in [1024, 2048, 4096, 8192, 16384, 32768, 65536] {
        let file = std::fs::File::create(&path).expect("a file in the temporary folder");
        let size = BLOCKS * u64::from(block_size);
        file.set_len(size).expect("a sparse file");
        let device = FileDevice::open(&path, Access::ReadWrite, PATIENCE).expect("a file");
        let options = mkfs::Options {
            block_size: Some(block_size),
            ..mkfs::Options::default()
        };
        mkfs::mkfs(&device, &options).expect("room enough");
        device
            .write_at(1024, &[0; 1024])
            .expect("it is large enough");
        let report = check_device(Arc::new(device), 2).expect("a backup suffices");
        let found = names(&report);
        assert!(
            found.contains(&Kind::SuperblockLost.name()),
            "{block_size}: {found:?}"
        );
    }
}
