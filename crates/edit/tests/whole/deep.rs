//! Trees with paths longer than the system accepts, and deeper than the number of directories that
//! are kept open, into an image and out of it.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::path::Path;

use pext4_edit::{Change, EditOptions, EditSession, GetOptions, Overrides, Reader, change};
use pext4_fs::FileType;
use pext4_testkit::effort::scratch;
use pext4_testkit::oracle::check::e2fsck;
use pext4_testkit::oracle::format::{Features, Format};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::common::archives::{apply, archive, fresh, header, record};

const LEVELS: u64 = 200;
/// The files that the process may have open while it copies out: fewer than the tree has levels.
const MAX_FILES: u64 = 170;

/// Each directory has a file before and one behind the next directory, as long as the directory is
/// deep.
fn make(top: &Path, name: &str) {
    fs::create_dir(top).expect("a fresh place");
    let mut here = OwnedFd::from(File::open(top).expect("it is ours"));
    for level in 1..=LEVELS {
        let flags = OFlags::WRONLY | OFlags::CREATE;
        for file in ["a", "z"] {
            let open = rustix::fs::openat(&here, file, flags, Mode::RUSR).expect("a fresh place");
            File::from(open).set_len(level).expect("there is room");
        }
        rustix::fs::mkdirat(&here, name, Mode::RWXU).expect("a fresh place");
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        here = rustix::fs::openat(&here, name, flags, Mode::empty()).expect("it was made");
    }
}

#[test]
fn deep_trees_come_in_and_go_out_whole() {
    let folder = scratch();
    let name = "d".repeat(60);
    make(&folder.path().join("top"), &name);
    let image = folder.path().join("image");
    let format = Format::new(16 << 20, 1024, Features::Upstream).inodes(2048);
    let device = format.device().expect("mke2fs is there");
    device.save(&image).expect("there is room");
    let mut session = EditSession::open(&image, &EditOptions::default()).expect("it opens");
    let put = Change::Put(change::Put {
        from: folder.path().join("top"),
        to: b"/".to_vec(),
        no_target_directory: false,
        xattrs: true,
        overrides: Overrides::default(),
    });
    session.apply(&put).expect("it fits");
    session.finish().expect("it fits");
    e2fsck(&image).expect("sound");
    let reader = Reader::open(&image).expect("sound");
    let (mut files, mut directories) = (0, 0);
    let mut look = |file: &pext4_edit::Visited| {
        let depth = file
            .path
            .split(|&byte| byte == b'/')
            .filter(|name| !name.is_empty());
        let depth = depth.count() as u64 - 1;
        if file.path.ends_with(b"/a") || file.path.ends_with(b"/z") {
            files += 1;
            assert_eq!(file.attributes.size, depth);
        } else {
            directories += 1;
        }
        Ok(())
    };
    reader.walk("/top", &mut look).expect("sound");
    assert_eq!((files, directories), (2 * LEVELS, LEVELS + 1));
    let limit = getrlimit(Resource::Nofile);
    let lower = Rlimit {
        current: Some(MAX_FILES),
        ..limit
    };
    setrlimit(Resource::Nofile, lower).expect("it becomes less");
    let copied = reader.get("/top", folder.path().join("out"), &GetOptions::default());
    setrlimit(Resource::Nofile, limit).expect("it becomes what it was");
    assert_eq!(copied.expect("there is room").files, 3 * LEVELS + 1);
}

/// What an entry's path names is the archive's, down to the last directory.
#[test]
fn an_entry_below_many_missing_directories_brings_them_all() {
    const DEPTH: usize = 1500;
    let folder = scratch();
    let image = fresh(folder.path(), "image");
    let directory = "d/".repeat(DEPTH);
    let entry = |path: &str| [record("path", path), header("entry", b'0', 0, "")].concat();
    let entries = [
        header("link", b'2', 0, "d/d/d"),
        entry(&format!("link/{}first", &directory[6..])),
        entry(&format!("{directory}second")),
        // It replaces a directory that the archive made.
        entry(directory.trim_end_matches('/')),
        // As it may the one to which a link led that led nowhere before.
        header("way", b'2', 0, "nowhere"),
        header("way/one/two", b'0', 0, ""),
        header("nowhere", b'0', 0, ""),
    ];
    apply(&image, &archive(&entries)).expect("there is room");
    e2fsck(&image).expect("sound");
    let reader = Reader::open(&image).expect("sound");
    let paths = reader.volume().paths();
    let last = paths.attributes(directory.trim_end_matches('/'));
    assert_eq!(last.expect("it is there").file_type, FileType::Regular);
    let nowhere = paths.attributes("nowhere").expect("it is there");
    assert_eq!(nowhere.file_type, FileType::Regular);
}
