//! What the lock of an inode's state guards: the decoded slot, and the transactions that it belongs
//! to. Who changes the slot calls [`State::note_change`] and publishes the fields that can be read
//! without the lock (`published_fields.rs`), which `Inode::edit` does.

use pext4_jbd2::Owed;
use pext4_ondisk::Tid;
use pext4_ondisk::inode::Inode as Slot;

use crate::inode::account::Account;
use crate::orphan::OrphanPlace;

/// The decoded slot and the state that belongs to it.
pub struct State {
    /// The slot's fields.
    pub slot: Slot,
    /// Where the inode is recorded as an orphan, if it is one.
    pub orphan: Option<OrphanPlace>,
    /// The orphan slot that the inode keeps while this transaction runs, although it is no longer
    /// an orphan.
    pub idle_slot: Option<(Tid, OrphanPlace)>,
    /// The last transaction that an `fsync` must wait for.
    pub sync_tid: Option<Tid>,
    /// The last transaction that an `fdatasync` must wait for.
    pub datasync_tid: Option<Tid>,
    /// The last transaction that changed the slot: the inode leaves memory only when it is durable.
    pub last_tid: Option<Tid>,
    /// The transaction that truncated the file inside a block, leaving old bytes beyond the end.
    pub truncated_in: Option<Tid>,
    /// Whether the bytes between the end of the file and the end of its last block are known zero.
    pub tail_is_zero: bool,
    /// Whether the inode is on the list of files whose tail must still be zeroed (`tails.rs`).
    pub tail_is_listed: bool,
    /// The last transaction that unmapped blocks of a cluster of which others stay mapped, unless
    /// it is known to be durable.
    pub unmapped_beside_in: Option<Tid>,
    /// Whether a truncate failed half way, so that blocks beyond the end may still be mapped, whose
    /// old content must not become visible again.
    pub truncate_is_unfinished: bool,
    /// No name and no hold is left, and a thread is freeing the inode or has freed it.
    pub dead: bool,
    /// What its owners are charged; `None` if nobody is.
    pub(super) account: Option<Box<Account>>,
    /// The transaction to which the slot's bytes are owed.
    pub(super) owed: Owed,
}

/// Whether `fdatasync` must make a change durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Yes: it is needed to read the data back (size, blocks).
    Data,
    /// No: times, owners, links.
    Attributes,
}

impl State {
    /// The state of an inode that no transaction has changed.
    pub(super) fn new(slot: Slot, account: Option<Box<Account>>) -> Self {
        Self {
            slot,
            account,
            orphan: None,
            idle_slot: None,
            sync_tid: None,
            datasync_tid: None,
            last_tid: None,
            truncated_in: None,
            tail_is_zero: false,
            tail_is_listed: false,
            unmapped_beside_in: None,
            truncate_is_unfinished: false,
            dead: false,
            owed: Owed::default(),
        }
    }

    /// Notes for the owners' accounts how many values in inodes of their own the inode has now.
    pub(crate) fn know_values(&mut self, count: u32) {
        if let Some(account) = &mut self.account {
            account.know_values(count.into());
        }
    }

    /// The change that follows gives the inode so many more values in inodes of their own.
    pub(crate) fn add_values(&mut self, count: i64) {
        if let Some(account) = &mut self.account {
            account.add_values(count);
        }
    }

    /// The inode's number will be free: its owners are charged no more.
    pub(crate) fn close_account(&mut self) {
        if let Some(account) = &mut self.account {
            account.close();
        }
    }

    /// Notes a change in a transaction. Until it is durable, syncs that reach it wait and the inode
    /// stays in memory.
    pub(super) fn note_change(&mut self, tid: Tid, reach: Reach) {
        self.last_tid = Some(tid);
        self.sync_tid = Some(tid);
        if reach == Reach::Data {
            self.datasync_tid = Some(tid);
        }
    }
}
