//! `pext4 chattr`.

use std::fs;

use super::images::{image, on, stat};
use crate::common::{Place, fail, succeed, with_input};

fn flags(place: &Place, path: &str) -> Vec<String> {
    let stat = stat(place, path);
    let flags = stat["flags"].as_array().expect("a list").iter();
    let names = flags.map(|flag| flag.as_str().expect("a text").to_owned());
    names
        .filter(|name| name != "extents" && name != "indexed")
        .collect()
}

#[test]
fn flags_are_changed_of_one_file_or_of_a_tree() {
    let place = image("16M");
    let host = place.point.join("file");
    fs::write(&host, b"content").expect("a fresh place");
    let host = host.to_str().expect("text");
    succeed(&mut on(&place, "mkdir", &["-p", "/a/b"]));
    succeed(&mut on(&place, "put", &[host, "/a/b"]));
    succeed(&mut on(&place, "ln", &["-s", "a/b/file", "/link"]));
    succeed(&mut on(&place, "ln", &["-s", "nowhere", "/a/link"]));

    succeed(&mut on(&place, "chattr", &["+i", "/link"]));
    assert_eq!(
        flags(&place, "/a/b/file"),
        ["immutable"],
        "the link was followed"
    );
    let error = fail(&mut on(&place, "rm", &["/a/b/file"]), 1);
    assert!(error.contains("/a/b/file"), "{error}");
    assert!(error.contains("whether a flag forbids it"), "{error}");
    succeed(&mut on(&place, "chattr", &["-R", "+dT-i", "/a"]));
    assert_eq!(flags(&place, "/a/b/file"), ["no-dump"]);
    assert_eq!(flags(&place, "/a/b"), ["no-dump", "top-of-hierarchy"]);
    place.check();

    let script =
        b"chattr = /a/b /a/b/file\nchattr +a /a/b/file\nchattr -a /a/b/file\nrm /a/b/file\n";
    let output = with_input(&mut on(&place, "edit", &["-f", "-"]), script);
    assert!(output.status.success(), "{output:?}");
    assert!(flags(&place, "/a/b").is_empty());
    place.check();
}

#[test]
fn flags_that_files_cannot_have_are_refused() {
    let place = image("16M");
    succeed(&mut on(&place, "mknod", &["/null", "c", "1", "3"]));
    let error = fail(&mut on(&place, "chattr", &["+i", "/null"]), 1);
    assert!(error.contains("/null"), "{error}");
    let error = fail(&mut on(&place, "chattr", &["+j", "/null"]), 2);
    assert!(error.contains("`+j` changes no flags"), "{error}");
}
