//! Copies of directories that keep their owner out.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};

use super::images::{image, on};
use crate::common::{copy_program, run, succeed};

/// Directories get a mode that keeps their owner out only when all their entries exist.
#[test]
fn closed_directories_are_copied_out_and_leave_nothing_when_that_fails() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can become another user");
        return;
    }
    let place = image("16M");
    let host = place.point.join("tree");
    for folder in ["closed", "dark", "open"] {
        fs::create_dir_all(host.join(folder)).expect("a fresh place");
        fs::write(host.join(folder).join("file"), folder).expect("there is room");
    }
    fs::hard_link(host.join("dark/file"), host.join("open/again")).expect("there is room");
    let (kind, access) = (FileType::CharacterDevice, Mode::RWXU);
    if mknodat(CWD, host.join("zero"), kind, access, makedev(1, 5)).is_err() {
        eprintln!("SKIPPED: no device can be made here");
        return;
    }
    succeed(on(&place, "put", &[]).arg(&host).arg("/"));
    succeed(&mut on(&place, "chmod", &["555", "/tree/closed"]));
    succeed(&mut on(&place, "chmod", &["000", "/tree/dark"]));
    let program = place.point.join("pext4");
    copy_program(&program);
    let out = place.point.join("out");
    fs::create_dir(&out).expect("a fresh place");
    std::os::unix::fs::chown(&out, Some(1000), Some(1000)).expect("we are root");
    let get = || {
        let mut command = Command::new(&program);
        command.args(["get", "-q"]).arg(&place.image).arg("/tree");
        command.arg(&out).uid(1000).gid(1000).current_dir(&out);
        command
    };
    succeed(get().arg("--skip-devices"));
    let mode = |name: &str| {
        let found = fs::metadata(out.join("tree").join(name)).expect("it was copied");
        found.permissions().mode() & 0o7777
    };
    assert_eq!([mode("closed"), mode("dark")], [0o555, 0]);
    assert_eq!(
        fs::read(out.join("tree/open/again")).expect("there"),
        b"dark"
    );
    fs::remove_dir_all(out.join("tree")).expect("we are root");
    // A device, which no ordinary user can make, comes last.
    let failed = run(&mut get());
    assert!(!failed.status.success(), "{failed:?}");
    let left: Vec<_> = fs::read_dir(&out).expect("it is there").collect();
    assert!(left.is_empty(), "{left:?}");
}
