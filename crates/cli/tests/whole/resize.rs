//! `pext4 resize`, from the outside.

use std::fs;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use pext4_block::{Access, FileDevice};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::common::{Place, fail, has, pext4, succeed};

fn length(place: &Place) -> u64 {
    fs::metadata(&place.image).expect("an image").len()
}

#[test]
fn an_image_grows_and_says_how() {
    let place = Place::empty();
    succeed(pext4(["mkfs", "-q", "--size", "64M"]).arg(&place.image));
    let said = succeed(pext4(["resize", "--dry-run"]).arg(&place.image).arg("96M"));
    assert!(said.contains("Size    64 MiB -> 96 MiB"), "{said}");
    assert!(said.contains("one transaction of its journal"), "{said}");
    assert_eq!(length(&place), 64 << 20, "nothing was done");
    // Readers are not blocked either.
    let reader = FileDevice::open(&place.image, Access::ReadOnly, Duration::ZERO);
    let reader = reader.expect("nobody writes");
    succeed(pext4(["resize", "--dry-run"]).arg(&place.image).arg("96M"));
    drop(reader);
    let said = succeed(pext4(["resize"]).arg(&place.image).arg("+32M"));
    assert!(said.contains("it is 96 MiB now"), "{said}");
    assert_eq!(length(&place), 96 << 20);
    let said = succeed(pext4(["resize"]).arg(&place.image).arg("max"));
    assert!(said.contains("it is 96 MiB already"), "{said}");
    let json = succeed(pext4(["resize", "--json"]).arg(&place.image).arg("1G"));
    let done: Value = serde_json::from_str(&json).expect("JSON");
    let image = place.image.to_str().expect("text");
    assert_eq!(done["image"], image);
    assert_eq!(done["way"], "journal");
    assert_eq!(done["done"], true);
    assert_eq!(done["blocks"], 1 << 20);
    if has("e2fsck") {
        let mut e2fsck = std::process::Command::new("e2fsck");
        succeed(e2fsck.arg("-fn").arg(&place.image));
    }
}

#[test]
fn an_image_shrinks_on_a_clone_or_in_place() {
    let place = Place::empty();
    succeed(pext4(["mkfs", "-q", "--size", "600M"]).arg(&place.image));
    let said = succeed(pext4(["resize"]).arg(&place.image).arg("-300M"));
    assert!(said.contains("on a clone that replaces it"), "{said}");
    assert_eq!(length(&place), 300 << 20);
    // The last is too small for any file system.
    for (size, stated) in [("4M", "4194304 bytes are"), ("1K", "less than a block is")] {
        let told = fail(pext4(["resize"]).arg(&place.image).arg(size), 1);
        assert!(told.contains("are the least"), "{told}");
        assert!(told.contains(stated), "{told}");
    }
    let json = succeed(
        pext4(["resize", "--json", "--in-place"])
            .arg(&place.image)
            .arg("min"),
    );
    let done: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(done["way"], "in-place");
    let bytes = done["blocks"].as_u64().expect("a number") * 4096;
    assert_eq!(length(&place), bytes);
    if has("e2fsck") {
        let mut e2fsck = std::process::Command::new("e2fsck");
        succeed(e2fsck.arg("-fn").arg(&place.image));
    }
}

/// As signatures and footers are appended: also to what is less than a block.
#[test]
fn what_lies_behind_the_file_system_is_neither_cut_off_nor_overwritten() {
    use std::os::unix::fs::FileExt;

    const SIZE: u64 = 600 << 20;
    for (tail, is_kept) in [
        (vec![0; 100], false),
        (vec![7; 100], true),
        (vec![7; 5000], true),
    ] {
        let place = Place::empty();
        succeed(pext4(["mkfs", "-q", "--size", "600M"]).arg(&place.image));
        let file = fs::File::options().write(true).open(&place.image);
        let file = file.expect("an image");
        file.write_all_at(&tail, SIZE).expect("room");
        if is_kept {
            let told = fail(pext4(["resize"]).arg(&place.image).arg("700M"), 1);
            let advice = format!("from byte {SIZE} on");
            assert!(
                told.contains(&advice) && told.contains("truncate -s"),
                "{told}"
            );
            fail(
                pext4(["resize", "--dry-run"]).arg(&place.image).arg("700M"),
                1,
            );
            assert_eq!(length(&place), SIZE + tail.len() as u64, "nothing was done");
        }
        succeed(pext4(["resize"]).arg(&place.image).arg("300M"));
        if !is_kept {
            assert_eq!(length(&place), 300 << 20);
            continue;
        }
        assert_eq!(length(&place), SIZE + tail.len() as u64);
        let bytes = fs::read(&place.image).expect("an image");
        assert!(bytes.ends_with(&tail), "it is still there");
    }
}

#[test]
fn what_is_no_size_or_no_image_is_refused() {
    let place = Place::empty();
    let told = fail(pext4(["resize"]).arg(&place.image).arg("large"), 2);
    assert!(told.contains("min or max"), "{told}");
    fs::write(&place.image, vec![0; 1 << 20]).expect("a file");
    let told = fail(pext4(["resize"]).arg(&place.image).arg("2M"), 1);
    assert!(told.contains("no ext4 file system"), "{told}");
    assert_eq!(length(&place), 1 << 20, "it is as it was");
}

/// Neither a plan nor a refusal replays the journal on the image.
#[test]
fn a_journal_is_replayed_only_for_what_will_be_done() {
    use std::os::unix::fs::FileExt;

    let place = Place::empty();
    succeed(pext4(["mkfs", "-q", "--size", "64M", "-O", "^metadata_csum"]).arg(&place.image));
    let file = fs::File::options()
        .read(true)
        .write(true)
        .open(&place.image);
    let file = file.expect("an image");
    let mut incompat = [0];
    file.read_exact_at(&mut incompat, 1024 + 0x60)
        .expect("a superblock");
    file.write_all_at(&[incompat[0] | 4], 1024 + 0x60)
        .expect("it is ours");
    // The log begins at its first block, where there is nothing: replaying it will empty it.
    let image = fs::read(&place.image).expect("an image");
    let journal = [0xC0, 0x3B, 0x39, 0x98, 0, 0, 0, 4];
    let block = image
        .chunks(1024)
        .position(|block| block.starts_with(&journal));
    let start = block.expect("a journal") as u64 * 1024 + 0x1C;
    file.write_all_at(&[0, 0, 0, 1], start).expect("it is ours");
    let before = fs::read(&place.image).expect("an image");
    let said = succeed(pext4(["resize", "--dry-run"]).arg(&place.image).arg("96M"));
    assert!(said.contains("64 MiB -> 96 MiB"), "{said}");
    fail(pext4(["resize"]).arg(&place.image).arg("1M"), 1);
    assert!(
        fs::read(&place.image).expect("an image") == before,
        "it was written"
    );
    succeed(pext4(["resize"]).arg(&place.image).arg("96M"));
    assert_eq!(length(&place), 96 << 20);
}

/// Writes a transaction to the log, with a block in the middle that nothing uses.
fn log_a_block(place: &Place) {
    let data = place.image.with_extension("block");
    fs::write(&data, vec![7; 4096]).expect("room");
    let script = place.image.with_extension("script");
    let requests = format!("jo\njw -b 9000 \"{}\"\njc\n", data.display());
    fs::write(&script, requests).expect("room");
    let mut debugfs = std::process::Command::new("debugfs");
    succeed(debugfs.arg("-w").arg("-f").arg(&script).arg(&place.image));
}

/// The replay is a change, so it is told even if nothing else is done.
#[test]
fn a_replay_is_told_even_if_the_size_stays() {
    if !has("debugfs") {
        return;
    }
    let place = Place::empty();
    succeed(pext4(["mkfs", "-q", "--size", "64M", "-O", "^metadata_csum"]).arg(&place.image));
    log_a_block(&place);
    let resize = || succeed(pext4(["resize"]).arg(&place.image).arg("max"));
    let said = resize();
    let told = "it is 64 MiB already (1 transaction replayed in its journal)";
    assert!(said.contains(told), "{said}");
    let said = resize();
    assert!(!said.contains("replayed"), "{said}");
}

/// As by `edit` and a mount.
#[test]
fn a_log_whose_replay_the_superblock_does_not_ask_for_is_dropped_with_a_word() {
    use std::os::unix::fs::FileExt;

    if !has("debugfs") {
        return;
    }
    let place = Place::empty();
    succeed(pext4(["mkfs", "-q", "--size", "64M", "-O", "^metadata_csum"]).arg(&place.image));
    log_a_block(&place);
    let file = fs::File::options()
        .read(true)
        .write(true)
        .open(&place.image);
    let file = file.expect("an image");
    let mut incompat = [0];
    file.read_exact_at(&mut incompat, 1024 + 0x60)
        .expect("a superblock");
    file.write_all_at(&[incompat[0] & !4], 1024 + 0x60)
        .expect("it is ours");
    let resize = |size: &str, json: &[&str]| {
        let words = [&["resize", "--dry-run"], json].concat();
        succeed(pext4(words).arg(&place.image).arg(size))
    };
    let dropped = "transactions whose replay the superblock does not ask for are dropped";
    for size in ["max", "96M"] {
        let said = resize(size, &[]);
        assert!(said.contains(dropped), "{said}");
    }
    let said = resize("96M", &["--json"]);
    assert!(said.contains("\"dropped_log\": true"), "{said}");
}

/// An image as a crash leaves it; `orphan` says whether a file was open whose name is gone.
fn crashed_image(place: &Place, orphan: bool) {
    use pext4_fs::{MountOptions, Volume};

    let live = place.image.with_file_name("live");
    succeed(pext4(["mkfs", "-q", "-O", "orphan_file", "--size", "64M"]).arg(&live));
    let device = FileDevice::open(&live, Access::ReadWrite, Duration::ZERO).expect("an image");
    let volume = Volume::open(Arc::new(device), MountOptions::default()).expect("a sound one");
    let paths = volume.paths();
    let open = paths.create("/file").expect("there is room");
    if orphan {
        paths.remove_file("/file").expect("it is there");
    }
    volume.sync().expect("a healthy device");
    fs::copy(&live, &place.image).expect("there is room");
    drop(open);
}

/// Its orphan file is marked, although it is empty.
#[test]
fn after_a_crash_without_deletions_that_wait_it_is_clean() {
    for size in ["+50M", "min"] {
        let place = Place::empty();
        crashed_image(&place, false);
        succeed(pext4(["resize", "-q"]).arg(&place.image).arg(size));
        let said = succeed(pext4(["check"]).arg(&place.image));
        assert!(said.contains(": clean; "), "{said}");
        if has("e2fsck") {
            let mut e2fsck = std::process::Command::new("e2fsck");
            succeed(e2fsck.arg("-fn").arg(&place.image));
        }
    }
}

#[test]
fn deletions_that_wait_are_finished_by_the_command_that_is_named() {
    let place = Place::empty();
    crashed_image(&place, true);
    let before = fs::read(&place.image).expect("an image");
    for size in ["min", "+50M", "max"] {
        let told = fail(pext4(["resize"]).arg(&place.image).arg(size), 1);
        assert!(told.contains("pext4 edit IMAGE -f /dev/null"), "{told}");
        let after = fs::read(&place.image).expect("an image");
        assert!(after == before, "nothing was written: {size}");
    }
    succeed(pext4(["edit", "-f", "/dev/null"]).arg(&place.image));
    succeed(pext4(["resize", "-q"]).arg(&place.image).arg("+50M"));
    succeed(pext4(["check"]).arg(&place.image));
    if has("e2fsck") {
        let mut e2fsck = std::process::Command::new("e2fsck");
        succeed(e2fsck.arg("-fn").arg(&place.image));
    }
}

#[test]
fn times_are_those_of_source_date_epoch() {
    let place = Place::empty();
    succeed(pext4(["mkfs", "-q", "--size", "64M"]).arg(&place.image));
    let resize = |size: &str, date: &str| {
        let mut command = pext4(["resize", "-q"]);
        command.arg(&place.image).arg(size);
        command.env("SOURCE_DATE_EPOCH", date);
        command
    };
    succeed(&mut resize("96M", "1700000000"));
    let said = succeed(pext4(["info", "--json"]).arg(&place.image));
    let said: Value = serde_json::from_str(&said).expect("JSON");
    let image = place.image.to_str().expect("text");
    assert_eq!(said["image"], image);
    let written = said["written"].as_str().expect("a time");
    assert!(written.starts_with("2023-11-14T22:13:20"), "{written}");
    let told = fail(&mut resize("128M", "soon"), 2);
    assert!(told.contains("SOURCE_DATE_EPOCH"), "{told}");
    assert_eq!(length(&place), 96 << 20);
}

#[test]
fn a_file_that_stays_longer_than_its_file_system_is_told_of() {
    let place = Place::empty();
    succeed(pext4(["mkfs", "-q", "--size", "64M"]).arg(&place.image));
    let file = fs::File::options().write(true).open(&place.image);
    file.expect("an image").set_len(65 << 20).expect("a hole");
    let mut planned = pext4(["resize", "--json", "--dry-run"]);
    let said = succeed(planned.arg(&place.image).arg("20M"));
    let said: Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(said["kept_length"], 65 << 20);
    let said = succeed(pext4(["resize"]).arg(&place.image).arg("20M"));
    assert!(said.contains("File    keeps its 65 MiB"), "{said}");
    assert_eq!(length(&place), 65 << 20);
    let said = succeed(pext4(["resize"]).arg(&place.image).arg("64M"));
    assert!(said.contains("it is 64 MiB now"), "{said}");
    let said = succeed(pext4(["resize"]).arg(&place.image).arg("max"));
    assert!(!said.contains("File "), "{said}");
}

/// Whether the process catches SIGINT.
fn catches_interrupts(process: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    caught.is_some_and(|caught| caught >> (Signal::INT.as_raw() - 1) & 1 == 1)
}

/// Ctrl-C in the middle would leave damage. The process is stopped before it gets each of them, so
/// that it has not ended by then.
#[test]
fn no_signal_interrupts_a_resize_in_place() {
    if !pext4_fuse::ending_signals().contains(&Signal::INT.as_raw()) {
        return eprintln!("SKIPPED: SIGINT is ignored here, as behind `&` in a shell");
    }
    let place = Place::empty();
    let mut make = pext4(["mkfs", "-q", "--size", "600M", "-b", "1024"]);
    succeed(make.args(["-O", "^flex_bg"]).arg(&place.image));
    let folder = place.point.join("folder");
    for number in 0..60 {
        let folder = folder.join(number.to_string());
        fs::create_dir_all(&folder).expect("room");
        fs::write(folder.join("file"), vec![number; 2 << 20]).expect("room");
    }
    let mut put = pext4(["put", "-q", "-T"]);
    succeed(put.arg(&place.image).arg(&folder).arg("/"));
    let mut resize = pext4(["resize", "--in-place"]);
    let resize = resize.arg(&place.image).arg("200M");
    let resize = resize.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = resize.spawn().expect("it starts");
    while !catches_interrupts(child.id()) {
        let ended = child.try_wait().expect("it is ours");
        assert!(ended.is_none(), "it ended by itself: {ended:?}");
    }
    let send = |signal| kill_process(Pid::from_child(&child), signal).expect("it is ours");
    for _ in 0..2 {
        send(Signal::STOP);
        // It looks for signals ten times a second, and so as soon as it goes on.
        std::thread::sleep(Duration::from_millis(200));
        send(Signal::INT);
        send(Signal::CONT);
        std::thread::sleep(Duration::from_millis(1));
    }
    let output = child.wait_with_output().expect("it is ours");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{}: {told}", output.status);
    let answers = told.matches("cannot be interrupted now without damage");
    assert_eq!(answers.count(), 1, "{told}");
    assert_eq!(length(&place), 200 << 20);
    succeed(pext4(["check"]).arg(&place.image));
}
