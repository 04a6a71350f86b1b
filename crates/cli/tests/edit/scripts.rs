//! Scripts, and edits that are repeated.

use std::fs;

use serde_json::Value;

use crate::common::{Place, fail, succeed};
use crate::images::{image, on, stat, with_input};

#[test]
fn a_script_is_applied_as_a_whole_or_not() {
    let place = image("16M");
    let script = place.point.join("script");
    let before = fs::read(&place.image).expect("readable");
    let good = "# a comment\n\nmkdir -p '/with blank/x'\nln -s \"a b\" /with\\ blank/l # end\n";
    for (bad, says) in [
        ("rm /nothing", ":5: /nothing: no such file"),
        ("frobnicate /x", ":5: unrecognized subcommand"),
        ("rm 'open", ":5: a quote (') is not closed"),
        ("chmod 99 /with", ":5: invalid value '99'"),
    ] {
        fs::write(&script, format!("{good}{bad}\n")).expect("a fresh place");
        let status = if bad.starts_with("rm /") { 1 } else { 2 };
        let error = fail(on(&place, "edit", &["-f"]).arg(&script), status);
        assert!(error.contains(says), "{error} / {says}");
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
        (&2.into(), &"transaction".into())
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
