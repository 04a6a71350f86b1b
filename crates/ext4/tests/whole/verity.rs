//! Files with fs-verity: their content, and the hashes behind their end, stay as they are, while
//! everything else about them, and every other file, changes as usual.

use pext4_fs::path::OpenOptions;
use pext4_fs::{
    AllocateMode, CreateAttributes, InodeNumber, Refusal, RenameMode, Result, SetAttributes,
    SetTime, SetXattrMode, Time, Volume,
};
use pext4_ondisk::inode::InodeFlags;

use crate::images::{Image, inode};

const ROOT: InodeNumber = InodeNumber::ROOT;
const FORMAT: [&str; 4] = ["-b", "4096", "-O", "verity"];
/// The hashes begin where Linux puts them: at the next multiple of 64 KiB.
const SIZE: usize = 5000;
const HASHES_AT: usize = 64 << 10;
const HASHES: [u8; 8192] = [0xAB; 8192];

/// An image with the file `/file`, which has fs-verity. The requests change it before that.
fn image_with(arguments: &[&str], requests: &[&str]) -> Option<Image> {
    let mut content = vec![7; SIZE];
    content.resize(HASHES_AT, 0);
    content.extend(HASHES);
    let image = Image::with_file(arguments, &content, requests)?;
    image.debugfs_write(&format!("sif file size {SIZE}"));
    image.debugfs_write("sif file flags 0x180000");
    image.assert_clean();
    Some(image)
}

/// The hashes, as the image has them; this destroys the file.
fn hashes_of(image: &Image, path: &str) -> Vec<u8> {
    let end = HASHES_AT + HASHES.len();
    image.debugfs_write(&format!("sif {path} size {end}"));
    image.debugfs_write(&format!("sif {path} flags 0x80000"));
    let volume = image.open();
    let content = volume.paths().read(path).expect("readable");
    assert!(content[..SIZE] == [7; SIZE] && content[SIZE..HASHES_AT].iter().all(|&byte| byte == 0));
    content[HASHES_AT..].to_vec()
}

fn set(volume: &Volume, inode: InodeNumber, change: &SetAttributes) -> Result<()> {
    volume.set_attributes(inode, change).map(|_| ())
}

fn resize(size: usize) -> SetAttributes {
    SetAttributes {
        size: Some(size as u64),
        ..SetAttributes::default()
    }
}

fn flags(flags: InodeFlags) -> SetAttributes {
    SetAttributes {
        flags: Some(flags.bits()),
        ..SetAttributes::default()
    }
}

fn assert_refused<R: std::fmt::Debug>(result: Result<R>, refusal: Refusal, what: &str) {
    match result {
        Err(error) => assert!(error.is(refusal), "{what}: {error}"),
        Ok(_) => panic!("{what}: it was not refused"),
    }
}

#[test]
fn the_content_cannot_change() {
    let Some(image) = image_with(&FORMAT, &[]) else {
        return;
    };
    let volume = image.open();
    assert!(!volume.is_read_only(), "{:?}", volume.notes());
    let file = inode(&volume, "/file");
    assert_eq!(volume.paths().read("/file").expect("readable"), [7; SIZE]);
    let refused = |result: Result<()>, what: &str| {
        assert_refused(result, Refusal::NotPermitted, what);
    };
    refused(volume.write(file, 0, b"x").map(drop), "written");
    refused(
        volume.write_from_cache(file, 0, b"x").map(drop),
        "written back",
    );
    refused(volume.append(file, b"x").map(drop), "appended");
    for size in [0, SIZE - 1, SIZE, SIZE + 1, HASHES_AT] {
        refused(set(&volume, file, &resize(size)), "a size");
    }
    for mode in [
        AllocateMode::Extend,
        AllocateMode::KeepSize,
        AllocateMode::PunchHole,
        AllocateMode::ZeroRange { keep_size: false },
        AllocateMode::ZeroRange { keep_size: true },
    ] {
        let (start, length) = (HASHES_AT as u64, 4096);
        refused(volume.allocate(file, mode, start, length), "allocated");
        refused(
            volume.allocate_from_cache(file, mode, start, length),
            "allocated",
        );
    }
    let late = Time {
        seconds: 4_000_000_000,
        nanoseconds: 0,
    };
    let times = volume.set_times_from_cache(file, late, late);
    refused(times.map(drop), "the times of a write");
    let opened = OpenOptions::new().write(true).open(&volume, "/file");
    refused(opened.map(drop), "opened");
    let truncated = OpenOptions::new()
        .write(true)
        .truncate(true)
        .open(&volume, "/file");
    refused(truncated.map(drop), "truncated");
    let opened = OpenOptions::new().read(true).open(&volume, "/file");
    let _ = opened.expect("it can be read");
    volume.close().expect("it closes");
    image.assert_clean();
    assert!(hashes_of(&image, "/file") == HASHES);
}

#[test]
fn everything_else_changes_as_usual() {
    let Some(image) = image_with(&FORMAT, &[]) else {
        return;
    };
    let volume = image.open();
    let file = inode(&volume, "/file");
    let past = SetTime::To(Time {
        seconds: 12345,
        nanoseconds: 6,
    });
    let change = SetAttributes {
        permissions: Some(0o640),
        uid: Some(1000),
        gid: Some(1001),
        accessed: Some(past),
        modified: Some(past),
        ..SetAttributes::default()
    };
    set(&volume, file, &change).expect("attributes");
    let all = InodeFlags::VERITY | InodeFlags::EXTENTS | InodeFlags::NODUMP;
    set(&volume, file, &flags(all)).expect("a flag");
    // As on Linux, the flag itself cannot be given back.
    set(&volume, file, &flags(InodeFlags::EXTENTS)).expect("ignored");
    let has = InodeFlags::from_bits_retain(volume.attributes(file).expect("there").flags);
    assert_eq!(has, InodeFlags::VERITY | InodeFlags::EXTENTS);
    // What a write takes is not taken, since there is no write.
    let taken = volume.take_permissions(file, 0o200);
    assert_refused(taken, Refusal::NotPermitted, "permissions");
    let name = b"user.name";
    let large = vec![1; 3000];
    volume
        .set_xattr(file, name, &large, SetXattrMode::Any)
        .expect("a block");
    volume.remove_xattr(file, name).expect("it was set");
    let _ = volume.link(file, ROOT, b"link").expect("a name");
    volume
        .rename(ROOT, b"file", ROOT, b"moved", RenameMode::Replace)
        .expect("a name");
    volume.unlink(ROOT, b"link").expect("a name less");
    // Holds of before are given back: what is kept for a file's growth is dropped.
    volume.forget(file, 1);
    volume.sync().expect("a commit");
    // Other files are written as always.
    volume
        .paths()
        .write("/other", vec![1; 100_000])
        .expect("room");
    let other = volume
        .create(ROOT, b"new", &CreateAttributes::default())
        .expect("room");
    assert_eq!(volume.write(other.inode, 0, b"content").expect("room"), 7);
    set(&volume, other.inode, &resize(3)).expect("it is cut");
    volume.close().expect("it closes");
    image.assert_clean();
    let told = image.debugfs("stat moved");
    assert!(
        told.contains("Mode:  0640") && told.contains("User:  1000"),
        "{told}"
    );
    assert!(hashes_of(&image, "/moved") == HASHES);
}

#[test]
fn its_end_frees_the_hashes_too() {
    let Some(image) = image_with(&FORMAT, &[]) else {
        return;
    };
    let volume = image.open();
    volume.sync().expect("a commit");
    let free = || volume.statfs().free_blocks;
    let before = free();
    volume.unlink(ROOT, b"file").expect("its only name");
    volume.sync().expect("a commit");
    assert_eq!(free() - before, 4, "two blocks of content, two of hashes");
    volume.close().expect("it closes");
    image.assert_clean();
}

/// No truncate can have been interrupted, whatever the list of orphans says.
#[test]
fn an_orphan_with_a_name_keeps_its_hashes() {
    let format = ["-b", "4096", "-O", "verity,^metadata_csum,^orphan_file"];
    let Some(image) = image_with(&format, &[]) else {
        return;
    };
    let told = image.debugfs("stat file");
    let number = told.split_whitespace().nth(1).expect("a number");
    image.debugfs_write(&format!("ssv last_orphan {number}"));
    let volume = image.open();
    assert!(
        format!("{:?}", volume.notes()).contains("finished 1"),
        "{:?}",
        volume.notes()
    );
    volume.close().expect("it closes");
    image.assert_clean();
    assert!(hashes_of(&image, "/file") == HASHES);
}

/// Even if a map of pointers could hold it all.
#[test]
fn its_map_stays_a_tree() {
    let requests = ["sif file size 5000", "sif file flags 0x180000"];
    let Some(image) = Image::with_file(&FORMAT, &[7; 20_000], &requests) else {
        return;
    };
    image.assert_clean();
    let volume = image.open();
    let file = inode(&volume, "/file");
    let map = set(&volume, file, &flags(InodeFlags::VERITY));
    assert_refused(map, Refusal::NotSupported, "chattr -e");
    volume.close().expect("it closes");
    image.assert_clean();
}
