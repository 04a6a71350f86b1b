//! The verbs, and what they refuse.

use std::fs;
use std::process::Command;

use super::images::{cat, image, on, stat};
use crate::common::{Place, fail, has, pext4, run, succeed, with_input};

#[test]
fn every_verb_is_a_command() {
    let place = image("16M");
    let host = place.point.join("file");
    fs::write(&host, b"from the host\n").expect("a fresh place");
    let host = host.to_str().expect("text").to_owned();
    let told = succeed(&mut on(&place, "put", &[&host, "/"]));
    assert!(told.starts_with("one transaction of "), "{told}");
    for (verb, arguments) in [
        ("mkdir", &["-p", "-m", "0750", "/a/b/c"][..]),
        (
            "put",
            &[&host, "/a/renamed", "--owner", "7:8", "--mode", "0600"],
        ),
        ("mv", &["/file", "/a/b"]),
        ("ln", &["/a/b/file", "/hard"]),
        ("ln", &["-s", "a/b/file", "/soft"]),
        ("chmod", &["g-x,o+r", "/a/b/c"]),
        ("chown", &["1000:1001", "-R", "/a/b"]),
        ("touch", &["-d", "2001-09-09T01:46:40.5Z", "/hard"]),
        ("setxattr", &["/hard", "user.note", "0x00ff"]),
        ("setxattr", &["/hard", "user.note", "-x"]),
        ("mknod", &["/null", "c", "1", "3"]),
        ("cp", &["-r", "/a", "/copy"]),
        ("rm", &["-r", "/a/b"]),
    ] {
        succeed(&mut on(&place, verb, arguments));
        place.check();
    }
    assert_eq!(cat(&place, "/copy/b/file"), "from the host\n");
    assert_eq!(cat(&place, "/hard"), "from the host\n");
    let hard = stat(&place, "/hard");
    assert_eq!((&hard["uid"], &hard["gid"]), (&1000.into(), &1001.into()));
    assert_eq!(hard["modified"], "2001-09-09T01:46:40.500000000Z");
    let renamed = stat(&place, "/a/renamed");
    assert_eq!(
        (&renamed["mode"], &renamed["uid"]),
        (&"0600".into(), &7.into())
    );
    assert_eq!(stat(&place, "/copy/b/c")["mode"], "0744");
    let out = with_input(&mut on(&place, "put", &["-", "/from/nowhere"]), b"x");
    assert!(String::from_utf8_lossy(&out.stderr).contains(":/from: no such file"));
    let out = with_input(&mut on(&place, "put", &["-", "/input", "-q"]), b"piped");
    assert!(out.status.success() && out.stdout.is_empty());
    assert_eq!(cat(&place, "/input"), "piped");
    let got = place.point.join("got");
    succeed(on(&place, "get", &["/copy"]).arg(&got));
    assert_eq!(
        fs::read(got.join("b/file")).expect("there"),
        b"from the host\n"
    );
}

/// As chown(2) does, for root too.
#[test]
fn who_owns_a_file_anew_gets_no_rights_of_the_old_owner() {
    let place = image("16M");
    let host = place.point.join("file");
    fs::write(&host, b"a program").expect("a fresh place");
    let host = host.to_str().expect("text").to_owned();
    for (before, after) in [("6755", "755"), ("6745", "2745"), ("1644", "1644")] {
        succeed(&mut on(&place, "put", &[&host, "/file"]));
        succeed(&mut on(&place, "chmod", &[before, "/file"]));
        let capability = [
            "/file",
            "security.capability",
            "0x0100000200040000000000000000000000000000",
        ];
        succeed(&mut on(&place, "setxattr", &capability));
        succeed(&mut on(&place, "chown", &["1000:1000", "/file"]));
        let stat = stat(&place, "/file");
        let mode = stat["mode"].as_str().expect("text");
        assert_eq!(mode.trim_start_matches('0'), after, "{before}");
        assert_eq!(stat["xattrs"], serde_json::json!([]), "{before}");
    }
    succeed(&mut on(&place, "mkdir", &["/folder"]));
    succeed(&mut on(&place, "chmod", &["2755", "/folder"]));
    succeed(&mut on(&place, "chown", &["1000:1000", "/folder"]));
    assert_eq!(stat(&place, "/folder")["mode"], "2755");
    place.check();
}

#[test]
fn what_is_refused_is_named() {
    let place = image("16M");
    with_input(&mut on(&place, "put", &["-", "/file"]), b"text");
    let told = fail(&mut on(&place, "chown", &["1000:", "/file"]), 2);
    assert!(told.contains("write USER:GROUP"), "{told}");
    assert_eq!(stat(&place, "/file")["uid"], 0, "it is as it was");
    let folder = place.image.parent().expect("it lies in one");
    let told = fail(
        pext4(["edit"]).arg(&place.image).arg("--tar").arg(folder),
        1,
    );
    let named = format!("{}: cannot read the tar", folder.display());
    assert!(told.contains(&named), "{told}");
    let script = folder.join("script");
    fs::write(&script, "put ./x\n").expect("room");
    let told = fail(pext4(["edit"]).arg(&place.image).arg("-f").arg(&script), 2);
    assert!(told.contains("script:1: ") && told.contains('<'), "{told}");
}

/// An empty path, as from a variable that a script has not set, is not the root.
#[test]
fn an_empty_path_is_refused_by_every_verb() {
    let place = image("16M");
    let host = place.point.join("file");
    fs::write(&host, b"content").expect("a fresh place");
    let host = host.to_str().expect("text").to_owned();
    succeed(&mut on(&place, "put", &[&host, "/file"]));
    let before = fs::read(&place.image).expect("an image");
    for (verb, arguments) in [
        ("chown", &["-R", "77:77", ""][..]),
        ("chown", &["77:77", ""]),
        ("chmod", &["-R", "0", ""]),
        ("put", &[&host, ""]),
        ("put", &["-", ""]),
        ("rm", &["-rf", ""]),
        ("mv", &["", "/x"]),
        ("mv", &["/file", ""]),
        ("mkdir", &[""]),
        ("mkdir", &["-p", ""]),
        ("ln", &["", "/x"]),
        ("ln", &["-s", "x", ""]),
        ("mknod", &["", "p"]),
        ("touch", &[""]),
        ("setxattr", &["", "user.a", "b"]),
        ("cp", &["-r", "", "/x"]),
        ("cp", &["/file", ""]),
        ("ls", &[""]),
        ("tree", &[""]),
        ("stat", &[""]),
        ("cat", &[""]),
        ("export", &[""]),
        ("get", &["", "/nowhere"]),
    ] {
        let told = fail(&mut on(&place, verb, arguments), 1);
        assert!(told.contains("an empty path"), "{verb}: {told}");
    }
    assert!(fs::read(&place.image).expect("an image") == before);
    // A name without a slash lies in the root all the same.
    succeed(&mut on(&place, "mv", &["file", "other"]));
    assert_eq!(cat(&place, "/other"), "content");
}

/// A list of names may claim any size, all of it a hole.
#[test]
fn names_of_owners_are_not_looked_up_in_a_file_without_end() {
    let place = image("16M");
    let host = place.point.join("passwd");
    let file = fs::File::create(&host).expect("a fresh place");
    file.set_len(3 << 30).expect("a hole");
    succeed(&mut on(&place, "mkdir", &["/etc"]));
    succeed(on(&place, "put", &[]).arg(&host).arg("/etc/passwd"));
    let told = fail(&mut on(&place, "chown", &["somebody", "/etc"]), 1);
    assert!(
        told.contains("/etc/passwd in the image has 3221225472 bytes"),
        "{told}"
    );
    succeed(&mut on(&place, "chown", &["7", "/etc"]));
    succeed(&mut on(&place, "chown", &["+7:+8", "/etc"]));
}

/// As for `build --owner`.
#[test]
fn root_is_known_without_a_list_of_names() {
    let place = image("16M");
    succeed(&mut on(&place, "mkdir", &["/etc"]));
    let owner = || {
        let stat = super::images::stat(&place, "/etc");
        (stat["uid"].clone(), stat["gid"].clone())
    };
    for owner_text in ["root:root", "root:"] {
        succeed(&mut on(&place, "chown", &["7:8", "/etc"]));
        succeed(&mut on(&place, "chown", &[owner_text, "/etc"]));
        assert_eq!(owner(), (0.into(), 0.into()), "{owner_text}");
    }
    let told = fail(&mut on(&place, "chown", &["app", "/etc"]), 1);
    assert!(told.contains("the image has no /etc/passwd"), "{told}");
    let host = place.point.join("passwd");
    fs::write(&host, "app:x:100:101::/:\n").expect("a fresh place");
    succeed(on(&place, "put", &[]).arg(&host).arg("/etc/passwd"));
    succeed(&mut on(&place, "chown", &["app:", "/etc"]));
    assert_eq!(owner(), (100.into(), 101.into()));
    succeed(&mut on(&place, "chown", &["root", "/etc"]));
    assert_eq!(owner(), (0.into(), 101.into()), "the list lacks it");
    // A list that says otherwise is right.
    fs::write(&host, "root:x:1:2::/:\n").expect("a fresh place");
    succeed(on(&place, "put", &[]).arg(&host).arg("/etc/passwd"));
    succeed(&mut on(&place, "chown", &["root:", "/etc"]));
    assert_eq!(owner(), (1.into(), 2.into()));
}

#[test]
fn a_full_image_says_what_was_free_and_what_helps() {
    let place = image("8M");
    let host = place.point.join("large");
    fs::write(&host, vec![7; 16 << 20]).expect("a fresh place");
    let told = fail(on(&place, "put", &[]).arg(&host).arg("/large"), 1);
    assert!(
        told.contains("/large: no space left on the volume; before"),
        "{told}"
    );
    assert!(
        told.contains(" MiB and ") && told.contains(" inodes were free"),
        "{told}"
    );
    let advice = format!("`pext4 resize {} +SIZE`", place.image.display());
    assert!(told.contains(&advice), "{told}");
    place.check();
}

#[test]
fn an_image_without_inodes_says_how_many_there_were() {
    let place = image("8M");
    let script: String = (0..4000)
        .map(|number| format!("touch /{number}\n"))
        .collect();
    let ended = with_input(&mut on(&place, "edit", &["-f", "-"]), script.as_bytes());
    let told = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(!ended.status.success(), "{told}");
    assert!(told.contains("no inode is free"), "{told}");
    assert!(told.contains(" inodes were free; `pext4 resize"), "{told}");
    place.check();
}

/// A resize refuses images with clusters, so nobody is sent to it.
#[test]
fn a_full_image_with_clusters_gets_no_advice_that_does_not_help() {
    if !has("mke2fs") {
        return;
    }
    let place = Place::empty();
    let mut mke2fs = Command::new("mke2fs");
    let features = ["-q", "-F", "-t", "ext4", "-O", "bigalloc", "-N", "64"];
    succeed(mke2fs.args(features).arg(&place.image).arg("16M"));
    let host = place.point.join("large");
    fs::write(&host, vec![7; 16 << 20]).expect("a fresh place");
    let script: String = (0..100)
        .map(|number| format!("touch /{number}\n"))
        .collect();
    let full = run(on(&place, "put", &[]).arg(&host).arg("/large"));
    let many = with_input(&mut on(&place, "edit", &["-f", "-"]), script.as_bytes());
    for (ended, says) in [(full, "no space left"), (many, "no inode is free")] {
        let told = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(!ended.status.success() && told.contains(says), "{told}");
        assert!(told.ends_with(" inodes were free\n"), "{told}");
    }
    place.check();
}

#[test]
fn what_makes_no_sense_says_why() {
    let place = image("16M");
    succeed(&mut on(&place, "mkdir", &["-p", "/q/deeper"]));
    succeed(&mut on(&place, "touch", &["/file"]));
    let long = format!("user.{}", "x".repeat(260));
    let link = place.point.join("link");
    std::os::unix::fs::symlink("x".repeat(1100), &link).expect("a fresh place");
    let long_link = link.to_str().expect("a path in UTF-8");
    for (verb, arguments, status, says) in [
        (
            "mv",
            &["/q", "/q/deeper"][..],
            1,
            "/q: it cannot go into itself, to /q/deeper/q",
        ),
        (
            "mv",
            &["/q", "/q/x"],
            1,
            "/q: it cannot go into itself, to /q/x",
        ),
        (
            "ln",
            &["-s", &"x".repeat(1024), "/l"],
            1,
            "/l: its target has 1024 bytes, and 1023 are the most in this image",
        ),
        (
            "put",
            &[long_link, "/l"],
            1,
            "/l: its target has 1100 bytes, and 1023 are the most in this image: it must fit a block of \
             1024 bytes",
        ),
        (
            "setxattr",
            &["/file", "foo", "bar"],
            2,
            "begins with user., trusted. or security.",
        ),
        (
            "setxattr",
            &["/file", "user.number", "0xg"],
            2,
            "the value is no hexadecimal",
        ),
        (
            "setxattr",
            &["/file", "-x", "user.none"],
            1,
            "/file: attribute user.none: ",
        ),
        (
            "setxattr",
            &["/file", "-x", "system.data"],
            2,
            "cannot be called `system.data`",
        ),
        (
            "put",
            &["/dev/null", "/n", "--mode", "+900"],
            2,
            "it is octal",
        ),
        ("mkdir", &["-m", "+900", "/n"], 2, "it is octal"),
        (
            "chown",
            &["99999999999", "/file"],
            2,
            "an id is at most 4294967294",
        ),
        ("ln", &["/q", "/second"], 1, "/q: is a directory"),
        (
            "setxattr",
            &["/file", &long, "bar"],
            2,
            "has at most 255 bytes",
        ),
        (
            "edit",
            &["-f", "script", "--into", "/q"],
            2,
            "cannot be used with",
        ),
    ] {
        let told = fail(&mut on(&place, verb, arguments), status);
        assert!(told.contains(says), "{verb}: {told}");
    }
    let told = fail(&mut on(&place, "tree", &["/file"]), 1);
    let named = format!("{}: /file: it is no directory", place.image.display());
    assert!(told.contains(&named), "{told}");
}

#[test]
fn moves_and_links_enter_no_directory_where_they_are_told_so() {
    let place = image("16M");
    let script =
        "mkdir /old\nmkdir /new\nmkdir /empty\nln -s /old /current\ntouch /file /old/kept\n";
    assert!(
        with_input(&mut on(&place, "edit", &["-f", "-"]), script.as_bytes())
            .status
            .success()
    );
    succeed(&mut on(
        &place,
        "ln",
        &["-s", "-f", "-n", "/new", "/current"],
    ));
    assert!(succeed(&mut on(&place, "stat", &["/current"])).contains("/new"));
    let names_in = |directory: &str| -> Vec<String> {
        let listing = succeed(&mut on(&place, "ls", &[directory]));
        let names = listing.lines().filter_map(|line| line.split_once(" UTC  "));
        names.map(|(_, name)| name.to_owned()).collect()
    };
    assert_eq!(names_in("/old"), ["kept"]);
    // A directory itself is entered by -n, and not by -T.
    succeed(&mut on(&place, "ln", &["-s", "-n", "/new", "/old"]));
    assert_eq!(names_in("/old"), ["kept", "new -> /new"]);
    for (verb, arguments, named) in [
        ("ln", &["-s", "-f", "-T", "/new", "/old"][..], "/old"),
        ("mv", &["-T", "/file", "/empty"], "/empty"),
        ("mv", &["-T", "/empty", "/old"], "/old"),
        ("mv", &["-T", "/file", "/new/file/"], "/new/file/"),
        ("mv", &["-T", "/file", "/"], "must end in a name"),
    ] {
        let told = fail(&mut on(&place, verb, arguments), 1);
        assert!(told.contains(named), "{told}");
    }
    succeed(&mut on(&place, "mv", &["-T", "/new", "/empty"]));
    let names = names_in("/");
    assert!(names.contains(&"empty".to_owned()) && !names.contains(&"new".to_owned()));
    // An existing file stays, also in a directory into which the file would be moved.
    succeed(&mut on(&place, "mv", &["-n", "/file", "/old/kept"]));
    succeed(&mut on(&place, "mv", &["-n", "/file", "/empty"]));
    assert_eq!(names_in("/empty"), ["file"]);
    place.check();
}

#[test]
fn rm_by_force_passes_over_what_cannot_be_there() {
    let place = image("16M");
    let host = place.point.join("file");
    fs::write(&host, b"content").expect("a fresh place");
    succeed(on(&place, "put", &[]).arg(&host).arg("/"));
    succeed(&mut on(&place, "rm", &["-f", "/missing", "/file/x"]));
    fail(&mut on(&place, "rm", &["/file/x"]), 1);
    assert_eq!(cat(&place, "/file"), "content");
}
