//! Builds that fail because of the host: sources that change or cannot be read, and no space. Each
//! prints one line that names the path, and leaves neither an image nor anything beside it.

use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::images::{Workshop, complaint, names};
use super::pack::{Packer, gzip};
use crate::common::{is_root, pext4, run, succeed, with_input};

/// The user of a test that must not be root.
const NOBODY: u32 = 65534;

/// More than a pipe holds, so that it is being read once all of it has been written.
const LARGE: usize = 4 << 20;

/// The command as a user who may not read everything. `None`, with a message, if that is not
/// possible.
fn as_nobody(mut command: Command) -> Option<Command> {
    if !rustix::process::geteuid().is_root() {
        return Some(command);
    }
    let mut trial = Command::new(command.get_program());
    let can_start = trial.arg("-V").uid(NOBODY).gid(NOBODY).output();
    if !can_start.is_ok_and(|output| output.status.success()) {
        eprintln!("SKIPPED: unreadable sources: another user cannot start the command");
        return None;
    }
    command.uid(NOBODY).gid(NOBODY);
    Some(command)
}

/// A tree of which a file and a directory may not be read, and a folder to build in, for anybody.
fn closed_tree() -> Workshop {
    let workshop = Workshop::new();
    workshop.write("tree/open", b"readable");
    let secret = workshop.write("tree/secret", b"x");
    workshop.write("tree/closed/file", b"x");
    let mode = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode));
    mode(workshop.folder.path(), 0o755).expect("it is ours");
    mode(&workshop.path("out"), 0o777).expect("it is ours");
    mode(&secret, 0).expect("it is ours");
    mode(&workshop.path("tree/closed"), 0).expect("it is ours");
    if rustix::process::geteuid().is_root() {
        // Owned by somebody else again, so that no mode is on the side of who reads.
        chown(&secret, Some(1), Some(1)).expect("root may");
    }
    workshop
}

#[test]
fn what_cannot_be_read_is_named_and_skipped_only_when_told() {
    let workshop = closed_tree();
    let build = |options: &[&str]| {
        let mut command = workshop.build(options);
        command.arg(workshop.path("tree"));
        as_nobody(command).map(|mut command| run(&mut command))
    };
    let (Some(plain), Some(skipping)) = (build(&[]), build(&["--skip-unreadable", "--json"]))
    else {
        return;
    };
    let told = complaint(&plain);
    let is_named = ["secret", "closed"].iter().any(|name| {
        let path = workshop.path("tree").join(name);
        told.starts_with(&format!("pext4: {}: cannot open it", path.display()))
    });
    assert!(is_named && told.contains("ermission"), "{told}");
    assert!(skipping.status.success(), "{skipping:?}");
    let summary: serde_json::Value = serde_json::from_slice(&skipping.stdout).expect("JSON");
    assert_eq!(summary["skipped"], 2);
    let told = String::from_utf8_lossy(&skipping.stderr).into_owned();
    assert_eq!(told.lines().count(), 2, "{told}");
    for name in ["secret", "closed"] {
        let path = workshop.path("tree").join(name);
        let line = format!("pext4: left out: {}: cannot open it", path.display());
        assert!(told.contains(&line), "{told}");
    }
    workshop.check();
    assert_eq!(workshop.cat("/open"), "readable");
    assert_eq!(workshop.names("/"), ["closed", "open"]);
    assert!(workshop.names("/closed").is_empty());
    let open = Permissions::from_mode(0o755);
    fs::set_permissions(workshop.path("tree/closed"), open).expect("it is ours");
}

/// Directories stay open while something in them is left to be listed, here in most of a long
/// chain.
#[test]
fn only_what_may_not_be_read_is_skipped() {
    let workshop = Workshop::new();
    let mut at = workshop.path("tree");
    for _ in 0..80 {
        for name in ["a", "b", "c", "d", "e", "f"] {
            fs::create_dir_all(at.join(name)).expect("it is ours");
        }
        at.push("next");
    }
    fs::create_dir(&at).expect("it is ours");
    let build = |limit: u32| {
        let mut shell = std::process::Command::new("sh");
        let line = format!("ulimit -n {limit} && exec \"$@\"");
        shell
            .args(["-c", &line, "sh", env!("CARGO_BIN_EXE_pext4")])
            .args(["build", "--force", "--skip-unreadable"])
            .arg(&workshop.image)
            .arg(workshop.path("tree"));
        run(&mut shell)
    };
    let names = format!("{} names", 80 * 7);
    let told = |output: &std::process::Output| String::from_utf8_lossy(&output.stdout).into_owned();
    let whole = build(1000);
    assert!(told(&whole).contains(&names), "{whole:?}");
    // The number of open directories depends on the order of threads: the build succeeds or reports
    // the limit.
    for limit in 10..40 {
        let output = build(limit);
        if output.status.success() {
            assert!(told(&output).contains(&names), "{limit}: {output:?}");
        } else {
            let why = complaint(&output);
            assert!(why.contains("Too many open files"), "{limit}: {why}");
        }
    }
}

/// Whether the owner of an image can be kept is found out before anything is read.
#[test]
fn another_users_image_is_refused_at_once() {
    if !is_root() {
        return;
    }
    let workshop = Workshop::new();
    fs::write(&workshop.image, [0; 8]).expect("it is ours");
    let out = workshop.image.parent().expect("it lies in a folder");
    fs::set_permissions(out, Permissions::from_mode(0o777)).expect("it is ours");
    fs::set_permissions(workshop.folder.path(), Permissions::from_mode(0o755)).expect("it is ours");
    let unsound = workshop.write("unsound.tar", b"no archive");
    let mut build = workshop.build(["--force"]);
    build.arg(unsound);
    let Some(mut build) = as_nobody(build) else {
        return;
    };
    let why = complaint(&run(&mut build));
    assert!(why.contains("keep its owner and mode"), "{why}");
    assert_eq!(fs::read_dir(out).expect("it is ours").count(), 1);
    assert_eq!(fs::read(&workshop.image).expect("it is there"), [0; 8]);
}

#[test]
fn what_cannot_be_read_leaves_nothing() {
    let workshop = closed_tree();
    for source in ["tree", "tree/secret", "tree/closed"] {
        let path = workshop.path(source);
        let Some(mut command) = as_nobody(workshop.build([&path])) else {
            return;
        };
        let told = complaint(&run(&mut command));
        assert!(told.contains(&path.display().to_string()), "{told}");
        workshop.is_bare();
    }
    let open = Permissions::from_mode(0o755);
    fs::set_permissions(workshop.path("tree/closed"), open).expect("it is ours");
}

/// A build that has found the tree and waits for the rest of an archive from standard input:
/// sources are found one after the other, so the archive is not asked for before the tree has been
/// found.
fn waiting_build(workshop: &Workshop) -> Child {
    let mut child = workshop
        .build([workshop.path("tree")])
        .arg("-")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command can be started");
    let archive = Packer::new().file("other", &vec![7; LARGE]).finish();
    let input = child.stdin.as_mut().expect("piped");
    input.write_all(&archive[..LARGE]).expect("it is read");
    child
}

/// Gives the rest of the archive, and has the build fail with a line about the path.
fn fails(workshop: &Workshop, mut child: Child, path: &Path) -> String {
    let archive = Packer::new().file("other", &vec![7; LARGE]).finish();
    let mut input = child.stdin.take().expect("piped");
    input.write_all(&archive[LARGE..]).expect("it is read");
    drop(input);
    let told = complaint(&child.wait_with_output().expect("it ends"));
    names(&told, path);
    workshop.is_bare();
    told
}

#[test]
fn a_source_that_changes_meanwhile_is_named() {
    type Change = fn(&Path);
    let changes: [(Change, &str); 3] = [
        (
            |path| fs::write(path, "longer than before").expect("ours"),
            "it changed while",
        ),
        (
            |path| fs::write(path, "").expect("ours"),
            "it changed while",
        ),
        (
            |path| fs::remove_file(path).expect("ours"),
            "cannot open it: No such file",
        ),
    ];
    for (change, words) in changes {
        let workshop = Workshop::new();
        let file = workshop.write("tree/inner/file", b"before");
        let child = waiting_build(&workshop);
        change(&file);
        let told = fails(&workshop, child, &file);
        assert!(told.contains(words), "{told}");
    }
}

/// A file system of 2 MiB, mounted over the folder that images go to.
struct Narrow(PathBuf);

impl Narrow {
    /// `None`, loudly, where none can be mounted.
    fn over(folder: &Path) -> Option<Self> {
        if !is_root() {
            return None;
        }
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=2M,mode=755", "none"]);
        let output = run(mount.arg(folder));
        if !output.status.success() {
            eprintln!(
                "SKIPPED: a full host: {}",
                String::from_utf8_lossy(&output.stderr)
            );
            return None;
        }
        Some(Self(folder.to_owned()))
    }
}

impl Drop for Narrow {
    fn drop(&mut self) {
        // A program that a neighbouring test is just starting may have our files open: then it goes
        // with that.
        let output = run(Command::new("umount").arg("-l").arg(&self.0));
        if !output.status.success() {
            eprintln!("{} stays mounted: {output:?}", self.0.display());
        }
    }
}

/// Bytes that no compression makes fewer of, so that nothing is small by chance.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    (0..length)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 56) as u8
        })
        .collect()
}

/// As much of an ext4 image as tells that it is one.
fn image_start() -> Vec<u8> {
    let mut bytes = vec![0; 2048];
    bytes[1024 + 0x38..][..2].copy_from_slice(&[0x53, 0xEF]);
    bytes
}

/// Where IMAGE is forgotten, a source has its place.
#[test]
fn force_replaces_nothing_but_images() {
    let workshop = Workshop::new();
    workshop.write("overlay/file", b"x");
    let archive = Packer::new().file("inside", b"y").finish();
    let archive_at = workshop.write("base.tar", &archive);
    let build =
        |image: &Path, source: &Path| run(pext4(["build", "-q", "-f"]).arg(image).arg(source));
    let told = complaint(&build(&archive_at, &workshop.path("overlay")));
    assert!(
        told.contains("no ext4 image; remove it first, or was IMAGE"),
        "{told}"
    );
    names(&told, &archive_at);
    // The same file by another name, and an archive that is all zeroes: an empty one.
    let other = workshop.path("other.tar");
    fs::hard_link(&archive_at, &other).expect("it is ours");
    for content in [archive.as_slice(), &[0; 10240]] {
        fs::write(&archive_at, content).expect("it is ours");
        let told = complaint(&build(&archive_at, &other));
        assert!(told.contains("one of the sources"), "{told}");
        assert_eq!(fs::read(&archive_at).expect("it is there"), content);
    }
    let fresh = workshop.write("fresh", b"");
    let told = complaint(&run(pext4(["build"])
        .arg(&fresh)
        .arg(workshop.path("overlay"))));
    let said = "cannot make it: it exists already; --force replaces it";
    assert!(told.contains(said), "{told}");
    // The only trace is at the end, like the copy of a partition table.
    let mut disk = vec![0; 1 << 20];
    disk[(1 << 20) - 512..][..8].copy_from_slice(b"EFI PART");
    fs::write(&fresh, &disk).expect("it is ours");
    let told = complaint(&build(&fresh, &workshop.path("overlay")));
    assert!(told.contains("no ext4 image; remove it first"), "{told}");
    assert_eq!(fs::read(&fresh).expect("it is there"), disk);
    for replaced in [Vec::new(), vec![0; 70_000], image_start()] {
        fs::write(&workshop.image, &replaced).expect("it is ours");
        let output = build(&workshop.image, &workshop.path("overlay"));
        assert!(output.status.success(), "{output:?}");
        workshop.check();
    }
}

#[test]
fn a_full_host_is_named() {
    let workshop = Workshop::new();
    let content = noise(LARGE);
    workshop.write("tree/large", &content);
    (0..600).for_each(|number| {
        workshop.write(&format!("many/{number}"), &content[..8000]);
    });
    let archive = Packer::new().file("large", &content).finish();
    let packed = workshop.write("a.tar.gz", &gzip(&archive));
    let Some(_narrow) = Narrow::over(&workshop.path("out")) else {
        return;
    };
    for source in [workshop.path("tree"), workshop.path("many"), packed] {
        let told = complaint(&run(&mut workshop.build([source])));
        names(&told, &workshop.image);
        assert!(told.contains("No space left"), "{told}");
        workshop.is_bare();
    }
    let told = complaint(&with_input(&mut workshop.build(["-"]), &archive));
    names(&told, &workshop.image);
    workshop.is_bare();
    // The old file stays if the new one could not be made.
    let precious = image_start();
    fs::write(&workshop.image, &precious).expect("there is room for that");
    let again = run(workshop.build(["--force"]).arg(workshop.path("tree")));
    names(&complaint(&again), &workshop.image);
    assert_eq!(fs::read(&workshop.image).expect("it is there"), precious);
    fs::remove_file(&workshop.image).expect("it is ours");
    // Only the space was missing.
    workshop.write("tree/large", b"small");
    succeed(
        workshop
            .build(["-q", "--size", "8M"])
            .arg(workshop.path("tree")),
    );
}

#[test]
fn a_limit_of_file_sizes_is_named() {
    let workshop = Workshop::new();
    workshop.write("tree/file", b"x");
    let archive = Packer::new().file("large", &noise(LARGE)).finish();
    let limited = |source: &str| {
        // The unit is 512 or 1024 bytes, as the shell likes it: 1 or 2 MiB.
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -f 2048 && exec \"$0\" \"$@\""]);
        let build = workshop.build([source]);
        command.arg(build.get_program()).args(build.get_args());
        command
    };
    let tree = workshop.path("tree");
    let told = complaint(&run(&mut limited(tree.to_str().expect("text"))));
    names(&told, &workshop.image);
    assert!(told.contains("File too large"), "{told}");
    workshop.is_bare();
    let told = complaint(&with_input(&mut limited("-"), &archive));
    names(&told, &workshop.image);
    workshop.is_bare();
}
