//! Editing images from the command line: verbs, scripts, tars, and killed edits.

mod common;

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{Place, fail, has, pext4, run, succeed};
use pext4_block::{Access, FileDevice};
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use serde_json::Value;

fn image(size: &str) -> Place {
    let place = Place::empty();
    succeed(pext4(["mkfs", "-q", "--size", size]).arg(&place.image));
    place
}

/// `pext4 VERB IMAGE ARGUMENTS`.
fn on(place: &Place, verb: &str, arguments: &[&str]) -> Command {
    let mut command = pext4([verb]);
    command.arg(&place.image).args(arguments);
    command
}

fn cat(place: &Place, path: &str) -> String {
    succeed(&mut on(place, "cat", &[path]))
}

fn stat(place: &Place, path: &str) -> Value {
    let text = succeed(&mut on(place, "stat", &["--json", path]));
    let stat: Value = serde_json::from_str(&text).expect("JSON");
    match stat {
        Value::Array(mut stats) => stats.remove(0),
        stat => stat,
    }
}

fn with_input(command: &mut Command, input: &[u8]) -> std::process::Output {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command can be started");
    // It may end before it has read everything.
    let _ = child.stdin.take().expect("piped").write_all(input);
    child.wait_with_output().expect("it ends")
}

#[test]
fn every_verb_is_a_command() {
    let place = image("16M");
    let host = place.point.join("file");
    fs::write(&host, b"from the host\n").expect("a fresh place");
    let host = host.to_str().expect("text").to_owned();
    let told = succeed(&mut on(&place, "put", &[&host, "/"]));
    assert!(told.starts_with("one transaction of "), "{told}");
    for (verb, arguments) in [
        ("mkdir", &["-p", "-m", "0750", "/a/b/c"][..]),
        (
            "put",
            &[&host, "/a/renamed", "--owner", "7:8", "--mode", "0600"],
        ),
        ("mv", &["/file", "/a/b"]),
        ("ln", &["/a/b/file", "/hard"]),
        ("ln", &["-s", "a/b/file", "/soft"]),
        ("chmod", &["g-x,o+r", "/a/b/c"]),
        ("chown", &["1000:1001", "-R", "/a/b"]),
        ("touch", &["-d", "2001-09-09T01:46:40.5Z", "/hard"]),
        ("setxattr", &["/hard", "user.note", "0x00ff"]),
        ("setxattr", &["/hard", "user.note", "-x"]),
        ("mknod", &["/null", "c", "1", "3"]),
        ("cp", &["-r", "/a", "/copy"]),
        ("rm", &["-r", "/a/b"]),
    ] {
        succeed(&mut on(&place, verb, arguments));
        place.check();
    }
    assert_eq!(cat(&place, "/copy/b/file"), "from the host\n");
    assert_eq!(cat(&place, "/hard"), "from the host\n");
    let hard = stat(&place, "/hard");
    assert_eq!((&hard["uid"], &hard["gid"]), (&1000.into(), &1001.into()));
    assert_eq!(hard["modified"], "2001-09-09T01:46:40.500000000Z");
    let renamed = stat(&place, "/a/renamed");
    assert_eq!(
        (&renamed["mode"], &renamed["uid"]),
        (&"0600".into(), &7.into())
    );
    assert_eq!(stat(&place, "/copy/b/c")["mode"], "0744");
    let out = with_input(&mut on(&place, "put", &["-", "/from/nowhere"]), b"x");
    assert!(String::from_utf8_lossy(&out.stderr).contains(" /from: no such file"));
    let out = with_input(&mut on(&place, "put", &["-", "/input", "-q"]), b"piped");
    assert!(out.status.success() && out.stdout.is_empty());
    assert_eq!(cat(&place, "/input"), "piped");
    let got = place.point.join("got");
    succeed(on(&place, "get", &["/copy"]).arg(&got));
    assert_eq!(
        fs::read(got.join("b/file")).expect("there"),
        b"from the host\n"
    );
}

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

/// A number from the seed that the environment gives, or another one each time.
fn seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    let given = std::env::var("PEXT4_SEED").ok();
    let given = given.and_then(|text| text.parse().ok());
    let seed = given.unwrap_or_else(|| RandomState::new().hash_one(0));
    println!("PEXT4_SEED={seed}");
    seed
}

fn kill_at_random(way: &str) {
    let place = image("64M");
    let tree = place.point.join("tree");
    fs::create_dir(&tree).expect("a fresh place");
    for number in 0..400 {
        fs::write(tree.join(number.to_string()), vec![1; 20_000]).expect("there is room");
    }
    let script = place.point.join("script");
    let text = format!("put '{}' /new\nrm -r /old\n", tree.display());
    fs::write(&script, text).expect("a fresh place");
    succeed(&mut on(&place, "mkdir", &["/old"]));
    let original = fs::read(&place.image).expect("readable");
    let mut random = seed();
    let mut seen = [0; 2];
    for _ in 0..12 {
        fs::write(&place.image, &original).expect("there is room");
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let mut child = on(&place, "edit", &["-q", "--by", way, "-f"])
            .arg(&script)
            .spawn()
            .expect("it starts");
        std::thread::sleep(Duration::from_millis((random >> 33) % 160));
        // It may have ended by itself.
        let _ = child.kill();
        let ended = child.wait().expect("it ends");
        assert!(ended.success() || ended.signal().is_some(), "{ended}");
        if has("e2fsck") {
            let told = run(Command::new("e2fsck").arg("-fy").arg(&place.image));
            assert!(matches!(told.status.code(), Some(0 | 1)), "{told:?}");
        }
        let names = succeed(&mut on(&place, "ls", &["/"]));
        let (old, new) = (names.contains("old"), names.contains("new"));
        assert_ne!(old, new, "one of them: {names}");
        if new {
            assert_eq!(cat(&place, "/new/399").len(), 20_000);
        }
        seen[usize::from(new)] += 1;
        place.check();
    }
    println!("{way}: {seen:?} old and new");
    // A leftover clone beside the image does not matter.
    succeed(&mut on(&place, "touch", &["--by", way, "/last"]));
    let directory = place.image.parent().unwrap_or(Path::new("/"));
    let left = fs::read_dir(directory).expect("there").count();
    assert_eq!(left, 2, "the image and the directory beside it");
}

#[test]
fn a_killed_edit_is_made_or_not_by_the_journal() {
    kill_at_random("journal");
}

#[test]
fn a_killed_edit_is_made_or_not_by_a_clone() {
    kill_at_random("clone");
}

/// As chown(2) does, for root too.
#[test]
fn who_owns_a_file_anew_gets_no_rights_of_the_old_owner() {
    let place = image("16M");
    let host = place.point.join("file");
    fs::write(&host, b"a program").expect("a fresh place");
    let host = host.to_str().expect("text").to_owned();
    for (before, after) in [("6755", "755"), ("6745", "2745"), ("1644", "1644")] {
        succeed(&mut on(&place, "put", &[&host, "/file"]));
        succeed(&mut on(&place, "chmod", &[before, "/file"]));
        let capability = [
            "/file",
            "security.capability",
            "0x0100000200040000000000000000000000000000",
        ];
        succeed(&mut on(&place, "setxattr", &capability));
        succeed(&mut on(&place, "chown", &["1000:1000", "/file"]));
        let stat = stat(&place, "/file");
        let mode = stat["mode"].as_str().expect("text");
        assert_eq!(mode.trim_start_matches('0'), after, "{before}");
        assert_eq!(stat["xattrs"], serde_json::json!([]), "{before}");
    }
    succeed(&mut on(&place, "mkdir", &["/folder"]));
    succeed(&mut on(&place, "chmod", &["2755", "/folder"]));
    succeed(&mut on(&place, "chown", &["1000:1000", "/folder"]));
    assert_eq!(stat(&place, "/folder")["mode"], "2755");
    place.check();
}

#[test]
fn what_is_refused_is_named() {
    let place = image("16M");
    with_input(&mut on(&place, "put", &["-", "/file"]), b"text");
    let told = fail(&mut on(&place, "chown", &["1000:", "/file"]), 1);
    assert!(told.contains("write USER:GROUP"), "{told}");
    assert_eq!(stat(&place, "/file")["uid"], 0, "it is as it was");
    let folder = place.image.parent().expect("it lies in one");
    let told = fail(
        pext4(["edit"]).arg(&place.image).arg("--tar").arg(folder),
        1,
    );
    let named = format!("{}: cannot read the tar", folder.display());
    assert!(told.contains(&named), "{told}");
    let script = folder.join("script");
    fs::write(&script, "put ./x\n").expect("room");
    let told = fail(pext4(["edit"]).arg(&place.image).arg("-f").arg(&script), 2);
    assert!(told.contains("script:1: ") && told.contains('<'), "{told}");
}

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

/// A command does not wait for a lock that it holds itself.
#[test]
fn a_copy_from_the_image_itself_is_refused_at_once() {
    let place = image("16M");
    succeed(&mut on(&place, "touch", &["/file"]));
    let hard = place.point.join("hard");
    fs::hard_link(&place.image, &hard).expect("a fresh place");
    let started = std::time::Instant::now();
    for image in [&place.image, &hard] {
        let mut copy = on(&place, "cp", &["/file", "/copy", "--from"]);
        let told = fail(copy.arg(image), 1);
        assert!(told.contains("without `--from`"), "{told}");
    }
    assert!(started.elapsed() < Duration::from_secs(5), "nobody waited");
}

/// An empty path, as from a variable that a script has not set, is not the root.
#[test]
fn an_empty_path_is_refused_by_every_verb() {
    let place = image("16M");
    let host = place.point.join("file");
    fs::write(&host, b"content").expect("a fresh place");
    let host = host.to_str().expect("text").to_owned();
    succeed(&mut on(&place, "put", &[&host, "/file"]));
    let before = fs::read(&place.image).expect("an image");
    for (verb, arguments) in [
        ("chown", &["-R", "77:77", ""][..]),
        ("chown", &["77:77", ""]),
        ("chmod", &["-R", "0", ""]),
        ("put", &[&host, ""]),
        ("put", &["-", ""]),
        ("rm", &["-rf", ""]),
        ("mv", &["", "/x"]),
        ("mv", &["/file", ""]),
        ("mkdir", &[""]),
        ("mkdir", &["-p", ""]),
        ("ln", &["", "/x"]),
        ("ln", &["-s", "x", ""]),
        ("mknod", &["", "p"]),
        ("touch", &[""]),
        ("setxattr", &["", "user.a", "b"]),
        ("cp", &["-r", "", "/x"]),
        ("cp", &["/file", ""]),
        ("ls", &[""]),
        ("tree", &[""]),
        ("stat", &[""]),
        ("cat", &[""]),
        ("export", &[""]),
        ("get", &["", "/nowhere"]),
    ] {
        let told = fail(&mut on(&place, verb, arguments), 1);
        assert!(told.contains("an empty path"), "{verb}: {told}");
    }
    assert!(fs::read(&place.image).expect("an image") == before);
    // A name without a slash lies in the root all the same.
    succeed(&mut on(&place, "mv", &["file", "other"]));
    assert_eq!(cat(&place, "/other"), "content");
}

/// A list of names may claim any size, all of it a hole.
#[test]
fn names_of_owners_are_not_looked_up_in_a_file_without_end() {
    let place = image("16M");
    let host = place.point.join("passwd");
    let file = fs::File::create(&host).expect("a fresh place");
    file.set_len(3 << 30).expect("a hole");
    succeed(&mut on(&place, "mkdir", &["/etc"]));
    succeed(on(&place, "put", &[]).arg(&host).arg("/etc/passwd"));
    let told = fail(&mut on(&place, "chown", &["somebody", "/etc"]), 1);
    assert!(
        told.contains("/etc/passwd in the image has 3221225472 bytes"),
        "{told}"
    );
    succeed(&mut on(&place, "chown", &["7", "/etc"]));
}

#[test]
fn what_makes_no_sense_says_why() {
    let place = image("16M");
    succeed(&mut on(&place, "mkdir", &["-p", "/q/deeper"]));
    succeed(&mut on(&place, "touch", &["/file"]));
    for (verb, arguments, status, says) in [
        (
            "mv",
            &["/q", "/q/deeper"][..],
            1,
            "/q: it cannot go into itself, to /q/deeper/q",
        ),
        (
            "mv",
            &["/q", "/q/x"],
            1,
            "/q: it cannot go into itself, to /q/x",
        ),
        (
            "setxattr",
            &["/file", "foo", "bar"],
            1,
            "begins with user., trusted. or security.",
        ),
        (
            "setxattr",
            &["/file", "-x", "system.data"],
            1,
            "cannot be called `system.data`",
        ),
        (
            "put",
            &["/dev/null", "/n", "--mode", "+600"],
            2,
            "write it in octal",
        ),
        ("mkdir", &["-m", "+600", "/n"], 2, "write it in octal"),
        (
            "edit",
            &["-f", "script", "--into", "/q"],
            2,
            "cannot be used with",
        ),
    ] {
        let told = fail(&mut on(&place, verb, arguments), status);
        assert!(told.contains(says), "{verb}: {told}");
    }
    let told = fail(&mut on(&place, "tree", &["/file"]), 1);
    let named = format!("{}: /file: it is no directory", place.image.display());
    assert!(told.contains(&named), "{told}");
}

#[test]
fn moves_and_links_enter_no_directory_where_they_are_told_so() {
    let place = image("16M");
    let script =
        "mkdir /old\nmkdir /new\nmkdir /empty\nln -s /old /current\ntouch /file /old/kept\n";
    assert!(
        with_input(&mut on(&place, "edit", &["-f", "-"]), script.as_bytes())
            .status
            .success()
    );
    succeed(&mut on(
        &place,
        "ln",
        &["-s", "-f", "-n", "/new", "/current"],
    ));
    assert!(succeed(&mut on(&place, "stat", &["/current"])).contains("/new"));
    let names_in = |directory: &str| -> Vec<String> {
        let listing = succeed(&mut on(&place, "ls", &[directory]));
        let names = listing.lines().filter_map(|line| line.split_once(" UTC  "));
        names.map(|(_, name)| name.to_owned()).collect()
    };
    assert_eq!(names_in("/old"), ["kept"]);
    // A directory itself is entered by -n, and not by -T.
    succeed(&mut on(&place, "ln", &["-s", "-n", "/new", "/old"]));
    assert_eq!(names_in("/old"), ["kept", "new -> /new"]);
    for (verb, arguments, named) in [
        ("ln", &["-s", "-f", "-T", "/new", "/old"][..], "/old"),
        ("mv", &["-T", "/file", "/empty"], "/empty"),
        ("mv", &["-T", "/empty", "/old"], "/old"),
        ("mv", &["-T", "/file", "/new/file/"], "/new/file/"),
        ("mv", &["-T", "/file", "/"], "must end in a name"),
    ] {
        let told = fail(&mut on(&place, verb, arguments), 1);
        assert!(told.contains(named), "{told}");
    }
    succeed(&mut on(&place, "mv", &["-T", "/new", "/empty"]));
    let names = names_in("/");
    assert!(names.contains(&"empty".to_owned()) && !names.contains(&"new".to_owned()));
    // An existing file stays, also in a directory into which the file would be moved.
    succeed(&mut on(&place, "mv", &["-n", "/file", "/old/kept"]));
    succeed(&mut on(&place, "mv", &["-n", "/file", "/empty"]));
    assert_eq!(names_in("/empty"), ["file"]);
    place.check();
}

#[test]
fn rm_by_force_passes_over_what_cannot_be_there() {
    let place = image("16M");
    let host = place.point.join("file");
    fs::write(&host, b"content").expect("a fresh place");
    succeed(on(&place, "put", &[]).arg(&host).arg("/"));
    succeed(&mut on(&place, "rm", &["-f", "/missing", "/file/x"]));
    fail(&mut on(&place, "rm", &["/file/x"]), 1);
    assert_eq!(cat(&place, "/file"), "content");
}

#[test]
fn an_archive_that_is_replaced_keeps_its_mode() {
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
}

/// Directories get a mode that keeps their owner out only when all their entries exist.
#[test]
fn closed_directories_are_copied_out_and_leave_nothing_when_that_fails() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can become another user");
        return;
    }
    let place = image("16M");
    let host = place.point.join("tree");
    for folder in ["closed", "dark", "open"] {
        fs::create_dir_all(host.join(folder)).expect("a fresh place");
        fs::write(host.join(folder).join("file"), folder).expect("there is room");
    }
    fs::hard_link(host.join("dark/file"), host.join("open/again")).expect("there is room");
    let (kind, access) = (FileType::CharacterDevice, Mode::RWXU);
    if mknodat(CWD, host.join("zero"), kind, access, makedev(1, 5)).is_err() {
        eprintln!("SKIPPED: no device can be made here");
        return;
    }
    succeed(on(&place, "put", &[]).arg(&host).arg("/"));
    succeed(&mut on(&place, "chmod", &["555", "/tree/closed"]));
    succeed(&mut on(&place, "chmod", &["000", "/tree/dark"]));
    let program = place.point.join("pext4");
    fs::copy(env!("CARGO_BIN_EXE_pext4"), &program).expect("there is room");
    let out = place.point.join("out");
    fs::create_dir(&out).expect("a fresh place");
    std::os::unix::fs::chown(&out, Some(1000), Some(1000)).expect("we are root");
    let get = || {
        let mut command = Command::new(&program);
        command.args(["get", "-q"]).arg(&place.image).arg("/tree");
        command.arg(&out).uid(1000).gid(1000).current_dir(&out);
        command
    };
    succeed(get().arg("--skip-devices"));
    let mode = |name: &str| {
        let found = fs::metadata(out.join("tree").join(name)).expect("it was copied");
        found.permissions().mode() & 0o7777
    };
    assert_eq!([mode("closed"), mode("dark")], [0o555, 0]);
    assert_eq!(
        fs::read(out.join("tree/open/again")).expect("there"),
        b"dark"
    );
    fs::remove_dir_all(out.join("tree")).expect("we are root");
    // A device, which no ordinary user can make, comes last.
    let failed = run(&mut get());
    assert!(!failed.status.success(), "{failed:?}");
    let left: Vec<_> = fs::read_dir(&out).expect("it is there").collect();
    assert!(left.is_empty(), "{left:?}");
}
