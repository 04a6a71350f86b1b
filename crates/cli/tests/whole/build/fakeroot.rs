//! What `fakeroot` shows: it replaces calls of the C library, and has owners and devices that the
//! host's files do not have.

use std::os::unix::process::CommandExt;
use std::process::Command;

use super::images::Workshop;
use crate::common::{has, pext4, succeed};

const NOBODY: u32 = 65_534;

#[test]
fn owners_and_devices_of_a_fakeroot_come_into_the_image_and_out_again() {
    if !has("fakeroot") {
        return;
    }
    let workshop = Workshop::new();
    let folder = workshop.path("work");
    std::fs::create_dir(&folder).expect("a fresh place");
    let script = "set -e
        mkdir -p r/dev; mknod r/dev/null c 1 3; mkfifo r/pipe; echo x >r/f; ln r/f r/g; ln -s f r/l
        chown 0:0 r r/dev r/dev/null; chown 5:6 r/f; chown -h 7:8 r/l; chmod 4750 r/f
        chmod 0666 r/dev/null; chmod 0622 r/pipe
        \"$0\" build -q built r
        \"$0\" mkfs -q --size 16M edited
        \"$0\" put -q -T edited r /
        \"$0\" get edited / out
        stat -c '%u:%g %a %n' out/f out/l; stat -c '%a %n' out/dev/null out/pipe; stat -c %F out/dev/null";
    let mut fakeroot = Command::new("fakeroot");
    fakeroot.args(["sh", "-c", script, env!("CARGO_BIN_EXE_pext4")]);
    fakeroot.current_dir(&folder);
    if rustix::process::geteuid().is_root() {
        // To root the calls would show what is so.
        std::os::unix::fs::chown(&folder, Some(NOBODY), Some(NOBODY)).expect("we are root");
        fakeroot.uid(NOBODY).gid(NOBODY);
    }
    let told = succeed(&mut fakeroot);
    assert_eq!(
        told.lines().last(),
        Some("character special file"),
        "{told}"
    );
    assert!(told.contains("5:6 4750 out/f\n7:8 777 out/l\n"), "{told}");
    assert!(told.contains("666 out/dev/null\n622 out/pipe\n"), "{told}");
    for image in ["built", "edited"] {
        let image = folder.join(image);
        let stat = |path: &str| -> serde_json::Value {
            let text = succeed(pext4(["stat", "--json"]).arg(&image).arg(path));
            serde_json::from_str(&text).expect("JSON")
        };
        let owner = |path: &str| (stat(path)["uid"].clone(), stat(path)["gid"].clone());
        assert_eq!(owner("/"), (0.into(), 0.into()));
        assert_eq!(owner("/f"), (5.into(), 6.into()));
        assert_eq!(owner("/l"), (7.into(), 8.into()));
        assert_eq!(stat("/g")["mode"], "4750");
        assert_eq!(stat("/dev/null")["device"], "1:3");
    }
}
