//! The volume by paths, as `std::fs` has it: trailing slashes, links, open options, whole trees.

use std::io::Write;
use std::sync::Barrier;

use pext4_fs::path::OpenOptions;
use pext4_fs::{
    AllocateMode, DeviceNumber, FileType, Refusal, RenameMode, Result, SetAttributes, SetXattrMode,
    Volume,
};

use crate::images::Image;

/// Flags of an inode, as `FS_IOC_GETFLAGS` shows them.
const IMMUTABLE: u32 = 0x10;
const APPEND: u32 = 0x20;

#[test]
fn a_slash_at_the_end_is_for_directories() {
    let Some(image) = Image::make(&[]) else {
        return;
    };
    let volume = image.open();
    let paths = volume.paths();
    paths.write("/file", b"content").expect("a file");
    paths.create_dir("/dir/").expect("a directory");
    paths.symlink("dir", "/link").expect("a link");
    let refused: [(Result<()>, Refusal); 9] = [
        (paths.rename("/link/", "/other"), Refusal::NotADirectory),
        (paths.remove_file("/file/"), Refusal::NotADirectory),
        (paths.rename("/file/", "/other"), Refusal::NotADirectory),
        (paths.rename("/file", "/other/"), Refusal::NotADirectory),
        (paths.hard_link("/file", "/other/"), Refusal::NotFound),
        (paths.symlink("file", "/other/"), Refusal::NotFound),
        (paths.create("/other/").map(drop), Refusal::IsADirectory),
        (paths.write("/file/", b""), Refusal::IsADirectory),
        (paths.open("/file/").map(drop), Refusal::NotADirectory),
    ];
    for (number, (result, refusal)) in refused.into_iter().enumerate() {
        let error = result.expect_err("it is no directory");
        assert!(error.is(refusal), "{number}: {error}");
    }
    assert_eq!(paths.read("/file").expect("untouched"), b"content");
    paths.rename("/dir/", "/moved/").expect("a directory");
    paths.remove_dir("/moved/").expect("a directory");
    volume.close().expect("it closes");
    image.assert_clean();
}

#[test]
fn a_file_is_made_where_a_link_leads() {
    let Some(image) = Image::make(&[]) else {
        return;
    };
    let volume = image.open();
    let paths = volume.paths();
    paths.create_dir("/dir").expect("a directory");
    paths.symlink("../far", "/dir/near").expect("a link");
    paths.symlink("/dir/near", "/link").expect("a link");
    paths.write("/link", b"content").expect("a new file");
    assert_eq!(paths.read("/far").expect("it was made"), b"content");
    paths.symlink("missing/file", "/nowhere").expect("a link");
    let error = paths.write("/nowhere", b"").expect_err("no directory");
    assert!(error.is(Refusal::NotFound), "{error}");
    paths.symlink("round", "/round").expect("a link");
    let error = paths.write("/round", b"").expect_err("a circle");
    assert!(error.is(Refusal::TooManySymlinks), "{error}");
    volume.close().expect("it closes");
    image.assert_clean();
}

#[test]
fn what_has_no_name_of_its_own_exists() {
    let Some(image) = Image::make(&[]) else {
        return;
    };
    let volume = image.open();
    let paths = volume.paths();
    for (path, refusal) in [
        ("/", Refusal::Exists),
        ("/lost+found/..", Refusal::Exists),
        ("/lost+found/.", Refusal::Exists),
        ("/missing/..", Refusal::NotFound),
        ("", Refusal::Invalid),
    ] {
        let error = paths.create_dir(path).expect_err("no name");
        assert!(error.is(refusal), "{path}: {error}");
    }
}

#[test]
fn files_are_opened_for_what_was_asked() {
    let Some(image) = Image::make(&[]) else {
        return;
    };
    let volume = image.open();
    let paths = volume.paths();
    paths.write("/file", b"content").expect("a file");
    paths.create_dir("/dir").expect("a directory");
    let refused: [(OpenOptions, &str, Refusal); 7] = [
        (OpenOptions::new(), "/file", Refusal::Invalid),
        (
            OpenOptions::new().read(true).create(true),
            "/new",
            Refusal::Invalid,
        ),
        (
            OpenOptions::new().append(true).truncate(true),
            "/file",
            Refusal::Invalid,
        ),
        (
            OpenOptions::new().write(true).create_new(true),
            "/file",
            Refusal::Exists,
        ),
        (
            OpenOptions::new().write(true),
            "/dir",
            Refusal::IsADirectory,
        ),
        (OpenOptions::new().write(true), "/new", Refusal::NotFound),
        (
            OpenOptions::new().write(true).create(true),
            "/dir",
            Refusal::IsADirectory,
        ),
    ];
    for (options, path, refusal) in refused {
        let error = options.open(&volume, path).expect_err("it is refused");
        assert!(error.is(refusal), "{path}: {options:?}: {error}");
    }
    let mut only_read = paths.open("/file").expect("it is there");
    let error = only_read.write(b"x").expect_err("not open for writing");
    assert_eq!(error.raw_os_error(), Some(9), "EBADF");
    let error = only_read.set_len(0).expect_err("not open for writing");
    assert!(error.is(Refusal::NotOpen), "{error}");
    let only_write = OpenOptions::new().write(true).open(&volume, "/file");
    let only_write = only_write.expect("it is there");
    let error = only_write.read_at(&mut [0; 1], 0).expect_err("for writing");
    assert!(error.is(Refusal::NotOpen), "{error}");
    let directory = paths
        .open("/dir")
        .expect("a directory is opened to sync it");
    directory.sync_all().expect("durable");
    assert_eq!(paths.read("/file").expect("untouched"), b"content");
    only_write.write_at(b"C", 0).expect("room");
    only_write.set_len(3).expect("it is cut");
    assert_eq!(paths.read("/file").expect("changed"), b"Con");
    drop((only_read, only_write, directory));
    assert!(volume.held().is_empty(), "all is given back");
    volume.close().expect("it closes");
    image.assert_clean();
}

#[test]
fn writers_that_append_do_not_overwrite_each_other() {
    const LINES: usize = 5000;
    let Some(image) = Image::make(&[]) else {
        return;
    };
    let volume = image.open();
    let append = OpenOptions::new().append(true).create(true);
    let start = Barrier::new(4);
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let (volume, append, start) = (&volume, &append, &start);
            scope.spawn(move || {
                let mut log = append.open(volume, "/log").expect("it opens");
                start.wait();
                for _ in 0..LINES {
                    writeln!(log, "{writer}").expect("room");
                }
            });
        }
    });
    let log = volume.paths().read("/log").expect("it is there");
    let of = |writer: u8| log.iter().filter(|&&byte| byte == writer).count();
    assert_eq!(log.len(), 4 * LINES * 2);
    assert_eq!([of(b'0'), of(b'1'), of(b'2'), of(b'3')], [LINES; 4]);
    volume.close().expect("it closes");
    image.assert_clean();
}

#[test]
fn trees_are_made_and_removed_whole() {
    let Some(image) = Image::make(&[]) else {
        return;
    };
    let volume = image.open();
    let paths = volume.paths();
    let free = volume.statfs().free_inodes;
    paths.create_dir_all("/a/b/c").expect("three are made");
    paths.create_dir_all("a//b/d/").expect("one is made");
    paths.create_dir_all("/").expect("it is there");
    paths.write("/a/b/c/file", b"x").expect("a file");
    paths.write("/keep", b"kept").expect("a file");
    paths.symlink("/keep", "/a/b/link").expect("a link");
    paths.symlink("/", "/a/root").expect("a link");
    let error = paths.create_dir_all("/keep/x").expect_err("a file");
    assert!(error.is(Refusal::NotADirectory), "{error}");
    assert!(paths.exists("/a/root/a/b/link").expect("readable"));
    paths.symlink("/a", "/to-a").expect("a link");
    paths.remove_dir_all("/to-a").expect("the link goes");
    let error = paths.attributes("/to-a").expect_err("it is gone");
    assert!(error.is(Refusal::NotFound), "{error}");
    paths.remove_dir_all("/a").expect("all of it goes");
    assert!(!paths.exists("/a").expect("readable"));
    assert_eq!(paths.read("/keep").expect("not followed"), b"kept");
    assert!(volume.held().is_empty(), "all is given back");
    assert_eq!(volume.statfs().free_inodes, free - 1);
    volume.close().expect("it closes");
    image.assert_clean();
}

#[test]
fn a_walk_goes_up_through_links_and_dots() {
    let Some(image) = Image::make(&[]) else {
        return;
    };
    let volume = image.open();
    let paths = volume.paths();
    paths.create_dir_all("/a/b").expect("made");
    paths.write("/a/b/file", b"x").expect("a file");
    paths.symlink("b/../b", "/a/near").expect("a link");
    for path in ["a/./b/.././near/file", "/a/b/../../../a/near/./file"] {
        assert_eq!(paths.attributes(path).expect(path).size, 1, "{path}");
        assert_eq!(
            paths.resolve(path).expect(path).inode(),
            paths.attributes(path).expect(path).inode
        );
    }
    for path in ["/a/b/file/.", "/a/b/file/..", "/a/b/file/x"] {
        let error = paths.attributes(path).expect_err("not a directory");
        assert!(error.is(Refusal::NotADirectory), "{path}: {error}");
    }
    paths
        .set_xattr("/a/near/file", "user.color", "blue", SetXattrMode::Any)
        .expect("room");
    assert_eq!(
        paths.xattr("/a/b/file", "user.color").expect("set"),
        b"blue"
    );
    assert_eq!(
        paths.xattr_names("/a/b/file").expect("set"),
        [b"user.color"]
    );
    paths
        .remove_xattr("/a/b/file", "user.color")
        .expect("it had it");
    let change = SetAttributes {
        permissions: Some(0o600),
        ..SetAttributes::default()
    };
    let changed = paths
        .set_attributes("/a/near/file", &change)
        .expect("changed");
    assert_eq!(changed.mode & 0o7777, 0o600);
    assert!(volume.held().is_empty(), "all is given back");
    volume.close().expect("it closes");
    image.assert_clean();
}

#[test]
fn a_link_that_leads_to_nothing_is_no_directory() {
    let Some(image) = Image::make(&[]) else {
        return;
    };
    let volume = image.open();
    let paths = volume.paths();
    paths.symlink("missing", "/link").expect("a link");
    let error = paths.create_dir_all("/link").expect_err("not a directory");
    assert!(error.is(Refusal::Exists), "{error}");
    volume.close().expect("it closes");
    image.assert_clean();
}

#[test]
fn a_slash_at_the_end_of_a_target_is_for_directories() {
    let Some(image) = Image::make(&[]) else {
        return;
    };
    let volume = image.open();
    let paths = volume.paths();
    paths.write("/file", b"content").expect("a file");
    paths.create_dir("/directory").expect("a directory");
    paths.symlink("file/", "/link").expect("a link");
    paths.symlink("directory/", "/other").expect("a link");
    let error = paths.read("/link").expect_err("not a directory");
    assert!(error.is(Refusal::NotADirectory), "{error}");
    assert!(
        paths
            .read_dir("/other")
            .expect("a directory")
            .next()
            .is_none()
    );
    volume.close().expect("it closes");
    image.assert_clean();
}

#[test]
fn a_file_is_opened_or_created_whatever_others_remove() {
    const ROUNDS: usize = 5000;
    let Some(image) = Image::make(&[]) else {
        return;
    };
    let volume = image.open();
    let open = OpenOptions::new().write(true).create(true);
    std::thread::scope(|scope| {
        let opening = scope.spawn(|| {
            for _ in 0..ROUNDS {
                open.open(&volume, "/file").expect("it is one or the other");
            }
        });
        while !opening.is_finished() {
            match volume.paths().remove_file("/file") {
                Err(error) if error.is(Refusal::NotFound) => {}
                removed => removed.expect("it is a file"),
            }
        }
    });
    volume.close().expect("it closes");
    image.assert_clean();
}

#[test]
fn a_removed_tree_is_not_held_until_its_end() {
    const DIRECTORIES: usize = 2000;
    let Some(image) = Image::make(&[]) else {
        return;
    };
    let volume = image.open();
    let paths = volume.paths();
    for number in 0..DIRECTORIES {
        let directory = format!("/tree/{number}/below");
        paths.create_dir_all(&directory).expect("room");
        paths.write(format!("{directory}/file"), b"").expect("room");
    }
    let most_held = std::thread::scope(|scope| {
        let removal = scope.spawn(|| paths.remove_dir_all("/tree").expect("all of it goes"));
        let mut most = 0;
        while !removal.is_finished() {
            most = most.max(volume.held().len());
        }
        most
    });
    assert!(most_held < 8, "one for each level of the tree: {most_held}");
    assert!(volume.held().is_empty(), "all is given back");
    volume.close().expect("it closes");
    image.assert_clean();
}

fn set_flags(volume: &Volume, path: &str, flags: u32) {
    let before = volume.paths().attributes(path).expect("it is there").flags;
    let change = SetAttributes {
        flags: Some(before & !(IMMUTABLE | APPEND) | flags),
        ..SetAttributes::default()
    };
    let changed = volume.paths().set_attributes(path, &change);
    changed.expect("flags are changed");
}

#[test]
fn flags_of_a_file_decide_how_it_is_opened() {
    let Some(image) = Image::make(&[]) else {
        return;
    };
    let volume = image.open();
    let paths = volume.paths();
    paths.write("/file", b"content").expect("a file");
    let write = OpenOptions::new().read(true).write(true);
    let append = OpenOptions::new().append(true);
    let open = |options: &OpenOptions| options.open(&volume, "/file");
    for (flags, refused) in [
        (APPEND, vec![&write]),
        (IMMUTABLE, vec![&write, &append]),
        (APPEND | IMMUTABLE, vec![&write, &append]),
    ] {
        // Of a file that stays immutable no other flag can be changed.
        set_flags(&volume, "/file", 0);
        set_flags(&volume, "/file", flags);
        for options in refused {
            let error = open(options).expect_err("its flags forbid it");
            assert!(error.is(Refusal::NotPermitted), "{flags:#x}: {error}");
            let creating = options.clone().create(true);
            let error = open(&creating).expect_err("its flags forbid it");
            assert!(error.is(Refusal::NotPermitted), "{flags:#x}: {error}");
        }
        let error = paths.write("/file", b"").expect_err("it would truncate");
        assert!(error.is(Refusal::NotPermitted), "{flags:#x}: {error}");
        assert_eq!(paths.read("/file").expect("reading is allowed"), b"content");
    }
    set_flags(&volume, "/file", 0);
    set_flags(&volume, "/file", APPEND);
    for options in [append.clone(), append.write(true)] {
        let file = open(&options).expect("it may grow");
        file.write_at(b".", 0).expect("at the end");
    }
    assert_eq!(
        paths.read("/file").expect("reading is allowed"),
        b"content.."
    );
    set_flags(&volume, "/file", 0);
    paths
        .write("/file", b"")
        .expect("it is an ordinary one again");
    volume.close().expect("it closes");
    image.assert_clean();
}

#[test]
fn a_name_that_is_taken_is_no_question_of_permission() {
    let Some(image) = Image::make(&[]) else {
        return;
    };
    let volume = image.open();
    let paths = volume.paths();
    for path in ["/file", "/taken"] {
        paths.write(path, b"content").expect("a file");
    }
    set_flags(&volume, "/file", IMMUTABLE);
    for (path, refusal) in [("/taken", Refusal::Exists), ("/new", Refusal::NotPermitted)] {
        let error = paths.hard_link("/file", path).expect_err("it is immutable");
        assert!(error.is(refusal), "{path}: {error}");
    }
}

#[test]
fn an_existing_file_is_opened_and_not_created() {
    let Some(image) = Image::make(&[]) else {
        return;
    };
    let volume = image.open();
    let paths = volume.paths();
    paths.create_dir("/dir").expect("a directory");
    paths.write("/dir/file", b"content").expect("a file");
    set_flags(&volume, "/dir", IMMUTABLE);
    let create = OpenOptions::new().write(true).create(true);
    let file = create.open(&volume, "/dir/file").expect("it exists");
    file.write_at(b"C", 0).expect("the file is not immutable");
    let error = create.open(&volume, "/dir/new").expect_err("it is new");
    assert!(error.is(Refusal::NotPermitted), "{error}");
    set_flags(&volume, "/dir", 0);
    for (path, refusal) in [
        ("/", Refusal::IsADirectory),
        ("", Refusal::IsADirectory),
        ("/dir/..", Refusal::IsADirectory),
        ("/dir/./", Refusal::IsADirectory),
        ("/dir/", Refusal::IsADirectory),
        ("/dir/file/", Refusal::IsADirectory),
        ("/dir/file/..", Refusal::NotADirectory),
        ("/dir/file/new/", Refusal::NotADirectory),
        ("/missing/..", Refusal::NotFound),
        ("/missing/new/", Refusal::NotFound),
    ] {
        let error = paths.create(path).expect_err("no file has this path");
        assert!(error.is(refusal), "{path}: {error}");
    }
    drop(file);
    assert!(volume.held().is_empty(), "all is given back");
    volume.close().expect("it closes");
    image.assert_clean();
}

/// An image may have directories that contain each other.
#[test]
fn a_tree_that_is_a_circle_is_refused() {
    let Some(image) = Image::make(&[]) else {
        return;
    };
    let volume = image.open();
    volume.paths().create_dir_all("/a/b").expect("room");
    volume.close().expect("it closes");
    image.debugfs_write("ln /a /a/b/c");
    let volume = image.open();
    let paths = volume.paths();
    assert!(paths.exists("/a/b/c/b/c").expect("it goes round"));
    let error = paths.remove_dir_all("/a").expect_err("never empty");
    assert!(error.is(Refusal::NotEmpty), "{error}");
}

#[test]
fn whatever_is_created_for_an_owner_belongs_to_it() {
    let Some(image) = Image::make(&[]) else {
        return;
    };
    let volume = image.open();
    let paths = volume.paths().with_owner(7, 8);
    paths.create_dir_all("/dir/in").expect("room");
    paths.write("/dir/written", b"content").expect("room");
    drop(paths.create("/dir/created").expect("room"));
    paths.symlink("written", "/dir/link").expect("room");
    let options = OpenOptions::new().write(true).create(true).owner(7, 8);
    drop(options.open(&volume, "/dir/opened").expect("room"));
    for path in [
        "/dir",
        "/dir/in",
        "/dir/written",
        "/dir/created",
        "/dir/link",
        "/dir/opened",
    ] {
        let found = paths.link_attributes(path).expect("it is there");
        assert_eq!((found.uid, found.gid), (7, 8), "{path}");
    }
    volume.paths().write("/plain", b"content").expect("room");
    let plain = volume.paths().attributes("/plain").expect("it is there");
    assert_eq!((plain.uid, plain.gid), (0, 0));
    let most = volume.paths().read_up_to("/plain", 7).expect("all of it");
    assert_eq!(most, b"content");
    let refused = volume.paths().read_up_to("/plain", 6).expect_err("more");
    assert!(refused.is(Refusal::FileTooLarge), "{refused}");
}

#[test]
fn what_std_has_no_name_for_goes_by_path_too() {
    let Some(image) = Image::make(&["-b", "4096"]) else {
        return;
    };
    let volume = image.open();
    let paths = volume.paths();
    paths.write("/one", "1").expect("room");
    paths.write("/two", "2").expect("room");
    let refused = paths.rename_with("/one", "/two", RenameMode::NoReplace);
    assert!(refused.expect_err("it is taken").is(Refusal::Exists));
    let exchanged = paths.rename_with("/one", "/two", RenameMode::Exchange);
    exchanged.expect("both are there");
    assert_eq!(paths.read("/one").expect("sound"), b"2");

    let device = DeviceNumber { major: 8, minor: 1 };
    let made = paths.make_node("/disk", FileType::BlockDevice, device, 0o640);
    made.expect("room");
    let attributes = paths.attributes("/disk").expect("there");
    assert_eq!((attributes.mode, attributes.device), (0o060_640, device));

    let file = OpenOptions::new().write(true).open(&volume, "/one");
    let file = file.expect("there");
    let allocated = file.allocate(AllocateMode::Extend, 0, 1 << 20);
    allocated.expect("room");
    file.write_at(b"far", 500_000).expect("room");
    assert_eq!(file.seek_data(100_000).expect("there"), 499_712);
    assert_eq!(file.seek_hole(0).expect("there"), 4096);
    let reading = paths.open("/one").expect("there");
    let refused = reading.allocate(AllocateMode::PunchHole, 0, 4096);
    assert!(refused.expect_err("only read").is(Refusal::NotOpen));
    drop((file, reading));
    volume.close().expect("a clean close");
    image.assert_clean();
}
