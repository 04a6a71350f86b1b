//! Traces of the locks and cache lines that a piece of code touches, to test that two operations
//! share none.
//!
//! [`record`] runs a closure and records, for the calling thread only, every lock instance that it
//! takes and every cache line on which it accesses an atomic. Data inside a lock counts as the
//! lock. [`Trace::common`] compares two traces. Only accesses through this crate are seen: a clone
//! of an `Arc` writes a cache line without being recorded.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;

use crate::memory::LINE;
use crate::order::Class;
use crate::watch::{self, LockUse, Site, TRACE};

/// How a lock was taken.
#[derive(Clone, Copy, Debug)]
struct Taking {
    class: Class,
    exclusive: bool,
    site: Site,
}

/// How a line was touched.
#[derive(Clone, Copy, Debug)]
struct Touch {
    written: bool,
    site: Site,
}

/// What one piece of code touched.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    locks: BTreeMap<usize, Taking>,
    lines: BTreeMap<usize, Touch>,
}

/// The kind of a shared lock or line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A lock that both take for reading: they do not wait for each other, but both write its cache
    /// line.
    ReadLock(Class),
    /// A lock that at least one takes for writing.
    Lock(Class),
    /// A line that one writes and the other reads.
    ReadLine,
    /// A line that both write.
    WrittenLine,
}

/// A lock or line that two traces share, and where each touched it.
#[derive(Clone, Copy, Debug)]
pub struct Shared {
    /// What it is.
    pub kind: Kind,
    /// Where the first touched it.
    pub first: Site,
    /// Where the second did.
    pub second: Site,
}

impl fmt::Display for Shared {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{:?} at {} and {}",
            self.kind, self.first, self.second
        )
    }
}

impl Trace {
    /// The number of different locks taken.
    #[must_use]
    pub fn locks(&self) -> usize {
        self.locks.len()
    }

    /// What both touched and at least one wrote; taking a lock for reading writes its line.
    #[must_use]
    pub fn common(&self, other: &Self) -> Vec<Shared> {
        let locks = self.locks.iter().filter_map(|(address, mine)| {
            let theirs = other.locks.get(address)?;
            let kind = if mine.exclusive || theirs.exclusive {
                Kind::Lock(mine.class)
            } else {
                Kind::ReadLock(mine.class)
            };
            Some((kind, mine.site, theirs.site))
        });
        let lines = self.lines.iter().filter_map(|(line, mine)| {
            let theirs = other.lines.get(line)?;
            let kind = match (mine.written, theirs.written) {
                (true, true) => Kind::WrittenLine,
                (false, false) => return None,
                _ => Kind::ReadLine,
            };
            Some((kind, mine.site, theirs.site))
        });
        let mut common: Vec<Shared> = locks
            .chain(lines)
            .map(|(kind, first, second)| Shared {
                kind,
                first,
                second,
            })
            .collect();
        common.sort_by_key(|shared| (shared.kind, shared.first, shared.second));
        common
    }
}

thread_local! {
    static RECORDING: RefCell<Option<Trace>> = const { RefCell::new(None) };
}

/// Runs `body` and returns what this thread touched meanwhile. Must not be nested.
pub fn record<R>(body: impl FnOnce() -> R) -> (R, Trace) {
    RECORDING.set(Some(Trace::default()));
    // The switch stays on, since another thread may be recording.
    watch::switch(TRACE, true);
    let result = body();
    let trace = RECORDING.take().unwrap_or_default();
    (result, trace)
}

/// Records a lock that is about to be taken or tried.
pub(crate) fn lock(lock_use: &LockUse) {
    change(|trace| {
        let taking = trace.locks.entry(lock_use.address).or_insert(Taking {
            class: lock_use.class,
            exclusive: lock_use.exclusive,
            site: lock_use.site,
        });
        if lock_use.exclusive && !taking.exclusive {
            taking.exclusive = true;
            taking.site = lock_use.site;
        }
    });
}

/// Records an atomic at `address` that is about to be read or written.
pub(crate) fn line(address: usize, written: bool, site: Site) {
    change(|trace| {
        let touch = trace
            .lines
            .entry(address / LINE)
            .or_insert(Touch { written, site });
        if written && !touch.written {
            *touch = Touch { written, site };
        }
    });
}

fn change(change: impl FnOnce(&mut Trace)) {
    let _ = RECORDING.try_with(|recording| {
        if let Ok(mut recording) = recording.try_borrow_mut() {
            recording.as_mut().map(change);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::{Kind, Trace, record};
    use crate::atomic::{AtomicU64, Ordering};
    use crate::order::Class;
    use crate::{Mutex, RwLock, Sharded, topology};

    fn kinds(first: &Trace, second: &Trace) -> Vec<Kind> {
        first
            .common(second)
            .into_iter()
            .map(|shared| shared.kind)
            .collect()
    }

    #[test]
    fn two_locks_are_not_one() {
        let locks = [Mutex::new(Class::Group, 0), Mutex::new(Class::Group, 0)];
        let (_, first) = record(|| *locks[0].lock() += 1);
        let (_, second) = record(|| *locks[1].lock() += 1);
        let (_, third) = record(|| drop(locks[1].try_lock()));
        assert_eq!(kinds(&first, &second), []);
        assert_eq!(kinds(&second, &third), [Kind::Lock(Class::Group)]);
        let written_lines = first.lines.values().filter(|touch| touch.written).count();
        assert_eq!((first.locks(), written_lines), (1, 0));
    }

    #[test]
    fn readers_share_a_line_and_a_writer_the_lock() {
        let lock = RwLock::new(Class::Directory, 0);
        let (_, reader) = record(|| *lock.read());
        let (_, writer) = record(|| *lock.write() = 1);
        assert_eq!(kinds(&reader, &reader), [Kind::ReadLock(Class::Directory)]);
        assert_eq!(kinds(&reader, &writer), [Kind::Lock(Class::Directory)]);
        let (_, upgraded) = record(|| {
            drop(lock.read());
            drop(lock.write());
        });
        assert_eq!(kinds(&upgraded, &reader), [Kind::Lock(Class::Directory)]);
    }

    #[test]
    fn lines_are_shared_once_somebody_writes_them() {
        let number = AtomicU64::new(0);
        let (_, reader) = record(|| number.load(Ordering::Relaxed));
        let (_, writer) = record(|| number.store(1, Ordering::Relaxed));
        assert_eq!(kinds(&reader, &reader), []);
        assert_eq!(kinds(&reader, &writer), [Kind::ReadLine]);
        assert_eq!(kinds(&writer, &writer), [Kind::WrittenLine]);
    }

    #[test]
    fn shards_keep_apart() {
        let shards = Sharded::with_count(4, |_| AtomicU64::new(0));
        let [first, second] = [1, 2].map(|shard| {
            let _pin = topology::pin(shard);
            record(|| shards.local().fetch_add(1, Ordering::Relaxed)).1
        });
        assert_eq!(kinds(&first, &second), []);
        assert_eq!(kinds(&first, &first), [Kind::WrittenLine]);
    }

    #[test]
    fn other_threads_are_not_seen() {
        let lock = Mutex::new(Class::Leaf, ());
        let (_, trace) = record(|| {
            std::thread::scope(|scope| {
                scope.spawn(|| drop(lock.lock()));
            });
        });
        assert_eq!(trace.locks(), 0);
    }
}
