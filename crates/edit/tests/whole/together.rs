//! Files that go to a place where another one already is: nothing is lost without being asked for.

use std::sync::Arc;

use pext4_block::{Device, RamDevice};
use pext4_edit::{Change, EditOptions, EditSession, IntoDirectory, Overrides, change};
use pext4_testkit::effort::scratch;
use pext4_testkit::oracle::format::{Features, Format};

fn write(path: &str, content: &str) -> Change {
    change::WriteFile::new(path, content).into()
}

fn symlink(target: &str, path: &str) -> Change {
    Change::Symlink(change::Symlink {
        into: IntoDirectory::Never,
        target: target.into(),
        path: path.into(),
        force: false,
    })
}

fn directory(path: &str) -> Change {
    Change::MakeDirectory(change::MakeDirectory {
        path: path.into(),
        parents: true,
        mode: None,
    })
}

fn rename(from: &str, to: &str, no_target_directory: bool) -> Change {
    Change::Rename(change::Rename {
        from: from.into(),
        to: to.into(),
        no_target_directory,
        no_clobber: false,
    })
}

fn copy(from: &str, to: &str, no_target_directory: bool) -> Change {
    Change::CopyFile(change::CopyFile {
        image: None,
        image_offset: 0,
        from: from.into(),
        to: to.into(),
        no_target_directory,
        recursive: true,
    })
}

/// A session over an image in memory on which these changes were made.
fn session(changes: &[Change]) -> EditSession {
    let format = Format::new(16 << 20, 1024, Features::Upstream);
    let device: Arc<RamDevice> = Arc::new(format.device().expect("mke2fs is there"));
    let over: Arc<dyn Device> = device;
    let mut session = EditSession::from_device(over, &EditOptions::default()).expect("it opens");
    for change in changes {
        session.apply(change).expect("room");
    }
    session
}

fn content(session: &EditSession, path: &str) -> Option<String> {
    let content = session.volume().paths().read(path).ok()?;
    Some(String::from_utf8(content).expect("as it was written"))
}

fn two_of_one_name() -> [Change; 5] {
    [
        directory("/a"),
        directory("/b"),
        directory("/into"),
        write("/a/name", "first"),
        write("/b/name", "second"),
    ]
}

#[test]
fn files_of_one_command_do_not_replace_each_other() {
    for make in [rename, copy] {
        let mut session = session(&two_of_one_name());
        let from = ["/a/name", "/b/name"];
        let changes = from.map(|from| make(from, "/into", false));
        let error = session.apply_together(b"/into", &changes);
        let error = error.expect_err("they have one name").to_string();
        let expected = "/into/name: /b/name has the same name as what this command has just put";
        assert!(error.contains(expected), "{error}");
        assert_eq!(content(&session, "/into/name").as_deref(), Some("first"));
        assert_eq!(content(&session, "/b/name").as_deref(), Some("second"));
    }
    // One command after the other replaces.
    let mut session = session(&two_of_one_name());
    for from in ["/a/name", "/b/name"] {
        session.apply(&rename(from, "/into", false)).expect("there");
    }
    assert_eq!(content(&session, "/into/name").as_deref(), Some("second"));
}

#[test]
fn nor_do_files_below_directories_that_are_merged() {
    let before = [
        directory("/a/tree/below"),
        directory("/b/tree/below"),
        directory("/into"),
        write("/a/tree/below/name", "first"),
        write("/b/tree/below/name", "second"),
        write("/b/tree/other", "other"),
    ];
    let changes = ["/a/tree", "/b/tree"].map(|from| copy(from, "/into", false));
    let mut session = session(&before);
    let error = session.apply_together(b"/into", &changes);
    let error = error.expect_err("they have one name").to_string();
    let expected = "/into/tree/below/name: this command has just put another file here";
    assert!(error.contains(expected), "{error}");
    assert_eq!(
        content(&session, "/into/tree/below/name").as_deref(),
        Some("first")
    );
}

#[test]
fn nor_do_those_of_the_host() {
    let folder = scratch();
    let mut changes = Vec::new();
    for (number, of) in [(1, "file"), (2, "file"), (3, "tree"), (4, "tree")] {
        let above = folder.path().join(number.to_string());
        let from = above.join(of);
        std::fs::create_dir(&above).expect("fresh");
        if of == "tree" {
            std::fs::create_dir(&from).expect("fresh");
            std::fs::write(from.join(number.to_string()), "x").expect("fresh");
        } else {
            std::fs::write(&from, number.to_string()).expect("fresh");
        }
        changes.push(Change::Put(change::Put {
            from,
            to: b"/into".to_vec(),
            no_target_directory: false,
            xattrs: true,
            overrides: Overrides::default(),
        }));
    }
    let mut trees = session(&[directory("/into")]);
    trees
        .apply_together(b"/into", &changes[2..])
        .expect("they are merged");
    for number in ["3", "4"] {
        let path = format!("/into/tree/{number}");
        assert_eq!(content(&trees, &path).as_deref(), Some("x"));
    }
    let mut files = session(&[directory("/into")]);
    let error = files.apply_together(b"/into", &changes[..2]);
    let error = error.expect_err("they have one name").to_string();
    assert!(
        error.contains("the same name as what this command"),
        "{error}"
    );
}

#[test]
fn several_files_go_into_a_directory_that_is_there() {
    for (to, problem) in [
        ("/new", "/new: is no directory; several files"),
        ("/a/name", "/a/name: is no directory; several files"),
    ] {
        for make in [rename, copy] {
            let mut session = session(&two_of_one_name());
            let changes = ["/a", "/b/name"].map(|from| make(from, to, false));
            let error = session.apply_together(to.as_bytes(), &changes);
            let error = error.expect_err("no directory").to_string();
            assert!(error.contains(problem), "{error}");
            assert!(content(&session, "/a/name").is_some(), "nothing was moved");
        }
    }
}

/// The content would be lost, and the link would lead to itself.
#[test]
fn a_link_does_not_replace_the_file_to_which_it_leads() {
    for make in [rename, copy] {
        for (target, link, to, no_target_directory) in [
            ("file", "/link", "/file", false),
            ("file", "/link", "/file", true),
            ("../file", "/d/link", "/file", false),
            ("/d/../file", "/d/link", "/file", false),
            ("second", "/link", "/file", false),
        ] {
            let before = [
                directory("/d"),
                write("/file", "content"),
                symlink("/file", "/second"),
                symlink(target, link),
            ];
            let mut session = session(&before);
            let error = session.apply(&make(link, to, no_target_directory));
            let error = error.expect_err("it would be lost").to_string();
            assert!(error.contains("are the same file"), "{error}");
            assert_eq!(content(&session, "/file").as_deref(), Some("content"));
        }
        // The content has another name, or the link leads elsewhere, or nowhere.
        let other_name = Change::Link(change::Link {
            into: IntoDirectory::Never,
            target: b"/file".to_vec(),
            path: b"/other".to_vec(),
            force: false,
        });
        let before = [
            write("/file", "content"),
            other_name,
            symlink("file", "/link"),
        ];
        let mut session = session(&before);
        session
            .apply(&make("/link", "/file", false))
            .expect("it stays");
        assert_eq!(content(&session, "/other").as_deref(), Some("content"));
    }
    let before = [
        write("/file", "content"),
        write("/replaced", "older"),
        symlink("file", "/link"),
        symlink("nowhere", "/dangling"),
    ];
    let mut session = session(&before);
    session
        .apply(&copy("/dangling", "/replaced", false))
        .expect("as asked for");
    session
        .apply(&rename("/link", "/replaced", false))
        .expect("as asked for");
    assert_eq!(content(&session, "/replaced").as_deref(), Some("content"));
}

/// A file with two names keeps both, also where each is a source of its own.
#[test]
fn names_of_one_file_stay_together_among_several_sources() {
    let folder = scratch();
    std::fs::write(folder.path().join("one"), "x").expect("fresh");
    std::fs::hard_link(folder.path().join("one"), folder.path().join("two")).expect("fresh");
    let put = ["one", "two"].map(|name| {
        Change::Put(change::Put {
            from: folder.path().join(name),
            to: b"/into".to_vec(),
            no_target_directory: false,
            xattrs: true,
            overrides: Overrides::default(),
        })
    });
    let mut session = session(&[directory("/into"), directory("/copied")]);
    session.apply_together(b"/into", &put).expect("room");
    let copied = ["/into/one", "/into/two"].map(|from| copy(from, "/copied", false));
    session.apply_together(b"/copied", &copied).expect("room");
    for directory in ["/into", "/copied"] {
        let [one, two] = ["one", "two"].map(|name| {
            let path = format!("{directory}/{name}");
            session.volume().paths().attributes(&path).expect("there")
        });
        assert_eq!((one.inode, one.links), (two.inode, 2), "{directory}");
    }
}

/// What is still to be copied would be replaced.
#[test]
fn a_directory_is_not_copied_over_one_that_holds_it() {
    let before = [
        directory("/a/b/b"),
        write("/a/b/c", "old"),
        write("/a/b/b/aa", "new"),
    ];
    for (from, to) in [("/a/b", "/a"), ("/a/b/b", "/a"), ("/a/b/b", "/")] {
        let mut session = session(&before);
        let error = session.apply(&copy(from, to, true));
        let error = error.expect_err("it holds the source").to_string();
        assert!(
            error.contains("over one that holds it"),
            "{from} {to}: {error}"
        );
    }
    let mut session = session(&before);
    session.apply(&copy("/a/b", "/c", true)).expect("room");
    session.apply(&copy("/a/b/b", "/c", true)).expect("room");
    assert_eq!(content(&session, "/c/aa").as_deref(), Some("new"));
}

/// Two names of the source are one in a directory where case does not matter.
#[test]
fn names_of_one_tree_do_not_replace_each_other_where_case_does_not_matter() {
    let folder = scratch();
    let tree = folder.path().join("tree");
    std::fs::create_dir(&tree).expect("fresh");
    std::fs::write(tree.join("A"), "hard").expect("fresh");
    std::fs::hard_link(tree.join("A"), tree.join("b")).expect("fresh");
    let put = |tree: &std::path::Path| {
        Change::Put(change::Put {
            from: tree.to_owned(),
            to: b"/folded".to_vec(),
            no_target_directory: true,
            xattrs: true,
            overrides: Overrides::default(),
        })
    };
    let format = Format::new(16 << 20, 1024, Features::Upstream);
    let format = format.with(&["-O", "casefold", "-E", "encoding=utf8-12.1"]);
    let open = || {
        let over: Arc<dyn Device> = Arc::new(format.device().expect("mke2fs is there"));
        let mut session =
            EditSession::from_device(over, &EditOptions::default()).expect("it opens");
        session.apply(&directory("/folded")).expect("room");
        let folds = Change::SetFlags(change::SetFlags {
            path: b"/folded".to_vec(),
            flags: "+F".parse().expect("a flag"),
            recursive: false,
        });
        session.apply(&folds).expect("it is empty");
        session
    };
    let mut session = open();
    session.apply(&put(&tree)).expect("its names differ");
    session
        .apply(&put(&tree))
        .expect("those of an earlier command are replaced");
    assert_eq!(content(&session, "/folded/B").as_deref(), Some("hard"));
    // A name of the same file in another case is that name.
    std::fs::hard_link(tree.join("A"), tree.join("B")).expect("fresh");
    open().apply(&put(&tree)).expect("nothing is lost");
    std::fs::write(tree.join("a"), "other").expect("fresh");
    let error = open()
        .apply(&put(&tree))
        .expect_err("one would be lost")
        .to_string();
    assert!(
        error.contains("/folded/a: this command has just put another file here"),
        "{error}"
    );
}
