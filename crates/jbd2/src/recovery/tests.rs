//! Recovery of journals that are built record by record.

use std::sync::Arc;

use pext4_block::{Device, RamDevice};
use pext4_ondisk::journal::fast_commit::AreaWriter;
use pext4_ondisk::journal::{
    BlockType, Commit, DescriptorWriter, Header, JournalCompat, JournalIncompat, RecordChecksum,
    RevokeWriter, TagFlags, TransactionSum,
};
use pext4_ondisk::number::{BlockNumber, InodeNumber, Tid};
use pext4_ondisk::{checksum, journal::header};

use super::*;
use crate::superblock::write_superblock;

mod superseded;

pub(super) const BLOCK: usize = 1024;
pub(super) const DEVICE_BLOCKS: u64 = 200;
/// The journal: 12 blocks at 100, then 12 at 50; the log is 23 blocks.
pub(super) const RUNS: [(BlockNumber, u32); 2] = [(BlockNumber(100), 12), (BlockNumber(50), 12)];
pub(super) const FIRST_TID: Tid = Tid(u32::MAX - 1);

/// A journal under construction.
pub(super) struct Rig {
    pub(super) device: RamDevice,
    pub(super) area: LogArea,
    pub(super) superblock: JournalSuperblock,
    at: u32,
    tid: Tid,
    seconds: u64,
    nanoseconds: u32,
    /// What the next commit block says of its transaction.
    transaction_sum: TransactionSum,
}

impl Rig {
    fn new(wide: bool, checksum: RecordChecksum) -> Self {
        let mut superblock = JournalSuperblock::new(BLOCK as u32, 24, [9; 16]);
        superblock.incompat.set(JournalIncompat::BIT64, wide);
        superblock.incompat.insert(JournalIncompat::REVOKE);
        superblock.incompat.insert(match checksum {
            RecordChecksum::None => JournalIncompat::empty(),
            RecordChecksum::V2 => JournalIncompat::CSUM_V2,
            RecordChecksum::V3 => JournalIncompat::CSUM_V3,
        });
        superblock.start = 20;
        superblock.sequence = FIRST_TID;
        let area = LogArea::new(BLOCK as u32, &RUNS).expect("runs are apart");
        let device = RamDevice::new(DEVICE_BLOCKS * BLOCK as u64);
        Self {
            device,
            area,
            superblock,
            at: 20,
            tid: FIRST_TID,
            seconds: 1000,
            nanoseconds: 0,
            transaction_sum: TransactionSum::None,
        }
    }

    fn v3() -> Self {
        Self::new(true, RecordChecksum::V3)
    }

    fn all() -> impl Iterator<Item = Self> {
        let checksums = [RecordChecksum::None, RecordChecksum::V2, RecordChecksum::V3];
        checksums
            .into_iter()
            .flat_map(|sum| [false, true].map(|wide| Self::new(wide, sum)))
    }

    fn format(&self) -> RecordFormat {
        RecordFormat::of(&self.superblock)
    }

    fn put(&mut self, block: &[u8]) -> &mut Self {
        self.area
            .write(&self.device, self.at, &[block])
            .expect("inside the area");
        self.at = if self.at + 1 == self.superblock.log_end() {
            self.superblock.first
        } else {
            self.at + 1
        };
        self
    }

    /// Logs blocks, each full of one byte.
    fn log(&mut self, blocks: &[(u64, u8)]) -> &mut Self {
        let pages: Vec<_> = blocks
            .iter()
            .map(|&(home, byte)| (home, [byte; BLOCK]))
            .collect();
        self.log_pages(&pages)
    }

    fn log_pages(&mut self, pages: &[(u64, [u8; BLOCK])]) -> &mut Self {
        let format = self.format();
        let mut writer = DescriptorWriter::new(&format, self.tid, [9; 16]);
        let mut logged = Vec::new();
        for (home, page) in pages {
            let escaped = header::begins_with_magic(page);
            let mut page = *page;
            if escaped {
                page[..4].fill(0);
            }
            assert!(writer.push(
                BlockNumber(*home),
                escaped,
                format.data_checksum(self.tid, &page)
            ));
            logged.push(page);
        }
        self.put(&writer.finish());
        for page in logged {
            self.put(&page);
        }
        self
    }

    fn revoke(&mut self, blocks: &[u64]) -> &mut Self {
        let mut writer = RevokeWriter::new(&self.format(), self.tid);
        for &block in blocks {
            assert!(writer.push(BlockNumber(block)));
        }
        self.put(&writer.finish())
    }

    fn commit(&mut self) -> &mut Self {
        self.seconds += 1;
        let commit = Commit {
            sequence: self.tid,
            seconds: self.seconds,
            nanoseconds: self.nanoseconds,
            transaction_sum: self.transaction_sum,
        };
        let block = commit.encode(&self.format());
        self.tid = self.tid.next();
        self.put(&block)
    }

    /// Changes a byte of a log block.
    fn damage(&mut self, at: u32, byte: usize) -> &mut Self {
        self.flip(at, byte, 0x10)
    }

    fn flip(&mut self, at: u32, byte: usize, bits: u8) -> &mut Self {
        let mut block = [0; BLOCK];
        self.area
            .read(&self.device, at, &mut block)
            .expect("inside the area");
        block[byte] ^= bits;
        self.area
            .write(&self.device, at, &[&block])
            .expect("inside the area");
        self
    }

    fn recover(&mut self) -> Result<Recovered, JournalError> {
        write_superblock(&self.device, &self.area, &self.superblock).expect("a ram device works");
        recover(
            &self.device,
            &self.area,
            &mut self.superblock,
            DEVICE_BLOCKS,
        )
    }

    /// The byte that a block is full of.
    fn byte(&self, block: u64) -> u8 {
        let bytes = self.block(block);
        assert!(
            bytes.iter().all(|byte| *byte == bytes[0]),
            "block {block} is of one byte"
        );
        bytes[0]
    }

    fn block(&self, block: u64) -> [u8; BLOCK] {
        let mut bytes = [0; BLOCK];
        self.device
            .read_at(block * BLOCK as u64, &mut bytes)
            .expect("inside the device");
        bytes
    }

    /// Recovery refuses as `Corrupt` and writes nothing.
    fn refuses(&mut self, because: &str) {
        let homes = |rig: &Self| (0..50).map(|block| rig.block(block)).collect::<Vec<_>>();
        let before = homes(self);
        let error = self.recover().expect_err(because);
        assert!(error.to_string().contains(because), "{error}");
        assert!(matches!(
            error,
            JournalError::Corrupt(_) | JournalError::Unsupported(_)
        ));
        assert!(homes(self) == before, "{because}");
        assert_eq!(self.superblock.start, 20);
    }
}

#[test]
fn committed_transactions_come_home_in_every_format_and_the_rest_does_not() {
    for mut rig in Rig::all() {
        rig.log(&[(3, 1), (4, 1)]).commit();
        rig.log(&[(4, 2), (5, 2)]).log(&[(6, 2)]).commit();
        rig.log(&[(3, 9), (7, 9)]);
        let recovered = rig.recover().expect("a sound journal");
        assert_eq!((recovered.transactions, recovered.blocks), (2, 4));
        let homes: Vec<u8> = (3..8).map(|block| rig.byte(block)).collect();
        assert_eq!(homes, [1, 2, 2, 2, 0]);
        let read = read_superblock(&rig.device, &rig.area).expect("it was written");
        assert_eq!(
            (read.start, read.sequence),
            (0, Tid(1)),
            "one past the uncommitted one"
        );
        assert_eq!(rig.recover().expect("an empty log").transactions, 0);
    }
}

#[test]
fn a_revoke_voids_its_own_and_earlier_transactions_only() {
    for mut rig in Rig::all() {
        rig.log(&[(3, 1), (4, 1), (5, 1)]).commit();
        rig.revoke(&[3, 4, 6, 90]).log(&[(6, 2)]).commit();
        rig.log(&[(4, 3)]).commit();
        rig.revoke(&[5]);
        let recovered = rig.recover().expect("a sound journal");
        assert_eq!((recovered.blocks, recovered.revoked), (2, 3));
        let homes: Vec<u8> = (3..7).map(|block| rig.byte(block)).collect();
        assert_eq!(homes, [0, 3, 1, 0]);
    }
}

#[test]
fn an_escaped_block_gets_its_magic_back() {
    for mut rig in Rig::all() {
        let mut page = [7; BLOCK];
        page[..4].copy_from_slice(&header::MAGIC.to_be_bytes());
        rig.log_pages(&[(3, page), (4, [1; BLOCK])]).commit();
        rig.recover().expect("a sound journal");
        assert_eq!(rig.block(3), page);
        assert_eq!(rig.byte(4), 1);
    }
}

#[test]
fn a_commit_block_with_other_bytes_behind_its_header_commits() {
    for byte in [64, 511, 700] {
        let mut rig = Rig::v3();
        rig.log(&[(3, 1)]);
        let at = rig.at;
        rig.commit().log(&[(4, 1)]).commit().damage(at, byte);
        assert_eq!(rig.recover().expect("a sound journal").transactions, 2);
        assert_eq!((rig.byte(3), rig.byte(4)), (1, 1));
    }
}

#[test]
fn a_damaged_record_of_a_committed_transaction_is_corruption() {
    for byte in [30, 500] {
        let mut rig = Rig::v3();
        rig.log(&[(3, 1)]).commit();
        let at = rig.at;
        rig.log(&[(4, 1)]).commit().damage(at, byte);
        rig.refuses("a descriptor's sum is wrong in committed transaction");
    }
    // It has more or fewer tags then, so what seems to be behind it is no record.
    const FLAGS_OF_FIRST_TAG: usize = 12 + 7;
    let last = TagFlags::LAST.bits();
    let last = u8::try_from(last).expect("one of the low ones");
    for blocks in [&[(4, 1)][..], &[(4, 1), (5, 1)]] {
        for lap in [0, 2] {
            let mut rig = Rig::v3();
            for _ in 0..=lap {
                rig.log(&[(3, 1)]).commit();
            }
            let at = rig.at;
            rig.log(blocks).commit().flip(at, FLAGS_OF_FIRST_TAG, last);
            rig.refuses("a descriptor's sum is wrong in committed transaction");
        }
    }
    let mut rig = Rig::v3();
    let at = rig.at;
    rig.revoke(&[3])
        .commit()
        .damage(at, 500)
        .refuses("a revoke block's sum is wrong");
    // Without a sum only its count can be wrong. The log's block 20 is the device's 58.
    let mut rig = Rig::new(true, RecordChecksum::None);
    let at = rig.at;
    rig.revoke(&[3]).commit().damage(at, 12);
    rig.refuses("corrupt revoke block (block 58): its count of bytes");
    let mut rig = Rig::v3();
    rig.log(&[(4, 1)]);
    let at = rig.at;
    rig.commit()
        .damage(at, 0x37)
        .refuses("the commit block's sum is wrong");
    let mut rig = Rig::v3();
    let at = rig.at;
    rig.log(&[(4, 1), (5, 1)]).commit().damage(at + 2, 0);
    rig.refuses("the sum of a block of transaction 4294967294");
}

#[test]
fn damage_to_revoked_or_superseded_versions_is_harmless() {
    let mut rig = Rig::v3();
    let at = rig.at;
    rig.log(&[(4, 1), (5, 1)]).commit().damage(at + 1, 0);
    rig.revoke(&[4]).commit().log(&[(5, 2)]).commit();
    rig.recover().expect("nothing that counts is damaged");
    assert_eq!((rig.byte(4), rig.byte(5)), (0, 2));
}

#[test]
fn a_torn_descriptor_without_commit_ends_the_log() {
    let mut rig = Rig::v3();
    rig.log(&[(3, 1)]).commit();
    let at = rig.at;
    rig.log(&[(4, 2)]).damage(at, 900);
    let recovered = rig
        .recover()
        .expect("the crash tore what was not committed");
    assert_eq!(recovered.transactions, 1);
    assert_eq!((rig.byte(3), rig.byte(4)), (1, 0));
}

#[test]
fn an_older_leftover_with_the_expected_number_ends_the_log() {
    let mut rig = Rig::v3();
    rig.log(&[(3, 1)]).commit();
    rig.seconds = 10;
    let at = rig.at;
    rig.log(&[(4, 2)]).commit().damage(at, 500);
    let recovered = rig.recover().expect("what follows is from before");
    assert_eq!(recovered.transactions, 1);
    assert_eq!(rig.byte(4), 0);
}

/// The clock was set back by less than a second between two commits.
#[test]
fn a_damaged_transaction_of_the_same_second_is_no_leftover() {
    let mut rig = Rig::v3();
    rig.nanoseconds = 900_000_000;
    rig.log(&[(3, 1)]).commit();
    rig.seconds -= 1;
    rig.nanoseconds = 100_000_000;
    let at = rig.at;
    rig.log(&[(4, 2)]).commit().damage(at, 500);
    rig.refuses("in committed transaction");
}

#[test]
fn nothing_is_written_outside_the_file_system_or_into_the_log() {
    for stray in [DEVICE_BLOCKS, 1 << 40, 100, 61] {
        let mut rig = Rig::v3();
        rig.log(&[(3, 1), (stray, 1)]).commit();
        rig.refuses("would write outside the file system's blocks");
        let mut rig = Rig::v3();
        rig.log(&[(3, 1)]).commit().log(&[(stray, 1)]);
        rig.recover()
            .expect("what was not committed asks for nothing");
    }
}

#[test]
fn a_log_without_an_end_ends_after_one_lap() {
    let mut rig = Rig::v3();
    for _ in 0..23 {
        rig.revoke(&[1]);
    }
    assert_eq!(rig.recover().expect("nothing is committed").transactions, 0);
    let mut rig = Rig::v3();
    for round in 0..8 {
        rig.log(&[(round, 1)]);
    }
    assert_eq!(rig.recover().expect("nothing is committed").transactions, 0);
}

#[test]
fn a_log_that_is_full_to_the_last_block_is_replayed() {
    let mut rig = Rig::v3();
    for round in 1..=7 {
        rig.log(&[(3, round)]).commit();
    }
    rig.revoke(&[9]).commit();
    assert_eq!(rig.at, 20, "round the ring");
    assert_eq!(rig.recover().expect("a sound journal").transactions, 8);
    assert_eq!(rig.byte(3), 7);
}

/// A log with one transaction, which brings 1 to block 3, and behind it fast commits of the
/// transaction `tid`: one unlinks inode 20.
pub(super) fn with_fast_commits(features: u32, tid: Tid) -> Rig {
    let mut rig = Rig::v3();
    rig.superblock.incompat.insert(JournalIncompat::FAST_COMMIT);
    rig.superblock.num_fast_commit_blocks = 2;
    rig.log(&[(3, 1)]);
    // The log ends at 22, so that the record wraps there; the block itself is not part of it.
    rig.commit();
    let mut fast = AreaWriter::new(BLOCK);
    fast.head(features, tid);
    fast.unlink(InodeNumber(2), InodeNumber(20), b"name")
        .tail(tid);
    rig.area
        .write(&rig.device, 23, &[fast.bytes()])
        .expect("inside the area");
    rig
}

#[test]
fn pending_fast_commits_are_never_passed_over_and_old_ones_are() {
    with_fast_commits(0, FIRST_TID.next()).refuses("fast commits that wait");
    with_fast_commits(2, FIRST_TID.next()).refuses("fast commits with features 0x2");
    let mut rig = with_fast_commits(0, FIRST_TID);
    rig.recover().expect("a leftover");
    assert_eq!(rig.byte(3), 1);
}

#[test]
fn unknown_features_are_refused_by_name_and_unknown_compat_is_kept() {
    let mut rig = Rig::v3();
    rig.superblock.incompat |= JournalIncompat::from_bits_retain(0x80);
    rig.refuses("FEATURE_I7");
    let mut rig = Rig::v3();
    rig.superblock.compat = JournalCompat::from_bits_retain(0x40);
    rig.log(&[(3, 1)])
        .commit()
        .recover()
        .expect("compat may be unknown");
    let read = read_superblock(&rig.device, &rig.area).expect("it was written");
    assert_eq!(read.compat.bits(), 0x40);
}

/// A log whose commit blocks have the sums of their transactions, made of one descriptor and one
/// block each.
fn summed_by_transaction(sums: impl Fn(u32) -> TransactionSum) -> Rig {
    let mut rig = Rig::new(false, RecordChecksum::None);
    rig.superblock.compat.insert(JournalCompat::CHECKSUM);
    for byte in 1..=2 {
        let start = rig.at;
        rig.log(&[(3, byte)]);
        // Behind the log's last block comes its first.
        let next = if start + 1 == rig.superblock.log_end() {
            rig.superblock.first
        } else {
            start + 1
        };
        let sum = [start, next].iter().fold(u32::MAX, |sum, &at| {
            let mut block = [0; BLOCK];
            let read = rig.area.read(&rig.device, at, &mut block);
            read.expect("inside the area");
            checksum::crc32(sum, &block)
        });
        rig.transaction_sum = sums(sum);
        rig.commit();
    }
    rig
}

#[test]
fn sums_of_transactions_are_verified() {
    let right = summed_by_transaction(TransactionSum::Crc32).recover();
    assert_eq!(right.expect("sound").transactions, 2);
    let without = summed_by_transaction(|_| TransactionSum::None).recover();
    assert_eq!(without.expect("some writers leave it out").transactions, 2);
    let mut wrong = summed_by_transaction(|sum| TransactionSum::Crc32(sum ^ 1));
    wrong.refuses("the transaction's sum is wrong");
    // The block of the second transaction was changed.
    summed_by_transaction(TransactionSum::Crc32)
        .damage(1, 700)
        .refuses("the transaction's sum is wrong in committed transaction");
    // With asynchronous commits that is the end of the log.
    let mut rig = summed_by_transaction(TransactionSum::Crc32);
    let incompat = &mut rig.superblock.incompat;
    incompat.insert(JournalIncompat::ASYNC_COMMIT);
    let recovered = rig.damage(1, 700).recover().expect("it ends before");
    assert_eq!((recovered.transactions, rig.byte(3)), (1, 1));
}

#[test]
fn an_overlay_leaves_the_device_alone() {
    let mut rig = Rig::v3();
    rig.log(&[(3, 1)]).commit().log(&[(3, 2), (4, 2)]).commit();
    write_superblock(&rig.device, &rig.area, &rig.superblock).expect("a ram device works");
    let superblock = read_superblock(&rig.device, &rig.area).expect("it was written");
    let replay = Replay::plan(&rig.device, &rig.area, &superblock, DEVICE_BLOCKS).expect("sound");
    let report = replay.report();
    assert_eq!((report.transactions, report.blocks), (2, 2));
    let below: Arc<dyn Device> = Arc::new(rig.device.fork());
    let replay = Arc::new(replay);
    let replayed = ReplayedDevice::new(Arc::clone(&below), Arc::clone(&replay));
    // From the middle of block 2 to the middle of block 5, and a piece of one.
    let mut bytes = vec![7; 3 * BLOCK];
    replayed
        .read_at(2 * BLOCK as u64 + 512, &mut bytes)
        .expect("inside");
    let expected = [vec![0; 512], vec![2; 2 * BLOCK], vec![0; 512]].concat();
    assert!(bytes == expected);
    replayed
        .read_at(4 * BLOCK as u64 + 10, &mut bytes[..20])
        .expect("inside");
    assert_eq!(bytes[..20], [2; 20]);
    assert!(replayed.is_read_only() && replayed.write_at(0, &[1]).is_err());
    assert_eq!((rig.byte(3), rig.byte(4)), (0, 0));
    // Data is also where only the log has some.
    let hole = Arc::new(RamDevice::new(rig.device.size()));
    let over_hole = ReplayedDevice::new(hole, replay);
    let next = |at: u64, end: u64| over_hole.next_data(at, end).expect("it is no error");
    let block = BLOCK as u64;
    assert_eq!(next(0, 9 * block), Some(3 * block..4 * block));
    assert_eq!(
        next(3 * block + 5, 9 * block),
        Some(3 * block + 5..4 * block)
    );
    assert_eq!(
        next(4 * block, 4 * block + 9),
        Some(4 * block..4 * block + 9)
    );
    assert_eq!(next(5 * block, 9 * block), None);
    assert_eq!(next(3 * block, 3 * block), None);
    let again = read_superblock(&rig.device, &rig.area).expect("it is still there");
    assert_eq!(again, superblock);
}

#[test]
fn a_recorded_error_survives_the_replay() {
    let mut rig = Rig::v3();
    rig.superblock.errno = -5;
    let recovered = rig.log(&[(3, 1)]).commit().recover().expect("sound");
    assert_eq!(recovered.errno, -5);
    let superblock = read_superblock(&rig.device, &rig.area).expect("it is there");
    assert_eq!(superblock.errno, -5);
}

#[test]
fn asynchronous_commits_end_before_the_one_that_was_not_written_whole() {
    let mut rig = Rig::v3();
    rig.superblock
        .incompat
        .insert(JournalIncompat::ASYNC_COMMIT);
    rig.log(&[(3, 1)]).commit();
    // The descriptor is the ring's last block; the blocks that it describes are the ring's first
    // ones.
    assert_eq!(rig.at, 23);
    rig.log(&[(3, 2), (4, 2)])
        .revoke(&[5])
        .commit()
        .damage(1, 0);
    assert_eq!(
        rig.recover().expect("the last one was torn").transactions,
        1
    );
    assert_eq!((rig.byte(3), rig.byte(4)), (1, 0));
}

/// A later transaction is written only when this one is durable.
#[test]
fn a_damaged_transaction_before_a_committed_one_is_corruption_with_asynchronous_commits() {
    // A byte of the descriptor, of the revoke block and of the commit block: its time, which then
    // seems to be that of an earlier lap.
    for (record, byte, problem) in [
        (0, 500, "a descriptor's sum is wrong"),
        (1, 500, "a revoke block's sum is wrong"),
        (2, 0x36, "the commit block's sum is wrong"),
    ] {
        for (earlier, later) in [(0, 1), (1, 1), (1, 3)] {
            let mut rig = Rig::v3();
            rig.seconds = 0x1010;
            let incompat = &mut rig.superblock.incompat;
            incompat.insert(JournalIncompat::ASYNC_COMMIT);
            for _ in 0..earlier {
                rig.log(&[(3, 1)]).commit();
            }
            let descriptor = rig.at;
            let revoke = rig.log(&[(4, 2)]).at;
            let commit = rig.revoke(&[5]).at;
            rig.commit();
            for _ in 0..later {
                rig.log(&[(4, 3)]).commit();
            }
            rig.damage([descriptor, revoke, commit][record], byte)
                .refuses(&format!("{problem} in committed transaction"));
        }
    }
    let mut rig = summed_by_transaction(TransactionSum::Crc32);
    let incompat = &mut rig.superblock.incompat;
    incompat.insert(JournalIncompat::ASYNC_COMMIT);
    rig.damage(21, 700)
        .refuses("the transaction's sum is wrong in committed transaction");
}

#[test]
fn a_later_commit_of_an_earlier_lap_does_not_prove_anything() {
    let mut rig = Rig::v3();
    let incompat = &mut rig.superblock.incompat;
    incompat.insert(JournalIncompat::ASYNC_COMMIT);
    rig.log(&[(3, 1)]).commit();
    let at = rig.at;
    rig.log(&[(4, 2)]).commit().damage(at, 500);
    rig.seconds = 10;
    rig.log(&[(4, 3)]).commit();
    let recovered = rig.recover().expect("the second one was torn");
    assert_eq!((recovered.transactions, rig.byte(4)), (1, 0));
}

/// The first transaction of a new file system, torn, before what an older one left there.
#[test]
fn a_later_number_of_an_earlier_file_system_does_not_prove_anything() {
    let mut rig = Rig::v3();
    let incompat = &mut rig.superblock.incompat;
    incompat.insert(JournalIncompat::ASYNC_COMMIT);
    let at = rig.at;
    rig.log(&[(4, 2)]).commit().damage(at, 500);
    rig.seconds = 10;
    rig.log(&[(4, 3)]).commit();
    let recovered = rig.recover().expect("the first one was torn");
    assert_eq!((recovered.transactions, rig.byte(4)), (0, 0));
}

#[test]
fn a_superblock_that_contradicts_its_place_is_refused() {
    let rig = Rig::v3();
    let mut longer = rig.superblock.clone();
    longer.max_len = 25;
    write_superblock(&rig.device, &rig.area, &longer).expect("a ram device works");
    assert!(read_superblock(&rig.device, &rig.area).is_err());
    let mut larger = rig.superblock.clone();
    larger.block_size = 2048;
    write_superblock(&rig.device, &rig.area, &larger).expect("a ram device works");
    assert!(read_superblock(&rig.device, &rig.area).is_err());
}

/// Whatever the bytes, recovery returns, and writes nothing outside the file system or, except for
/// the superblock, into the log.
#[test]
fn damaged_logs_never_panic_nor_write_where_they_must_not() {
    let mut seed = 0x9E37_79B9_u64;
    println!("seed {seed:#x}");
    let mut random = move |below: usize| {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % below
    };
    for round in 0..600 {
        let checksum = [RecordChecksum::None, RecordChecksum::V2, RecordChecksum::V3][round % 3];
        let mut rig = Rig::new(round % 2 == 0, checksum);
        rig.log(&[(3, 1), (4, 1), (5, 1)]).revoke(&[7, 8]).commit();
        rig.log(&[(3, 2), (9, 2)])
            .commit()
            .revoke(&[4])
            .log(&[(6, 3)])
            .commit();
        for _ in 0..=random(3) {
            let at = 1 + random(23) as u32;
            let byte = if random(2) == 0 {
                random(64)
            } else {
                random(BLOCK)
            };
            rig.damage(at, byte);
        }
        let outside = |rig: &Rig| -> Vec<_> {
            let log = (101..112).chain(50..62).chain(150..DEVICE_BLOCKS);
            log.map(|block| rig.block(block)).collect()
        };
        let before = outside(&rig);
        if checksum == RecordChecksum::None {
            // Without checksums a changed block number is used, if it is inside the file system.
            let _ = rig.recover();
            assert!(before[..23] == outside(&rig)[..23], "round {round}");
        } else {
            let _ = rig.recover();
            assert!(before == outside(&rig), "round {round}");
        }
    }
}

#[test]
fn records_of_other_types_end_the_log() {
    let mut rig = Rig::v3();
    rig.log(&[(3, 1)]).commit();
    let mut block = [0; BLOCK];
    Header {
        block_type: BlockType::Unknown(6),
        sequence: rig.tid,
    }
    .encode(&mut block);
    rig.put(&block);
    assert_eq!(rig.recover().expect("it ends there").transactions, 1);
}
