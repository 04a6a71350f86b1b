//! Overlayfs above a mount, as containers have it: it acts on the mount as root, for users whom the
//! server does not see.

use std::fs;
use std::process::Command;

use crate::common::{LET_GO, Mounted, Place, has, is_root, succeed};

/// An image, where an overlay can be mounted and its users have access lists.
fn place() -> Option<Place> {
    let tools = ["unshare", "setpriv", "setfacl"];
    if !is_root() || !tools.into_iter().all(has) {
        return None;
    }
    let place = Place::new("16M")?;
    fs::create_dir(place.point.with_file_name("overlay")).expect("a fresh place");
    Some(place)
}

/// What a shell script prints in an overlay whose upper directory is on the mount.
fn above(place: &Place, mount: &Mounted<'_>, script: &str) -> String {
    const OVERLAY: &str = "\
        mount -t tmpfs lower \"$1\"
        mkdir \"$1/lower\" \"$1/merged\"
        mkdir -p upper work
        mount -t overlay over -o lowerdir=\"$1/lower\",upperdir=upper,workdir=work \"$1/merged\"
        cd \"$1/merged\"\n";
    let mut shell = Command::new("unshare");
    // The namespace, and with it the mounts, end with the shell.
    let script = format!("{LET_GO}{OVERLAY}{script}");
    shell
        .args(["--mount", "sh", "-ec", &script, "sh"])
        .arg(place.point.with_file_name("overlay"))
        .env("KEEP", &place.point);
    succeed(shell.current_dir(mount.path("")))
}

/// What [FUSE](../../../../docs/FUSE.md#permissions) says.
#[test]
fn access_lists_hold_above_a_mount_where_the_kernel_judges() {
    const SCRIPT: &str = "\
        echo content > file
        chmod 644 file
        setfacl -m u:1500:--- file
        for user in 1500 1600; do
            setpriv --reuid $user --regid $user --clear-groups cat file 2>&1 || true
        done";
    let Some(place) = place() else {
        return;
    };
    for (options, told) in [
        (
            "default_permissions",
            "cat: file: Permission denied\ncontent\n",
        ),
        ("allow_other", "cat: file: Permission denied\ncontent\n"),
        ("rw", "content\ncontent\n"),
    ] {
        let mount = place.mount(&["-o", options]);
        assert_eq!(above(&place, &mount, SCRIPT), told, "{options}");
        mount.unmount();
    }
}

#[test]
fn a_list_takes_the_set_group_id_bit_from_a_caller_outside_of_the_group() {
    const SCRIPT: &str = "\
        umask 0
        for caller in member stranger root limited; do
            mkdir \"$caller\"
            chown 1500:2000 \"$caller\"
            chmod 2775 \"$caller\"
        done
        list='setfacl -m u:1700:rwx'
        owner='setpriv --reuid 1500 --regid 1500'
        $owner --groups 2000 $list member
        $owner --clear-groups $list stranger
        $list root
        setpriv --bounding-set -fsetid --inh-caps -fsetid $list limited
        stat -c '%n %a' member stranger root limited
        rmdir member stranger root limited";
    const TOLD: &str = "member 2775\nstranger 775\nroot 2775\nlimited 775\n";
    let Some(place) = place() else {
        return;
    };
    for options in ["allow_other", "default_permissions", "rw"] {
        let mount = place.mount(&["-o", options]);
        assert_eq!(above(&place, &mount, SCRIPT), TOLD, "{options}");
        if options == "allow_other" {
            let mut shell = Command::new("sh");
            let shell = shell.args(["-ec", SCRIPT]).current_dir(mount.path(""));
            assert_eq!(succeed(shell), TOLD, "without an overlay");
        }
        mount.unmount();
    }
}
