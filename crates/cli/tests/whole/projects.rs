//! Projects on a mount (`chattr -p` and `lsattr -p`), with Linux beside, and in edits.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

use pext4_testkit::oracle::debugfs;

use crate::common::{Access, Place, fail, has, pext4, run, succeed};

/// A mountable image with projects, or `None` where that cannot be.
fn image_with_projects() -> Option<Place> {
    if !has("mke2fs") || !has("lsattr") {
        return None;
    }
    let place = Place::empty_if_mountable()?;
    let mut mke2fs = Command::new("mke2fs");
    mke2fs.args(["-q", "-t", "ext4", "-O", "project"]);
    succeed(mke2fs.arg(&place.image).arg("16M"));
    Some(place)
}

fn chattr(words: &[&str], path: &Path) {
    succeed(Command::new("chattr").args(words).arg(path));
}

/// What lsattr shows before the name: the number and the flags.
fn lsattr(path: &Path) -> (String, String) {
    let told = succeed(Command::new("lsattr").arg("-pd").arg(path));
    let mut words = told.split_whitespace().map(str::to_owned);
    let mut next = || words.next().expect("a number and flags");
    (next(), next())
}

fn project(path: &Path) -> String {
    lsattr(path).0
}

#[test]
fn projects_are_set_shown_inherited_and_kept_apart() {
    let Some(place) = image_with_projects() else {
        return;
    };
    let mount = place.mount(&[]);
    let [tree, other] = ["tree", "other"].map(|name| mount.path(name));
    for (directory, number) in [(&tree, "7"), (&other, "8")] {
        fs::create_dir(directory).unwrap();
        chattr(&["-p", number], directory);
        chattr(&["+P"], directory);
        let (shown, flags) = lsattr(directory);
        assert_eq!(shown, number, "setting a flag keeps it");
        assert!(flags.contains('P'), "{flags}");
    }
    fs::create_dir(tree.join("below")).unwrap();
    fs::write(tree.join("below/file"), b"content").unwrap();
    assert_eq!(project(&tree.join("below/file")), "7");
    let outside = mount.path("outside");
    File::create(&outside).unwrap();
    assert_eq!(project(&outside), "0");
    let crosses = |result: std::io::Result<()>| {
        let error = result.expect_err("it has another project");
        assert_eq!(error.kind(), ErrorKind::CrossesDevices, "{error}");
    };
    crosses(fs::hard_link(&outside, tree.join("outside")));
    crosses(fs::rename(&outside, tree.join("outside")));
    crosses(fs::rename(tree.join("below"), other.join("below")));
    // As on Linux, mv copies then, and the copy has the tree's project.
    succeed(Command::new("mv").args([&outside, &tree]));
    assert_eq!(project(&tree.join("outside")), "7");
    chattr(&["-p", "5"], &tree.join("outside"));
    mount.unmount();

    let stat = |path: &str| succeed(pext4(["stat"]).arg(&place.image).arg(path));
    let shows = |path: &str, number: &str| {
        let told = stat(path);
        let line = told.lines().find(|line| line.starts_with("Project"));
        line.is_some_and(|line| line.split_whitespace().last() == Some(number))
    };
    assert!(shows("/tree/below/file", "7") && shows("/tree/outside", "5"));
    assert!(!stat("/").contains("Project"), "it has none");
    let json = succeed(pext4(["stat", "--json"]).arg(&place.image).arg("/other"));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["project"], 8);
    linux_shows(
        &place,
        [
            ("tree/below/file", "7"),
            ("tree/outside", "5"),
            ("other", "8"),
        ],
    );
}

/// Linux reads the same numbers, if it mounts the image.
fn linux_shows(place: &Place, projects: [(&str, &str); 3]) {
    let Some(linux) = place.by_linux(Access::ReadOnly, "linux_shows") else {
        return;
    };
    for (path, number) in projects {
        assert_eq!(project(&linux.path().join(path)), number, "{path}");
    }
    linux.unmount().expect("nobody uses it");
}

#[test]
fn a_mount_without_projects_has_project_zero() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    if !has("lsattr") {
        return;
    }
    let mount = place.mount(&[]);
    let file = mount.path("file");
    File::create(&file).unwrap();
    assert_eq!(project(&file), "0");
    let mut chattr = Command::new("chattr");
    let refused = run(chattr.args(["-p", "7"]).arg(&file));
    assert!(!refused.status.success(), "there are no projects");
    assert_eq!(project(&file), "0");
    mount.unmount();
}

#[test]
fn edits_and_resizes_keep_projects() {
    let Some(place) = image_with_projects() else {
        return;
    };
    let requests = [
        "mkdir tree",
        "sif tree flags 0x20080000",
        "sif tree projid 7",
        "mkdir plain",
        "sif plain projid 9",
    ];
    debugfs::command(&place.image, &requests.map(str::to_owned)).expect("debugfs works");
    let host = place.image.with_file_name("host");
    fs::write(&host, b"content").expect("a fresh place");
    let host = host.to_str().expect("text");
    let on = |command: &str, words: &[&str]| {
        let mut pext4 = pext4([command]);
        pext4.arg(&place.image).args(words);
        pext4
    };
    succeed(&mut on("put", &[host, "/tree/put"]));
    succeed(&mut on("put", &[host, "/plain/put"]));
    succeed(&mut on("cp", &["-r", "/plain", "/tree/copy"]));
    succeed(&mut on("cp", &["-r", "/tree", "/plain/copy"]));
    for (command, words) in [
        ("mv", ["/plain/put", "/tree/moved"]),
        ("ln", ["/plain/put", "/tree/linked"]),
    ] {
        let error = fail(&mut on(command, &words), 1);
        assert!(error.contains("/tree/"), "{error}");
        assert!(error.contains("another project"), "{error}");
    }
    succeed(&mut on("mv", &["/tree/put", "/tree/copy/moved"]));
    for size in ["32M", "8M"] {
        let mut resize = pext4(["resize", "-q"]);
        succeed(resize.arg(&place.image).arg(size));
        place.check();
    }
    for (path, number) in [
        ("/tree/copy/moved", Some(7)),
        ("/tree/copy/put", Some(7)),
        ("/plain", Some(9)),
        ("/plain/put", None),
        ("/plain/copy", None),
    ] {
        let json = succeed(pext4(["stat", "--json"]).arg(&place.image).arg(path));
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["project"].as_u64(), number, "{path}");
    }
}
