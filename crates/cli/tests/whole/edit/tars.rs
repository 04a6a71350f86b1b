//! Images as archives, out and in again.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use super::images::{image, on};
use crate::common::{Place, fail, has, is_root, pext4, run, succeed, with_input};

#[test]
fn an_exported_image_comes_back_from_its_tar() {
    let place = image("16M");
    let again = image("16M");
    succeed(&mut on(&place, "mkdir", &["-p", "/a/b"]));
    with_input(&mut on(&place, "put", &["-", "/a/b/file"]), &[7; 100_000]);
    let tar = place.point.join("tar");
    succeed(on(&place, "export", &["-o"]).arg(&tar));
    succeed(on(&again, "edit", &["--tar"]).arg(&tar));
    again.check();
    let archive = fs::read(&tar).expect("there");
    let output = run(&mut on(&again, "export", &[]));
    assert!(
        output.stdout == archive,
        "the archive of the copy is the same"
    );
    let cut = with_input(
        &mut on(&again, "edit", &["--tar", "-"]),
        &archive[..archive.len() / 2],
    );
    assert!(!cut.status.success());
    let error = String::from_utf8_lossy(&cut.stderr).into_owned();
    assert!(error.contains("cut short"), "{error}");
}

#[test]
fn attributes_of_a_tar_are_left_out_if_that_is_wanted() {
    let place = image("16M");
    let again = image("16M");
    with_input(&mut on(&place, "put", &["-", "/file"]), b"x");
    for name in ["user.kept", "user.left"] {
        succeed(&mut on(&place, "setxattr", &["/file", name, "value"]));
    }
    let tar = place.point.join("tar");
    succeed(on(&place, "export", &["-o"]).arg(&tar));
    succeed(on(&again, "edit", &["--exclude-xattr", "*.left", "--tar"]).arg(&tar));
    again.check();
    let told = run(&mut on(&again, "stat", &["/file"]));
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    assert!(
        told.contains("user.kept") && !told.contains("user.left"),
        "{told}"
    );
}

#[test]
fn a_tar_without_an_end_mark_is_noted() {
    let place = image("16M");
    with_input(&mut on(&place, "put", &["-", "/file"]), b"x");
    let tar = place.point.join("tar");
    succeed(on(&place, "export", &["-o"]).arg(&tar));
    let whole = fs::read(&tar).expect("there");
    let end = whole.iter().rposition(|&byte| byte != 0).expect("entries");
    fs::write(&tar, &whole[..(end + 1).next_multiple_of(512)]).expect("ours");
    let says = "the archive ends without an end mark; it may have been cut short";
    let output = run(on(&place, "edit", &["--tar"]).arg(&tar));
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && told.contains(says), "{told}");
    let told = succeed(on(&place, "edit", &["--json", "--tar"]).arg(&tar));
    assert!(told.contains(says), "{told}");
    place.check();
}

#[test]
fn an_error_of_a_tar_names_archive_and_entry() {
    let place = image("16M");
    let over = image("16M");
    succeed(&mut on(&place, "mkdir", &["/d"]));
    with_input(&mut on(&over, "put", &["-", "/d"]), b"x");
    let tar = place.point.join("tar");
    succeed(on(&over, "export", &["-o"]).arg(&tar));
    let told = fail(on(&place, "edit", &["--tar"]).arg(&tar), 1);
    let (tar, image) = (tar.display(), place.image.display());
    let named = format!("{tar}: tar: d: {image}:/d: a directory is here");
    assert!(told.contains(&named), "{told}");
}

/// Temporary files beside an image have their own names, however long the image's name is.
#[test]
fn names_on_the_host_may_be_of_any_length() {
    let place = image("16M");
    let tar = place.point.join("t".repeat(255));
    succeed(on(&place, "export", &["-o"]).arg(&tar));
    let built = place.point.join("b".repeat(255));
    succeed(pext4(["build"]).arg(&built).arg(&tar));
    let without = place.point.join("w".repeat(255));
    let mut make = pext4(["mkfs", "-q", "--size", "16M", "-O", "^has_journal"]);
    succeed(make.arg(&without));
    let told = succeed(pext4(["mkdir"]).arg(&without).arg("/made"));
    assert!(told.contains("renamed into place"), "{told}");
}

/// A device or pipe, as `/dev/null`, and the target of a link are written to, not replaced.
#[test]
fn an_export_replaces_no_pipe_and_no_link() {
    let place = image("16M");
    let (pipe, link) = (place.point.join("pipe"), place.point.join("link"));
    succeed(Command::new("mkfifo").arg(&pipe));
    std::os::unix::fs::symlink("file", &link).expect("a fresh place");
    fs::write(place.point.join("file"), b"old").expect("a fresh place");
    // Opened for reading and writing, so no open blocks; the archive fits into the pipe.
    let both = fs::File::options().read(true).write(true).open(&pipe);
    let mut both = both.expect("it is there");
    succeed(on(&place, "export", &["-o"]).arg(&pipe));
    succeed(on(&place, "export", &["-o"]).arg(&link));
    let there = fs::metadata(&pipe).expect("there").file_type();
    let is_pipe = std::os::unix::fs::FileTypeExt::is_fifo(&there);
    assert!(is_pipe, "the pipe is still one");
    let mut start = [0; 512];
    std::io::Read::read_exact(&mut both, &mut start).expect("the archive went into it");
    assert_eq!(start[257..262], *b"ustar");
    assert!(fs::read_link(&link).is_ok(), "the link is still one");
    let behind = fs::read(place.point.join("file")).expect("there");
    assert_eq!(behind[..512], start);
}

#[test]
fn an_export_does_not_replace_its_image() {
    let place = image("16M");
    let before = fs::read(&place.image).expect("an image");
    let (hard, soft) = (place.point.join("hard"), place.point.join("soft"));
    fs::hard_link(&place.image, &hard).expect("a fresh place");
    std::os::unix::fs::symlink(&place.image, &soft).expect("a fresh place");
    for output in [&place.image, &hard, &soft] {
        let told = fail(on(&place, "export", &["-o"]).arg(output), 1);
        assert!(told.contains("it is the image itself"), "{told}");
    }
    assert!(fs::read(&place.image).expect("an image") == before);
}

#[test]
fn an_archive_that_is_replaced_keeps_its_mode_and_owner() {
    let place = image("16M");
    let tar = place.point.join("tar");
    fs::write(&tar, b"private").expect("a fresh place");
    for mode in [0o600, 0o640] {
        fs::set_permissions(&tar, fs::Permissions::from_mode(mode)).expect("it is ours");
        succeed(on(&place, "export", &["-o"]).arg(&tar));
        let kept = fs::metadata(&tar).expect("it is there");
        assert_eq!(kept.permissions().mode() & 0o7777, mode);
        assert!(kept.len() > 1024, "an archive");
    }
    if !is_root() {
        return eprintln!("SKIPPED: only root gives files to others");
    }
    std::os::unix::fs::chown(&tar, Some(1234), Some(5678)).expect("root may");
    succeed(on(&place, "export", &["-o"]).arg(&tar));
    let kept = fs::metadata(&tar).expect("it is there");
    assert_eq!((kept.uid(), kept.gid()), (1234, 5678));
}

/// Everything of a tree on the host, a line for each file.
fn listing(top: &Path) -> String {
    let common = "%P %y %m %U:%G %T@ %n %l";
    let mut find = Command::new("find");
    find.arg(top).args(["-type", "d", "-printf"]);
    find.arg(format!("{common}\n")).args(["-o", "-printf"]);
    find.arg(format!("{common} %s\n"));
    let text = succeed(&mut find);
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort_unstable();
    lines.join("\n")
}

#[test]
fn an_exported_image_is_built_again_from_its_tar() {
    if !has("find") || !has("diff") {
        return;
    }
    let place = image("16M");
    let host = place.point.join("tree");
    fs::create_dir_all(host.join("sub/empty")).expect("a fresh place");
    fs::write(host.join("sub/file"), vec![9; 30_000]).expect("there is room");
    fs::hard_link(host.join("sub/file"), host.join("other")).expect("there is room");
    std::os::unix::fs::symlink("x".repeat(200), host.join("link")).expect("there is room");
    let sparse = fs::File::create(host.join("sparse")).expect("there is room");
    sparse.set_len(1 << 20).expect("a hole");
    drop(sparse);
    succeed(on(&place, "put", &[]).arg(&host).arg("/"));
    succeed(&mut on(&place, "chown", &["-R", "70000:5", "/tree/sub"]));
    succeed(&mut on(&place, "chmod", &["4711", "/tree/other"]));
    succeed(&mut on(
        &place,
        "mkdir",
        &["-p", &format!("/{0}/{0}", "d".repeat(120))],
    ));
    let tar = place.point.join("tar");
    succeed(on(&place, "export", &["-o"]).arg(&tar));
    let again = Place::empty();
    succeed(pext4(["build"]).arg(&again.image).arg(&tar));
    again.check();
    let (first, second) = (place.point.join("first"), place.point.join("second"));
    succeed(on(&place, "get", &["/"]).arg(&first));
    succeed(on(&again, "get", &["/"]).arg(&second));
    succeed(
        Command::new("diff")
            .args(["-r", "--no-dereference"])
            .arg(&first)
            .arg(&second),
    );
    assert_eq!(listing(&first), listing(&second));
}

/// Standard output is for one of them, the archive or the report.
#[test]
fn an_export_says_what_is_missing() {
    let place = image("16M");
    succeed(&mut on(&place, "mknod", &["/socket", "s"]));
    with_input(&mut on(&place, "put", &["-", "/file"]), &[7; 5000]);
    let name = std::ffi::OsStr::from_bytes(b"odd\xff.tar");
    let tar = place.point.join(name);
    let said = succeed(on(&place, "export", &["--json", "-q", "-o"]).arg(&tar));
    let report: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    let numbers = [
        "files",
        "bytes",
        "sockets_left",
        "flags_left",
        "unreadable_left",
    ];
    let numbers = numbers.map(|name| report[name].as_u64().expect("a number"));
    // The root, lost+found and the file.
    assert_eq!(numbers, [3, 5000, 1, 0, 0], "{report}");
    let path = report["path_hex"].as_str().expect("it is no UTF-8");
    assert!(path.ends_with("6f6464ff2e746172"), "{path}");
    for more in [&[][..], &["-o", "-"]] {
        let told = fail(on(&place, "export", &["--json"]).args(more), 2);
        assert!(told.contains("give -o FILE"), "{told}");
    }
    // A copy on the host is named in the same way.
    let copy = place.point.join(std::ffi::OsStr::from_bytes(b"copy\xff"));
    let said = succeed(on(&place, "get", &["--json", "/file"]).arg(&copy));
    let report: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    let path = report["path_hex"].as_str().expect("it is no UTF-8");
    assert!(path.ends_with("636f7079ff"), "{path}");
}

/// A file counts once, whatever the number of its names, and how it is stored does not count.
#[test]
fn an_export_tells_of_flags() {
    let place = image("16M");
    succeed(&mut on(&place, "mkdir", &["/directory"]));
    for file in ["/plain", "/file", "/directory/other"] {
        with_input(&mut on(&place, "put", &["-", file]), b"content");
    }
    succeed(&mut on(&place, "ln", &["/file", "/second"]));
    let told = |options: &[&str]| {
        let mut export = on(&place, "export", options);
        let output = run(export.arg("-o").arg(place.point.join("tar")));
        assert!(output.status.success(), "{output:?}");
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        (told, String::from_utf8_lossy(&output.stdout).into_owned())
    };
    assert_eq!(told(&[]).0, "");
    succeed(&mut on(&place, "chattr", &["+i", "/file"]));
    let one = "pext4: 1 file has flags of chattr, which are not in the archive\n";
    assert_eq!(told(&[]).0, one);
    succeed(&mut on(&place, "chattr", &["+D", "/directory"]));
    let two = "pext4: 2 files have flags of chattr, which are not in the archive\n";
    assert_eq!(told(&[]).0, two);
    assert_eq!(told(&["-q"]).0, "");
    let (said, report) = told(&["--json"]);
    let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    assert_eq!((&*said, &report["flags_left"]), ("", &2.into()));
}

#[test]
fn a_hard_link_to_a_directory_is_called_that() {
    let place = image("16M");
    let mut header = [0u8; 512];
    header[..1].copy_from_slice(b"b");
    header[100..107].copy_from_slice(b"0000644");
    header[124..135].copy_from_slice(b"00000000000");
    header[136..147].copy_from_slice(b"00000000000");
    header[156] = b'1';
    header[157..167].copy_from_slice(b"lost+found");
    header[257..265].copy_from_slice(b"ustar\x0000");
    header[148..156].fill(b' ');
    let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
    header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    let archive = [&header[..], &[0; 1024]].concat();
    let ended = with_input(&mut on(&place, "edit", &["--tar", "-"]), &archive);
    let told = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(!ended.status.success(), "{told}");
    assert!(told.contains("hard link to a directory"), "{told}");
    place.check();
}
