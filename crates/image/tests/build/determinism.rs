//! The same input and options give the same bytes.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pext4_image::build::{Builder, Source};
use sha2::{Digest, Sha256};

use crate::directories::everything;

fn sum(path: &Path) -> [u8; 32] {
    Sha256::digest(fs::read(path).unwrap()).into()
}

#[test]
fn threads_change_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let tree = folder.path().join("tree");
    fs::create_dir(&tree).unwrap();
    everything(&tree);
    for number in 0..700 {
        let directory = tree.join(format!("d{}/d{}", number % 7, number % 50));
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join(number.to_string()), vec![1; number * 10]).unwrap();
    }
    let image = folder.path().join("image");
    let mut sums = Vec::new();
    for threads in [1, 2, 8, 8] {
        Builder::new()
            .source(Source::Directory(tree.clone()))
            .threads(threads)
            .replace(true)
            .build(&image)
            .unwrap();
        sums.push(sum(&image));
    }
    assert!(sums.iter().all(|other| *other == sums[0]));
}

#[test]
fn identity_follows_input_and_options() {
    let folder = tempfile::tempdir().unwrap();
    let tree = folder.path().join("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("a"), "one").unwrap();
    let image = folder.path().join("image");
    let time = pext4_image::build::parse_time("@1000000000").unwrap();
    let uuid = |change: fn(Builder) -> Builder| {
        let builder = Builder::new()
            .source(Source::Directory(tree.clone()))
            .mtime(time)
            .replace(true);
        change(builder).build(&image).unwrap().uuid
    };
    let plain = uuid(|builder| builder);
    assert_eq!(plain, uuid(|builder| builder));
    assert_eq!(plain[6] >> 4, 8, "a UUID of its own kind");
    assert_ne!(plain, uuid(|builder| builder.label("x")));
    assert_ne!(plain, uuid(|builder| builder.owner(5, 5)));
    assert_eq!([9; 16], uuid(|builder| builder.uuid([9; 16])));
    fs::write(tree.join("a"), "two!").unwrap();
    assert_ne!(plain, uuid(|builder| builder));
}

#[test]
fn no_time_is_later_than_the_date() {
    let folder = tempfile::tempdir().unwrap();
    let tree = folder.path().join("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("a"), "one").unwrap();
    let image = folder.path().join("image");
    Builder::new()
        .source(Source::Directory(tree))
        .date(1_000_000_000)
        .build(&image)
        .unwrap();
    let bytes = fs::read(&image).unwrap();
    let mut start = [0; 1024];
    start.copy_from_slice(&bytes[1024..2048]);
    let superblock = pext4_ondisk::superblock::Superblock::decode(&start).unwrap();
    assert_eq!(superblock.make_time, 1_000_000_000);
    assert_eq!(superblock.write_time, 1_000_000_000);
}

#[test]
fn times_in_the_future_do_not_date_the_image() {
    let folder = tempfile::tempdir().unwrap();
    let tree = folder.path().join("tree");
    fs::create_dir(&tree).unwrap();
    let past = UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let future = SystemTime::now() + Duration::from_secs(10 * 365 * 86_400);
    for (name, time) in [("old", past), ("new", future), (".", past)] {
        let path = tree.join(name);
        if name != "." {
            fs::write(&path, "x").unwrap();
        }
        fs::File::open(&path).unwrap().set_modified(time).unwrap();
    }
    let image = folder.path().join("image");
    Builder::new()
        .source(Source::Directory(tree.clone()))
        .build(&image)
        .unwrap();
    crate::oracle::compare(&image, &tree);
    let bytes = fs::read(&image).unwrap();
    let start = bytes[1024..2048].try_into().unwrap();
    let superblock = pext4_ondisk::superblock::Superblock::decode(start).unwrap();
    assert_eq!(superblock.make_time, 1_000_000_000);
    assert_eq!(superblock.write_time, 1_000_000_000);
}

#[test]
fn of_several_names_the_first_decides() {
    let folder = tempfile::tempdir().unwrap();
    let tree = folder.path().join("tree");
    fs::create_dir(&tree).unwrap();
    for number in 0..40 {
        fs::write(tree.join(format!("b{number}")), "x").unwrap();
        fs::create_dir(tree.join(format!("d{number}"))).unwrap();
        for name in [format!("d{number}/c"), format!("a{number}")] {
            fs::hard_link(tree.join(format!("b{number}")), tree.join(name)).unwrap();
        }
    }
    let image = folder.path().join("image");
    let map = pext4_image::build::Map::parse("path a* mode=600\npath b* mode=640\npath c mode=644");
    let map = map.unwrap();
    for threads in [1, 8] {
        Builder::new()
            .source(Source::Directory(tree.clone()))
            .map(map.clone())
            .threads(threads)
            .replace(true)
            .build(&image)
            .unwrap();
        crate::oracle::check(&image);
        if let Some(mounted) = crate::oracle::Mounted::new(&image) {
            let lines = crate::oracle::describe(mounted.path());
            for (path, line) in lines.iter().filter(|(_, line)| line.contains(" = ")) {
                assert!(line.starts_with("100600 "), "{}: {line}", path.display());
            }
        }
    }
}
