//! Many names at the end of a long path: what a walk keeps does not grow with their product.
//!
//! This file has one test, since the memory of the whole process is looked at.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use pext4_block::{Device, RamDevice};
use pext4_edit::{Change, EditOptions, EditSession, GetOptions, ModeChange, Reader, change};
use pext4_fs::{CreateAttributes, InodeNumber, MountOptions, Volume};
use pext4_testkit::effort::scratch;
use pext4_testkit::oracle::format::{Features, Format};

/// Directories in one another, with the longest names.
const LEVELS: usize = 200;
/// Directories in the last of them, and as many files, which have two names each.
const COUNT: usize = 2000;
/// The whole paths of [`COUNT`] names take 97 MiB.
const MOST: u64 = 48 << 20;

fn make(image: &Path) {
    let format = Format::new(64 << 20, 1024, Features::NoJournal).inodes(16_000);
    let device = Arc::new(format.device().expect("mke2fs makes it"));
    let over: Arc<dyn Device> = Arc::<RamDevice>::clone(&device);
    let volume = Volume::open(over, MountOptions::default()).expect("a fresh image");
    let new = CreateAttributes {
        permissions: 0o500,
        ..CreateAttributes::default()
    };
    let mut here = InodeNumber::ROOT;
    for level in 0..LEVELS {
        let name = match level {
            0 => b"top".to_vec(),
            _ => vec![b'd'; 255],
        };
        let made = volume.make_directory(here, &name, &new).expect("room");
        here = made.inode;
    }
    for number in 0..COUNT {
        let name = |kind: &str| format!("{kind}{number}").into_bytes();
        let made = volume.make_directory(here, &name("d"), &new);
        volume.forget(made.expect("room").inode, 1);
        let file = volume.create(here, &name("f"), &new).expect("room").inode;
        let linked = volume.link(file, here, &name("l")).expect("room");
        volume.forget(linked.inode, 2);
    }
    volume.close().expect("a ram device works");
    device.save(image).expect("there is room");
}

/// A line of the process's status, in bytes; `None` where the system does not tell.
fn status(key: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes << 10)
}

/// The most memory that this takes at a time, beside what the process had before.
fn most(work: impl FnOnce()) -> Option<u64> {
    // From here on the most is measured again.
    let is_reset = fs::write("/proc/self/clear_refs", "5").is_ok();
    let before = status("VmRSS:");
    work();
    Some(status("VmHWM:")?.saturating_sub(before.filter(|_| is_reset)?))
}

#[test]
fn many_names_with_a_long_path_take_little_memory() {
    let folder = scratch();
    let image = folder.path().join("image");
    make(&image);
    let reader = Reader::open(&image).expect("sound");
    let names = (LEVELS + 3 * COUNT) as u64;
    let exported = most(|| {
        let done = reader.export("/", &mut io::sink()).expect("sound");
        assert!(done.files > names, "{done:?}");
    });
    let got = most(|| {
        let out = folder.path().join("out");
        let done = reader.get("/top", out, &GetOptions::default());
        assert_eq!(done.expect("room").files, (LEVELS + 2 * COUNT) as u64);
    });
    drop(reader);
    let mut session = EditSession::open(&image, &EditOptions::default()).expect("it opens");
    let mut change = |change: Change| most(|| session.apply(&change).expect("it can be done"));
    let set_mode = change(Change::SetMode(change::SetMode {
        recursive: true,
        ..change::SetMode::new("/top", ModeChange::exactly(0o750))
    }));
    let copied = change(Change::CopyFile(change::CopyFile {
        no_target_directory: true,
        recursive: true,
        ..change::CopyFile::new("/top", "/copy")
    }));
    drop(session);
    // The tree is too deep, and its directories are closed, for who removes the folder.
    let removed = std::process::Command::new("chmod")
        .args(["-R", "u+rwx"])
        .arg(folder.path())
        .status();
    assert!(removed.is_ok_and(|status| status.success()));
    let all = [
        ("export", exported),
        ("get", got),
        ("chmod -R", set_mode),
        ("cp -r", copied),
    ];
    if all.iter().any(|(_, bytes)| bytes.is_none()) {
        eprintln!("SKIPPED: the system does not tell how much memory the process takes");
    }
    let is_too_much = |bytes: Option<u64>| bytes.is_some_and(|bytes| bytes >= MOST);
    let mebibytes = |(what, bytes): &(&'static str, Option<u64>)| {
        is_too_much(*bytes).then(|| (*what, bytes.unwrap_or_default() >> 20))
    };
    let too_much: Vec<_> = all.iter().filter_map(mebibytes).collect();
    assert!(too_much.is_empty(), "in MiB: {too_much:?}");
}
