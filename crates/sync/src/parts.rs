//! Distributes work over threads that exist only for it.
//!
//! The work is cut into parts, more than there are threads, and each thread takes the next part
//! when it has done one: a thread that gets no processor, because operations have them all, does
//! not delay the others. The caller is one of the threads and holds no lock meanwhile. The parts
//! take only locks that the caller may take ([`order`](crate::order)).
//!
//! Locking: the parts that nobody has taken yet are under a lock of class `Leaf`.

use crate::lock::Mutex;
use crate::order::Class;
use crate::thread;

/// The number of parts that each thread has on average.
const PARTS_PER_THREAD: usize = 4;

/// Cuts `items` into parts and runs `work` on each, in at most `width` threads, each of which would
/// have at least `least` items. Returns the results in the order of the parts.
pub fn in_parts<T: Send, R: Send>(
    items: Vec<T>,
    least: usize,
    width: usize,
    work: impl Fn(Vec<T>) -> R + Sync,
) -> Vec<R> {
    let threads = (items.len() / least.max(1)).clamp(1, width.max(1));
    if threads == 1 {
        return vec![work(items)];
    }
    let length = items.len().div_ceil(threads * PARTS_PER_THREAD);
    let mut items = items.into_iter();
    let next = || Some(items.by_ref().take(length).collect::<Vec<_>>());
    let parts = std::iter::from_fn(next).take_while(|part| !part.is_empty());
    let parts: Vec<_> = parts.enumerate().collect();
    let rest = Mutex::new(Class::Leaf, parts.into_iter());
    let take = || rest.lock().next();
    let made = thread::at_once(vec![(); threads], &|()| {
        let parts = std::iter::from_fn(take);
        let made = parts.map(|(number, part)| (number, work(part)));
        made.collect::<Vec<_>>()
    });
    let mut made: Vec<_> = made.into_iter().flatten().collect();
    made.sort_unstable_by_key(|&(number, _)| number);
    made.into_iter().map(|(_, made)| made).collect()
}

// Virtual cores, unless a simulated machine is around them, do one part after another.
#[cfg(all(test, not(loom), not(feature = "virtual")))]
mod tests {
    use std::time::Duration;

    use super::{PARTS_PER_THREAD, in_parts};

    /// The items that justify another thread.
    const MIN_PART: usize = 512;

    #[test]
    fn parts_are_whole_and_in_order() {
        for (count, width, parts) in [
            (0, 4, 1),
            (MIN_PART, 4, 1),
            (2 * MIN_PART, 4, 2 * PARTS_PER_THREAD),
            (9 * MIN_PART + 7, 4, 4 * PARTS_PER_THREAD),
            (9 * MIN_PART, 1, 1),
        ] {
            let made = in_parts((0..count).collect(), MIN_PART, width, |part: Vec<usize>| {
                part
            });
            assert_eq!(made.len(), parts);
            assert_eq!(made.concat(), (0..count).collect::<Vec<_>>());
        }
    }

    /// Longer than any machine is busy with other things.
    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_slow_part_does_not_delay_the_others() {
        let (done, waiting) = std::sync::mpsc::channel();
        let waiting = std::sync::Mutex::new(waiting);
        // Part 0 ends when all others have, whichever thread has taken it.
        let made = in_parts((0..8).collect(), 4, 2, |part: Vec<usize>| {
            match part.first() {
                Some(0) => {
                    let waiting = waiting.lock().unwrap();
                    (0..7).for_each(|_| waiting.recv_timeout(LONG).unwrap());
                }
                _ => done.send(()).unwrap(),
            }
            part.len()
        });
        assert_eq!(made, [1; 8]);
    }
}
