//! Mapping blocks into a hole.

use pext4_ondisk::Corrupt;
use pext4_ondisk::extent::{Extent, ROOT_SIZE};

use super::Few;
use super::NodeStore;
use super::edit::Editor;
use super::path::{Path, descend};
use crate::error::{Refusal, Result};

/// Maps `extent` into a hole of the file, merging it with its neighbours in the leaf if they are
/// contiguous.
///
/// # Errors
///
/// `Refused(NoSpace)` from the store, with nothing changed; `Refused(FileTooLarge)` if the tree
/// cannot grow; `Refused(Invalid)` if the extent is impossible; `Corrupt` if some block of it is
/// mapped already; those of reading.
pub fn insert<S: NodeStore>(
    root: &mut [u8; ROOT_SIZE],
    store: &mut S,
    extent: Extent,
) -> Result<()> {
    if !extent.is_valid() || !store.bounds().contains(extent.start, extent.length) {
        return Err(Refusal::Invalid.into());
    }
    let mut path = Path::start();
    let (slot, left, right) = descend(root, store, extent.logical, &mut path, |leaf| {
        let left = leaf.before()?;
        let taken = left.is_some_and(|left| left.end() > u64::from(extent.logical.get()));
        if taken || extent.end() > leaf.next_logical() {
            let problem = format!("{extent} is mapped already");
            return Err(Corrupt::new("extent tree", problem).into());
        }
        Ok((leaf.slot, left, leaf.get(leaf.slot)?))
    })?;
    let first = slot - usize::from(left.is_some());
    let slots = first..slot + usize::from(right.is_some());
    let extents = join([left, Some(extent), right].into_iter().flatten());
    Editor { root, store }.replace(&mut path, slots, &extents)
}

/// The same extents, with contiguous neighbours merged where allowed.
pub(super) fn join(extents: impl IntoIterator<Item = Extent>) -> Few<Extent> {
    let mut joined: Few<Extent> = Few::new();
    for extent in extents {
        match joined.last_mut().map(|last| (last.joined(&extent), last)) {
            Some((Some(both), last)) => *last = both,
            _ => joined.push(extent),
        }
    }
    joined
}
