//! Images and mounts for tests. Every mount is undone when its guard is dropped, also when the
//! test fails; what the machine lacks is skipped loudly.

#![allow(dead_code, reason = "each test file uses its share")]

pub mod traced;

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use pext4_testkit::oracle::check::e2fsck;
pub use pext4_testkit::oracle::mount::Access;
use pext4_testkit::oracle::mount::{KernelMount, kernel_mount};
use tempfile::TempDir;

/// A directory with an image and a mount point, in the current user's temporary directory.
pub struct Place {
    directory: TempDir,
    pub image: PathBuf,
    pub point: PathBuf,
}

/// A mounted image; unmounted on drop.
pub struct Mounted<'a> {
    place: &'a Place,
    done: bool,
}

/// The `pext4` command with these arguments.
pub fn pext4<I: AsRef<OsStr>>(arguments: impl IntoIterator<Item = I>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pext4"));
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Copies the program, for a user who may not reach it where it is. Another process does it: what a
/// test beside this one starts just now would inherit the descriptor that writes the copy, which
/// then could not be executed.
pub fn copy_program(to: &Path) {
    succeed(Command::new("cp").arg(env!("CARGO_BIN_EXE_pext4")).arg(to));
}

/// The output and the status of a command.
pub fn run(command: &mut Command) -> Output {
    command.output().expect("the command can be started")
}

/// Runs a command that reads this. It may end before it has read everything.
pub fn with_input(command: &mut Command, input: &[u8]) -> Output {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command can be started");
    let _ = child.stdin.take().expect("piped").write_all(input);
    child.wait_with_output().expect("it ends")
}

/// Runs a command that must succeed and returns what it wrote.
pub fn succeed(command: &mut Command) -> String {
    let output = run(command);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{command:?}: {}\n{errors}",
        output.status
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs a command that must fail with this status and returns its complaint.
pub fn fail(command: &mut Command, status: i32) -> String {
    let output = run(command);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(status), "{command:?}: {errors}");
    errors
}

/// The start of a script in a mount namespace of its own: it lets go of the mounts of other tests.
/// They were copied into the namespace, and neither a server nor a loop device ends before all of
/// its copies do. The mount at `$KEEP` stays.
pub const LET_GO: &str = r#"
    mounts="$(cat /proc/self/mounts)"
    while read -r _ point _; do
        point="$(printf "$point")"
        case "$point" in
            "$KEEP") ;;
            */.tmp*) umount -l "$point" || true ;;
        esac
    done <<EOF
$mounts
EOF
"#;

/// Unmounts with the system's `umount`.
pub fn unmount_by_system(point: &Path) {
    until_nobody_uses_it(|| Command::new("umount").arg(point).output());
}

/// Unmounts, which must succeed. A process that another test is starting holds our open files until
/// its exec, so this retries for a while if the mount is in use.
fn until_nobody_uses_it(unmount: impl Fn() -> std::io::Result<Output>) {
    for attempt in 1.. {
        let output = unmount().expect("the command can be started");
        let errors = String::from_utf8_lossy(&output.stderr);
        let is_used = errors.contains("is in use") || errors.contains("is busy");
        if !is_used || attempt == 100 {
            assert!(output.status.success(), "{output:?}");
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

/// Whether a program can be started at all; says so loudly if not.
pub fn has(program: &str) -> bool {
    let found = Command::new(program)
        .arg("-V")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok();
    if !found {
        eprintln!("SKIPPED: {program} is not installed");
    }
    found
}

fn can_mount() -> bool {
    let device = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/fuse");
    if let Err(error) = &device {
        eprintln!("SKIPPED: /dev/fuse: {error}");
    }
    device.is_ok()
}

/// Whether the test runs as root; says so loudly if not.
pub fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("SKIPPED: needs root");
    }
    root
}

impl Place {
    /// An image that `pext4 mkfs` made, or `None` where nothing can be mounted.
    pub fn new(size: &str) -> Option<Self> {
        let place = Self::empty();
        succeed(pext4(["mkfs", "-q", "--size", size]).arg(&place.image));
        can_mount().then_some(place)
    }

    /// The same without an image yet.
    pub fn empty() -> Self {
        let directory = TempDir::new().expect("a temporary directory");
        let path = directory.path().canonicalize().expect("it is there");
        let point = path.join("mount point");
        fs::create_dir(&point).expect("it is new");
        // The users that a test switches to must be able to enter.
        let all = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(&path, all).expect("it is ours");
        Self {
            directory,
            image: path.join("image, with comma"),
            point,
        }
    }

    /// Makes an image whose directory `damaged` has an impossible entry, and returns the names
    /// before that entry. `whole/other` is sound.
    pub fn make_with_damaged_directory(&self) -> Option<Vec<&'static str>> {
        let mut names = vec!["first-name", "second-name", "third-name", "fourth-name"];
        if !has("mke2fs") {
            return None;
        }
        let files = self.directory.path().join("files");
        for directory in ["damaged", "whole"] {
            fs::create_dir_all(files.join(directory)).expect("a fresh place");
        }
        for name in &names {
            fs::write(files.join("damaged").join(name), name).expect("a fresh place");
        }
        fs::write(files.join("whole/other"), "x").expect("a fresh place");
        let mut mke2fs = Command::new("mke2fs");
        mke2fs.args(["-q", "-t", "ext4", "-O", "^metadata_csum", "-d"]);
        succeed(mke2fs.arg(&files).arg(&self.image).arg("16M"));
        let mut bytes = fs::read(&self.image).expect("it was made");
        // An entry's length stands before that of its name, which stands before the kind of file
        // and the name.
        let place_of = |name: &&str| {
            let length = u8::try_from(name.len()).expect("short");
            let head = [&[length, 1], name.as_bytes()].concat();
            let found = bytes.windows(head.len()).position(|window| window == head);
            found.expect("the directory has it") - 2
        };
        names.sort_by_key(place_of);
        let last = place_of(names.last().expect("there are four"));
        bytes[last..last + 2].copy_from_slice(&1_u16.to_le_bytes());
        fs::write(&self.image, &bytes).expect("it can be written");
        names.pop();
        Some(names)
    }

    /// Whether anything can be mounted.
    pub fn empty_if_mountable() -> Option<Self> {
        can_mount().then(Self::empty)
    }

    /// Mounts the image.
    pub fn mount(&self, options: &[&str]) -> Mounted<'_> {
        succeed(
            pext4(["mount"])
                .args(options)
                .arg(&self.image)
                .arg(&self.point),
        );
        Mounted {
            place: self,
            done: false,
        }
    }

    /// A guard for a mount that a test makes by itself.
    pub fn guard(&self) -> Mounted<'_> {
        Mounted {
            place: self,
            done: false,
        }
    }

    /// Mounts the image by Linux. `None` if this machine permits no mounts, or if its kernel lacks
    /// a feature of the image.
    pub fn by_linux(&self, access: Access, test: &str) -> Option<KernelMount> {
        kernel_mount(&self.image, access, test).unwrap_or_else(|error| {
            eprintln!("SKIPPED: {test}: {error:#}");
            None
        })
    }

    /// Checks the image with the standard tool.
    pub fn check(&self) {
        if has("e2fsck") {
            e2fsck(&self.image).expect("e2fsck finds nothing");
        }
    }

    /// The process that serves the image.
    pub fn server(&self) -> rustix::process::Pid {
        let image = self.image.as_os_str().as_encoded_bytes();
        for process in fs::read_dir("/proc").expect("/proc is there").flatten() {
            let words = fs::read(process.path().join("cmdline")).unwrap_or_default();
            let words: Vec<_> = words.split(|&byte| byte == 0).collect();
            if words.get(1) == Some(&b"mount".as_slice()) && words.contains(&image) {
                let number = process
                    .file_name()
                    .to_string_lossy()
                    .parse()
                    .expect("a number");
                return rustix::process::Pid::from_raw(number).expect("it is positive");
            }
        }
        panic!("no process serves {}", self.image.display());
    }

    /// Waits until nobody has the image open for writing.
    pub fn wait_until_closed(&self) {
        let file = fs::File::open(&self.image).expect("the image is there");
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).expect("a lock");
    }

    /// What `pext4 info` says of the state.
    pub fn state(&self) -> String {
        let info = succeed(pext4(["info", "--json"]).arg(&self.image));
        let info: serde_json::Value = serde_json::from_str(&info).expect("JSON");
        info["state"].as_str().expect("a text").to_owned()
    }
}

impl Mounted<'_> {
    /// A path in the mount.
    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.place.point.join(name)
    }

    /// Unmounts, and has the image checked.
    pub fn unmount(self) {
        let place = self.place;
        self.unmount_unchecked();
        assert_eq!(place.state(), "clean");
        place.check();
    }

    /// Unmounts; the file system is not at the beginning of the image, and the test checks it.
    pub fn unmount_unchecked(mut self) {
        self.end();
        self.done = true;
    }

    fn end(&self) {
        until_nobody_uses_it(|| pext4(["umount"]).arg(&self.place.point).output());
    }

    /// The mount ended otherwise.
    pub fn forget(mut self) {
        self.done = true;
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        let unmounted = run(pext4(["umount"]).arg(&self.place.point));
        if !unmounted.status.success() {
            run(Command::new("umount").arg("-l").arg(&self.place.point));
        }
    }
}
