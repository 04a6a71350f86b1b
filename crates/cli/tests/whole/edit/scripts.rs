//! Scripts, and edits that are repeated.

use std::fs;

use serde_json::Value;

use super::images::{cat, image, on, stat};
use crate::common::{Place, fail, succeed, with_input};

#[test]
fn a_script_is_applied_as_a_whole_or_not() {
    let place = image("16M");
    let script = place.point.join("script");
    let before = fs::read(&place.image).expect("readable");
    let good = "# a comment\n\nmkdir -p '/with blank/x'\nln -s \"a b\" /with\\ blank/l # end\n";
    for (bad, says) in [
        ("rm /nothing", ":/nothing: no such file"),
        ("frobnicate /x", ":5: unrecognized subcommand"),
        ("rm 'open", ":5: a quote (') is not closed"),
        ("chmod 99 /with", ":5: invalid value '99'"),
    ] {
        fs::write(&script, format!("{good}{bad}\n")).expect("a fresh place");
        let status = if bad.starts_with("rm /") { 1 } else { 2 };
        let error = fail(on(&place, "edit", &["-f"]).arg(&script), status);
        let place_and_says = error.contains(":5: ") && error.contains(says);
        assert!(place_and_says, "{error} / {says}");
        assert!(fs::read(&place.image).expect("readable") == before, "{bad}");
    }
    let output = with_input(
        &mut on(&place, "edit", &["--json", "-f", "-"]),
        good.as_bytes(),
    );
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(
        (&report["changes"], &report["way"]),
        (&3.into(), &"transaction".into())
    );
    place.check();
    let listed = succeed(&mut on(&place, "ls", &["/with blank"]));
    assert!(listed.contains("l -> a b"), "{listed}");
}

#[test]
fn the_same_edit_gives_the_same_bytes() {
    let first = image("16M");
    let second = Place::empty();
    fs::copy(&first.image, &second.image).expect("there is room");
    for (way, number) in [("journal", "1"), ("clone", "2")] {
        for place in [&first, &second] {
            let script =
                format!("mkdir /d{number}\nln -s x /d{number}/l\ncp -r /d{number} /e{number}\n");
            let mut command = on(place, "edit", &["-q", "--by", way, "-f", "-"]);
            command.env("SOURCE_DATE_EPOCH", "1700000000");
            let output = with_input(&mut command, script.as_bytes());
            assert!(output.status.success(), "{output:?}");
        }
        let same =
            fs::read(&first.image).expect("there") == fs::read(&second.image).expect("there");
        assert!(same, "{way}");
    }
    assert_eq!(
        stat(&first, "/d1")["changed"],
        "2023-11-14T22:13:20.000000000Z"
    );
    first.check();
    let error = fail(
        on(&first, "touch", &["/x"]).env("SOURCE_DATE_EPOCH", "soon"),
        2,
    );
    assert!(error.contains("SOURCE_DATE_EPOCH"), "{error}");
}

/// What is read to its end has nothing for a second reader.
#[test]
fn standard_input_has_one_reader() {
    let place = image("16M");
    let script = place.point.join("script");
    let before = fs::read(&place.image).expect("readable");
    let from_file = |text: &str| {
        fs::write(&script, text).expect("a fresh place");
        with_input(on(&place, "edit", &["-f"]).arg(&script), b"input")
    };
    let from_input = |text: &str| {
        let mut command = on(&place, "edit", &["-f", "-"]);
        with_input(command.current_dir(&place.point), text.as_bytes())
    };
    let refused = |output: std::process::Output, says: &str| {
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(told.contains(says), "{told}");
        assert!(fs::read(&place.image).expect("readable") == before);
    };
    let first = format!("{}:1", script.display());
    let says = format!(":2: standard input is read to its end by {first} already");
    refused(from_file("put - /a\nput -m 600 - /b\n"), &says);
    refused(
        from_input("put - /a\n"),
        "-:1: standard input is the script itself",
    );
    // These do not read it.
    fs::write(place.point.join("x"), "content").expect("a fresh place");
    let done = from_input("put ./x -\nput x /y --mode=g+w -T\n");
    assert!(done.status.success(), "{done:?}");
    assert_eq!(cat(&place, "/-"), "content");
    let done = from_file("rm -r /- /y\nput - /a\n");
    assert!(done.status.success(), "{done:?}");
    assert_eq!(cat(&place, "/a"), "input");
    place.check();
}

#[test]
fn changes_are_objects_that_were_changed() {
    let place = image("16M");
    let host = place.point.join("tree");
    fs::create_dir_all(host.join("sub")).expect("a fresh place");
    fs::write(host.join("sub/file"), "x").expect("a fresh place");
    let host = host.to_str().expect("text").to_owned();
    let changes = |verb: &str, arguments: &[&str]| {
        let mut words = vec!["--json"];
        words.extend(arguments);
        let report = succeed(&mut on(&place, verb, &words));
        let report: Value = serde_json::from_str(&report).expect("JSON");
        let way = report["way"].as_str().expect("text").to_owned();
        (
            report["changes"].as_u64().expect("a number"),
            way == "nothing",
        )
    };
    for (verb, arguments, number) in [
        ("rm", &["-f", "/missing"][..], 0),
        ("mkdir", &["-p", "/a/b/c"], 3),
        ("mkdir", &["-p", "/a/b/c"], 0),
        ("put", &[&host, "/a"], 3),
        ("put", &["-T", &host, "/a/tree"], 3),
        ("touch", &["/new", "/new2"], 2),
        ("touch", &["/new", "/new3"], 2),
        ("chmod", &["-R", "go=", "/a"], 6),
        ("setxattr", &["/new", "user.x", "1"], 1),
        ("setxattr", &["/new", "user.x", "-x"], 1),
        ("mv", &["/new", "/moved"], 1),
        ("mv", &["-n", "/moved", "/new2", "-T"], 0),
        ("ln", &["/moved", "/hard"], 1),
        ("tune", &["-L", "label"], 1),
        ("tune", &["-L", "label"], 0),
        ("rm", &["-r", "/a"], 6),
    ] {
        let counted = changes(verb, arguments);
        assert_eq!(counted, (number, number == 0), "{verb} {arguments:?}");
    }
    place.check();
}

#[test]
fn a_script_that_is_none_is_shown_without_its_control_characters() {
    let place = image("16M");
    let binary = b"\x1b]0;title\x07\x7fELF\xff\x02 x\n";
    let output = with_input(&mut on(&place, "edit", &["-f", "-"]), binary);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let told = String::from_utf8(output.stderr).expect("text");
    let says = r"-:1: `\u{1b}]0;title\u{7}\u{7f}ELF\xff\u{2}` is no command";
    assert!(told.contains(says), "{told}");
    let line = told.strip_suffix('\n').expect("a line");
    assert!(!line.contains(char::is_control), "{line:?}");
    // The mark before a text in UTF-8 is no part of it.
    let marked = b"\xef\xbb\xbfmkdir /new\n";
    let output = with_input(&mut on(&place, "edit", &["-q", "-f", "-"]), marked);
    assert!(output.status.success(), "{output:?}");
    succeed(&mut on(&place, "stat", &["/new"]));
}
