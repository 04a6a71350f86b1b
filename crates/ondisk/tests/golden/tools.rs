//! Runs the standard tools, which make the images and report hashes.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Names in the directory `big`: enough for an index of two levels with 1 KiB blocks, and for an
/// index at all with 64 KiB blocks.
pub const NAMES: usize = 3000;
/// Distance of the blocks of the file `sparse`, in blocks of 1 KiB.
pub const STRIDE: u64 = 8;
/// Blocks of 1 KiB in the file `sparse`: enough for extent nodes with 4 KiB blocks and for double
/// indirection with 1 KiB blocks.
pub const PIECES: u64 = 700;

/// A value too long for an inode of 256 bytes.
pub const LONG_VALUE: [u8; 700] = [b'v'; 700];

/// Bytes of a value that fits neither an inode nor a block of 4 KiB.
pub const HUGE_VALUE: [u8; 6000] = [b'h'; 6000];

/// Finds a tool of e2fsprogs; reports if it is missing.
pub fn tool(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    let found = places
        .map(|place| place.join(name))
        .find(|file| file.exists());
    if found.is_none() {
        eprintln!("SKIPPED: {name} is not installed, nothing was compared with it");
    }
    found
}

/// Whether all tools that make images are there.
pub fn has_tools() -> bool {
    ["mke2fs", "debugfs", "e2fsck"]
        .into_iter()
        .all(|name| tool(name).is_some())
}

/// Runs a tool; returns its output if `is_fine` accepts its exit status.
pub fn run(
    name: &str,
    arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
    is_fine: impl Fn(i32) -> bool,
) -> Output {
    let program = tool(name).expect("its presence was tested");
    let output = Command::new(program)
        .args(arguments)
        .env("E2FSPROGS_FAKE_TIME", "1700000000")
        .output()
        .expect("it can be started");
    let status = output.status.code().unwrap_or(-1);
    let (out, errors) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(
        is_fine(status),
        "{name} ended with {status}\n{out}\n{errors}"
    );
    output
}

/// Runs debugfs commands on an image; returns the output.
pub fn debugfs(folder: &Path, image: &Path, writable: bool, commands: &[u8]) -> String {
    let script = folder.join("commands");
    fs::write(&script, commands).expect("a temporary folder can be written");
    let mode = if writable { vec!["-w"] } else { vec![] };
    let arguments = mode.iter().map(OsStr::new).chain([
        OsStr::new("-f"),
        script.as_os_str(),
        image.as_os_str(),
    ]);
    let output = run("debugfs", arguments, |status| status == 0);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The names in `big`, some of them with bytes above 0x7F.
pub fn names() -> Vec<Vec<u8>> {
    (0..NAMES)
        .map(|i| {
            let middle = if i % 3 == 0 { "n\u{e4}me" } else { "name" };
            format!("a-{middle}-of-middling-length-{i:010}").into_bytes()
        })
        .collect()
}

/// Makes the files that every image contains.
pub fn make_source(folder: &Path) -> PathBuf {
    let source = folder.join("source");
    let big = source.join("big");
    fs::create_dir_all(&big).expect("a temporary folder can be written");
    fs::create_dir(source.join("empty")).expect("it is new");
    let first = source.join("file");
    fs::write(&first, b"content").expect("it is new");
    for name in names() {
        let name = String::from_utf8(name).expect("they were made from text");
        fs::hard_link(&first, big.join(name)).expect("it is new");
    }
    symlink("short", source.join("link")).expect("it is new");
    symlink("long/".repeat(30), source.join("long-link")).expect("it is new");
    make_sparse(&source.join("sparse"));
    source
}

fn make_sparse(path: &Path) {
    use std::os::unix::fs::FileExt;
    let file = fs::File::create(path).expect("it is new");
    for piece in 0..PIECES {
        let mut block = [b'x'; 1024];
        let label = format!("piece {piece:06}");
        block[..label.len()].copy_from_slice(label.as_bytes());
        file.write_all_at(&block, piece * STRIDE * 1024)
            .expect("there is room");
    }
}

/// The parameters of an image.
pub struct Recipe {
    pub name: &'static str,
    pub mebibytes: u64,
    /// Arguments of mke2fs.
    pub arguments: &'static [&'static str],
    /// Additional debugfs commands; `HUGE` stands for a file with the huge value.
    pub commands: &'static str,
}

/// A sparse file of zeroes for an image.
pub fn empty_file(folder: &Path, mebibytes: u64) -> PathBuf {
    let path = folder.join("image");
    let file = fs::File::create(&path).expect("a temporary folder can be written");
    file.set_len(mebibytes << 20).expect("it may be sparse");
    path
}

/// Makes an image, fills it, and makes e2fsck build the indexes of its directories.
pub fn make_image(folder: &Path, source: &Path, recipe: &Recipe) -> PathBuf {
    let path = empty_file(folder, recipe.mebibytes);
    let arguments = ["-q", "-F", "-d"].map(OsStr::new).into_iter();
    let arguments = arguments.chain([source.as_os_str()]);
    let arguments = arguments.chain(recipe.arguments.iter().map(OsStr::new));
    run("mke2fs", arguments.chain([path.as_os_str()]), |status| {
        status == 0
    });
    let value = folder.join("value");
    fs::write(&value, LONG_VALUE).expect("a temporary folder can be written");
    let common = format!(
        "ea_set -f {} /sparse user.long\nea_set /sparse user.short value\n\
         ea_set /file user.b bb\nea_set /file user.a aaaaa\nea_set /big trusted.t x\n\
         mknod tty c 259 3\nmknod disk b 8 1\nmknod pipe p\n",
        value.display()
    );
    let huge = folder.join("huge");
    fs::write(&huge, HUGE_VALUE).expect("a temporary folder can be written");
    let own = recipe.commands.replace("HUGE", &huge.display().to_string());
    debugfs(folder, &path, true, (own + &common).as_bytes());
    let check = |mode: &str| {
        run("e2fsck", [OsStr::new(mode), path.as_os_str()], |status| {
            matches!(status, 0 | 1)
        })
    };
    check("-fyD");
    run("e2fsck", [OsStr::new("-fn"), path.as_os_str()], |status| {
        status == 0
    });
    path
}
