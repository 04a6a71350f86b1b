//! Images from directories and archives.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, SystemTime};

use super::images::{Workshop, complaint, json, text};
use super::pack::{Packer, gzip, zstd};
use crate::common::{copy_program, has, run, succeed, with_input};

fn set_time(path: &std::path::Path, seconds: u64, nanoseconds: u32) {
    let time = SystemTime::UNIX_EPOCH + Duration::new(seconds, nanoseconds);
    let file = File::options().write(true).open(path);
    file.and_then(|file| file.set_modified(time))
        .expect("it is ours");
}

#[test]
fn a_directory_comes_back_as_it_was() {
    let workshop = Workshop::new();
    let script = workshop.write("tree/bin/script", b"#!/bin/sh\n");
    fs::set_permissions(&script, Permissions::from_mode(0o4751)).expect("it is ours");
    set_time(&script, 1_000_000_000, 123_456_789);
    workshop.write("tree/empty", b"");
    workshop.write("tree/large", &[b'x'; 300_000]);
    let tree = workshop.path("tree");
    fs::hard_link(tree.join("empty"), tree.join("other name")).expect("it is ours");
    std::os::unix::fs::symlink("bin/script", tree.join("link")).expect("it is ours");
    let summary = json(workshop.build(["--json"]).arg(&tree));
    workshop.check();
    // The root and the names that every image has are not names of the source.
    assert_eq!(summary["names"], 6);
    assert_eq!(
        summary["size"],
        fs::metadata(&workshop.image).expect("built").len()
    );
    assert_eq!(summary["image"], workshop.image.to_str().expect("text"));
    assert_eq!(
        workshop.names("/"),
        ["bin", "empty", "large", "link", "other name"]
    );
    let script = workshop.stat("/bin/script");
    assert_eq!(script["mode"], "4751");
    assert_eq!(script["modified"], "2001-09-09T01:46:40.123456789Z");
    assert_eq!(workshop.cat("/link"), "#!/bin/sh\n");
    assert_eq!(workshop.stat("/link")["target"], "bin/script");
    assert_eq!(workshop.cat("/large"), "x".repeat(300_000));
    let (empty, other) = (workshop.stat("/empty"), workshop.stat("/other name"));
    assert_eq!(
        (&empty["links"], &empty["inode"]),
        (&2.into(), &other["inode"])
    );
}

/// An archive with something of every kind that matters to it.
fn archive() -> Vec<u8> {
    Packer::new()
        .directory("etc/")
        .file("etc/name", b"from a tar\n")
        .entry(b'1', "etc/hard", "etc/name", b"")
        .entry(b'2', "soft", "etc/name", b"")
        .file("not/named/before", &[b'y'; 400_000])
        .finish()
}

#[test]
fn an_archive_is_the_same_in_every_form() {
    let workshop = Workshop::new();
    let plain = archive();
    let mut images = Vec::new();
    for input in [plain.clone(), gzip(&plain), zstd(&plain)] {
        let output = with_input(&mut workshop.build(["-q", "--force", "-"]), &input);
        assert!(output.status.success(), "{output:?}");
        assert!(
            output.stdout.is_empty() && output.stderr.is_empty(),
            "{output:?}"
        );
        images.push(fs::read(&workshop.image).expect("built"));
    }
    for input in [plain.clone(), gzip(&plain), zstd(&plain)] {
        // The format depends on the first bytes, not on the name.
        let path = workshop.write("archive", &input);
        succeed(workshop.build(["-q", "--force"]).arg(path));
        images.push(fs::read(&workshop.image).expect("built"));
    }
    assert!(images.iter().all(|image| *image == images[0]));
    workshop.check();
    assert_eq!(workshop.cat("/soft"), "from a tar\n");
    let (name, hard) = (workshop.stat("/etc/name"), workshop.stat("/etc/hard"));
    assert_eq!(name["inode"], hard["inode"]);
    assert_eq!((&name["uid"], &name["gid"]), (&1000.into(), &100.into()));
    assert_eq!(
        (text(&name["mode"]), &name["links"]),
        ("0640".to_owned(), &2.into())
    );
    assert_eq!(name["modified"], "1970-01-12T13:46:40.000000000Z");
    assert_eq!(workshop.stat("/not/named")["mode"], "0755");
    assert_eq!(workshop.cat("/not/named/before").len(), 400_000);
}

#[test]
fn later_sources_lie_over_earlier_ones() {
    let workshop = Workshop::new();
    workshop.write("low/both/name", b"low");
    workshop.write("low/both/low", b"low");
    workshop.write("low/turns", b"a file");
    workshop.write("high/both/high", b"high");
    workshop.write("high/turns/inside", b"a directory");
    let middle = Packer::new()
        .file("both/name", b"middle")
        .file("both/high", b"middle")
        .file("middle", b"middle")
        .finish();
    let mut build = workshop.build([workshop.path("low")]);
    build.arg("-").arg(workshop.path("high"));
    let output = with_input(&mut build, &middle);
    assert!(output.status.success(), "{output:?}");
    workshop.check();
    assert_eq!(workshop.names("/"), ["both", "middle", "turns"]);
    assert_eq!(workshop.names("/both"), ["high", "low", "name"]);
    assert_eq!(workshop.cat("/both/name"), "middle");
    assert_eq!(workshop.cat("/both/high"), "high");
    assert_eq!(workshop.cat("/turns/inside"), "a directory");
}

#[test]
fn a_hostile_archive_is_refused_with_its_entry() {
    let hostile = [
        (Packer::new().file("a/../../out", b"x"), "a/../../out"),
        (Packer::new().file("/etc/passwd", b"x"), "/etc/passwd"),
        (
            Packer::new()
                .entry(b'1', "early", "late", b"")
                .file("late", b"x"),
            "early",
        ),
        (
            Packer::new().entry(b'1', "link", "../../etc/passwd", b""),
            "../../etc/passwd",
        ),
        (
            Packer::new().entry(b'1', "link", "/etc/passwd", b""),
            "/etc/passwd",
        ),
    ];
    for (packer, entry) in hostile {
        let workshop = Workshop::new();
        let bytes = packer.finish();
        let told = complaint(&with_input(&mut workshop.build(["-"]), &bytes));
        assert!(told.starts_with("pext4: standard input: "), "{told}");
        assert!(told.contains(entry), "{told}");
        workshop.is_bare();
        let path = workshop.write("hostile.tar", &bytes);
        let told = complaint(&run(&mut workshop.build([&path])));
        super::images::names(&told, &path);
        assert!(told.contains(entry), "{told}");
        workshop.is_bare();
    }
}

#[test]
fn a_link_that_points_out_leads_nowhere_else() {
    let workshop = Workshop::new();
    let outside = workshop.write("outside/file", b"precious");
    let folder = outside.parent().expect("it lies in one");
    let target = folder.to_str().expect("text");
    let up = format!("../../../../../../../../..{target}");
    if up.len() > 99 {
        eprintln!("SKIPPED: links out: the temporary folder's name is too long for a header");
        return;
    }
    let bytes = Packer::new()
        .entry(b'2', "absolute", target, b"")
        .entry(b'2', "up", &up, b"")
        .file("absolute/file", b"inside")
        .file("up/other", b"inside")
        .finish();
    let output = with_input(&mut workshop.build(["-"]), &bytes);
    assert!(output.status.success(), "{output:?}");
    workshop.check();
    assert_eq!(fs::read(&outside).expect("it is there"), b"precious");
    assert_eq!(fs::read_dir(folder).expect("it is there").count(), 1);
    assert_eq!(workshop.stat("/up")["target"], up);
    assert_eq!(workshop.cat("/up/file"), "inside");
    assert_eq!(workshop.names(target), ["file", "other"]);
}

#[test]
fn threads_change_no_byte() {
    let workshop = Workshop::new();
    for number in 0..700u32 {
        let size = usize::try_from(number * 37 % 9000).expect("small");
        let name = format!("tree/{}/{number}", number % 7);
        workshop.write(&name, &vec![number.to_le_bytes()[0]; size]);
    }
    workshop.write("tree/large", &vec![1; 20 << 20]);
    let packed = workshop.write("packed", &zstd(&archive()));
    let build = |threads: &str| {
        let mut command = workshop.build(["-q", "--force", "--threads", threads]);
        succeed(command.arg(workshop.path("tree")).arg(&packed));
        fs::read(&workshop.image).expect("built")
    };
    let one = build("1");
    workshop.check();
    for threads in ["2", "3", "8"] {
        assert!(build(threads) == one, "{threads} threads");
    }
}

#[test]
fn a_source_may_have_any_name() {
    use std::os::unix::ffi::OsStrExt;

    let workshop = Workshop::new();
    let tree = workshop
        .path("")
        .join(std::ffi::OsStr::from_bytes(b"tr\xffee"));
    fs::create_dir(&tree).expect("it is ours");
    fs::write(tree.join("file"), b"x").expect("it is ours");
    succeed(&mut workshop.build([&tree]));
    let mut told = std::ffi::OsString::from("dir:");
    told.push(&tree);
    succeed(workshop.build(["--force"]).arg(told));
    assert_eq!(workshop.names("/"), ["file"]);
}

/// Limits on threads are those of a user, and root has none.
#[test]
fn a_build_goes_on_with_the_threads_there_are() {
    const SOMEBODY: &str = "--reuid=64321";
    let shop = Workshop::new();
    let source = shop.path("source");
    for number in 0..600 {
        shop.write(&format!("source/{}/{number}", number % 7), b"content");
    }
    let archive = shop.write("a.tar.gz", &gzip(&archive()));
    let open = fs::Permissions::from_mode(0o777);
    for path in [shop.folder.path(), shop.image.parent().expect("it has one")] {
        fs::set_permissions(path, open.clone()).expect("it is ours");
    }
    let program = shop.path("pext4");
    copy_program(&program);
    let with = |threads: u32, source: &PathBuf| {
        Command::new("timeout")
            .args(["60", "setpriv", SOMEBODY, "--regid=64321", "--clear-groups"])
            .args(["prlimit", &format!("--nproc={threads}")])
            .arg(&program)
            .args(["build", "--force", "--threads", "8"])
            .args([&shop.image, source])
            .output()
    };
    if !rustix::process::geteuid().is_root() || !has("setpriv") || !has("prlimit") {
        return eprintln!("SKIPPED: a limit on threads: only root may become another user");
    }
    for threads in [3, 4, 6, 20] {
        let output = with(threads, &source).expect("timeout(1) is everywhere");
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{threads} threads: {told}");
    }
    // There are two threads, the reader and the consumer, besides the signal handler's.
    for source in [&source, &archive] {
        let output = with(2, source).expect("timeout(1) is everywhere");
        let told = String::from_utf8_lossy(&output.stderr);
        let name = source.to_string_lossy();
        assert_eq!(output.status.code(), Some(1), "{told}");
        assert!(
            told.contains(&*name) && told.contains("start a thread"),
            "{told}"
        );
    }
}
