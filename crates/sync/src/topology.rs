//! Which shard is mine.
//!
//! Structures that keep cores apart have a power of two of shards and use the one of the processor
//! the caller runs on. A thread may move right after asking, so a shard is a way to stay out of
//! each other's way, never a right: what lies in it is still atomic or locked.
//!
//! Where there are more shards than processors, each processor has several, and its threads are spread
//! over them. A thread that loses its core while it holds its shard's lock holds up the threads that
//! share the shard, until its next turn: with 32 threads a core, a tenth of a second. So what is locked
//! by shard on a path that matters has [`spare_count`] shards.
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

/// How many shards a structure has unless told otherwise: a power of two, at least the number of
/// processors this process may use, from 4 to 256.
#[must_use]
pub fn shard_count() -> usize {
    shards_for(processors())
}

/// How many processors this process may use.
fn processors() -> usize {
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

/// Shards as on another machine.
#[cfg(all(feature = "meter", not(loom)))]
mod imitation {
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Processors that this process pretends to have; zero for those it has.
    static IMITATED: AtomicUsize = AtomicUsize::new(0);

    /// Pretends for the whole process that there are so many processors: what goes by shards is
    /// made for them. Call it first of all.
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

/// How many shards a structure has in which threads of one core are not to wait for each other: enough that
/// where one is held another one is not, on few cores too.
#[must_use]
pub fn spare_count() -> usize {
    // A model wants no more than it must.
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

/// The number the caller is pinned to; else one by its processor, and by itself as far as shards are spare.
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
    use std::sync::atomic::{AtomicUsize, Ordering};

    static THREADS: AtomicUsize = AtomicUsize::new(0);

    thread_local! {
        /// How far the thread is from where its processor's shards begin.
        static DISTANCE: usize =
            distance(THREADS.fetch_add(1, Ordering::Relaxed), super::processors());
    }

    #[inline]
    pub(super) fn number() -> usize {
        DISTANCE.with(|distance| processor().wrapping_add(*distance))
    }

    /// The processor that this thread runs on. The C library has it from the kernel in memory of the
    /// thread (`rseq`, glibc from 2.35 on), or asks the vDSO; a system call is the last resort, and
    /// on aarch64, which has no such call in its vDSO, the only other way.
    #[allow(unsafe_code)]
    fn processor() -> usize {
        // SAFETY: the function takes no arguments and touches no memory of ours.
        let processor = unsafe { libc::sched_getcpu() };
        usize::try_from(processor).unwrap_or(0)
    }

    /// A multiple of the number of processors, so that it tells apart threads of one processor only.
    pub(super) const fn distance(thread: usize, processors: usize) -> usize {
        thread.wrapping_mul(processors.next_power_of_two())
    }
}

/// A model is the same each time it runs, wherever it runs.
#[cfg(loom)]
mod running {
    pub(super) fn number() -> usize {
        0
    }
}

/// Makes this thread belong to shard `number` (modulo each structure's count) until the guard is
/// dropped. It moves no thread: it only changes the answer of this module.
pub fn pin(number: usize) -> PinGuard {
    assert_ne!(number, UNPINNED, "a shard's number is small");
    PinGuard {
        before: PINNED.with(|pinned| pinned.replace(number)),
        stays: PhantomData,
    }
}

/// Keeps a thread pinned; see [`pin`].
#[must_use]
pub struct PinGuard {
    before: usize,
    /// A pin belongs to its thread.
    stays: PhantomData<*const ()>,
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
        // What the system calls a processor may be more than how many there are for us.
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
