//! `pext4 check`: output and exit status.

mod common;

use std::os::unix::fs::FileExt;

use common::{Place, pext4, run, succeed};
use serde_json::Value;

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
    let export = run(pext4(["export"]).arg(&place.image).stdout(ended()));
    assert_eq!(export.status.code(), Some(0));
    assert!(export.stderr.is_empty(), "{export:?}");
    let status = |place: &Place| {
        let mut check = pext4(["check"]);
        run(check.arg(&place.image).stdout(ended())).status.code()
    };
    assert_eq!(status(&place), Some(0));
    spoil(&place);
    assert_eq!(status(&place), Some(4));
}
