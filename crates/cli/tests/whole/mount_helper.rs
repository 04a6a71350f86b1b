//! `pext4` as `mount(8)` and `umount(8)` call it: as `/sbin/mount.pext4`, through
//! `/sbin/mount.fuse`, for a line of a table of mounts, as `/sbin/umount.fuse.pext4`. The
//! links are in temporary directories; what must be in `/sbin` is laid over it in a mount namespace
//! that is gone with the test.

use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::{
    LET_GO, Place, copy_program, fail, has, is_root, pext4, run, succeed, unmount_by_system,
};

/// A directory with a link to the program under the name of a helper.
fn link(place: &Place, name: &str) -> PathBuf {
    let directory = place.point.with_file_name("sbin");
    fs::create_dir_all(&directory).expect("a directory");
    let link = directory.join(name);
    symlink(env!("CARGO_BIN_EXE_pext4"), &link).expect("it is new");
    link
}

fn helper(link: &Path, place: &Place) -> Command {
    let mut command = Command::new(link);
    command
        .arg(&place.image)
        .arg(&place.point)
        .stdin(Stdio::null());
    command
}

/// The line of the table of mounts, or nothing.
fn line(place: &Place) -> Option<String> {
    let table = fs::read_to_string("/proc/self/mountinfo").expect("/proc is there");
    line_of(&table, place)
}

/// Other tests have their lines in the table too.
fn line_of(table: &str, place: &Place) -> Option<String> {
    let path = place.point.to_str().expect("text").replace(' ', "\\040");
    table
        .lines()
        .find(|line| line.contains(&path))
        .map(str::to_owned)
}

#[test]
fn a_link_named_as_a_helper_is_one() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    let link = link(&place, "mount.pext4");
    let words = [
        "-o",
        "rw,noatime,user,nofail,_netdev",
        "-n",
        "-v",
        "-t",
        "fuse.pext4",
    ];
    let said = succeed(helper(&link, &place).args(words));
    let mount = place.guard();
    assert!(said.contains(" mounted on "), "{said}");
    let line = line(&place).expect("it is mounted");
    assert!(
        line.contains(" - fuse.pext4 ") && line.contains("noatime"),
        "{line}"
    );
    if is_root() {
        let restricts = line.contains("nosuid") || line.contains("nodev");
        assert!(!restricts, "mount(8) would have said so: {line}");
    }
    fs::write(mount.path("file"), b"content").unwrap();
    mount.unmount();
    succeed(helper(&link, &place).args(["-o", "ro,nosuid,nodev"]));
    let mount = place.guard();
    assert_eq!(fs::read(mount.path("file")).unwrap(), b"content");
    mount.unmount();
}

#[test]
fn a_list_of_no_options_asks_for_none() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    place.mount(&["-o", ""]).unmount();
    place
        .mount(&["-o", "ro", "-o", "", "--create", "16M"])
        .unmount();
    let link = link(&place, "mount.pext4");
    for list in ["ro,", "", ",noexec"] {
        succeed(helper(&link, &place).args(["-o", list]));
        place.guard().unmount();
    }
}

#[test]
fn a_helper_ends_with_the_statuses_of_mount() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    let link = link(&place, "mount.fuse.pext4");
    let guard = place.guard();
    let said = fail(helper(&link, &place).args(["-o", "bogus"]), 1);
    assert!(said.contains("option `bogus` is not known"), "{said}");
    let said = fail(helper(&link, &place).args(["-o", "remount,ro"]), 1);
    assert!(said.contains("unmount, and mount again"), "{said}");
    fail(helper(&link, &place).arg("--create"), 1);
    let missing = place.image.with_file_name("missing");
    let mount_missing = |options: &str| {
        let mut command = Command::new(&link);
        command
            .arg(&missing)
            .arg(&place.point)
            .args(["-o", options]);
        command
    };
    let said = fail(&mut mount_missing("rw"), 32);
    assert!(said.contains("there is no such image"), "{said}");
    assert_eq!(succeed(&mut mount_missing("rw,nofail")), "");
    // As `/sbin/mount.fuse` calls it.
    let mut program = Command::new(env!("CARGO_BIN_EXE_pext4"));
    program
        .arg(&missing)
        .arg(&place.point)
        .args(["-o", "rw,nofail"]);
    assert_eq!(succeed(&mut program), "");
    assert_eq!(succeed(helper(&link, &place).arg("-f")), "");
    assert_eq!(line(&place), None, "nothing was mounted");
    succeed(helper(&link, &place).args(["-s", "-o", "bogus,ro"]));
    guard.unmount();
}

/// Runs a script in which `pext4` has its links in `/sbin`, or `None` where that cannot be had.
fn with_links_in_sbin(place: &Place, script: &str) -> Option<String> {
    if !is_root() || !has("unshare") {
        return None;
    }
    link(place, "umount.fuse");
    if !place
        .point
        .with_file_name("sbin/umount.fuse.pext4")
        .exists()
    {
        link(place, "umount.fuse.pext4");
    }
    let links = link(place, "mount.pext4");
    let links = links.parent().expect("it is in a directory");
    let prepare = r#"mount -t overlay -o "lowerdir=$LINKS:/usr/sbin" none /usr/sbin || exit 77
        set -e
    "#;
    let output = run(Command::new("unshare")
        .args(["--mount", "--propagation", "slave"])
        .args(["sh", "-c", &format!("{LET_GO}{prepare}{script}")])
        .env("LINKS", links)
        .env("IMAGE", &place.image)
        .env("POINT", &place.point)
        .env("PEXT4", env!("CARGO_BIN_EXE_pext4"))
        .env("LIBMOUNT_FSTAB", place.point.with_file_name("fstab")));
    let errors = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(77) || errors.contains("unshare failed") {
        eprintln!("SKIPPED: no directory can be laid over /usr/sbin: {errors}");
        return None;
    }
    assert!(output.status.success(), "{script}: {errors}");
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn write_table(place: &Place, source: &str, kind: &str, options: &str) {
    let escape = |text: &str| text.replace(' ', "\\040");
    let (source, point) = (escape(source), escape(place.point.to_str().expect("text")));
    let line = format!("{source} {point} {kind} {options} 0 0\n");
    fs::write(place.point.with_file_name("fstab"), line).expect("there is room");
}

#[test]
fn mount_finds_its_helper() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    let script = r#"mount -t pext4 -o allow_other,commit=9,noexec "$IMAGE" "$POINT"
        echo one > "$POINT/file"
        cat /proc/self/mountinfo
        "$PEXT4" umount "$POINT"
    "#;
    let Some(table) = with_links_in_sbin(&place, script) else {
        return;
    };
    let line = line_of(&table, &place).expect("it is mounted");
    for word in [" - fuse.pext4 ", "allow_other", "noexec"] {
        assert!(line.contains(word), "{line}");
    }
    place.check();
    assert_eq!(place.state(), "clean");
}

#[test]
fn a_line_of_a_table_of_mounts_is_enough() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    let image = place.image.to_str().unwrap().to_owned();
    let options = "allow_other,nosuid,nodev,nofail,comment=mine,x-systemd.automount,_netdev";
    write_table(&place, &image, "pext4", options);
    let script = r#"mount -a
        echo one > "$POINT/file"
        umount "$POINT"
        mount -o ro "$POINT"
        cat "$POINT/file"
        "$PEXT4" umount "$POINT"
        mv "$IMAGE" "$IMAGE.away"
        mount -a
        mv "$IMAGE.away" "$IMAGE"
    "#;
    if let Some(said) = with_links_in_sbin(&place, script) {
        assert_eq!(said, "one\n");
        place.check();
    }
}

/// Changes much that the server writes home only after the unmount: e2fsck would find a journal to
/// replay, and the kernel would mount the image.
fn write_a_burst(point: &Path) {
    let directory = point.join("burst");
    fs::create_dir(&directory).expect("room");
    let name = |number: usize| directory.join(format!("file-{number}"));
    for number in 0..4000 {
        fs::write(name(number), []).expect("room");
    }
    for number in (0..4000).step_by(2) {
        fs::remove_file(name(number)).expect("it is there");
    }
    for number in 0..50 {
        fs::write(directory.join(format!("data-{number}")), vec![7; 500_000]).expect("room");
    }
}

/// That the server is done with the image: its lock is free, and there is nothing to repair.
fn assert_closed(place: &Place) {
    let image = fs::File::open(&place.image).expect("it is there");
    let exclusive = rustix::fs::FlockOperation::NonBlockingLockExclusive;
    rustix::fs::flock(&image, exclusive).expect("nobody has the image any more");
    drop(image);
    place.check();
    assert_eq!(place.state(), "clean");
}

#[test]
fn the_image_is_closed_when_the_helper_of_umount_returns() {
    let Some(place) = Place::new("256M") else {
        return;
    };
    let link = link(&place, "umount.fuse.pext4");
    let mount = place.mount(&[]);
    write_a_burst(&place.point);
    let umount = || {
        let mut command = Command::new(&link);
        command.arg(&place.point).stdin(Stdio::null());
        command
    };
    let open = fs::File::open(mount.path("burst/file-1")).expect("it is there");
    let said = fail(umount().arg("-r"), 32);
    assert!(said.contains("is in use"), "{said}");
    drop(open);
    let words = ["-n", "-v", "-t", "fuse.pext4"];
    let said = succeed(umount().args(words));
    assert!(said.contains(" unmounted"), "{said}");
    assert_closed(&place);
    mount.forget();
    let said = fail(&mut umount(), 32);
    assert!(said.contains("not mounted"), "{said}");
    fail(umount().arg("--bogus"), 1);
}

#[test]
fn the_helper_of_umount_detaches_what_is_in_use() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    let link = link(&place, "umount.fuse.pext4");
    let umount = |option| {
        let mut command = Command::new(&link);
        command.arg(&place.point).arg(option).stdin(Stdio::null());
        command
    };
    let mount = place.mount(&[]);
    let open = fs::File::create(mount.path("file")).expect("room");
    succeed(&mut umount("-l"));
    assert_eq!(line(&place), None, "it is detached");
    (&open).write_all(b"late").expect("it is still served");
    drop(open);
    mount.forget();
    place.wait_until_closed();
    let mount = place.mount(&[]);
    assert_eq!(fs::read(mount.path("file")).unwrap(), b"late");
    succeed(&mut umount("-f"));
    assert_closed(&place);
    mount.forget();
}

#[test]
fn an_unmount_does_not_wait_for_another_place_of_the_same_mount() {
    if !is_root() {
        return;
    }
    let Some(place) = Place::new("16M") else {
        return;
    };
    let link = link(&place, "umount.fuse.pext4");
    let other = place.point.with_file_name("other place");
    fs::create_dir(&other).expect("a free name");
    let mount = place.mount(&[]);
    succeed(
        Command::new("mount")
            .arg("--bind")
            .arg(&place.point)
            .arg(&other),
    );
    let output = run(Command::new(&link).arg(&place.point).stdin(Stdio::null()));
    mount.forget();
    let written = fs::write(other.join("file"), b"content");
    succeed(
        Command::new("mount")
            .arg("--bind")
            .arg(&other)
            .arg(&place.point),
    );
    // Who asks pext4 itself wants to use the image next.
    let command = run(pext4(["umount"]).arg(&place.point));
    let ended = run(Command::new(&link).arg(&other).stdin(Stdio::null()));
    // A failed test leaves nothing behind.
    run(Command::new("umount").arg("-lq").arg(&other));
    run(Command::new("umount").arg("-lq").arg(&place.point));
    written.expect("it is still served");
    assert!(ended.status.success(), "{ended:?}");
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("other place too"), "{said}");
    let said = String::from_utf8_lossy(&command.stderr);
    assert!(said.contains("other place too"), "{said}");
    assert_eq!(command.status.code(), Some(1), "{command:?}");
    assert_closed(&place);
}

#[test]
fn umount_finds_its_helper() {
    let Some(place) = Place::new("256M") else {
        return;
    };
    // With an absolute path it looks for the helper of all of FUSE, else for the one of the type.
    let script = r#"cd "$POINT/.."
        for path in "$POINT" "mount point"; do
            mount -t pext4 "$IMAGE" "$POINT"
            mkdir -p "$POINT/d"
            seq -f "$POINT/d/%g" 4000 | xargs -d '\n' touch
            head -c 30000000 /dev/urandom > "$POINT/data"
            umount "$path"
            flock -n "$IMAGE" echo closed
        done
        mount -t pext4 "$IMAGE" "$POINT"
        umount -l "$POINT"
        mount -t tmpfs none "$POINT"
        "$LINKS/umount.fuse" "$POINT" -n
        mountpoint -q "$POINT" || echo other
    "#;
    if let Some(said) = with_links_in_sbin(&place, script) {
        assert_eq!(said, "closed\nclosed\nother\n");
        place.wait_until_closed();
        place.check();
    }
}

#[test]
fn an_ordinary_user_ends_with_umount_what_fstab_permits() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    if !has("setpriv") {
        return;
    }
    let image = place.image.to_str().unwrap().to_owned();
    write_table(&place, &image, "pext4", "users,noauto,allow_other");
    let links = place.point.with_file_name("sbin");
    fs::create_dir(&links).expect("a free name");
    copy_program(&links.join("umount.fuse.pext4"));
    let script = r#"cp "$LINKS/../fstab" "$LINKS/../own" && mount --bind "$LINKS/../own" /etc/fstab
        unset LIBMOUNT_FSTAB
        mount "$POINT"
        setpriv --reuid 1000 --regid 1000 --clear-groups umount "$POINT"
        flock -n "$IMAGE" echo closed
    "#;
    if let Some(said) = with_links_in_sbin(&place, script) {
        assert_eq!(said, "closed\n");
        place.check();
    }
}

#[test]
fn a_source_in_the_working_directory_is_one() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    // As `/sbin/mount.fuse pext4#image.img DIR` calls it.
    fs::rename(&place.image, place.image.with_file_name("image.img")).expect("ours");
    let folder = place.point.parent().expect("it is in a directory");
    let command = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pext4"));
        command.args(words).current_dir(folder).stdin(Stdio::null());
        command
    };
    succeed(&mut command(&["image.img", "mount point", "-o", "rw"]));
    let line = line(&place);
    succeed(&mut command(&["umount", "mount point"]));
    assert!(line.is_some_and(|line| line.contains("fuse.pext4")));
    // A command is one, whatever files there are, and so is a misspelt one.
    fs::write(folder.join("help"), []).expect("a free name");
    succeed(&mut command(&["help", "mount"]));
    let said = fail(&mut command(&["mounts", "image.img", "mount point"]), 2);
    assert!(said.contains("unrecognized subcommand"), "{said}");
}

#[test]
fn the_helper_of_fuse_runs_the_program() {
    if !is_root() || !Path::new("/sbin/mount.fuse").exists() {
        eprintln!("SKIPPED: needs root and /sbin/mount.fuse");
        return;
    }
    let Some(place) = Place::new("16M") else {
        return;
    };
    let source = format!("{}#{}", env!("CARGO_BIN_EXE_pext4"), place.image.display());
    write_table(
        &place,
        &source,
        "fuse",
        "noauto,commit=30,nofail,_netdev,allow_other",
    );
    let mut mount = Command::new("mount");
    mount
        .env("LIBMOUNT_FSTAB", place.point.with_file_name("fstab"))
        .arg(&place.point);
    let guard = place.guard();
    succeed(&mut mount);
    let line = line(&place).expect("it is mounted");
    assert!(
        line.contains(" - fuse.pext4 ") && line.contains("allow_other"),
        "{line}"
    );
    fs::write(guard.path("file"), b"content").unwrap();
    unmount_by_system(&place.point);
    place.wait_until_closed();
    write_table(&place, &source, "fuse", "bogus");
    fail(&mut mount, 1);
    fs::write(&place.image, b"no image").unwrap();
    write_table(&place, &source, "fuse", "rw");
    fail(&mut mount, 32);
    guard.forget();
}
