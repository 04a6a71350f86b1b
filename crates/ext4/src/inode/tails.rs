//! Files that end inside a block and may have other bytes than zeroes beyond their end: those that
//! were truncated, and those where a write beyond the end failed half way.
//!
//! A truncate becomes durable with its transaction, and only after that may the bytes that it cut
//! off be overwritten: otherwise a power cut could leave the old size with zeroes in the file. An
//! operation that makes the file grow zeroes them first ([`Inodes::zero_tail`]). Linux does not do
//! this: it assumes that the bytes beyond the end are zero on disk. So every such file is listed
//! here, once, and `sync` and unmount zero the tails of all listed files, durably. An inode number
//! that is reused many times can be listed as many times; a list that has grown removes such
//! duplicates.
//!
//! Locking: the lists are per shard, of class `Leaf`; no list is locked while a file is processed.
//! Who has taken the lists holds the lock of class `Tails` until all files that were on them are
//! done, so that a later `sync` does not return before them.

use pext4_ondisk::InodeNumber;
use pext4_sync::order::Class;
use pext4_sync::{Mutex, Sharded};

use crate::error::{Error, Refusal, Result};
use crate::inode::State;
use crate::inode::inodes::Inodes;
use crate::types::FileType;

/// Length of a list from which on duplicates are removed.
const MIN_LOOKED_THROUGH: usize = 1024;

/// Inodes with old bytes beyond the end in their last block.
pub struct Tails {
    listed: Sharded<Mutex<List>>,
    /// Held while the files of the lists are processed.
    zeroing: Mutex<()>,
}

/// The list of one shard.
struct List {
    numbers: Vec<InodeNumber>,
    /// The length at which duplicates are removed next.
    limit: usize,
}

impl List {
    fn new() -> Self {
        Self {
            numbers: Vec::new(),
            limit: MIN_LOOKED_THROUGH,
        }
    }

    fn add(&mut self, number: InodeNumber) {
        self.numbers.push(number);
        if self.numbers.len() >= self.limit {
            self.numbers.sort_unstable();
            self.numbers.dedup();
            self.limit = (2 * self.numbers.len()).max(MIN_LOOKED_THROUGH);
        }
    }
}

impl Tails {
    /// Empty lists.
    pub(crate) fn new() -> Self {
        Self {
            listed: Sharded::new(|_| Mutex::new(Class::Leaf, List::new())),
            zeroing: Mutex::new(Class::Tails, ()),
        }
    }

    /// Notes that an inode that ends inside a block may have other bytes than zeroes beyond its
    /// end, and lists it, once.
    pub(super) fn note(&self, inode: InodeNumber, state: &mut State) {
        state.tail_is_zero = false;
        if !std::mem::replace(&mut state.tail_is_listed, true) {
            self.list(inode);
        }
    }

    /// Lists an inode whose state has `tail_is_listed` set.
    fn list(&self, inode: InodeNumber) {
        self.listed.local().lock().add(inode);
    }

    fn take(&self) -> Vec<InodeNumber> {
        let lists = self.listed.iter();
        lists
            .flat_map(|list| std::mem::replace(&mut *list.lock(), List::new()).numbers)
            .collect()
    }
}

impl Inodes {
    /// Zeroes the tails of all listed files, durably. Must be called without a handle and without
    /// the lock of an inode; it waits until the truncates are durable.
    ///
    /// # Errors
    ///
    /// The first `Corrupt` or `Io`. After an error of the device the file stays listed for the next
    /// call; a damaged file is reported once.
    pub fn zero_tails(&self) -> Result<()> {
        let _zeroing = self.tails.zeroing.lock();
        let mut outcome = Ok(());
        let mut wrote = false;
        for number in self.tails.take() {
            let zeroed = self.zero_listed_tail(number);
            if matches!(zeroed, Err(Error::Io(_))) {
                self.tails.list(number);
            }
            wrote |= *zeroed.as_ref().unwrap_or(&false);
            outcome = outcome.and(zeroed.map(drop));
        }
        if wrote {
            // Also if a file was damaged: the next call does not know which tails were zeroed.
            outcome = outcome.and(self.store.journal().flush_data().map_err(Error::from));
        }
        outcome
    }

    fn zero_listed_tail(&self, number: InodeNumber) -> Result<bool> {
        let inode = match self.get(number) {
            Err(error) if error.is(Refusal::Stale) => return Ok(false),
            inode => inode?,
        };
        let _lock = inode.lock.write_keyed(u64::from(number.get()));
        // The number may belong to another inode by now; zeroing the tail of any file is harmless.
        let zeroed = match !inode.is_dead() && inode.file_type() == FileType::Regular {
            true => self.zero_tail(&inode),
            false => Ok(false),
        };
        let stays_listed = matches!(zeroed, Err(Error::Io(_)));
        inode.note(|state| state.tail_is_listed = stays_listed);
        zeroed
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use pext4_block::Device;

    use super::{InodeNumber, List, MIN_LOOKED_THROUGH};
    use crate::groups::testing::image;
    use crate::{CreateAttributes, Error, MountOptions, SetAttributes, Volume};

    #[test]
    fn a_list_forgets_numbers_that_are_listed_again() {
        let mut list = List::new();
        for round in 0..100_000 {
            list.add(InodeNumber(11 + round % 7));
        }
        assert!(list.numbers.len() <= MIN_LOOKED_THROUGH);
        list.numbers.sort_unstable();
        list.numbers.dedup();
        assert_eq!(list.numbers.len(), 7);
    }

    #[test]
    fn a_sync_waits_for_the_ends_that_another_one_zeroes() {
        let Some(device) = image(&[], "16M") else {
            return;
        };
        let volume = Volume::open(device, MountOptions::default()).expect("a mount");
        let new = CreateAttributes::default();
        let file = volume.create(InodeNumber::ROOT, b"file", &new);
        let file = file.expect("room").inode;
        let written = volume.write(file, 0, &[0xA5; 900]);
        assert_eq!(written.expect("room"), 900);
        let cut = SetAttributes {
            size: Some(5),
            ..SetAttributes::default()
        };
        volume.set_attributes(file, &cut).expect("cut");
        let inode = volume.inodes.get(file).expect("it is held");
        let is_taken = || {
            let mut lists = volume.inodes.tails.listed.iter();
            lists.all(|list| list.lock().numbers.is_empty())
        };
        assert!(!is_taken());
        std::thread::scope(|scope| {
            let lock = inode.lock.write_keyed(u64::from(file.get()));
            let first = scope.spawn(|| volume.sync());
            while !is_taken() {
                std::thread::yield_now();
            }
            let second = scope.spawn(|| volume.sync());
            // Gives it time to do what it must not do.
            std::thread::sleep(Duration::from_millis(50));
            let is_early = second.is_finished();
            drop(lock);
            for sync in [first, second] {
                sync.join().expect("no panic").expect("durable");
            }
            assert!(!is_early, "it has returned before the end was zero");
        });
    }

    #[test]
    fn a_damaged_file_keeps_no_other_from_its_end_nor_the_volume() {
        let Some(device) = image(&[], "16M") else {
            return;
        };
        let volume = Volume::open(
            Arc::clone(&device) as Arc<dyn Device>,
            MountOptions::default(),
        );
        let volume = volume.expect("a mount");
        let cut = SetAttributes {
            size: Some(5),
            ..SetAttributes::default()
        };
        let numbers = [b"damaged", b"sound--"].map(|name| {
            let made = volume.create(InodeNumber::ROOT, name, &CreateAttributes::default());
            let number = made.expect("a file").inode;
            assert_eq!(
                volume.write(number, 0, &[0xA5; 4096]).expect("written"),
                4096
            );
            number
        });
        volume.sync().expect("durable");
        for number in numbers {
            volume.set_attributes(number, &cut).expect("cut");
        }
        let journal = volume.inodes.store.journal();
        journal.commit_running().expect("durable");
        let damaged = volume.inodes.get(numbers[0]).expect("it is held");
        damaged.note(|state| state.slot.block = [7; 60]);
        drop(damaged);
        let error = volume.close().expect_err("it cannot be read");
        assert!(matches!(error, Error::Corrupt(_)), "{error}");

        let mut left = 0;
        let mut block = vec![0; 1024];
        for at in (0..device.size()).step_by(block.len()) {
            device.read_at(at, &mut block).expect("a ram device works");
            left += u32::from(block[5..] == [0xA5; 1019] && block[..5] == [0xA5; 5]);
        }
        // Blocks have 1 KiB here: three were cut off whole and are not written, one is not zero.
        let mut superblock = [0; 1024];
        device
            .read_at(1024, &mut superblock)
            .expect("a ram device works");
        assert_eq!(superblock[58] & 1, 1, "it was closed cleanly");
        assert_eq!(left, 2 * 3 + 1, "the sound file's end is zero");
    }
}
