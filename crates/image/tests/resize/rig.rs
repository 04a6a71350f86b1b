//! Creates images with contents, checks them, and resizes them.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::time::Duration;

use pext4_block::{Access, Device, FileDevice};
use pext4_image::resize::{Options, Resize, Summary, Target, Way};
use pext4_ondisk::feature::Incompat;
use pext4_ondisk::geometry::Geometry;
use pext4_ondisk::group_descriptor::GroupDescriptor;
use pext4_ondisk::mmp::Mmp;
use pext4_ondisk::superblock::Superblock;
use pext4_ondisk::{BlockNumber, bitmap};

use super::e2fsck::complaints;

/// A program that another test is starting holds an image's lock until it executes: opening waits
/// this long.
const PATIENCE: Duration = Duration::from_secs(10);

pub const KIB: u64 = 1 << 10;
pub const MIB: u64 = 1 << 20;

/// A directory in memory if the machine has one: the tests flush much.
pub fn scratch() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    let made = if memory.is_dir() {
        tempfile::tempdir_in(memory)
    } else {
        tempfile::tempdir()
    };
    made.expect("a temporary folder")
}

/// Whether the tools are installed. Prints a message if not.
pub fn tools() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let all = ["mke2fs", "e2fsck", "debugfs", "dumpe2fs"];
        let missing = all
            .iter()
            .find(|name| Command::new(name).arg("-V").output().is_err());
        if let Some(name) = missing {
            eprintln!("SKIPPED: {name} is not installed (package e2fsprogs)");
        }
        missing.is_none()
    })
}

pub fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn command(name: &str, arguments: &[&str], path: &Path) -> Output {
    Command::new(name)
        .args(arguments)
        .arg(path)
        .env("E2FSPROGS_FAKE_TIME", "1700000000")
        .output()
        .unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Bytes that depend on their offset.
fn bytes(seed: usize, length: usize) -> Vec<u8> {
    (0..length)
        .map(|at| (at * 31 + at / 251 + seed * 7).to_le_bytes()[0])
        .collect()
}

/// The tree that all images contain, with about `data` bytes in larger files.
pub fn source(folder: &Path, data: usize) -> PathBuf {
    let root = folder.join("source");
    let make = |path: &Path, content: &[u8]| fs::write(path, content).expect("a file");
    for directory in ["all", "many", "deep/er/and/deeper", "empty"] {
        fs::create_dir_all(root.join(directory)).expect("a folder");
    }
    for index in 0..80 {
        let name = format!("a name that is long enough to need several blocks {index}");
        make(&root.join("all").join(&name), &bytes(index, index % 40));
        make(&root.join("many").join(&name), &bytes(index, index % 50));
    }
    for index in 0..8 {
        let name = format!("deep/er/file {index}");
        make(&root.join(name), &bytes(index, data / 8));
    }
    make(&root.join("deep/er/and/deeper/leaf"), b"found");
    // A directory of several blocks that is created after its files.
    fs::create_dir(root.join("zz younger")).expect("a folder");
    for index in 0..80 {
        let name = format!("a name that is long enough to need several blocks {index}");
        let from = root.join("all").join(&name);
        fs::hard_link(from, root.join("zz younger").join(name)).expect("a link");
    }
    fs::hard_link(root.join("deep/er/file 3"), root.join("hard link")).expect("a link");
    symlink("deep/er/file 1", root.join("short link")).expect("a link");
    symlink("x/".repeat(100), root.join("long link")).expect("a link");
    let sparse = fs::File::create(root.join("sparse")).expect("a file");
    sparse.set_len(3 << 20).expect("a hole");
    for at in [0, 200_000, 900_001, (3 << 20) - 1] {
        use std::os::unix::fs::FileExt;
        sparse.write_all_at(b"!", at).expect("a byte");
    }
    fs::set_permissions(root.join("empty"), fs::Permissions::from_mode(0o711)).expect("a mode");
    root
}

/// An image made by mke2fs from a tree.
pub fn image(folder: &Path, options: &str, size: u64, tree: &Path) -> PathBuf {
    let path = folder.join("image");
    let file = fs::File::create(&path).expect("a file");
    file.set_len(size).expect("a sparse file");
    let tree = tree.to_str().expect("a plain path");
    let mut arguments: Vec<&str> = options.split_whitespace().collect();
    arguments.extend(["-q", "-F", "-d", tree]);
    let output = command("mke2fs", &arguments, &path);
    assert!(output.status.success(), "{options}: {}", text(&output));
    path
}

/// Files with an attribute too large for an inode, and the file with its value.
const ATTRIBUTED: [&str; 4] = ["deep/er/file 2", "deep/er/file 5", "empty", "sparse"];
const VALUE: &str = "value";
/// Instead of an option: makes the journal a file with a name, as tune2fs does in a mounted file
/// system, with one of the last inode numbers.
pub const NAMED_JOURNAL: &str = " --named-journal";
const JOURNAL_NAME: &str = ".journal";

/// Checks the attributes that [`scattered_image`] sets.
pub fn assert_attributes(path: &Path, when: &str) {
    let folder = path.parent().expect("an image lies in a folder");
    let expected = fs::read(folder.join(VALUE)).expect("written with the image");
    let out = folder.join("read-value");
    for name in ATTRIBUTED {
        let request = format!("ea_get -f {} \"{name}\" user.large", out.display());
        let said = text(&command("debugfs", &["-R", &request], path));
        let found =
            fs::read(&out).unwrap_or_else(|error| panic!("{when}, {name}: {error}: {said}"));
        assert!(found == expected, "{when}, {name}: {said}");
        fs::remove_file(&out).expect("just read");
    }
}

/// As [`image`], but other files, which are removed again, precede and separate the files of the
/// tree, so that its inodes and blocks are scattered.
pub fn scattered_image(folder: &Path, options: &str, size: u64, tree: &Path) -> PathBuf {
    let filler = tree.join("filler");
    fs::create_dir(&filler).expect("a folder");
    let count = 180;
    let names: Vec<String> = (0..count).map(|index| format!("filler {index}")).collect();
    for (index, name) in names.iter().enumerate() {
        fs::write(filler.join(name), bytes(index, 3000 + 400 * index)).expect("a file");
    }
    let early = options
        .replace(" -O orphan_file", "")
        .replace(NAMED_JOURNAL, "");
    let path = image(folder, &early, size, tree);
    fs::remove_dir_all(&filler).expect("it was made above");
    if options.contains("orphan_file") {
        // Made last, so it is located behind everything else.
        let output = command("tune2fs", &["-O", "orphan_file"], &path);
        assert!(output.status.success(), "{}", text(&output));
    }
    let value = folder.join(VALUE);
    // Too large for the block, so it gets an inode of its own. (debugfs accepts no longer value.)
    let is_large = options.contains("ea_inode");
    let length = if is_large { 1024 } else { 500 };
    fs::write(&value, bytes(1, length)).expect("a file");
    // Before the fillers are removed, so that attributes get blocks further back.
    let mut script: String = ATTRIBUTED
        .iter()
        .map(|name| format!("ea_set -f {} \"{name}\" user.large\n", value.display()))
        .collect();
    if options.contains("inline_data") {
        script += &made_late(tree);
    }
    if options.contains(NAMED_JOURNAL) {
        let journal = journal(folder, tree);
        script += &format!("write {} {JOURNAL_NAME}\n", journal.display());
    }
    script.extend(names.iter().map(|name| format!("rm \"filler/{name}\"\n")));
    script += "rmdir filler\n";
    let requests = folder.join("requests");
    fs::write(&requests, script).expect("a file");
    let requests = requests.to_str().expect("a plain path");
    let output = command("debugfs", &["-w", "-f", requests], &path);
    assert!(output.status.success(), "{}", text(&output));
    if options.contains(NAMED_JOURNAL) {
        let number = journal_number(&path).to_string();
        for request in ["feature has_journal", &format!("ssv journal_inum {number}")] {
            let output = command("debugfs", &["-w", "-R", request], &path);
            assert!(output.status.success(), "{}", text(&output));
        }
    }
    if options.contains("ea_inode") {
        // debugfs does not count the blocks of values in `i_blocks` of the inode.
        command("e2fsck", &["-fy"], &path);
    }
    assert_clean(&path, "the image before anything");
    path
}

/// As [`image`], with free space in small pieces before the last files of the tree.
pub fn image_with_gaps(folder: &Path, options: &str, size: u64, tree: &Path) -> PathBuf {
    let gaps = tree.join("gaps");
    fs::create_dir(&gaps).expect("a folder");
    let names: Vec<String> = (0..200).map(|index| format!("{index:03}")).collect();
    for (index, name) in names.iter().enumerate() {
        fs::write(gaps.join(name), bytes(index, 20_000)).expect("a file");
    }
    let path = image(folder, options, size, tree);
    let mut script = String::new();
    for name in names.iter().step_by(2) {
        script += &format!("rm gaps/{name}\n");
        fs::remove_file(gaps.join(name)).expect("it was just made");
    }
    let requests = folder.join("requests");
    fs::write(&requests, script).expect("a file");
    let requests = requests.to_str().expect("a plain path");
    let output = command("debugfs", &["-w", "-f", requests], &path);
    assert!(output.status.success(), "{}", text(&output));
    // debugfs does not count in quota files what it removes.
    command("e2fsck", &["-fy"], &path);
    assert_clean(&path, "the image before anything");
    path
}

/// An empty journal, as a file.
fn journal(folder: &Path, tree: &Path) -> PathBuf {
    let scratch = scratch();
    let image = image(scratch.path(), "-t ext4 -b 1024 -J size=1", 20 * MIB, tree);
    let journal = folder.join("journal");
    let request = format!("dump <8> {}", journal.display());
    let output = command("debugfs", &["-R", &request], &image);
    assert!(output.status.success(), "{}", text(&output));
    // The rest of an empty log has no meaning, but zeroes would become a hole in debugfs.
    let mut bytes = fs::read(&journal).expect("just written");
    bytes[1024..].fill(b'-');
    fs::write(&journal, bytes).expect("a file");
    journal
}

/// The inode number of the journal file.
pub fn journal_number(path: &Path) -> u32 {
    let request = format!("stat {JOURNAL_NAME}");
    let said = text(&command("debugfs", &["-R", &request], path));
    let number = said.split_once("Inode: ").map(|(_, rest)| rest);
    let number = number.and_then(|rest| rest.split_whitespace().next());
    number.and_then(|word| word.parse().ok()).expect("a number")
}

/// Adds multiple mount protection with this block. (By hand: with the feature each call of debugfs
/// takes ten seconds, and mke2fs uses a block in the first group.)
pub fn protect_mounts(path: &Path, block: u64) {
    let device = open(path);
    let read = |at: u64, length: usize| {
        let mut bytes = vec![0; length];
        device.read_at(at, &mut bytes).expect("a part of an image");
        bytes
    };
    let write = |at: u64, bytes: &[u8]| device.write_at(at, bytes).expect("a part of an image");
    let bytes = read(1024, 1024);
    let bytes = bytes.as_slice().try_into().expect("1024 bytes");
    let mut superblock = Superblock::decode(bytes).expect("a superblock");
    let geometry = Geometry::of(&superblock).expect("a possible one");
    let (size, seed) = (u64::from(geometry.block_size), geometry.checksum_seed());
    let group = geometry.group_of(BlockNumber(block)).expect("inside");
    let (home, within) = geometry.descriptor_location(group);
    let at = home.get() * size + u64::from(within);
    let mut slot = read(at, usize::from(geometry.descriptor_size));
    let mut descriptor =
        GroupDescriptor::decode(&slot, &geometry, group).expect("a sound descriptor");
    let mut bits = read(
        descriptor.block_bitmap.get() * size,
        geometry.block_size as usize,
    );
    let offset = geometry.offset_in_group(BlockNumber(block));
    assert!(
        bitmap::set(&mut bits, offset.expect("inside")),
        "it is free"
    );
    if let Some(seed) = seed {
        descriptor.block_bitmap_checksum =
            bitmap::block_bitmap_checksum(seed, &bits, geometry.clusters_per_group);
    }
    descriptor.free_clusters -= 1;
    write(descriptor.block_bitmap.get() * size, &bits);
    descriptor.encode(&mut slot, &geometry, group);
    write(at, &slot);
    superblock.free_blocks -= 1;
    superblock.features.incompat |= Incompat::MMP;
    superblock.mmp_block = BlockNumber(block);
    superblock.mmp_update_interval = 5;
    write(1024, &superblock.encode());
    let mut bytes = vec![0; geometry.block_size as usize];
    Mmp::clean(5).encode(&mut bytes, seed);
    write(block * size, &bytes);
}

/// debugfs requests that replace directories of the tree by ones small enough for an inode, with
/// inode numbers behind those of the fillers.
fn made_late(tree: &Path) -> String {
    let leaf = tree.join("deep/er/and/deeper/leaf");
    let requests = [
        "mkdir deep/er/late",
        "mkdir deep/er/late/deeper",
        &format!("write {} deep/er/late/deeper/leaf", leaf.display()),
        "rm deep/er/and/deeper/leaf",
        "rmdir deep/er/and/deeper",
        "rmdir deep/er/and",
        "ln deep/er/late deep/er/and",
        "unlink deep/er/late",
    ];
    requests.map(|request| format!("{request}\n")).concat()
}

/// e2fsck must find nothing.
pub fn assert_clean(path: &Path, when: &str) {
    let output = command("e2fsck", &["-fn"], path);
    let said = text(&output);
    let mut complaints = complaints(&said);
    // A kernel leaves totals outdated; the next mount recomputes them.
    complaints.retain(|complaint| !complaint.contains("s count wrong ("));
    let is_clean = output.status.code() == Some(0) && complaints.is_empty();
    assert!(is_clean, "{when}:\n{said}");
}

/// The superblock's copy of the journal's block map must be correct.
pub fn assert_journal_backup(path: &Path, when: &str) {
    let mut bytes = vec![0; 1024];
    let device = open(path);
    device.read_at(1024, &mut bytes).expect("a superblock");
    let superblock = Superblock::decode(bytes.as_slice().try_into().expect("1024 bytes"));
    let backup = superblock.expect("a superblock").journal_backup;
    drop(device);
    let said = text(&command("debugfs", &["-R", "inode_dump -b <8>"], path));
    let dumped: Vec<u8> = said
        .lines()
        .filter_map(|line| line.split_once(' '))
        .flat_map(|(_, line)| line.split("  ").next().unwrap_or("").split(' '))
        .filter(|word| word.len() == 4)
        .flat_map(|word| u16::from_str_radix(word, 16).map(u16::to_be_bytes))
        .flatten()
        .collect();
    let (words, _) = dumped.as_chunks::<4>();
    let mut map: Vec<u32> = words.iter().map(|word| u32::from_le_bytes(*word)).collect();
    // debugfs does not print trailing zeroes.
    map.resize(15, 0);
    assert_eq!(map, &backup[..15], "{when}: {said}");
}

/// The contents of a tree: mode and content by path.
pub type Listing = BTreeMap<PathBuf, (u32, Vec<u8>)>;

/// Reads a tree.
pub fn listing(root: &Path) -> Listing {
    let mut found = BTreeMap::new();
    let mut left = vec![root.to_owned()];
    while let Some(folder) = left.pop() {
        for entry in fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let metadata = fs::symlink_metadata(&path).expect("it is there");
            let content = if metadata.is_dir() {
                left.push(path.clone());
                Vec::new()
            } else if metadata.is_symlink() {
                let target = fs::read_link(&path).expect("a link");
                target.into_os_string().into_encoded_bytes()
            } else {
                fs::read(&path).expect("a file")
            };
            let name = path.strip_prefix(root).expect("below").to_owned();
            found.insert(name, (metadata.mode(), content));
        }
    }
    found.remove(Path::new("lost+found"));
    found.remove(Path::new(JOURNAL_NAME));
    found
}

/// The tree in an image must equal the one from which it was made.
pub fn assert_holds(path: &Path, tree: &Path, when: &str) {
    let folder = scratch();
    let request = format!("rdump / {}", folder.path().display());
    let output = command("debugfs", &["-R", &request], path);
    assert!(output.status.success(), "{when}: {}", text(&output));
    let expected = listing(tree);
    let mut found = listing(folder.path());
    // debugfs pads inline data.
    for (name, (_, content)) in &mut found {
        if content.len() == 60
            && let Some((_, expected)) = expected.get(name)
        {
            content.truncate(expected.len());
        }
    }
    let names = |of: &Listing| -> Vec<PathBuf> { of.keys().cloned().collect() };
    assert_eq!(names(&expected), names(&found), "{when}");
    for (name, entry) in &expected {
        assert!(entry == &found[name], "{when}: {} differs", name.display());
    }
}

/// The value of a line of dumpe2fs.
pub fn field(path: &Path, label: &str) -> String {
    let said = text(&command("dumpe2fs", &["-h"], path));
    let line = said.lines().find(|line| line.starts_with(label));
    line.map_or(String::new(), |line| line[label.len()..].trim().to_owned())
}

pub fn open(path: &Path) -> FileDevice {
    FileDevice::open(path, Access::ReadWrite, PATIENCE).expect("an image")
}

/// Resizes in the default way, or in place.
pub fn resize(
    path: &Path,
    target: Target,
    in_place: bool,
) -> pext4_image::Result<(Summary, Way, u64)> {
    let options = Options {
        in_place,
        ..Options::default()
    };
    let resize = Resize::prepare(open(path), target, options)?;
    let preview = resize.planned();
    let length = resize.run()?;
    assert_eq!(fs::metadata(path).expect("an image").len(), length);
    Ok((preview.summary, preview.way, length))
}
