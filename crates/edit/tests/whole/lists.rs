//! Access control lists in archives: as text and as system calls carry them, ours and other
//! programs'.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use pext4_edit::{Change, EditOptions, EditSession, ModeChange, Overrides, Reader, change};
use pext4_ondisk::acl;
use pext4_testkit::effort::scratch;
use pext4_testkit::oracle::check::e2fsck;
use pext4_testkit::oracle::format::{Features, Format};

use crate::common::archives::{
    apply, archive, build, changed, export, fresh, header, record, records, tree,
};

/// The permission bits of a file, and its list of this name in the form of system calls.
fn list_of(image: &Path, path: &str, name: &[u8]) -> (u16, Vec<acl::Entry>) {
    let reader = Reader::open(image).expect("sound");
    let held = reader.volume().paths().resolve(path).expect("there");
    let value = reader
        .volume()
        .xattr(held.inode(), name)
        .expect("it has one");
    let mode = reader
        .volume()
        .paths()
        .attributes(path)
        .expect("there")
        .mode
        & 0o7777;
    (mode, acl::decode(&value).expect("sound"))
}

fn acl_entry(tag: u16, permissions: u16, id: u32) -> acl::Entry {
    acl::Entry {
        tag,
        permissions,
        id,
    }
}

#[test]
fn access_control_lists_in_text_come_along() {
    let folder = scratch();
    let expected = [
        acl_entry(acl::USER_OBJECT, 7, acl::NO_ID),
        acl_entry(acl::USER, 7, 1000),
        acl_entry(acl::GROUP_OBJECT, 1, acl::NO_ID),
        acl_entry(acl::MASK, 5, acl::NO_ID),
        acl_entry(acl::OTHER, 0, acl::NO_ID),
    ];
    for (number, text) in [
        "user::rwx,user:1000:rwx,group::--x,mask::r-x,other::---",
        "user::rwx\nuser:1000:rwx\t#effective:r-x\ngroup::--x\nmask::r-x\nother::---\n",
        "other::,user::rwx,user:lisa:rwx:1000,group::x,mask::rx",
        "u::rwx,u:1000:rwx,g::--x,m::r-x,o::---",
    ]
    .into_iter()
    .enumerate()
    {
        let image = fresh(folder.path(), &format!("image{number}"));
        let set_user = changed(header("file", b'0', 0, ""), 100, b"0004644\0");
        let directory = changed(header("dir/", b'5', 0, ""), 100, b"0000700\0");
        let archive = archive(&[
            record("SCHILY.acl.access", text),
            set_user,
            record("SCHILY.acl.default", text),
            directory,
        ]);
        apply(&image, &archive).expect(text);
        let built = folder.path().join(format!("built{number}"));
        build(&built, &archive).expect(text);
        for image in [&image, &built] {
            e2fsck(image).expect("sound");
            let (mode, list) = list_of(image, "file", acl::ACCESS);
            assert_eq!((mode, &list[..]), (0o4750, &expected[..]), "{text:?}");
            let (mode, list) = list_of(image, "dir", acl::DEFAULT);
            assert_eq!((mode, &list[..]), (0o700, &expected[..]), "{text:?}");
        }
    }
}

/// As in Linux: the mode says all of it. A list that is there, or was inherited, is removed.
#[test]
fn an_access_control_list_that_says_only_the_mode_is_not_stored() {
    let folder = scratch();
    let rich = "user::rwx,user:1000:rwx,group::--x,mask::r-x,other::---";
    let base = archive(&[
        records(&[("SCHILY.acl.access", rich), ("SCHILY.acl.default", rich)]),
        header("dir/", b'5', 0, ""),
    ]);
    let minimal = || record("SCHILY.acl.access", "user::rw-,group::-w-,other::r--");
    let archive = archive(&[
        minimal(),
        header("dir/", b'5', 0, ""),
        minimal(),
        header("dir/file", b'0', 0, ""),
        minimal(),
        header("file", b'0', 0, ""),
    ]);
    let image = fresh(folder.path(), "image");
    apply(&image, &base).expect("it makes sense");
    assert_eq!(list_of(&image, "dir", acl::ACCESS).0, 0o750);
    apply(&image, &archive).expect("it makes sense");
    let built = folder.path().join("built");
    build(&built, &archive).expect("it makes sense");
    for image in [&image, &built] {
        e2fsck(image).expect("sound");
        let reader = Reader::open(image).expect("a sound image");
        for path in ["dir", "dir/file", "file"] {
            let paths = reader.volume().paths();
            assert_eq!(
                paths.attributes(path).expect(path).mode & 0o777,
                0o624,
                "{path}"
            );
            let inode = paths.resolve(path).expect(path);
            let list = reader.volume().xattr(inode.inode(), acl::ACCESS);
            assert!(list.is_err(), "{path}: {list:?}");
        }
    }
}

#[test]
fn access_control_lists_that_cannot_be_kept_are_refused() {
    let folder = scratch();
    let image = fresh(folder.path(), "image");
    let before = fs::read(&image).expect("readable");
    let base = "user::rwx,group::r-x,other::r-x";
    for (list, kind, says) in [
        (format!("{base},mask::r-x,user:lisa:rwx"), b'0', "`lisa`"),
        (
            format!("{base},mask::r-x,group:\x1b[31m:rwx"),
            b'0',
            "`\\u{1b}[31m`",
        ),
        (format!("{base},user:1000:rwx"), b'0', "mask"),
        (format!("{base},other::r--"), b'0', "twice"),
        (
            format!("{base},mask::r-x,user:1:r--,user:1:rwx"),
            b'0',
            "twice",
        ),
        (
            format!("{base},mask::r-x,user:4294967295:r--"),
            b'0',
            "4294967295",
        ),
        ("user::rwx,group::r-x".to_owned(), b'0', "other::"),
        (format!("{base},mask"), b'0', "`mask`"),
        (format!("{base},mask::rwz"), b'0', "`mask::rwz`"),
        (format!("{base},nobody::rwx"), b'0', "`nobody::rwx`"),
        (base.to_owned(), b'2', "symbolic link"),
    ] {
        let parts = [
            record("SCHILY.acl.access", &list),
            header("dir/odd", kind, 0, "x"),
        ];
        let built = build(&folder.path().join("built"), &archive(&parts));
        for told in [apply(&image, &archive(&parts)), built] {
            let error = told.expect_err(says);
            assert!(
                error.contains("dir/odd") && error.contains(says),
                "{error} / {says}"
            );
            assert!(!error.contains('\x1b'), "{error:?}");
        }
        assert!(fs::read(&image).expect("readable") == before, "{says}");
    }
    let parts = [
        record("SCHILY.acl.default", base),
        header("dir/odd", b'0', 0, ""),
    ];
    let built = build(&folder.path().join("built"), &archive(&parts));
    for told in [apply(&image, &archive(&parts)), built] {
        let error = told.expect_err("it is for directories");
        assert!(
            error.contains("dir/odd") && error.contains("directories"),
            "{error}"
        );
    }
}

/// GNU tar writes names into the text, and with `--xattrs` the numbers beside it.
#[test]
fn a_list_with_names_is_read_from_the_numbers_beside_it() {
    let folder = scratch();
    let text = (
        "SCHILY.acl.access",
        "user::rw-,user:lisa:rwx,group::r--,mask::rwx,other::r--",
    );
    let numbers = (
        "LIBARCHIVE.xattr.system.posix_acl_access",
        "AgAAAAEABgD/////AgAHAOgDAAAEAAQA/////xAABwD/////IAAEAP////8=",
    );
    for both in [[text, numbers], [numbers, text]] {
        let bytes = archive(&[
            records(&both),
            changed(header("file", b'0', 0, ""), 100, b"0000674\0"),
        ]);
        let image = fresh(folder.path(), "image");
        apply(&image, &bytes).expect("numbers are there");
        let built = folder.path().join("built");
        build(&built, &bytes).expect("numbers are there");
        for image in [&image, &built] {
            e2fsck(image).expect("sound");
            let (mode, list) = list_of(image, "file", acl::ACCESS);
            assert_eq!(mode, 0o674);
            assert!(list.contains(&acl_entry(acl::USER, 7, 1000)), "{list:?}");
        }
        fs::remove_file(&image).expect("there");
    }
    let host = folder.path().join("tree");
    fs::create_dir(&host).expect("fresh");
    fs::write(host.join("file"), b"x").expect("fresh");
    let pack = "setfacl -m u:0:rwx,m::rx file && tar --format=posix --xattrs \
                --xattrs-include='*' --acls -cf ../by-tar file && getfacl -c file | grep user:root";
    if run("sh", &["-c", pack], &host).is_none() {
        return;
    }
    let bytes = fs::read(folder.path().join("by-tar")).expect("tar made it");
    let image = fresh(folder.path(), "image");
    apply(&image, &bytes).expect("numbers are there");
    let built = folder.path().join("built");
    build(&built, &bytes).expect("numbers are there");
    for image in [&image, &built] {
        let (_, list) = list_of(image, "file", acl::ACCESS);
        assert!(list.contains(&acl_entry(acl::USER, 7, 0)), "{list:?}");
        assert!(
            list.contains(&acl_entry(acl::MASK, 5, acl::NO_ID)),
            "{list:?}"
        );
    }
}

#[test]
fn access_control_lists_of_other_programs_come_along() {
    let folder = scratch();
    let host = folder.path().join("tree");
    fs::create_dir(&host).expect("fresh");
    fs::write(host.join("file"), b"x").expect("fresh");
    let run = |command: &str, arguments: &[&str]| {
        let done = Command::new(command)
            .args(arguments)
            .current_dir(&host)
            .output();
        done.ok()
            .filter(|done| done.status.success())
            .map(|done| done.stdout)
    };
    let set = run("setfacl", &["-m", "u:1234:rwx,g:77:rx,m::r", "file"])
        .and_then(|_| run("setfacl", &["-d", "-m", "u:1234:rwx", "."]));
    if set.is_none() {
        eprintln!("SKIPPED: setfacl is not installed, or the host keeps no access control lists");
        return;
    }
    let gnu: &[&str] = &["--acls", "--numeric-owner", "-cf", "-", "."];
    let bsd: &[&str] = &["--acls", "--format=pax", "-cf", "-", "."];
    for (command, arguments) in [("tar", gnu), ("bsdtar", bsd)] {
        let Some(archive) = run(command, arguments) else {
            eprintln!("SKIPPED: {command} is not there or knows no --acls");
            continue;
        };
        let image = fresh(folder.path(), command);
        apply(&image, &archive).expect(command);
        e2fsck(&image).expect("sound");
        let (_, list) = list_of(&image, "file", acl::ACCESS);
        assert!(
            list.contains(&acl_entry(acl::USER, 7, 1234)),
            "{command}: {list:?}"
        );
        assert!(
            list.contains(&acl_entry(acl::GROUP, 5, 77)),
            "{command}: {list:?}"
        );
        assert!(
            list.contains(&acl_entry(acl::MASK, 4, acl::NO_ID)),
            "{command}: {list:?}"
        );
        let (_, list) = list_of(&image, "/", acl::DEFAULT);
        assert!(
            list.contains(&acl_entry(acl::USER, 7, 1234)),
            "{command}: {list:?}"
        );
    }
}

/// An image with a list at a file and two at a directory.
fn listed(folder: &Path) -> PathBuf {
    let image = fresh(folder, "listed");
    let parts = [
        record(
            "SCHILY.acl.access",
            "user::rw-,user:1234:rwx,group::r--,group:77:r-x,mask::r-x,other::---",
        ),
        header("file", b'0', 0, ""),
        record("SCHILY.acl.access", "user::rwx,group::r-x,other::---"),
        header("plain", b'0', 0, ""),
        record(
            "SCHILY.acl.default",
            "user::rwx,user:1234:rwx,group::r-x,mask::rwx,other::r-x",
        ),
        changed(header("dir/", b'5', 0, ""), 100, b"0000755\0"),
    ];
    apply(&image, &archive(&parts)).expect("they make sense");
    image
}

/// Runs a program that must succeed. `None`, with a message, if it does not.
fn run(command: &str, arguments: &[&str], folder: &Path) -> Option<String> {
    let done = Command::new(command)
        .args(arguments)
        .current_dir(folder)
        .output();
    match done {
        Ok(done) if done.status.success() => {
            Some(String::from_utf8_lossy(&done.stdout).into_owned())
        }
        other => {
            eprintln!("SKIPPED: {command} {arguments:?}: {other:?}");
            None
        }
    }
}

#[test]
fn exported_lists_come_back_once() {
    let folder = scratch();
    let image = listed(folder.path());
    let bytes = export(&image);
    let again = fresh(folder.path(), "again");
    apply(&again, &bytes).expect("it is our own");
    assert!(
        export(&again) == bytes,
        "the archive of the copy is the same"
    );
    let built = folder.path().join("built");
    build(&built, &bytes).expect("it is our own");
    for copy in [&again, &built] {
        e2fsck(copy).expect("sound");
        let (one, two) = (tree(&image), tree(copy));
        for (path, item) in &one.items {
            let other = &two.items[path];
            assert_eq!(item.xattrs, other.xattrs, "{}", path.escape_ascii());
            assert_eq!(
                item.facts.permissions,
                other.facts.permissions,
                "{}",
                path.escape_ascii()
            );
        }
    }
}

#[test]
fn other_programs_restore_exported_lists() {
    let folder = scratch();
    let archive = folder.path().join("archive");
    fs::write(&archive, export(&listed(folder.path()))).expect("room");
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: needs root");
        return;
    }
    for program in ["tar", "bsdtar"] {
        let out = folder.path().join(program);
        fs::create_dir(&out).expect("fresh");
        let words = ["--acls", "--numeric-owner", "-xpf", "../archive"];
        if run(program, &words, &out).is_none() {
            continue;
        }
        for (file, expected) in [
            (
                "file",
                "user::rw- user:1234:rwx group::r-- group:77:r-x mask::r-x other::---",
            ),
            ("plain", "user::rwx group::r-x other::---"),
            (
                "dir",
                "user::rwx group::r-x other::r-x default:user::rwx default:user:1234:rwx \
                 default:group::r-x default:mask::rwx default:other::r-x",
            ),
        ] {
            let Some(told) = run("getfacl", &["-ncE", file], &out) else {
                return;
            };
            let told: Vec<&str> = told.split_whitespace().collect();
            assert_eq!(told.join(" "), expected, "{program}: {file}");
        }
    }
}

#[test]
fn a_list_that_contradicts_the_mode_is_exported_as_it_is() {
    let folder = scratch();
    let image = fresh(folder.path(), "image");
    let text = "user::rw-,user:7:r--,group::r--,mask::r--,other::---";
    let parts = [
        record("SCHILY.acl.access", text),
        header("file", b'0', 0, ""),
    ];
    apply(&image, &archive(&parts)).expect("it makes sense");
    let is_text = |bytes: &[u8]| bytes.windows(17).any(|part| part == b"SCHILY.acl.access");
    assert!(is_text(&export(&image)));
    let request = "set_inode_field file mode 0100777".to_owned();
    let told = pext4_testkit::oracle::debugfs::command(&image, &[request]);
    told.expect("debugfs is beside mke2fs");
    let bytes = export(&image);
    assert!(!is_text(&bytes));
    let again = fresh(folder.path(), "again");
    apply(&again, &bytes).expect("it is our own");
    assert_eq!(list_of(&again, "file", acl::ACCESS).0, 0o777);
}

/// New files inherit the default list as on a mount; copies keep their lists.
#[test]
fn new_files_inherit_their_directorys_list() {
    let folder = scratch();
    let image = fresh(folder.path(), "image");
    let default = [
        acl_entry(acl::USER_OBJECT, 7, acl::NO_ID),
        acl_entry(acl::USER, 7, 1000),
        acl_entry(acl::GROUP_OBJECT, 5, acl::NO_ID),
        acl_entry(acl::MASK, 7, acl::NO_ID),
        acl_entry(acl::OTHER, 0, acl::NO_ID),
    ];
    let host = folder.path().join("host");
    fs::write(&host, b"from the host").expect("a file");
    fs::set_permissions(&host, fs::Permissions::from_mode(0o640)).expect("ours");
    let mut session = EditSession::open(&image, &EditOptions::default()).expect("it opens");
    let directory = |path: &str, permissions: Option<u16>| {
        Change::MakeDirectory(change::MakeDirectory {
            path: path.into(),
            parents: true,
            mode: permissions.map(ModeChange::exactly),
        })
    };
    for change in [
        directory("/top", None),
        Change::SetXattr(change::SetXattr {
            path: b"/top".to_vec(),
            name: acl::DEFAULT.to_vec(),
            value: acl::encode_call(&default),
        }),
        directory("/top/a/b", None),
        directory("/top/exact", Some(0o710)),
        Change::Touch(change::Touch {
            path: b"/top/touched".to_vec(),
            time: None,
            no_create: false,
        }),
        Change::MakeNode(change::MakeNode {
            path: b"/top/a/pipe".to_vec(),
            kind: pext4_fs::FileType::Fifo,
            device: pext4_fs::DeviceNumber::default(),
            permissions: None,
        }),
        Change::Put(change::Put {
            from: host,
            to: b"/top/put".to_vec(),
            no_target_directory: true,
            xattrs: true,
            overrides: Overrides::default(),
        }),
    ] {
        session.apply(&change).expect("there is room");
    }
    session
        .write_from(b"/top/stream", &mut &b"a line"[..], Overrides::default())
        .expect("there is room");
    session.finish().expect("there is room");
    e2fsck(&image).expect("sound");
    let masked = |mode: u16| {
        let mut list = default;
        acl::apply_mode(&mut list, mode);
        (mode, list.to_vec())
    };
    for (path, mode) in [
        ("/top/a", 0o770),
        ("/top/a/b", 0o770),
        ("/top/exact", 0o710),
        ("/top/touched", 0o660),
        ("/top/a/pipe", 0o660),
        ("/top/stream", 0o660),
    ] {
        assert_eq!(list_of(&image, path, acl::ACCESS), masked(mode), "{path}");
    }
    for path in ["/top/a", "/top/a/b", "/top/exact"] {
        assert_eq!(list_of(&image, path, acl::DEFAULT).1, default, "{path}");
    }
    let reader = Reader::open(&image).expect("sound");
    let paths = reader.volume().paths();
    let put = paths.resolve("/top/put").expect("there");
    assert!(reader.volume().xattr(put.inode(), acl::ACCESS).is_err());
    assert_eq!(
        paths.attributes("/top/put").expect("there").mode & 0o7777,
        0o640
    );
}

/// `user::rw-,user:1000:rw-,group::r--,mask::rw-,other::r--` in the form of system calls.
fn shared_list() -> [acl::Entry; 5] {
    [
        acl_entry(acl::USER_OBJECT, 6, acl::NO_ID),
        acl_entry(acl::USER, 6, 1000),
        acl_entry(acl::GROUP_OBJECT, 4, acl::NO_ID),
        acl_entry(acl::MASK, 6, acl::NO_ID),
        acl_entry(acl::OTHER, 4, acl::NO_ID),
    ]
}

fn set_list(path: &str, name: &[u8], entries: &[acl::Entry]) -> Change {
    Change::SetXattr(change::SetXattr {
        path: path.as_bytes().to_vec(),
        name: name.to_vec(),
        value: acl::encode_call(entries),
    })
}

fn set_mode(path: &str, mode: &str) -> Change {
    Change::SetMode(change::SetMode {
        path: path.as_bytes().to_vec(),
        mode: mode.parse().expect("a mode"),
        recursive: false,
    })
}

/// As chmod(2): else the list would still allow what the mode forbids.
#[test]
fn a_list_follows_the_mode_that_is_set() {
    let folder = scratch();
    let image = fresh(folder.path(), "image");
    let parts = [header("file", b'0', 0, ""), header("folder/", b'5', 0, "")];
    apply(&image, &archive(&parts)).expect("it makes sense");
    let mut session = EditSession::open(&image, &EditOptions::default()).expect("sound");
    for change in [
        set_list("/file", acl::ACCESS, &shared_list()),
        set_list("/folder", acl::ACCESS, &shared_list()),
        set_mode("/file", "640"),
    ] {
        session.apply(&change).expect("there is room");
    }
    session.finish().expect("there is room");
    // An archive's directory without a list, over an existing one with a list.
    let closed = changed(header("folder/", b'5', 0, ""), 100, b"0000750\0");
    apply(&image, &archive(&[closed])).expect("it makes sense");
    e2fsck(&image).expect("sound");
    for (path, mode) in [("/file", 0o640), ("/folder", 0o750)] {
        let mut expected = shared_list();
        acl::apply_mode(&mut expected, mode);
        assert_eq!(
            list_of(&image, path, acl::ACCESS),
            (mode, expected.to_vec()),
            "{path}"
        );
    }
}

/// As setxattr(2).
#[test]
fn a_list_that_is_set_shows_in_the_mode_or_is_refused() {
    let folder = scratch();
    let image = fresh(folder.path(), "image");
    let parts = [
        header("file", b'0', 0, ""),
        header("plain", b'0', 0, ""),
        header("link", b'2', 0, "file"),
    ];
    apply(&image, &archive(&parts)).expect("it makes sense");
    let mut session = EditSession::open(&image, &EditOptions::default()).expect("sound");
    let list = shared_list();
    let three = [list[0], list[2], acl_entry(acl::OTHER, 0, acl::NO_ID)];
    session
        .apply(&set_list("/file", acl::ACCESS, &list))
        .expect("there is room");
    session
        .apply(&set_list("/plain", acl::ACCESS, &three))
        .expect("there is room");
    session.finish().expect("there is room");
    for (path, name, entries, says) in [
        ("/file", acl::DEFAULT, &list[..], "only directories"),
        ("/file", acl::ACCESS, &list[1..], "no access control list"),
        ("/", acl::DEFAULT, &list[..3], "no access control list"),
    ] {
        let mut session = EditSession::open(&image, &EditOptions::default()).expect("sound");
        let told = session.apply(&set_list(path, name, entries));
        let told = told.expect_err("Linux refuses it").to_string();
        assert!(told.contains(says), "{told}");
    }
    e2fsck(&image).expect("sound");
    assert_eq!(
        list_of(&image, "/file", acl::ACCESS),
        (0o664, list.to_vec())
    );
    let reader = Reader::open(&image).expect("sound");
    let plain = reader.volume().paths().resolve("/plain").expect("there");
    assert!(reader.volume().xattr(plain.inode(), acl::ACCESS).is_err());
    let mode = reader
        .volume()
        .paths()
        .attributes("/plain")
        .expect("there")
        .mode;
    assert_eq!(mode & 0o7777, 0o640);
}

/// A list that a damaged image holds cannot be stored anew.
#[test]
fn a_list_that_is_not_understood_is_named_with_its_file() {
    let folder = scratch();
    let image = folder.path().join("image");
    let format = Format::new(16 << 20, 1024, Features::NoChecksums).inodes(2048);
    format.make(&image).expect("made");
    let text = "user::rwx,user:1000:rwx,group::--x,mask::r-x,other::---";
    let file = [
        record("SCHILY.acl.access", text),
        header("file", b'0', 0, ""),
    ];
    apply(&image, &archive(&file)).expect("it fits");
    let stored = acl::encode(&[
        acl_entry(acl::USER_OBJECT, 7, acl::NO_ID),
        acl_entry(acl::USER, 7, 1000),
        acl_entry(acl::GROUP_OBJECT, 1, acl::NO_ID),
        acl_entry(acl::MASK, 5, acl::NO_ID),
        acl_entry(acl::OTHER, 0, acl::NO_ID),
    ]);
    let mut bytes = fs::read(&image).expect("there");
    let mut places = bytes.windows(stored.len());
    let version = places.position(|place| place == stored).expect("there");
    bytes[version] = 7;
    fs::write(&image, bytes).expect("there is room");
    let mut session = EditSession::open(&image, &EditOptions::default()).expect("it opens");
    let copy = change::CopyFile::new("/file", "/copy").into();
    let told = session.apply(&copy).expect_err("nobody could read it");
    let told = told.to_string();
    let said = ["/copy: ", "system.posix_acl_access", "its version is 7"];
    assert!(said.iter().all(|part| told.contains(part)), "{told}");
    drop(session);
    let mut session = EditSession::open(&image, &EditOptions::default()).expect("it opens");
    let remove = Change::RemoveXattr(change::RemoveXattr {
        path: b"/file".to_vec(),
        name: acl::ACCESS.to_vec(),
    });
    session.apply(&remove).expect("as the message says");
    session.apply(&copy).expect("there is no list any more");
}
