//! Casefolded directories on a mount, where the kernel takes each spelling of a name for a name of
//! its own, and in images that are not mounted.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::process::Command;

use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
use rustix::io::Errno;

use crate::common::{Place, fail, has, pext4, run, succeed};

const CASEFOLD: IFlags = IFlags::from_bits_retain(0x4000_0000);

fn set_flag(directory: &Path, folds: bool) -> Result<(), Errno> {
    let opened = File::open(directory).expect("it is there");
    let mut flags = ioctl_getflags(&opened)?;
    flags.set(CASEFOLD, folds);
    ioctl_setflags(&opened, flags)
}

fn make(image: &Path) {
    succeed(pext4(["mkfs", "-q", "-O", "casefold", "--size", "32M"]).arg(image));
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("it can be listed").flatten();
    // As `ls -l` does, which may make the kernel ask for names with attributes.
    let name = |entry: fs::DirEntry| {
        entry.metadata().expect("it is there");
        entry.file_name().into_string().expect("text")
    };
    let mut names: Vec<String> = entries.map(name).collect();
    names.sort();
    names
}

fn is_absent(path: &Path) -> bool {
    fs::metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

#[test]
fn on_a_mount_each_spelling_leads_to_the_file_and_none_outlives_it() {
    let Some(place) = Place::empty_if_mountable() else {
        return;
    };
    make(&place.image);
    let mount = place.mount(&[]);
    let directory = mount.path("directory");
    let at = |name: &str| directory.join(name);
    fs::create_dir(&directory).expect("room");
    // The kernel hears that these are not there before it can know that case will not matter.
    for name in ["NAME", "name", "Later"] {
        assert!(is_absent(&at(name)));
    }
    set_flag(&directory, true).expect("it is empty");
    fs::write(at("Name"), "content").expect("room");
    for name in ["NAME", "name", "nAmE"] {
        assert_eq!(fs::read(at(name)).expect(name), b"content");
    }
    assert_eq!(names(&directory), ["Name"]);
    // One that is not there is there as soon as another spelling is.
    assert!(is_absent(&at("later")));
    fs::write(at("LATER"), "more").expect("room");
    assert_eq!(fs::read(at("later")).expect("it is there"), b"more");
    // Gone by one spelling, gone by all, those of the listing too.
    assert_eq!(names(&directory), ["LATER", "Name"]);
    fs::remove_file(at("name")).expect("it is there");
    for name in ["Name", "NAME", "name"] {
        assert!(is_absent(&at(name)), "{name}");
    }
    fs::rename(at("later"), mount.path("outside")).expect("a move");
    assert!(is_absent(&at("LATER")) && is_absent(&at("later")));
    fs::write(at("later"), "new").expect("another file");
    assert_eq!(fs::read(at("LATER")).expect("the new one"), b"new");
    assert_eq!(
        fs::read(mount.path("outside")).expect("the old one"),
        b"more"
    );
    let error = File::create_new(at("lATER"))
        .map(drop)
        .expect_err("it exists");
    assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
    fs::hard_link(at("LATER"), at("other")).expect("a second name");
    fs::rename(mount.path("outside"), at("OTHER")).expect("it replaces the second");
    assert_eq!(fs::read(at("Other")).expect("it is there"), b"more");
    assert_eq!(names(&directory), ["later", "other"]);
    // The kernel sees two names of one file, and does not ask the server.
    fs::rename(at("later"), at("LATER")).expect("nothing to do");
    assert_eq!(names(&directory), ["later", "other"]);
    mount.unmount();
}

#[test]
fn directories_of_a_mount_are_entered_by_any_spelling_and_keep_the_flag() {
    let Some(place) = Place::empty_if_mountable() else {
        return;
    };
    make(&place.image);
    let mount = place.mount(&[]);
    let outer = mount.path("outer");
    let at = |path: &str| outer.join(path);
    fs::create_dir(&outer).expect("room");
    set_flag(&outer, true).expect("it is empty");
    fs::create_dir(at("Inner")).expect("room");
    fs::write(at("INNER/File"), "content").expect("room");
    assert_eq!(fs::read(at("inner/FILE")).expect("it is there"), b"content");
    assert_eq!(names(&at("iNNER")), ["File"]);
    assert_eq!(set_flag(&at("inner"), false), Err(Errno::NOTEMPTY));
    let file = File::open(at("INNER/file")).expect("it is there");
    assert_eq!(ioctl_setflags(&file, CASEFOLD), Err(Errno::OPNOTSUPP));
    drop(file);
    let refused = fs::remove_dir(at("INNER")).expect_err("it has a name");
    assert_eq!(refused.raw_os_error(), Some(Errno::NOTEMPTY.raw_os_error()));
    fs::remove_file(at("inner/FILE")).expect("it is there");
    set_flag(&at("INNER"), false).expect("it is empty");
    fs::write(at("inner/a"), "small").expect("room");
    fs::write(at("inner/A"), "large").expect("room");
    assert_eq!(names(&at("Inner")), ["A", "a"]);
    fs::remove_dir_all(at("INNER")).expect("it can go");
    assert!(is_absent(&at("Inner")) && is_absent(&at("inner")));
    mount.unmount();
}

#[test]
fn without_the_feature_no_directory_gets_the_flag() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    let mount = place.mount(&[]);
    fs::create_dir(mount.path("directory")).expect("room");
    assert_eq!(
        set_flag(&mount.path("directory"), true),
        Err(Errno::OPNOTSUPP)
    );
    mount.unmount();
}

/// What a command says of the image, with the arguments behind it.
fn on(place: &Place, command: &str, arguments: &[&str]) -> Command {
    let mut command = pext4([command]);
    command.arg(&place.image).args(arguments);
    command
}

#[test]
fn commands_find_and_change_names_of_images() {
    let place = Place::empty();
    make(&place.image);
    let done = |command: &str, arguments: &[&str]| succeed(&mut on(&place, command, arguments));
    done("mkdir", &["/d"]);
    let set = |flags, path| on(&place, "chattr", &[flags, path]);
    succeed(&mut set("+F", "/d"));
    done("mkdir", &["/d/Sub"]);
    let host = place.image.with_file_name("host");
    fs::write(&host, "content\n").expect("room");
    done(
        "put",
        &[host.to_str().expect("a plain path"), "/d/sub/File"],
    );
    assert_eq!(done("cat", &["/d/SUB/file"]), "content\n");
    assert!(done("stat", &["/d/sub"]).contains("casefold"));
    assert!(fail(&mut set("-F", "/d"), 1).contains("not empty"));
    fail(&mut on(&place, "cat", &["/D/sub/file"]), 1);
    let info = done("info", &[]);
    assert!(
        info.contains("casefold") && info.contains("utf8-12.1\n"),
        "{info}"
    );
    // A move may change the case alone, a link not the name that it leads to.
    done("mv", &["/d/sub/FILE", "/d/sub/file"]);
    assert!(done("ls", &["/d/sub"]).ends_with(" file\n"));
    done("ln", &["/d/sub/file", "/d/sub/other"]);
    fail(
        &mut on(&place, "ln", &["-f", "/d/sub/file", "/d/sub/FILE"]),
        1,
    );
    fail(&mut on(&place, "ln", &["/d/sub/file", "/d/sub/OTHER"]), 1);
    done("mv", &["/d/sub", "/d/SUB"]);
    let tree = done("tree", &["/d"]);
    assert!(tree.contains("SUB") && tree.contains("other"), "{tree}");
    let copy = place.image.with_file_name("copy");
    done(
        "get",
        &["/d/sub/OTHER", copy.to_str().expect("a plain path")],
    );
    assert_eq!(fs::read(&copy).expect("it was copied"), b"content\n");
    let archive = run(&mut on(&place, "export", &[]));
    let listed = archive.stdout.windows(9).any(|found| found == b"d/SUB/fil");
    assert!(archive.status.success() && listed);
    succeed(pext4(["check", "-q"]).arg(&place.image));
    done("rm", &["-r", "/d/sub"]);
    assert_eq!(done("ls", &["/d"]).trim(), "");
    place.check();
}

/// mke2fs writes the same fields.
#[test]
fn the_encoding_is_the_one_of_mke2fs() {
    if !has("mke2fs") || !has("dumpe2fs") {
        return;
    }
    let place = Place::empty();
    let told = || {
        let told = succeed(Command::new("dumpe2fs").arg("-h").arg(&place.image));
        let line = |word: &str| {
            told.lines()
                .find(|line| line.starts_with(word))
                .map(str::to_owned)
        };
        line("Character encoding").expect("there is one")
    };
    make(&place.image);
    let ours = (
        told(),
        fs::read(&place.image).expect("it")[1024 + 0x27C..][..4].to_vec(),
    );
    let mut mke2fs = Command::new("mke2fs");
    succeed(
        mke2fs
            .args(["-q", "-F", "-t", "ext4", "-O", "casefold"])
            .arg(&place.image),
    );
    let theirs = (
        told(),
        fs::read(&place.image).expect("it")[1024 + 0x27C..][..4].to_vec(),
    );
    assert_eq!(ours, theirs);
}
