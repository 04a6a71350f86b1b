//! Which locks and cache lines a piece of code touches: what two operations that should not meet
//! have in common.
//!
//! [`record`] runs a closure and writes down, for the calling thread alone, every lock instance it
//! takes and every line of memory on which it touches an atomic. What lies inside a lock counts as
//! the lock. [`Trace::common`] compares two of them. Only what goes through this crate is seen: a
//! clone of an `Arc` writes a line unseen.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;

use crate::order::Class;
use crate::watch::{self, Place, Site, TRACE};

/// Bytes of a cache line.
const LINE: usize = 64;

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

/// What kind of thing two traces share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// One lock, taken for reading by both: they do not wait for each other, but both write its
    /// line.
    ReadLock(Class),
    /// One lock, taken for writing by one or both.
    Lock(Class),
    /// A line that one writes and the other reads.
    ReadLine,
    /// A line that both write.
    WrittenLine,
}

/// One thing that two traces share, and where each touched it.
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
    /// How many different locks were taken.
    #[must_use]
    pub fn locks(&self) -> usize {
        self.locks.len()
    }

    /// How many different lines atomics were written on.
    #[must_use]
    pub fn written_lines(&self) -> usize {
        self.lines.values().filter(|touch| touch.written).count()
    }

    /// What both touched and at least one changed; a lock that is read changes its own line.
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

/// Runs `body` and answers what this thread touched meanwhile. Do not nest it.
pub fn record<R>(body: impl FnOnce() -> R) -> (R, Trace) {
    RECORDING.set(Some(Trace::default()));
    // The switch stays on: another thread may be recording, and tests do not mind.
    watch::switch(TRACE, true);
    let result = body();
    let trace = RECORDING.take().unwrap_or_default();
    (result, trace)
}

/// A lock is about to be taken or tried.
pub(crate) fn lock(place: &Place) {
    change(|trace| {
        let taking = trace.locks.entry(place.address).or_insert(Taking {
            class: place.class,
            exclusive: place.exclusive,
            site: place.site,
        });
        if place.exclusive && !taking.exclusive {
            taking.exclusive = true;
            taking.site = place.site;
        }
    });
}

/// An atomic at `address` is about to be read or written.
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
        assert_eq!((first.locks(), first.written_lines()), (1, 0));
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
