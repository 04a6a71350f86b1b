//! What the owners of an inode are charged, on images with the feature `quota`: one inode, another
//! for each of its attributes' values that is in an inode of its own (`ea_inode`), and the bytes of
//! its blocks as `stat` counts them, which contain those of such values.
//!
//! Each inode that counts has an account: what its owners were charged when it was last changed.
//! Every change of the slot ends with a comparison ([`Account::settle`]); the difference is noted
//! in the handle, by owner, and stored in the quota files when the transaction closes
//! (`crate::quota`). So the usage that a transaction makes durable is that of its inodes, and cores
//! share nothing for it.
//!
//! An inode is charged from its first change until its number is freed, also while it is an orphan.
//! Those of the file system itself are charged to nobody, except for the root directory; nor are
//! inodes of values, while they are values.

use pext4_jbd2::{Amounts, Handle};
use pext4_ondisk::InodeNumber;
use pext4_ondisk::inode::{Inode as Slot, InodeFlags};
use pext4_ondisk::quota::OwnerKind;

use crate::store::Store;

/// The account of one inode.
pub struct Account {
    /// The kinds of owners that have a quota file.
    kinds: [bool; 3],
    block_size: u32,
    /// Number of its values in inodes of their own, in excess of what it had when it was loaded;
    /// in all, once the attributes were counted ([`Account::know_values`]). Differences need no
    /// more, unless the owners change.
    values: i64,
    charged: Option<Charge>,
    is_closed: bool,
}

/// What owners are charged for one inode.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Charge {
    /// By kind, in the order of [`OwnerKind::ALL`].
    owners: [u32; 3],
    bytes: i64,
    inodes: i64,
}

/// The key under which handles note the usage of an owner: its kind, and its id in the lower 32
/// bits.
pub(crate) fn key_of(kind: OwnerKind, id: u32) -> u64 {
    (kind as u64) << 32 | u64::from(id)
}

/// The kind and the id of the owner of a key.
pub(crate) fn owner_of(key: u64) -> Option<(OwnerKind, u32)> {
    let kind = OwnerKind::ALL
        .into_iter()
        .find(|kind| *kind as u64 == key >> 32)?;
    Some((kind, u32::try_from(key & u64::from(u32::MAX)).ok()?))
}

impl Account {
    /// The account of an inode that nobody was charged for yet; `None` if nobody will be.
    pub(super) fn of_new(store: &Store, number: InodeNumber) -> Option<Box<Self>> {
        let kinds = store.quota_kinds()?;
        let is_own = number < store.geometry.first_inode || store.is_system_inode(number);
        if is_own && number != InodeNumber::ROOT {
            return None;
        }
        Some(Box::new(Self {
            kinds,
            block_size: store.block_size(),
            values: 0,
            charged: None,
            is_closed: false,
        }))
    }

    /// The account of an inode that is charged for what its slot says.
    pub(super) fn of_known(store: &Store, number: InodeNumber, slot: &Slot) -> Option<Box<Self>> {
        let mut account = Self::of_new(store, number)?;
        account.charged = account.charge_of(slot);
        Some(account)
    }

    /// Notes how many values in inodes of their own the inode has now.
    pub(super) fn know_values(&mut self, count: i64) {
        self.values = count;
        if let Some(charged) = &mut self.charged {
            charged.inodes = 1 + count;
        }
    }

    /// The next change gives the inode so many more such values, or takes them.
    pub(super) fn add_values(&mut self, count: i64) {
        self.values += count;
    }

    /// From the next change on, nobody is charged. The inode has no values any more.
    pub(super) fn close(&mut self) {
        self.know_values(0);
        self.is_closed = true;
    }

    /// Notes what a change of the slot means for the owners.
    pub(super) fn settle(&mut self, handle: &mut Handle<'_>, slot: &Slot) {
        let due = self.charge_of(slot).filter(|_| !self.is_closed);
        if self.charged == due {
            return;
        }
        let before = std::mem::replace(&mut self.charged, due);
        for kind in OwnerKind::ALL {
            if self.kinds[kind as usize] {
                settle_kind(handle, before, due, |charge| {
                    key_of(kind, charge.owners[kind as usize])
                });
            }
        }
    }

    fn charge_of(&self, slot: &Slot) -> Option<Charge> {
        if slot.flags.contains(InodeFlags::EA_INODE) {
            return None;
        }
        let bytes = slot.sectors(self.block_size).saturating_mul(512);
        Some(Charge {
            owners: [slot.uid, slot.gid, slot.project],
            bytes: i64::try_from(bytes).unwrap_or(i64::MAX),
            inodes: 1 + self.values,
        })
    }
}

/// Notes the difference between two charges for owners of one kind.
fn settle_kind(
    handle: &mut Handle<'_>,
    before: Option<Charge>,
    due: Option<Charge>,
    key: impl Fn(&Charge) -> u64,
) {
    let mut note = |key: u64, amounts: Amounts| {
        if amounts != [0, 0] {
            handle.note_amounts(key, amounts);
        }
    };
    match (before, due) {
        (Some(before), Some(due)) if key(&before) == key(&due) => {
            let bytes = due.bytes.saturating_sub(before.bytes);
            note(key(&due), [bytes, due.inodes - before.inodes]);
        }
        _ => {
            if let Some(before) = before {
                note(
                    key(&before),
                    [before.bytes.saturating_neg(), -before.inodes],
                );
            }
            if let Some(due) = due {
                note(key(&due), [due.bytes, due.inodes]);
            }
        }
    }
}
