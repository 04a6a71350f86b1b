//! The effects of the options.

use std::fs;

use serde_json::Value;

use super::images::{Workshop, complaint, json, names};
use super::pack::Packer;
use crate::common::{fail, pext4, run, succeed, with_input};

fn small() -> Workshop {
    let workshop = Workshop::new();
    workshop.write("tree/usr/bin/tool", b"tool");
    workshop.write("tree/usr/lib/cache.pyc", b"x");
    workshop.write("tree/usr/lib/code.py", b"code");
    workshop.write("tree/proc/1/status", b"x");
    workshop.write("tree/key.pem", b"secret");
    workshop
}

#[test]
fn everything_may_have_one_owner_and_one_time() {
    let workshop = small();
    let mut build = workshop.build(["--owner", "12:34", "--mtime", "2001-09-09T01:46:40Z"]);
    succeed(build.arg(workshop.path("tree")));
    workshop.check();
    for path in ["/", "/usr/bin/tool", "/proc/1"] {
        let stat = workshop.stat(path);
        assert_eq!(
            (&stat["uid"], &stat["gid"]),
            (&12.into(), &34.into()),
            "{path}"
        );
        assert_eq!(stat["modified"], "2001-09-09T01:46:40.000000000Z", "{path}");
        assert_eq!(stat["created"], stat["modified"], "{path}");
    }
    let told = fail(workshop.build(["--owner", "12:staff"]).arg("tree"), 2);
    assert!(told.contains("write that of `staff`"), "{told}");
    let told = fail(workshop.build(["--mtime", "soon"]).arg("tree"), 2);
    assert!(told.contains("--mtime"), "{told}");
}

/// The forms of `chown`, and of the dates that `date` writes.
#[test]
fn owners_and_times_have_the_forms_of_other_tools() {
    let workshop = small();
    for (owner, uid, gid) in [
        ("12", 12, 99),
        (":34", 99, 34),
        ("root:root", 0, 0),
        ("root:", 0, 0),
    ] {
        let map = workshop.write("map", b"path * owner=99:99\n");
        let first = workshop.path("first");
        let mut base = pext4(["build", "-q", "-f", "--mtime", "2001-09-09T03:46:40+02:00"]);
        succeed(
            base.arg(&first)
                .arg(workshop.path("tree"))
                .arg("--map")
                .arg(&map),
        );
        let tar = workshop.path("tar");
        succeed(pext4(["export", "-q"]).arg(&first).arg("-o").arg(&tar));
        let mut build = workshop.build(["--force", "--owner", owner]);
        succeed(build.arg(&tar));
        let stat = workshop.stat("/usr/bin/tool");
        let found = (&stat["uid"], &stat["gid"]);
        assert_eq!(found, (&uid.into(), &gid.into()), "{owner}");
        assert_eq!(stat["modified"], "2001-09-09T01:46:40.000000000Z");
    }
}

#[test]
fn a_path_of_the_mapping_that_is_not_there_is_refused() {
    let workshop = small();
    let map = workshop.write(
        "map",
        b"path *.none mode=0600\n\npath /usr/bin/tol mode=0700\n",
    );
    let mut build = workshop.build(["--map"]);
    let told = fail(build.arg(&map).arg(workshop.path("tree")), 1);
    assert!(
        told.contains("line 3") && told.contains("`/usr/bin/tol`"),
        "{told}"
    );
    workshop.write(
        "map",
        b"path *.none mode=0600\n\npath /usr/bin/tool mode=0700\n",
    );
    let mut build = workshop.build(["--map"]);
    succeed(build.arg(&map).arg(workshop.path("tree")));
    assert_eq!(workshop.stat("/usr/bin/tool")["mode"], "0700");
}

#[test]
fn the_date_of_the_environment_is_the_latest() {
    let workshop = small();
    let build = |date: &str| {
        let mut command = workshop.build(["-q", "--force"]);
        command.arg(workshop.path("tree"));
        command.env("SOURCE_DATE_EPOCH", date);
        command
    };
    succeed(&mut build("1000000000"));
    workshop.check();
    let stat = workshop.stat("/usr/bin/tool");
    assert_eq!(stat["modified"], "2001-09-09T01:46:40.000000000Z");
    let told = fail(&mut build("soon"), 2);
    assert!(told.contains("SOURCE_DATE_EPOCH"), "{told}");
}

#[test]
fn names_and_paths_are_left_out() {
    let workshop = small();
    let mut build = workshop.build(["--exclude", "*.pyc", "--exclude", "/proc/"]);
    succeed(build.arg("--exclude=/usr/bin/*").arg(workshop.path("tree")));
    workshop.check();
    assert_eq!(workshop.names("/usr/lib"), ["code.py"]);
    assert!(workshop.names("/usr/bin").is_empty());
    assert_eq!(workshop.cat("/key.pem"), "secret");
    assert!(!workshop.names("/").contains(&"proc".to_owned()));
    let archive = Packer::new()
        .file("lib/a.pyc", b"x")
        .file("lib/a.py", b"x")
        .finish();
    let mut build = workshop.build(["--force", "--exclude", "*.pyc", "-"]);
    assert!(with_input(&mut build, &archive).status.success());
    workshop.check();
    assert_eq!(workshop.names("/lib"), ["a.py"]);
}

#[test]
fn a_mapping_file_changes_owners_modes_and_times() {
    let workshop = Workshop::new();
    let map = workshop.write(
        "map",
        b"uid 1000 0 10   # ten of them\ngid 100 50 1\npath *.pem mode=0600 mtime=@5\n\
          path /bin/tool owner=7:8 mode=4755\n",
    );
    let archive = Packer::new()
        .file("key.pem", b"secret")
        .file("bin/tool", b"x")
        .file("plain", b"x")
        .finish();
    let mut build = workshop.build(["--map"]);
    let output = with_input(build.arg(&map).arg("-"), &archive);
    assert!(output.status.success(), "{output:?}");
    workshop.check();
    let about = |path: &str| {
        let stat = workshop.stat(path);
        (
            stat["uid"].clone(),
            stat["gid"].clone(),
            stat["mode"].clone(),
        )
    };
    assert_eq!(about("/plain"), (0.into(), 50.into(), "0640".into()));
    assert_eq!(about("/key.pem"), (0.into(), 50.into(), "0600".into()));
    assert_eq!(about("/bin/tool"), (7.into(), 8.into(), "4755".into()));
    let key = workshop.stat("/key.pem");
    assert_eq!(key["modified"], "1970-01-01T00:00:05.000000000Z");
    let unsound = workshop.write("unsound", b"uid 1000 0 10\nuid many\n");
    let told = fail(
        workshop.build(["--force", "--map"]).arg(&unsound).arg("-"),
        2,
    );
    super::images::names(&told, &unsound);
    assert!(told.contains('2'), "the line: {told}");
}

fn free_share(summary: &Value) -> f64 {
    let number = |name: &str| summary[name].as_f64().expect("a number");
    number("free_blocks") / number("blocks")
}

#[test]
fn the_size_is_as_told_or_as_needed() {
    let workshop = small();
    workshop.write("tree/large", &vec![1; 24 << 20]);
    let tree = workshop.path("tree");
    let build = |options: &[&str]| {
        let summary = json(
            workshop
                .build(["--force", "--json"])
                .args(options)
                .arg(&tree),
        );
        workshop.check();
        let length = fs::metadata(&workshop.image).expect("built").len();
        assert_eq!(summary["size"], length);
        (summary, length)
    };
    let (fitted, smallest) = build(&["--free", "0"]);
    assert!(free_share(&fitted) < 0.1, "{fitted}");
    let (half, _) = build(&["--free", "50%"]);
    assert!((0.5..0.6).contains(&free_share(&half)), "{half}");
    let (_, roomy) = build(&["--free", "64M"]);
    assert!(roomy >= smallest + (60 << 20), "{roomy} {smallest}");
    let (_, told) = build(&["--size", "100M"]);
    assert_eq!(told, 100 << 20);
    let mut both = workshop.build(["--force", "--size", "100M", "--free", "10%"]);
    let told = fail(both.arg(&tree), 2);
    assert!(told.contains("--free"), "{told}");
    let before = fs::read(&workshop.image).expect("built");
    let mut narrow = workshop.build(["--force", "--size", "16M"]);
    let told = fail(narrow.arg(&tree), 1);
    assert_eq!(told.lines().count(), 1, "{told}");
    assert!(fs::read(&workshop.image).expect("it is there") == before);
}

#[test]
fn the_summary_is_what_the_image_says_of_itself() {
    let workshop = small();
    let uuid = "12345678-1234-5678-1234-567812345678";
    let mut build = workshop.build(["--json", "-L", "a label", "-U", uuid, "-O", "^has_journal"]);
    let told = json(build.arg(workshop.path("tree")));
    workshop.check();
    let info = json(crate::common::pext4(["info", "--json"]).arg(&workshop.image));
    for (ours, theirs) in [
        ("uuid", "uuid"),
        ("size", "size"),
        ("block_size", "block_size"),
    ] {
        assert_eq!(told[ours], info[theirs], "{info}");
    }
    assert_eq!(told["uuid"], uuid);
    assert_eq!(info["label"], "a label");
    assert_eq!(told["journal_blocks"], 0);
    let features = told["features"].as_array().expect("a list");
    assert!(!features.contains(&"has_journal".into()), "{told}");
    assert_eq!((&told["names"], &told["skipped"]), (&10.into(), &0.into()));
}

#[test]
fn what_no_file_system_can_have_names_the_limit() {
    let workshop = small();
    let build = |options: &[&str]| {
        let mut command = workshop.build(["-q", "--force"]);
        command.args(options).arg(workshop.path("tree"));
        command
    };
    for size in ["0", "1", "1024G"] {
        let told = fail(&mut build(&["--journal-size", size]), 1);
        assert!(
            told.contains("4194304 to 41943040000 are possible"),
            "{told}"
        );
    }
    let told = fail(
        &mut build(&["-O", "^has_journal", "--journal-size", "4M"]),
        1,
    );
    assert!(told.contains("has_journal"), "{told}");
    let told = fail(&mut build(&["-N", "5000000000"]), 2);
    assert!(told.contains("up to 4294967295"), "{told}");
    succeed(&mut build(&["-I", "4096"]));
    workshop.check();
    succeed(&mut build(&["-I", "4096", "--size", "64M"]));
    workshop.check();
}

/// Where no source is to blame, the image is named, by `mkfs` and `resize` too.
#[test]
fn what_cannot_be_made_is_said_of_the_image() {
    let workshop = small();
    let map = workshop.write("map", b"path /none mode=0600\n");
    let map = map.to_str().expect("text");
    for (options, says) in [
        (["--size", "1M"], "1048576 bytes are too small: "),
        (["-N", "1"], "too few inodes: at least 22 are needed"),
        (["--journal-size", "1"], "are possible"),
        (["-O", "^extent"], "the feature extent cannot be"),
        (["-O", "encrypt,bigalloc"], "with the features: bigalloc"),
        (["--tag", "latest"], "no source is one"),
        (["--map", map], "line 1 of the mapping: "),
    ] {
        let mut build = workshop.build(options);
        let told = complaint(&run(build.arg(workshop.path("tree"))));
        names(&told, &workshop.image);
        assert!(told.contains(says), "{told}");
        let image = workshop.image.display().to_string();
        assert_eq!(told.matches(&image).count(), 1, "{told}");
        workshop.is_bare();
    }
    let mut mkfs = pext4(["mkfs", "--size", "1K"]);
    names(&complaint(&run(mkfs.arg(&workshop.image))), &workshop.image);
    workshop.is_bare();
    succeed(workshop.build(["-q"]).arg(workshop.path("tree")));
    let mut resize = pext4(["resize"]);
    let resize = resize.arg(&workshop.image).arg("1K");
    names(&complaint(&run(resize)), &workshop.image);
}

#[test]
fn a_mapping_is_refused_by_its_line() {
    let workshop = small();
    workshop.write("tree/with blank", b"x");
    let build = |lines: &[u8]| {
        let map = workshop.write("map", lines);
        let mut build = workshop.build(["-q", "--force", "--map"]);
        build.arg(map).arg(workshop.path("tree"));
        build
    };
    for (lines, says) in [
        (
            &b"uid 1 2\nuid 0 5 2\n"[..],
            "line 2: line 1 says already what 1 becomes",
        ),
        (b"gid 1 2 0\n", "line 1: a count of 0"),
        (b"\npath /key.pem\n", "line 2: it says no change"),
        (
            b"\n\npath \xe9 mode=0600\n",
            "line 3: it is no text in UTF-8",
        ),
    ] {
        let told = fail(&mut build(lines), 2);
        assert!(told.contains(says), "{told}");
    }
    succeed(&mut build(b"path '/with blank' mode=0604\n"));
    assert_eq!(workshop.stat("/with blank")["mode"], "0604");
}

#[test]
fn nothing_random_and_no_pipe_is_built() {
    let workshop = small();
    for option in ["-U", "--hash-seed"] {
        let mut build = workshop.build([option, "random"]);
        let told = fail(build.arg(workshop.path("tree")), 2);
        assert!(told.contains("nothing is random"), "{told}");
    }
    let mut build = pext4(["build", "-"]);
    build.current_dir(workshop.folder.path());
    let told = fail(build.arg(workshop.path("tree")), 2);
    assert!(told.contains("does not go to standard output"), "{told}");
    assert!(!workshop.path("-").exists());
}

#[test]
fn values_that_no_image_can_have_are_errors_of_the_command_line() {
    let workshop = small();
    let tree = workshop.path("tree");
    for (option, value) in [
        ("-b", "1000"),
        ("-I", "100"),
        ("-O", "foo"),
        ("-O", "^foo"),
        ("-L", "a label of 18 bytes"),
        ("-m", "51"),
        ("--threads", "0"),
        ("--exclude", ""),
        ("--exclude", "["),
        ("--exclude", "/"),
        ("--exclude-xattr", "["),
    ] {
        let told = fail(workshop.build([option, value]).arg(&tree), 2);
        assert!(told.contains(option), "{told}");
    }
    assert!(!workshop.image.exists());
    succeed(workshop.build(["-q"]).arg(&tree));
    for (option, value) in [("-L", "a label of 18 bytes"), ("-m", "51")] {
        let told = fail(pext4(["tune", option, value]).arg(&workshop.image), 2);
        assert!(told.contains(option), "{told}");
    }
    let attribute = ["/none", "foo", "bar"];
    fail(pext4(["setxattr"]).arg(&workshop.image).args(attribute), 2);
}

/// As in `.gitignore`, a slash at the end is for directories, wherever the entry comes from.
#[test]
fn a_pattern_that_ends_in_a_slash_leaves_out_directories_alone() {
    let workshop = Workshop::new();
    workshop.write("tree/cache/x", b"x");
    workshop.write("tree/a/cache", b"file");
    workshop.write("tree/b/cache/y", b"y");
    std::os::unix::fs::symlink("b", workshop.path("tree/var")).expect("it is ours");
    let mut build = workshop.build(["-q", "--exclude", "cache/", "--exclude", "/var/"]);
    succeed(build.arg(workshop.path("tree")));
    workshop.check();
    assert_eq!(workshop.names("/"), ["a", "b", "var"]);
    assert_eq!(workshop.cat("/a/cache"), "file");
    assert!(workshop.names("/b").is_empty());
    let archive = Packer::new()
        .directory("cache/")
        .file("cache/x", b"x")
        .file("a/cache", b"file")
        .file("b/cache/y", b"y")
        .entry(b'2', "var", "b", b"")
        .entry(b'1', "c/link", "a/cache", b"")
        .finish();
    let words = [
        "-q",
        "--force",
        "--exclude",
        "cache/",
        "--exclude",
        "/var/",
        "-",
    ];
    let built = with_input(&mut workshop.build(words), &archive);
    assert!(built.status.success(), "{built:?}");
    workshop.check();
    assert_eq!(workshop.names("/"), ["a", "c", "var"]);
    assert_eq!(workshop.cat("/a/cache"), "file");
}

#[test]
fn a_build_without_extents_is_refused_by_that_name() {
    let workshop = small();
    for features in ["^extent", "^extent,^64bit"] {
        let told = fail(
            workshop.build(["-O", features]).arg(workshop.path("tree")),
            1,
        );
        assert!(
            told.contains("the feature extent cannot be turned off here"),
            "{told}"
        );
    }
    workshop.is_bare();
}

#[test]
fn a_source_that_is_not_there_says_what_was_tried() {
    let workshop = small();
    let missing = workshop.path("none");
    let name = missing.display();
    for source in [
        format!("{name}"),
        format!("dir:{name}"),
        format!("tar:{name}"),
    ] {
        let told = fail(workshop.build(["-q"]).arg(source), 1);
        assert!(
            told.starts_with(&format!("pext4: {name}: cannot ")),
            "{told}"
        );
    }
    let map = ["-q", "--map", missing.to_str().expect("text")];
    let told = fail(workshop.build(map).arg(workshop.path("tree")), 1);
    assert!(
        told.starts_with(&format!("pext4: {name}: cannot ")),
        "{told}"
    );
    workshop.is_bare();
}
