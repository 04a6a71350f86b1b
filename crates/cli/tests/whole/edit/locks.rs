//! Images that another process uses, or the same one.

use std::fs;
use std::process::Stdio;
use std::time::Duration;

use pext4_block::{Access, FileDevice};

use super::images::{image, on};
use crate::common::{fail, pext4, succeed};

#[test]
fn who_uses_an_image_is_named_by_every_command() {
    let place = image("16M");
    let other = image("16M");
    let held = FileDevice::open(&place.image, Access::ReadWrite, Duration::ZERO);
    let held = held.expect("nobody uses it");
    let mut copy = on(&other, "cp", &["/x", "/y", "--from"]);
    copy.arg(&place.image);
    let mut commands = [
        on(&place, "mkdir", &["/new"]),
        on(&place, "get", &["/", "/nowhere"]),
        on(&place, "export", &[]),
        on(&place, "ls", &["/"]),
        copy,
    ];
    // They wait for a while, all at once.
    let running: Vec<_> = commands
        .iter_mut()
        .map(|command| {
            let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
            command.spawn().expect("it can be started")
        })
        .collect();
    let user = format!("; it is process {}, ", std::process::id());
    for child in running {
        let output = child.wait_with_output().expect("it ends");
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{told}");
        assert!(told.contains(&user), "{told}");
        let name = place.image.display().to_string();
        assert_eq!(told.matches(&name).count(), 1, "{told}");
        assert!(!told.contains("device error"), "{told}");
    }
    drop(held);
    let gone = place.point.join("gone");
    let told = fail(pext4(["mkdir"]).arg(&gone).arg("/new"), 1);
    assert_eq!(
        told.matches(&gone.display().to_string()).count(),
        1,
        "{told}"
    );
}

/// A command that waits for a lock which it holds itself ends by naming itself as the user.
#[test]
fn a_copy_from_the_image_itself_is_refused_at_once() {
    let place = image("16M");
    succeed(&mut on(&place, "touch", &["/file"]));
    let hard = place.point.join("hard");
    fs::hard_link(&place.image, &hard).expect("a fresh place");
    for image in [&place.image, &hard] {
        let mut copy = on(&place, "cp", &["/file", "/copy", "--from"]);
        let told = fail(copy.arg(image), 1);
        assert!(told.contains("without `--from`"), "{told}");
    }
}
