//! What the journal and the layer above owe each other.
//!
//! The layer above keeps its journalled state decoded. When an operation is about to change an
//! object for the first time in a transaction it *touches* it ([`Handle::touch`]), which puts the
//! object on that transaction's list: from then on the object *owes* the transaction its bytes.
//! The debt is paid once, by a *capture*, either by the committer or, before the next transaction
//! changes the object, by whoever makes that change. Objects that share a block are not listed one
//! by one: the block is, as their *host* ([`Handle::touch_part`]), under a number that the layer
//! above chooses.
//!
//! [`Handle::touch`]: crate::Handle::touch
//! [`Handle::touch_part`]: crate::Handle::touch_part

use pext4_block::{Page, Stamp};
use pext4_ondisk::{BlockNumber, Tid};

use crate::error::JournalError;
use crate::handle::Handle;

/// What the layer above does for the journal. All calls come from the committer's threads, which
/// hold no lock then.
///
/// A client must not keep the journal alive (hold it weakly), since the journal keeps its client.
pub trait Client: Send + Sync {
    /// The transaction of `handle` is closed and all its other handles have stopped; nobody can start one in
    /// the next before this returns, so it should be short. What is changed under `handle` belongs to the
    /// transaction. Called if a handle of it has set credits aside ([`Handle::set_aside`]), which `handle` has.
    ///
    /// [`Handle::set_aside`]: crate::Handle::set_aside
    fn closing(&self, handle: &mut Handle<'_>) {
        let _ = handle;
    }

    /// Lets each object of `host` that still owes `tid` its bytes append them and clear the debt, as
    /// [`Owing::capture`] does. Every object that was touched as part of this host in `tid`
    /// ([`Handle::touch_part`]) must be found, or have paid before.
    ///
    /// [`Handle::touch_part`]: crate::Handle::touch_part
    fn capture_parts(&self, host: u64, tid: Tid, captures: &mut Vec<Capture>);

    /// Puts the checksum that `stamp` asks for into `page`, the copy of `block` that will be
    /// written. The live page is never touched.
    fn seal(&self, block: BlockNumber, stamp: Stamp, page: &mut [u8]);

    /// Transaction `tid` is durable, and no home write of a block that it freed is pending or will
    /// come: what it freed may be used again.
    fn committed(&self, tid: Tid);

    /// The journal has stopped; nothing is written any more. Called once, by a commit that panicked too.
    fn aborted(&self, error: &JournalError);
}

/// A journalled object.
pub trait Owing: Send + Sync {
    /// If the object still owes `tid` its bytes, appends them and clears the debt; else does
    /// nothing. Takes the object's own lock, and no lock that comes before "start of a handle".
    fn capture(&self, tid: Tid, captures: &mut Vec<Capture>);
}

/// One version of some bytes, as a transaction must write them. An object is captured once per
/// transaction, so captures of one transaction do not overlap, except that pieces may lie on a
/// whole block.
#[derive(Clone, Debug)]
pub enum Capture {
    /// A whole block, still without its checksum.
    Block {
        /// Its home.
        block: BlockNumber,
        /// The bytes.
        page: Page,
        /// Which checksum they get.
        stamp: Stamp,
    },
    /// Some bytes of a block, finished with checksums of their own; the rest is what the last
    /// version of the block says. Nobody but the committer changes such a block in the cache.
    Piece {
        /// The block's home.
        block: BlockNumber,
        /// Where in the block, in bytes.
        offset: u32,
        /// The bytes.
        bytes: Box<[u8]>,
    },
}

/// To which transaction an object owes its bytes; lives beside the object's state, under its lock.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Owed(pub(crate) Option<Tid>);

impl Owed {
    /// The transaction, if there is a debt.
    #[must_use]
    pub fn to(&self) -> Option<Tid> {
        self.0
    }

    /// Clears the debt if it is to `tid`, and answers whether it was.
    pub fn settle(&mut self, tid: Tid) -> bool {
        let owed = self.0 == Some(tid);
        if owed {
            self.0 = None;
        }
        owed
    }
}

#[cfg(test)]
mod tests {
    use super::{Owed, Tid};

    #[test]
    fn a_debt_is_settled_once_and_only_to_its_creditor() {
        let mut owed = Owed(Some(Tid(0)));
        assert!(!owed.settle(Tid(1)));
        assert_eq!(owed.to(), Some(Tid(0)));
        assert!(owed.settle(Tid(0)));
        assert!(!owed.settle(Tid(0)));
    }
}
