//! The standard tools read our log: mke2fs makes an image, we write a transaction to its journal
//! and stop as in a crash, debugfs lists it, e2fsck replays it.

use std::path::Path;
use std::process::Command;

use pext4_block::Access;
use pext4_block::FileDevice;

use super::*;

const IMAGE_BLOCK: u32 = 4096;

/// Runs a tool; `None`, with a message, if it is missing.
fn tool(name: &str, arguments: &[&str]) -> Option<String> {
    match Command::new(name).args(arguments).output() {
        Ok(output) => {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            Some(text(&output.stdout) + &text(&output.stderr))
        }
        Err(error) => {
            eprintln!("SKIPPED: {name} does not run: {error}");
            None
        }
    }
}

fn debugfs(image: &Path, request: &str) -> Option<String> {
    let image = image.to_str().expect("the path is text");
    tool("debugfs", &["-w", "-R", request, image])
}

/// The journal's blocks in the order of the log.
fn journal_area(image: &Path) -> Option<LogArea> {
    let listed = debugfs(image, "blocks <8>")?;
    let blocks = listed
        .split_whitespace()
        .filter_map(|word| word.parse().ok());
    let runs: Vec<_> = blocks.map(|block| (BlockNumber(block), 1)).collect();
    Some(LogArea::new(IMAGE_BLOCK, &runs).expect("mke2fs made it"))
}

struct Plain;

impl Client for Plain {
    fn capture_parts(&self, _: u64, _: Tid, _: &mut Vec<Capture>) {}
    fn seal(&self, _: BlockNumber, _: Stamp, _: &mut [u8]) {}
    fn committed(&self, _: Tid) {}
    fn aborted(&self, error: &JournalError) {
        panic!("{error}");
    }
}

fn open(image: &Path, area: &LogArea) -> (Arc<dyn Device>, Arc<Journal>) {
    let device = FileDevice::open(image, Access::ReadWrite, Duration::from_secs(10));
    let device: Arc<dyn Device> = Arc::new(device.expect("the image opens"));
    let superblock = recovery::read_superblock(&device, area).expect("mke2fs made it");
    let journal = Journal::open(Config {
        cache: Arc::new(Cache::new(Arc::clone(&device), IMAGE_BLOCK, 1 << 22)),
        device: Arc::clone(&device),
        log: Some(Log {
            area: area.clone(),
            superblock,
            keeps_checksums: true,
        }),
        client: Arc::new(Plain),
        commit_interval: NEVER,
        width: crate::JournalWidth::default(),
    });
    (device, journal.expect("a fresh journal opens"))
}

/// Commits blocks full of one byte.
fn commit(journal: &Journal, blocks: &[(u64, u8)], freed: &[u64]) {
    let mut handle = journal
        .start((blocks.len() + freed.len()) as u32)
        .expect("it runs");
    for &(block, byte) in blocks {
        let buffer = handle.create(BlockNumber(block), Stamp::NONE);
        handle.edit(&buffer, Stamp::NONE, |page| page.fill(byte));
    }
    freed.iter().for_each(|&block| {
        handle.forget(BlockNumber(block));
    });
    let tid = handle.tid();
    drop(handle);
    journal.commit(tid).expect("the device works");
}

fn first_byte(image: &Path, block: u64) -> u8 {
    let device = FileDevice::open(image, Access::ReadOnly, Duration::from_secs(10));
    let mut byte = [0];
    let offset = block * u64::from(IMAGE_BLOCK);
    device
        .expect("the image opens")
        .read_at(offset, &mut byte)
        .expect("inside the image");
    byte[0]
}

#[test]
fn e2fsck_replays_and_debugfs_lists_what_we_logged() {
    let directory = tempfile::tempdir().expect("there is room");
    let image = directory.path().join("image");
    let path = image.to_str().expect("the path is text");
    let made = tool(
        "mke2fs",
        &["-q", "-F", "-t", "ext4", "-b", "4096", path, "64M"],
    );
    let Some(area) = made.and_then(|_| journal_area(&image)) else {
        return;
    };
    // Blocks near the end are free, so the test may overwrite them.
    let free = 16_000;
    let magic = 0xC0;
    {
        let (_, journal) = open(&image, &area);
        let many: Vec<_> = (0..400).map(|block| (free - 500 + block, 7)).collect();
        commit(&journal, &many, &[]);
        commit(
            &journal,
            &[(free, 1), (free + 1, 1), (free + 2, magic)],
            &[],
        );
        commit(&journal, &[(free, 2)], &[free + 1]);
        drop(journal);
    }
    let listed = debugfs(&image, "logdump -a").expect("debugfs ran before");
    for line in [
        "Found expected sequence 3, type 1",
        "type 2 (commit",
        "type 5 (revoke",
    ] {
        assert!(listed.contains(line), "{line} is not in:\n{listed}");
    }
    debugfs(&image, "feature needs_recovery");
    let ours = RamDevice::load(&image).expect("the image reads");
    let mut superblock = recovery::read_superblock(&ours, &area).expect("it is there");
    let blocks = ours.size() / u64::from(IMAGE_BLOCK);
    let recovered = recovery::recover(&ours, &area, &mut superblock, blocks).expect("it is sound");
    assert_eq!(recovered.transactions, 3);

    let said = tool("e2fsck", &["-fy", "-E", "journal_only", path]).expect("e2fsck is there");
    assert!(
        said.contains("recovering journal") && !said.contains("rror"),
        "{said}"
    );
    assert_eq!(first_byte(&image, free), 2);
    assert_eq!(first_byte(&image, free + 1), 0, "revoked");
    assert_eq!(first_byte(&image, free + 2), magic);
    assert_eq!(first_byte(&image, free - 500 + 399), 7);
    for block in free - 500..free + 10 {
        let mut byte = [0];
        ours.read_at(block * u64::from(IMAGE_BLOCK), &mut byte)
            .expect("inside the image");
        assert_eq!(
            byte[0],
            first_byte(&image, block),
            "our replay and e2fsck's agree on {block}"
        );
    }
    let said = tool("e2fsck", &["-fn", path]).expect("e2fsck is there");
    assert!(
        !said.contains("FILE SYSTEM") && !said.contains('?'),
        "{said}"
    );

    // And again on the image that e2fsck left, up to a clean shutdown.
    let (_, journal) = open(&image, &area);
    commit(&journal, &[(free, 3)], &[]);
    journal.shutdown().expect("the device works");
    drop(journal);
    assert_eq!(first_byte(&image, free), 3);
    let said = tool("e2fsck", &["-fn", path]).expect("e2fsck is there");
    assert!(
        !said.contains("FILE SYSTEM") && !said.contains('?'),
        "{said}"
    );
}

/// For journals that debugfs wrote, with each version of checksums, our replay and e2fsck's have
/// the same result.
#[test]
fn we_replay_what_debugfs_logged_as_e2fsck_does() {
    for features in ["", "-c -v 2", "-c -v 3"] {
        let directory = tempfile::tempdir().expect("there is room");
        let image = directory.path().join("image");
        let path = image.to_str().expect("the path is text");
        let made = tool(
            "mke2fs",
            &["-q", "-F", "-t", "ext4", "-b", "4096", path, "64M"],
        );
        let Some(area) = made.and_then(|_| journal_area(&image)) else {
            return;
        };
        let bytes = directory.path().join("bytes");
        let magic = pext4_ondisk::journal::header::MAGIC.to_be_bytes();
        let pages: Vec<u8> = [[0x11; 4], magic, [0x33; 4]].concat().repeat(1024);
        std::fs::write(&bytes, &pages).expect("there is room");
        let requests = directory.path().join("requests");
        let bytes = bytes.to_str().expect("the path is text");
        let script = format!(
            "jo {features}\njw -b 15000-15002 {bytes}\njw -b 15010-15012 {bytes}\n\
             jw -r 15001,15010\njw -b 15010 {bytes}\njc\n"
        );
        std::fs::write(&requests, script).expect("there is room");
        let requests = requests.to_str().expect("the path is text");
        tool("debugfs", &["-w", "-f", requests, path]).expect("debugfs ran before");

        let ours = RamDevice::load(&image).expect("the image reads");
        let mut superblock = recovery::read_superblock(&ours, &area).expect("it is there");
        assert_ne!(superblock.start, 0, "debugfs {features} left a log");
        let blocks = ours.size() / u64::from(IMAGE_BLOCK);
        let recovered = recovery::recover(&ours, &area, &mut superblock, blocks).expect("sound");
        assert_eq!(
            (recovered.transactions, recovered.revoked),
            (4, 2),
            "{features}"
        );

        tool("e2fsck", &["-fy", "-E", "journal_only", path]).expect("e2fsck is there");
        let theirs = RamDevice::load(&image).expect("the image reads");
        for block in 15_000..15_020 {
            let read = |device: &RamDevice| {
                let mut page = vec![0; IMAGE_BLOCK as usize];
                let offset = block * u64::from(IMAGE_BLOCK);
                device.read_at(offset, &mut page).expect("inside the image");
                page
            };
            assert!(
                read(&ours) == read(&theirs),
                "block {block} with \"{features}\""
            );
        }
        assert_ne!(first_byte(&image, 15_000), 0, "something was replayed");
    }
}
