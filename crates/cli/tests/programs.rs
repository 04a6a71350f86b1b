//! What programs rely on beside single calls: clocks, errors told to the right caller, bits that
//! go away, an overlay on top.

mod common;

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use common::{Place, is_root, run};
use rustix::fs::{
    AtFlags, CWD, IFlags, RenameFlags, Timespec, Timestamps, UTIME_NOW, ioctl_getflags,
    ioctl_setflags, renameat_with, utimensat,
};

fn modified(path: &Path) -> (i64, i64) {
    let told = fs::metadata(path).expect("it is there");
    (told.mtime(), told.mtime_nsec())
}

#[test]
fn time_does_not_go_back_between_the_server_and_the_kernel() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    let mount = place.mount(&[]);
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: UTIME_NOW,
    };
    let touched = Timestamps {
        last_access: now,
        last_modification: now,
    };
    for number in 0..100 {
        // The server stamps a new file, the kernel what is done to it then.
        let path = mount.path(format!("file{number}"));
        let mut file = File::create(&path).unwrap();
        let made = modified(&path);
        file.write_all(b"content").unwrap();
        let written = modified(&path);
        utimensat(CWD, &path, &touched, AtFlags::empty()).unwrap();
        let touched = modified(&path);
        assert!(
            made <= written && written <= touched,
            "{made:?} {written:?} {touched:?}"
        );
    }
    mount.unmount();
}

#[test]
fn a_write_that_failed_behind_its_caller_is_no_error_of_others() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    let mount = place.mount(&[]);
    let path = mount.path("endless");
    let mut file = File::create(&path).unwrap();
    let piece = vec![7; 1 << 20];
    let full = (0..2000).find_map(|_| {
        fs::metadata(&path).expect("the file can be looked at all the time");
        file.write_all(&piece).err()
    });
    assert_eq!(full.expect("no space").raw_os_error(), Some(28));
    for _ in 0..10 {
        fs::metadata(&path).expect("the file can be looked at");
    }
    drop(file);
    fs::remove_file(&path).unwrap();
    mount.unmount();
}

#[test]
fn set_id_bits_go_when_someone_else_changes_the_content() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    if !is_root() {
        return;
    }
    let mount = place.mount(&["-o", "allow_other"]);
    let path = mount.path("file");
    fs::write(&path, b"content").unwrap();
    for line in [
        "echo more >> file",
        "fallocate -l 8192 file",
        "truncate -s 100 file",
        ": > file",
    ] {
        fs::set_permissions(&path, PermissionsExt::from_mode(0o6777)).unwrap();
        let mut shell = Command::new("sh");
        shell
            .args(["-c", line])
            .current_dir(mount.path(""))
            .uid(1000)
            .gid(1000);
        assert!(run(&mut shell).status.success(), "{line}");
        assert_eq!(
            fs::metadata(&path).unwrap().mode() & 0o7777,
            0o777,
            "{line}"
        );
    }
    mount.unmount();
}

#[test]
fn an_append_only_file_grows_without_complaint() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    if !is_root() {
        return;
    }
    let mount = place.mount(&[]);
    let path = mount.path("log");
    let set = |change: fn(&mut IFlags)| {
        let file = File::open(&path).unwrap();
        let mut flags = ioctl_getflags(&file).unwrap();
        change(&mut flags);
        ioctl_setflags(&file, flags).unwrap();
    };
    fs::write(&path, b"first ").unwrap();
    set(|flags| flags.insert(IFlags::APPEND));
    let mut file = OpenOptions::new().append(true).open(&path).unwrap();
    file.write_all(b"second").unwrap();
    file.sync_all().expect("the times are written too");
    drop(file);
    assert!(fs::write(&path, b"over").is_err());
    set(|flags| flags.remove(IFlags::APPEND));
    assert_eq!(fs::read(&path).unwrap(), b"first second");
    mount.unmount();
}

#[test]
fn a_move_leaves_a_whiteout() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    if !is_root() {
        return;
    }
    let mount = place.mount(&[]);
    let (old, new) = (mount.path("old"), mount.path("new"));
    fs::write(&old, b"content").unwrap();
    renameat_with(CWD, &old, CWD, &new, RenameFlags::WHITEOUT).unwrap();
    assert_eq!(fs::read(&new).unwrap(), b"content");
    let left = fs::metadata(&old).unwrap();
    assert!(left.file_type().is_char_device() && left.rdev() == 0);
    mount.unmount();
}
