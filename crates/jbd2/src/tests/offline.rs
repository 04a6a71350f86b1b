//! One transaction without a running journal: after a crash at any event, all of it is there or
//! nothing.

use pext4_block::{Event, Page, RecordDevice};
use pext4_ondisk::journal::header;

use super::*;
use crate::OfflineTransaction;

const LOG_BLOCKS: u32 = 40;

fn area() -> LogArea {
    let runs = [(BlockNumber(LOG_START), LOG_BLOCKS)];
    LogArea::new(BLOCK as u32, &runs).expect("one run")
}

/// A device with an empty log, and blocks that hold their own numbers.
fn device() -> RamDevice {
    let device = RamDevice::new(DEVICE_BLOCKS * BLOCK as u64);
    for block in 0..DEVICE_BLOCKS {
        let bytes = [block as u8; BLOCK];
        device
            .write_at(block * BLOCK as u64, &bytes)
            .expect("memory");
    }
    let superblock = JournalSuperblock::new(BLOCK as u32, LOG_BLOCKS, [7; 16]);
    write_superblock(&device, &area(), &superblock).expect("memory");
    device
}

fn open(device: Arc<dyn Device>) -> OfflineTransaction {
    let superblock = recovery::read_superblock(&*device, &area()).expect("it is sound");
    let log = Log {
        area: area(),
        superblock,
        keeps_checksums: true,
    };
    OfflineTransaction::open(device, log).expect("the log is empty")
}

/// New versions of `count` blocks, out of order, one of which begins with the journal's magic.
fn versions(count: u64) -> Vec<(BlockNumber, Page)> {
    let page = |block: u64| {
        let mut bytes = vec![0xA0 | (block % 16) as u8; BLOCK];
        if block == 3 {
            bytes[..4].copy_from_slice(&0xC03B_3998u32.to_be_bytes());
            assert!(header::begins_with_magic(&bytes));
        }
        (BlockNumber(block), Page::from(bytes))
    };
    (1..=count).rev().map(page).collect()
}

fn is_new(device: &RamDevice, versions: &[(BlockNumber, Page)]) -> Vec<bool> {
    let block = |(number, page): &(BlockNumber, Page)| {
        let mut bytes = vec![0; BLOCK];
        device
            .read_at(number.get() * BLOCK as u64, &mut bytes)
            .expect("memory");
        *bytes == **page
    };
    versions.iter().map(block).collect()
}

#[test]
fn a_crash_leaves_all_blocks_or_none() {
    let base = device();
    let record = Arc::new(RecordDevice::new(Arc::new(base.fork())));
    let transaction = open(Arc::<RecordDevice>::clone(&record));
    let versions = versions(20);
    let committed = transaction.commit(versions.clone()).expect("memory");
    let durable = record.mark();
    committed.finish().expect("memory");
    let events = record.events();
    for cut in 0..=events.len() {
        let left = base.fork();
        let flushed = events[..cut]
            .iter()
            .rposition(|event| *event == Event::Flush);
        for event in &events[..cut] {
            event.apply(&left).expect("memory");
        }
        let mut superblock = recovery::read_superblock(&left, &area()).expect("sound");
        recovery::recover(&left, &area(), &mut superblock, DEVICE_BLOCKS).expect("sound");
        let new = is_new(&left, &versions);
        let all = new.iter().all(|new| *new);
        assert!(all || new.iter().all(|new| !new), "cut at {cut}: {new:?}");
        assert!(all || cut < durable, "cut at {cut}: it was acknowledged");
        assert!(
            !all || cut + 1 >= durable,
            "cut at {cut}: too early, flushed {flushed:?}"
        );
        assert_eq!(superblock.start, 0);
    }
}

#[test]
fn the_log_is_used_again_and_again() {
    let device = Arc::new(device());
    for round in 0..5u8 {
        let transaction = open(Arc::<RamDevice>::clone(&device));
        let pages = vec![(BlockNumber(5), Page::from(vec![round; BLOCK]))];
        let committed = transaction.commit(pages.clone()).expect("memory");
        if round % 2 == 0 {
            committed.finish().expect("memory");
        } else {
            let mut superblock = recovery::read_superblock(&*device, &area()).expect("sound");
            let report = recovery::recover(&*device, &area(), &mut superblock, DEVICE_BLOCKS);
            assert_eq!(report.expect("sound").transactions, 1);
        }
        assert_eq!(is_new(&device, &pages), [true], "round {round}");
    }
}

/// `count` blocks fill the whole log, with a descriptor block for each of 62 and the commit block.
#[test]
fn a_recovery_finds_a_transaction_that_fills_the_whole_log() {
    let device = Arc::new(device());
    let transaction = open(Arc::<RamDevice>::clone(&device));
    let most = (1..100).rfind(|count| transaction.fits(*count));
    let most = most.expect("some fit");
    assert_eq!(most + most.div_ceil(62) + 1, LOG_BLOCKS as usize - 1);
    let versions = versions(most as u64);
    let committed = transaction.commit(versions.clone());
    drop(committed.expect("it fits"));
    let mut superblock = recovery::read_superblock(&*device, &area()).expect("sound");
    let report = recovery::recover(&*device, &area(), &mut superblock, DEVICE_BLOCKS);
    assert_eq!(report.expect("sound").blocks, most as u64);
    assert!(is_new(&device, &versions).iter().all(|new| *new));
    // After it the numbers are as if the transaction had been finished.
    let other = self::device();
    let other = Arc::new(other);
    let committed = open(Arc::<RamDevice>::clone(&other)).commit(versions);
    committed.expect("it fits").finish().expect("memory");
    let finished = recovery::read_superblock(&*other, &area()).expect("sound");
    assert_eq!(superblock.sequence, finished.sequence);
}

#[test]
fn what_does_not_fit_is_refused_before_anything_is_written() {
    let record = Arc::new(RecordDevice::new(Arc::new(device())));
    let transaction = || open(Arc::<RecordDevice>::clone(&record));
    let fits = |count: &usize| transaction().fits(*count);
    let most = (1..100).rfind(fits).expect("some fit");
    assert!((30..LOG_BLOCKS as usize).contains(&most), "{most}");
    let refused = |blocks| transaction().commit(blocks).expect_err("it is refused");
    let error = refused(versions(most as u64 + 1)).error;
    let told = format!(
        "a transaction of {} blocks takes {LOG_BLOCKS} of the 39",
        most + 1
    );
    assert!(error.to_string().starts_with(&told), "{error}");
    let own = vec![(BlockNumber(LOG_START + 3), Page::zeroed(BLOCK))];
    let error = refused(own).error;
    assert!(matches!(error, JournalError::Corrupt(_)), "{error}");
    assert_eq!(record.mark(), 0);
    let committed = transaction().commit(versions(most as u64));
    committed.expect("it fits").finish().expect("memory");
}
