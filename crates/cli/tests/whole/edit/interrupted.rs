//! Interrupted edits: the image is unchanged, and no file is left beside it. An interrupted build
//! leaves nothing either. Both name the image.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Stdio};
use std::thread;
use std::time::Duration;

use pext4_testkit::effort::within;
use rustix::process::{Pid, Signal, kill_process};

use crate::common::{Place, pext4, succeed};

/// Far longer than anything here takes.
const HANG: Duration = Duration::from_secs(120);

/// An edit that waits for more of its standard input than it will get.
fn begin(place: &Place, arguments: &[&str]) -> (Child, ChildStdin) {
    let (verb, rest) = arguments.split_first().expect("there is a verb");
    let mut child = pext4([verb])
        .arg(&place.image)
        .args(rest)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let input = child.stdin.take().expect("it is a pipe");
    (child, input)
}

fn wait_until(child: &mut Child, is_so: impl Fn() -> bool) {
    while !is_so() {
        let ended = child.try_wait().expect("it is ours");
        assert!(ended.is_none(), "it ended by itself: {ended:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Whether SIGINT is in a set of signals that Linux shows of a process.
fn has_interrupt(process: u32, set: &str) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/status")).expect("it is ours");
    let shown = status.lines().find_map(|line| line.strip_prefix(set));
    let shown = u64::from_str_radix(shown.expect("Linux tells").trim(), 16).expect("a set");
    let interrupt = u32::try_from(Signal::INT.as_raw()).expect("small");
    shown >> (interrupt - 1) & 1 == 1
}

/// Whether commands that this process starts can be interrupted. A shell ignores SIGINT for what it
/// starts in the background, and so does what that starts.
fn can_be_interrupted() -> bool {
    let can = !has_interrupt(std::process::id(), "SigIgn:");
    if !can {
        eprintln!("SKIPPED: SIGINT is ignored here, as behind `&` in a shell");
    }
    can
}

/// Its output and status after these signals, although its input stays open.
fn interrupt(mut child: Child, signals: &[Signal]) -> (Option<i32>, String) {
    for &signal in signals {
        kill_process(Pid::from_child(&child), signal).expect("it is ours");
    }
    within(HANG, "an interrupted edit ends", move || {
        let mut said = String::new();
        let mut errors = child.stderr.take().expect("it is a pipe");
        errors.read_to_string(&mut said).expect("it says text");
        (child.wait().expect("it is ours").code(), said)
    })
}

fn names(place: &Place) -> Vec<PathBuf> {
    let folder = place.image.parent().unwrap_or(Path::new("/"));
    let entries = fs::read_dir(folder).expect("it is there");
    let mut names: Vec<_> = entries
        .map(|entry| entry.expect("it is there").path())
        .collect();
    names.sort();
    names
}

#[test]
fn an_interrupted_edit_removes_its_clone() {
    if !can_be_interrupted() {
        return;
    }
    // `timeout` sends its signal twice, at once.
    let twice = [Signal::INT, Signal::TERM];
    for signals in [&twice[..1], &twice[1..], &twice] {
        let place = Place::empty();
        succeed(pext4(["mkfs", "-q", "--size", "16M"]).arg(&place.image));
        let (before, image) = (names(&place), fs::read(&place.image).expect("readable"));
        let edit = ["edit", "--by", "clone", "--tar", "-"];
        let (mut child, input) = begin(&place, &edit);
        wait_until(&mut child, || names(&place) != before);
        let (status, said) = interrupt(child, signals);
        assert_eq!(status, Some(1), "{said}");
        let told = "interrupted; nothing was changed and nothing left behind";
        assert!(said.contains(told), "{said}");
        assert!(said.contains(place.image.to_str().expect("text")), "{said}");
        assert_eq!(names(&place), before);
        assert!(
            fs::read(&place.image).expect("readable") == image,
            "it was changed"
        );
        drop(input);
    }
}

/// Also without a clone, and also if a file is read instead of an archive.
#[test]
fn a_stalled_stream_does_not_hold_up_an_interruption() {
    if !can_be_interrupted() {
        return;
    }
    for edit in [&["put", "-", "/file"][..], &["edit", "--tar", "-"]] {
        let place = Place::empty();
        succeed(pext4(["mkfs", "-q", "--size", "16M"]).arg(&place.image));
        let image = fs::read(&place.image).expect("readable");
        let (mut child, input) = begin(&place, edit);
        let process = child.id();
        wait_until(&mut child, || has_interrupt(process, "SigCgt:"));
        let (status, said) = interrupt(child, &[Signal::INT]);
        assert_eq!(status, Some(1), "{said}");
        assert!(said.contains("interrupted; nothing was changed"), "{said}");
        assert!(
            fs::read(&place.image).expect("readable") == image,
            "it was changed"
        );
        drop(input);
    }
}

/// Whether nobody has opened the pipe to read from it, or somebody has and does not read.
#[test]
fn an_export_into_a_pipe_that_nobody_reads_is_interrupted() {
    for is_open in [false, true] {
        let place = Place::empty();
        let source = place.point.join("source");
        fs::create_dir(&source).expect("a free name");
        fs::write(source.join("file"), vec![7; 1 << 20]).expect("there is room");
        succeed(pext4(["build", "-q"]).arg(&place.image).arg(&source));
        let pipe = place.point.join("pipe");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, mode).expect("a free name");
        // A reader that also writes opens at once.
        let reader = is_open.then(|| File::options().read(true).write(true).open(&pipe));
        let before = names(&place);
        let (child, input) = begin(&place, &["export", "-o", pipe.to_str().expect("text")]);
        // It waits in the call that opens the pipe, or in the one that writes into it. Some systems
        // do not show where.
        let wchan = format!("/proc/{}/wchan", child.id());
        for _ in 0..400 {
            let waits = fs::read_to_string(&wchan).unwrap_or_default();
            if waits.contains("pipe") || waits.contains("partner") {
                break;
            }
            thread::sleep(Duration::from_millis(5));
        }
        let (status, said) = interrupt(child, &[Signal::TERM]);
        assert_eq!((status, said.as_str()), (None, ""), "the signal ends it");
        assert_eq!(names(&place), before);
        drop((reader, input));
    }
}

/// Where the work is done, or waits in a call, nobody looks whether a signal came.
#[test]
fn another_signal_ends_a_command_that_cannot_print() {
    let place = Place::empty();
    succeed(pext4(["mkfs", "-q", "--size", "16M"]).arg(&place.image));
    let (reader, writer) = std::io::pipe().expect("a pipe");
    rustix::io::ioctl_fionbio(&writer, true).expect("it can");
    while rustix::io::write(&writer, &[0; 4096]).is_ok() {}
    rustix::io::ioctl_fionbio(&writer, false).expect("it can");
    let child = pext4(["mkdir", "--json"])
        .arg(&place.image)
        .arg("/name")
        .stdout(writer)
        .spawn()
        .expect("it starts");
    let process = Pid::from_child(&child);
    within(HANG, "it ends", move || {
        let mut child = child;
        // Two signals are enough, as soon as it catches them; before, one.
        while child.try_wait().expect("it is ours").is_none() {
            let _ = kill_process(process, Signal::TERM);
            thread::sleep(Duration::from_millis(300));
        }
    });
    drop(reader);
}

#[test]
fn an_interrupted_build_names_the_image() {
    if !can_be_interrupted() {
        return;
    }
    let place = Place::empty();
    let before = names(&place);
    let (mut child, input) = begin(&place, &["build", "-"]);
    let process = child.id();
    wait_until(&mut child, || has_interrupt(process, "SigCgt:"));
    let (status, said) = interrupt(child, &[Signal::INT]);
    assert_eq!(status, Some(1), "{said}");
    let image = place.image.to_str().expect("text");
    let told = format!("{image}: interrupted; nothing was left behind");
    assert!(said.contains(&told), "{said}");
    assert_eq!(names(&place), before);
    drop(input);
}
