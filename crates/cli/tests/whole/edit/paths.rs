//! Where the editing commands put what they make: the image itself among the files of the host,
//! slashes behind names, links that lead nowhere, and `-`.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::Value;

use super::images::{cat, image, on};
use crate::common::{Place, fail, run, succeed};

fn names(place: &Place, directory: &str) -> Vec<String> {
    let listing = succeed(&mut on(place, "ls", &["--json", directory]));
    let listing: Value = serde_json::from_str(&listing).expect("JSON");
    let entries = listing.as_array().expect("a list").iter();
    let names = entries.map(|entry| entry["name"].as_str().expect("a text").to_owned());
    let mut names: Vec<String> = names.filter(|name| name != "lost+found").collect();
    names.sort();
    names
}

fn text(path: &Path) -> &str {
    path.to_str().expect("text")
}

/// Under each of its names, and also if the edit works on a clone beside it.
#[test]
fn the_edited_image_is_left_out_of_a_tree() {
    for way in ["journal", "clone"] {
        let place = image("16M");
        let folder = place.image.parent().expect("it lies in a folder");
        fs::write(place.point.join("file"), b"content").expect("a fresh place");
        fs::hard_link(&place.image, place.point.join("alias")).expect("it may have two names");
        symlink(&place.image, place.point.join("link")).expect("a fresh place");
        let put = ["-T", text(folder), "/", "--json", "--by", way];
        let output = run(&mut on(&place, "put", &put));
        assert!(output.status.success(), "{output:?}");
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let notes = report["notes"].as_array().expect("a list");
        assert_eq!(notes.len(), if way == "clone" { 3 } else { 2 }, "{report}");
        for note in notes {
            let note = note.as_str().expect("a text");
            assert!(note.starts_with(text(folder)), "{note}");
            assert!(note.ends_with(" was left out: it is the image that is being edited"));
        }
        place.check();
        assert_eq!(names(&place, "/"), ["mount point"], "{way}");
        assert_eq!(names(&place, "/mount point"), ["file", "link"], "{way}");
    }
    let place = image("16M");
    let folder = place.image.parent().expect("it lies in a folder");
    let output = run(&mut on(&place, "put", &[text(folder), "/tree"]));
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.success() && told.contains("was left out"),
        "{told}"
    );
}

#[test]
fn the_edited_image_is_refused_as_the_file_to_put() {
    let place = image("16M");
    let before = fs::read(&place.image).expect("readable");
    let alias = place.point.join("alias");
    fs::hard_link(&place.image, &alias).expect("it may have two names");
    for name in [&place.image, &alias] {
        let told = fail(on(&place, "put", &[]).arg(name).arg("/x"), 1);
        assert!(told.contains("cannot be put into itself"), "{told}");
        assert!(told.contains(text(name)), "{told}");
    }
    assert!(fs::read(&place.image).expect("readable") == before);
    // A link to it is copied as a link.
    let link = place.point.join("link");
    symlink(&place.image, &link).expect("a fresh place");
    succeed(on(&place, "put", &[]).arg(&link).arg("/link"));
    place.check();
}

/// As with coreutils, if the last name alone is missing and a directory comes there.
#[test]
fn a_new_directory_may_be_named_with_a_slash() {
    let place = image("16M");
    let other = image("16M");
    let tree = place.point.join("tree");
    fs::create_dir(&tree).expect("a fresh place");
    fs::write(tree.join("file"), b"content").expect("a fresh place");
    let (tree, file) = (text(&tree), tree.join("file"));
    succeed(&mut on(&place, "put", &[tree, "/put/"]));
    succeed(&mut on(&place, "cp", &["-r", "/put", "/copied//"]));
    succeed(&mut on(&place, "mv", &["/copied", "/moved/"]));
    let from = ["-r", "--from", text(&place.image), "/put", "/between/"];
    succeed(&mut on(&other, "cp", &from));
    place.check();
    other.check();
    assert_eq!(names(&place, "/"), ["moved", "put"]);
    for (place, directory) in [(&place, "/put"), (&place, "/moved"), (&other, "/between")] {
        assert_eq!(names(place, directory), ["file"], "{directory}");
    }
    // A second time the directory is there.
    succeed(&mut on(&place, "put", &[tree, "/put/"]));
    assert_eq!(names(&place, "/put"), ["file", "tree"]);
    for (verb, arguments) in [
        ("put", &[text(&file), "/new/"][..]),
        ("put", &[tree, "/not/there/"]),
        ("put", &[tree, "/put/file/"]),
        ("cp", &["/put/file", "/new/"]),
        ("cp", &["-r", "/put", "/not/there/"]),
        ("put", &["-T", text(&file), "/new/"]),
        ("cp", &["-T", "/put/file", "/new/"]),
        ("mv", &["-T", "/put/file", "/new/"]),
        ("mv", &["/put/file", "/new/"]),
        ("mv", &["/put", "/not/there/"]),
        ("ln", &["-s", "/put", "/new/"]),
    ] {
        let told = fail(&mut on(&place, verb, arguments), 1);
        let path = arguments.last().expect("there are some");
        let parent = "/not: no such file";
        assert!(told.contains(path) || told.contains(parent), "{told}");
    }
    assert_eq!(names(&place, "/"), ["moved", "put"]);
    place.check();
}

#[test]
fn a_copy_to_the_host_may_be_named_with_a_slash_if_it_is_a_tree() {
    let place = image("16M");
    succeed(&mut on(&place, "mkdir", &["-p", "/tree/sub"]));
    succeed(&mut on(&place, "touch", &["/file"]));
    let at = |name: &str| format!("{}/{name}", text(&place.point));
    succeed(&mut on(&place, "get", &["/tree", &at("new/")]));
    assert!(Path::new(&at("new/sub")).is_dir());
    // The directory is there now.
    succeed(&mut on(&place, "get", &["/tree", &at("new/")]));
    assert!(Path::new(&at("new/tree/sub")).is_dir());
    symlink(at("nowhere"), at("dangling")).expect("a fresh place");
    for (path, destination) in [
        ("/file", "other/"),
        ("/tree", "not/there/"),
        ("/tree", "dangling/"),
    ] {
        let told = fail(&mut on(&place, "get", &[path, &at(destination)]), 1);
        let named = at(destination.trim_end_matches("/there/"));
        assert!(told.contains(&named), "{told}");
    }
    let mut left: Vec<_> = fs::read_dir(&place.point)
        .expect("there")
        .map(|entry| entry.expect("there").file_name())
        .collect();
    left.sort();
    assert_eq!(left, ["dangling", "new"]);
}

#[test]
fn a_link_that_leads_nowhere_is_replaced() {
    let place = image("16M");
    let host = place.point.join("file");
    fs::write(&host, b"content").expect("a fresh place");
    succeed(on(&place, "put", &[]).arg(&host).arg("/file"));
    let links = [("/loop", "loop"), ("/through", "file/x"), ("/lost", "gone")];
    for (verb, arguments) in [
        ("put", &["-q", text(&host)][..]),
        ("cp", &["/file"]),
        ("mv", &["/moved"]),
        ("ln", &["-f", "/file"]),
        ("ln", &["-s", "-f", "/file"]),
    ] {
        for (link, target) in links {
            succeed(&mut on(&place, "rm", &["-f", link]));
            succeed(&mut on(&place, "ln", &["-s", "-T", target, link]));
            if verb == "mv" {
                succeed(&mut on(&place, "cp", &["/file", "/moved"]));
            }
            succeed(on(&place, verb, arguments).arg(link));
            assert_eq!(cat(&place, link), "content", "{verb} {link}");
        }
        place.check();
    }
    // In the middle of a path they are errors, and so they are with a slash.
    for (link, target) in links {
        succeed(&mut on(&place, "rm", &["-f", link]));
        succeed(&mut on(&place, "ln", &["-s", "-T", target, link]));
        for path in [format!("{link}/x"), format!("{link}/")] {
            let told = fail(on(&place, "put", &[text(&host)]).arg(&path), 1);
            assert!(told.contains(link), "{told}");
        }
    }
}

#[test]
fn a_copy_does_not_go_to_a_file_called_like_standard_output() {
    let place = image("16M");
    succeed(&mut on(&place, "touch", &["/file"]));
    let in_folder = |destination| {
        let mut get = on(&place, "get", &["/file", destination]);
        get.current_dir(&place.point);
        get
    };
    let told = fail(&mut in_folder("-"), 2);
    assert!(
        told.contains("pext4 cat") && told.contains("pext4 export"),
        "{told}"
    );
    assert!(!place.point.join("-").exists());
    succeed(&mut in_folder("./-"));
    assert!(place.point.join("-").is_file());
}

#[test]
fn several_sources_go_into_a_directory() {
    let place = image("16M");
    let [one, two] = ["one", "two"].map(|name| {
        let path = place.point.join(name);
        fs::write(&path, name).expect("a fresh place");
        text(&path).to_owned()
    });
    succeed(&mut on(&place, "mkdir", &["/a", "/b", "/c"]));
    succeed(&mut on(&place, "put", &[&one, &two, "/a"]));
    assert_eq!(names(&place, "/a"), ["one", "two"]);
    succeed(&mut on(&place, "cp", &["/a/one", "/a/two", "/b/"]));
    succeed(&mut on(&place, "mv", &["/a/one", "/a/two", "/c"]));
    assert_eq!(names(&place, "/a"), [""; 0]);
    let other = place.image.with_extension("copy");
    fs::copy(&place.image, &other).expect("a fresh place");
    let from = ["--from", text(&other), "/b/one", "/c/two", "/a"];
    succeed(&mut on(&place, "cp", &from));
    assert_eq!(names(&place, "/a"), ["one", "two"]);
    for (verb, arguments, told) in [
        (
            "put",
            [&*one, &two, "/new"],
            "/new: is no directory; several files go into one that is there",
        ),
        (
            "mv",
            ["/c/one", "/c/two", "/b/one"],
            "/b/one: is no directory; several files",
        ),
        ("cp", ["-T", "/c/one", "/c/two"], ""),
        ("put", [&*one, "-", "/b"], "standard input has no name"),
    ] {
        let output = run(&mut on(&place, verb, &arguments));
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.success(), told.is_empty(), "{verb}: {error}");
        assert!(error.contains(told), "{verb}: {error}");
    }
    let error = fail(&mut on(&place, "mv", &["-T", "/c/one", "/c/two", "/b"]), 2);
    assert!(
        error.contains("several files go into a directory"),
        "{error}"
    );
    assert_eq!(names(&place, "/c"), ["one", "two"], "nothing has changed");
    place.check();
}

/// A directory whose path ends in `.` or `..` stands for what is in it, as with `cp -r`.
#[test]
fn a_source_that_ends_in_a_dot_is_what_is_in_it() {
    let place = image("16M");
    let tree = place.point.join("tree");
    fs::create_dir_all(tree.join("below")).expect("a fresh place");
    fs::write(tree.join("file"), b"content").expect("a fresh place");
    symlink("tree", place.point.join("link")).expect("a fresh place");
    succeed(&mut on(&place, "mkdir", &["/into", "/above", "/two"]));
    succeed(&mut on(&place, "ln", &["-s", "into", "/led"]));
    let put = |from: &str, to: &str| on(&place, "put", &[text(&place.point.join(from)), to]);
    for (from, to) in [
        ("tree/.", "/into"),
        ("tree/./", "/led/"),
        ("tree/.", "/new"),
        ("tree/below/..", "/above"),
        ("link/.", "/linked"),
    ] {
        succeed(&mut put(from, to));
        assert_eq!(names(&place, to), ["below", "file"], "{from}");
    }
    succeed(on(&place, "put", &[".", "/"]).current_dir(&tree));
    let all = [
        "above", "below", "file", "into", "led", "linked", "new", "two",
    ];
    assert_eq!(names(&place, "/"), all);
    // Without the dot it is the directory itself.
    succeed(&mut put("tree/", "/into"));
    assert_eq!(names(&place, "/into"), ["below", "file", "tree"]);
    succeed(&mut put("tree/below/.", "/two"));
    assert!(names(&place, "/two").is_empty());
    let told = fail(&mut put("tree/file/.", "/into"), 1);
    assert!(told.contains("Not a directory"), "{told}");
    for (from, to) in [
        ("/above/.", "/two"),
        ("above/.", "/copied"),
        ("/above/below/..", "/two"),
    ] {
        succeed(&mut on(&place, "cp", &["-r", from, to]));
        assert_eq!(names(&place, to), ["below", "file"], "{from}");
    }
    let told = fail(&mut on(&place, "cp", &["-r", "/above/.", "/above"]), 1);
    assert!(told.contains("cannot be copied into itself"), "{told}");
    let told = fail(&mut on(&place, "cp", &["/above/.", "/two"]), 1);
    assert!(told.contains("-r copies it"), "{told}");
    // Two files of one name are told, as without the dot.
    let told = fail(
        &mut on(&place, "cp", &["-r", "/new/.", "/two/.", "/led"]),
        1,
    );
    assert!(told.contains("the same"), "{told}");
    place.check();
    let other = image("16M");
    let from = ["--from", text(&place.image), "-r", "/new/.", "/"];
    succeed(&mut on(&other, "cp", &from));
    assert_eq!(names(&other, "/"), ["below", "file"]);
    other.check();
    let got = place.point.join("got");
    succeed(on(&place, "get", &["/new/."]).arg(&got));
    assert!(got.join("file").is_file());
}

/// `put` replaces no link by a directory, and a tar follows it.
#[test]
fn a_directory_does_not_replace_a_link_to_one() {
    let place = image("16M");
    let module = place.point.join("overlay/lib/modules/one");
    fs::create_dir_all(module.parent().expect("it lies in a folder")).expect("a fresh place");
    fs::write(&module, b"module").expect("a fresh place");
    succeed(&mut on(&place, "mkdir", &["-p", "/usr/lib"]));
    succeed(&mut on(&place, "ln", &["-s", "usr/lib", "/lib"]));
    let overlay = place.point.join("overlay");
    let told = fail(on(&place, "put", &["-T"]).arg(&overlay).arg("/"), 1);
    assert!(told.contains("/lib: a symbolic link is here"), "{told}");
    assert!(told.contains("`pext4 edit --tar`"), "{told}");
    succeed(&mut on(&place, "rm", &["/lib"]));
    succeed(&mut on(&place, "touch", &["/lib"]));
    let told = fail(on(&place, "put", &["-T"]).arg(&overlay).arg("/"), 1);
    assert!(
        told.contains("/lib: here is something that is no directory"),
        "{told}"
    );
    place.check();
}

/// Where one command has paths of two kinds, those of an image are stated with the image.
#[test]
fn errors_say_in_which_image_a_path_is() {
    let place = image("16M");
    let other = image("16M");
    let host = place.point.join("file");
    fs::write(&host, b"content").expect("a fresh place");
    let (this, that, host) = (text(&place.image), text(&other.image), text(&host));
    let script = place.point.join("script");
    fs::write(&script, format!("put '{host}' nowhere/x\n")).expect("a fresh place");
    let missing = "no such file or directory";
    for (verb, arguments, says) in [
        (
            "put",
            &[host, "/nowhere/x"][..],
            format!("{this}:/nowhere: {missing}"),
        ),
        (
            "put",
            &["/nowhere", "/x"],
            "/nowhere: cannot look at it: ".to_owned(),
        ),
        (
            "cp",
            &["--from", that, "/a", "/b"],
            format!("{that}:/a: {missing}"),
        ),
        ("cp", &["/a", "/b"], format!("{this}:/a: {missing}")),
        ("get", &["/a", host], format!("{this}:/a: {missing}")),
        ("export", &["/a"], format!("{this}:/a: {missing}")),
        (
            "edit",
            &["-f", text(&script)],
            format!("{}:1: {this}:/nowhere: {missing}", text(&script)),
        ),
    ] {
        let told = fail(&mut on(&place, verb, arguments), 1);
        assert!(
            told.starts_with(&format!("pext4: {says}")),
            "{verb}: {told}"
        );
    }
    succeed(&mut on(&other, "mkdir", &["/tree"]));
    let told = fail(&mut on(&place, "cp", &["--from", that, "/tree", "/b"]), 1);
    assert_eq!(
        told,
        format!("pext4: {that}:/tree: is a directory; -r copies it\n")
    );
    let told = fail(
        &mut on(&place, "cp", &["--from", that, "-r", "/tree", "/b/c"]),
        1,
    );
    assert_eq!(told, format!("pext4: {this}:/b: {missing}\n"));
}
