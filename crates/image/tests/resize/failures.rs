//! A resize that fails: before its commit the image is the old one again, with its length, and
//! after it the error says that the resize is made.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use pext4_block::fault::Operation;
use pext4_block::{Device, FaultDevice, RamDevice};
use pext4_image::Error;
use pext4_image::resize::{Plan, Target, Way};
use pext4_ondisk::feature::Incompat;
use pext4_ondisk::superblock::Superblock;

use super::crash::{Growth, record};
use super::rig::{MIB, assert_clean, image, resize, scratch, source, text, tools};

fn superblock(device: &dyn Device) -> Superblock {
    let mut bytes = [0; 1024];
    device.read_at(1024, &mut bytes).expect("an image");
    Superblock::decode(&bytes).expect("a superblock")
}

/// Grows an image by its journal while one call fails. Returns the device and the error.
fn grow(
    growth: &Growth,
    size: u64,
    operation: Operation,
    nth: u64,
) -> (Arc<RamDevice>, Option<Error>) {
    let device = Arc::new(growth.base.fork());
    let below: Arc<dyn Device> = device.clone();
    let faulty = FaultDevice::new(below);
    let mut plan = Plan::make(&faulty, Target::Largest).expect("a plan");
    faulty.fail_nth(operation, nth);
    let failed = plan.run(&faulty, &faulty, Way::Journal, size).err();
    (device, failed)
}

#[test]
fn the_error_says_on_which_side_of_the_commit_it_is() {
    const SIZE: u64 = 6 * MIB;
    const GROWN: u64 = 15 * MIB;
    if !tools() {
        return;
    }
    let folder = scratch();
    let tree = source(folder.path(), 64 << 10);
    let path = image(folder.path(), "-t ext4 -b 1024 -N 512", SIZE, &tree);
    let growth = record(&path, SIZE, GROWN);
    let old = superblock(&growth.base);
    let after = folder.path().join("after");
    let mut seen = [0, 0];
    for operation in [Operation::Write, Operation::Flush] {
        for nth in 0.. {
            let (device, error) = grow(&growth, SIZE, operation, nth);
            let Some(error) = error else { break };
            let when = format!("{operation} {nth}: {error}");
            let is_made = matches!(error, Error::AfterCommit(_));
            assert_eq!(is_made, error.to_string().contains("is made"), "{when}");
            let found = superblock(&*device);
            if !is_made {
                assert_eq!(found.blocks_count, old.blocks_count, "{when}");
                let recovers = found.features.has_incompat(Incompat::RECOVER);
                assert!(!recovers, "{when}");
            }
            device.save(&after).expect("a file");
            let replay = ["-fy", "-E", "journal_only"];
            let replayed = Command::new("e2fsck").args(replay).arg(&after).output();
            let said = text(&replayed.expect("it was found before"));
            assert_clean(&after, &format!("{when}\n{said}"));
            let replayed = RamDevice::load(&after).expect("an image");
            let blocks = growth.blocks[usize::from(is_made)];
            assert_eq!(superblock(&replayed).blocks_count, blocks, "{when}");
            seen[usize::from(is_made)] += 1;
        }
    }
    assert!(seen[0] > 5 && seen[1] > 5, "both sides were seen: {seen:?}");
}

/// A small file system of the host, mounted; unmounted on drop.
struct SmallHost(PathBuf);

impl SmallHost {
    /// `None`, with a message, if this machine does not permit mounts.
    fn new(folder: &Path) -> Option<Self> {
        let point = folder.join("host");
        fs::create_dir(&point).expect("a folder");
        let mut mount = Command::new("mount");
        mount
            .args(["-t", "tmpfs", "-o", "size=4M", "none"])
            .arg(&point);
        match mount.output() {
            Ok(output) if output.status.success() => return Some(Self(point)),
            Ok(output) => eprintln!("SKIPPED: a full host: {}", text(&output)),
            Err(error) => eprintln!("SKIPPED: a full host: {error}"),
        }
        None
    }
}

impl Drop for SmallHost {
    fn drop(&mut self) {
        // A program that another test is starting may have our files open.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Gives back the room of a file. Removing it would not, while a program that another test is
/// starting has it open.
fn empty(file: &Path) {
    fs::File::create(file).expect("it is ours");
}

/// The inside of a journal is a hole, so the host may have no room for the transaction.
#[test]
fn a_growth_that_finds_the_host_full_leaves_the_file_as_long_as_it_was() {
    const SIZE: u64 = 64 * MIB;
    if !tools() {
        return;
    }
    let folder = scratch();
    let Some(host) = SmallHost::new(folder.path()) else {
        return;
    };
    let path = host.0.join("image");
    let options = pext4_image::mkfs::Options {
        block_size: Some(4096),
        ..Default::default()
    };
    let mut failed = 0;
    for pages in 0.. {
        assert!(pages < 200, "the host is never large enough");
        empty(&host.0.join("filler"));
        let file = fs::File::create(&path).expect("a file");
        file.set_len(SIZE).expect("a hole");
        drop(file);
        let device = super::rig::open(&path);
        pext4_image::mkfs::mkfs(&device, &options).expect("room");
        drop(device);
        // Fills the host, except for so many pages.
        let filler = fs::File::create(host.0.join("filler")).expect("a file");
        let count = (0..).take_while(|&page| filler.write_all_at(&[1; 4096], page * 4096).is_ok());
        let count = count.count() as u64;
        filler
            .set_len(count.saturating_sub(pages) * 4096)
            .expect("shorter");
        drop(filler);
        let grown = resize(&path, Target::Bytes(2048 * MIB), false);
        let Err(error) = grown else { break };
        failed += 1;
        let when = format!("{pages} pages: {error}");
        if matches!(error, Error::AfterCommit(_)) {
            continue;
        }
        let length = fs::metadata(&path).expect("an image").len();
        assert_eq!(length, SIZE, "{when}");
        empty(&host.0.join("filler"));
        assert_clean(&path, &when);
        // To another size than the one that failed.
        resize(&path, Target::Bytes(1024 * MIB), false).unwrap_or_else(|error| {
            panic!("{when}, and then: {error}");
        });
        assert_clean(&path, &format!("{when}, and again"));
    }
    assert!(failed > 3, "it failed only {failed} times");
}
