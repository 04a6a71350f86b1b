//! Files that are made without a name, and when files were made.

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, open};
use rustix::io::Errno;

use crate::common::{Place, has, succeed};

/// Whether this is Linux of a version, or a newer one; says so loudly if not.
fn is_linux(major: u32, minor: u32) -> bool {
    let system = rustix::system::uname();
    let release = system.release().to_string_lossy();
    let mut numbers = release.split(|mark: char| !mark.is_ascii_digit());
    let mut next = || numbers.next().and_then(|number| number.parse::<u32>().ok());
    let is_new = (next(), next()) >= (Some(major), Some(minor));
    if !is_new {
        eprintln!("SKIPPED: this needs Linux {major}.{minor}");
    }
    is_new
}

/// Opens a new file without a name; `None` where the kernel is too old.
fn nameless(directory: &Path, flags: OFlags) -> Option<File> {
    if !is_linux(6, 2) {
        return None;
    }
    let flags = flags | OFlags::TMPFILE | OFlags::RDWR;
    let file = open(directory, flags, Mode::from_raw_mode(0o640));
    Some(file.expect("the server makes it").into())
}

fn link(file: &File, to: &Path) -> Result<(), Errno> {
    let from = format!("/proc/self/fd/{}", file.as_raw_fd());
    linkat(CWD, from, CWD, to, AtFlags::SYMLINK_FOLLOW)
}

#[test]
fn a_file_made_without_a_name_gets_one_or_goes_with_its_last_user() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    let mount = place.mount(&[]);
    let root = mount.path("");
    let Some(mut file) = nameless(&root, OFlags::empty()) else {
        return mount.unmount();
    };
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    file.write_all(b"content").unwrap();
    link(&file, &mount.path("named")).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 1);
    file.write_all_at(b"C", 0).unwrap();
    drop(file);
    let private = nameless(&root, OFlags::EXCL).expect("as before");
    let refused = link(&private, &mount.path("other"));
    assert_eq!(refused, Err(Errno::NOENT), "it was to stay without a name");
    let left_open = nameless(&root, OFlags::empty()).expect("as before");
    left_open.write_all_at(&[7; 100_000], 0).unwrap();
    drop((private, left_open));
    mount.unmount();
    // The image's checker would report an inode that nobody freed.
    let mount = place.mount(&["-o", "ro"]);
    assert_eq!(fs::read(mount.path("named")).unwrap(), b"Content");
    assert!(!mount.path("other").exists());
    mount.unmount();
}

#[test]
fn a_file_made_without_a_name_inherits_the_access_list() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    if !has("setfacl") {
        return;
    }
    let mount = place.mount(&["-o", "default_permissions"]);
    let root = mount.path("");
    succeed(
        Command::new("setfacl")
            .args(["-d", "-m", "u:1000:rw"])
            .arg(&root),
    );
    if let Some(file) = nameless(&root, OFlags::empty()) {
        link(&file, &mount.path("named")).unwrap();
        let list = succeed(Command::new("getfacl").arg("-cpn").arg(mount.path("named")));
        assert!(list.contains("user:1000:rw-"), "{list}");
    }
    mount.unmount();
}

#[test]
fn the_time_of_birth_is_told_and_stays() {
    if !is_linux(6, 6) {
        return;
    }
    let Some(place) = Place::new("16M") else {
        return;
    };
    let mount = place.mount(&[]);
    let path = mount.path("file");
    let before = SystemTime::now();
    fs::write(&path, b"content").unwrap();
    let born = fs::metadata(&path).unwrap().created();
    let born = born.expect("the server tells it");
    // The kernel's clock of files may be a tick behind.
    let tick = Duration::from_millis(20);
    assert!(born + tick >= before && born <= SystemTime::now() + tick);
    thread::sleep(2 * tick);
    fs::write(&path, b"other content").unwrap();
    assert_eq!(fs::metadata(&path).unwrap().created().unwrap(), born);
    mount.unmount();
    let mount = place.mount(&[]);
    let metadata = fs::metadata(mount.path("file")).unwrap();
    assert_eq!(metadata.created().unwrap(), born);
    assert!(metadata.modified().unwrap() > born);
    mount.unmount();
}
