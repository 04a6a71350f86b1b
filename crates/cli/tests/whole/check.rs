//! `pext4 check`: output and exit status.

use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::common::{Place, fail, pext4, run, succeed};

fn made() -> Place {
    let place = Place::empty();
    succeed(pext4(["mkfs", "--size", "16M"]).arg(&place.image));
    place
}

/// Changes the superblock and leaves its checksum as it was.
fn spoil(place: &Place) {
    let file = std::fs::OpenOptions::new()
        .write(true)
        .open(&place.image)
        .expect("the image just made");
    file.write_all_at(&[0xFF], 1024 + 0x0C).expect("the image");
}

#[test]
fn a_sound_image_is_clean() {
    let place = made();
    let text = succeed(pext4(["check"]).arg(&place.image));
    assert!(text.contains(": clean; "), "{text}");
    assert_eq!(succeed(pext4(["check", "-q"]).arg(&place.image)), "");
    let json = succeed(pext4(["check", "--json", "--threads", "1"]).arg(&place.image));
    let report: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(report["clean"], true);
    assert_eq!(report["findings"].as_array().map(Vec::len), Some(0));
    let told = fail(pext4(["check", "--threads", "0"]).arg(&place.image), 16);
    assert!(told.contains("--threads"), "{told}");
}

#[test]
fn a_broken_image_is_told_by_the_status() {
    let place = made();
    spoil(&place);
    let output = run(pext4(["check"]).arg(&place.image));
    assert_eq!(output.status.code(), Some(4));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.starts_with("serious  superblock-checksum  "), "{text}");
    let output = run(pext4(["check", "--json"]).arg(&place.image));
    assert_eq!(output.status.code(), Some(4));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["findings"][0]["name"], "superblock-checksum");
    assert_eq!(report["findings"][0]["grade"], "serious");
}

#[test]
fn findings_that_cannot_be_written_are_told_by_the_status() {
    let place = made();
    let status = |arguments: &[&str]| {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full");
        let mut check = pext4(["check"]);
        check.args(arguments).stdout(full.expect("Linux has it"));
        let output = run(check.arg(&place.image));
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(
            text,
            "pext4: standard output: No space left on device (os error 28)\n"
        );
        output.status.code()
    };
    assert_eq!((status(&[]), status(&["--json"])), (Some(8), Some(8)));
    spoil(&place);
    assert_eq!((status(&[]), status(&["--json"])), (Some(12), Some(12)));
}

#[test]
fn the_status_tells_why_nothing_was_checked() {
    let place = Place::empty();
    let status = |words: &[&str]| run(pext4(["check"]).args(words)).status.code();
    let image = place.image.to_string_lossy().into_owned();
    assert_eq!(status(&[&image]), Some(8), "there is none");
    std::fs::write(&place.image, [7; 9000]).expect("a file");
    assert_eq!(status(&[&image]), Some(8), "it is none");
    assert_eq!(status(&["--no-such-option"]), Some(16));
    assert_eq!(status(&["--help"]), Some(0));
}

/// A pipe whose reader is gone.
fn ended() -> std::io::PipeWriter {
    std::io::pipe().expect("a pipe").1
}

#[test]
fn who_reads_no_further_changes_no_status() {
    let place = made();
    let status = |place: &Place| {
        let mut check = pext4(["check"]);
        run(check.arg(&place.image).stdout(ended())).status.code()
    };
    assert_eq!(status(&place), Some(0));
    spoil(&place);
    assert_eq!(status(&place), Some(4));
}

/// Whether a signal is in a set of signals that Linux shows of a process.
fn has_signal(process: u32, set: &str, signal: Signal) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let shown = status.lines().find_map(|line| line.strip_prefix(set));
    let shown = shown.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    shown.is_some_and(|shown| shown >> (signal.as_raw() - 1) & 1 == 1)
}

/// Starts a check, until one is seen to catch a signal before it ends: on a busy machine the first
/// ones may have ended before anybody looks.
fn start_and_see_caught(check: &mut Command, signal: Signal) -> Child {
    for _ in 0..100 {
        let mut child = check.spawn().expect("it starts");
        while child.try_wait().expect("it is ours").is_none() {
            if has_signal(child.id(), "SigCgt:", signal) {
                return child;
            }
        }
    }
    panic!("{signal:?} is not caught");
}

/// What a check says that gets a signal. It is stopped before, so that it has not ended by then.
fn interrupted(check: &mut Command, signal: Signal) -> Output {
    let child = start_and_see_caught(check, signal);
    for signal in [Signal::STOP, signal, Signal::CONT] {
        kill_process(Pid::from_child(&child), signal).expect("it is ours");
    }
    child.wait_with_output().expect("it is ours")
}

/// By any of the signals that ask a process to end.
#[test]
fn a_check_is_cancelled_by_each_signal() {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        if has_signal(std::process::id(), "SigIgn:", signal) {
            eprintln!("SKIPPED: {signal:?} is ignored here");
            continue;
        }
        let place = Place::empty();
        // Thousands of groups take a while, and hardly any space.
        succeed(pext4(["mkfs", "-q", "--size", "64G", "-b", "1024"]).arg(&place.image));
        let mut check = pext4(["check", "--threads", "1"]);
        let check = check.arg(&place.image).stderr(Stdio::piped());
        let check = check.stdout(Stdio::piped());
        let mut outputs = (0..100).map(|_| interrupted(check, signal));
        // One that succeeds had ended before it was stopped.
        let output = outputs.find(|output| !output.status.success());
        let output = output.unwrap_or_else(|| panic!("{signal:?} does not cancel it"));
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(32), "{signal:?}: {told}");
        assert!(told.contains(": cancelled"), "{told}");
    }
}

#[test]
fn a_signal_that_is_ignored_stays_so() {
    let place = Place::empty();
    succeed(pext4(["mkfs", "-q", "--size", "64G", "-b", "1024"]).arg(&place.image));
    let mut shell = Command::new("sh");
    let script = "trap '' INT; exec \"$0\" check --threads 1 \"$1\"";
    shell.args(["-c", script, env!("CARGO_BIN_EXE_pext4")]);
    shell.arg(&place.image).stdout(Stdio::null());
    // SIGINT would be caught before SIGTERM. The shell itself catches it for a moment.
    let mut child = start_and_see_caught(&mut shell, Signal::TERM);
    assert!(!has_signal(child.id(), "SigCgt:", Signal::INT));
    let status = child.wait().expect("it is ours");
    assert!(status.success(), "{status}");
}
