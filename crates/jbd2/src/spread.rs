//! Work of a large commit, spread over threads.
//!
//! While the committer makes bytes and checksums nobody waits for it but those who wait for the
//! commit, so a small commit is made by the committer alone. A large one is cut into parts, one a
//! thread; the committer takes one of them itself. Locks that are taken on the way are those that
//! the committer takes ([`order`](pext4_sync::order)), and nothing is held across the parts.

use pext4_sync::thread;

/// Objects, captures or blocks that are worth a thread of their own.
pub(crate) const LEAST_PART: usize = 512;

/// Runs `work` on the items in parts of at least `least`, by at most `width` threads; answers what it made of
/// each part, in their order.
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
    use super::{LEAST_PART, in_parts};

    #[test]
    fn parts_are_whole_and_in_order() {
        for (count, width, parts) in [
            (0, 4, 1),
            (LEAST_PART, 4, 1),
            (2 * LEAST_PART, 4, 2),
            (9 * LEAST_PART + 7, 4, 4),
            (9 * LEAST_PART, 1, 1),
        ] {
            let made = in_parts(
                (0..count).collect(),
                LEAST_PART,
                width,
                |part: Vec<usize>| part,
            );
            assert_eq!(made.len(), parts);
            assert_eq!(made.concat(), (0..count).collect::<Vec<_>>());
        }
    }
}
