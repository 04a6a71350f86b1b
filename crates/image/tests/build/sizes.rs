//! Images that are sized to fit, and images of a given size; how many subdirectories are counted.

use std::fs;
use std::os::unix::fs::FileExt;

use pext4_image::build::{Builder, Free, Size, Source};

use crate::archives::Packer;
use crate::oracle::check;

fn tree(files: usize, size: usize) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("tree")).unwrap();
    for number in 0..files {
        let path = folder.path().join(format!("tree/{number}"));
        fs::write(path, vec![b'x'; size]).unwrap();
    }
    folder
}

#[test]
fn an_image_that_fits_itself_has_the_free_space_that_was_asked_for() {
    for (files, size) in [(1, 0), (3000, 10), (20, 1 << 20)] {
        let folder = tree(files, size);
        let image = folder.path().join("image");
        for (share, block_size) in [(0, 4096), (100, 4096), (500, 1024)] {
            let summary = Builder::new()
                .source(Source::Directory(folder.path().join("tree")))
                .size(Size::Auto(Free::Thousandths(share)))
                .block_size(block_size)
                .replace(true)
                .build(&image)
                .unwrap();
            check(&image);
            let wanted = summary.blocks * u64::from(share) / 1000;
            assert!(summary.free_blocks >= wanted, "{files} {size} {share}");
            let waste = summary.free_blocks - wanted;
            assert!(
                waste < 1500 + summary.blocks / 100,
                "{files} {size} {share}: {waste}"
            );
            assert_eq!(fs::metadata(&image).unwrap().len(), summary.size);
        }
    }
}

#[test]
fn a_given_size_is_kept_or_refused() {
    let folder = tree(100, 100_000);
    let image = folder.path().join("image");
    let build = |size| {
        Builder::new()
            .source(Source::Directory(folder.path().join("tree")))
            .size(Size::Bytes(size))
            .replace(true)
            .build(&image)
    };
    let summary = build(100 << 20).unwrap();
    assert_eq!(fs::metadata(&image).unwrap().len(), 100 << 20);
    assert!(summary.free_inodes > 1000);
    check(&image);
    let error = build(9 << 20).unwrap_err().to_string();
    let least: u64 = error
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .next_back()
        .expect("it says what would do");
    build(least).unwrap();
    check(&image);
}

/// Where a group has 8 MiB, large files lie in more pieces than fit into their inodes, and the
/// lists of these pieces take further blocks.
#[test]
fn a_size_that_is_named_suffices_for_files_in_many_pieces() {
    const MIB: usize = 1 << 20;
    let folder = tree(1, 48 * MIB);
    let sparse = fs::File::create(folder.path().join("tree/sparse")).unwrap();
    for place in [0, 40, 80] {
        let place = (place * MIB) as u64;
        sparse.write_all_at(&vec![b'x'; 9 * MIB], place).unwrap();
    }
    let image = folder.path().join("image");
    for features in [&["^flex_bg", "^has_journal"][..], &["^has_journal"]] {
        let build = |size| {
            Builder::new()
                .source(Source::Directory(folder.path().join("tree")))
                .block_size(1024)
                .features(features.iter().copied())
                .size(Size::Bytes(size))
                .replace(true)
                .build(&image)
        };
        let told = build(2 << 20).unwrap_err().to_string();
        let (_, rest) = told.split_once("at least ").expect("it names a size");
        let (named, _) = rest.split_once(' ').expect("behind the size");
        let named: u64 = named.parse().expect("a number");
        build(named).unwrap_or_else(|error| panic!("{features:?}: {told}; {error}"));
        check(&image);
        assert!(build(named - 1024).is_err(), "{features:?}: {told}");
    }
}

#[test]
fn a_third_level_of_the_index_is_turned_on_where_it_is_needed() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    // With blocks of 1 KiB and names of 250 bytes, two levels end at 46,000 names.
    let mut archive = tar::Builder::new(Vec::new());
    let long = "n".repeat(240);
    for number in 0..48_000 {
        let mut header = tar::Header::new_gnu();
        header.set_size(0);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_entry_type(tar::EntryType::Regular);
        let name = format!("{long}{number:010}");
        archive
            .append_data(&mut header, name, std::io::empty())
            .unwrap();
    }
    let bytes = archive.into_inner().unwrap();
    let with = |feature: &str| {
        let stream = Box::new(std::io::Cursor::new(bytes.clone()));
        Builder::new()
            .source(Source::Stream("the archive".to_owned(), stream))
            .block_size(1024)
            .features([feature])
            .replace(true)
            .build(&image)
    };
    assert!(with("^large_dir").is_err());
    let summary = with("has_journal").unwrap();
    assert!(summary.features.iter().any(|name| name == "large_dir"));
    check(&image);
}

#[test]
fn a_size_beyond_the_format_is_not_called_too_small() {
    let folder = tree(1, 10);
    let image = folder.path().join("image");
    let built = Builder::new()
        .source(Source::Directory(folder.path().join("tree")))
        .size(Size::Bytes(1 << 60))
        .build(&image);
    let error = built.unwrap_err().to_string();
    assert!(error.contains("cannot be made: "), "{error}");
    assert!(!error.contains("too small"), "{error}");
    assert!(!image.exists());
}

#[test]
fn a_size_that_only_a_journal_makes_too_small_says_so() {
    let folder = tree(1, 10);
    let image = folder.path().join("image");
    let build = |feature: &[&str]| {
        Builder::new()
            .source(Source::Directory(folder.path().join("tree")))
            .size(Size::Bytes(3 << 20))
            .features(feature.iter().copied())
            .build(&image)
    };
    let error = build(&[]).unwrap_err().to_string();
    assert!(
        error.contains("journal; without one (-O ^has_journal)"),
        "{error}"
    );
    build(&["^has_journal"]).unwrap();
    check(&image);
}

#[test]
fn free_and_reserved_space_that_take_everything_are_told_beforehand() {
    let folder = tree(1, 10);
    let image = folder.path().join("image");
    let build = |free, reserved| {
        Builder::new()
            .source(Source::Directory(folder.path().join("tree")))
            .size(Size::Auto(Free::Thousandths(free)))
            .reserved_percent(reserved)
            .replace(true)
            .build(&image)
    };
    for (free, reserved) in [(500, 50.0), (955, 4.5), (900, 20.0)] {
        let error = build(free, reserved).unwrap_err().to_string();
        assert!(error.contains("below 100 %"), "{error}");
    }
    // There is no room for the metadata.
    let error = build(955, 4.499).unwrap_err().to_string();
    let said = format!("{}: no size of the image holds", image.display());
    assert!(error.starts_with(&said), "{error}");
    let summary = build(400, 30.0).unwrap();
    assert!(summary.free_blocks * 10 >= summary.blocks * 7);
    check(&image);
}

#[test]
fn limits_that_are_named_are_no_numbers_that_were_refused() {
    let folder = tree(1, 10);
    let image = folder.path().join("image");
    let build = |size, inodes: Option<u64>| {
        let builder = Builder::new().source(Source::Directory(folder.path().join("tree")));
        let builder = inodes.into_iter().fold(builder, Builder::inodes);
        builder.size(size).build(&image).unwrap_err().to_string()
    };
    let error = build(Size::Bytes(1 << 60), None);
    assert!(
        error.contains("it has up to 36028796884746240 bytes"),
        "{error}"
    );
    let error = build(Size::default(), Some(u64::from(u32::MAX)));
    assert!(error.contains("holds 4294967295 inodes"), "{error}");
    assert!(error.contains("fewer with -N"), "{error}");
    let error = build(Size::Bytes(16 << 40), Some(u64::from(u32::MAX)));
    assert!(error.contains("at most 4292870144 fit"), "{error}");
}

/// The count holds 65,000 links. Beyond that a directory needs the feature for it, and an index,
/// since only of such directories Linux does not count the links.
#[test]
fn links_of_a_directory_are_counted_as_far_as_their_number_goes() {
    const COUNTED: u32 = 65_000 - 2;
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let archive = |subdirectories: u32| {
        let packer = Packer::new();
        let names = (0..subdirectories).map(|number| format!("top/{number}"));
        names
            .fold(packer, |packer, name| packer.directory(&name))
            .finish()
    };
    let [counted, more] = [COUNTED, COUNTED + 1].map(archive);
    for (bytes, feature, expected) in [
        (&counted, "dir_nlink", Ok("Links: 65000 ")),
        (&counted, "^dir_nlink", Ok("Links: 65000 ")),
        (&more, "dir_nlink", Ok("Links: 1 ")),
        (
            &more,
            "^dir_nlink",
            Err("/top: it cannot be held without the feature dir_nlink"),
        ),
        (
            &more,
            "^dir_index",
            Err("/top: it cannot be held without the feature dir_index"),
        ),
    ] {
        let stream = Box::new(std::io::Cursor::new(bytes.clone()));
        let built = Builder::new()
            .source(Source::Stream("the archive".to_owned(), stream))
            .features([feature])
            .block_size(1024)
            .replace(true)
            .build(&image);
        match expected {
            Ok(links) => {
                built.unwrap();
                check(&image);
                let mut debugfs = std::process::Command::new("debugfs");
                let told = debugfs.args(["-R", "stat top"]).arg(&image).output();
                let told = String::from_utf8_lossy(&told.unwrap().stdout).into_owned();
                assert!(told.contains(links), "{feature}: {told}");
            }
            Err(says) => {
                let error = built.unwrap_err().to_string();
                assert!(error.contains(says), "{feature}: {error}");
            }
        }
    }
}
