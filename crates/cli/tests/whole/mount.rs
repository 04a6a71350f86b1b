//! How a mount begins, who may mount, and what survives the death of its server.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::Command;

use rustix::process::{Signal, kill_process};

use crate::common::{Place, fail, has, is_root, pext4, run, succeed, unmount_by_system};

#[test]
fn what_is_written_is_there_after_the_next_mount() {
    let Some(place) = Place::new("64M") else {
        return;
    };
    let mount = place.mount(&[]);
    fs::create_dir_all(mount.path("a/b/c")).unwrap();
    fs::write(mount.path("a/b/c/file"), b"content").unwrap();
    std::os::unix::fs::symlink("a/b", mount.path("link")).unwrap();
    fs::hard_link(mount.path("a/b/c/file"), mount.path("second name")).unwrap();
    let large: Vec<u8> = (0..9_000_001u32)
        .map(|number| (number % 251) as u8)
        .collect();
    fs::write(mount.path("large"), &large).unwrap();
    mount.unmount();

    let mount = place.mount(&[]);
    assert_eq!(fs::read(mount.path("link/c/file")).unwrap(), b"content");
    assert_eq!(fs::metadata(mount.path("second name")).unwrap().nlink(), 2);
    assert!(
        fs::read(mount.path("large")).unwrap() == large,
        "nine million bytes"
    );
    assert_eq!(
        fs::metadata(&place.point).unwrap().ino(),
        2,
        "the root has ext4's number"
    );
    assert_eq!(
        fs::read_dir(&place.point).unwrap().count(),
        5,
        "with lost+found"
    );
    mount.unmount();
}

#[test]
fn the_mount_is_listed_under_the_name_of_its_image() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    let mount = place.mount(&["-o", "noexec,default_permissions"]);
    let line = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let path = place.point.to_str().unwrap().replace(' ', "\\040");
    let line = line
        .lines()
        .find(|line| line.contains(&path))
        .expect("it is listed");
    assert!(line.contains(" - fuse.pext4 "), "{line}");
    assert!(
        line.contains(&place.image.to_str().unwrap().replace(' ', "\\040")),
        "{line}"
    );
    for option in ["nosuid", "nodev", "noexec", "default_permissions"] {
        assert!(line.contains(option), "{option} in {line}");
    }
    mount.unmount();
}

#[test]
fn a_mount_takes_a_setting_and_tells_what_its_mechanisms_did() {
    let Some(place) = Place::new("64M") else {
        return;
    };
    let mount = place.mount(&["-o", "scaling=seeds:+frees,mb_optimize_scan=0"]);
    for number in 0..10 {
        fs::write(mount.path(format!("f{number}")), vec![7; 100_000]).unwrap();
    }
    let stats = |arguments: &[&str]| succeed(pext4(["stats"]).args(arguments).arg(&place.point));
    let said = stats(&[]);
    let setting = "scaling: seeds,mb_optimize_scan=0,frees=deferred";
    assert_eq!(said.lines().next(), Some(setting), "{said}");
    assert!(said.contains("\ninodes\n  claimed "), "{said}");
    let longest = "\nfree runs\n  groups with a longest of ";
    assert!(said.contains(longest), "{said}");
    assert!(!said.contains("\nlocks\n"), "nobody asked for it: {said}");
    assert!(said.contains("\nlocks: not counted; "), "{said}");
    let said = stats(&["--json", "--mb-optimize-scan", "1"]);
    assert!(said.starts_with("{\"scaling\":\"seeds,frees=deferred\",\"allocator\":{"));
    assert!(said.contains("\"claimed\":10,"), "{said}");
    assert!(said.ends_with(",\"messages\":[]}\n"), "{said}");
    let said = fail(pext4(["stats"]).arg(place.image.parent().unwrap()), 1);
    assert!(said.contains("no mount of pext4"), "{said}");
    mount.unmount();
}

#[test]
fn a_mount_shows_the_free_runs_of_its_groups_and_reads_none_for_it() {
    let Some(place) = Place::new("64M") else {
        return;
    };
    let mount = place.mount(&[]);
    let mut file = File::create(mount.path("file")).unwrap();
    file.write_all(&[7; 100_000]).unwrap();
    file.sync_all().unwrap();
    drop(file);
    let stats = |arguments: &[&str]| succeed(pext4(["stats"]).args(arguments).arg(&place.point));
    let parsed = |text: &str| -> serde_json::Value { serde_json::from_str(text).expect("JSON") };
    let json = parsed(&stats(&["--groups", "--json"]));
    let groups = json["block_groups"].as_array().expect("a list");
    let counters = &parsed(&stats(&["--json"]))["groups"];
    assert_eq!(counters["groups"], groups.len());
    let loaded: Vec<_> = groups
        .iter()
        .filter(|group| group["state"] == "loaded")
        .collect();
    assert_eq!(counters["bitmaps in memory"], loaded.len());
    assert!(!loaded.is_empty() && loaded.len() < groups.len(), "{json}");
    for group in loaded {
        let counts = group["runs_by_order"].as_array().expect("a list");
        let counts = counts.iter().map(|count| count.as_u64().expect("a number"));
        let blocks = (0..).zip(counts).map(|(order, count)| count << order);
        assert_eq!(group["free_blocks"], blocks.sum::<u64>(), "{group}");
    }

    let text = stats(&["--groups"]);
    let (head, lines) = text.split_once('\n').expect("a table");
    assert!(head.ends_with("blocks"), "{text}");
    assert_eq!(lines.lines().count(), groups.len(), "{text}");
    for (line, group) in lines.lines().zip(groups) {
        let mut words = line.split_whitespace();
        let mut next = || words.next().expect("a column").parse().ok();
        assert_eq!(
            (next(), next()),
            (group["group"].as_u64(), group["free_blocks"].as_u64())
        );
        assert_eq!(next(), group["free_runs"].as_u64(), "{line}");
        assert_eq!(next(), group["first_free"].as_u64(), "{line}");
        let is_loaded = group["state"] == "loaded";
        assert_eq!(line.ends_with(']'), is_loaded, "{line}");
        assert_eq!(line.ends_with("not loaded"), !is_loaded, "{line}");
    }
    mount.unmount();
}

#[test]
fn a_mount_in_the_background_keeps_its_messages() {
    let Some(place) = Place::empty_if_mountable() else {
        return;
    };
    if place.make_with_damaged_directory().is_none() {
        return;
    }
    let mount = place.mount(&[]);
    let listed = fs::read_dir(mount.path("damaged"))
        .and_then(|mut names| names.try_for_each(|name| name.map(drop)));
    assert!(listed.is_err());
    let said = succeed(pext4(["stats"]).arg(&place.point));
    let messages = said.split_once("\nmessages\n").expect("a section").1;
    assert!(messages.contains("corrupt directory"), "{messages}");
    assert!(messages.contains("e2fsck -f"), "{messages}");
    let json = succeed(pext4(["stats", "--json"]).arg(&place.point));
    let stats: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let kept = stats["messages"][0].as_str().expect("a text");
    assert!(messages.contains(kept), "{json}");
}

#[test]
fn a_mount_counts_what_locks_cost_in_a_build_that_can() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    if !pext4_sync::meter::is_built_in() {
        let mut mount = pext4(["mount", "--meter"]);
        let said = fail(mount.arg(&place.image).arg(&place.point), 2);
        assert!(said.contains("this build has no meters"), "{said}");
        return;
    }
    let mount = place.mount(&["--meter"]);
    fs::write(mount.path("file"), b"text").unwrap();
    let said = succeed(pext4(["stats"]).arg(&place.point));
    let locks = said.split_once("\nlocks\n").expect("a section").1;
    for what in [
        "taken",
        "waited for",
        "tried in vain",
        "waited, us",
        "held, us",
    ] {
        assert!(
            locks.contains(&format!("Directory {what} ")),
            "{what} in {locks}"
        );
    }
    mount.unmount();
}

#[test]
fn a_second_mount_of_an_image_is_refused() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    let mount = place.mount(&[]);
    let other = place.point.with_file_name("other");
    fs::create_dir(&other).unwrap();
    let said = fail(pext4(["mount"]).arg(&place.image).arg(&other), 1);
    assert!(
        said.contains("another process or mount uses it; it is mounted on"),
        "{said}"
    );
    assert_eq!(said.lines().count(), 1, "{said}");
    mount.unmount();
}

#[test]
fn an_image_is_made_where_there_is_none_and_only_then() {
    let Some(place) = Place::empty_if_mountable() else {
        return;
    };
    let said = fail(pext4(["mount"]).arg(&place.image).arg(&place.point), 1);
    assert!(said.contains("`pext4 mount --create SIZE`"), "{said}");
    fs::write(&place.image, b"").unwrap();
    for more in [&[][..], &["--create", "16M"]] {
        let mut mount = pext4(["mount"]);
        let said = fail(mount.arg(&place.image).arg(&place.point).args(more), 1);
        assert!(said.contains("the file is empty; remove it"), "{said}");
    }
    let said = fail(pext4(["info"]).arg(&place.image), 1);
    assert!(said.contains("too short for an ext4 file system"), "{said}");
    fs::remove_file(&place.image).unwrap();
    // A link that leads nowhere yet leads to the new image.
    let beside = place.image.with_file_name("beside");
    std::os::unix::fs::symlink("beside", &place.image).unwrap();
    let mount = place.mount(&["--create", "32M"]);
    fs::write(mount.path("kept"), b"1").unwrap();
    mount.unmount();
    assert_eq!(fs::metadata(&beside).unwrap().len(), 32 << 20);
    let mount = place.mount(&["--create", "64M"]);
    assert_eq!(fs::read(mount.path("kept")).unwrap(), b"1");
    mount.unmount();
}

#[test]
fn what_cannot_be_mounted_is_refused_in_one_line() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    let missing = place.point.join("missing");
    let said = fail(pext4(["mount"]).arg(&place.image).arg(&missing), 1);
    let advice = format!("`mkdir {}` makes it", missing.display());
    assert!(said.contains(&advice), "{said}");
    let said = fail(pext4(["mount"]).arg(&place.image).arg(&place.image), 1);
    assert!(said.contains("cannot mount"), "{said}");
    fs::write(&place.image, vec![7; 1 << 20]).unwrap();
    let said = fail(pext4(["mount"]).arg(&place.image).arg(&place.point), 1);
    assert!(said.contains("it is no ext4 file system"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    let said = fail(
        pext4(["mount", "-o", "bogus"])
            .arg(&place.image)
            .arg(&place.point),
        2,
    );
    assert!(said.contains("option `bogus` is not known"), "{said}");
    assert_eq!(
        fs::read_dir(&place.point).unwrap().count(),
        0,
        "nothing was mounted"
    );
}

#[test]
fn a_read_only_mount_changes_no_byte() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    let mount = place.mount(&[]);
    fs::write(mount.path("file"), b"content").unwrap();
    mount.unmount();
    let before = fs::read(&place.image).unwrap();
    let mount = place.mount(&["-o", "ro"]);
    assert_eq!(fs::read(mount.path("file")).unwrap(), b"content");
    let refused = fs::write(mount.path("new"), b"").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    mount.unmount();
    assert!(
        fs::read(&place.image).unwrap() == before,
        "the image changed"
    );
}

/// More entries of one name than a reply has room for.
#[test]
fn a_directory_of_equal_names_is_listed_to_its_end() {
    let Some(place) = Place::empty_if_mountable().filter(|_| has("mke2fs")) else {
        return;
    };
    let files = place.image.with_file_name("files");
    fs::create_dir_all(files.join("directory")).unwrap();
    for number in 0..150 {
        fs::write(files.join(format!("directory/name-{number:03}")), "").unwrap();
    }
    let mut mke2fs = Command::new("mke2fs");
    mke2fs.args(["-q", "-t", "ext4", "-b", "4096", "-O", "^metadata_csum"]);
    succeed(mke2fs.arg("-d").arg(&files).arg(&place.image).arg("16M"));
    let mut image = fs::read(&place.image).unwrap();
    let head = b"\x08\x01name-";
    let mut made = 0;
    for at in 0..image.len() - 10 {
        if image[at..].starts_with(head) {
            image[at + head.len()..at + 10].fill(b'0');
            made += 1;
        }
    }
    assert_eq!(made, 150);
    fs::write(&place.image, &image).unwrap();

    let mount = place.mount(&[]);
    for with_attributes in [true, false] {
        let (mut names, mut errors) = (0, 0);
        for entry in fs::read_dir(mount.path("directory")).unwrap().take(1000) {
            match entry {
                Ok(entry) => {
                    names += 1;
                    assert_eq!(entry.file_name(), "name-000");
                    if with_attributes {
                        entry.metadata().unwrap();
                    }
                }
                Err(_) => errors += 1,
            }
        }
        assert_eq!((names, errors), (1, 1));
    }
    mount.unmount_unchecked();
}

/// Whether the kernel offers it is up to the machine's administrator; the mount works in any case.
#[test]
fn a_mount_may_ask_for_requests_through_io_uring() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    let mut command = pext4(["mount", "-o", "io_uring"]);
    let output = run(command.arg(&place.image).arg(&place.point));
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    let mount = place.guard();
    let folder = format!("/proc/{}/task", place.server().as_raw_nonzero());
    let tasks = fs::read_dir(folder).unwrap().flatten();
    let names = tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
    let rings = names.filter(|name| name.starts_with("pext4-ring-")).count();
    assert_eq!(rings == 0, told.contains("enable_uring"), "{told}");
    fs::write(mount.path("file"), vec![5; 300_000]).unwrap();
    fs::create_dir(mount.path("folder")).unwrap();
    fs::rename(mount.path("file"), mount.path("folder/other")).unwrap();
    mount.unmount();
    let mount = place.mount(&["-o", "io_uring,ro"]);
    assert!(fs::read(mount.path("folder/other")).unwrap() == [5; 300_000]);
    mount.unmount();
}

#[test]
fn what_was_synced_survives_the_death_of_the_server() {
    let Some(place) = Place::new("64M") else {
        return;
    };
    let mount = place.mount(&["-o", "commit=3600"]);
    fs::create_dir(mount.path("directory")).unwrap();
    let file = File::create(mount.path("directory/synced")).unwrap();
    file.write_all_at(&[5; 300_000], 0).unwrap();
    file.sync_all().unwrap();
    let nameless = File::create(mount.path("nameless")).unwrap();
    nameless.write_all_at(&[6; 300_000], 0).unwrap();
    fs::remove_file(mount.path("nameless")).unwrap();
    nameless.sync_all().unwrap();
    kill_process(place.server(), Signal::KILL).unwrap();
    drop((file, nameless));
    place.wait_until_closed();
    let said = fail(pext4(["mount"]).arg(&place.image).arg(&place.point), 1);
    assert!(said.contains("whose server is gone"), "{said}");
    // By the path that was typed, whatever links there are in it.
    let link = place.image.with_file_name("link");
    std::os::unix::fs::symlink(place.point.parent().unwrap(), &link).unwrap();
    let typed = link.join(place.point.file_name().unwrap());
    let ended = run(pext4(["umount"]).arg(&typed));
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(said.contains("was not closed cleanly"), "{said}");
    mount.forget();

    assert!(place.state() == "needs-replay", "{}", place.state());
    let read = succeed(pext4(["cat"]).arg(&place.image).arg("/directory/synced"));
    assert_eq!(read.len(), 300_000, "a read-only look replays in memory");
    let mount = place.mount(&[]);
    assert!(fs::read(mount.path("directory/synced")).unwrap() == [5; 300_000]);
    assert!(!mount.path("nameless").exists());
    mount.unmount();
}

#[test]
fn an_open_file_without_a_name_lives_until_it_is_closed() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    let mount = place.mount(&[]);
    let free = rustix::fs::statvfs(&place.point).unwrap().f_bfree;
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(mount.path("file"))
        .unwrap();
    file.write_all_at(&[9; 1 << 20], 0).unwrap();
    file.sync_all().unwrap();
    fs::remove_file(mount.path("file")).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 999_999).unwrap();
    assert_eq!(byte, [9]);
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    assert!(rustix::fs::statvfs(&place.point).unwrap().f_bfree < free);
    drop(file);
    mount.unmount();
    let mount = place.mount(&[]);
    assert_eq!(rustix::fs::statvfs(&place.point).unwrap().f_bfree, free);
    mount.unmount();
}

#[test]
fn linux_and_pext4_see_the_same_files() {
    if !is_root() || !has("mke2fs") {
        return;
    }
    let Some(place) = Place::empty_if_mountable() else {
        return;
    };
    succeed(
        Command::new("mke2fs")
            .args(["-q", "-t", "ext4"])
            .arg(&place.image)
            .arg("32M"),
    );
    let loops = |options: &str| {
        let mounted = run(Command::new("mount")
            .args(["-o", options])
            .arg(&place.image)
            .arg(&place.point));
        if !mounted.status.success() {
            eprintln!(
                "SKIPPED: loop mount: {}",
                String::from_utf8_lossy(&mounted.stderr)
            );
        }
        mounted.status.success()
    };
    if !loops("loop") {
        return;
    }
    let by_linux = place.guard();
    fs::create_dir(by_linux.path("directory")).unwrap();
    for number in 0..500 {
        fs::write(
            by_linux.path(format!("directory/{number}")),
            number.to_string(),
        )
        .unwrap();
    }
    // Two that write to one image would destroy what the other does.
    for command in ["rm", "mkdir"] {
        let said = fail(pext4([command]).arg(&place.image).arg("/directory/7"), 1);
        assert!(said.contains("the kernel has it mounted on"), "{said}");
    }
    unmount_by_system(&place.point);
    by_linux.forget();

    let mount = place.mount(&[]);
    for number in 0..500 {
        let path = mount.path(format!("directory/{number}"));
        assert_eq!(fs::read_to_string(&path).unwrap(), number.to_string());
        if number % 2 == 0 {
            fs::rename(&path, mount.path(format!("moved {number}"))).unwrap();
        }
    }
    mount.unmount();

    if loops("loop,ro") {
        let by_linux = place.guard();
        for number in (0..500).step_by(2) {
            let path = by_linux.path(format!("moved {number}"));
            assert_eq!(fs::read_to_string(path).unwrap(), number.to_string());
        }
        assert_eq!(
            fs::read_dir(by_linux.path("directory")).unwrap().count(),
            250
        );
        unmount_by_system(&place.point);
        by_linux.forget();
    }
}
