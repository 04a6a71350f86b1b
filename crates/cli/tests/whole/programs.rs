//! Guarantees that programs need beyond single calls: clocks, errors reported to the right caller,
//! mode bits that are cleared, an overlay on top.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::panic;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pext4_testkit::effort;
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, IFlags, Mode, OFlags, RenameFlags, Timespec, Timestamps,
    UTIME_NOW, fallocate, ioctl_getflags, ioctl_setflags, renameat_with, utimensat,
};
use rustix::io::Errno;

use crate::common::{LET_GO, Place, fail, has, is_root, pext4, run, succeed};

fn modified(path: &Path) -> (i64, i64) {
    let told = fs::metadata(path).expect("it is there");
    (told.mtime(), told.mtime_nsec())
}

#[test]
fn time_does_not_go_back_between_the_server_and_the_kernel() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    let mount = place.mount(&[]);
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: UTIME_NOW,
    };
    let touched = Timestamps {
        last_access: now,
        last_modification: now,
    };
    for number in 0..100 {
        // The server sets the times of a new file, the kernel those of later changes.
        let path = mount.path(format!("file{number}"));
        let mut file = File::create(&path).unwrap();
        let made = modified(&path);
        file.write_all(b"content").unwrap();
        let written = modified(&path);
        utimensat(CWD, &path, &touched, AtFlags::empty()).unwrap();
        let touched = modified(&path);
        assert!(
            made <= written && written <= touched,
            "{made:?} {written:?} {touched:?}"
        );
    }
    mount.unmount();
}

/// The kernel stamps a direct write by a clock that may be ahead of the server's, and sends no
/// times if it has sent the same before.
#[test]
fn the_times_of_a_direct_write_are_kept_as_they_were_shown() {
    #[repr(align(4096))]
    struct Aligned([u8; 4096]);
    let Some(place) = Place::new("16M") else {
        return;
    };
    let mount = place.mount(&[]);
    let beside = File::create(place.image.with_file_name("beside")).unwrap();
    let bytes = Aligned([3; 4096]);
    let times = |path: &Path| {
        let told = fs::metadata(path).unwrap();
        (modified(path), (told.ctime(), told.ctime_nsec()))
    };
    let mut shown = Vec::new();
    for number in 0..30 {
        let name = format!("file{number}");
        let path = mount.path(&name);
        fs::write(&path, [1; 8192]).unwrap();
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).open(&path).unwrap();
        let direct = OFlags::RDWR | OFlags::DIRECT;
        let direct = File::from(rustix::fs::open(&path, direct, Mode::empty()).unwrap());
        file.sync_all().unwrap();
        if number == 0 {
            file.set_modified(UNIX_EPOCH).unwrap();
        } else {
            // A file system that takes fine times raises the kernel's clock for all. It does for a
            // time that somebody has seen.
            beside.metadata().unwrap();
            beside.write_at(b"1", 0).unwrap();
            beside.metadata().unwrap();
            file.write_at(b"2", 2).unwrap();
        }
        file.sync_all().unwrap();
        direct.write_at(&bytes.0, 4096).unwrap();
        direct.sync_all().unwrap();
        let times = times(&path);
        assert!(times.0.0 > 0, "a direct write is stamped");
        shown.push((name, times));
    }
    mount.unmount();
    let mount = place.mount(&[]);
    for (name, shown) in shown {
        assert_eq!(times(&mount.path(&name)), shown, "{name}");
    }
    mount.unmount();
}

#[test]
fn a_write_that_failed_behind_its_caller_is_no_error_of_others() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    let mount = place.mount(&[]);
    let path = mount.path("endless");
    let mut file = File::create(&path).unwrap();
    let piece = vec![7; 1 << 20];
    let full = (0..2000).find_map(|_| {
        fs::metadata(&path).expect("the file can be looked at all the time");
        file.write_all(&piece).err()
    });
    assert_eq!(full.expect("no space").raw_os_error(), Some(28));
    for _ in 0..10 {
        fs::metadata(&path).expect("the file can be looked at");
    }
    drop(file);
    fs::remove_file(&path).unwrap();
    mount.unmount();
}

#[test]
fn what_is_immutable_or_only_grows_keeps_its_content() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    if !is_root() {
        return;
    }
    let mount = place.mount(&[]);
    for flag in [IFlags::IMMUTABLE, IFlags::APPEND] {
        let path = mount.path(format!("{flag:?}"));
        fs::write(&path, b"kept\n").unwrap();
        let file = File::open(&path).unwrap();
        file.sync_all().unwrap();
        let before = ioctl_getflags(&file).unwrap();
        ioctl_setflags(&file, before | flag).unwrap();
        // The kernel opens a file without asking the server, and writes later.
        let changed = OpenOptions::new()
            .write(true)
            .open(&path)
            .and_then(|mut file| {
                file.write_all(b"lost")?;
                file.sync_all()
            });
        assert!(changed.is_err(), "{flag:?}");
        // Soon after the kernel forgets what it could not write.
        let forgets = (0..1000).any(|_| {
            thread::sleep(Duration::from_millis(10));
            fs::read(&path).is_ok_and(|content| content == b"kept\n")
        });
        assert!(forgets, "{flag:?}: the kernel shows what is not there");
        let appended = OpenOptions::new()
            .append(true)
            .open(&path)
            .and_then(|mut file| {
                file.write_all(b"more\n")?;
                file.sync_all()
            });
        assert_eq!(appended.is_ok(), flag == IFlags::APPEND);
        ioctl_setflags(&file, before).unwrap();
        assert_eq!(ioctl_getflags(&file).unwrap(), before);
    }
    mount.unmount();
    let mount = place.mount(&[]);
    let content = |flag: IFlags| fs::read(mount.path(format!("{flag:?}"))).unwrap();
    assert_eq!(content(IFlags::IMMUTABLE), b"kept\n");
    assert_eq!(content(IFlags::APPEND), b"kept\nmore\n");
    mount.unmount();
}

#[test]
fn root_fills_the_volume_to_the_last_blocks_and_others_where_they_may_not_enter() {
    let Some(place) = Place::new("64M") else {
        return;
    };
    if !is_root() {
        return;
    }
    let for_all = &["-o", "allow_other"][..];
    for (options, owner, is_kept) in [
        (&[][..], 0, false),
        (&[], 1000, false),
        (for_all, 0, false),
        (for_all, 1000, true),
    ] {
        let mount = place.mount(options);
        let file = File::create(mount.path("all")).unwrap();
        std::os::unix::fs::fchown(&file, Some(owner), None).unwrap();
        let mut end = 0;
        // A call that fails takes nothing, so the last ones are small.
        for step in [1 << 20, 4096] {
            let full = (0..1000).find_map(|_| {
                let mode = rustix::fs::FallocateFlags::empty();
                let failed = rustix::fs::fallocate(&file, mode, end, step).err();
                end += if failed.is_none() { step } else { 0 };
                failed
            });
            assert_eq!(full, Some(rustix::io::Errno::NOSPC));
        }
        let told = rustix::fs::statvfs(mount.path("")).unwrap();
        // A twentieth of the image is reserved for root.
        assert_eq!(
            told.f_bfree * 30 > told.f_blocks,
            is_kept,
            "{} free",
            told.f_bfree
        );
        // The map of the file may need the last ones.
        assert!(told.f_bavail < 8, "{}", told.f_bavail);
        drop(file);
        fs::remove_file(mount.path("all")).unwrap();
        mount.unmount();
    }
}

#[test]
fn set_id_bits_go_when_someone_else_changes_the_content() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    if !is_root() {
        return;
    }
    let mount = place.mount(&["-o", "allow_other"]);
    let path = mount.path("file");
    fs::write(&path, b"content").unwrap();
    for line in [
        "echo more >> file",
        "fallocate -l 8192 file",
        "truncate -s 100 file",
        ": > file",
    ] {
        fs::set_permissions(&path, PermissionsExt::from_mode(0o6777)).unwrap();
        let mut shell = Command::new("sh");
        shell
            .args(["-c", line])
            .current_dir(mount.path(""))
            .uid(1000)
            .gid(1000);
        assert!(run(&mut shell).status.success(), "{line}");
        assert_eq!(
            fs::metadata(&path).unwrap().mode() & 0o7777,
            0o777,
            "{line}"
        );
    }
    // Without group execution the set-group-id bit is the group's to keep.
    for (group, left) in [(1000, 0o2767), (1001, 0o767)] {
        std::os::unix::fs::chown(&path, Some(0), Some(group)).unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(0o2767)).unwrap();
        let mut truncate = Command::new("truncate");
        truncate
            .args(["-s", "50", "file"])
            .current_dir(mount.path(""))
            .uid(1000)
            .gid(1000);
        assert!(run(&mut truncate).status.success());
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, left);
    }
    // A list for access changes the mode as chmod does: who is not in the group takes its bit away.
    for (group, entry, left) in [(1000, "u:1:r", 0o2770), (1001, "u:2:r", 0o770)] {
        std::os::unix::fs::chown(&path, Some(1000), Some(group)).unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(0o2770)).unwrap();
        let mut setfacl = Command::new("setfacl");
        setfacl
            .args(["-m", entry, "file"])
            .current_dir(mount.path(""))
            .uid(1000)
            .gid(1000);
        assert!(run(&mut setfacl).status.success());
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, left);
    }
    mount.unmount();
}

#[test]
fn an_append_only_file_grows_without_complaint() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    if !is_root() {
        return;
    }
    let mount = place.mount(&[]);
    let path = mount.path("log");
    let set = |change: fn(&mut IFlags)| {
        let file = File::open(&path).unwrap();
        let mut flags = ioctl_getflags(&file).unwrap();
        change(&mut flags);
        ioctl_setflags(&file, flags).unwrap();
    };
    fs::write(&path, b"first ").unwrap();
    set(|flags| flags.insert(IFlags::APPEND));
    let mut file = OpenOptions::new().append(true).open(&path).unwrap();
    file.write_all(b"second").unwrap();
    file.sync_all().expect("the times are written too");
    drop(file);
    assert!(fs::write(&path, b"over").is_err());
    set(|flags| flags.remove(IFlags::APPEND));
    assert_eq!(fs::read(&path).unwrap(), b"first second");
    mount.unmount();
}

#[test]
fn a_move_leaves_a_whiteout() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    if !is_root() {
        return;
    }
    let mount = place.mount(&[]);
    let (old, new) = (mount.path("old"), mount.path("new"));
    fs::write(&old, b"content").unwrap();
    renameat_with(CWD, &old, CWD, &new, RenameFlags::WHITEOUT).unwrap();
    assert_eq!(fs::read(&new).unwrap(), b"content");
    let left = fs::metadata(&old).unwrap();
    assert!(left.file_type().is_char_device() && left.rdev() == 0);
    mount.unmount();
}

/// An overlay whose upper directory is on the mount: containers have their programs there.
#[test]
fn a_program_that_an_overlay_copies_up_keeps_its_set_id_bits() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    if !is_root() || !has("unshare") {
        return;
    }
    let mount = place.mount(&["-o", "allow_other,dev,suid"]);
    let script = "\
        mount -t tmpfs lower \"$1\"
        mkdir \"$1/lower\" \"$1/merged\" upper work
        echo content > \"$1/lower/program\"
        chown 1000:50 \"$1/lower/program\"
        chmod 6755 \"$1/lower/program\"
        mount -t overlay over -o lowerdir=\"$1/lower\",upperdir=upper,workdir=work \"$1/merged\"
        touch \"$1/merged/program\"
        stat -c %a:%u:%g \"$1/merged/program\" upper/program";
    let lower = place.image.with_file_name("lower");
    fs::create_dir(&lower).unwrap();
    let mut shell = Command::new("unshare");
    // The namespace, and with it the mounts, end with the shell.
    shell
        .args(["--mount", "sh", "-ec", &format!("{LET_GO}{script}"), "sh"])
        .arg(&lower)
        .env("KEEP", &place.point);
    let told = succeed(shell.current_dir(mount.path("")));
    assert_eq!(told, "6755:1000:50\n6755:1000:50\n");
    let program = mount.path("upper/program");
    std::os::unix::fs::chown(&program, Some(0), None).unwrap();
    assert_eq!(fs::metadata(&program).unwrap().mode() & 0o7777, 0o755);
    mount.unmount();
}

#[test]
fn fstrim_gives_back_what_nobody_needs() {
    if !is_root() || !has("fstrim") {
        return;
    }
    let Some(place) = Place::new("64M") else {
        return;
    };
    let mount = place.mount(&["-o", "allow_other"]);
    fs::set_permissions(&place.point, fs::Permissions::from_mode(0o777)).unwrap();
    let file = File::create(mount.path("large")).unwrap();
    (&file).write_all(&vec![7; 24 << 20]).unwrap();
    fs::write(mount.path("kept"), vec![8; 1 << 20]).unwrap();
    // Not `syncfs`, which does not wait until the kernel has written what it caches.
    file.sync_all().unwrap();
    File::open(&place.image).unwrap().sync_all().unwrap();
    let taken = || fs::metadata(&place.image).unwrap().blocks() * 512;
    let before = taken();
    file.set_len(0).unwrap();
    drop(file);
    let trim = || {
        let mut command = Command::new("fstrim");
        command.arg(&place.point);
        command
    };
    let refused = run(trim().uid(1000).gid(1000));
    assert!(!refused.status.success());
    succeed(&mut trim());
    assert!(
        taken() + (23 << 20) < before,
        "{before} bytes, now {}",
        taken()
    );
    assert_eq!(fs::read(mount.path("kept")).unwrap(), vec![8; 1 << 20]);
    mount.unmount();
}

/// Asks for a checkpoint with these flags, by `EXT4_IOC_CHECKPOINT`.
fn checkpoint(file: &Path, flags: u32) -> Command {
    const SCRIPT: &str = "open(my $file, '<', $ARGV[0]) or die; my $flags = pack('L', $ARGV[1]); \
         ioctl($file, 0x4004662b, $flags) or die qq($!\n);";
    let mut command = Command::new("perl");
    command
        .args(["-e", SCRIPT])
        .arg(file)
        .arg(flags.to_string());
    command
}

#[test]
fn a_checkpoint_brings_home_what_the_journal_holds() {
    if !is_root() || !has("perl") || !has("debugfs") {
        return;
    }
    let Some(place) = Place::new("64M") else {
        return;
    };
    let mount = place.mount(&["-o", "allow_other"]);
    let name = mount.path("new");
    let file = File::create(&name).unwrap();
    (&file).write_all(b"content").unwrap();
    file.sync_all().unwrap();
    let at_home = || {
        let mut command = Command::new("debugfs");
        command.args(["-R", "cat /new"]).arg(&place.image);
        run(&mut command).stdout
    };
    assert_eq!(at_home(), b"", "it is in the journal alone");
    succeed(&mut checkpoint(&name, 4));
    for (flags, why) in [
        (1, "not supported"),
        (2, "not supported"),
        (3, "Invalid"),
        (8, "Invalid"),
    ] {
        let refused = run(&mut checkpoint(&name, flags));
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && said.contains(why), "{said}");
    }
    assert!(
        !run(checkpoint(&name, 0).uid(1000).gid(1000))
            .status
            .success()
    );
    assert_eq!(at_home(), b"", "nothing was done yet");
    succeed(&mut checkpoint(&name, 0));
    assert_eq!(at_home(), b"content");
    drop(file);
    mount.unmount();
}

/// A mount in the foreground whose image takes no bytes beyond 48 MiB, and its output.
fn mount_on_a_small_disk(place: &Place) -> (std::process::Child, BufReader<impl Read>) {
    const SCRIPT: &str = "trap '' XFSZ; ulimit -f 98304; exec \"$0\" mount -f \"$1\" \"$2\"";
    let mut shell = Command::new("sh");
    shell
        .args(["-c", SCRIPT, env!("CARGO_BIN_EXE_pext4")])
        .arg(&place.image)
        .arg(&place.point);
    let mut server = shell.stderr(Stdio::piped()).spawn().expect("sh");
    let mut said = BufReader::new(server.stderr.take().expect("a pipe"));
    let mut line = String::new();
    said.read_line(&mut line).expect("a line");
    assert!(line.contains("Ctrl-C ends the mount"), "{line}");
    (server, said)
}

#[test]
fn a_mount_that_had_to_stop_says_why_and_what_to_do() {
    for (features, next) in [
        ("has_journal", "the next mount replays its journal"),
        ("^has_journal", "`e2fsck -f` must check it"),
    ] {
        let Some(place) = Place::empty_if_mountable() else {
            return;
        };
        succeed(pext4(["mkfs", "-q", "--size", "64M", "-O", features]).arg(&place.image));
        let (mut server, mut said) = mount_on_a_small_disk(&place);
        let mount = place.guard();
        let mut file = File::create(mount.path("file")).unwrap();
        let stopped = (0..64).find_map(|_| {
            let written = file.write_all(&[7; 1 << 20]);
            written.and_then(|()| file.sync_all()).err()
        });
        assert!(stopped.is_some(), "all was written");
        drop(file);
        let refused = fs::create_dir(mount.path("later")).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(Errno::ROFS.raw_os_error()));
        let told = fail(pext4(["umount"]).arg(&place.point), 1);
        assert!(told.contains(next), "{told}");
        assert!(!server.wait().unwrap().success());
        let mut rest = String::new();
        said.read_to_string(&mut rest).unwrap();
        assert!(rest.contains("the volume is read-only now"), "{rest}");
        assert!(rest.contains("cannot write"), "{rest}");
        mount.forget();
    }
}

/// A new file that was last changed long ago, as far as the server knows too.
fn old_file(path: &Path) -> File {
    let file = File::create(path).expect("room");
    file.set_modified(UNIX_EPOCH).expect("it is ours");
    file.sync_all().expect("the image takes it");
    file
}

#[test]
fn what_was_written_before_a_file_became_immutable_is_kept() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    if !is_root() {
        return;
    }
    let mount = place.mount(&[]);
    let kinds = [(IFlags::IMMUTABLE, "immutable"), (IFlags::APPEND, "append")];
    let mut times = Vec::new();
    for (flag, name) in kinds {
        let mut file = old_file(&mount.path(name));
        // Nobody has asked the kernel to write this.
        file.write_all(b"first").unwrap();
        times.push(file.metadata().unwrap().modified().unwrap());
        let before = ioctl_getflags(&file).unwrap();
        ioctl_setflags(&file, before | flag).unwrap();
        // What the kernel tells of the times then is no error.
        file.sync_all().unwrap();
        // The time of a call that wrote no page is told as well.
        let name = format!("{name}-without-pages");
        let file = old_file(&mount.path(&name));
        fallocate(&file, FallocateFlags::empty(), 0, 4096).unwrap();
        times.push(file.metadata().unwrap().modified().unwrap());
        ioctl_setflags(&file, before | flag).unwrap();
        file.sync_all().unwrap();
        let later = SystemTime::now() + Duration::from_secs(100);
        let refused = File::open(mount.path(&name)).unwrap().set_modified(later);
        assert!(refused.is_err() || flag == IFlags::APPEND, "{name}");
    }
    mount.unmount();
    let mount = place.mount(&[]);
    for (_, kind) in kinds {
        let path = mount.path(kind);
        assert_eq!(fs::read(&path).unwrap(), b"first", "{kind}");
    }
    let names = kinds.map(|(_, kind)| [kind.to_owned(), format!("{kind}-without-pages")]);
    for (name, time) in names.as_flattened().iter().zip(times) {
        let file = File::open(mount.path(name)).unwrap();
        if name.starts_with("immutable") {
            assert_eq!(file.metadata().unwrap().modified().unwrap(), time, "{name}");
        }
        let flags = ioctl_getflags(&file).unwrap();
        ioctl_setflags(&file, flags - (IFlags::IMMUTABLE | IFlags::APPEND)).unwrap();
    }
    mount.unmount();
}

#[test]
fn names_are_on_the_device_where_that_was_asked_for() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    let mount = place.mount(&["-o", "commit=300"]);
    fs::create_dir(mount.path("often")).unwrap();
    if has("chattr") {
        succeed(Command::new("chattr").arg("+D").arg(mount.path("often")));
    }
    mount.unmount();
    let copy = place.image.with_file_name("copy");
    // What a power cut would leave.
    let listed = |directory: &str| {
        fs::copy(&place.image, &copy).unwrap();
        succeed(pext4(["ls"]).arg(&copy).arg(directory))
    };
    if has("chattr") {
        let mount = place.mount(&["-o", "commit=300"]);
        fs::create_dir(mount.path("seldom")).unwrap();
        assert!(!listed("/").contains("seldom"));
        File::create(mount.path("often/now")).unwrap();
        assert!(listed("/often").contains("now"));
        mount.unmount();
    }
    let mount = place.mount(&["-o", "commit=300,dirsync"]);
    fs::create_dir(mount.path("directory")).unwrap();
    assert!(listed("/").contains("directory"));
    fs::rename(mount.path("directory"), mount.path("moved")).unwrap();
    assert!(listed("/").contains("moved"));
    fs::remove_dir(mount.path("moved")).unwrap();
    assert!(!listed("/").contains("moved"));
    mount.unmount();
}

#[test]
fn a_program_is_begun_while_a_file_of_the_mount_is_being_written() {
    const ROUNDS: usize = 20;
    let Some(place) = Place::new("64M") else {
        return;
    };
    let mount = place.mount(&[]);
    let (server, directory) = (place.server(), place.point.clone());
    // The program does not inherit the file: the kernel has it closed, and what was written goes to
    // the server, while nobody can read some files of the process in /proc. After a while without
    // calls it is the only caller that any thread of the server knows of.
    let begin_programs = move || {
        let mut file = File::create(directory.join("written")).unwrap();
        for _ in 0..ROUNDS {
            file.write_all(&[7; 5000]).unwrap();
            for number in 0..100 {
                let name = directory.join(format!("name{number}"));
                File::create(&name).unwrap();
                fs::remove_file(&name).unwrap();
            }
            thread::sleep(Duration::from_millis(60));
            assert!(Command::new("true").status().unwrap().success());
        }
    };
    let ended = panic::catch_unwind(|| {
        effort::within(
            Duration::from_secs(60),
            "programs that begin",
            begin_programs,
        );
    });
    if let Err(panic) = ended {
        // It may wait for itself, and an unmount may wait for it.
        let _ = rustix::process::kill_process(server, rustix::process::Signal::KILL);
        panic::resume_unwind(panic);
    }
    mount.unmount();
}
