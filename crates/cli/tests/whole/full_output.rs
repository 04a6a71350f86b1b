//! Standard output that cannot be written: the error names it, and says that the work is done.

use std::fs::{self, OpenOptions};
use std::process::{Command, Stdio};

use crate::common::{Place, fail, pext4, run, succeed};

/// Runs a command whose standard output takes nothing.
fn into_full(command: &mut Command) -> String {
    let full = OpenOptions::new().write(true).open("/dev/full");
    command.stdout(full.expect("Linux has it"));
    fail(command, 1)
}

#[test]
fn a_result_that_cannot_be_printed_is_no_failure_of_the_work() {
    let place = Place::empty();
    let on = |words: &[&str], arguments: &[&str]| {
        let mut command = pext4(words);
        command.arg(&place.image).args(arguments);
        command
    };
    let tree = place.point.join("tree");
    fs::create_dir(&tree).expect("a fresh place");
    let built = place.point.join("built");
    let got = place.point.join("got");
    let build = |json: &[&str]| {
        let mut command = pext4(["build", "--force"]);
        command.args(json).arg(&built).arg(&tree);
        command
    };
    let mut get = on(&["get"], &["/made"]);
    get.arg(&got).arg("--json");
    for (mut command, done) in [
        (
            on(&["mkfs"], &["--size", "16M"]),
            "the file system was made",
        ),
        (
            on(&["mkdir"], &["/made", "--json"]),
            "the image was changed",
        ),
        (on(&["resize"], &["24M"]), "the file system was resized"),
        (
            on(&["resize"], &["32M", "--json"]),
            "the file system was resized",
        ),
        (
            on(&["resize"], &["48M", "--json", "--dry-run"]),
            "nothing was changed",
        ),
        (build(&[]), "the image was built"),
        (build(&["--json"]), "the image was built"),
        (get, "the copy was made"),
    ] {
        let told = into_full(&mut command);
        let expected =
            format!("pext4: standard output: No space left on device (os error 28); {done}\n");
        assert_eq!(told, expected, "{command:?}");
    }
    assert!(built.is_file() && got.is_dir());
    place.check();
    succeed(&mut on(&["ls"], &["/made"]));
    assert_eq!(fs::metadata(&place.image).expect("there").len(), 32 << 20);
}

/// As everywhere: its reader has seen enough.
#[test]
fn a_closed_pipe_is_no_failure() {
    let place = Place::empty();
    let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
    drop(reader);
    let mut mkfs = pext4(["mkfs", "--size", "16M"]);
    let output = run(mkfs.arg(&place.image).stdout(Stdio::from(writer)));
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{output:?}"
    );
    place.check();
}

#[test]
fn an_archive_that_cannot_be_written_is_named() {
    let place = Place::empty();
    succeed(pext4(["mkfs", "-q", "--size", "16M"]).arg(&place.image));
    let export = || {
        let mut command = pext4(["export"]);
        command.arg(&place.image);
        command
    };
    let full = "cannot write it: No space left on device";
    let told = into_full(&mut export());
    assert!(
        told.starts_with(&format!("pext4: standard output: {full}")),
        "{told}"
    );
    let told = fail(export().args(["-o", "/dev/full"]), 1);
    assert!(
        told.starts_with(&format!("pext4: /dev/full: {full}")),
        "{told}"
    );
}
