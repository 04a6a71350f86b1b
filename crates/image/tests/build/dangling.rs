//! Entries behind symbolic links that lead to nothing: what they lead to is made, within bounds.

use std::fs;

use crate::archives::{Packer, build};
use crate::oracle::{Mounted, check};

/// A symbolic link whose target is too long for a header.
fn add_long_link(archive: &mut tar::Builder<Vec<u8>>, name: &str, target: &str) {
    archive
        .append_pax_extensions([("linkpath", target.as_bytes())])
        .unwrap();
    add(archive, b'2', name, "");
}

fn add(archive: &mut tar::Builder<Vec<u8>>, kind: u8, name: &str, link: &str) {
    let mut header = tar::Header::new_ustar();
    header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
    header.as_mut_bytes()[157..157 + link.len()].copy_from_slice(link.as_bytes());
    header.as_mut_bytes()[156] = kind;
    header.set_size(0);
    header.set_mode(0o644);
    header.set_cksum();
    archive.append(&header, &b""[..]).unwrap();
}

/// One link to two thousand directories that are not there, with many names in as many directories.
fn deep(names: u32) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    add_long_link(&mut archive, "s", &vec!["a"; 2047].join("/"));
    for number in 0..names {
        let name = format!("d{number}/s");
        add(&mut archive, b'1', &name, "s");
        add(&mut archive, b'0', &format!("{name}/x"), "");
    }
    archive.into_inner().unwrap()
}

#[test]
fn directories_that_only_links_name_follow_the_size_of_the_archive() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    build(deep(2), &image).unwrap();
    check(&image);
    fs::remove_file(&image).unwrap();
    let told = build(deep(3), &image).unwrap_err().to_string();
    assert!(
        told.contains("d2/s/x: its symbolic links lead to directories that are not there"),
        "{told}"
    );
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// As in a system of which `/run` is made when it starts.
#[test]
fn links_that_lead_nowhere_may_be_many() {
    const LINKS: u32 = 2000;
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let mut archive = Packer::new();
    for number in 0..LINKS {
        let link = format!("var/{number}");
        let target = format!("/run/services/{number}/state/files");
        archive = archive
            .entry(b'2', &link, &target, b"")
            .file(&format!("{link}/held"), b"content");
    }
    build(archive.finish(), &image).unwrap();
    check(&image);
    if let Some(mounted) = Mounted::new(&image) {
        let last = LINKS - 1;
        let held = format!("run/services/{last}/state/files/held");
        assert_eq!(fs::read(mounted.path().join(held)).unwrap(), b"content");
    }
}
