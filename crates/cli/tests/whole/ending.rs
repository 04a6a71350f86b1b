//! A server that is asked to end unmounts, wherever the mount is by then, and reports if it cannot.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::thread;
use std::time::Duration;

use pext4_block::{Access, FileDevice, LockProbe, open_unlocked};
use pext4_fuse::delay_openers;
use pext4_testkit::effort::within;
use pext4_testkit::oracle::check::e2fsck;
use rustix::fs::{FlockOperation, flock};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};

use crate::common::{LET_GO, Mounted, Place, fail, is_root, pext4, run, succeed};

/// Far longer than anything here takes.
const HANG: Duration = Duration::from_secs(120);

/// Unmounts on drop what a failed test leaves behind.
struct Leftover<'a>(&'a Path);

impl Drop for Leftover<'_> {
    fn drop(&mut self) {
        let mut umount = Command::new("umount");
        run(umount.arg("-q").arg("-l").arg(self.0));
    }
}

/// A mount with an image, whose server can be stopped: then nothing that is written to the image
/// becomes durable.
struct Below<'a> {
    server: Pid,
    mount: Mounted<'a>,
}

impl<'a> Below<'a> {
    fn new(place: &'a Place) -> Self {
        let below = Self {
            mount: place.mount(&[]),
            server: place.server(),
        };
        succeed(pext4(["mkfs", "-q", "--size", "16M"]).arg(below.image()));
        let image = File::open(below.image()).expect("it was made");
        image.sync_all().expect("there is room");
        below
    }

    fn image(&self) -> PathBuf {
        self.mount.path("image")
    }

    fn stop(&self) {
        kill_process(self.server, Signal::STOP).expect("it is ours");
    }

    fn go_on(&self) {
        kill_process(self.server, Signal::CONT).expect("it is ours");
    }
}

impl Drop for Below<'_> {
    fn drop(&mut self) {
        self.go_on();
    }
}

/// The device number of the mount on a directory; `None` if there is none.
fn device_of(point: &Path) -> Option<String> {
    let table = fs::read_to_string("/proc/self/mountinfo").expect("Linux has it");
    let point = point.to_str().expect("it is ASCII").replace(' ', "\\040");
    let mut lines = table
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>());
    let line = lines.find(|fields| fields[4] == point)?;
    Some(line[2].to_owned())
}

/// Waits a while until something is so; returns whether it is.
fn soon(is_so: impl Fn() -> bool) -> bool {
    (0..200).any(|_| {
        thread::sleep(Duration::from_millis(50));
        is_so()
    })
}

/// Starts a server in the foreground, waits until its mount answers, and returns it with its
/// output.
fn serve(image: &Path, point: &Path) -> (Child, BufReader<ChildStderr>) {
    serve_with(&[], image, point)
}

/// The same with options.
fn serve_with(options: &[&str], image: &Path, point: &Path) -> (Child, BufReader<ChildStderr>) {
    let mut server = pext4(["mount", "-f"])
        .args(options)
        .arg(image)
        .arg(point)
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command can be started");
    let mut said = BufReader::new(server.stderr.take().expect("its errors are a pipe"));
    let mut line = String::new();
    said.read_line(&mut line).expect("it says something");
    assert!(line.contains("is mounted on"), "{line}");
    (server, said)
}

/// Waits for the end of a server. Returns whether it succeeded.
fn wait(mut server: Child) -> bool {
    within(HANG, "the server ends", move || {
        let ended = server.wait().expect("it is ours");
        ended.success()
    })
}

#[test]
fn a_mount_below_a_directory_that_was_renamed_ends_with_a_termination() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    let (above, renamed) = (place.point.join("above"), place.point.join("renamed"));
    fs::create_dir_all(above.join("point")).unwrap();
    let (server, _said) = serve(&place.image, &above.join("point"));
    fs::rename(&above, &renamed).unwrap();
    let point = renamed.join("point");
    let _leftover = Leftover(&point);
    let mut file = File::create(point.join("file")).unwrap();
    file.write_all(b"content").unwrap();
    kill_process(Pid::from_child(&server), Signal::TERM).unwrap();
    assert!(wait(server));
    assert_eq!(place.state(), "clean");
    assert!(!point.join("file").exists(), "it is unmounted");
    let read = succeed(pext4(["cat"]).arg(&place.image).arg("/file"));
    assert_eq!(read, "content");
}

/// Without a journal it is not known afterwards which of two mounts was not closed cleanly.
#[test]
fn an_image_that_was_unclean_before_its_mount_is_not_said_to_be_badly_closed() {
    let Some(place) = Place::empty_if_mountable() else {
        return;
    };
    let make = [
        "mkfs",
        "-q",
        "--size",
        "16M",
        "-O",
        "^has_journal,^metadata_csum",
    ];
    succeed(pext4(make).arg(&place.image));
    let file = File::options().read(true).write(true).open(&place.image);
    let state = [0, 0];
    file.expect("it was made")
        .write_all_at(&state, 1024 + 58)
        .expect("it is ours");
    let mount = place.mount(&[]);
    let told = fail(pext4(["umount"]).arg(&place.point), 1);
    mount.forget();
    let expected = "it is unmounted, but is not marked clean: this mount or an earlier one was not closed cleanly";
    assert!(told.contains(expected), "{told}");
    assert!(told.contains("`e2fsck -f` must check it"), "{told}");
}

/// In a mount namespace of its own, where the kernel shows its connections.
#[test]
fn a_mount_that_was_detached_in_use_ends_with_a_termination() {
    const CANNOT: i32 = 77;
    const SCRIPT: &str = r#"
        mount -t fusectl none /sys/fs/fuse/connections || exit 77
        "$0" mount "$1" "$2"
        exec 9>"$2/file"
        printf content >&9
        umount -l "$2"
        echo detached
        read _"#;
    if !is_root() {
        return;
    }
    let Some(place) = Place::new("16M") else {
        return;
    };
    let mut shell = Command::new("unshare")
        .args(["-m", "sh", "-ec", &format!("{LET_GO}{SCRIPT}")])
        .arg(env!("CARGO_BIN_EXE_pext4"))
        .arg(&place.image)
        .arg(&place.point)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut said = BufReader::new(shell.stdout.take().unwrap());
    said.read_line(&mut line).unwrap();
    if line.is_empty() && shell.wait().unwrap().code() == Some(CANNOT) {
        eprintln!("SKIPPED: fusectl cannot be mounted");
        return;
    }
    assert_eq!(line, "detached\n");
    kill_process(place.server(), Signal::TERM).unwrap();
    let place = within(HANG, "the image is closed", move || {
        place.wait_until_closed();
        place
    });
    drop(shell.stdin.take());
    shell.wait().unwrap();
    assert_eq!(place.state(), "clean");
    let read = succeed(pext4(["cat"]).arg(&place.image).arg("/file"));
    assert_eq!(read, "content");
}

#[test]
fn an_unmounting_does_not_wait_for_who_has_the_image_next() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    let mount = place.mount(&[]);
    fs::write(mount.path("file"), b"content").unwrap();
    let image = File::open(&place.image).unwrap();
    let number = format!(":{} ", image.metadata().unwrap().ino());
    let shows_lock = |mark: &str| {
        let locks = fs::read_to_string("/proc/locks").unwrap();
        let mut lines = locks.lines();
        lines.any(|line| line.contains(&number) && line.contains(mark))
    };
    if !shows_lock("FLOCK") {
        eprintln!("SKIPPED: /proc/locks knows the image by another number");
        return;
    }
    thread::scope(|scope| {
        let next = scope.spawn(|| flock(&image, FlockOperation::LockExclusive));
        while !shows_lock("->") {
            thread::yield_now();
        }
        let mut umount = pext4(["umount"]);
        umount.arg(&place.point);
        within(HANG, "the unmounting returns", move || succeed(&mut umount));
        next.join().unwrap().unwrap();
    });
    mount.forget();
    drop(image);
    assert_eq!(place.state(), "clean");
}

#[test]
fn a_mount_that_cannot_be_ended_is_told_of() {
    if !is_root() {
        return;
    }
    let Some(place) = Place::new("16M") else {
        return;
    };
    let (server, mut said) = serve(&place.image, &place.point);
    let mut file = File::create(place.point.join("file")).unwrap();
    file.write_all(b"content").unwrap();
    succeed(Command::new("umount").arg("-l").arg(&place.point));
    kill_process(Pid::from_child(&server), Signal::TERM).unwrap();
    // Where the kernel shows its connections the server just ends.
    let line = within(HANG, "the server ends or says why not", move || {
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        line
    });
    assert!(
        line.is_empty() || line.contains("ends when the last file is closed"),
        "{line}"
    );
    drop(file);
    assert!(wait(server));
    assert_eq!(place.state(), "clean");
}

/// The kernel gives the number of a connection to the next mount while the server still closes its
/// image.
#[test]
fn a_late_termination_leaves_the_next_mount_alone() {
    const TRIES: usize = 8;
    let (Some(outer), Some(inner)) = (Place::new("64M"), Place::new("16M")) else {
        return;
    };
    let below = Below::new(&outer);
    let (server, _said) = serve(&below.image(), &inner.point);
    fs::write(inner.point.join("file"), b"content").unwrap();
    let device = device_of(&inner.point).expect("it is mounted");
    let places: Vec<_> = (0..TRIES).filter_map(|_| Place::new("16M")).collect();
    below.stop();
    unmount(&inner.point, UnmountFlags::empty()).unwrap();
    let mut mounts = Vec::new();
    let next = places.iter().find(|place| {
        mounts.push(place.mount(&[]));
        device_of(&place.point).as_ref() == Some(&device)
    });
    let Some(next) = next else {
        return eprintln!("SKIPPED: the number is somebody else's");
    };
    kill_process(Pid::from_child(&server), Signal::TERM).unwrap();
    thread::sleep(Duration::from_secs(1));
    let listed = fs::read_dir(&next.point).map(Iterator::count);
    below.go_on();
    assert!(wait(server));
    assert_eq!(listed.ok(), Some(1), "lost+found");
    mounts.into_iter().for_each(Mounted::unmount);
}

/// Whether a process is this program by now, and sleeps.
fn sleeps(process: &Child, program: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.id())).expect("it is ours");
    let begins = |state| stat.contains(&format!("({program}) {state}"));
    begins("S") || begins("D")
}

/// The kernel writes pages, and the server cannot answer before they are durable.
#[test]
fn a_second_termination_ends_a_mount_whose_server_waits_for_the_kernel() {
    if !is_root() {
        return;
    }
    let (Some(outer), Some(inner)) = (Place::new("64M"), Place::new("16M")) else {
        return;
    };
    let below = Below::new(&outer);
    let (server, _said) = serve_with(&["-o", "sync"], &below.image(), &inner.point);
    let process = Pid::from_child(&server);
    let file = File::create(inner.point.join("file")).unwrap();
    below.stop();
    let mut writer = Command::new("dd")
        .args(["if=/dev/zero", "bs=64K", "count=1"])
        .stdout(file)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // It sleeps nowhere but in its write.
    assert!(soon(|| sleeps(&writer, "dd")), "it writes");
    thread::sleep(Duration::from_millis(500));
    kill_process(process, Signal::TERM).unwrap();
    thread::sleep(Duration::from_millis(1500));
    let had_ended = device_of(&inner.point).is_none();
    kill_process(process, Signal::TERM).unwrap();
    let has_ended = soon(|| device_of(&inner.point).is_none());
    // Where the test fails, the writer could not even be killed.
    let _ = unmount(&inner.point, UnmountFlags::FORCE | UnmountFlags::DETACH);
    let written = writer.wait().unwrap().success();
    below.go_on();
    assert!(!wait(server), "it says that it was not closed");
    assert!(!had_ended, "the first waits");
    assert!(has_ended);
    assert!(!written);
}

/// A shell in a mount namespace that has a copy of a mount, until its standard input ends.
fn namespace_with(point: &Path) -> Child {
    let mut shell = Command::new("unshare")
        .args(["-m", "--propagation", "private"])
        .args(["sh", "-c", &format!("{LET_GO} echo; read _")])
        .env("KEEP", point)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("unshare is there");
    let mut line = String::new();
    let mut begun = BufReader::new(shell.stdout.take().expect("it is piped"));
    begun.read_line(&mut line).expect("it is text");
    shell
}

/// A mount is copied into every new mount namespace.
#[test]
fn a_mount_that_is_left_in_another_namespace_ends_with_a_termination() {
    if !is_root() {
        return;
    }
    let Some(place) = Place::new("16M") else {
        return;
    };
    let (server, mut said) = serve(&place.image, &place.point);
    fs::write(place.point.join("file"), b"content").unwrap();
    let mut other = namespace_with(&place.point);
    kill_process(Pid::from_child(&server), Signal::TERM).unwrap();
    // Where the kernel shows its connections the server just ends.
    let told = within(HANG, "the server ends or says why not", move || {
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        line
    });
    let has_ended = told.is_empty();
    let closed = has_ended.then(|| place.state());
    drop(other.stdin.take());
    other.wait().unwrap();
    assert!(wait(server));
    assert!(has_ended || told.contains("in another namespace"), "{told}");
    assert_eq!(closed.unwrap_or_else(|| place.state()), "clean");
}

/// Its server goes on, and nothing that an unmounting here does would end it.
#[test]
fn an_unmounting_does_not_wait_for_another_namespace() {
    if !is_root() {
        return;
    }
    let Some(place) = Place::new("16M") else {
        return;
    };
    let mount = place.mount(&[]);
    fs::write(mount.path("file"), b"content").unwrap();
    let mut other = namespace_with(&place.point);
    let mut umount = pext4(["umount"]);
    umount.arg(&place.point);
    let told = within(HANG, "umount returns", move || run(&mut umount));
    let is_there = device_of(&place.point).is_some();
    drop(other.stdin.take());
    other.wait().unwrap();
    mount.forget();
    place.wait_until_closed();
    assert!(!is_there, "it is unmounted here");
    assert_eq!(told.status.code(), Some(1), "the image is not closed");
    let told = String::from_utf8_lossy(&told.stderr).into_owned();
    let expected = format!("in another namespace, that of process {} too", other.id());
    assert!(told.contains(&expected), "{told}");
    assert_eq!(place.state(), "clean");
}

/// The server has the file that it opened, whatever has that name by now.
#[test]
fn an_unmounting_waits_for_the_image_also_if_it_was_renamed() {
    let Some(place) = Place::new("64M") else {
        return;
    };
    let (moved, other) = (
        place.image.with_extension("moved"),
        place.point.with_extension("other"),
    );
    fs::create_dir(&other).unwrap();
    for is_other_mounted in [false, true] {
        let mount = place.mount(&[]);
        let server = place.server().as_raw_nonzero();
        let shows_connection = fs::read_dir(format!("/proc/{server}/fdinfo"))
            .unwrap()
            .filter_map(|info| fs::read_to_string(info.unwrap().path()).ok())
            .any(|info| info.contains("fuse_connection"));
        if !shows_connection {
            eprintln!("SKIPPED: this kernel does not show whose connection a file has");
            return;
        }
        fs::write(mount.path("file"), vec![1; 8 << 20]).unwrap();
        fs::rename(&place.image, &moved).unwrap();
        fs::write(&place.image, b"a text").unwrap();
        let _second = Leftover(&other);
        if is_other_mounted {
            succeed(pext4(["mkfs", "-q", "--force", "--size", "16M"]).arg(&place.image));
            succeed(pext4(["mount"]).arg(&place.image).arg(&other));
        }
        let mut umount = pext4(["umount"]);
        umount.arg(&place.point);
        let told = within(HANG, "umount returns", move || run(&mut umount));
        let closed = FileDevice::open(&moved, Access::ReadWrite, Duration::ZERO);
        mount.forget();
        if is_other_mounted {
            succeed(pext4(["umount"]).arg(&other));
        }
        assert!(told.status.success(), "{told:?}");
        drop(closed.expect("the server has let it go"));
        fs::rename(&moved, &place.image).unwrap();
        assert_eq!(place.state(), "clean");
    }
}

#[test]
fn an_unmounting_succeeds_also_if_the_image_was_removed() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    let mount = place.mount(&[]);
    let server = place.server();
    let info = fs::read_dir(format!("/proc/{}/fdinfo", server.as_raw_nonzero())).unwrap();
    let mut infos = info.filter_map(|info| fs::read_to_string(info.unwrap().path()).ok());
    if !infos.any(|info| info.contains("fuse_connection")) {
        eprintln!("SKIPPED: this kernel does not show whose connection a file has");
        return;
    }
    fs::remove_file(&place.image).unwrap();
    succeed(pext4(["umount"]).arg(&place.point));
    mount.forget();
    assert!(device_of(&place.point).is_none());
}

/// Whether a process has a lease of a file.
fn has_lease(process: Pid) -> bool {
    let number = process.as_raw_nonzero().to_string();
    let locks = fs::read_to_string("/proc/locks").expect("Linux has it");
    let mut locks = locks.lines().map(|line| line.split_whitespace());
    locks.any(|mut words| words.nth(1) == Some("LEASE") && words.any(|word| word == number))
}

/// Unmounting by the system does not wait for the server, and e2fsck looks at no lock: it would
/// damage an image that is still written to.
#[test]
fn who_opens_an_image_that_is_being_closed_waits() {
    if !is_root() {
        return;
    }
    let (Some(outer), Some(inner)) = (Place::new("64M"), Place::new("16M")) else {
        return;
    };
    let below = Below::new(&outer);
    let other = File::create(below.mount.path("other")).unwrap();
    if let Err(error) = delay_openers(&other) {
        return eprintln!("SKIPPED: there are no leases on a mount: {error}");
    }
    drop(other);
    let (server, _said) = serve(&below.image(), &inner.point);
    fs::write(inner.point.join("file"), b"content").unwrap();
    let process = Pid::from_child(&server);
    assert!(!has_lease(process), "anybody may look at it");
    below.stop();
    unmount(&inner.point, UnmountFlags::empty()).unwrap();
    let is_leased = soon(|| has_lease(process));
    let image = below.image();
    let opener = thread::spawn(move || {
        File::open(&image).unwrap();
        e2fsck(&image)
    });
    below.go_on();
    assert!(wait(server));
    within(HANG, "the image is opened", || opener.join().unwrap()).expect("it is clean");
    assert!(is_leased);
}

/// A lease is not waited for longer than a lock.
#[test]
fn an_image_that_makes_others_wait_is_one_in_use() {
    let place = Place::empty();
    let image = File::create(&place.image).unwrap();
    if let Err(error) = delay_openers(&image) {
        return eprintln!("SKIPPED: there are no leases here: {error}");
    }
    for access in [Access::ReadOnly, Access::ReadWrite] {
        let opened = FileDevice::open(&place.image, access, Duration::ZERO);
        assert_eq!(opened.unwrap_err().kind(), ErrorKind::ResourceBusy);
        let probed = LockProbe::open(&place.image, 0, access);
        assert_eq!(probed.unwrap_err().kind(), ErrorKind::WouldBlock);
    }
    let made = FileDevice::create(&place.image, 4096);
    assert_eq!(made.unwrap_err().kind(), ErrorKind::ResourceBusy);
    let reader = thread::spawn({
        let image = place.image.clone();
        move || open_unlocked(&image).unwrap()
    });
    drop(image);
    within(HANG, "it is opened", || reader.join().unwrap());
}
