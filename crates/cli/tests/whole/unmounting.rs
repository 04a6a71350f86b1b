//! Every way in which a mount ends: by a command, by a signal, and while it is in use.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};

use rustix::process::{Signal, kill_process};

use crate::common::{Place, fail, is_root, pext4, succeed, unmount_by_system};

#[test]
fn a_directory_in_use_is_not_unmounted() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    let mount = place.mount(&[]);
    let file = File::create(mount.path("file")).unwrap();
    let said = fail(pext4(["umount"]).arg(&place.point), 1);
    assert!(said.contains("is in use"), "{said}");
    drop(file);
    mount.unmount();
}

#[test]
fn a_mount_that_was_detached_in_use_is_named() {
    if !is_root() {
        return;
    }
    let Some(place) = Place::new("16M") else {
        return;
    };
    let mount = place.mount(&[]);
    let mut file = File::create(mount.path("file")).unwrap();
    let server = place.server();
    succeed(Command::new("umount").arg("-l").arg(&place.point));
    let said = fail(pext4(["mount"]).arg(&place.image).arg(&place.point), 1);
    let named = format!("process {} serves a mount of it", server.as_raw_nonzero());
    assert!(
        said.contains(&named) && said.contains("umount -l"),
        "{said}"
    );
    mount.forget();
    file.write_all(b"content").unwrap();
    drop(file);
    place.wait_until_closed();
    place.check();
}

#[test]
fn a_server_that_is_told_to_end_leaves_the_mounts_of_others() {
    if !is_root() {
        return;
    }
    let Some(place) = Place::new("16M") else {
        return;
    };
    let mount = place.mount(&[]);
    let file = File::create(mount.path("file")).unwrap();
    let server = place.server();
    succeed(Command::new("umount").arg("-l").arg(&place.point));
    succeed(
        Command::new("mount")
            .args(["-t", "tmpfs", "none"])
            .arg(&place.point),
    );
    fs::write(mount.path("in memory"), b"").unwrap();
    kill_process(server, Signal::TERM).unwrap();
    // It ends now, or when the file is closed.
    drop(file);
    place.wait_until_closed();
    assert!(mount.path("in memory").exists(), "it was somebody else's");
    unmount_by_system(&place.point);
    mount.forget();
    place.check();
}

#[test]
fn an_image_is_free_when_its_unmounting_returns() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    for options in [&[][..], &["-o", "ro"]] {
        for _ in 0..5 {
            let mount = place.mount(options);
            succeed(pext4(["umount"]).arg(&place.point));
            let file = File::open(&place.image).unwrap();
            let lock = rustix::fs::FlockOperation::NonBlockingLockExclusive;
            rustix::fs::flock(&file, lock).expect("nobody has it any more");
            mount.forget();
        }
    }
}

#[test]
fn an_image_names_its_mount_too() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    let mount = place.mount(&[]);
    fs::write(mount.path("file"), b"content").unwrap();
    succeed(pext4(["umount"]).arg(&place.image));
    mount.forget();
    assert_eq!(place.state(), "clean");
    let said = fail(pext4(["umount"]).arg(&place.point), 1);
    assert!(said.contains("no image is mounted here"), "{said}");
}

#[test]
fn the_systems_umount_ends_a_mount_as_well() {
    if !is_root() {
        return;
    }
    let Some(place) = Place::new("16M") else {
        return;
    };
    let mount = place.mount(&[]);
    fs::write(mount.path("file"), b"content").unwrap();
    unmount_by_system(&place.point);
    mount.forget();
    place.wait_until_closed();
    assert_eq!(place.state(), "clean");
    place.check();
    let read = succeed(pext4(["cat"]).arg(&place.image).arg("/file"));
    assert_eq!(read, "content");
}

#[test]
fn a_termination_ends_cleanly_though_files_are_open() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    let mount = place.mount(&[]);
    let mut nameless = File::create(mount.path("nameless")).unwrap();
    fs::remove_file(mount.path("nameless")).unwrap();
    nameless.write_all(&[1; 100_000]).unwrap();
    let content = "written, not synced, not closed\n".repeat(10_000);
    let open = (0..20).map(|number| {
        let mut named = File::create(mount.path(format!("named{number}"))).unwrap();
        named.write_all(content.as_bytes()).unwrap();
        named
    });
    let open: Vec<_> = open.collect();
    kill_process(place.server(), Signal::TERM).unwrap();
    place.wait_until_closed();
    mount.forget();
    assert_eq!(place.state(), "clean");
    place.check();
    for number in 0..open.len() {
        let name = format!("/named{number}");
        let read = succeed(pext4(["cat"]).arg(&place.image).arg(name));
        assert!(read == content, "{} bytes of file {number}", read.len());
    }
    assert!(!succeed(pext4(["ls"]).arg(&place.image)).contains("nameless"));
}

/// A service manager sends both at once, and a terminal that closes sends the second twice.
#[test]
fn a_hangup_with_a_termination_ends_cleanly_as_well() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    for signals in [
        [Signal::TERM, Signal::HUP, Signal::HUP],
        [Signal::HUP, Signal::TERM, Signal::HUP],
    ] {
        let mount = place.mount(&[]);
        let mut file = File::create(mount.path("file")).unwrap();
        file.write_all(&vec![1; 4 << 20]).unwrap();
        let server = place.server();
        for signal in signals {
            // The last ones may come too late.
            let _ = kill_process(server, signal);
        }
        place.wait_until_closed();
        assert_eq!(place.state(), "clean");
        mount.forget();
        let read = succeed(pext4(["cat"]).arg(&place.image).arg("/file"));
        assert_eq!(read.len(), 4 << 20);
    }
}

#[test]
fn a_mount_in_the_foreground_ends_with_an_interrupt() {
    if !pext4_fuse::ending_signals().contains(&Signal::INT.as_raw()) {
        return eprintln!("SKIPPED: SIGINT is ignored here, as behind `&` in a shell");
    }
    let Some(place) = Place::new("16M") else {
        return;
    };
    let mut server = pext4(["mount", "-f"])
        .arg(&place.image)
        .arg(&place.point)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mount = place.guard();
    let mut said = BufReader::new(server.stderr.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert!(line.contains("Ctrl-C ends the mount"), "{line}");
    fs::write(mount.path("file"), b"content").unwrap();
    let pid = rustix::process::Pid::from_child(&server);
    kill_process(pid, Signal::INT).unwrap();
    assert!(server.wait().unwrap().success());
    let mut rest = String::new();
    said.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "");
    mount.forget();
    assert_eq!(place.state(), "clean");
    place.check();
}

/// As `nohup` has it.
#[test]
fn a_signal_that_is_to_be_ignored_is() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    let mut server = Command::new("sh");
    server.args(["-c", "trap '' HUP; exec \"$@\"", "sh"]);
    server.arg(env!("CARGO_BIN_EXE_pext4"));
    server
        .args(["mount", "-f"])
        .arg(&place.image)
        .arg(&place.point);
    let mut server = server.stderr(Stdio::piped()).spawn().unwrap();
    let mount = place.guard();
    let mut said = BufReader::new(server.stderr.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    let pid = rustix::process::Pid::from_child(&server);
    kill_process(pid, Signal::HUP).unwrap();
    for number in 0..50 {
        fs::write(mount.path(format!("file{number}")), b"content").unwrap();
    }
    kill_process(pid, Signal::TERM).unwrap();
    assert!(server.wait().unwrap().success());
    mount.forget();
    assert_eq!(place.state(), "clean");
}
