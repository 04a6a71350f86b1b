//! Each verb, compared with what the kernel shows afterwards.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

use pext4_block::RamDevice;
use pext4_edit::{
    Change, EditOptions, EditSession, ModeChange, Overrides, Plan, Reader, Way, change,
};
use pext4_fs::{InodeNumber, Time};
use pext4_testkit::Random;
use pext4_testkit::effort::{scratch, seeds};
use pext4_testkit::oracle::check::e2fsck;
use pext4_testkit::oracle::format::{Features, Format};
use pext4_testkit::oracle::mount::{Access, kernel_mount};
use pext4_testkit::tree::Tree;
use pext4_testkit::volume::walk;

use crate::common::{filled, fixed, mixture, write};

const FORMAT: (u64, u32) = (16 << 20, 1024);

fn format(features: Features) -> Format {
    Format::new(FORMAT.0, FORMAT.1, features).inodes(2048)
}

fn save(device: &RamDevice, folder: &Path) -> std::path::PathBuf {
    let image = folder.join("image");
    device.save(&image).expect("there is room");
    image
}

fn tree(image: &Path) -> Tree {
    let reader = Reader::open(image).expect("a sound image");
    walk(reader.volume(), InodeNumber::ROOT).expect("a sound image")
}

/// Checks the image with e2fsck, and compares what the kernel reads with what we read.
fn agree(image: &Path, test: &str) {
    e2fsck(image).expect(test);
    let ours = tree(image);
    if let Some(mount) = kernel_mount(image, Access::ReadOnly, test).expect(test) {
        let theirs = pext4_testkit::mounted::walk(mount.path()).expect(test);
        theirs.assert_same(&ours, test);
        mount.unmount().expect(test);
    }
}

#[test]
fn what_was_edited_is_what_the_kernel_sees() {
    for seed in seeds(3) {
        for (features, way) in [
            (Features::Upstream, Way::Transaction),
            (Features::Debian12, Way::Clone),
            (Features::NoJournal, Way::Auto),
        ] {
            let mut random = Random::new(seed);
            let folder = scratch();
            let image = save(&filled(&format(features), &mut random), folder.path());
            let options = EditOptions {
                way,
                ..EditOptions::default()
            };
            let mut session = EditSession::open(&image, &options).expect("it opens");
            mixture(&mut session, &mut random);
            let seen = walk(session.volume(), InodeNumber::ROOT).expect("sound");
            let plan = session.finish().expect("there is room");
            let by_transaction = matches!(plan, Plan::Transaction { .. });
            assert_eq!(by_transaction, way == Way::Transaction, "{plan:?}");
            let what = format!("seed {seed}, {features:?}, {way:?}");
            seen.assert_same(&tree(&image), &what);
            agree(&image, &what);
            let names: Vec<_> = fs::read_dir(folder.path()).expect("readable").collect();
            assert_eq!(names.len(), 1, "{what}: nothing is left beside the image");
        }
    }
}

#[test]
fn the_same_edit_gives_the_same_bytes() {
    for seed in seeds(2) {
        for (features, way, memory) in [
            (Features::Upstream, Way::Transaction, 64 << 20),
            (Features::Upstream, Way::Transaction, 0),
            (Features::Debian12, Way::Clone, 64 << 20),
        ] {
            let mut base = Random::new(seed);
            let device = filled(&format(features), &mut base);
            let edit = || {
                let folder = scratch();
                let image = save(&device, folder.path());
                let options = EditOptions {
                    way,
                    memory,
                    ..fixed()
                };
                let mut session = EditSession::open(&image, &options).expect("it opens");
                mixture(&mut session, &mut Random::new(seed + 1));
                session.finish().expect("there is room");
                fs::read(&image).expect("readable")
            };
            let (first, second) = (edit(), edit());
            let differs = first.iter().zip(&second).position(|(one, two)| one != two);
            assert_eq!(
                differs, None,
                "seed {seed}, {features:?}, {way:?}, {memory}"
            );
        }
    }
}

#[test]
fn trees_of_the_host_come_with_everything() {
    let folder = scratch();
    let image = save(
        &filled(&format(Features::Upstream), &mut Random::new(1)),
        folder.path(),
    );
    let host = folder.path().join("tree");
    fs::create_dir_all(host.join("sub/empty")).expect("fresh");
    fs::write(host.join("sub/file"), b"content").expect("fresh");
    fs::set_permissions(host.join("sub/file"), fs::Permissions::from_mode(0o4711)).expect("ours");
    fs::hard_link(host.join("sub/file"), host.join("other")).expect("fresh");
    std::os::unix::fs::symlink("sub/file", host.join("link")).expect("fresh");
    let sparse = fs::File::create(host.join("sparse")).expect("fresh");
    sparse.write_all_at(b"x", 1 << 20).expect("room");
    sparse.set_len(3 << 20).expect("room");
    drop(sparse);
    let user = rustix::fs::setxattr(
        host.join("other"),
        "user.note",
        b"hello",
        rustix::fs::XattrFlags::empty(),
    );
    let time = std::time::UNIX_EPOCH + std::time::Duration::new(1_234_567_890, 123);
    let file = fs::File::open(host.join("other")).expect("there");
    file.set_modified(time).expect("ours");

    let mut session = EditSession::open(&image, &EditOptions::default()).expect("it opens");
    for (to, no_target_directory) in [("/usr", false), ("/etc", true), ("/new", false)] {
        session
            .apply(&Change::Put(change::Put {
                from: host.clone(),
                to: to.into(),
                no_target_directory,
                xattrs: true,
                overrides: Overrides::default(),
            }))
            .expect("there is room");
    }
    session.finish().expect("there is room");
    agree(&image, "put");
    let reader = Reader::open(&image).expect("sound");
    let volume = reader.volume();
    for top in ["usr/tree", "etc", "new"] {
        let at = |name: &str| format!("{top}/{name}");
        let file = volume.paths().link_attributes(at("sub/file")).expect(top);
        let other = volume.paths().link_attributes(at("other")).expect(top);
        assert_eq!(file.inode, other.inode, "{top}");
        assert_eq!(file.mode, 0o104_711, "{top}");
        assert_eq!(
            (file.uid, file.links),
            (fs::metadata(&host).expect("there").uid(), 2)
        );
        let modified = Time {
            seconds: 1_234_567_890,
            nanoseconds: 123,
        };
        assert_eq!(file.modified, modified, "{top}");
        let sparse = volume.paths().link_attributes(at("sparse")).expect(top);
        assert_eq!(sparse.size, 3 << 20);
        assert!(sparse.sectors < 64, "{top}: holes stay holes");
        let content = volume.paths().read(at("sparse")).expect(top);
        assert_eq!(content.iter().position(|byte| *byte != 0), Some(1 << 20));
        assert_eq!(
            volume.paths().read_link(at("link")).expect(top),
            b"sub/file"
        );
        if user.is_ok() {
            assert_eq!(
                volume.xattr(other.inode, b"user.note").expect(top),
                b"hello"
            );
        }
    }
    assert!(volume.paths().attributes("etc/passwd").is_ok(), "merged");
}

#[test]
fn copies_between_images_keep_everything() {
    let folder = scratch();
    let one = save(
        &filled(&format(Features::Upstream), &mut Random::new(1)),
        folder.path(),
    );
    let two = folder.path().join("two");
    format(Features::Debian12).make(&two).expect("made");
    let mut session = EditSession::open(&two, &EditOptions::default()).expect("it opens");
    session
        .apply(&Change::CopyFile(change::CopyFile {
            image: Some(one.clone()),
            image_offset: 0,
            from: b"/".to_vec(),
            to: b"/".to_vec(),
            no_target_directory: true,
            recursive: true,
        }))
        .expect("there is room");
    session.finish().expect("there is room");
    agree(&two, "copy");
    let (first, second) = (tree(&one), tree(&two));
    assert_eq!(
        first.items.keys().collect::<Vec<_>>(),
        second.items.keys().collect::<Vec<_>>()
    );
    for (path, item) in &first.items {
        let other = &second.items[path];
        assert_eq!((&item.link, &item.xattrs), (&other.link, &other.xattrs));
        assert!(item.content == other.content, "{path:?}");
        assert_eq!(item.facts.modified, other.facts.modified, "{path:?}");
        assert_eq!(item.facts.links, other.facts.links, "{path:?}");
    }
}

#[test]
fn what_outgrows_the_journal_goes_to_a_clone() {
    let folder = scratch();
    let image = folder.path().join("image");
    // The smallest journal there is: 1024 blocks.
    Format::new(64 << 20, 1024, Features::Debian12)
        .inodes(16_384)
        .with(&["-J", "size=1"])
        .make(&image)
        .expect("made");
    let before = fs::read(&image).expect("readable");
    let many = |session: &mut EditSession| {
        let mut random = Random::new(3);
        for number in 0..9000 {
            session.apply(&write(&format!("/file{number}"), 10, &mut random))?;
        }
        Ok::<(), pext4_edit::EditError>(())
    };
    let options = EditOptions {
        way: Way::Transaction,
        ..EditOptions::default()
    };
    let mut session = EditSession::open(&image, &options).expect("it opens");
    let error = many(&mut session).expect_err("it is too much").to_string();
    assert!(
        error.contains("cannot be made in one transaction"),
        "{error}"
    );
    drop(session);
    assert!(
        fs::read(&image).expect("readable") == before,
        "not a byte changed"
    );

    let inode = fs::metadata(&image).expect("there").ino();
    let mut session = EditSession::open(&image, &EditOptions::default()).expect("it opens");
    many(&mut session).expect("a clone takes it");
    let plan = session.finish().expect("a clone takes it");
    assert!(matches!(plan, Plan::Clone { .. }), "{plan:?}");
    assert_ne!(fs::metadata(&image).expect("there").ino(), inode);
    agree(&image, "outgrown");
    assert_eq!(tree(&image).items.len(), 9002);
}

/// As on a mount: a file from a stream gets the group of a set-group-ID directory.
#[test]
fn a_file_of_nothing_has_the_group_of_its_directory() {
    let folder = scratch();
    let image = folder.path().join("image");
    Format::new(16 << 20, 1024, Features::Upstream)
        .make(&image)
        .expect("made");
    let mut session = EditSession::open(&image, &fixed()).expect("it opens");
    for change in [
        Change::MakeDirectory(change::MakeDirectory {
            path: b"/shared".to_vec(),
            parents: false,
            mode: Some(ModeChange::exactly(0o2775)),
        }),
        Change::SetOwner(change::SetOwner {
            path: b"/shared".to_vec(),
            uid: None,
            gid: Some(100),
            recursive: false,
            no_follow: false,
        }),
        change::WriteFile::new("/shared/content", "a line").into(),
    ] {
        session.apply(&change).expect("room");
    }
    session
        .write_from(b"/shared/stream", &mut &b"a line"[..], Overrides::default())
        .expect("room");
    let overrides = Overrides {
        gid: Some(7),
        ..Overrides::default()
    };
    session
        .write_from(b"/shared/given", &mut &b"a line"[..], overrides)
        .expect("room");
    session.finish().expect("nothing can fail");
    let reader = Reader::open(&image).expect("sound");
    for (path, gid) in [
        ("/shared/content", 100),
        ("/shared/stream", 100),
        ("/shared/given", 7),
    ] {
        let there = reader.volume().paths().attributes(path).expect("there");
        assert_eq!(there.gid, gid, "{path}");
    }
}

#[test]
fn a_file_that_is_moved_to_another_of_its_names_has_that_one() {
    let folder = scratch();
    let image = folder.path().join("image");
    Format::new(16 << 20, 1024, Features::Upstream)
        .make(&image)
        .expect("made");
    let mut session = EditSession::open(&image, &fixed()).expect("it opens");
    session
        .apply(&write("/one", 10, &mut Random::new(1)))
        .expect("room");
    let link = Change::Link(change::Link {
        into: pext4_edit::IntoDirectory::Always,
        target: b"/one".to_vec(),
        path: b"/two".to_vec(),
        force: false,
    });
    session.apply(&link).expect("room");
    let rename = |from: &str, to: &str| {
        Change::Rename(change::Rename {
            no_target_directory: false,
            no_clobber: false,
            from: from.into(),
            to: to.into(),
        })
    };
    session.apply(&rename("/one", "/two")).expect("it is there");
    session.finish().expect("nothing can fail");
    let mut session = EditSession::open(&image, &fixed()).expect("it opens");
    let refused = session
        .apply(&rename("/two", "/./two"))
        .expect_err("nothing to do");
    assert!(refused.to_string().contains("/two: is where"), "{refused}");
    drop(session);
    agree(&image, "moved");
    let items = tree(&image).items;
    assert!(items.contains_key(&b"two"[..]) && !items.contains_key(&b"one"[..]));
}

/// The clone that replaces the image grants the access that the image granted.
#[test]
fn a_clone_keeps_owner_group_and_mode() {
    use std::os::unix::fs::{PermissionsExt, chown};
    let folder = scratch();
    let image = folder.path().join("image");
    Format::new(16 << 20, 1024, Features::Debian12)
        .make(&image)
        .expect("made");
    let owned = rustix::process::geteuid().is_root();
    if owned {
        chown(&image, Some(1234), Some(4321)).expect("root may");
    } else {
        eprintln!("SKIPPED: owners of a clone: needs root");
    }
    fs::set_permissions(&image, fs::Permissions::from_mode(0o640)).expect("it is ours");
    let before = fs::metadata(&image).expect("there");
    let (tell, told) = std::sync::mpsc::channel();
    let tell = move |reason: &str| tell.send(reason.to_owned()).expect("it is heard");
    let options = EditOptions {
        way: Way::Clone,
        on_clone: Some(Arc::new(tell)),
        ..EditOptions::default()
    };
    let mut session = EditSession::open(&image, &options).expect("it opens");
    session
        .apply(&write("/new", 10, &mut Random::new(1)))
        .expect("room");
    session.finish().expect("room");
    let after = fs::metadata(&image).expect("there");
    assert_ne!(after.ino(), before.ino(), "it is the clone");
    assert_eq!(told.try_iter().collect::<Vec<_>>(), ["as asked for"]);
    let facts = |facts: &fs::Metadata| (facts.uid(), facts.gid(), facts.mode());
    assert_eq!(facts(&after), facts(&before));
}

/// What lies under the image's name by then is not the image that was edited.
#[test]
fn an_image_that_was_moved_meanwhile_is_not_changed() {
    for (way, features) in [
        (Way::Clone, Features::NoJournal),
        (Way::Transaction, Features::Debian12),
    ] {
        let folder = scratch();
        let [image, moved, other] =
            ["image", "moved", "other"].map(|name| folder.path().join(name));
        Format::new(16 << 20, 1024, features)
            .make(&image)
            .expect("made");
        fs::write(&other, b"another image").expect("room");
        let options = EditOptions {
            way,
            ..EditOptions::default()
        };
        let mut session = EditSession::open(&image, &options).expect("it opens");
        session
            .apply(&write("/new", 10, &mut Random::new(1)))
            .expect("room");
        let prepared = session.prepare().expect("there is room");
        let before = fs::read(&image).expect("it is there");
        fs::rename(&image, &moved).expect("it is ours");
        fs::rename(&other, &image).expect("it is ours");
        let refused = prepared.commit().expect_err("it is another file");
        assert!(
            refused.to_string().contains("moved or replaced"),
            "{way:?}: {refused}"
        );
        assert_eq!(fs::read(&image).expect("it is there"), b"another image");
        assert!(fs::read(&moved).expect("it is there") == before, "{way:?}");
        assert_eq!(fs::read_dir(folder.path()).expect("it is there").count(), 2);
    }
}

#[test]
fn space_that_an_edit_frees_it_can_use() {
    let folder = scratch();
    let image = folder.path().join("image");
    Format::new(16 << 20, 1024, Features::Debian12)
        .make(&image)
        .expect("made");
    let mut random = Random::new(5);
    let mut session = EditSession::open(&image, &EditOptions::default()).expect("it opens");
    session
        .apply(&write("/old", 9 << 20, &mut random))
        .expect("room");
    session.finish().expect("room");
    let mut session = EditSession::open(&image, &EditOptions::default()).expect("it opens");
    session
        .apply(&Change::Remove(change::Remove {
            path: b"/old".to_vec(),
            recursive: false,
            force: false,
        }))
        .expect("it is there");
    session
        .apply(&write("/new", 9 << 20, &mut random))
        .expect("the room of the old one");
    let plan = session.finish().expect("room");
    assert!(matches!(plan, Plan::Clone { .. }), "{plan:?}");
    agree(&image, "reused");
    let error = EditSession::open(&image, &EditOptions::default())
        .expect("it opens")
        .apply(&write("/more", 9 << 20, &mut random))
        .expect_err("it is full")
        .to_string();
    assert!(error.contains("/more: no space left"), "{error}");
}

#[test]
fn an_edit_within_a_second_of_the_last_one_may_leave_the_superblock_as_it_is() {
    let folder = scratch();
    let image = save(
        &filled(&format(Features::Upstream), &mut Random::new(1)),
        folder.path(),
    );
    for (from, to) in [
        ("/etc/passwd", "/one"),
        ("/one", "/two"),
        ("/two", "/three"),
    ] {
        let mut session = EditSession::open(&image, &fixed()).expect("it opens");
        let change = Change::Rename(change::Rename {
            no_target_directory: false,
            no_clobber: false,
            from: from.into(),
            to: to.into(),
        });
        session.apply(&change).expect("it is there");
        let plan = session.finish().expect("nothing can fail");
        assert!(matches!(plan, Plan::Transaction { .. }), "{plan:?}");
        agree(&image, to);
    }
    assert!(tree(&image).items.contains_key(&b"three"[..]));
}

#[test]
fn an_edit_of_nothing_changes_no_byte() {
    let folder = scratch();
    let image = save(
        &filled(&format(Features::Upstream), &mut Random::new(1)),
        folder.path(),
    );
    let before = fs::read(&image).expect("readable");
    let session = EditSession::open(&image, &EditOptions::default()).expect("it opens");
    assert_eq!(session.finish().expect("nothing can fail"), Plan::Nothing);
    assert!(fs::read(&image).expect("readable") == before);
}

/// Each with what it cannot do without.
#[test]
fn changes_are_made_from_little() {
    let folder = scratch();
    let image = folder.path().join("image");
    format(Features::Upstream).make(&image).expect("made");
    let host = folder.path().join("host");
    fs::write(&host, "from the host").expect("room");
    let mut session = EditSession::open(&image, &fixed()).expect("it opens");
    let fifo = pext4_fs::FileType::Fifo;
    let changes: [Change; 15] = [
        change::MakeDirectory::new("/made").into(),
        change::WriteFile::new("/made/file", "content").into(),
        change::Put::new(host, "/put").into(),
        change::CopyFile::new("/made/file", "/copy").into(),
        change::Link::new("/copy", "/made").into(),
        change::Symlink::new("file", "/made/link").into(),
        change::Rename::new("/put", "/made").into(),
        change::MakeNode::new("/fifo", fifo, Default::default()).into(),
        change::SetMode::new("/made/link", ModeChange::exactly(0o600)).into(),
        change::SetFlags::new("/copy", "+d".parse().expect("a flag")).into(),
        change::SetOwner::new("/made/file", 7, None).into(),
        change::Touch::new("/touched").into(),
        change::SetXattr::new("/copy", "user.note", "short").into(),
        change::RemoveXattr::new("/made/copy", "user.note").into(),
        change::Remove::new("/fifo").into(),
    ];
    for change in changes {
        session.apply(&change).expect("there is room");
    }
    session.finish().expect("there is room");
    agree(&image, "little");
    let reader = Reader::open(&image).expect("sound");
    let paths = reader.volume().paths();
    let file = paths.attributes("/made/link").expect("there");
    assert_eq!((file.mode & 0o777, file.uid, file.gid), (0o600, 7, 0));
    assert_eq!(paths.attributes("/made/copy").expect("there").links, 2);
    assert_eq!(paths.read("/made/put").expect("there"), b"from the host");
    assert_eq!(paths.attributes("/touched").expect("there").size, 0);
    assert!(paths.attributes("/fifo").is_err());
}
