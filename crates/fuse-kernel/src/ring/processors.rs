//! Which thread carries which queues.
//!
//! The kernel has a queue for every possible processor, and a ring is ready when each queue has an
//! entry. A thread runs on every processor that this process may use. Queues of other processors
//! (offline, or not permitted) are spread over those threads.

use std::fs;
use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Ranges of processor numbers, such as `0-3,8-11`.
const POSSIBLE: &str = "/sys/devices/system/cpu/possible";

/// What one thread carries.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Share {
    /// The processor to run on, whose queue is the first one; `None` if there is none to choose.
    pub(super) processor: Option<u16>,
    pub(super) queues: Vec<u16>,
}

/// The shares of all threads; together they have every queue once.
pub(super) fn shares() -> io::Result<Vec<Share>> {
    let count = count(&fs::read_to_string(POSSIBLE)?);
    let count = count.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
    let usable = sched_getaffinity(None);
    let usable = |&queue: &u16| {
        let number = usize::from(queue);
        number < CpuSet::MAX_CPU && usable.as_ref().is_ok_and(|usable| usable.is_set(number))
    };
    let (own, others) = (0..count).partition(usable);
    Ok(distribute(own, others))
}

/// Keeps the calling thread on one processor. If the system refuses that, requests cross
/// processors.
pub(super) fn stay_on(processor: u16) {
    let mut one = CpuSet::new();
    one.set(usize::from(processor));
    let _ = sched_setaffinity(None, &one);
}

/// How many processors a list names.
fn count(list: &str) -> Option<u16> {
    let ranges = list.trim().split(',').map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
        last.checked_sub(first)?.checked_add(1)
    });
    ranges.sum::<Option<u16>>()
}

/// A share for each of `own`, among which `others` are spread.
fn distribute(own: Vec<u16>, others: Vec<u16>) -> Vec<Share> {
    let of_own = own.into_iter().map(|processor| Share {
        processor: Some(processor),
        queues: vec![processor],
    });
    let mut shares: Vec<Share> = of_own.collect();
    if shares.is_empty() {
        shares.push(Share {
            processor: None,
            queues: Vec::new(),
        });
    }
    let count = shares.len();
    for (number, queue) in others.into_iter().enumerate() {
        shares[number % count].queues.push(queue);
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::{Share, count, distribute};

    #[test]
    fn lists_of_processors_are_counted() {
        assert_eq!(count("0\n"), Some(1));
        assert_eq!(count("0-15\n"), Some(16));
        assert_eq!(count("0-3,8,10-11"), Some(7));
        for wrong in ["", "3-1", "0-", "a", "0-65535"] {
            assert_eq!(count(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn every_queue_has_a_thread() {
        let share = |processor, queues: &[u16]| Share {
            processor,
            queues: queues.to_vec(),
        };
        let spread = distribute(vec![0, 2], vec![1, 3, 4]);
        assert_eq!(
            spread,
            [share(Some(0), &[0, 1, 4]), share(Some(2), &[2, 3])]
        );
        assert_eq!(distribute(vec![], vec![0, 1]), [share(None, &[0, 1])]);
    }
}
