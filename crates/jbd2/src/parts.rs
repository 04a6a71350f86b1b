//! Distributes the work of a large commit over threads.
//!
//! While the committer makes bytes and checksums, only the threads that wait for this commit are
//! delayed, so the committer makes a small commit alone. A large commit is cut into parts, one for
//! each thread; the committer processes one of them itself. The parts take only locks that the
//! committer may take ([`order`](pext4_sync::order)), and the caller holds no lock meanwhile.

use pext4_sync::thread;

/// The number of objects, captures or blocks that justifies another thread.
pub(crate) const MIN_PART: usize = 512;

/// Cuts `items` into at most `width` parts, each of at least `least` items if there is more than
/// one, and runs `work` on each part in a thread of its own. Returns the results in the order of
/// the parts.
pub fn in_parts<T: Send, R: Send>(
    items: Vec<T>,
    least: usize,
    width: usize,
    work: impl Fn(Vec<T>) -> R + Sync,
) -> Vec<R> {
    let parts = (items.len() / least.max(1)).clamp(1, width.max(1));
    if parts == 1 {
        return vec![work(items)];
    }
    let length = items.len().div_ceil(parts);
    let mut rest = items;
    let mut cut = Vec::with_capacity(parts);
    while rest.len() > length {
        let behind = rest.split_off(length);
        cut.push(std::mem::replace(&mut rest, behind));
    }
    cut.push(rest);
    thread::at_once(cut, &work)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{MIN_PART, in_parts};

    #[test]
    fn parts_are_whole_and_in_order() {
        for (count, width, parts) in [
            (0, 4, 1),
            (MIN_PART, 4, 1),
            (2 * MIN_PART, 4, 2),
            (9 * MIN_PART + 7, 4, 4),
            (9 * MIN_PART, 1, 1),
        ] {
            let made = in_parts((0..count).collect(), MIN_PART, width, |part: Vec<usize>| {
                part
            });
            assert_eq!(made.len(), parts);
            assert_eq!(made.concat(), (0..count).collect::<Vec<_>>());
        }
    }
}
