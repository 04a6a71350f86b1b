//! Copies out of images, also of hostile ones.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

use pext4_edit::{
    Change, EditError, EditOptions, EditSession, ExportOptions, GetOptions, Progress, Reader,
    Visited, change,
};
use pext4_testkit::Random;
use pext4_testkit::effort::scratch;
use pext4_testkit::oracle::debugfs;
use pext4_testkit::oracle::format::{Features, Format};

use crate::common::archives::{apply, fresh};
use crate::common::{self, filled};

fn format() -> Format {
    Format::new(16 << 20, 1024, Features::NoChecksums).inodes(2048)
}

fn image(folder: &Path) -> std::path::PathBuf {
    let image = folder.join("image");
    filled(&format(), &mut Random::new(1))
        .save(&image)
        .expect("room");
    image
}

fn get(image: &Path, path: &str, to: &Path) -> Result<pext4_edit::Copied, String> {
    let reader = Reader::open(image).map_err(|error| error.to_string())?;
    reader
        .get(path, to, &GetOptions::default())
        .map_err(|error| error.to_string())
}

#[test]
fn a_copy_that_is_stopped_leaves_nothing() {
    let folder = scratch();
    let image = image(folder.path());
    let reader = Reader::open(&image).expect("an image");
    let progress = Arc::new(Progress::default());
    progress.stop();
    let out = folder.path().join("out");
    let options = GetOptions {
        progress: Arc::clone(&progress),
        ..GetOptions::default()
    };
    let stopped = reader.get("/", &out, &options);
    let stopped = stopped.expect_err("it was asked to stop");
    assert!(matches!(stopped, EditError::Interrupted), "{stopped}");
    let mut tar = Vec::new();
    let options = ExportOptions {
        progress,
        ..ExportOptions::default()
    };
    let stopped = reader.export_with("/", &mut tar, options);
    let stopped = stopped.expect_err("it was asked to stop");
    assert!(matches!(stopped, EditError::Interrupted), "{stopped}");
    let names = fs::read_dir(folder.path()).expect("there").count();
    assert_eq!(names, 1, "the image alone");
}

/// Another reader of this process may be at work under the name that is tried first.
#[test]
fn a_copy_leaves_alone_what_has_its_temporary_name() {
    let folder = scratch();
    let image = image(folder.path());
    let occupied = |attempt: u32| {
        let name = format!(".out.pext4-{}.{attempt}", std::process::id());
        folder.path().join(name)
    };
    fs::write(occupied(0), b"a file").expect("room");
    fs::create_dir(occupied(1)).expect("room");
    let out = folder.path().join("out");
    for path in ["/", "/etc/passwd", "/link"] {
        get(&image, path, &out).expect("a third name is free");
        let _ = fs::remove_dir_all(&out).or_else(|_| fs::remove_file(&out));
    }
    for attempt in 2..100 {
        fs::write(occupied(attempt), b"a file").expect("room");
    }
    for path in ["/", "/etc/passwd", "/link"] {
        let error = get(&image, path, &out).expect_err("no name is free");
        assert!(error.contains("exists"), "{error}");
    }
    assert!((0..100).all(|attempt| occupied(attempt).exists()));
    assert_eq!(fs::read(occupied(0)).expect("it is there"), b"a file");
}

#[test]
fn holes_are_written_as_zeroes_if_that_is_wanted() {
    let folder = scratch();
    let image = image(folder.path());
    let mut session = EditSession::open(&image, &EditOptions::default()).expect("an image");
    let host = folder.path().join("holes");
    let file = fs::File::create(&host).expect("a fresh folder");
    file.write_all_at(b"in the middle", 300_000).expect("room");
    file.set_len(700_001).expect("room");
    session
        .apply(&Change::Put(change::Put {
            from: host.clone(),
            to: b"/holes".to_vec(),
            no_target_directory: false,
            xattrs: false,
            overrides: pext4_edit::Overrides::default(),
        }))
        .expect("room");
    session.finish().expect("sound");
    let reader = Reader::open(&image).expect("an image");
    let has_sparse_header = |tar: &[u8]| {
        tar.chunks(512)
            .any(|block| block[257..].starts_with(b"ustar  \0"))
    };
    let (mut sparse, mut whole) = (Vec::new(), Vec::new());
    reader.export("/", &mut sparse).expect("sound");
    assert!(has_sparse_header(&sparse));
    let options = ExportOptions {
        whole_files: true,
        ..ExportOptions::default()
    };
    reader.export_with("/", &mut whole, options).expect("sound");
    assert!(!has_sparse_header(&whole));
    let again = fresh(folder.path(), "again");
    apply(&again, &whole).expect("it is our own");
    let content = Reader::open(&again).expect("sound");
    let content = content.volume().paths().read("holes").expect("there");
    assert_eq!(content, fs::read(&host).expect("there"));
}

/// An image with a file whose extent header is broken, and a directory with a broken leaf:
/// everything else is copied.
#[test]
fn what_cannot_be_read_is_left_out_if_that_is_wanted() {
    let folder = scratch();
    let image = image(folder.path());
    let mut session = EditSession::open(&image, &EditOptions::default()).expect("an image");
    let make = |path: String| change::WriteFile::new(path, "some bytes").into();
    let names: Vec<String> = (0..100).map(|number| format!("{number:0>40}")).collect();
    session
        .apply(&Change::MakeDirectory(change::MakeDirectory {
            path: b"/rescue".to_vec(),
            parents: false,
            mode: None,
        }))
        .expect("room");
    for name in &names {
        session
            .apply(&make(format!("/rescue/{name}")))
            .expect("room");
    }
    session.prepare().expect("room").commit().expect("room");
    let leaf = *debugfs::blocks_of(&image, "/rescue")
        .expect("it has")
        .last()
        .expect("several");
    let file = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(&image)
        .expect("there");
    let mut bytes = [0; 1024];
    file.read_exact_at(&mut bytes, leaf * 1024)
        .expect("readable");
    // Where a name lies depends on the image's hash seed.
    let is_elsewhere = |name: &&String| !bytes.windows(40).any(|window| window == name.as_bytes());
    let unmapped = names
        .iter()
        .find(is_elsewhere)
        .expect("it has several leaves");
    let spoilt = format!("set_inode_field /rescue/{unmapped} block[0] 1");
    debugfs::command(&image, &[spoilt]).expect("debugfs is there");
    file.write_all_at(&[0xEE; 1024], leaf * 1024).expect("room");

    let reader = Reader::open(&image).expect("the rest is sound");
    let out = folder.path().join("out");
    reader
        .get("/rescue", &out, &GetOptions::default())
        .expect_err("some cannot be read");
    assert!(!out.exists());
    let mut told = Vec::new();
    let mut leave = |error: &EditError| told.push(error.to_string());
    let got = reader
        .get_readable("/rescue", &out, &GetOptions::default(), &mut leave)
        .expect("the rest is sound");
    assert_eq!(got.unreadable_skipped, 2, "{told:?}");
    let spoilt = format!("/rescue/{unmapped}: ");
    assert!(told.iter().any(|one| one.contains(&spoilt)), "{told:?}");
    let there: Vec<String> = fs::read_dir(&out)
        .expect("it was made")
        .map(|entry| {
            entry
                .expect("readable")
                .file_name()
                .into_string()
                .expect("digits")
        })
        .collect();
    assert!(!there.contains(unmapped));
    assert!(
        (50..99).contains(&there.len()),
        "those of one leaf are gone: {}",
        there.len()
    );
    assert_eq!(got.files, there.len() as u64 + 1);
    for name in &there {
        assert_eq!(fs::read(out.join(name)).expect("readable"), b"some bytes");
    }

    reader
        .walk("/rescue", &mut |_| Ok(()))
        .expect_err("a leaf cannot be read");
    let mut visited = 0;
    let mut visit = |_: &Visited| {
        visited += 1;
        Ok(())
    };
    let skipped = reader
        .walk_readable("/rescue", &mut visit, &mut |_| {})
        .expect("the rest is sound");
    // The file whose content cannot be read has attributes.
    assert_eq!((visited, skipped), (there.len() + 2, 1));
}

/// Below it, what cannot be read may be skipped.
#[test]
fn what_was_asked_for_is_not_skipped() {
    let folder = scratch();
    let image = image(folder.path());
    // The superblock's block holds no attributes.
    let spoilt = "set_inode_field /etc file_acl 1".to_owned();
    debugfs::command(&image, &[spoilt]).expect("debugfs is there");
    let reader = Reader::open(&image).expect("the rest is sound");
    let mut leave = |_: &EditError| {};
    let out = folder.path().join("out");
    let options = GetOptions::default();
    let got = reader.get_readable("/etc", &out, &options, &mut leave);
    let why_not = got.expect_err("its attributes are none").to_string();
    let export = |path: &str| {
        let mut leave = |_: &EditError| {};
        let options = ExportOptions {
            on_skipped: Some(&mut leave),
            ..ExportOptions::default()
        };
        reader.export_with(path, &mut Vec::new(), options)
    };
    let exported = export("/etc").expect_err("as by get");
    assert_eq!(exported.to_string(), why_not);
    assert_eq!(export("/").expect("the rest").unreadable_skipped, 1);
}

/// Neither by its own name nor through a link to it.
#[test]
fn no_copy_takes_the_place_of_a_pipe_or_a_device() {
    let folder = scratch();
    let image = image(folder.path());
    let reader = Reader::open(&image).expect("an image");
    let pipe = folder.path().join("pipe");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &pipe,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RWXU,
        0,
    )
    .expect("the folder is ours");
    let link = folder.path().join("link");
    std::os::unix::fs::symlink("/dev/null", &link).expect("the folder is ours");
    let options = GetOptions {
        force: true,
        ..GetOptions::default()
    };
    for out in [&pipe, &link] {
        let before = fs::symlink_metadata(out).expect("there").file_type();
        let refused = reader.get("/etc/passwd", out, &options);
        let refused = refused.expect_err("it is no file").to_string();
        assert!(refused.contains("no regular file"), "{refused}");
        let after = fs::symlink_metadata(out).expect("there").file_type();
        assert_eq!(before, after);
    }
    assert_eq!(fs::read_dir(folder.path()).expect("there").count(), 3);
}

#[test]
fn an_archive_is_made_of_a_directory_only() {
    let folder = scratch();
    let reader = Reader::open(image(folder.path())).expect("an image");
    let mut tar = Vec::new();
    let refused = reader.export("/etc/passwd", &mut tar);
    let refused = refused.expect_err("it is a file").to_string();
    assert!(refused.contains("/etc/passwd"), "{refused}");
    assert!(tar.is_empty());
}

#[test]
fn trees_come_out_whole() {
    let folder = scratch();
    let image = image(folder.path());
    let out = folder.path().join("out");
    let got = get(&image, "/", &out).expect("there is room");
    assert_eq!(got.path, out);
    let passwd = fs::metadata(out.join("etc/passwd")).expect("there");
    let other = fs::metadata(out.join("etc/passwd-")).expect("there");
    assert_eq!((passwd.ino(), passwd.nlink()), (other.ino(), 2));
    assert_eq!(
        fs::read(out.join("etc/passwd")).expect("there"),
        b"root:x:0:0::/:/bin/sh\n"
    );
    assert_eq!(
        fs::read_link(out.join("link")).expect("there"),
        Path::new("usr/share")
    );
    assert_eq!(
        fs::metadata(&out).expect("there").permissions().mode() & 0o777,
        0o755
    );
    // Into a directory that is there, under its own name.
    let got = get(&image, "/etc/passwd", &out).expect("there is room");
    assert_eq!(got.path, out.join("passwd"));
    let error = get(&image, "/etc/passwd", &out).expect_err("it is there");
    assert!(error.contains("--force"), "{error}");
    let error = get(&image, "/", &out).expect_err("it is not empty");
    assert!(error.contains("something in it"), "{error}");
    let error = get(&image, "/none", &out).expect_err("it is not there");
    assert!(error.contains("/none: no such file"), "{error}");
}

/// A copy has a temporary name at first, which must not be too long if its own name is not.
#[test]
fn a_copy_may_have_a_name_of_any_length() {
    let folder = scratch();
    let image = image(folder.path());
    let out = folder.path().join("o".repeat(255));
    let got = get(&image, "/etc/passwd", &out).expect("there is room");
    assert_eq!(got.path, out);
    assert!(out.is_file());
}

/// Puts another name in place of one in a directory block of the image, which has no checksums.
fn rename_by_force(image: &Path, from: &[u8], to: &[u8]) {
    assert_eq!(from.len(), to.len());
    let mut bytes = fs::read(image).expect("readable");
    // An entry: inode, length, length of the name, type, name.
    let length = u8::try_from(from.len()).expect("short");
    let found: Vec<usize> = (0..bytes.len() - 8 - from.len())
        .filter(|at| bytes[at + 6] == length && &bytes[at + 8..at + 8 + from.len()] == from)
        .collect();
    assert!(!found.is_empty(), "the name is in the image");
    for at in found {
        bytes[at + 8..at + 8 + to.len()].copy_from_slice(to);
    }
    fs::write(image, bytes).expect("writable");
}

#[test]
fn names_that_lead_outside_are_refused() {
    for hostile in [&b"../evil"[..], b"/tmp/ev", b"a/../..", b"....../"] {
        let folder = scratch();
        let image = image(folder.path());
        let mut session = EditSession::open(&image, &EditOptions::default()).expect("it opens");
        let change = common::write("/etc/victims", 100, &mut Random::new(1));
        session.apply(&change).expect("there is room");
        let change = common::write("/etc/victim", 100, &mut Random::new(1));
        session.apply(&change).expect("there is room");
        session.finish().expect("there is room");
        rename_by_force(&image, b"victim", &hostile[..6]);
        rename_by_force(&image, b"victims", hostile);
        let place = folder.path().join("place");
        fs::create_dir(&place).expect("fresh");
        let told = get(&image, "/etc", &place.join("out"));
        assert!(told.is_err(), "{hostile:?}");
        assert_eq!(
            fs::read_dir(&place).expect("there").count(),
            0,
            "nothing is left"
        );
        let names = fs::read_dir(folder.path()).expect("there").count();
        assert_eq!(names, 2, "nothing is made outside");
        let mut archive = Vec::new();
        let reader = Reader::open(&image).expect("it opens");
        assert!(reader.export("/etc", &mut archive).is_err(), "{hostile:?}");
    }
}

/// A link, and a directory of the same name: whoever unpacks both would write through the link.
#[test]
fn a_name_that_a_directory_holds_twice_is_refused() {
    let folder = scratch();
    let image = image(folder.path());
    let mut session = EditSession::open(&image, &EditOptions::default()).expect("it opens");
    let link = Change::Symlink(change::Symlink {
        into: pext4_edit::IntoDirectory::Always,
        target: b"/tmp/elsewhere".to_vec(),
        path: b"/etc/double1".to_vec(),
        force: false,
    });
    session.apply(&link).expect("there is room");
    let directory = Change::MakeDirectory(change::MakeDirectory {
        path: b"/etc/double2".to_vec(),
        parents: false,
        mode: None,
    });
    session.apply(&directory).expect("there is room");
    let change = common::write("/etc/double2/inside", 100, &mut Random::new(1));
    session.apply(&change).expect("there is room");
    session.finish().expect("there is room");
    rename_by_force(&image, b"double2", b"double1");

    let says = "/etc: corrupt directory";
    let what = "holds the name double1 more than once";
    let reader = Reader::open(&image).expect("it opens");
    let told = reader.export("/etc", &mut Vec::new()).expect_err(says);
    let told = told.to_string();
    assert!(told.contains(says) && told.contains(what), "{told}");
    let out = folder.path().join("out");
    let told = get(&image, "/etc", &out).expect_err(says);
    assert!(told.contains(says) && told.contains(what), "{told}");
    assert!(!out.exists());
    let other = fresh(folder.path(), "other");
    let mut session = EditSession::open(&other, &EditOptions::default()).expect("it opens");
    let copy = Change::CopyFile(change::CopyFile {
        image: Some(image.clone()),
        image_offset: 0,
        from: b"/etc".to_vec(),
        to: b"/".to_vec(),
        no_target_directory: false,
        recursive: true,
    });
    let told = session.apply(&copy).expect_err(says).to_string();
    assert!(told.contains(says) && told.contains(what), "{told}");

    let mut told = Vec::new();
    let mut leave = |error: &EditError| told.push(error.to_string());
    let got = reader
        .get_readable("/etc", &out, &GetOptions::default(), &mut leave)
        .expect("the rest is sound");
    assert_eq!(got.unreadable_skipped, 1, "{told:?}");
    assert!(told[0].contains(says), "{told:?}");
    let mut archive = Vec::new();
    let mut leave = |error: &EditError| told.push(error.to_string());
    let options = ExportOptions {
        on_skipped: Some(&mut leave),
        ..ExportOptions::default()
    };
    let exported = reader.export_with("/etc", &mut archive, options);
    assert_eq!(exported.expect("the rest is sound").unreadable_skipped, 1);
    let holds = |text: &[u8]| archive.windows(text.len()).any(|window| window == text);
    // The first by its inode is kept, and nothing else is at its name.
    assert_ne!(holds(b"double1/inside"), holds(b"/tmp/elsewhere"));
}

/// The stored names of an encrypted directory may hold any byte.
#[test]
fn names_that_are_encrypted_are_not_called_corrupt() {
    let folder = scratch();
    let image = image(folder.path());
    let mut session = EditSession::open(&image, &EditOptions::default()).expect("it opens");
    let directory = Change::MakeDirectory(change::MakeDirectory {
        path: b"/secret".to_vec(),
        parents: false,
        mode: None,
    });
    session.apply(&directory).expect("there is room");
    let change = common::write("/secret/abcdefgh", 100, &mut Random::new(1));
    session.apply(&change).expect("there is room");
    session.finish().expect("there is room");
    let requests = ["feature encrypt", "set_inode_field /secret flags 0x80800"];
    debugfs::command(&image, &requests.map(str::to_owned)).expect("debugfs is there");
    rename_by_force(&image, b"abcdefgh", b"\x01/\0\xFF/..q");
    let told = get(&image, "/secret", &folder.path().join("out")).expect_err("encrypted");
    assert!(told.contains("/secret/"), "{told}");
    assert!(
        told.contains("encrypted") && !told.contains("corrupt"),
        "{told}"
    );
    let reader = Reader::open(&image).expect("it opens");
    let told = reader
        .export("/secret", &mut Vec::new())
        .expect_err("encrypted");
    assert!(told.to_string().contains("encrypted"), "{told}");
    let mut told = Vec::new();
    let mut leave = |error: &EditError| told.push(error.to_string());
    let out = folder.path().join("out");
    let got = reader
        .get_readable("/secret", &out, &GetOptions::default(), &mut leave)
        .expect("the rest is sound");
    assert_eq!(got.unreadable_skipped, 1, "{told:?}");
}

#[test]
fn a_link_is_not_a_way_out() {
    let folder = scratch();
    let image = image(folder.path());
    let outside = folder.path().join("outside");
    fs::create_dir(&outside).expect("fresh");
    // A link, and a directory that is then given the link's name, so that both have it.
    let mut session = EditSession::open(&image, &EditOptions::default()).expect("it opens");
    for change in [
        Change::MakeDirectory(change::MakeDirectory {
            path: b"/t/aab".to_vec(),
            parents: true,
            mode: None,
        }),
        Change::Symlink(change::Symlink {
            into: pext4_edit::IntoDirectory::Always,
            target: outside.to_str().expect("text").into(),
            path: b"/t/aaa".to_vec(),
            force: false,
        }),
        common::write("/t/aab/file", 100, &mut Random::new(1)),
    ] {
        session.apply(&change).expect("there is room");
    }
    session.finish().expect("there is room");
    rename_by_force(&image, b"aab", b"aaa");
    let told = get(&image, "/t", &folder.path().join("out"));
    assert!(told.is_err(), "a name that is there twice: {told:?}");
    assert_eq!(fs::read_dir(&outside).expect("there").count(), 0);
    assert!(!folder.path().join("out").exists());
}

/// A capability attribute: revision 2, effective, `cap_net_raw`.
const CAPABILITY: &[u8] = &[
    1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
];

/// Whether this process may give a file in `folder` a capability.
fn may_give_capabilities(folder: &Path) -> bool {
    let probe = folder.join("probe");
    fs::write(&probe, b"").expect("there is room");
    let flags = rustix::fs::XattrFlags::empty();
    let given = rustix::fs::setxattr(&probe, "security.capability", CAPABILITY, flags).is_ok();
    if !given {
        eprintln!("SKIPPED: only root can give a file a capability, and not on every host");
    }
    given
}

#[test]
fn capabilities_of_files_outlive_the_change_of_owner() {
    let folder = scratch();
    if !may_give_capabilities(folder.path()) {
        return;
    }
    let image = image(folder.path());
    let mut session = EditSession::open(&image, &EditOptions::default()).expect("it opens");
    let path = b"/etc/passwd".to_vec();
    for change in [
        Change::SetOwner(change::SetOwner {
            path: path.clone(),
            uid: Some(1234),
            gid: Some(77),
            recursive: false,
            no_follow: false,
        }),
        Change::SetMode(change::SetMode {
            path: path.clone(),
            mode: "6755".parse().expect("a mode"),
            recursive: false,
        }),
        Change::SetXattr(change::SetXattr {
            path,
            name: b"security.capability".to_vec(),
            value: CAPABILITY.to_vec(),
        }),
    ] {
        session.apply(&change).expect("there is room");
    }
    session.finish().expect("there is room");
    let out = folder.path().join("out");
    let got = get(&image, "/etc/passwd", &out).expect("there is room");
    assert_eq!(got.attributes_skipped, 0);
    let mut value = [0; 64];
    let length = rustix::fs::getxattr(&out, "security.capability", value.as_mut_slice());
    let length = length.expect("it is there");
    assert_eq!(&value[..length], CAPABILITY);
    let stat = fs::metadata(&out).expect("there");
    assert_eq!(
        (stat.uid(), stat.gid(), stat.mode() & 0o7777),
        (1234, 77, 0o6755)
    );
}

#[test]
fn a_device_alone_is_not_left_out_silently() {
    let folder = scratch();
    let image = image(folder.path());
    let mut session = EditSession::open(&image, &EditOptions::default()).expect("it opens");
    let made = session.apply(&Change::MakeNode(change::MakeNode {
        path: b"/null".to_vec(),
        kind: pext4_fs::FileType::CharacterDevice,
        device: pext4_fs::DeviceNumber { major: 1, minor: 3 },
        permissions: None,
    }));
    made.expect("there is room");
    session.finish().expect("there is room");
    let options = GetOptions {
        skip_devices: true,
        ..GetOptions::default()
    };
    let reader = Reader::open(&image).expect("sound");
    let out = folder.path().join("out");
    let error = reader.get("/null", &out, &options);
    let error = error.expect_err("nothing is left").to_string();
    assert!(
        error.contains("/null: is a device, and devices are left out"),
        "{error}"
    );
    assert!(!out.exists());
}

/// A pipe is never opened, and has a list all the same. Where the host has none, the group keeps
/// what its own entry gave it.
#[test]
fn lists_of_special_files_are_copied() {
    const LIST: [u8; 44] = [
        2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255, 2, 0, 7, 0, 0xE8, 3, 0, 0, 4, 0, 0, 0, 255,
        255, 255, 255, 16, 0, 7, 0, 255, 255, 255, 255, 32, 0, 0, 0, 255, 255, 255, 255,
    ];
    let folder = scratch();
    let image = image(folder.path());
    let mut session = EditSession::open(&image, &EditOptions::default()).expect("it opens");
    for change in [
        Change::MakeNode(change::MakeNode {
            path: b"/pipe".to_vec(),
            kind: pext4_fs::FileType::Fifo,
            device: pext4_fs::DeviceNumber::default(),
            permissions: Some(0o600),
        }),
        Change::SetXattr(change::SetXattr {
            path: b"/pipe".to_vec(),
            name: b"system.posix_acl_access".to_vec(),
            value: LIST.to_vec(),
        }),
    ] {
        session.apply(&change).expect("there is room");
    }
    session.finish().expect("there is room");
    let out = folder.path().join("out");
    let got = get(&image, "/pipe", &out).expect("there is room");
    let mode = fs::metadata(&out).expect("there").mode() & 0o777;
    let mut value = [0; 64];
    match rustix::fs::lgetxattr(&out, "system.posix_acl_access", value.as_mut_slice()) {
        Ok(length) => {
            assert_eq!((&value[..length], mode), (&LIST[..], 0o670));
            assert_eq!(got.attributes_skipped, 0);
        }
        Err(_) => assert_eq!((mode, got.attributes_skipped), (0o600, 1)),
    }
}

#[test]
fn what_the_host_refuses_is_named_as_the_host_names_it() {
    let folder = scratch();
    let image = image(folder.path());
    // Nothing can be made there, by root neither.
    let error = get(&image, "/etc/passwd", Path::new("/proc/copy")).expect_err("it is no place");
    assert!(error.starts_with("/proc/copy: "), "{error}");
    // A terminal obeys no name.
    let error =
        get(&image, "/etc/passwd", Path::new("/proc/\x1b[31m")).expect_err("it is no place");
    assert!(error.starts_with("/proc/\\u{1b}[31m: "), "{error}");
    let error = get(&image, "/etc", Path::new("/proc/")).expect_err("it is no place");
    assert!(error.starts_with("/proc/etc: "), "{error}");
}

/// The whole path of such a name is longer than the system accepts.
#[test]
fn other_names_of_a_file_come_out_of_deep_trees() {
    use crate::common::archives::{archive, build, header, records};

    let folder = scratch();
    let image = folder.path().join("image");
    let deep = format!("{}/", "d".repeat(200)).repeat(30);
    let (first, other) = (format!("{deep}first"), format!("{deep}other"));
    let parts = [
        records(&[("path", &first)]),
        header("x", b'0', 0, ""),
        records(&[("path", &other), ("linkpath", &first)]),
        header("x", b'1', 0, "x"),
    ];
    build(&image, &archive(&parts)).expect("a sound archive");
    let out = folder.path().join("out");
    let got = get(&image, "/", &out).expect("there is room");
    // Besides the directories: the file, lost+found and the root.
    assert_eq!(got.files, 30 + 3);
}
