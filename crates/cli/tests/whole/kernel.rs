//! The kernel's view of the same images: its loop devices, which are other names of an image, and
//! fast commits, which only it writes. Its mounts are in [`kernel_mounts`](crate::kernel_mounts).

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{Place, fail, has, is_root, pext4, run, succeed};

/// A loop device, which is detached on drop.
pub struct Loop(pub PathBuf);

impl Loop {
    /// Over the place's image, or `None` where there are none.
    pub fn of(place: &Place, options: &[&str]) -> Option<Self> {
        Self::on(&place.image, options)
    }

    pub fn on(file: &Path, options: &[&str]) -> Option<Self> {
        if !is_root() || !has("losetup") {
            return None;
        }
        let mut losetup = Command::new("losetup");
        let output = run(losetup.args(["--find", "--show"]).args(options).arg(file));
        if !output.status.success() {
            eprintln!("SKIPPED: {}", String::from_utf8_lossy(&output.stderr));
            return None;
        }
        let name = String::from_utf8_lossy(&output.stdout);
        Some(Self(PathBuf::from(name.trim_end())))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        run(Command::new("losetup").arg("--detach").arg(&self.0));
    }
}

/// A mount by the kernel; undone on drop.
pub struct KernelMount(PathBuf);

impl KernelMount {
    pub fn of(arguments: &[&str], source: &Path, directory: PathBuf) -> Option<Self> {
        fs::create_dir_all(&directory).expect("a directory");
        let mut mount = Command::new("mount");
        let output = run(mount.args(arguments).arg(source).arg(&directory));
        if !output.status.success() {
            eprintln!(
                "SKIPPED: mount: {}",
                String::from_utf8_lossy(&output.stderr)
            );
            return None;
        }
        Some(Self(directory))
    }
}

impl Drop for KernelMount {
    fn drop(&mut self) {
        if !run(Command::new("umount").arg(&self.0)).status.success() {
            run(Command::new("umount").arg("-l").arg(&self.0));
        }
    }
}

/// A directory for a mount that must be refused. If it is mounted nevertheless, it is unmounted on
/// drop.
pub struct Refused(PathBuf);

impl Refused {
    pub fn beside(place: &Place) -> Self {
        let directory = place.point.with_file_name("other");
        fs::create_dir(&directory).expect("it is new");
        Self(directory)
    }
}

impl Drop for Refused {
    fn drop(&mut self) {
        // As a rule nothing is there.
        run(Command::new("umount").args(["-q", "-l"]).arg(&self.0));
    }
}

pub fn refused(command: &str, image: &Path, place: &Place, reason: &str) {
    let mut pext4 = pext4([command]);
    match command {
        "mount" => pext4.arg(image).arg(place.point.with_file_name("other")),
        "mkfs" => pext4.arg("--force").arg(image),
        "build" => pext4
            .arg("--force")
            .arg(image)
            .arg(env!("CARGO_MANIFEST_DIR")),
        _ => pext4.arg(image).arg("/name"),
    };
    let said = fail(&mut pext4, 1);
    assert!(said.contains(reason), "{command}: {said}");
}

#[test]
fn two_loop_devices_on_one_part_of_a_file_are_one_image() {
    const START: &str = "1048576";
    let Some(place) = Place::new("16M") else {
        return;
    };
    let image = fs::read(&place.image).unwrap();
    fs::write(&place.image, [vec![0; 1 << 20], image].concat()).unwrap();
    let start = ["--offset", START];
    let (Some(one), Some(two)) = (Loop::of(&place, &start), Loop::of(&place, &start)) else {
        return;
    };
    let _other = Refused::beside(&place);
    succeed(pext4(["mount"]).arg(&one.0).arg(&place.point));
    let mount = place.guard();
    let ends = format!("is mounted on {}, `pext4 umount", place.point.display());
    refused("mount", &two.0, &place, &ends);
    refused("mkfs", &two.0, &place, "which has the same bytes");
    succeed(pext4(["umount"]).arg(&place.point));
    mount.forget();

    succeed(pext4(["mount"]).arg(&two.0).arg(&place.point));
    let mount = place.guard();
    refused("mkdir", &one.0, &place, "the file behind it");
    // The file with the partition is the same one again.
    let said = fail(pext4(["ls", "--offset", START]).arg(&place.image), 1);
    assert!(
        said.contains("which has the same bytes, is mounted"),
        "{said}"
    );
    refused(
        "mkfs",
        &place.image,
        &place,
        "another process or mount uses it",
    );
    succeed(pext4(["umount"]).arg(&place.point));
    mount.forget();
    let directory = place.point.with_file_name("by the kernel");
    if let Some(_mount) = KernelMount::of(&[], &one.0, directory) {
        refused("mount", &two.0, &place, "the kernel has");
        let mut mount = pext4(["mount", "-o", &format!("offset={START}")]);
        let other = place.point.with_file_name("other");
        let said = fail(mount.arg(&place.image).arg(other), 1);
        assert!(said.contains("the kernel has it mounted"), "{said}");
    }
}

/// A partition of a loop device as the kernel shows it, or `None` where it cannot.
fn partition_of(device: &Loop, start: u64, length: u64) -> Option<PathBuf> {
    const SECTOR: u64 = 512;
    if !has("addpart") {
        return None;
    }
    let mut addpart = Command::new("addpart");
    let sectors = [start / SECTOR, length / SECTOR].map(|count| count.to_string());
    let output = run(addpart.arg(&device.0).arg("1").args(sectors));
    let mut partition = device.0.clone().into_os_string();
    partition.push("p1");
    if output.status.success() && Path::new(&partition).exists() {
        return Some(partition.into());
    }
    eprintln!(
        "SKIPPED: no partitions of loop devices here: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    None
}

#[test]
fn a_partition_of_a_loop_device_is_a_part_of_its_file() {
    const START: u64 = 1 << 20;
    let Some(place) = Place::new("16M") else {
        return;
    };
    let image = fs::read(&place.image).unwrap();
    fs::write(&place.image, [vec![0; 1 << 20], image].concat()).unwrap();
    let Some(device) = Loop::of(&place, &["--partscan"]) else {
        return;
    };
    let Some(partition) = partition_of(&device, START, 16 << 20) else {
        return;
    };
    let offset = START.to_string();
    let _other = Refused::beside(&place);
    succeed(pext4(["mount"]).arg(&partition).arg(&place.point));
    let mount = place.guard();
    let mkdir = || pext4(["mkdir", "--offset", &offset]);
    for file in [&place.image, &device.0] {
        let said = fail(mkdir().arg(file).arg("/name"), 1);
        assert!(said.contains("another process or mount uses"), "{said}");
    }
    let second = Loop::of(&place, &["--offset", &offset]).expect("there was one before");
    refused("mkdir", &second.0, &place, "the file behind it");
    let ends = format!("is mounted on {}, `pext4 umount", place.point.display());
    refused("mount", &second.0, &place, &ends);
    mount.unmount_unchecked();

    succeed(
        pext4(["mount", "-o", &format!("offset={offset}")])
            .arg(&place.image)
            .arg(&place.point),
    );
    let mount = place.guard();
    refused("mkdir", &partition, &place, "the file behind it");
    mount.unmount_unchecked();

    let directory = place.point.with_file_name("by the kernel");
    if let Some(_mount) = KernelMount::of(&[], &partition, directory) {
        refused("mkdir", &second.0, &place, "the kernel has");
        refused("mkfs", &place.image, &place, "the kernel has it mounted");
        let said = fail(mkdir().arg(&place.image).arg("/name"), 1);
        assert!(said.contains("the kernel has it mounted"), "{said}");
    }
}

#[test]
fn a_file_and_its_loop_device_are_one_image() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    let Some(device) = Loop::of(&place, &[]) else {
        return;
    };
    let other = Refused::beside(&place);
    let mount = place.mount(&[]);
    let ends = format!("is mounted on {}, `pext4 umount", place.point.display());
    refused("mount", &device.0, &place, &ends);
    refused("mount", &device.0, &place, "the file behind it");
    refused("mkfs", &device.0, &place, &ends);
    refused("mkfs", &place.image, &place, &ends);
    refused("build", &place.image, &place, &ends);
    refused("mkdir", &device.0, &place, "the file behind it");
    mount.unmount();

    succeed(pext4(["mount"]).arg(&device.0).arg(&place.point));
    let mount = place.guard();
    fs::write(mount.path("file"), b"content").unwrap();
    let same = format!("{}, which has the same bytes, {ends}", device.0.display());
    refused("mount", &place.image, &place, &same);
    refused("mkfs", &place.image, &place, &same);
    refused("build", &place.image, &place, &same);
    refused(
        "rm",
        &place.image,
        &place,
        "another process or mount uses it",
    );
    mount.unmount();

    let mount = place.mount(&["-o", "ro"]);
    succeed(pext4(["mount", "-o", "ro"]).arg(&device.0).arg(&other.0));
    assert_eq!(fs::read(other.0.join("file")).unwrap(), b"content");
    succeed(pext4(["umount"]).arg(&other.0));
    mount.unmount();
}

#[test]
fn a_read_only_loop_device_says_what_it_is() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    let Some(device) = Loop::of(&place, &["--read-only"]) else {
        return;
    };
    let mount = || pext4(["mount"]);
    let guard = place.guard();
    let said = fail(mount().arg(&device.0).arg(&place.point), 1);
    assert!(said.contains("it is a read-only device; `-o ro`"), "{said}");
    succeed(mount().args(["-o", "ro"]).arg(&device.0).arg(&place.point));
    guard.unmount();
}

/// An image after a power cut of the kernel between two full commits; false where it cannot be
/// made.
fn with_fast_commits(place: &Place) -> bool {
    if !is_root() || !has("mke2fs") {
        return false;
    }
    let mut mke2fs = Command::new("mke2fs");
    mke2fs.args(["-q", "-F", "-t", "ext4", "-O", "fast_commit"]);
    succeed(mke2fs.arg(&place.image).arg("32M"));
    let Some(device) = Loop::of(place, &[]) else {
        return false;
    };
    let directory = place.point.with_file_name("by the kernel");
    let Some(kernel) = KernelMount::of(&["-o", "commit=300"], &device.0, directory) else {
        return false;
    };
    fs::write(kernel.0.join("old"), b"old").expect("there is room");
    succeed(Command::new("sync").arg("-f").arg(&kernel.0));
    let mut file = File::create(kernel.0.join("new")).expect("it is new");
    file.write_all(&[7; 5000]).expect("there is room");
    file.sync_all().expect("a healthy device");
    let crashed = place.image.with_file_name("crashed");
    fs::copy(&place.image, &crashed).expect("there is room");
    let name = device.0.file_name().expect("a device has a name");
    let told = Path::new("/proc/fs/ext4").join(name).join("fc_info");
    let told = fs::read_to_string(told).unwrap_or_default();
    drop((file, kernel, device));
    fs::rename(crashed, &place.image).expect("they are neighbours");
    let is_fast = told
        .lines()
        .any(|line| line.ends_with(" commits") && !line.starts_with('0'));
    if !is_fast {
        eprintln!("SKIPPED: this kernel makes no fast commits: {told}");
    }
    is_fast
}

#[test]
fn fast_commits_are_replayed() {
    let Some(place) = Place::empty_if_mountable() else {
        return;
    };
    if !with_fast_commits(&place) {
        return;
    }
    let before = fs::read(&place.image).unwrap();
    let image = &place.image;
    let is_untouched = || fs::read(image).unwrap() == before;
    let is_there = |at: &Path| fs::read(at.join("new")).unwrap() == [7; 5000];
    // Who only reads has them in memory.
    assert!(succeed(pext4(["ls"]).arg(image)).contains("new"));
    let read = succeed(pext4(["cat"]).arg(image).arg("/new"));
    assert_eq!(read.as_bytes(), [7; 5000]);
    let mount = place.mount(&["-o", "ro"]);
    assert!(is_there(&place.point));
    mount.unmount_unchecked();
    let checked = run(pext4(["check"]).arg(image));
    let said = String::from_utf8_lossy(&checked.stdout);
    assert_eq!(checked.status.code(), Some(8), "{said}");
    assert!(said.contains("note  journal-unsupported"), "{said}");
    assert!(said.contains("could not be checked"), "{said}");
    let said = fail(pext4(["resize"]).arg(image).arg("64M"), 1);
    assert!(said.contains("fast commits that wait"), "{said}");
    assert!(is_untouched(), "nothing was written");
    // Who writes makes them durable first.
    let mut mount = pext4(["mount"]);
    let guard = place.guard();
    let output = run(mount.arg(image).arg(&place.point));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("fast commit on the image"), "{said}");
    assert!(is_there(&place.point));
    guard.unmount();
    succeed(pext4(["check"]).arg(image));
    fs::write(image, &before).unwrap();
    succeed(pext4(["mkdir"]).arg(image).arg("/directory"));
    let read = succeed(pext4(["cat"]).arg(image).arg("/new"));
    assert_eq!(read.len(), 5000);
    place.check();
}

/// A table with one partition, in sectors, for the first sector of a disk.
fn table(first: u32, sectors: u32) -> [u8; 512] {
    let mut sector = [0; 512];
    sector[446 + 4] = 0x83;
    sector[446 + 8..446 + 16]
        .copy_from_slice(&[first.to_le_bytes(), sectors.to_le_bytes()].concat());
    sector[510..].copy_from_slice(&[0x55, 0xAA]);
    sector
}

/// A disk without a table, and with one that names only what lies behind, in sectors of each size.
#[test]
fn a_file_system_in_no_table_of_a_block_device_grows_over_nothing_else() {
    const STARTS: [usize; 2] = [1 << 20, 40 << 20];
    const DISK: usize = 72 << 20;
    let place = Place::empty();
    succeed(pext4(["mkfs", "-q", "--size", "16M"]).arg(&place.image));
    let image = fs::read(&place.image).expect("it was made");
    let offset = format!("--offset={}", STARTS[0]);
    let resize = |device: &Loop, size: &str| {
        let mut command = pext4(["resize", &offset]);
        command.arg(&device.0).arg(size);
        command
    };
    let mut disk = vec![0; DISK];
    for start in STARTS {
        disk[start..start + image.len()].copy_from_slice(&image);
    }
    fs::write(&place.image, &disk).expect("there is room");
    let Some(device) = Loop::of(&place, &[]) else {
        return;
    };
    for size in ["max", "50M"] {
        let told = fail(&mut resize(&device, size), 1);
        let what = format!(
            "an ext4 file system lies in the device, from byte {}",
            STARTS[1]
        );
        assert!(told.contains(&what), "{told}");
    }
    let told = fail(&mut resize(&device, "80M"), 1);
    let needed = format!("it needs a device of {} bytes", 81 << 20);
    assert!(told.contains(&needed), "{told}");
    drop(device);
    assert!(fs::read(&place.image).expect("it is there") == disk);

    // What a table names may be blank.
    disk[STARTS[1]..].fill(0);
    for sector in [512, 4096] {
        let [first, sectors] = [STARTS[1], DISK - STARTS[1]]
            .map(|bytes| u32::try_from(bytes / sector).expect("a small disk"));
        disk[..512].copy_from_slice(&table(first, sectors));
        fs::write(&place.image, &disk).expect("there is room");
        let Some(device) = Loop::of(&place, &["--sector-size", &sector.to_string()]) else {
            return;
        };
        let told = fail(&mut resize(&device, "50M"), 1);
        let what = format!("its room ends before byte {}", STARTS[1]);
        assert!(told.contains(&what), "{told}");
        let said = succeed(&mut resize(&device, "max"));
        assert!(said.contains("it is 39 MiB now"), "{sector}: {said}");
        // What a shrink leaves would be other data for the next growth.
        let said = succeed(resize(&device, "20M").arg("--in-place"));
        assert!(said.contains("it is 20 MiB now"), "{sector}: {said}");
        succeed(&mut resize(&device, "max"));
        succeed(pext4(["check", "-q", &offset]).arg(&device.0));
        drop(device);
        let bytes = fs::read(&place.image).expect("it is there");
        assert!(bytes[..STARTS[0]] == disk[..STARTS[0]]);
        assert!(bytes[STARTS[1]..] == disk[STARTS[1]..]);
    }
}

/// Where a copy cannot take the image's place.
#[test]
fn a_block_device_is_not_edited_on_a_copy() {
    let place = Place::empty();
    let mut mkfs = pext4(["mkfs", "-q", "--size", "16M", "-O", "^has_journal"]);
    succeed(mkfs.arg(&place.image));
    let Some(device) = Loop::of(&place, &[]) else {
        return;
    };
    let before = fs::read(&place.image).expect("it is there");
    for by in ["auto", "journal", "clone"] {
        let said = fail(pext4(["mkdir", "--by", by]).arg(&device.0).arg("/new"), 1);
        assert!(said.contains("add one with `tune2fs -j`"), "{by}: {said}");
        assert_eq!(said.lines().count(), 1, "no copy was begun: {said}");
    }
    assert!(fs::read(&place.image).expect("it is there") == before);
    drop(device);
    succeed(pext4(["mkfs", "-q", "--force"]).arg(&place.image));
    let device = Loop::of(&place, &[]).expect("there was one before");
    let said = fail(
        pext4(["mkdir", "--by", "clone"]).arg(&device.0).arg("/new"),
        1,
    );
    assert!(said.contains("leave the choice of the way"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    succeed(pext4(["mkdir", "-q"]).arg(&device.0).arg("/new"));
    drop(device);
    place.check();
}

#[test]
fn a_plan_for_a_block_device_needs_no_consent() {
    let place = Place::empty();
    succeed(pext4(["mkfs", "-q", "--size", "64M"]).arg(&place.image));
    let Some(device) = Loop::of(&place, &[]) else {
        return;
    };
    let before = fs::read(&place.image).expect("it is there");
    let resize = |options: &[&str]| {
        let mut command = pext4(["resize"]);
        command.arg(&device.0).arg("-32M").args(options);
        command
    };
    let said = succeed(&mut resize(&["--dry-run"]));
    assert!(said.contains("in place (by --in-place)"), "{said}");
    let said = fail(&mut resize(&[]), 1);
    assert!(said.contains("--in-place does it all"), "{said}");
    assert!(fs::read(&place.image).expect("it is there") == before);
}

/// Linux mounts no blocks that are smaller than a sector.
#[test]
fn blocks_are_not_smaller_than_the_sectors_of_a_device() {
    let place = Place::empty();
    let file = fs::File::create(&place.image).expect("a fresh place");
    file.set_len(40 << 20).expect("a sparse file");
    let Some(device) = Loop::of(&place, &["--sector-size", "4096"]) else {
        return;
    };
    let block_size = || {
        let info = succeed(pext4(["info", "--json"]).arg(&device.0));
        let info: serde_json::Value = serde_json::from_str(&info).expect("JSON");
        info["block_size"].clone()
    };
    let refuse = |size: &str| {
        let said = fail(pext4(["mkfs", "--force", "-b", size]).arg(&device.0), 2);
        assert!(said.contains("sectors of 4096 bytes"), "{said}");
    };
    refuse("1024");
    let bytes = fs::read(&place.image).expect("it is there");
    assert!(bytes.iter().all(|&byte| byte == 0));
    // As small as it is, it would have blocks of 1024 bytes elsewhere.
    succeed(pext4(["mkfs", "-q"]).arg(&device.0));
    assert_eq!(block_size(), 4096);
    refuse("2048");
    assert_eq!(block_size(), 4096);
    succeed(pext4(["mkfs", "-q", "--force", "-b", "8192"]).arg(&device.0));
    assert_eq!(block_size(), 8192);
    drop(device);
    place.check();
}

/// Such a device is empty once its last user has gone, which may be before the command looks
/// whether the image was left clean.
#[test]
fn a_loop_device_that_ends_with_its_mount_is_no_failure() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    for _ in 0..10 {
        let Some(device) = Loop::of(&place, &[]) else {
            return;
        };
        succeed(pext4(["mount"]).arg(&device.0).arg(&place.point));
        let mount = place.guard();
        succeed(Command::new("losetup").arg("--detach").arg(&device.0));
        // By now another test may have the next device of this name.
        std::mem::forget(device);
        mount.unmount_unchecked();
    }
    place.check();
}
