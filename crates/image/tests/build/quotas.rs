//! Quota files: what users, groups and projects take of the image, as e2fsck counts it.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use pext4_image::build::{Builder, Source};

use crate::directories::everything;
use crate::oracle::{check, compare};

/// An archive of files with owners of their own, 40 with several files each.
fn of_many_owners() -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for number in 0..120_u32 {
        let owner = (number % 40).wrapping_mul(0x0123_4567) & 0x7FFF_FFFF;
        let content = vec![b'c'; number as usize * 100];
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        header.set_uid(u64::from(owner));
        header.set_gid(u64::from(number / 100));
        header.set_mtime(1_000_000);
        header.set_cksum();
        let name = format!("of-owners/{number}");
        archive
            .append_data(&mut header, name, content.as_slice())
            .unwrap();
    }
    archive.into_inner().unwrap()
}

/// The inodes of each owner in the file of this kind.
fn listed(image: &std::path::Path, kind: &str) -> BTreeMap<u32, u64> {
    let request = format!("list_quota {kind}");
    let output = Command::new("debugfs")
        .args(["-R", &request])
        .arg(image)
        .output();
    let told = output
        .expect("debugfs is installed (package e2fsprogs)")
        .stdout;
    let told = String::from_utf8_lossy(&told).into_owned();
    let numbers = |line: &str| -> Option<(u32, u64)> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [id, _, _, _, inodes, ..] = words[..] else {
            return None;
        };
        Some((id.parse().ok()?, inodes.parse().ok()?))
    };
    told.lines().filter_map(numbers).collect()
}

#[test]
fn quota_files_count_what_was_built() {
    let folder = tempfile::tempdir().unwrap();
    let tree = folder.path().join("tree");
    fs::create_dir(&tree).unwrap();
    everything(&tree);
    for (block_size, features) in [
        (1024, "quota"),
        (4096, "quota,project"),
        (4096, "quota,project,inline_data,^orphan_file"),
        (2048, "quota,^has_journal,^metadata_csum"),
    ] {
        let image = folder.path().join("image");
        let archive = Box::new(std::io::Cursor::new(of_many_owners()));
        let built = Builder::new()
            .source(Source::Directory(tree.clone()))
            .source(Source::Stream("of-owners".to_owned(), archive))
            .block_size(block_size)
            .features(features.split(','))
            .replace(true)
            .build(&image);
        built.unwrap_or_else(|error| panic!("{features}: {error}"));
        check(&image);
        let users = listed(&image, "user");
        let owner = 39_u32.wrapping_mul(0x0123_4567) & 0x7FFF_FFFF;
        assert_eq!(users.get(&owner), Some(&3), "{features}: {users:?}");
        assert_eq!(listed(&image, "group").get(&1), Some(&20), "{features}");
        assert_eq!(
            listed(&image, "project").len(),
            usize::from(features.contains("project"))
        );
        Builder::new()
            .source(Source::Directory(tree.clone()))
            .features(features.split(','))
            .replace(true)
            .build(&image)
            .unwrap();
        compare(&image, &tree);
    }
}
