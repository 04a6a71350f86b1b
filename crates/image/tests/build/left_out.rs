//! Names of archives that rules leave out or change: by the path in the archive, and by the place
//! to which symbolic links lead it.

use std::fs;
use std::path::{Path, PathBuf};

use pext4_image::build::{Builder, Map, Source, Summary};

use crate::archives::Packer;
use crate::layouts::{LAYER, Layout};
use crate::oracle::{Mounted, check, describe};

fn stream(bytes: Vec<u8>) -> Source {
    let stream = Box::new(std::io::Cursor::new(bytes));
    Source::Stream("the archive".to_owned(), stream)
}

/// An archive whose entries are in /usr/lib, though their names begin with the link to it.
fn through_a_link() -> Packer {
    Packer::new()
        .directory("usr/lib")
        .entry(b'2', "lib", "usr/lib", b"")
        .entry(b'2', "far", "not/there", b"")
        .file("lib/x", b"x")
        .file("lib/sub/deep/y", b"y")
        .file("lib/first", b"z")
        .entry(b'1', "lib/second", "lib/first", b"")
        .file("far/z", b"z")
}

/// All that is in the image of [`through_a_link`].
const EVERYTHING: [&str; 13] = [
    "",
    "far",
    "lib",
    "not",
    "not/there",
    "not/there/z",
    "usr",
    "usr/lib",
    "usr/lib/first",
    "usr/lib/second",
    "usr/lib/sub",
    "usr/lib/sub/deep",
    "usr/lib/sub/deep/y",
];

/// Checks the names in an image.
fn holds(image: &Path, summary: &Summary, names: &[&str], case: &str) {
    check(image);
    assert_eq!(summary.names + 1, names.len() as u64, "{case}");
    if let Some(mounted) = Mounted::new(image) {
        let names: Vec<PathBuf> = names.iter().map(PathBuf::from).collect();
        let found: Vec<PathBuf> = describe(mounted.path()).into_keys().collect();
        assert_eq!(found, names, "{case}");
    }
}

#[test]
fn a_pattern_meets_the_path_in_the_archive_and_the_place_in_the_image() {
    let folder = tempfile::tempdir().unwrap();
    let layout = Layout::new(folder.path().join("layout"));
    let bytes = through_a_link().finish();
    layout.index(&[layout.image(&[layout.blob(&bytes, LAYER)])]);
    let image = folder.path().join("image");
    for (pattern, left_out) in [
        ("another", &[][..]),
        ("lib/x", &["usr/lib/x"]),
        ("usr/lib/x", &["usr/lib/x"]),
        (
            "/usr/lib/sub",
            &["usr/lib/sub", "usr/lib/sub/deep", "usr/lib/sub/deep/y"],
        ),
        (
            "/usr/lib/sub/**/y",
            &["usr/lib/sub", "usr/lib/sub/deep", "usr/lib/sub/deep/y"],
        ),
        ("usr/lib/second", &["usr/lib/second"]),
        ("not/there", &["not", "not/there", "not/there/z"]),
        ("not/*/z", &["not", "not/there", "not/there/z"]),
    ] {
        let mut names: Vec<&str> = EVERYTHING.into_iter().chain(["usr/lib/x"]).collect();
        names.retain(|name| !left_out.contains(name));
        for source in [
            stream(bytes.clone()),
            Source::OciLayout(layout.path.clone()),
        ] {
            let case = format!("{pattern} of {source:?}");
            let builder = Builder::new().source(source).exclude(pattern);
            let summary = builder.replace(true).build(&image).unwrap();
            holds(&image, &summary, &names, &case);
        }
    }
}

#[test]
fn a_hard_link_to_what_its_place_leaves_out_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    for pattern in ["usr/lib/first", "/lib/first"] {
        let builder = Builder::new().source(stream(through_a_link().finish()));
        let error = builder.exclude(pattern).build(&image).unwrap_err();
        let told = "lib/second: it is a hard link to lib/first, which is left out";
        assert!(error.to_string().contains(told), "{error}");
        assert!(!image.exists());
    }
}

/// The place of a whiteout is that of the file which it hides, not its own.
#[test]
fn a_whiteout_behind_a_link_hides_whatever_its_own_name_is() {
    let folder = tempfile::tempdir().unwrap();
    let layout = Layout::new(folder.path().join("layout"));
    let layers = [
        through_a_link().finish(),
        Packer::new().file("lib/.wh.x", b"").finish(),
        Packer::new().file("lib/sub/.wh..wh..opq", b"").finish(),
    ];
    let layers = layers.map(|layer| layout.blob(&layer, LAYER));
    layout.index(&[layout.image(&layers)]);
    let image = folder.path().join("image");
    let mut names = EVERYTHING.to_vec();
    names.retain(|name| !name.starts_with("usr/lib/sub/"));
    let summary = Builder::new()
        .source(Source::OciLayout(layout.path.clone()))
        .exclude("/usr/lib/.wh.*")
        .exclude("/usr/lib/sub/.wh.*")
        .build(&image)
        .unwrap();
    holds(&image, &summary, &names, "whiteouts");
}

#[test]
fn a_path_line_meets_the_path_in_the_archive_and_the_place_in_the_image() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    for (lines, line) in [
        ("path /usr/lib/x mode=4755", "104755 0:0 "),
        ("path /lib/x mode=4755", "104755 0:0 "),
        (
            "path /lib/x mode=0700 owner=1:2\npath usr/**/x mode=0711",
            "100711 1:2 ",
        ),
        (
            "path usr/**/x mode=0711 owner=1:2\npath /lib/x mode=0700",
            "100700 1:2 ",
        ),
        ("path /usr/x* mode=4755", "100644 0:0 "),
        ("path x mode=4755\npath / mode=0711", "104755 0:0 "),
    ] {
        Builder::new()
            .source(stream(through_a_link().finish()))
            .map(Map::parse(lines).unwrap())
            .replace(true)
            .build(&image)
            .unwrap();
        check(&image);
        if let Some(mounted) = Mounted::new(&image) {
            let found = &describe(mounted.path())[Path::new("usr/lib/x")];
            assert!(found.starts_with(line), "{lines}: {found}");
        }
    }
    for (lines, says) in [
        (
            "path /usr/x mode=4755",
            "line 1 of the mapping: nothing in the image is called `/usr/x`",
        ),
        (
            "path x mode=4755\n\npath w mode=4755",
            "line 3 of the mapping",
        ),
        ("path lib/x/y mode=4755", "`lib/x/y`"),
    ] {
        let builder = Builder::new().source(stream(through_a_link().finish()));
        let builder = builder.map(Map::parse(lines).unwrap()).replace(true);
        let told = builder.build(&image).unwrap_err().to_string();
        assert!(told.contains(says), "{lines}: {told}");
    }
}

/// The root of an archive without an entry for it.
#[test]
fn a_path_line_changes_a_root_that_no_source_has() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let lines = "path / mode=0711 owner=5:6 mtime=@9";
    Builder::new()
        .source(stream(through_a_link().finish()))
        .map(Map::parse(lines).unwrap())
        .build(&image)
        .unwrap();
    check(&image);
    let told = std::process::Command::new("debugfs")
        .args(["-R", "stat /"])
        .arg(&image)
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    for part in [
        "Mode:  0711",
        "User:     5   Group:     6",
        "mtime: 0x00000009:",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
}

#[test]
fn what_is_left_out_counts_against_no_limit() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let archive = folder.path().join("archive");
    let bytes = Packer::new()
        .file("large", &[7; 2 << 20])
        .file("small", b"x")
        .finish();
    fs::write(&archive, &bytes).unwrap();
    let with = |source: Source, builder: Builder| {
        let builder = builder.source(source).exclude("large").replace(true);
        builder.build(&image).unwrap().names
    };
    let limited = || Builder::new().limit(1 << 20);
    assert_eq!(with(stream(bytes.clone()), limited()), 1);
    assert_eq!(with(Source::Archive(archive), limited()), 1);
    // Skipped content must be complete too.
    let error = Builder::new()
        .source(stream(bytes[..4096].to_vec()))
        .exclude("large")
        .replace(true)
        .build(&image)
        .unwrap_err()
        .to_string();
    assert!(error.contains("large: the archive ends inside"), "{error}");
}

#[test]
fn a_hard_link_to_what_is_left_out_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let bytes = || {
        Packer::new()
            .file("dir/first", b"x")
            .entry(b'1', "second", "dir/first", b"")
            .finish()
    };
    let with = |patterns: &[&str]| {
        let builder = Builder::new().source(stream(bytes()));
        let excluding = |builder: Builder, pattern: &&str| builder.exclude(*pattern);
        let builder = patterns.iter().fold(builder, excluding);
        builder.replace(true).build(&image)
    };
    for pattern in ["first", "/dir"] {
        let error = with(&[pattern]).unwrap_err().to_string();
        let told = "second: it is a hard link to dir/first, which is left out";
        assert!(error.contains(told), "{error}");
    }
    assert_eq!(with(&["first", "second"]).unwrap().names, 0);
    assert_eq!(with(&["second"]).unwrap().names, 2);
}

#[test]
fn what_is_left_out_need_not_be_possible() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let bytes = || {
        Packer::new()
            .entry(b'2', "bad", "", b"")
            .entry(b'1', "bad", "", b"")
            .entry(b'1', "bad", "../outside", b"")
            .entry(b'1', "bad", "/absolute", b"")
            .file("good", b"x")
    };
    let device = {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Char);
        header.set_size(0);
        header.set_device_major(5000).unwrap();
        header.set_device_minor(1).unwrap();
        let mut archive = tar::Builder::new(Vec::new());
        archive.append_data(&mut header, "bad", &b""[..]).unwrap();
        archive.into_inner().unwrap()
    };
    for (bytes, names) in [(bytes().finish(), 1), (device, 0)] {
        let with = |pattern: &str| {
            let builder = Builder::new()
                .source(stream(bytes.clone()))
                .exclude(pattern);
            builder.replace(true).build(&image)
        };
        let refused = with("another").unwrap_err().to_string();
        assert!(refused.contains("bad: "), "{refused}");
        assert_eq!(with("bad").unwrap().names, names);
    }
}

/// A line that would change nothing: its path leads through a link, or is a further name of a file,
/// which gets its attributes by its first.
#[test]
fn a_path_line_that_states_another_path_of_a_file_names_the_one_to_state() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let tree = folder.path().join("tree");
    fs::create_dir_all(tree.join("usr/bin")).unwrap();
    fs::write(tree.join("usr/bin/su"), "su").unwrap();
    fs::hard_link(tree.join("usr/bin/su"), tree.join("usr/bin/z")).unwrap();
    std::os::unix::fs::symlink("usr/bin", tree.join("bin")).unwrap();
    let archive = through_a_link().finish();
    for (lines, says) in [
        ("path /bin/su mode=4755", "`/bin/su` leads to `/usr/bin/su`"),
        (
            "path usr/bin/z mode=4755",
            "`usr/bin/z` leads to `/usr/bin/su`",
        ),
    ] {
        let builder = Builder::new().source(Source::Directory(tree.clone()));
        let builder = builder.map(Map::parse(lines).unwrap());
        let told = builder.build(&image).unwrap_err().to_string();
        assert!(told.contains(says), "{lines}: {told}");
    }
    for lines in [
        "path /usr/bin/su mode=4755",
        "path su mode=4755\npath bin mtime=@5",
    ] {
        let builder = Builder::new().source(Source::Directory(tree.clone()));
        let builder = builder.map(Map::parse(lines).unwrap()).replace(true);
        builder.build(&image).unwrap();
    }
    // The same mapping, used again, knows nothing of the first build.
    let map = Map::parse("path lib/x mode=4755").unwrap();
    let first = Builder::new().source(stream(archive)).map(map.clone());
    first.replace(true).build(&image).unwrap();
    let second = Builder::new().source(Source::Directory(tree)).map(map);
    assert!(second.replace(true).build(&image).is_err());
}

/// A hard link of an archive has the attributes of its file, whichever of their names is the first.
#[test]
fn a_path_line_that_states_a_hard_link_of_an_archive_names_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let tree = folder.path().join("tree");
    fs::create_dir_all(tree.join("z")).unwrap();
    fs::write(tree.join("z/f"), "f").unwrap();
    let links = |packer: Packer| {
        let linked = packer.entry(b'1', "a/h", "z/f", b"");
        linked.entry(b'1', "z/g", "z/f", b"")
    };
    let layout = |name: &str, lower: Packer, upper: Packer| {
        let layout = Layout::new(folder.path().join(name));
        let layers = [lower, upper].map(|layer| layout.blob(&layer.finish(), LAYER));
        layout.index(&[layout.image(&layers)]);
        layout.path
    };
    let file = || Packer::new().file("z/f", b"f");
    // What the link replaces has matched the line.
    let replaced = layout("replaced", file().file("a/h", b"h"), links(Packer::new()));
    let hidden = layout("hidden", file(), links(Packer::new()).file("z/.wh.f", b""));
    let archive = || vec![stream(links(file()).finish())];
    let over_tree = || {
        let over = stream(links(Packer::new()).finish());
        vec![Source::Directory(tree.clone()), over]
    };
    let of = |path: &Path| vec![Source::OciLayout(path.to_owned())];
    let build = |sources: Vec<Source>, lines: &str| {
        let builder = Builder::new().map(Map::parse(lines).unwrap());
        let builder = sources.into_iter().fold(builder, Builder::source);
        builder.replace(true).build(&image)
    };
    for (sources, lines, says) in [
        (archive(), "path /a/h mode=4755", "`/a/h` leads to `/z/f`"),
        (archive(), "path /z/g mode=4755", "`/z/g` leads to `/z/f`"),
        (archive(), "path h mode=4755", "`h` leads to `/z/f`"),
        (over_tree(), "path /a/h mode=4755", "`/a/h` leads to `/z/f`"),
        (
            of(&replaced),
            "path /a/h mode=4755",
            "`/a/h` leads to `/z/f`",
        ),
        (of(&replaced), "path h mode=4755", "`h` leads to `/z/f`"),
        (
            of(&hidden),
            "path /a/h mode=4755",
            "a hard link to what was `/z/f`",
        ),
    ] {
        let case = format!("{sources:?}: {lines}");
        let told = build(sources, lines).expect_err(&case).to_string();
        assert!(told.contains(says), "{case}: {told}");
    }
    for (sources, lines) in [
        (archive(), "path /z/f mode=4755"),
        (archive(), "path f mode=4755\npath *h mode=0600"),
        (over_tree(), "path /z/f mode=4755"),
        (of(&replaced), "path /z/f mode=4755"),
        (of(&hidden), "path /z/f* mode=4755"),
    ] {
        build(sources, lines).unwrap();
        check(&image);
        if let Some(mounted) = Mounted::new(&image) {
            let found = &describe(mounted.path())[Path::new("a/h")];
            assert!(found.starts_with("104755 "), "{lines}: {found}");
        }
    }
}
