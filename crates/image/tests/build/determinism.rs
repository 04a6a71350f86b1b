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

/// UUID and hash seed are made from the times that can be read back from the image.
#[test]
fn times_that_no_inode_holds_are_those_that_are_stored() {
    let folder = tempfile::tempdir().unwrap();
    let with = |time: &str, inode_size: u16| {
        let mut archive = tar::Builder::new(Vec::new());
        archive
            .append_pax_extensions([("mtime", time.as_bytes())])
            .unwrap();
        let mut header = tar::Header::new_ustar();
        header.set_mode(0o644);
        header.set_size(0);
        header.set_cksum();
        archive
            .append_data(&mut header, "folder/file", &b""[..])
            .unwrap();
        let stream = Box::new(std::io::Cursor::new(archive.into_inner().unwrap()));
        let image = folder.path().join("image");
        let builder = Builder::new().source(Source::Stream("a pipe".to_owned(), stream));
        let builder = builder.inode_size(inode_size).date(1 << 40).replace(true);
        builder.build(&image).unwrap();
        sum(&image)
    };
    for (given, stored, inode_size) in [
        ("-2147483658", "-2147483648", 256),
        ("17179869184", "15032385535", 256),
        ("-9223372036854775808", "-2147483648", 256),
        ("4294967296.5", "2147483647", 128),
        ("1000000000.5", "1000000000", 128),
    ] {
        assert!(
            with(given, inode_size) == with(stored, inode_size),
            "{given}"
        );
    }
    assert!(with("1000000000.5", 256) != with("1000000000", 256));
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

/// Another version derives the same UUID from the same input.
#[test]
fn a_derived_uuid_stays_from_version_to_version() {
    let folder = tempfile::tempdir().unwrap();
    let mut header = tar::Header::new_ustar();
    header.set_mode(0o644);
    header.set_mtime(1_000_000_000);
    header.set_size(4);
    header.set_cksum();
    let mut archive = tar::Builder::new(Vec::new());
    archive
        .append_data(&mut header, "file", &b"text"[..])
        .unwrap();
    let stream = Box::new(std::io::Cursor::new(archive.into_inner().unwrap()));
    let built = Builder::new()
        .source(Source::Stream("a pipe".to_owned(), stream))
        .label("x")
        .features(["^has_journal"])
        .date(1_000_000_000)
        .build(folder.path().join("image"))
        .unwrap();
    let shown = built.uuid.map(|byte| format!("{byte:02x}")).concat();
    assert_eq!(shown, "e6887e68655e8850800276bf04df9193");
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
