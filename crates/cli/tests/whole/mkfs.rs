//! `pext4 mkfs`: what it makes, and what it does not overwrite.

use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::common::{Place, fail, has, pext4, run, succeed};

/// A size beyond the system's maximum is refused before anything is lost.
#[test]
fn a_size_that_the_host_refuses_costs_nothing() {
    let place = Place::empty();
    fs::write(&place.image, b"precious").expect("a fresh place");
    let make = |image: &Path, size: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -f 64; exec \"$@\"", "sh"]);
        command.arg(env!("CARGO_BIN_EXE_pext4"));
        command.args(["mkfs", "--force", "--size", size]).arg(image);
        command
    };
    let said = fail(&mut make(&place.image, "64M"), 1);
    assert!(said.contains("or `ulimit -f`"), "{said}");
    assert_eq!(fs::read(&place.image).expect("it is there"), b"precious");
    let new = place.image.with_file_name("new");
    fail(&mut make(&new, "64M"), 1);
    assert!(!new.exists(), "nothing is left in the way of the next try");
}

#[test]
fn making_an_image_overwrites_nothing_unasked() {
    let place = Place::empty();
    let said = fail(pext4(["mkfs"]).arg(&place.image), 2);
    assert!(said.contains("needs --size"), "{said}");
    let made = succeed(pext4(["mkfs", "--size", "64M", "-L", "mine"]).arg(&place.image));
    assert!(
        made.contains("64 MiB, 65536 blocks of 1024 bytes") || made.contains("of 4096 bytes"),
        "{made}"
    );
    place.check();
    let before = fs::read(&place.image).unwrap();
    let said = fail(pext4(["mkfs", "--size", "64M"]).arg(&place.image), 1);
    assert!(said.contains("--force overwrites it"), "{said}");
    assert!(fs::read(&place.image).unwrap() == before);
    succeed(pext4(["mkfs", "--force", "-q", "-b", "4096", "-m", "0"]).arg(&place.image));
    place.check();
    let json = succeed(pext4(["info", "--json"]).arg(&place.image));
    let info: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (&info["block_size"], &info["reserved_blocks"]),
        (&4096.into(), &0.into())
    );
    assert_eq!(info["label"], "");
    let said = fail(&mut pext4(["mkfs", "--size", "64Q", "x"]), 2);
    assert!(said.contains("write 512M, 10G or 1T"), "{said}");
    let mut file = fs::File::create(place.image.with_extension("text")).unwrap();
    file.write_all(b"letters to my mother").unwrap();
    assert!(
        !run(pext4(["mkfs", "--size", "64M"]).arg(place.image.with_extension("text")))
            .status
            .success()
    );
}

/// Where nothing at the start or the end of the file tells.
#[test]
fn data_in_the_middle_of_a_file_is_not_overwritten_unasked() {
    const MIDDLE: u64 = 4 << 20;
    let place = Place::empty();
    let file = fs::File::create(&place.image).expect("a fresh place");
    file.set_len(2 * MIDDLE).expect("a sparse file");
    file.write_all_at(b"letters", MIDDLE).expect("room");
    let before = fs::read(&place.image).expect("it is there");
    for words in [&["mkfs"][..], &["mkfs", "--size", "64M"]] {
        let said = fail(pext4(words).arg(&place.image), 1);
        assert!(said.contains("--force overwrites it"), "{said}");
        assert!(fs::read(&place.image).expect("it is there") == before);
    }
    // Zeroes that were written are none to lose.
    file.write_all_at(&[0; 7], MIDDLE).expect("room");
    succeed(pext4(["mkfs", "-q"]).arg(&place.image));
    place.check();
}

#[test]
fn sizes_and_features_of_a_new_image_are_told_to_programs() {
    let place = Place::empty();
    let mut mkfs = pext4(["mkfs", "--json", "--size", "64M", "-b", "4096", "-i", "64K"]);
    mkfs.args(["--journal-size", "8M", "-O", "none,has_journal,fast_commit"]);
    let made: Value = serde_json::from_str(&succeed(mkfs.arg(&place.image))).unwrap();
    place.check();
    assert_eq!(made["image"], place.image.to_str().unwrap());
    assert_eq!(
        (&made["size"], &made["blocks"]),
        (&(64 << 20).into(), &16384.into())
    );
    assert_eq!(
        (&made["inodes"], &made["groups"]),
        (&1024.into(), &1.into())
    );
    // A 64th more for fast commits.
    assert_eq!(made["journal_blocks"], 2048 + 32);
    assert_eq!(
        made["features"],
        serde_json::json!(["has_journal", "fast_commit"])
    );
    let info = succeed(pext4(["info", "--json"]).arg(&place.image));
    let info: Value = serde_json::from_str(&info).unwrap();
    for key in ["uuid", "block_size", "inodes", "groups", "features"] {
        assert_eq!(made[key], info[key], "{key}");
    }
}

#[test]
fn the_forerunners_are_made_by_name() {
    for (name, has_journal) in [("ext2", false), ("ext3", true), ("ext4", true)] {
        let place = Place::empty();
        succeed(pext4(["mkfs", "-t", name, "--size", "64M"]).arg(&place.image));
        place.check();
        let json = succeed(pext4(["info", "--json"]).arg(&place.image));
        let info: Value = serde_json::from_str(&json).unwrap();
        let features = info["features"].to_string();
        assert_eq!(features.contains("has_journal"), has_journal, "{features}");
        assert_eq!(features.contains("extent"), name == "ext4", "{features}");
    }
    let place = Place::empty();
    let said = fail(
        pext4(["mkfs", "-t", "ext5", "--size", "64M"]).arg(&place.image),
        2,
    );
    assert!(said.contains("ext2, ext3, ext4"), "{said}");
    let said = fail(pext4(["mkfs", "--size", "1K"]).arg(&place.image), 1);
    assert!(
        said.contains("1024 bytes are too small: at least 65536"),
        "{said}"
    );
}

#[test]
fn what_cannot_be_made_overwrites_nothing() {
    let place = Place::empty();
    let mkfs = |options: &[&str]| {
        let mut command = pext4(["mkfs", "-q", "--size", "16M"]);
        command.args(options).arg(&place.image);
        command
    };
    let complaint = fail(&mut mkfs(&["-b", "131072"]), 2);
    assert!(complaint.contains("131072"), "{complaint}");
    assert!(!place.image.exists(), "nothing was made");
    succeed(&mut mkfs(&[]));
    let before = fs::read(&place.image).unwrap();
    fail(&mut mkfs(&["--force", "-b", "131072"]), 2);
    fail(&mut mkfs(&["--force", "-O", "no_such_feature"]), 2);
    let complaint = fail(&mut mkfs(&["--force", "--journal-size", "12M"]), 1);
    assert!(complaint.contains("at most half"), "{complaint}");
    fail(&mut mkfs(&["--force", "-N", "100", "-i", "8192"]), 2);
    let complaint = fail(&mut mkfs(&["--force", "-U", "tenant"]), 2);
    assert!(complaint.contains("or `random`"), "{complaint}");
    fail(&mut mkfs(&[]), 1);
    assert!(
        fs::read(&place.image).unwrap() == before,
        "the image is as it was"
    );
    let mut mount = pext4(["mount", "--create", "1K"]);
    let complaint = fail(mount.arg(place.point.join("new")).arg(&place.point), 1);
    assert!(!place.point.join("new").exists(), "{complaint}");
}

/// UUID and seed are random otherwise, and the times are those of the clock.
#[test]
fn a_new_file_system_can_be_made_again_byte_for_byte() {
    const UUID: &str = "12345678-1234-5678-1234-567812345678";
    const SEED: &str = "87654321-4321-8765-4321-876543218765";
    let place = Place::empty();
    let make = |date: &str, words: &[&str]| {
        let mut command = pext4(["mkfs", "-q", "--force", "--size", "64M"]);
        command.args(words).arg(&place.image);
        command.env("SOURCE_DATE_EPOCH", date);
        command
    };
    let bytes = |date: &str, words: &[&str]| {
        // Blocks that are not written keep what they held.
        let _ = fs::remove_file(&place.image);
        succeed(&mut make(date, words));
        fs::read(&place.image).expect("just made")
    };
    let words = ["-U", UUID, "--hash-seed", SEED];
    let first = bytes("1000000000", &words);
    if has("e2fsck") {
        place.check();
    }
    let root = succeed(pext4(["stat", "--json"]).arg(&place.image).arg("/"));
    let root: Value = serde_json::from_str(&root).expect("JSON");
    assert_eq!(root["modified"], "2001-09-09T01:46:40.000000000Z");
    assert!(bytes("1000000000", &words) == first);
    assert!(bytes("1000000001", &words) != first);
    assert!(bytes("1000000000", &words[..2]) != first);
    let told = fail(&mut make("soon", &words), 2);
    assert!(told.contains("SOURCE_DATE_EPOCH"), "{told}");
    let random = [0, 1].map(|_| bytes("1000000000", &["-U", "random", "--hash-seed", SEED]));
    assert!(random[0] != random[1]);
    let told = fail(&mut make("0", &["--hash-seed", "x"]), 2);
    assert!(told.contains("--hash-seed"), "{told}");
}
