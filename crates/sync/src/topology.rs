//! The caller's shard.
//!
//! Sharded structures have a power of two of shards, and a thread uses the shard of the processor
//! that it runs on. A thread may migrate right after it has asked, so shards only reduce contention
//! and give no exclusive access: their content is still atomic or locked.
//!
//! If there are more shards than processors, each processor has several, and its threads are spread
//! over them. A thread that is preempted while it holds its shard's lock blocks the other threads
//! of the shard until it runs again: with 32 threads per core, for a tenth of a second. So
//! structures with locked shards on hot paths have [`spare_count`] shards.
//!
//! Tests [`pin`] threads to numbers of their choice, so that 64 shards are in use on two
//! processors.

use std::marker::PhantomData;
use std::sync::LazyLock;

#[cfg(loom)]
use loom::thread_local;
use std::cell::Cell;

#[cfg(all(feature = "virtual", not(loom)))]
use crate::virtual_cores;

const UNPINNED: usize = usize::MAX;

#[cfg(not(loom))]
thread_local! {
    static PINNED: Cell<usize> = const { Cell::new(UNPINNED) };
}

#[cfg(loom)]
thread_local! {
    static PINNED: Cell<usize> = Cell::new(UNPINNED);
}

/// The default number of shards: the number of processors that this process may use, rounded up to
/// a power of two, but from 4 to 256.
#[must_use]
pub fn shard_count() -> usize {
    shards_for(processors())
}

/// The number of processors that this process may use, or of the machine that it imitates. Shards
/// are counted by [`shard_count`]; this is for what grows with the machine otherwise.
#[must_use]
pub fn processors() -> usize {
    #[cfg(all(feature = "meter", not(loom)))]
    if let Some(processors) = imitation::processors() {
        return processors;
    }
    static COUNT: LazyLock<usize> =
        LazyLock::new(|| std::thread::available_parallelism().map_or(1, usize::from));
    *COUNT
}

#[cfg(all(feature = "meter", not(loom)))]
pub use imitation::imitate;

/// Imitating the number of processors of another machine.
#[cfg(all(feature = "meter", not(loom)))]
mod imitation {
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// The number of processors that this process pretends to have; zero if it does not pretend.
    static IMITATED: AtomicUsize = AtomicUsize::new(0);

    /// Makes the whole process behave as if there were so many processors: sharded structures are
    /// made for them. Must be called before any is made.
    pub fn imitate(processors: usize) {
        IMITATED.store(processors, Ordering::Relaxed);
    }

    pub(super) fn processors() -> Option<usize> {
        Some(IMITATED.load(Ordering::Relaxed)).filter(|&count| count > 0)
    }
}

fn shards_for(processors: usize) -> usize {
    processors.next_power_of_two().clamp(4, 256)
}

/// The number of shards for structures in which threads of one core must not wait for each other:
/// enough that if one shard is locked another one is free, even on few cores.
#[must_use]
pub fn spare_count() -> usize {
    // A model needs the minimum.
    let least = if cfg!(loom) { 1 } else { 32 };
    shard_count().max(least)
}

/// The caller's shard of [`shard_count`].
#[inline]
#[must_use]
pub fn current() -> usize {
    current_of(shard_count())
}

/// The caller's shard of `count`, which is a power of two.
#[inline]
#[must_use]
pub fn current_of(count: usize) -> usize {
    debug_assert!(
        count.is_power_of_two(),
        "shards are counted in powers of two"
    );
    number() & (count - 1)
}

/// Whether the caller's shard is not that of the processor that runs it: it is pinned, or a core of
/// virtual time.
#[cfg(not(loom))]
#[inline]
pub(crate) fn stands_for_another() -> bool {
    #[cfg(feature = "virtual")]
    if virtual_cores::is_inside() {
        return true;
    }
    PINNED.with(Cell::get) != UNPINNED
}

/// The number that the caller is pinned to; else one from its processor and, if there are more
/// shards than processors, from the thread.
#[inline]
fn number() -> usize {
    #[cfg(all(feature = "virtual", not(loom)))]
    if virtual_cores::is_inside() {
        return virtual_cores::processor();
    }
    let pinned = PINNED.with(Cell::get);
    if pinned == UNPINNED {
        running::number()
    } else {
        pinned
    }
}

#[cfg(not(loom))]
mod running {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use rustix::thread::CpuSet;

    static THREADS: AtomicUsize = AtomicUsize::new(0);

    thread_local! {
        /// The distance of the thread's shard from its processor's first one.
        static DISTANCE: usize =
            distance(THREADS.fetch_add(1, Ordering::Relaxed), super::processors());
    }

    /// The position of each processor among those that this process may use. The numbers that a
    /// process is confined to may have gaps, or a common factor, and processors that share a shard
    /// would write the same lines. A processor that was not among them at the start has its number.
    static POSITIONS: LazyLock<Box<[u16]>> =
        LazyLock::new(|| positions(&rustix::thread::sched_getaffinity(None).unwrap_or_default()));

    fn positions(allowed: &CpuSet) -> Box<[u16]> {
        let mut next = 0;
        let position = |processor: usize| {
            if !allowed.is_set(processor) {
                return u16::try_from(processor).expect("the set has 1024 places");
            }
            next += 1;
            next - 1
        };
        (0..CpuSet::MAX_CPU).map(position).collect()
    }

    #[inline]
    pub(super) fn number() -> usize {
        let processor = processor();
        let position = POSITIONS.get(processor).copied();
        let position = position.map_or(processor, usize::from);
        DISTANCE.with(|distance| position.wrapping_add(*distance))
    }

    #[cfg(test)]
    #[test]
    fn processors_of_one_process_are_numbered_without_gaps() {
        for step in [1, 2, 4, 64] {
            let mut allowed = CpuSet::new();
            let processors = (5..CpuSet::MAX_CPU).step_by(step).take(8);
            processors
                .clone()
                .for_each(|processor| allowed.set(processor));
            let positions = positions(&allowed);
            let found: Vec<u16> = processors.map(|processor| positions[processor]).collect();
            assert_eq!(found, (0..8).collect::<Vec<u16>>());
            assert_eq!(positions[3], 3, "another one");
        }
    }

    /// The processor that this thread runs on. The C library has it from the kernel in memory of
    /// the thread (`rseq`, glibc from 2.35 on), or asks the vDSO; a system call is the last resort,
    /// and on aarch64, which has no such call in its vDSO, the only other way.
    #[allow(unsafe_code)]
    fn processor() -> usize {
        // SAFETY: the function takes no arguments and touches no memory of ours.
        let processor = unsafe { libc::sched_getcpu() };
        usize::try_from(processor).unwrap_or(0)
    }

    /// A multiple of the number of processors, so that it distinguishes only threads of one
    /// processor.
    pub(super) const fn distance(thread: usize, processors: usize) -> usize {
        thread.wrapping_mul(processors.next_power_of_two())
    }
}

/// A model must not depend on the processor.
#[cfg(loom)]
mod running {
    pub(super) fn number() -> usize {
        0
    }
}

/// Makes this thread belong to shard `number` (modulo each structure's count) until the guard is
/// dropped. It does not move the thread: it only changes the results of this module.
pub fn pin(number: usize) -> PinGuard {
    assert_ne!(number, UNPINNED, "a shard's number is small");
    PinGuard {
        before: PINNED.with(|pinned| pinned.replace(number)),
        not_send: PhantomData,
    }
}

/// Keeps a thread pinned; see [`pin`].
#[must_use]
#[derive(Debug)]
pub struct PinGuard {
    before: usize,
    /// A pin belongs to its thread.
    not_send: PhantomData<*const ()>,
}

impl Drop for PinGuard {
    fn drop(&mut self) {
        PINNED.with(|pinned| pinned.set(self.before));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{current, current_of, pin, running, shard_count};

    #[test]
    fn shards_are_a_power_of_two_and_contain_the_caller() {
        assert!(shard_count().is_power_of_two());
        assert!((4..=256).contains(&shard_count()));
        assert!(current() < shard_count());
    }

    #[test]
    fn threads_of_one_processor_have_shards_of_their_own_where_there_are_some_to_spare() {
        let (processors, shards) = (4, 16);
        // The system's processor numbers may exceed the number of processors that we may use.
        for processor in [0, 3, 42] {
            let shard = |thread| (processor + running::distance(thread, processors)) & (shards - 1);
            let all: Vec<usize> = (7..11).map(shard).collect();
            assert!(
                all.iter()
                    .all(|shard| shard % processors == processor % processors)
            );
            let different: std::collections::BTreeSet<_> = all.into_iter().collect();
            assert_eq!(different.len(), 4);
        }
    }

    #[test]
    fn pins_nest_and_end() {
        let outer = pin(37);
        assert_eq!(current_of(64), 37);
        {
            let _inner = pin(5);
            assert_eq!(current_of(64), 5);
            assert_eq!(current_of(4), 1);
        }
        assert_eq!(current_of(64), 37);
        drop(outer);
        assert!(current_of(64) < 64);
    }
}
