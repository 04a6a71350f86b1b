//! Archives that are ambiguous, and hostile ones.

use std::fs;
use std::process::Output;

use serde_json::{Value, json};

use super::images::{Workshop, complaint};
use super::pack::{Packer, zstd};
use crate::common::{run, succeed, with_input};

fn build(workshop: &Workshop, options: &[&str], archive: &[u8]) -> Output {
    with_input(workshop.build(options).arg("--force").arg("-"), archive)
}

fn built(workshop: &Workshop, options: &[&str], archive: &[u8]) {
    let output = build(workshop, options, archive);
    assert!(output.status.success(), "{output:?}");
    workshop.check();
}

#[test]
fn rules_for_paths_know_directories_that_no_entry_names() {
    let workshop = Workshop::new();
    let archive = Packer::new().file("srv/data/secret/f", b"x").finish();
    let lines = b"path /srv mode=0711\npath /srv/data/secret mode=0700 owner=5:6\n";
    let map = workshop.write("map", lines);
    built(&workshop, &["--map", map.to_str().expect("text")], &archive);
    for (path, mode, uid) in [
        ("/srv", "0711", 0),
        ("/srv/data", "0755", 0),
        ("/srv/data/secret", "0700", 5),
        ("/srv/data/secret/f", "0640", 1000),
    ] {
        let stat = workshop.stat(path);
        assert_eq!(
            (&stat["mode"], &stat["uid"]),
            (&mode.into(), &uid.into()),
            "{path}"
        );
    }
}

#[test]
fn a_directory_that_no_entry_names_is_as_old_as_the_latest_in_it() {
    let workshop = Workshop::new();
    let entries = [
        (3_000_000, "a/b/x"),
        (2_000_000, "a/y"),
        (1_000_000, "a/b/c/z"),
    ];
    let mut images = Vec::new();
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
        let archive = order.iter().fold(Packer::new(), |packer, &number| {
            let (time, name) = entries[number];
            packer.entry_at(time, b'0', name, "", b"x")
        });
        built(&workshop, &[], &archive.finish());
        images.push(fs::read(&workshop.image).expect("built"));
    }
    assert!(
        images.windows(2).all(|two| two[0] == two[1]),
        "the order matters"
    );
    assert_eq!(
        workshop.stat("/a")["modified"],
        "1970-02-04T17:20:00.000000000Z"
    );
    assert_eq!(
        workshop.stat("/a/b/c")["modified"],
        "1970-01-12T13:46:40.000000000Z"
    );
}

#[test]
fn an_access_list_follows_a_mode_that_is_mapped() {
    let list = b"user::rwx,user:7:rwx,group::r-x,mask::rwx,other::r-x";
    let archive = Packer::new()
        .extension(b'x', "SCHILY.acl.access", list)
        .file("secret", b"x")
        .finish();
    let workshop = Workshop::new();
    let map = workshop.write("map", b"path /secret mode=0600\n");
    built(&workshop, &["--map", map.to_str().expect("text")], &archive);
    assert_eq!(workshop.stat("/secret")["mode"], "0600");
    let exported = workshop.path("exported");
    let mut export = crate::common::pext4(["export", "-o"]);
    succeed(export.arg(&exported).arg(&workshop.image));
    let exported = fs::read(exported).expect("exported");
    let text = String::from_utf8_lossy(&exported);
    assert!(
        text.contains("mask::---"),
        "the list grants what the mode denies"
    );
    assert!(text.contains("other::---"));
}

#[test]
fn a_stream_may_begin_with_a_note() {
    let archive = Packer::new().file("file", b"content").finish();
    // As pzstd writes it: a frame to be skipped says how long the next one is.
    let note = [
        &[0x50, 0x2A, 0x4D, 0x18, 4, 0, 0, 0, 9, 9, 9, 9][..],
        &zstd(&archive),
    ]
    .concat();
    let workshop = Workshop::new();
    built(&workshop, &[], &note);
    assert_eq!(workshop.cat("/file"), "content");
    let packed = workshop.write("packed", &note);
    succeed(workshop.build(["--force"]).arg(packed));
    assert_eq!(workshop.cat("/file"), "content");
}

#[test]
fn an_archive_without_an_end_mark_is_noted() {
    let workshop = Workshop::new();
    let mut archive = Packer::new().file("file", b"content").finish();
    archive.truncate(archive.len() - 1024);
    let says = "standard input: it ends without an end mark; it may have been cut short";
    let output = build(&workshop, &[], &archive);
    assert!(output.status.success(), "{output:?}");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(told, format!("pext4: {says}\n"));
    assert_eq!(workshop.cat("/file"), "content");
    let output = build(&workshop, &["--json"], &archive);
    assert!(output.stderr.is_empty(), "{output:?}");
    let told: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(told["notes"], json!([says]));
    let output = build(&workshop, &["--quiet"], &archive);
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{output:?}"
    );
}

#[test]
fn links_to_what_is_no_path_are_refused() {
    for (target, word) in [(&b"a\0b"[..], "NUL"), (&[b'x'; 5000], "5000 bytes")] {
        let archive = Packer::new()
            .extension(b'x', "linkpath", target)
            .entry(b'2', "the link", "x", b"")
            .finish();
        let workshop = Workshop::new();
        let told = complaint(&build(&workshop, &[], &archive));
        assert!(told.contains("the link: ") && told.contains(word), "{told}");
        workshop.is_bare();
    }
}

#[test]
fn directories_that_no_entry_names_count_and_names_have_an_end() {
    let workshop = Workshop::new();
    let deep = |depth| {
        let name = "d/".repeat(depth) + "file";
        let packer = Packer::new().extension(b'x', "path", name.as_bytes());
        packer.file("x", b"").finish()
    };
    built(&workshop, &["-N", "600"], &deep(500));
    let told = complaint(&build(&workshop, &["-N", "400"], &deep(500)));
    assert!(told.contains("than the image may have inodes"), "{told}");
    let told = complaint(&build(&workshop, &[], &deep(1 << 20)));
    assert!(told.contains("bytes, up to 16380 are taken"), "{told}");
}

#[test]
fn a_terminal_is_not_told_what_to_do() {
    let workshop = Workshop::new();
    let archive = Packer::new()
        .entry(b'1', "a\x1b[2J", "b\x1b[2J", b"")
        .finish();
    let told = complaint(&build(&workshop, &[], &archive));
    assert!(
        told.contains("a\\u{1b}[2J") && !told.contains('\x1b'),
        "{told}"
    );
    let archive = Packer::new().entry(b'1', "a", "../b\x1b[2J", b"").finish();
    let told = complaint(&build(&workshop, &[], &archive));
    assert!(!told.contains('\x1b'), "{told}");
    let told = complaint(&run(&mut workshop.build(["no\x1b[2J"])));
    assert!(!told.contains('\x1b'), "{told}");
}

/// Every entry gets a copy of the global attributes.
#[test]
fn headers_for_all_entries_have_an_end() {
    let many = |count| {
        let packer = (0..count).fold(Packer::new(), |packer, number| {
            let key = format!("SCHILY.xattr.user.{number}");
            packer.extension(b'g', &key, &[b'x'; 100])
        });
        packer.file("file", b"x").finish()
    };
    let workshop = Workshop::new();
    built(&workshop, &[], &many(10));
    let told = complaint(&build(&workshop, &[], &many(1000)));
    assert!(told.contains("headers for all entries"), "{told}");
}

#[test]
fn other_compressions_are_told_by_their_programs() {
    let workshop = Workshop::new();
    for (start, program) in [
        (&b"\xfd7zXZ\0"[..], "xz -dc"),
        (b"\x04\x22\x4d\x18", "lz4 -dc"),
    ] {
        let archive = [start, &[7; 1020]].concat();
        let told = complaint(&build(&workshop, &[], &archive));
        assert!(told.contains(program), "{told}");
    }
}
