//! The contract between the journal and the layer above.
//!
//! The layer above keeps its journalled state decoded. Before an operation changes an object for
//! the first time in a transaction, it *touches* the object ([`Handle::touch`]), which puts the
//! object on that transaction's list: from then on the object *owes* the transaction its bytes. One
//! *capture* supplies them: the committer makes it, or an operation of the next transaction, before
//! it changes the object. Objects that share a block are not listed individually. Instead the block
//! is listed as their *host* ([`Handle::touch_part`]), under a number that the layer above chooses.
//!
//! [`Handle::touch`]: crate::Handle::touch
//! [`Handle::touch_part`]: crate::Handle::touch_part

use pext4_block::{Page, Stamp};
use pext4_ondisk::{BlockNumber, Tid};

use crate::error::JournalError;
use crate::handle::Handle;

/// What the layer above does for the journal. The committer's threads make all calls, and hold no
/// lock while they do.
///
/// The journal holds its client by an `Arc`, so a client must refer to the journal weakly.
pub trait Client: Send + Sync {
    /// The transaction of `handle` is closed and all its other handles have stopped. No handle of
    /// the next transaction can start before this returns, so it should be short. Changes under
    /// `handle` belong to the closed transaction. Called only if a handle of this transaction has
    /// set credits aside ([`Handle::set_aside`]); `handle` has these credits.
    ///
    /// [`Handle::set_aside`]: crate::Handle::set_aside
    fn closing(&self, handle: &mut Handle<'_>) {
        let _ = handle;
    }

    /// Captures each object of `host` that still owes `tid` its bytes, as [`Owing::capture`] does.
    /// The client must find every object that was touched as part of this host in `tid`
    /// ([`Handle::touch_part`]), unless that object was captured earlier.
    ///
    /// [`Handle::touch_part`]: crate::Handle::touch_part
    fn capture_parts(&self, host: u64, tid: Tid, captures: &mut Vec<Capture>);

    /// Puts the checksum that `stamp` selects into `page`, the copy of `block` that will be
    /// written. The live page is never changed.
    fn seal(&self, block: BlockNumber, stamp: Stamp, page: &mut [u8]);

    /// Transaction `tid` is durable, and no home write of a block that it freed is pending or will
    /// follow: these blocks may be reused.
    fn committed(&self, tid: Tid);

    /// The journal was aborted; nothing is written any more. Called once, also if a commit
    /// panicked.
    fn aborted(&self, error: &JournalError);
}

/// A journalled object.
pub trait Owing: Send + Sync {
    /// If the object still owes `tid` its bytes, appends them and marks the object as captured;
    /// else does nothing. Takes the object's own lock, and no lock that comes before "start of a
    /// handle" in the order of locks.
    fn capture(&self, tid: Tid, captures: &mut Vec<Capture>);
}

/// One version of some bytes, as a transaction must write them. An object is captured once per
/// transaction, so captures of one transaction do not overlap, except that pieces may overlay a
/// whole block.
#[derive(Clone, Debug)]
pub enum Capture {
    /// A whole block, still without its checksum.
    Block {
        /// The block's home.
        block: BlockNumber,
        /// The bytes.
        page: Page,
        /// Selects the checksum that they get.
        stamp: Stamp,
    },
    /// Some bytes of a block, which contain their own checksums; the rest of the block stays as in
    /// its last version. Only the committer changes such a block in the cache.
    Piece {
        /// The block's home.
        block: BlockNumber,
        /// Offset in the block, in bytes.
        offset: u32,
        /// The bytes.
        bytes: Vec<u8>,
    },
}

impl Capture {
    /// Captures `length` bytes at `offset` of `block`, which `fill` gets as zeroes. They become
    /// part of the last capture if that is a piece of this block which ends there: the pieces of
    /// neighbours share their memory.
    pub fn push_piece(
        captures: &mut Vec<Self>,
        (block, offset): (BlockNumber, u32),
        length: usize,
        fill: impl FnOnce(&mut [u8]),
    ) {
        if let Some(Self::Piece {
            block: before,
            offset: start,
            bytes,
        }) = captures.last_mut()
            && *before == block
            && *start as usize + bytes.len() == offset as usize
        {
            let end = bytes.len();
            bytes.resize(end + length, 0);
            return fill(&mut bytes[end..]);
        }
        let mut bytes = vec![0; length];
        fill(&mut bytes);
        captures.push(Self::Piece {
            block,
            offset,
            bytes,
        });
    }
}

/// The transaction that an object owes its bytes to; stored with the object's state, under its
/// lock.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Owed(pub(crate) Option<Tid>);

impl Owed {
    /// The transaction, if the object owes one its bytes.
    #[must_use]
    pub fn to(&self) -> Option<Tid> {
        self.0
    }

    /// If the object owes `tid` its bytes, clears that and returns true: the caller must capture
    /// it.
    pub fn clear(&mut self, tid: Tid) -> bool {
        let owed = self.0 == Some(tid);
        if owed {
            self.0 = None;
        }
        owed
    }
}

#[cfg(test)]
mod tests {
    use super::{BlockNumber, Capture, Owed, Tid};

    #[test]
    fn pieces_of_neighbours_are_one() {
        let mut captures = Vec::new();
        for (block, offset) in [(7, 0), (7, 2), (8, 4), (8, 8), (8, 10)] {
            let place = (BlockNumber(block), offset);
            Capture::push_piece(&mut captures, place, 2, |bytes| {
                assert_eq!(bytes, [0, 0]);
                bytes.copy_from_slice(&[block as u8, offset as u8]);
            });
        }
        let pieces: Vec<_> = captures
            .into_iter()
            .map(|capture| match capture {
                Capture::Piece {
                    block,
                    offset,
                    bytes,
                } => (block.0, offset, bytes),
                Capture::Block { .. } => panic!("only pieces were added"),
            })
            .collect();
        let expected = [
            (7, 0, vec![7, 0, 7, 2]),
            (8, 4, vec![8, 4]),
            (8, 8, vec![8, 8, 8, 10]),
        ];
        assert_eq!(pieces, expected);
    }

    #[test]
    fn what_is_owed_is_cleared_once_and_only_by_its_transaction() {
        let mut owed = Owed(Some(Tid(0)));
        assert!(!owed.clear(Tid(1)));
        assert_eq!(owed.to(), Some(Tid(0)));
        assert!(owed.clear(Tid(0)));
        assert!(!owed.clear(Tid(0)));
    }
}
