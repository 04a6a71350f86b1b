//! Where the entries of an archive go: links on the way, and directories that no entry names.

use std::fs;

use pext4_edit::Reader;
use pext4_testkit::effort::scratch;
use pext4_testkit::oracle::check::e2fsck;

use crate::common::archives::{apply, archive, changed, fresh, header, tree};

#[test]
fn links_in_an_archive_stay_inside_the_image() {
    let folder = scratch();
    let image = fresh(folder.path(), "image");
    let outside = folder.path().join("outside");
    fs::create_dir(&outside).expect("fresh");
    let link = outside.to_str().expect("text");
    let archive = archive(&[
        header("out", b'2', 0, link),
        header("up", b'2', 0, "../../../../etc"),
        header("up/file", b'0', 0, ""),
        header("out/file", b'0', 0, ""),
    ]);
    // `up` leads to /etc of the image, which is made; `out` to nothing, in the image too.
    let told = apply(&image, &archive);
    assert_eq!(fs::read_dir(&outside).expect("there").count(), 0);
    if told.is_ok() {
        e2fsck(&image).expect("sound");
    }
}

/// As `build` does: an image that is made in layers has `/lib` before `/usr/lib`.
#[test]
fn what_a_link_on_the_way_leads_to_is_made() {
    let folder = scratch();
    let image = fresh(folder.path(), "image");
    let parts = [
        header("lib", b'2', 0, "usr/lib"),
        header("lib/f", b'0', 0, ""),
        header("one", b'2', 0, "../two/deeper"),
        header("two", b'2', 0, "/three/"),
        header("one/f", b'0', 0, ""),
    ];
    apply(&image, &archive(&parts)).expect("sound");
    let items = tree(&image).items;
    assert!(items.contains_key(&b"usr/lib/f"[..]));
    assert!(items.contains_key(&b"three/deeper/f"[..]));
    let circle = [
        header("a", b'2', 0, "b"),
        header("b", b'2', 0, "a"),
        header("a/f", b'0', 0, ""),
    ];
    let error = apply(&image, &archive(&circle)).expect_err("it leads nowhere");
    assert!(error.contains("too many"), "{error}");
}

/// As `mkdir -p` makes them.
#[test]
fn directories_that_no_entry_names_inherit_from_the_image() {
    let folder = scratch();
    let image = fresh(folder.path(), "image");
    let shared = changed(header("shared/", b'5', 0, ""), 100, b"0002770");
    apply(&image, &archive(&[changed(shared, 116, b"0000006")])).expect("sound");
    apply(&image, &archive(&[header("shared/a/b/f", b'0', 0, "")])).expect("sound");
    let items = tree(&image).items;
    let of = |path: &str| {
        let facts = &items[path.as_bytes()].facts;
        (facts.permissions, facts.uid, facts.gid)
    };
    for directory in ["shared/a", "shared/a/b"] {
        assert_eq!(of(directory), (0o2755, 0, 6), "{directory}");
    }
    assert_eq!(of("shared/a/b/f"), (0o644, 0, 0));
}

/// What they inherit does not depend on the order of the entries.
#[test]
fn directories_that_no_entry_names_inherit_nothing_of_the_archive() {
    let folder = scratch();
    let set_group_id = |name| {
        let header = changed(header(name, b'5', 0, ""), 100, b"0002755");
        changed(header, 116, b"0000006")
    };
    for parts in [
        [set_group_id("a"), header("a/c/f", b'0', 0, "")],
        [header("a/c/f", b'0', 0, ""), set_group_id("a")],
    ] {
        let image = fresh(folder.path(), "image");
        apply(&image, &archive(&parts)).expect("sound");
        let reader = Reader::open(&image).expect("sound");
        let of = |path: &str| {
            let found = reader.volume().paths().attributes(path).expect("there");
            (found.mode & 0o7777, found.gid)
        };
        assert_eq!((of("/a"), of("/a/c")), ((0o2755, 6), (0o755, 0)));
        drop(reader);
        std::fs::remove_file(&image).expect("there");
    }
}
