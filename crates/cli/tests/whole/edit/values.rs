//! Modes, owners and dates on the command line.

use std::fs;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use super::images::{image, on, stat};
use crate::common::{Place, fail, has, pext4, succeed, with_input};

fn mode(place: &Place, path: &str) -> String {
    let mode = &stat(place, path)["mode"];
    mode.as_str().expect("a text").to_owned()
}

/// Whatever umask the caller has.
#[test]
fn a_mode_without_classes_is_as_under_the_usual_umask() {
    let place = image("16M");
    for umask in ["000", "022", "077"] {
        for (change, before, after) in [
            ("+w", "0444", "0644"),
            ("=rw", "0777", "0644"),
            ("+x", "0644", "0755"),
            ("-w", "0666", "0466"),
            ("a+w", "0644", "0666"),
        ] {
            succeed(&mut on(&place, "touch", &["/file"]));
            succeed(&mut on(&place, "chmod", &[before, "/file"]));
            let line = format!("umask {umask} && exec \"$@\"");
            let mut shell = Command::new("sh");
            shell.args(["-c", &line, "sh", env!("CARGO_BIN_EXE_pext4"), "chmod"]);
            succeed(shell.arg(&place.image).args([change, "/file"]));
            assert_eq!(mode(&place, "/file"), after, "{change} under {umask}");
        }
    }
    place.check();
}

/// The modes are those that mkdir and mknod of coreutils 9.1 give under the umask 022.
#[test]
fn new_directories_and_nodes_take_symbolic_modes() {
    let place = image("16M");
    for (number, (text, wanted)) in [
        ("0750", "0750"),
        ("4755", "4755"),
        ("go-w", "0755"),
        ("u=rwx,go=", "0700"),
        ("=rx", "0555"),
        ("-w", "0577"),
        ("u+s", "4777"),
        ("=u", "0755"),
    ]
    .into_iter()
    .enumerate()
    {
        let path = format!("/d{number}");
        succeed(&mut on(&place, "mkdir", &["-m", text, &path]));
        assert_eq!(mode(&place, &path), wanted, "mkdir -m {text}");
    }
    for (number, (text, wanted)) in [
        ("600", "0600"),
        ("go=", "0600"),
        ("+x", "0777"),
        ("-r", "0222"),
    ]
    .into_iter()
    .enumerate()
    {
        let path = format!("/n{number}");
        succeed(&mut on(&place, "mknod", &["-m", text, &path, "p"]));
        assert_eq!(mode(&place, &path), wanted, "mknod -m {text}");
    }
    succeed(&mut on(
        &place,
        "mkdir",
        &["-p", "-m", "go-rx", "/new/inner"],
    ));
    assert_eq!(mode(&place, "/new"), "0755");
    assert_eq!(mode(&place, "/new/inner"), "0722");
    let told = fail(&mut on(&place, "mkdir", &["-m", "u*x", "/wrong"]), 2);
    assert!(told.contains("u*x"), "{told}");
    place.check();
}

/// They are those that mkdir of coreutils gives, where it makes no directory more closed than it
/// was asked to.
#[test]
fn a_new_directory_keeps_the_bit_of_its_parent_unless_the_mode_names_it() {
    let place = image("16M");
    for list in [false, true] {
        succeed(&mut on(&place, "mkdir", &["-m", "2755", "/sg"]));
        if list {
            let name = "system.posix_acl_default";
            let value = "0x0200000001000700ffffffff04000500ffffffff20000500ffffffff";
            succeed(&mut on(&place, "setxattr", &["/sg", name, value]));
        }
        for (number, (text, wanted)) in [
            ("755", "2755"),
            ("00755", "0755"),
            ("=755", "0755"),
            ("g-s", "0777"),
            ("g+s", "2777"),
            ("=4755", "4755"),
            ("u=s", "6077"),
            ("g=rxs", "2757"),
            ("+t", "3777"),
            ("u=rwx,go=", "2700"),
        ]
        .into_iter()
        .enumerate()
        {
            let path = format!("/sg/d{number}");
            succeed(&mut on(&place, "mkdir", &["-m", text, &path]));
            assert_eq!(mode(&place, &path), wanted, "mkdir -m {text}");
        }
        succeed(&mut on(
            &place,
            "mkdir",
            &["-p", "-m", "=700", "/sg/above/below"],
        ));
        assert_eq!(mode(&place, "/sg/above/below"), "0700");
        assert_eq!(&mode(&place, "/sg/above")[..1], "2");
        place.check();
        succeed(&mut on(&place, "rm", &["-r", "/sg"]));
    }
}

#[test]
fn nobody_is_no_owner() {
    const NOBODY: &str = "4294967295";
    let place = image("16M");
    let at = |name: &str| place.point.join(name);
    fs::create_dir(at("tree")).expect("a fresh place");
    fs::write(at("map"), format!("uid 0 {NOBODY}\n")).expect("a fresh place");
    let passwd = format!("root:x:0:0::/:\nodd:x:{NOBODY}:0::/:\n");
    fs::write(at("passwd"), passwd).expect("a fresh place");
    succeed(&mut on(&place, "mkdir", &["/etc"]));
    succeed(on(&place, "put", &[]).arg(at("passwd")).arg("/etc"));
    let mut header = tar::Header::new_gnu();
    header.set_path("file").expect("short");
    header.set_size(0);
    header.set_mode(0o644);
    header.set_uid(u64::from(u32::MAX));
    header.set_gid(0);
    header.set_cksum();
    let mut archive = tar::Builder::new(Vec::new());
    archive.append(&header, &b""[..]).expect("memory");
    let archive = archive.into_inner().expect("memory");
    fs::write(at("tar"), archive).expect("a fresh place");
    let before = fs::read(&place.image).expect("readable");
    let build = |option: &str, value: &str, source: &str| {
        let mut build = pext4(["build", "-q"]);
        build
            .arg(at("built"))
            .arg(option)
            .arg(value)
            .arg(at(source));
        build
    };
    let both = format!("0:{NOBODY}");
    let mut mkfs = pext4(["mkfs", "-q", "--size", "16M", "--root-owner", &both]);
    mkfs.arg(at("built"));
    let mut put = on(&place, "put", &["--owner", NOBODY]);
    put.arg(at("passwd")).arg("/x");
    let mut unpack = on(&place, "edit", &["--tar"]);
    unpack.arg(at("tar"));
    for (mut command, status) in [
        (on(&place, "chown", &[NOBODY, "/etc"]), 2),
        (on(&place, "chown", &[&both, "/etc"]), 2),
        (on(&place, "chown", &[&format!(":{NOBODY}"), "/etc"]), 2),
        (on(&place, "chown", &["odd", "/etc"]), 2),
        (put, 2),
        (unpack, 1),
        (mkfs, 2),
        (build("--owner", &both, "tree"), 2),
        (build("--map", text(&at("map")), "tree"), 2),
        (build("-L", "x", "tar"), 1),
    ] {
        let told = fail(&mut command, status);
        assert!(told.contains("4294967295 is the id of no user"), "{told}");
    }
    assert!(!at("built").exists());
    assert!(fs::read(&place.image).expect("readable") == before);
    succeed(&mut on(&place, "chown", &["4294967294:4294967294", "/etc"]));
    place.check();
}

/// What `stat` shows is what `getfattr -e hex` shows on a mount, and what `setxattr` takes.
#[test]
fn access_control_lists_are_shown_as_they_are_set() {
    const LIST: &str = "02000000010006\
        00ffffffff02000400e803000004000400ffffffff10000400ffffffff20000000ffffffff";
    const NAME: &str = "system.posix_acl_access";
    let place = image("16M");
    succeed(&mut on(&place, "touch", &["/file", "/other"]));
    let value = format!("0x{LIST}");
    succeed(&mut on(&place, "setxattr", &["/file", NAME, &value]));
    let shown = stat(&place, "/file")["xattrs"][0].clone();
    assert_eq!(
        (&shown["name"], &shown["value_hex"]),
        (&NAME.into(), &LIST.into())
    );
    let told = succeed(&mut on(&place, "stat", &["/file"]));
    assert!(told.contains(&format!("{NAME} = {value}\n")), "{told}");
    succeed(&mut on(&place, "setxattr", &["/other", NAME, &value]));
    assert_eq!(stat(&place, "/other")["xattrs"][0], shown);
    place.check();
}

/// No call takes such a name, so nothing lists it, and the file and the others can be read.
#[test]
fn an_attribute_whose_name_cannot_be_is_left_out() {
    let place = Place::empty();
    if !has("mke2fs") {
        return;
    }
    let mut mke2fs = Command::new("mke2fs");
    mke2fs.args(["-q", "-t", "ext4", "-O", "^metadata_csum"]);
    succeed(mke2fs.arg(&place.image).arg("16M"));
    succeed(&mut on(&place, "mkdir", &["/slow"]));
    succeed(&mut on(&place, "setxattr", &["/slow", "user.curious", "x"]));
    succeed(&mut on(&place, "setxattr", &["/slow", "user.plain", "y"]));
    let whole = fs::read(&place.image).expect("an image");
    let at = whole
        .windows(7)
        .position(|name| name == b"curious")
        .expect("it holds it");
    // The name is behind its entry of 16 bytes, whose second one is the number of the prefix.
    let mut damaged = whole;
    damaged[at - 15] = 2;
    fs::write(&place.image, &damaged).expect("room");
    let tar = place.point.join("tar");
    succeed(on(&place, "export", &["-o"]).arg(&tar));
    let told = succeed(&mut on(&place, "stat", &["/slow"]));
    assert!(
        told.contains("user.plain") && !told.contains("curious"),
        "{told}"
    );
    succeed(&mut on(&place, "cp", &["-r", "/slow", "/copy"]));
    let names = stat(&place, "/copy")["xattrs"].clone();
    assert_eq!(names.as_array().map(Vec::len), Some(1), "{names}");
    succeed(&mut on(&place, "setxattr", &["/slow", "user.plain", "z"]));
    let told = succeed(&mut on(&place, "check", &[]));
    assert!(told.contains("xattr-name"), "{told}");
}

/// e2fsck accepts it, so the message does not name a repair.
#[test]
fn an_orphan_file_that_is_too_long_is_called_so() {
    let place = Place::empty();
    if !has("mke2fs") {
        return;
    }
    let mut mke2fs = Command::new("mke2fs");
    mke2fs.args(["-q", "-t", "ext4", "-b", "1024", "-O", "orphan_file"]);
    mke2fs.args(["-E", "orphan_file_size=65M"]);
    succeed(mke2fs.arg(&place.image).arg("80M"));
    let told = fail(&mut on(&place, "mkdir", &["/x"]), 1);
    let says = "an orphan file of 66560 blocks: up to 65536 are read";
    assert!(told.contains(says) && !told.contains("e2fsck"), "{told}");
    succeed(&mut on(&place, "ls", &["/"]));
}

fn text(path: &std::path::Path) -> &str {
    path.to_str().expect("text")
}

/// The same texts are dates for `build` and for an edit.
#[test]
fn a_date_of_the_environment_is_digits_only() {
    let place = image("16M");
    let tree = place.point.join("tree");
    fs::create_dir(&tree).expect("a fresh place");
    let built = place.point.join("built");
    for (date, is_sound) in [
        ("1700000000", true),
        ("0", true),
        (" 5", false),
        ("5\n", false),
        ("+5", false),
        ("-1", false),
        ("", false),
        ("soon", false),
    ] {
        let mut build = pext4(["build", "-q", "--force"]);
        build.arg(&built).arg(&tree);
        for mut command in [build, on(&place, "touch", &["-q", "/x"])] {
            command.env("SOURCE_DATE_EPOCH", date);
            if is_sound {
                succeed(&mut command);
            } else {
                let told = fail(&mut command, 2);
                assert!(told.contains("SOURCE_DATE_EPOCH is `"), "{date}: {told}");
            }
        }
    }
    place.check();
}

/// A deletion time below the number of inodes would make the inode a link of the chain of orphans.
#[test]
fn files_are_removed_while_the_clock_is_low() {
    let place = image("16M");
    with_input(&mut on(&place, "put", &["-", "/file", "-q"]), b"content");
    let mut remove = on(&place, "rm", &["/file"]);
    succeed(remove.env("SOURCE_DATE_EPOCH", "1"));
    // As if the image had been mounted since: then checkers trust deletion times.
    let superblock = ["wtime", "mtime", "mkfs_time"];
    for field in superblock {
        let mut debugfs = Command::new("debugfs");
        let request = format!("set_super_value {field} @1700000000");
        succeed(debugfs.args(["-w", "-R", &request]).arg(&place.image));
    }
    place.check();
}

/// Also where the image is younger than that time.
#[test]
fn directories_get_the_time_of_the_edit() {
    let place = image("16M");
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("after 1970");
    let time = format!("@{}", now.as_secs() - 5);
    succeed(&mut on(&place, "mkdir", &["--mtime", &time, "/made"]));
    let [root, made] = ["/", "/made"].map(|path| stat(&place, path));
    for kind in ["modified", "changed"] {
        assert_eq!(root[kind], made[kind], "{kind}");
    }
}

#[test]
fn put_takes_modes_as_chmod_does() {
    use std::os::unix::fs::PermissionsExt;

    let place = image("16M");
    let file = place.point.join("file");
    std::fs::write(&file, "x").expect("a fresh place");
    let mode = std::fs::Permissions::from_mode(0o640);
    std::fs::set_permissions(&file, mode).expect("it is ours");
    let file = file.to_str().expect("text");
    for (arguments, mode) in [
        (&[file, "/f", "-m", "u+x,o=r"][..], "0744"),
        (&[file, "/f", "-m", "4711"], "4711"),
        (&[file, "/f", "--mode", "-r"], "0200"),
        (&["-", "/f", "-m", "g+w"], "0664"),
        (&["-", "/f", "--mode=0600"], "0600"),
    ] {
        succeed(&mut on(&place, "put", arguments));
        assert_eq!(stat(&place, "/f")["mode"], mode, "{arguments:?}");
    }
}
