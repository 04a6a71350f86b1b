//! Tests of the pieces of large directories, and of findings that threads make.

use std::sync::Arc;

use pext4_block::{Device, RamDevice};

use super::super::findings::{Finding, Findings};
use super::super::{Options, inodes, open, prepare};
use super::{LEAVES_AT_ONCE, Leaf, MAX_WAITING_LEAVES, Tree, WaitingLeaves, Workers, cut};
use crate::build::{Builder, Source};

#[test]
fn pieces_are_all_leaves_and_cut_no_hash() {
    let long = 3 * LEAVES_AT_ONCE + 7;
    // Names of one hash lie across the end of the first piece.
    let continues = |number: usize| (LEAVES_AT_ONCE - 2..LEAVES_AT_ONCE + 5).contains(&number);
    let leaves: Vec<Leaf> = (0..long)
        .map(|number| Leaf::new(u32::try_from(number).expect("few"), continues(number)))
        .collect();
    let pieces: Vec<&[Leaf]> = cut(&leaves).collect();
    let lengths: Vec<usize> = pieces.iter().map(|piece| piece.len()).collect();
    assert_eq!(
        lengths,
        [LEAVES_AT_ONCE + 5, LEAVES_AT_ONCE, LEAVES_AT_ONCE, 2]
    );
    let numbers = pieces.concat().into_iter().map(|leaf| leaf.logical);
    assert!(numbers.eq(0..u32::try_from(long).expect("few")));
}

/// An image with a directory of some 700 leaves, in which a name is there twice.
fn image() -> Arc<dyn Device> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let source = folder.path().join("source");
    std::fs::create_dir(&source).expect("the folder is ours");
    let name = |number: usize| format!("{number:0250}");
    for number in 0..1800 {
        std::fs::write(source.join(name(number)), "").expect("the folder is ours");
    }
    let image = folder.path().join("image");
    Builder::new()
        .source(Source::Directory(source))
        .block_size(1024)
        .features(["^metadata_csum"])
        .build(&image)
        .expect("an image");
    let mut bytes = std::fs::read(&image).expect("the image");
    let at = |bytes: &[u8], text: &str| {
        let mut places = bytes.windows(250).enumerate();
        let found = places.find(|(_, part)| *part == text.as_bytes());
        found.expect("the name is in the image").0
    };
    for (from, to) in [(5, 900), (1200, 30)] {
        let place = at(&bytes, &name(to));
        bytes[place..place + 250].copy_from_slice(name(from).as_bytes());
    }
    device_of(&bytes)
}

fn device_of(image: &[u8]) -> Arc<dyn Device> {
    let device = RamDevice::new(image.len() as u64);
    device.write_at(0, image).expect("it lies within");
    Arc::new(device)
}

/// The findings of what is done with the directories of an image, and its result.
fn with_tree<T>(
    device: &Arc<dyn Device>,
    threads: usize,
    run: impl FnOnce(&mut Tree<'_>) -> T,
) -> (Vec<Finding>, T) {
    let options = Options::default();
    let workers = Workers {
        options: &options,
        threads,
    };
    let findings = Findings::new();
    let opened = open(Arc::clone(device), &findings).expect("it can be read");
    let (volume, groups) = opened.expect("it can be checked");
    let examination = prepare(volume, groups, findings, &workers);
    let (inodes, directories, ..) = inodes::examine(&examination, &workers);
    let mut tree = Tree::new(&examination, &inodes, &directories, &workers);
    let result = run(&mut tree);
    (examination.findings.take().0, result)
}

/// The findings of the pass, and the number of leaves in pieces that waited.
fn examine(device: &Arc<dyn Device>, limit: u64, threads: usize) -> (Vec<Finding>, usize) {
    with_tree(device, threads, |tree| {
        tree.waiting = WaitingLeaves::new(limit);
        let pieces = tree.examine_directories();
        let waiting = pieces.iter().map(|piece| {
            assert_eq!(piece.leaves.capacity(), piece.leaves.len(), "no slack");
            piece.leaves.len()
        });
        let waiting = waiting.sum();
        tree.examine_pieces(&pieces);
        waiting
    })
}

/// Of the names of a directory one is good, and which one does not depend on who comes first.
#[test]
fn the_parent_of_a_directory_does_not_depend_on_who_finds_it() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let source = folder.path().join("source");
    for name in ["a/child", "b", "c"] {
        std::fs::create_dir_all(source.join(name)).expect("the folder is ours");
    }
    let image = folder.path().join("image");
    Builder::new()
        .source(Source::Directory(source))
        .build(&image)
        .expect("an image");
    let device = device_of(&std::fs::read(&image).expect("the image"));
    let names = |order: &[usize]| {
        with_tree(&device, 1, |tree| {
            let child = tree.directories.list.len() - 1;
            let target = tree.subject(child).number();
            for &place in order {
                tree.subject(place).adopt(child, target);
            }
            tree.parent(child)
        })
    };
    let expected = names(&[1, 2, 3, 3]);
    assert_eq!(expected.1, Some(1));
    assert_eq!(expected.0.len(), 3);
    for order in [[3, 2, 1, 3], [2, 3, 3, 1], [3, 3, 1, 2]] {
        assert_eq!(names(&order), expected);
    }
}

#[test]
fn findings_are_the_same_whoever_checks_a_piece() {
    let device = image();
    let (expected, waiting) = examine(&device, MAX_WAITING_LEAVES, 2);
    assert!(waiting > 2 * LEAVES_AT_ONCE, "{waiting}");
    assert!(!expected.is_empty(), "two names are not where they belong");
    for threads in [1, 3] {
        assert_eq!(examine(&device, 0, threads), (expected.clone(), 0));
    }
}
