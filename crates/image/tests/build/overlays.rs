//! Directories laid over symbolic links of earlier sources: the content lands where the link leads,
//! and the link stays, as with `edit --tar`.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use pext4_image::build::{Builder, Map, Result, Source, Summary};

use crate::archives::Packer;
use crate::layouts::{LAYER, Layout};
use crate::oracle::{Mounted, check, describe};

/// A file system whose `lib` and `bin` lead into `usr`.
fn base() -> Packer {
    Packer::new()
        .directory("usr/lib")
        .directory("usr/bin")
        .file("usr/lib/old", b"old")
        .entry(b'2', "lib", "usr/lib", b"")
        .entry(b'2', "bin", "/lib/../bin", b"")
        .entry(b'2', "gone", "not/there", b"")
        .entry(b'2', "file", "usr/lib/old", b"")
}

fn stream(packer: Packer) -> Source {
    let stream = Box::new(std::io::Cursor::new(packer.finish()));
    Source::Stream("the archive".to_owned(), stream)
}

/// A directory of the host with these files, each with its path as content.
fn tree(folder: &Path, files: &[&str]) -> PathBuf {
    let root = folder.join("tree");
    if root.exists() {
        fs::remove_dir_all(&root).unwrap();
    }
    fs::create_dir(&root).unwrap();
    for file in files {
        let path = root.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, file).unwrap();
    }
    root
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn over_base(over: Source, image: &Path) -> Result<Summary> {
    let builder = Builder::new().source(stream(base())).source(over);
    builder.replace(true).build(image)
}

/// Passes the described image to `look`, if the kernel may mount it.
fn with(image: &Path, look: impl FnOnce(&dyn Fn(&str) -> Option<String>, &Path)) {
    check(image);
    if let Some(mounted) = Mounted::new(image) {
        let lines = describe(mounted.path());
        look(&|path| lines.get(Path::new(path)).cloned(), mounted.path());
    }
}

#[test]
fn a_directory_lands_where_a_link_of_an_earlier_source_leads() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let files = [
        "lib/modules/m.ko",
        "lib/top",
        "bin/tool",
        "gone/x",
        "file/y",
    ];
    let root = tree(folder.path(), &files);
    set_mode(&root.join("lib"), 0o711);
    let mut packed = Packer::new();
    for directory in ["lib/", "lib/modules/", "bin/", "gone/", "file/"] {
        packed = packed.directory(directory);
    }
    for file in files {
        packed = packed.file(file, file.as_bytes());
    }
    for (over, mode) in [
        (Source::Directory(root), "40711"),
        (stream(packed), "40644"),
    ] {
        let case = format!("{over:?}");
        over_base(over, &image).unwrap();
        with(&image, |line, mounted| {
            let starts = |path: &str, start: &str| {
                let found = line(path).unwrap_or_else(|| panic!("{case}: no {path}"));
                assert!(found.starts_with(start), "{case}: {path}: {found}");
            };
            assert!(line("lib").unwrap().contains("-> \"usr/lib\""), "{case}");
            assert!(
                line("bin").unwrap().contains("-> \"/lib/../bin\""),
                "{case}"
            );
            // What leads to no directory is replaced.
            for path in ["gone", "file", "usr/lib/modules"] {
                starts(path, "40");
            }
            starts("usr/lib", mode);
            for (path, content) in [
                ("usr/lib/modules/m.ko", "lib/modules/m.ko"),
                ("usr/lib/top", "lib/top"),
                ("usr/bin/tool", "bin/tool"),
                ("usr/lib/old", "old"),
            ] {
                let found = fs::read_to_string(mounted.join(path)).unwrap();
                assert_eq!(found, content, "{case}: {path}");
            }
        });
    }
}

/// Where no earlier source has a link, the names of a directory are added as they are found.
#[test]
fn names_that_need_not_wait_give_the_same_image() {
    let folder = tempfile::tempdir().unwrap();
    let names: Vec<String> = (0..1500)
        .map(|number| format!("d{}/e{}/{number}", number % 7, number % 40))
        .collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let root = tree(folder.path(), &names);
    fs::write(root.join("is-a-folder"), "no more").unwrap();
    fs::hard_link(root.join("d0/e0/0"), root.join("d0/another name")).unwrap();
    symlink("d0", root.join("own link")).unwrap();
    let earlier = |packer: Packer| {
        packer
            .file("x", b"of the first source")
            .file("d1", b"is a directory in the second")
            .directory("d0/e0")
            .file("d0/e0/0", b"older")
            .file("is-a-folder/below", b"gone")
    };
    let packers: [fn() -> Packer; 2] = [
        Packer::new,
        // This link is replaced at once, but there was one.
        || Packer::new().entry(b'2', "x", "d0", b""),
    ];
    let mut images = Vec::new();
    for (packer, threads) in [(packers[0], 1), (packers[0], 8), (packers[1], 1)] {
        let image = folder.path().join("image");
        let builder = Builder::new().source(stream(earlier(packer())));
        let builder = builder.source(Source::Directory(root.clone()));
        builder
            .threads(threads)
            .replace(true)
            .build(&image)
            .unwrap();
        check(&image);
        images.push(fs::read(&image).unwrap());
    }
    assert!(images.iter().all(|other| *other == images[0]));
}

#[test]
fn threads_change_nothing_where_links_lead_elsewhere() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let names: Vec<String> = (0..1500)
        .map(|number| match number % 3 {
            0 => format!("lib/d{}/{number}", number % 40),
            1 => format!("usr/lib/d{}/{number}", number % 40),
            _ => format!("bin/{number}"),
        })
        .collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let root = tree(folder.path(), &names);
    fs::hard_link(root.join("lib/d0/0"), root.join("bin/second name")).unwrap();
    let mut images = Vec::new();
    for threads in [1, 2, 8, 8] {
        let builder = Builder::new().source(stream(base()));
        let builder = builder.source(Source::Directory(root.clone()));
        let summary = builder.threads(threads).replace(true).build(&image);
        // The base has 8 names, and there are 40 directories below lib.
        assert_eq!(summary.unwrap().names, 8 + 40 + 1500 + 1);
        images.push(fs::read(&image).unwrap());
    }
    assert!(images.iter().all(|other| *other == images[0]));
    with(&image, |_, mounted| {
        for name in names {
            // The kernel would follow an absolute link out of the mounted image.
            let place = name.replacen("bin/", "usr/bin/", 1);
            let content = fs::read_to_string(mounted.join(place)).unwrap();
            assert_eq!(content, name);
        }
    });
}

/// Before it in the order of names comes `lib`, and after it `z/lib/again`.
#[test]
fn the_directory_under_its_own_path_gives_the_attributes() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let root = tree(folder.path(), &["lib/x", "usr/lib/y", "z/lib/z"]);
    set_mode(&root.join("lib"), 0o700);
    set_mode(&root.join("usr/lib"), 0o711);
    let links = || {
        Packer::new()
            .directory("z/lib")
            .directory("usr/lib")
            .entry(b'2', "lib", "usr/lib", b"")
            .entry(b'2', "z/lib/again", "../../usr/lib", b"")
    };
    fs::create_dir(root.join("z/lib/again")).unwrap();
    set_mode(&root.join("z/lib/again"), 0o733);
    let build = |root: &Path| {
        let builder = Builder::new().source(stream(links()));
        let builder = builder.source(Source::Directory(root.to_owned()));
        builder.replace(true).build(&image).unwrap();
    };
    build(&root);
    with(&image, |line, _| {
        assert!(line("usr/lib").unwrap().starts_with("40711"));
    });
    // Without it the first link does.
    fs::remove_dir_all(root.join("usr")).unwrap();
    build(&root);
    with(&image, |line, _| {
        assert!(line("usr/lib").unwrap().starts_with("40700"));
    });
}

#[test]
fn what_would_be_lost_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    for (files, one) in [
        (["lib/x", "usr/lib/x"], "usr/lib/x"),
        (["lib/x/below", "usr/lib/x"], "usr/lib/x"),
        (["lib/x", "usr/lib/x/below"], "usr/lib/x"),
        (["lib/x", "usr"], "lib"),
    ] {
        let root = tree(folder.path(), &files);
        let error = over_base(Source::Directory(root.clone()), &image);
        let told = error.unwrap_err().to_string();
        let start = format!("{}: ", root.join(one).display());
        assert!(told.starts_with(&start), "{files:?}: {told}");
        assert!(told.contains("symbolic link"), "{told}");
        assert!(!image.exists());
    }
}

#[test]
fn within_one_archive_and_in_layers_a_directory_replaces_a_link() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let over = || Packer::new().directory("lib/").file("lib/x", b"x");
    let same = over_base(
        stream(
            Packer::new()
                .entry(b'2', "lib", "usr/lib", b"")
                .directory("lib/")
                .file("lib/x", b"x"),
        ),
        &image,
    );
    same.unwrap();
    let replaced = |image: &Path| {
        with(image, |line, _| {
            assert!(line("lib").unwrap().starts_with("40"));
            assert!(line("lib/x").is_some() && line("usr/lib/x").is_none());
        });
    };
    replaced(&image);
    let layout = Layout::new(folder.path().join("layout"));
    let layers = [base(), over()].map(|layer| layout.blob(&layer.finish(), LAYER));
    layout.index(&[layout.image(&layers)]);
    let builder = Builder::new().source(Source::OciLayout(layout.path.clone()));
    builder.replace(true).build(&image).unwrap();
    replaced(&image);
}

#[test]
fn rules_meet_both_paths_of_what_lands_elsewhere() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let files = ["lib/x", "lib/sub/y", "lib/z"];
    let root = tree(folder.path(), &files);
    let packed = || {
        let packed = Packer::new().directory("lib/").directory("lib/sub/");
        files
            .iter()
            .fold(packed, |packed, file| packed.file(file, b"x"))
    };
    for is_archive in [false, true] {
        let over = match is_archive {
            true => stream(packed()),
            false => Source::Directory(root.clone()),
        };
        let builder = Builder::new().source(stream(base())).source(over);
        let map = "path /usr/lib mode=0750\npath lib/z mode=0604\npath usr/lib/x mode=0600";
        builder
            .map(Map::parse(map).unwrap())
            .exclude("/usr/lib/sub")
            .replace(true)
            .build(&image)
            .unwrap();
        with(&image, |line, _| {
            assert!(line("usr/lib").unwrap().starts_with("40750"));
            assert!(line("usr/lib/z").unwrap().starts_with("100604"));
            assert!(line("usr/lib/x").unwrap().starts_with("100600"));
            assert_eq!(line("usr/lib/sub"), None);
        });
    }
}

/// A link in a directory of the host counts like one in an archive.
#[test]
fn links_of_a_directory_are_followed_too() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let low = folder.path().join("low");
    fs::create_dir_all(low.join("usr/lib")).unwrap();
    symlink("usr/lib", low.join("lib")).unwrap();
    let root = tree(folder.path(), &["lib/x"]);
    let builder = Builder::new().source(Source::Directory(low));
    let summary = builder.source(Source::Directory(root)).build(&image);
    assert_eq!(summary.unwrap().names, 4);
    with(&image, |line, _| assert!(line("usr/lib/x").is_some()));
}
