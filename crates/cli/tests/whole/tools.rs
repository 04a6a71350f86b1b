//! Commands that read images without mounting them.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::process::Command;

use pext4_testkit::shared_names::{self, FITTING, NAMES, Placement};
use serde_json::Value;

use crate::common::{Place, fail, has, pext4, run, succeed};

/// An image that upstream's tool filled, or `None` without that tool.
fn filled() -> Option<Place> {
    if !has("mke2fs") {
        return None;
    }
    let place = Place::empty();
    let files = place.point.join("files");
    fs::create_dir_all(files.join("directory/inner")).expect("a fresh place");
    fs::write(files.join("directory/file"), b"content\n").expect("a fresh place");
    fs::write(files.join("a\x1b[31mb"), b"").expect("a fresh place");
    std::os::unix::fs::symlink("directory/../directory", files.join("link"))
        .expect("a fresh place");
    std::os::unix::fs::symlink("loop", files.join("loop")).expect("a fresh place");
    std::os::unix::fs::symlink("/link/file", files.join("absolute")).expect("a fresh place");
    let mut mke2fs = Command::new("mke2fs");
    mke2fs
        .args(["-q", "-t", "ext4", "-L", "a label", "-d"])
        .arg(&files);
    succeed(mke2fs.arg(&place.image).arg("16M"));
    Some(place)
}

#[test]
fn a_listing_is_for_people_or_for_programs() {
    let Some(place) = filled() else { return };
    let text = succeed(pext4(["ls"]).arg(&place.image));
    assert!(text.contains("a\\x1b[31mb"), "{text}");
    assert!(text.contains("link -> directory/../directory"), "{text}");
    assert!(
        text.lines()
            .any(|line| line.starts_with("drwx") && line.ends_with("  directory"))
    );
    let json = succeed(pext4(["ls", "--json"]).arg(&place.image).arg("link"));
    let files: Value = serde_json::from_str(&json).unwrap();
    let names: Vec<_> = files
        .as_array()
        .unwrap()
        .iter()
        .map(|file| &file["name"])
        .collect();
    assert_eq!(names, ["file", "inner"]);
    assert_eq!(files[0]["size"], 8);
    assert_eq!(files[1]["type"], "directory");
}

/// With a closed pipe, as in `pext4 mkfs ... | head -1`, the command does its work and prints no
/// error about the pipe.
#[test]
fn nobody_need_read_what_a_command_says() {
    let place = Place::empty();
    let host = place.point.join("host");
    fs::create_dir_all(&place.point).expect("a fresh place");
    fs::write(&host, b"content\n").expect("a fresh place");
    let image = place.image.as_os_str();
    let make = [OsStr::new("mkfs"), image, "--size".as_ref(), "16M".as_ref()];
    let put = [OsStr::new("put"), image, host.as_ref(), "/copied".as_ref()];
    let resize = [OsStr::new("resize"), image, "32M".as_ref()];
    for words in [&make[..], &put[..], &resize[..]] {
        let (reader, writer) = std::io::pipe().expect("the system has pipes");
        drop(reader);
        let output = pext4(words).stdout(writer).output().expect("it starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success() && said.is_empty(),
            "{words:?}: {said}"
        );
    }
    let copied = succeed(pext4(["cat"]).arg(&place.image).arg("/copied"));
    assert_eq!(copied, "content\n");
    let length = fs::metadata(&place.image).expect("it is there").len();
    assert_eq!(length, 32 << 20);
    // With standard error closed too, the status is the same.
    let (reader, writer) = std::io::pipe().expect("the system has pipes");
    drop(reader);
    let ended = pext4(["ls", "/does/not/exist"]).stderr(writer).status();
    assert_eq!(ended.expect("it starts").code(), Some(1));
}

#[test]
fn content_comes_out_as_it_is() {
    let Some(place) = filled() else { return };
    let read = succeed(
        pext4(["cat"])
            .arg(&place.image)
            .args(["absolute", "/directory/file"]),
    );
    assert_eq!(read, "content\ncontent\n");
    let said = fail(pext4(["cat"]).arg(&place.image).arg("directory/file/"), 1);
    assert!(said.contains("directory/file/: not a directory"), "{said}");
    let said = fail(pext4(["cat"]).arg(&place.image).arg("/"), 1);
    assert!(said.contains("/: it is a directory"), "{said}");
    let said = fail(pext4(["cat"]).arg(&place.image).arg("directory"), 1);
    assert!(said.contains("it is a directory"), "{said}");
    let said = fail(pext4(["cat"]).arg(&place.image).arg("missing"), 1);
    assert!(
        said.contains("missing: no such file or directory"),
        "{said}"
    );
    let said = fail(pext4(["cat"]).arg(&place.image).arg("loop"), 1);
    assert!(said.contains("symbolic links"), "{said}");
    let paths = ["missing", "absolute", "directory", "/directory/file"];
    let mut command = pext4(["cat"]);
    let ended = command.arg(&place.image).args(paths).output();
    let ended = ended.expect("it runs");
    assert_eq!(ended.status.code(), Some(1));
    assert_eq!(ended.stdout, b"content\ncontent\n");
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(said.lines().count(), 2, "{said}");
}

#[test]
fn a_file_is_told_whole() {
    let Some(place) = filled() else { return };
    let text = succeed(
        pext4(["stat", "--extents"])
            .arg(&place.image)
            .arg("directory/file"),
    );
    assert!(text.contains("8 bytes, 1 KiB allocated"), "{text}");
    let json = succeed(
        pext4(["stat", "--json", "--extents"])
            .arg(&place.image)
            .arg("directory/file"),
    );
    let file: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(file["type"], "file");
    assert_eq!(file["extents"].as_array().unwrap().len(), 1);
    let offset = file["extents"][0]["device_offset"].as_u64().unwrap();
    let image = fs::read(&place.image).unwrap();
    assert_eq!(
        &image[usize::try_from(offset).unwrap()..][..8],
        b"content\n"
    );
    let json = succeed(pext4(["stat", "--json"]).arg(&place.image).arg("link"));
    let link: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(link["target"], "directory/../directory");
    let text = succeed(pext4(["stat"]).arg(&place.image).arg("link"));
    assert!(!text.contains("Flags"), "there are none: {text}");
}

#[test]
fn a_tree_is_drawn_or_listed() {
    let Some(place) = filled() else { return };
    let text = succeed(pext4(["tree"]).arg(&place.image));
    assert!(
        text.contains("|-- directory/\n|   |-- file  (8 bytes)\n|   `-- inner/\n"),
        "{text}"
    );
    assert!(
        text.ends_with("3 directories, 5 files, 8 bytes\n"),
        "{text}"
    );
    let flat = succeed(pext4(["tree", "--depth", "1"]).arg(&place.image));
    assert!(!flat.contains("inner"), "{flat}");
    let root = succeed(pext4(["tree", "--depth", "0"]).arg(&place.image));
    assert!(!root.contains("directory/"), "{root}");
    let json = succeed(
        pext4(["tree", "--json"])
            .arg(&place.image)
            .arg("/directory"),
    );
    let names: Vec<String> = json
        .lines()
        .map(|line| {
            serde_json::from_str::<Value>(line).unwrap()["name"]
                .as_str()
                .unwrap()
                .to_owned()
        })
        .collect();
    assert_eq!(names, ["/directory/file", "/directory/inner"]);
}

/// No sound image has it.
#[test]
fn a_second_name_of_a_directory_counts_once_and_is_told() {
    let Some(place) = filled() else { return };
    let request = ["-w", "-R", "ln /directory /twice"];
    succeed(Command::new("debugfs").args(request).arg(&place.image));
    for depth in ["9", "1"] {
        let mut tree = pext4(["tree", "--depth", depth]);
        let ended = run(tree.arg(&place.image));
        assert_eq!(ended.status.code(), Some(1), "{ended:?}");
        let told = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(
            told.starts_with("pext4: /twice: a second name of a directory"),
            "{told}"
        );
        let text = String::from_utf8_lossy(&ended.stdout).into_owned();
        let directories = if depth == "9" { "3" } else { "2" };
        let count = format!("\n{directories} directories, ");
        assert!(text.contains(&count), "{text}");
    }
}

/// The names of all directories on the way are kept at a time.
#[test]
fn a_tree_of_directories_that_share_their_names_has_an_end() {
    let place = Place::empty();
    let made = shared_names::make(&place.image, Placement::InOneAnother);
    made.expect("mke2fs and debugfs are there");
    let ended = run(pext4(["tree"]).arg(&place.image));
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    let told = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(told.starts_with("pext4: /!/!/!"), "{told}");
    assert!(told.contains("larger than the file system"), "{told}");
    assert_eq!(told.lines().count(), 1, "{told}");
    // With lost+found; the last directory is shown, but not what is in it. With two files.
    let (directories, files) = (FITTING + 1 + 1, FITTING * NAMES + 2);
    let text = String::from_utf8_lossy(&ended.stdout).into_owned();
    let count = format!("\n{directories} directories, {files} files, ");
    assert!(text.contains(&count), "{}", &text[text.len() - 200..]);
}

#[test]
fn an_image_says_what_it_is() {
    let Some(place) = filled() else { return };
    let text = succeed(pext4(["info"]).arg(&place.image));
    assert!(
        text.lines()
            .any(|line| line.split_whitespace().eq(["Label", "a", "label"])),
        "{text}"
    );
    let json = succeed(pext4(["info", "--json"]).arg(&place.image));
    let info: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(info["size"], 16 << 20);
    assert_eq!(info["state"], "clean");
    let features = info["features"].as_array().unwrap();
    assert!(
        features.contains(&Value::from("extent")) || features.contains(&Value::from("extents"))
    );
}

#[test]
fn a_reaction_to_errors_that_is_none_is_that_of_a_mount() {
    let Some(place) = filled() else { return };
    for (number, word) in [(0, "remount-ro"), (1, "continue"), (7, "remount-ro")] {
        let mut debugfs = Command::new("debugfs");
        debugfs.args(["-w", "-R", &format!("set_super_value errors {number}")]);
        succeed(debugfs.arg(&place.image));
        let json = succeed(pext4(["info", "--json"]).arg(&place.image));
        let info: Value = serde_json::from_str(&json).unwrap();
        assert_eq!(info["on_error"], word, "{number}");
    }
}

#[test]
fn an_image_that_was_cut_short_or_is_damaged_still_says_what_it_is() {
    let place = Place::empty();
    succeed(pext4(["mkfs", "-q", "--size", "16M", "-L", "whole"]).arg(&place.image));
    let file = fs::OpenOptions::new().write(true).open(&place.image);
    let file = file.expect("it was made");
    file.set_len(10 << 20).expect("it is shortened");
    let json = succeed(pext4(["info", "--json"]).arg(&place.image));
    let info: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (&info["size"], &info["missing"]),
        (&(16 << 20).into(), &(6 << 20).into())
    );
    let text = succeed(pext4(["info"]).arg(&place.image));
    assert!(text.contains("the last 6 MiB"), "{text}");
    let refused = fail(pext4(["ls"]).arg(&place.image).arg("/"), 1);
    assert!(refused.contains("truncate -s +6291456"), "{refused}");

    // The label is a part of what has a checksum.
    file.write_all_at(b"W", 1024 + 0x78).expect("it is open");
    let shown = run(pext4(["info"]).arg(&place.image));
    assert!(shown.status.success(), "{shown:?}");
    let [text, said] = [shown.stdout, shown.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    assert!(text.contains("Whole"), "{text}");
    assert!(
        said.contains("checksum") && said.contains("e2fsck"),
        "{said}"
    );
}

#[test]
fn what_is_no_image_is_named() {
    let place = Place::empty();
    let mut qcow2 = vec![0; 1 << 16];
    qcow2[..4].copy_from_slice(b"QFI\xFB");
    for (content, name) in [
        (&qcow2[..], "qemu-img convert"),
        (b"\x1F\x8B\x08", "gzip -d"),
    ] {
        fs::write(&place.image, content).expect("a fresh place");
        for words in [&["info"][..], &["check"], &["ls", "/"], &["mkdir", "/new"]] {
            let (command, paths) = words.split_first().expect("a command");
            let said = run(pext4([*command]).arg(&place.image).args(paths));
            assert!(!said.status.success(), "{said:?}");
            let said = String::from_utf8_lossy(&said.stderr).into_owned();
            assert!(said.contains(name), "{command}: {said}");
        }
        let mut mount = pext4(["mount"]);
        let said = fail(mount.arg(&place.image).arg(&place.point), 1);
        assert!(said.contains(name), "{said}");
    }
}

#[test]
fn programs_get_text_as_it_is_and_bytes_where_it_is_none() {
    if !has("mke2fs") {
        return;
    }
    let place = Place::empty();
    let files = place.point.join("files");
    fs::create_dir_all(&files).expect("a fresh place");
    std::os::unix::fs::symlink(OsStr::from_bytes(b"to\xff"), files.join("link"))
        .expect("a fresh place");
    let mut mke2fs = Command::new("mke2fs");
    mke2fs
        .args(["-q", "-t", "ext4", "-L", "a\\b", "-d"])
        .arg(&files);
    succeed(mke2fs.arg(&place.image).arg("16M"));
    let json = succeed(pext4(["info", "--json"]).arg(&place.image));
    let info: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(info["label"], "a\\b");
    let created = info["created"].as_str().expect("a date");
    assert!(created.contains('T') && created.ends_with('Z'), "{created}");
    let json = succeed(pext4(["ls", "--json"]).arg(&place.image).arg("/"));
    assert!(json.contains("\"target_hex\": \"746fff\""), "{json}");
    let mut command = Command::new("tune2fs");
    succeed(
        command
            .args([OsStr::new("-L"), OsStr::from_bytes(b"\xff")])
            .arg(&place.image),
    );
    let json = succeed(pext4(["info", "--json"]).arg(&place.image));
    let info: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(info["label_hex"], "ff");
}

#[test]
fn what_cannot_be_read_does_not_hide_the_rest() {
    let place = Place::empty();
    let Some(names) = place.make_with_damaged_directory() else {
        return;
    };
    for (command, path) in [("ls", "/damaged"), ("tree", "/")] {
        let mut command = pext4([command]);
        let ended = command.arg(&place.image).arg(path).output();
        let ended = ended.expect("it runs");
        let shown = String::from_utf8_lossy(&ended.stdout).into_owned();
        assert_eq!(ended.status.code(), Some(1), "{shown}");
        for name in &names {
            assert!(shown.contains(name), "{name} is hidden: {shown}");
        }
        assert!(path != "/" || shown.contains("other"), "{shown}");
        let (reader, writer) = std::io::pipe().expect("the system has pipes");
        drop(reader);
        let unread = command.stdout(writer).output().expect("it runs");
        assert_eq!(unread.status.code(), Some(1), "{unread:?}");
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(
            said.contains("directory") && said.contains("e2fsck"),
            "{said}"
        );
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

/// Names that no lookup finds are listed, as by any program that reads the directory.
#[test]
fn a_wrong_index_hides_no_name_from_a_listing() {
    let place = Place::empty();
    let files = place.point.join("files");
    fs::create_dir_all(&files).expect("a fresh place");
    let names: Vec<String> = (0..200).map(|number| format!("number-{number}")).collect();
    for name in &names {
        fs::write(files.join(name), name).expect("a fresh place");
    }
    let mut build = pext4(["build", "-b", "1024", "-O", "^metadata_csum", "--no-sync"]);
    // So that each run hashes alike.
    build.args(["--hash-seed", "6ba7b810-9dad-11d1-80b4-00c04fd430c8"]);
    succeed(build.arg(&place.image).arg(&files));
    let image = fs::OpenOptions::new().write(true).open(&place.image);
    // The seed of the hashes.
    let written = image
        .expect("the image")
        .write_all_at(&[0; 16], 1024 + 0xEC);
    written.expect("it is there");
    fail(pext4(["cat"]).arg(&place.image).arg("/number-7"), 1);
    for command in ["ls", "tree"] {
        let shown = succeed(pext4([command]).arg(&place.image).arg("/"));
        let missing = names.iter().find(|name| !shown.contains(*name));
        assert_eq!(missing, None, "{command}: {shown}");
    }
}

#[test]
fn what_is_no_image_is_refused_by_every_command() {
    let place = Place::empty();
    fs::write(&place.image, vec![0; 1 << 20]).unwrap();
    for command in ["info", "ls", "cat", "stat", "tree"] {
        let mut command = pext4([command]);
        command.arg(&place.image);
        if !command.get_args().any(|word| word == "info") {
            command.arg("/");
        }
        let said = fail(&mut command, 1);
        assert!(
            said.starts_with("pext4: ") && said.contains("superblock"),
            "{said}"
        );
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    fs::write(&place.image, b"short").unwrap();
    fail(pext4(["info"]).arg(&place.image), 1);
    let said = fail(&mut pext4(["ls", "/does/not/exist"]), 1);
    assert!(said.contains("/does/not/exist"), "{said}");
    fail(&mut pext4(["ls"]), 2);
}

/// Opening a pipe without a writer would block.
#[test]
fn a_pipe_is_no_image() {
    let place = Place::empty();
    succeed(Command::new("mkfifo").arg(&place.image));
    for arguments in [&["info"][..], &["ls"], &["mkfs", "--size", "64M"]] {
        let said = fail(pext4(arguments).arg(&place.image), 1);
        assert!(said.contains("neither a regular file"), "{said}");
    }
}

#[test]
fn a_reader_who_has_had_enough_is_no_error() {
    let Some(place) = filled() else { return };
    for words in [&["ls"][..], &["ls", "--json"], &["tree", "--json"]] {
        let (reader, writer) = std::io::pipe().expect("the system has pipes");
        drop(reader);
        let mut command = pext4(words);
        let output = command.arg(&place.image).stdout(writer).output();
        let output = output.expect("it starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success() && said.is_empty(),
            "{words:?}: {said}"
        );
    }
}

/// Of a listing the reader has seen enough; of content a part is missing. The status is that of a
/// process that the signal of the pipe ends.
#[test]
fn content_that_nobody_reads_to_its_end_was_not_written() {
    let place = Place::empty();
    let host = place.point.join("host");
    fs::write(&host, vec![7; 1 << 20]).expect("a fresh place");
    succeed(pext4(["mkfs", "-q", "--size", "16M"]).arg(&place.image));
    succeed(
        pext4(["put", "-q"])
            .arg(&place.image)
            .arg(&host)
            .arg("/file"),
    );
    for (verb, arguments) in [
        ("cat", &["/file"][..]),
        ("export", &[]),
        ("export", &["-o", "-"]),
        ("export", &["-o", "/dev/stdout"]),
    ] {
        let (reader, writer) = std::io::pipe().expect("the system has pipes");
        drop(reader);
        let mut command = pext4([verb]);
        let output = command.arg(&place.image).args(arguments).stdout(writer);
        let output = output.output().expect("it starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(
            output.status.code(),
            Some(141),
            "{verb} {arguments:?}: {said}"
        );
        assert!(said.is_empty(), "{verb} {arguments:?}: {said}");
    }
}

#[test]
fn quotas_are_told_where_they_are_counted() {
    let place = Place::empty();
    succeed(pext4(["mkfs", "--size", "32M", "-O", "quota,project"]).arg(&place.image));
    succeed(pext4(["mkdir"]).arg(&place.image).arg("/home"));
    succeed(
        pext4(["chown"])
            .arg(&place.image)
            .args(["1000:100", "/home"]),
    );
    let text = succeed(pext4(["quota"]).arg(&place.image));
    let lines: Vec<Vec<&str>> = text
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert!(lines[0].starts_with(&["owner", "id", "space"]), "{text}");
    for line in ["user 1000 1 KiB - - 1 - -", "group 100 1 KiB - - 1 - -"] {
        let words: Vec<_> = line.split(' ').collect();
        assert!(lines.contains(&words), "{line}: {text}");
    }
    let json = succeed(pext4(["quota", "--json"]).arg(&place.image));
    let told: Value = serde_json::from_str(&json).unwrap();
    let image = place.image.to_str().expect("text");
    assert_eq!(told["image"], image);
    let of_home = &told["users"][1];
    assert_eq!(
        (&of_home["id"], &of_home["space"]),
        (&1000.into(), &1024.into())
    );
    assert_eq!(
        (&of_home["inodes"], &of_home["hard_space"]),
        (&1.into(), &0.into())
    );
    assert_eq!(told["projects"].as_array().map(Vec::len), Some(1));

    succeed(pext4(["mkfs", "--force", "--size", "32M", "-O", "quota"]).arg(&place.image));
    let json = succeed(pext4(["quota", "--json"]).arg(&place.image));
    assert!(!json.contains("projects"), "{json}");
    succeed(pext4(["mkfs", "--force", "--size", "32M"]).arg(&place.image));
    let refused = fail(pext4(["quota"]).arg(&place.image), 1);
    assert!(refused.contains("lacks the feature quota"), "{refused}");
}
