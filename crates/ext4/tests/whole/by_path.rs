//! What calls by path take and give: paths of the host, owners, attributes, listings in batches.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::path::Path;

use pext4_fs::path::OpenOptions;
use pext4_fs::{Error, Refusal, SetAttributes, SetXattrMode};

use crate::images::Image;

/// What was refused.
fn refusal<T: std::fmt::Debug>(result: pext4_fs::Result<T>) -> Refusal {
    match result {
        Err(Error::Refused(refusal)) => refusal,
        other => panic!("{other:?} is no refusal"),
    }
}

#[test]
fn paths_of_the_host_are_paths() {
    let Some(image) = Image::make(&[]) else {
        return;
    };
    let volume = image.open();
    let paths = volume.paths();
    let folder = Path::new("/folder");
    paths.create_dir(folder).expect("room");
    paths.write(folder.join("file"), "text").expect("room");
    paths
        .symlink(Path::new("file"), folder.join("link"))
        .expect("room");
    let name = OsStr::new("/folder/link");
    assert_eq!(paths.read_to_string(name).expect("there"), "text");
    assert_eq!(paths.read_link(name.to_owned()).expect("there"), b"file");
}

#[test]
fn what_is_opened_belongs_to_the_owner_of_the_paths_or_the_options() {
    let Some(image) = Image::make(&[]) else {
        return;
    };
    let volume = image.open();
    let paths = volume.paths().with_owner(7, 8);
    let options = OpenOptions::new().write(true).create(true);
    let file = paths.open_with(&options, "/of-paths").expect("room");
    let attributes = file.attributes().expect("sound");
    assert_eq!((attributes.uid, attributes.gid), (7, 8));
    let options = options.owner(9, 10);
    let file = paths.open_with(&options, "/of-options").expect("room");
    let attributes = file.attributes().expect("sound");
    assert_eq!((attributes.uid, attributes.gid), (9, 10));
    paths.create_dir_with("/private", 0o1700).expect("room");
    let attributes = paths.attributes("/private").expect("sound");
    assert_eq!((attributes.permissions(), attributes.uid), (0o1700, 7));
    assert!(attributes.is_dir());
}

#[test]
fn a_link_has_attributes_of_its_own() {
    let Some(image) = Image::make(&[]) else {
        return;
    };
    let volume = image.open();
    let paths = volume.paths();
    paths.write("/file", "text").expect("room");
    paths.symlink("file", "/link").expect("room");
    let change = SetAttributes {
        uid: Some(5),
        ..SetAttributes::default()
    };
    let link = paths.resolve_link("/link").expect("there");
    link.set_attributes(&change).expect("room");
    assert_eq!(paths.link_attributes("/link").expect("sound").uid, 5);
    assert_eq!(paths.attributes("/link").expect("sound").uid, 0);
    paths.set_permissions("/link", 0o4711).expect("room");
    let file = paths.attributes("/file").expect("sound");
    assert!(file.is_file() && file.permissions() == 0o4711);
    let name = "trusted.of";
    link.set_xattr(name, "link", SetXattrMode::Create)
        .expect("room");
    assert_eq!(refusal(paths.xattr("/link", name)), Refusal::NoAttribute);
    assert_eq!(link.xattr(name).expect("there"), b"link");
}

#[test]
fn an_open_file_has_attributes_too() {
    let Some(image) = Image::make(&[]) else {
        return;
    };
    let volume = image.open();
    let paths = volume.paths();
    paths.write("/file", "text").expect("room");
    let file = paths.open("/file").expect("there");
    let name = "user.note";
    let set = |value, mode| file.set_xattr(name, value, mode);
    assert_eq!(
        refusal(set("a", SetXattrMode::Replace)),
        Refusal::NoAttribute
    );
    set("a", SetXattrMode::Create).expect("room");
    assert_eq!(refusal(set("b", SetXattrMode::Create)), Refusal::Exists);
    let again = paths.set_xattr("/file", name, "b", SetXattrMode::Create);
    assert_eq!(refusal(again), Refusal::Exists);
    set("b", SetXattrMode::Any).expect("room");
    assert_eq!(file.xattr(name).expect("there"), b"b");
    assert_eq!(file.xattr_names().expect("sound"), [name.as_bytes()]);
    file.remove_xattr(name).expect("there");
    assert_eq!(refusal(file.xattr(name)), Refusal::NoAttribute);
    file.set_permissions(0o600).expect("room");
    let mut change = SetAttributes {
        gid: Some(3),
        ..SetAttributes::default()
    };
    let changed = file.set_attributes(&change).expect("room");
    assert_eq!((changed.gid, changed.permissions()), (3, 0o600));
    change.size = Some(0);
    assert_eq!(refusal(file.set_attributes(&change)), Refusal::NotOpen);
}

#[test]
fn whole_contents_are_read_and_written_or_that_is_an_error() {
    let Some(image) = Image::make(&[]) else {
        return;
    };
    let volume = image.open();
    let paths = volume.paths();
    let file = paths.create("/file").expect("room");
    file.write_all_at(b"a text", 2).expect("room");
    let mut bytes = [0; 4];
    file.read_exact_at(&mut bytes, 4).expect("there");
    assert_eq!(&bytes, b"text");
    match file.read_exact_at(&mut bytes, 5) {
        Err(Error::Io(error)) => assert_eq!(error.kind(), ErrorKind::UnexpectedEof),
        other => panic!("{other:?}"),
    }
    assert_eq!(paths.read_to_string("/file").expect("text"), "\0\0a text");
    paths.write("/bytes", b"\xFF\xFE").expect("room");
    let refused = paths.read_to_string("/bytes").expect_err("no text");
    assert_eq!(refused.kind(), ErrorKind::InvalidData);
    let options = OpenOptions::new().append(true);
    let log = paths.open_with(&options, "/file").expect("there");
    log.write_all_at(b"!", 0).expect("room");
    assert_eq!(paths.read("/file").expect("there"), b"\0\0a text!");
}

/// More names than are fetched at once, of which some are removed and others made meanwhile.
#[test]
fn a_long_listing_has_each_name_once() {
    const COUNT: usize = 3000;
    let Some(image) = Image::make(&["-N", "8192"]) else {
        return;
    };
    let volume = image.open();
    let paths = volume.paths();
    paths.create_dir("/many").expect("room");
    for number in 0..COUNT {
        drop(paths.create(format!("/many/{number}")).expect("room"));
    }
    let mut seen = BTreeSet::new();
    let mut listing = paths.read_dir("/many").expect("a directory");
    for entry in listing.by_ref() {
        let name = String::from_utf8(entry.expect("sound").name).expect("a number");
        if seen.len() % 2 == 0 {
            paths.remove_file(format!("/many/{name}")).expect("there");
        }
        if seen.len() % 500 == 0 {
            drop(paths.create(format!("/many/new-{name}")).expect("room"));
        }
        if !name.starts_with("new") {
            assert!(seen.insert(name), "listed twice");
        }
    }
    assert!(listing.next().is_none());
    assert_eq!(seen.len(), COUNT);
    assert_eq!(refusal(paths.read_dir("/many/new-none")), Refusal::NotFound);
    paths.write("/file", "").expect("room");
    assert_eq!(refusal(paths.read_dir("/file")), Refusal::NotADirectory);
}
