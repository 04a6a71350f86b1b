//! The marks of layers hide what lower layers have, wherever they stand among the entries.

use pext4_image::build::{Builder, Source};

use crate::archives::Packer;
use crate::layouts::{LAYER, Layout};
use crate::oracle::{Mounted, check, describe};

/// The names of an image of these layers; those of links and files with what they lead to or hold.
/// `None` if the kernel may not mount it.
fn names(layers: [Packer; 2]) -> Option<Vec<String>> {
    // A folder for each image: the kernel may hold the one before for a moment.
    let folder = tempfile::tempdir().unwrap();
    let layout = Layout::new(folder.path().join("layout"));
    let layers = layers.map(|layer| layout.blob(&layer.finish(), LAYER));
    layout.index(&[layout.image(&layers)]);
    let image = folder.path().join("image");
    let builder = Builder::new().source(Source::OciLayout(layout.path.clone()));
    builder.build(&image).unwrap();
    check(&image);
    let mounted = Mounted::new(&image)?;
    let lines = describe(mounted.path());
    let named = lines.keys().skip(1).map(|path| {
        let whole = mounted.path().join(path);
        let shown = path.to_str().unwrap();
        let kind = whole.symlink_metadata().unwrap().file_type();
        if kind.is_dir() {
            format!("{shown}/")
        } else if kind.is_symlink() {
            let target = std::fs::read_link(&whole).unwrap();
            format!("{shown} -> {}", target.display())
        } else {
            format!("{shown} {}", std::fs::read_to_string(&whole).unwrap())
        }
    });
    Some(named.collect())
}

/// A directory, a link to it, and a file where a layer may have a directory.
fn lower() -> Packer {
    Packer::new()
        .file("x/a/old", b"low")
        .entry(b'2', "x/s", "a", b"")
        .file("x/f", b"low")
}

fn upper(entries: &[&str]) -> Packer {
    let add = |packer: Packer, name: &&str| match name.ends_with('/') {
        true => packer.directory(name),
        false => packer.file(name, if name.contains(".wh.") { b"" } else { b"new" }),
    };
    entries.iter().fold(Packer::new(), add)
}

#[test]
fn no_entry_goes_through_a_link_that_its_layer_hides() {
    for (entries, expected) in [
        (
            &["x/", "x/.wh..wh..opq", "x/s/n"][..],
            &["x/", "x/s/", "x/s/n new"][..],
        ),
        (
            &["x/", "x/.wh..wh..opq", "x/f/n"],
            &["x/", "x/f/", "x/f/n new"],
        ),
        (
            &["x/.wh.s", "x/s/n"],
            &["x/", "x/a/", "x/a/old low", "x/f low", "x/s/", "x/s/n new"],
        ),
        (
            &["x/.wh.f", "x/f/n"],
            &["x/", "x/a/", "x/a/old low", "x/f/", "x/f/n new", "x/s -> a"],
        ),
        // The directory of the mark takes the place of the file.
        (
            &["x/f/.wh.q", "x/f/", "x/f/n"],
            &["x/", "x/a/", "x/a/old low", "x/f/", "x/f/n new", "x/s -> a"],
        ),
        // What the link leads to is hidden, and the link is not.
        (
            &["x/.wh.a", "x/s/n"],
            &["x/", "x/a/", "x/a/n new", "x/f low", "x/s -> a"],
        ),
        // The mark below the hidden link hides nothing beside it.
        (
            &["x/.wh.s", "x/s/.wh.old"],
            &["x/", "x/a/", "x/a/old low", "x/f low", "x/s/"],
        ),
        // No mark hides the link.
        (
            &["x/s/n", "x/s/.wh.old"],
            &["x/", "x/a/", "x/a/n new", "x/f low", "x/s -> a"],
        ),
        // What is behind a waiting entry is later.
        (
            &["x/.wh.f", "x/s/n", "x/s/n/", "x/s/n/m"],
            &[
                "x/",
                "x/a/",
                "x/a/n/",
                "x/a/n/m new",
                "x/a/old low",
                "x/s -> a",
            ],
        ),
    ] {
        let first = upper(entries);
        let mut entries = entries.to_vec();
        // The marks behind everything else.
        entries.sort_by_key(|name| name.contains(".wh."));
        let last = upper(&entries);
        for layer in [first, last] {
            if let Some(found) = names([lower(), layer]) {
                assert_eq!(found, expected, "{entries:?}");
            }
        }
    }
}

#[test]
fn hard_links_find_what_has_waited() {
    for to in ["x/s/n", "x/a/n"] {
        let layer = upper(&["x/s/n"]).entry(b'1', "hard", to, b"");
        if let Some(found) = names([lower(), layer]) {
            assert!(found.contains(&"hard new".to_owned()), "{found:?}");
            assert!(found.contains(&"x/a/n new".to_owned()), "{found:?}");
        }
    }
}

/// A mark behind a hard link hides the file of a lower layer to which it leads.
#[test]
fn a_hard_link_keeps_what_a_later_mark_hides() {
    for before in ["other", "x/s/n"] {
        let layer = upper(&[before])
            .entry(b'1', "hard", "x/a/old", b"")
            .file("x/a/.wh.old", b"");
        if let Some(found) = names([lower(), layer]) {
            assert!(found.contains(&"hard low".to_owned()), "{found:?}");
            assert!(!found.contains(&"x/a/old low".to_owned()), "{found:?}");
        }
    }
}

/// The links of a hidden directory are hidden, however they lead to one another.
#[test]
fn links_behind_links_are_hidden() {
    let lower = Packer::new()
        .file("a/b/old", b"low")
        .entry(b'2', "a/t", "b", b"")
        .entry(b'2', "s", "a", b"");
    let layer = upper(&["s/t/n", "s/t/.wh.old", "s/.wh.t"]);
    if let Some(found) = names([lower, layer]) {
        let expected = ["a/", "a/b/", "a/b/old low", "a/t/", "a/t/n new", "s -> a"];
        assert_eq!(found, expected);
    }
}

/// A mark hides nothing behind a link whose place something of the layer takes, wherever it stands.
#[test]
fn no_mark_goes_through_a_link_that_its_layer_replaces() {
    for (entries, expected) in [
        (
            &["x/s/.wh..wh..opq", "x/s/", "x/s/n"][..],
            &["x/", "x/a/", "x/a/old low", "x/f low", "x/s/", "x/s/n new"][..],
        ),
        (
            &["x/s/.wh.old", "x/s/", "x/s/n"],
            &["x/", "x/a/", "x/a/old low", "x/f low", "x/s/", "x/s/n new"],
        ),
        // The file goes before the directory, and so does the mark.
        (
            &["x/s/sub/.wh.q", "x/s", "x/s/", "x/s/sub/"],
            &["x/", "x/a/", "x/a/old low", "x/f low", "x/s/", "x/s/sub/"],
        ),
    ] {
        let first = upper(entries);
        let mut entries = entries.to_vec();
        entries.sort_by_key(|name| name.contains(".wh."));
        for layer in [first, upper(&entries)] {
            if let Some(found) = names([lower(), layer]) {
                assert_eq!(found, expected, "{entries:?}");
            }
        }
    }
    // A link of the layer itself.
    for is_first in [true, false] {
        let mark = |packer: Packer, is_now| match is_now {
            true => packer.file("x/s/.wh.old", b""),
            false => packer,
        };
        let layer = mark(Packer::new(), is_first).entry(b'2', "x/s", "../y", b"");
        let lower = lower().file("y/old", b"low").file("y/kept", b"low");
        if let Some(found) = names([lower, mark(layer, !is_first)]) {
            assert!(found.contains(&"x/a/old low".to_owned()), "{found:?}");
            assert!(found.contains(&"y/kept low".to_owned()), "{found:?}");
            assert!(!found.contains(&"y/old low".to_owned()), "{found:?}");
        }
    }
}

/// Only the hidden name is one of a file: the whiteout's is four bytes longer.
#[test]
fn a_whiteout_hides_the_longest_names() {
    let long = |packer: Packer, name: &str| {
        let packer = packer.entry(b'L', "././@LongLink", "", name.as_bytes());
        packer.file("its start", b"")
    };
    let name = "n".repeat(255);
    let layers = [
        long(
            Packer::new().file("dir/kept", b"low"),
            &format!("dir/{name}"),
        ),
        long(Packer::new(), &format!("dir/.wh.{name}")),
    ];
    if let Some(found) = names(layers) {
        assert_eq!(found, ["dir/", "dir/kept low"]);
    }
}
