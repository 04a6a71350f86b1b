//! `pext4 lab` as a person uses it: what it prints, what it refuses, and that it leaves nothing.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use pext4_fuse::ending_signals;
use serde_json::Value;
use tempfile::TempDir;

use crate::common::{fail, has, is_root, pext4, run, succeed};

/// A run that counts steps, not time.
fn lab(words: &[&str]) -> Command {
    let mut command = pext4(["lab", "run"]);
    command.args(["--tasks", "1,2", "--repeat", "1", "--steps", "300"]);
    command.args(words);
    command
}

fn json(command: &mut Command) -> Value {
    serde_json::from_str(&succeed(command.arg("--json"))).expect("it is JSON")
}

fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder).expect("it is there").count() == 0
}

/// Mounts of the lab, of anybody's.
fn lab_mounts() -> usize {
    let table = fs::read_to_string("/proc/self/mountinfo").expect("it is there");
    table.matches("/pext4-lab-").count()
}

#[test]
fn everything_is_listed() {
    let text = succeed(&mut pext4(["lab", "list"]));
    for word in [
        "fallocate2",
        "mdtest-shared",
        "MWCL",
        "DRBH",
        "control",
        "try-lock",
        "seeds",
    ] {
        assert!(text.contains(word), "{word}");
    }
    assert!(!text.contains("after none"), "{text}");
    let told: Value =
        serde_json::from_str(&succeed(&mut pext4(["lab", "list", "--json"]))).expect("it is JSON");
    assert!(told["workloads"].as_array().expect("a list").len() > 20);
    assert_eq!(
        told["settings"],
        serde_json::json!(["base", "seeds", "full"])
    );
}

#[test]
fn settings_stand_side_by_side_and_images_are_checked() {
    let told = json(&mut lab(&[
        "fallocate2",
        "--scaling",
        "base,full,-try-lock",
        "--control",
    ]));
    let series = told["series"].as_array().expect("a list");
    let labels: Vec<&str> = series
        .iter()
        .map(|one| one["label"].as_str().unwrap())
        .collect();
    assert_eq!(labels, ["base", "full,-try-lock", "control"]);
    for one in series {
        let points = one["points"].as_array().expect("a list");
        assert_eq!(points.len(), 2);
        let part = &points[1]["parts"][0];
        assert!(part["rate"].as_f64().unwrap() > 0.0);
        assert!(part["fairness"].as_f64().unwrap() <= 1.0);
        assert_eq!(part["rates"].as_array().unwrap().len(), 1);
    }
    assert_eq!(told["evidence"], "measured");
    if has("e2fsck") {
        assert_eq!(series[0]["check"], "e2fsck -fn found nothing");
    }
    assert!(told["overhead"].as_f64().unwrap() > 0.0);
}

#[test]
fn a_volume_a_task_stands_beside_one_for_all() {
    let mut command = lab(&[
        "mdtest-shared",
        "--compare",
        "library,apart",
        "--files-in-all",
        "40",
    ]);
    let told = json(&mut command);
    let series = told["series"].as_array().expect("a list");
    let sides: Vec<_> = series.iter().map(|one| one["side"].as_str()).collect();
    assert_eq!(sides, [Some("library"), Some("apart")]);
    for one in series {
        assert_eq!(one["points"][1]["tasks"], 2);
        assert!(one["points"][1]["parts"][1]["rate"].as_f64() > Some(0.0));
        if has("e2fsck") {
            assert_eq!(one["check"], "e2fsck -fn found nothing");
        }
    }
    let settings = told["settings"].to_string();
    assert!(
        settings.contains(r#"["files of all tasks together","40"]"#),
        "{settings}"
    );
    fail(
        lab(&["mdtest", "--files-in-all", "40"]).args(["--files", "3"]),
        2,
    );
}

#[test]
fn the_table_has_what_was_published_and_a_plot() {
    let text = succeed(&mut lab(&["stress-orphan"]));
    for word in [
        "per task/s",
        "orphan file, lockless",
        "206.50",
        "log scales",
        "empty step",
    ] {
        assert!(text.contains(word), "{word}: {text}");
    }
}

#[test]
fn a_volumes_counters_say_what_its_commits_took() {
    let words = ["mdtest", "--scaling", "base,full", "--counters"];
    let told = succeed(&mut lab(&words));
    let volumes: Vec<_> = told.split("counters of the volume").skip(1).collect();
    assert_eq!(volumes.len(), 2, "{told}");
    for volume in volumes {
        let value = |name: &str| -> u64 {
            let line = volume.lines().find(|line| line.trim().starts_with(name));
            let value = line.and_then(|line| line.split_whitespace().last()?.parse().ok());
            value.unwrap_or_else(|| panic!("no {name} in {volume}"))
        };
        assert!(0 < value("handles"), "{volume}");
        assert!(
            0 < value("commits") && 0 < value("capturing, us"),
            "{volume}"
        );
    }
}

#[test]
fn processes_work_on_a_path_and_leave_nothing() {
    let folder = TempDir::new().unwrap();
    let told = json(lab(&["mdtest", "--files", "20", "--path"]).arg(folder.path()));
    let parts = told["series"][0]["points"][1]["parts"]
        .as_array()
        .expect("a list");
    let names: Vec<&str> = parts
        .iter()
        .map(|part| part["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["creation", "removal"]);
    assert!(is_empty(folder.path()));
}

#[test]
fn files_are_examined_where_they_lie() {
    let told = json(&mut lab(&[
        "falloc-append",
        "--file-size",
        "1M",
        "--scaling",
        "full",
    ]));
    let found = &told["series"][0]["points"][1]["fragmentation"];
    assert_eq!(found["files"], 2);
    let extents = found["extents"].as_u64().unwrap();
    assert!((2..=512).contains(&extents), "{extents}");
    assert!(found["free_extents"].as_u64().unwrap() > 0);
}

#[test]
fn a_file_grows_by_as_many_steps_as_were_asked_for() {
    for (steps, blocks) in [("40", 40), ("900", 256)] {
        let size = ["--file-size", "1M", "--scaling", "full", "--steps", steps];
        let mut command = pext4([
            "lab",
            "run",
            "falloc-append",
            "--tasks",
            "2",
            "--repeat",
            "1",
        ]);
        let told = json(command.args(size));
        let found = &told["series"][0]["points"][0]["fragmentation"];
        let [files, extents, average] = ["files", "extents", "average_extent"]
            .map(|name| found[name].as_u64().expect("a number"));
        let bytes = extents * average;
        // An average is rounded down.
        let expected = files * blocks * 4096;
        assert!((expected - extents..=expected).contains(&bytes), "{found}");
    }
}

#[test]
fn an_image_is_used_and_comes_back_as_it_was() {
    let folder = TempDir::new().unwrap();
    let image = folder.path().join("image");
    succeed(pext4(["mkfs", "-q", "--size", "200M"]).arg(&image));
    let told = json(lab(&["DWOM", "--scaling", "base,full", "--device"]).arg(&image));
    assert_eq!(told["series"].as_array().unwrap().len(), 2);
    let listed = succeed(pext4(["ls", "--json"]).arg(&image).arg("/"));
    assert!(!listed.contains("\"lab\""), "{listed}");
    let own = folder.path().join("own");
    json(lab(&["DWOM", "--scaling", "full", "--size", "100M", "--device"]).arg(&own));
    assert!(!own.exists(), "an image made for the run goes with it");
    let mut impossible = lab(&[
        "DWOM",
        "--scaling",
        "full",
        "--inode-size",
        "8192",
        "--device",
    ]);
    fail(impossible.arg(&own), 1);
    assert!(!own.exists(), "also one that could not be made");
    let link = folder.path().join("link");
    symlink(folder.path().join("nowhere/image"), &link).unwrap();
    let told = fail(lab(&["DWOM", "--device"]).arg(&link), 1);
    assert!(told.contains("link"), "{told}");
    assert!(link.is_symlink(), "what the run did not make stays");
}

#[test]
fn what_is_about_images_makes_no_sense_on_a_path() {
    let folder = TempDir::new().unwrap();
    for words in [
        &["--size", "1G"][..],
        &["--journal", "8M"],
        &["--inode-size", "256"],
        &["--commit", "5"],
        &["--cache-size", "64M"],
        &["--no-check"],
        &["--counters"],
    ] {
        let mut command = lab(&["fallocate2", "--path"]);
        let told = fail(command.arg(folder.path()).args(words), 2);
        assert!(told.contains(words[0]), "{told}");
    }
}

#[test]
fn what_only_pext4_has_is_asked_of_nobody_else() {
    for words in [
        &["--cache-size", "64M"][..],
        &["--scaling", "base,full"],
        &["--ablate"],
    ] {
        for compared in ["kernel", "kernel,fuse2fs"] {
            let mut command = lab(&["fallocate2", "--compare", compared]);
            let told = fail(command.args(words), 2);
            assert!(
                told.contains(words[0]) && told.contains("library"),
                "{told}"
            );
        }
    }
    // Whether the kernel may mount here or not.
    let words = [
        "fallocate2",
        "--compare",
        "kernel,library",
        "--size",
        "600M",
    ];
    let told = json(lab(&words).args(["--cache-size", "64M"]));
    let notes = told["notes"].to_string();
    assert!(notes.contains("--cache-size is not for kernel"), "{notes}");
    let told = json(&mut lab(&words));
    assert!(
        !told["notes"].to_string().contains("--cache-size"),
        "{told}"
    );
}

#[test]
fn what_is_examined_on_an_image_leaves_it_and_counts_nothing_else() {
    let folder = TempDir::new().unwrap();
    let image = folder.path().join("image");
    succeed(pext4(["mkfs", "-q", "--size", "200M"]).arg(&image));
    let other = folder.path().join("other");
    fs::write(&other, vec![7; 3 << 20]).unwrap();
    succeed(pext4(["put"]).arg(&image).arg(&other).arg("/other"));
    let mut run = lab(&[
        "falloc-append",
        "--file-size",
        "1M",
        "--scaling",
        "full",
        "--device",
    ]);
    let told = json(run.arg(&image));
    let found = &told["series"][0]["points"][1]["fragmentation"];
    assert_eq!(found["files"], 2);
    let listed = succeed(pext4(["ls", "--json"]).arg(&image).arg("/"));
    assert!(
        !listed.contains("\"lab\"") && listed.contains("\"other\""),
        "{listed}"
    );
}

/// What a run says of a setting.
fn setting<'a>(told: &'a Value, name: &str) -> Option<&'a str> {
    let all = told["settings"].as_array().expect("a list");
    let found = all.iter().find(|pair| pair[0] == name)?;
    found[1].as_str()
}

#[test]
fn a_run_says_what_images_and_caches_were_like() {
    let folder = TempDir::new().unwrap();
    let own = ["--scaling", "full"];
    let told = json(lab(&["xattr-share"]).args(own));
    assert_eq!(setting(&told, "inode size"), Some("128"));
    assert_eq!(setting(&told, "cache size"), Some("256 MiB"));
    let chosen = ["--inode-size", "512", "--cache-size", "64M"];
    let told = json(lab(&["fallocate2"]).args(own).args(chosen));
    assert_eq!(setting(&told, "inode size"), Some("512"));
    assert_eq!(setting(&told, "cache size"), Some("64 MiB"));
    // An image that is there has the inodes that it has.
    let image = folder.path().join("image");
    succeed(pext4(["mkfs", "-q", "--size", "200M"]).arg(&image));
    let told = json(lab(&["DWOM"]).args(own).arg("--device").arg(&image));
    assert_eq!(setting(&told, "inode size"), None);
    let told = json(lab(&["DWOM", "--path"]).arg(folder.path()));
    assert_eq!(setting(&told, "inode size"), None);
    assert_eq!(setting(&told, "cache size"), None);
}

#[test]
fn values_that_fit_into_the_inodes_are_told_of() {
    let words = ["xattr-share", "--scaling", "full"];
    let told = json(&mut lab(&words));
    let doubts = |told: &Value| told["notes"].to_string().contains("nothing is shared");
    assert!(!doubts(&told), "{}", told["notes"]);
    let told = json(lab(&words).args(["--inode-size", "256"]));
    assert!(doubts(&told), "{}", told["notes"]);
}

#[test]
fn what_is_not_understood_lists_what_there_is() {
    let told = fail(&mut lab(&["falocate"]), 2);
    assert!(
        told.contains("fallocate2") && told.contains("xattr-share"),
        "{told}"
    );
    let told = fail(&mut lab(&["fallocate2", "--scaling", "full,-fast"]), 2);
    assert!(told.contains("try-lock"), "{told}");
    let told = fail(&mut lab(&["fallocate2", "--compare", "xfs"]), 2);
    assert!(told.contains("fuse2fs"), "{told}");
    let told = fail(&mut lab(&["aim7-mix", "--mix", "desk"]), 2);
    assert!(told.contains("new_dbase"), "{told}");
    for (option, value) in [
        ("--tasks", "0"),
        ("--files", "0"),
        ("--values", "0"),
        ("--users", "0"),
        ("--inode-size", "100"),
        ("--cache-size", "1K"),
    ] {
        let told = fail(&mut pext4(["lab", "run", "mdtest", option, value]), 2);
        assert!(told.contains(option), "{told}");
    }
    let told = fail(&mut lab(&["mdtest", "fallocate2", "mdtest"]), 2);
    assert!(told.contains("mdtest is there twice"), "{told}");
    let told = fail(
        &mut pext4(["lab", "run", "fallocate2", "--tasks", "1,2,1"]),
        2,
    );
    assert!(told.contains("--tasks: 1 is there twice"), "{told}");
    let told = fail(&mut lab(&["fallocate2", "--compare", "kernel,kernel"]), 2);
    assert!(told.contains("--compare: kernel is there twice"), "{told}");
    if !cfg!(feature = "meter") {
        let told = fail(&mut lab(&["fallocate2", "--meter"]), 2);
        assert!(told.contains("--features meter"), "{told}");
    }
}

#[test]
fn what_does_not_fit_stops_before_it_begins() {
    let folder = TempDir::new().unwrap();
    let told = fail(
        lab(&["falloc-append", "--file-size", "900T", "--path"]).arg(folder.path()),
        1,
    );
    assert!(
        told.contains("no room: falloc-append with 1 task needs 900 TiB, "),
        "{told}"
    );
    assert!(is_empty(folder.path()));
    let told = fail(&mut lab(&["mdtest", "--size", "8M"]), 1);
    assert!(told.contains("--size"), "{told}");
    let missing = folder.path().join("missing");
    let told = fail(lab(&["mdtest", "--path"]).arg(&missing), 1);
    assert!(told.contains("missing"), "{told}");
    let there = folder.path().join("image");
    std::fs::write(&there, "").unwrap();
    for option in ["--size", "--journal"] {
        let told = fail(lab(&["mdtest", option, "1G", "--device"]).arg(&there), 2);
        assert!(told.contains("is there already"), "{told}");
    }
}

#[test]
fn images_too_large_for_memory_are_not_begun() {
    // 48 TiB for their structures alone.
    let words = ["fallocate2", "--size", "256T", "--compare", "apart"];
    let mut command = pext4(["lab", "run", "--tasks", "4096"]);
    let told = fail(command.args(words), 1);
    assert!(
        told.contains("4096 images of 256 TiB take") && told.contains("--size"),
        "{told}"
    );
}

#[test]
fn what_is_no_image_is_named() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("words");
    fs::write(&file, "no file system\n".repeat(100)).unwrap();
    let told = fail(lab(&["fallocate2", "--device"]).arg(&file), 1);
    assert!(told.contains("words: it is no ext4 file system"), "{told}");
}

#[test]
fn a_worker_has_no_work_without_a_run() {
    let told = fail(pext4(["lab", "worker"]).stdin(Stdio::null()), 1);
    assert!(told.contains("a run starts its workers itself"), "{told}");
}

#[test]
fn where_results_go_is_looked_at_before_the_run() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    // A day that never begins.
    let endless = ["fallocate2", "--tasks", "1", "--seconds", "80000", "--save"];
    let run = || pext4(["lab", "run"]);
    let told = fail(run().args(endless).arg(&file), 1);
    assert!(told.contains("--save") && told.contains("file"), "{told}");
    let mut tagged = run();
    tagged
        .args(endless)
        .arg(folder.path())
        .args(["--tag", "a/b"]);
    let told = fail(&mut tagged, 2);
    assert!(told.contains("--tag: `a/b`"), "{told}");
    fs::create_dir(folder.path().join("fallocate2.json")).unwrap();
    let told = fail(run().args(endless).arg(folder.path()), 1);
    assert!(
        told.contains("fallocate2.json: a folder is there"),
        "{told}"
    );
}

#[test]
fn what_was_measured_is_shown_even_if_it_cannot_be_kept() {
    let folder = TempDir::new().unwrap();
    let kept = folder.path().join("DWAL.json");
    symlink("/dev/full", &kept).unwrap();
    for (more, shown) in [(&[][..], "per task/s"), (&["--json"], "\"format\"")] {
        let mut command = lab(&["DWAL", "--scaling", "full", "--save"]);
        let output = run(command.arg(folder.path()).args(more));
        assert_eq!(output.status.code(), Some(1));
        let told = String::from_utf8_lossy(&output.stdout);
        assert!(told.contains(shown), "{told}");
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(told.contains("DWAL.json"), "{told}");
    }
}

#[test]
fn a_mistyped_device_is_no_image() {
    let folder = TempDir::new().unwrap();
    let mut mistyped = lab(&["DWAL", "--device", "slwo"]);
    let told = fail(mistyped.current_dir(folder.path()), 2);
    assert!(
        told.contains("--device") && told.contains("./slwo"),
        "{told}"
    );
    assert!(is_empty(folder.path()));
}

/// A limit on the size of files ends the tasks in the middle of their work.
#[test]
fn a_task_that_dies_stops_the_run_and_leaves_nothing() {
    let folder = TempDir::new().unwrap();
    let script = format!(
        "ulimit -f 64; exec {} lab run DWAL --tasks 2 --seconds 60 --path {}",
        env!("CARGO_BIN_EXE_pext4"),
        folder.path().display()
    );
    let output = run(Command::new("sh").args(["-c", &script]));
    assert_eq!(output.status.code(), Some(1));
    assert!(
        output.stdout.is_empty(),
        "no number comes from a run that failed"
    );
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("DWAL") && told.contains("task"), "{told}");
    assert!(is_empty(folder.path()));
}

#[test]
fn an_interruption_leaves_nothing() {
    use rustix::process::Signal;
    // Whoever started the tests may have had some ignored, and what it starts ignores them as well:
    // hangups under `nohup`, and both keys of the terminal behind `&` in a shell.
    let handled = ending_signals();
    for (signal, same_as) in [
        (Signal::TERM, Signal::TERM),
        (Signal::INT, Signal::INT),
        (Signal::HUP, Signal::HUP),
        (Signal::QUIT, Signal::INT),
    ] {
        if handled.contains(&same_as.as_raw()) {
            interrupt(signal);
        } else {
            eprintln!("SKIPPED: {signal:?} is ignored here");
        }
    }
}

fn interrupt(signal: rustix::process::Signal) {
    let folder = TempDir::new().expect("a place for temporary files");
    let mut child = pext4([
        "lab",
        "run",
        "mdtest",
        "--tasks",
        "2",
        "--seconds",
        "600",
        "--path",
    ])
    .arg(folder.path())
    .stdout(Stdio::piped())
    .stderr(Stdio::piped())
    .spawn()
    .expect("it starts");
    // It is at work once its tasks have made their directories.
    while is_empty(folder.path()) {
        assert!(
            child.try_wait().expect("our child").is_none(),
            "it ended by itself"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, signal).expect("our child");
    let output = child.wait_with_output().expect("our child");
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("interrupted"), "{told}");
    assert!(is_empty(folder.path()));
}

#[test]
fn file_systems_are_compared_and_unmounted() {
    if !is_root() || !has("mount") || !Path::new("/dev/fuse").exists() {
        eprintln!("SKIPPED: a comparison of mounts");
        return;
    }
    let before = lab_mounts();
    let mut command = lab(&[
        "fallocate2",
        "--compare",
        "kernel,pext4,library",
        "--size",
        "600M",
    ]);
    let told = json(&mut command);
    let sides: Vec<&str> = told["series"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["side"].as_str().unwrap())
        .collect();
    assert!(
        sides.contains(&"library") && sides.contains(&"pext4"),
        "{told}"
    );
    if !sides.contains(&"kernel") {
        eprintln!("SKIPPED: the kernel's side: {}", told["notes"]);
    }
    assert!(lab_mounts() <= before, "a mount was left");
}

/// Where a run of this process has a mount, once its directory is in it.
fn mount_of(process: u32) -> Option<PathBuf> {
    let table = fs::read_to_string("/proc/self/mountinfo").expect("it is there");
    let mut directories = table
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .filter(|directory| directory.contains("/pext4-lab-"))
        .map(PathBuf::from);
    directories.find(|directory| directory.join(format!("pext4-lab-{process}")).is_dir())
}

/// Whether a process has this word in its arguments.
fn has_process_with(word: &str) -> bool {
    let all = fs::read_dir("/proc").expect("it is there");
    all.flatten()
        .filter_map(|entry| fs::read(entry.path().join("cmdline")).ok())
        .any(|line| String::from_utf8_lossy(&line).contains(word))
}

#[test]
fn an_interruption_ends_mounts_and_their_servers() {
    if !is_root() || !has("umount") || !Path::new("/dev/fuse").exists() {
        eprintln!("SKIPPED: a mount that is interrupted");
        return;
    }
    let words = ["--compare", "pext4", "--size", "600M", "--seconds", "600"];
    let mut child = pext4(["lab", "run", "mdtest", "--tasks", "2"])
        .args(words)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mount = loop {
        if let Some(mount) = mount_of(child.id()) {
            break mount;
        }
        if child.try_wait().expect("our child").is_some() {
            eprintln!("SKIPPED: a mount that is interrupted: FUSE is not permitted");
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("our child");
    let output = child.wait_with_output().expect("our child");
    assert_eq!(output.status.code(), Some(1));
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("interrupted"), "{told}");
    let folder = mount.parent().expect("it is in a folder of the run");
    assert!(!folder.exists(), "{}", folder.display());
    assert!(
        !has_process_with(&folder.to_string_lossy()),
        "a server was left"
    );
}
