//! Files with fs-verity on a mount, in edits, and when an image is checked and resized.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use pext4_testkit::oracle::debugfs;

use crate::common::{Place, fail, has, pext4, succeed};

/// The hashes begin where Linux puts them: at the next multiple of 64 KiB.
const SIZE: usize = 5000;
const HASHES_AT: usize = 64 << 10;
const HASHES: [u8; 8192] = [0xAB; 8192];

impl Place {
    /// An image with the file `/file`, which has fs-verity, near its end.
    fn with_verity() -> Option<Self> {
        if !has("mke2fs") || !has("debugfs") {
            return None;
        }
        let place = Self::empty_if_mountable()?;
        let mut content = vec![7; SIZE];
        content.resize(HASHES_AT, 0);
        content.extend(HASHES);
        let host = place.image.with_file_name("content");
        let filler = place.image.with_file_name("filler");
        fs::write(&host, content).expect("a fresh place");
        fs::write(&filler, vec![1; 24 << 20]).expect("a fresh place");
        let mut mke2fs = Command::new("mke2fs");
        mke2fs.args(["-q", "-t", "ext4", "-b", "4096", "-O", "verity"]);
        succeed(mke2fs.arg(&place.image).arg("32M"));
        place.debugfs(&[
            &format!("write {} filler", filler.display()),
            &format!("write {} file", host.display()),
            "rm filler",
            &format!("sif file size {SIZE}"),
            "sif file flags 0x180000",
        ]);
        place.check();
        Some(place)
    }

    fn debugfs(&self, requests: &[&str]) {
        let requests: Vec<String> = requests.iter().map(|&request| request.to_owned()).collect();
        debugfs::command(&self.image, &requests).expect("debugfs works");
    }

    /// Checks that content and hashes are those of the beginning.
    fn assert_whole(&self) {
        self.check();
        succeed(pext4(["check"]).arg(&self.image));
        let copy = self.image.with_file_name("copy");
        fs::copy(&self.image, &copy).expect("room");
        let end = HASHES_AT + HASHES.len();
        let size = format!("sif file size {end}");
        let requests = [size, "sif file flags 0x80000".to_owned()];
        debugfs::command(&copy, &requests).expect("debugfs works");
        let host = self.image.with_file_name("read");
        let mut get = pext4(["get", "-f"]);
        succeed(get.arg(&copy).arg("/file").arg(&host));
        let content = fs::read(&host).expect("it was read");
        assert!(content[..SIZE] == [7; SIZE]);
        assert!(content[HASHES_AT..] == HASHES);
    }
}

#[test]
fn a_mount_keeps_content_and_changes_the_rest() {
    let Some(place) = Place::with_verity() else {
        return;
    };
    let mount = place.mount(&[]);
    let file = mount.path("file");
    assert_eq!(fs::read(&file).unwrap(), [7; SIZE]);
    // The kernel opens files without a request, and the write reaches the server later.
    let mut open = OpenOptions::new().write(true).open(&file).unwrap();
    open.write_all(b"another content").unwrap();
    let refused = open.sync_all().expect_err("it keeps its content");
    assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
    drop(open);
    let open = OpenOptions::new().write(true).open(&file).unwrap();
    for size in [0, SIZE as u64, 100_000] {
        let refused = open.set_len(size).expect_err("it keeps its size");
        assert_eq!(refused.kind(), ErrorKind::PermissionDenied, "{size}");
    }
    let refused = File::create(&file).expect_err("it keeps its content");
    assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
    drop(open);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    succeed(Command::new("touch").args(["-d", "2001-02-03"]).arg(&file));
    fs::hard_link(&file, mount.path("link")).unwrap();
    fs::rename(&file, mount.path("moved")).unwrap();
    fs::remove_file(mount.path("link")).unwrap();
    fs::rename(mount.path("moved"), &file).unwrap();
    fs::write(mount.path("other"), vec![1; 1 << 20]).unwrap();
    mount.unmount();
    place.assert_whole();

    let mount = place.mount(&["-o", "strict_open"]);
    let file = mount.path("file");
    let opened = OpenOptions::new().append(true).open(&file);
    let refused = opened.expect_err("the server is asked");
    assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
    fs::remove_file(&file).unwrap();
    mount.unmount();
}

#[test]
fn edits_and_resizes_leave_it_whole() {
    let Some(place) = Place::with_verity() else {
        return;
    };
    let host = place.image.with_file_name("host");
    fs::write(&host, b"another content").expect("a fresh place");
    let on = |command: &str, words: &[&str]| {
        let mut pext4 = pext4([command]);
        pext4.arg(&place.image).args(words);
        pext4
    };
    succeed(&mut on("chmod", &["600", "/file"]));
    succeed(&mut on("mv", &["/file", "/moved"]));
    succeed(&mut on("mv", &["/moved", "/file"]));
    succeed(&mut on("mkdir", &["/directory"]));
    let error = fail(&mut on("chattr", &["-e", "/file"]), 1);
    assert!(error.contains("/file"), "{error}");
    place.assert_whole();
    let blocks = || debugfs::blocks_of(&place.image, "/file").expect("it has some");
    let before = blocks();
    for size in ["16M", "64M", "12M"] {
        let mut resize = pext4(["resize", "-q"]);
        succeed(resize.arg(&place.image).arg(size));
        place.assert_whole();
    }
    assert_ne!(blocks(), before, "they had to move");
    // What replaces it is another file.
    succeed(&mut on("put", &[host.to_str().expect("text"), "/file"]));
    let content = succeed(&mut on("cat", &["/file"]));
    assert_eq!(content, "another content");
    let flags = succeed(&mut on("stat", &["/file"]));
    assert!(!flags.contains("verity"), "{flags}");
    place.check();
}
