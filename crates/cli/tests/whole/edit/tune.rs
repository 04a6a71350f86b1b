//! `pext4 tune`, as a command and as a line of a script.

use serde_json::Value;

use super::images::{image, on};
use crate::common::{Place, fail, pext4, succeed, with_input};

fn info(place: &Place) -> Value {
    let text = succeed(pext4(["info", "--json"]).arg(&place.image));
    serde_json::from_str(&text).expect("JSON")
}

#[test]
fn the_superblock_is_tuned_by_a_command_and_by_a_script() {
    let place = image("64M");
    let uuid = "01234567-89ab-cdef-0123-456789abcdef";
    let told = succeed(&mut on(
        &place,
        "tune",
        &["-L", "tenant 17", "-U", uuid, "-m", "1", "-e", "remount-ro"],
    ));
    assert!(told.starts_with("one transaction of "), "{told}");
    place.check();
    let tuned = info(&place);
    assert_eq!(tuned["label"], "tenant 17");
    assert_eq!(tuned["uuid"], uuid);
    assert_eq!(tuned["on_error"], "remount-ro");
    let blocks = tuned["blocks"].as_u64().expect("a number");
    assert_eq!(tuned["reserved_blocks"], blocks / 100);
    let told = succeed(&mut on(&place, "tune", &["-L", "tenant 17", "-U", uuid]));
    assert_eq!(told, "nothing to change\n");
    let script = "mkdir /etc\ntune -L '' -U random -e continue\ntouch /etc/machine-id\n";
    let out = with_input(&mut on(&place, "edit", &["-f", "-"]), script.as_bytes());
    assert!(out.status.success(), "{out:?}");
    place.check();
    let tuned = info(&place);
    assert_eq!(
        (&tuned["label"], &tuned["on_error"]),
        (&"".into(), &"continue".into())
    );
    assert_ne!(tuned["uuid"], uuid);
    assert_eq!(tuned["reserved_blocks"], blocks / 100);
    succeed(&mut on(&place, "stat", &["/etc/machine-id"]));
}

#[test]
fn what_tune_does_not_take_changes_nothing() {
    let place = image("16M");
    let before = std::fs::read(&place.image).expect("an image");
    for (arguments, status, says) in [
        (&[][..], 2, "-L <LABEL>"),
        (&["-L", "longer than 16 bytes"], 2, "at most 16 bytes"),
        (
            &["-U", "tenant"],
            2,
            "8-4-4-4-12 hexadecimal digits, or `random`",
        ),
        (&["-m", "51"], 2, "0 to 50 percent"),
        (&["-e", "ignore"], 2, "remount-ro"),
    ] {
        let told = fail(&mut on(&place, "tune", arguments), status);
        assert!(told.contains(says), "{told}");
    }
    assert!(std::fs::read(&place.image).expect("an image") == before);
}
