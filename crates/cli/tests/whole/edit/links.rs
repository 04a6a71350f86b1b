//! A link that would replace the file to which it leads, and names of files with a slash behind.

use super::images::{cat, image, on, stat};
use crate::common::{fail, succeed, with_input};

/// As `ln` and `rm` of coreutils 9 do.
#[test]
fn a_file_is_not_replaced_by_a_link_to_itself() {
    let place = image("16M");
    succeed(&mut on(&place, "mkdir", &["-p", "/d/e", "/other"]));
    succeed(&mut on(&place, "ln", &["-s", "d", "/way"]));
    succeed(&mut on(&place, "ln", &["-s", "/d/e/g", "/leads"]));
    for path in ["/a", "/d/e/g", "/other/a"] {
        let out = with_input(&mut on(&place, "put", &["-", path]), path.as_bytes());
        assert!(out.status.success());
    }
    for arguments in [
        &["-s", "-f", "/a", "/a"][..],
        &["-s", "-f", "a", "/a"],
        &["-s", "-f", "a", "a"],
        &["-s", "-f", "../a", "/"],
        &["-s", "-f", "a", "/other/a"],
        &["-s", "-f", "/d/e/g", "/d/e"],
        &["-s", "-f", "d/e/g", "/d/e"],
        &["-s", "-f", "g", "/d/e"],
        &["-s", "-f", "/way/e/g", "/d/e"],
        &["-s", "-f", "/d/e/g", "/way/e/g"],
        &["-s", "-f", "/leads", "/d/e/g"],
        &["-s", "-f", "-T", "/a", "/a"],
        &["-f", "/a", "/a"],
        &["-f", "/d/e/g", "/way/e"],
    ] {
        let told = fail(&mut on(&place, "ln", arguments), 1);
        assert!(told.contains("are the same file"), "{arguments:?}: {told}");
    }
    for path in ["/a", "/d/e/g", "/other/a"] {
        assert_eq!(cat(&place, path), path);
    }
    // What keeps another name is not lost.
    succeed(&mut on(&place, "ln", &["/a", "/b"]));
    fail(&mut on(&place, "ln", &["-f", "/a", "/a"]), 1);
    succeed(&mut on(&place, "ln", &["-f", "/a", "/b"]));
    assert_eq!(stat(&place, "/a")["links"], 2);
    succeed(&mut on(&place, "ln", &["-s", "-f", "/a", "/b"]));
    assert_eq!(cat(&place, "/b"), "/a");
    // A link is replaced, also by one that leads nowhere.
    succeed(&mut on(&place, "ln", &["-s", "-f", "/d/e/g", "/leads"]));
    assert_eq!(cat(&place, "/leads"), "/d/e/g");
    place.check();
}

#[test]
fn rm_by_force_leaves_a_file_with_a_slash_behind_its_name() {
    let place = image("16M");
    succeed(&mut on(&place, "mkdir", &["/folder"]));
    succeed(&mut on(&place, "touch", &["/file"]));
    for (target, path) in [
        ("file", "/to-file"),
        ("folder", "/to-folder"),
        ("x", "/to-x"),
    ] {
        succeed(&mut on(&place, "ln", &["-s", target, path]));
    }
    for path in ["/file/", "/to-file/", "/to-folder/", "/to-x/"] {
        succeed(&mut on(&place, "rm", &["-r", "-f", path]));
        fail(&mut on(&place, "rm", &["-r", path]), 1);
        succeed(&mut on(&place, "stat", &[path.trim_end_matches('/')]));
    }
    succeed(&mut on(&place, "rm", &["-r", "-f", "/folder/"]));
    fail(&mut on(&place, "stat", &["/folder"]), 1);
}
