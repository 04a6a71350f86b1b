//! The threads that serve one mount: the last caller of each, and the core of all of them.
//!
//! The kernel gives a request to the thread that has waited longest. If one thread stayed on the
//! caller's former core, that core would be woken for every other call, and a thread that always
//! comes too late gets no call at which it could move. So a thread that moves also moves all
//! others, unless they are parked while it serves turns.
//!
//! The list's lock is a leaf, taken when a thread joins and when it samples; all cores change under
//! it. A thread that finds it held does not wait: the holder may be in the idle class and wait for
//! a core. Between two samples a thread reads only its own core, which has its own cache line. The
//! list holds weak references and skips threads that have ended, since no lock can be taken any
//! more when thread-local values are dropped. A thread's id could belong to another thread by the
//! time it is moved only if the system gave out all ids within that moment.

use std::sync::{Arc, Weak};

use pext4_sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use pext4_sync::order::Class;
use pext4_sync::{CachePadded, Mutex};
use rustix::thread::{CpuSet, Pid, gettid, sched_getaffinity, sched_setaffinity};

use super::callers::milliseconds;

/// In place of a core: the thread may run on all cores.
const ANYWHERE: usize = usize::MAX;

/// The threads of one mount.
pub(super) struct ServerThreads {
    members: Mutex<Vec<Weak<CachePadded<Member>>>>,
}

/// One of them.
struct Member {
    /// [immutable]
    thread: Pid,
    /// [immutable] The cores it may use at all; `None` if the system does not report them.
    allowed_cores: Option<CpuSet>,
    /// The core that it is kept on, or [`ANYWHERE`].
    core: AtomicUsize,
    /// The caller that it published last (upper half), and when in milliseconds (lower half); 0
    /// before.
    last_caller: AtomicU64,
}

/// The calling thread as one of them, until it is dropped.
pub(super) struct Membership {
    threads: Arc<ServerThreads>,
    own: Arc<CachePadded<Member>>,
}

impl ServerThreads {
    pub(super) fn new() -> Self {
        Self {
            members: Mutex::new(Class::Leaf, Vec::new()),
        }
    }

    /// Adds the calling thread, which runs on all cores at first.
    pub(super) fn join(self: &Arc<Self>) -> Membership {
        let own = Arc::new(CachePadded::new(Member {
            thread: gettid(),
            allowed_cores: sched_getaffinity(None).ok(),
            core: AtomicUsize::new(ANYWHERE),
            last_caller: AtomicU64::new(0),
        }));
        let mut members = self.members.lock();
        members.retain(|member| member.strong_count() > 0);
        members.push(Arc::downgrade(&own));
        drop(members);
        Membership {
            threads: Arc::clone(self),
            own,
        }
    }
}

impl Member {
    /// Moves the thread. Called under the list's lock.
    fn move_to(&self, core: Option<usize>) {
        let Some(allowed_cores) = &self.allowed_cores else {
            return;
        };
        let core = core.filter(|&core| core < CpuSet::MAX_CPU && allowed_cores.is_set(core));
        let mut only = CpuSet::new();
        let cores = match core {
            Some(core) => {
                only.set(core);
                &only
            }
            None => allowed_cores,
        };
        if sched_setaffinity(Some(self.thread), cores).is_ok() {
            self.core.store(core.unwrap_or(ANYWHERE), Ordering::Relaxed);
        }
    }
}

impl Membership {
    /// The core that the thread is kept on.
    pub(super) fn core(&self) -> Option<usize> {
        let core = self.own.core.load(Ordering::Relaxed);
        (core != ANYWHERE).then_some(core)
    }

    /// The cores it may use when it is kept on none.
    pub(super) fn allowed_cores(&self) -> Option<CpuSet> {
        self.own.allowed_cores
    }

    /// Keeps all threads on a core, or lets them run on all; does nothing if another thread moves
    /// them just now.
    pub(super) fn move_all(&self, core: Option<usize>) {
        let Some(members) = self.threads.members.try_lock() else {
            return;
        };
        let members = members.iter().filter_map(Weak::upgrade);
        for other in members.filter(|member| !Arc::ptr_eq(member, &self.own)) {
            other.move_to(core);
        }
        // The calling thread is the last, since it may have to wait for the core.
        self.own.move_to(core);
    }

    /// Whether the calling thread may use a core.
    pub(super) fn may_use(&self, core: usize) -> bool {
        let allowed = |cores: &CpuSet| core < CpuSet::MAX_CPU && cores.is_set(core);
        self.own.allowed_cores.as_ref().is_some_and(allowed)
    }

    /// Keeps the calling thread on a core, unless another thread moves all just now.
    pub(super) fn move_to(&self, core: usize) {
        if let Some(_members) = self.threads.members.try_lock() {
            self.own.move_to(Some(core));
        }
    }

    /// A number that identifies the calling thread.
    pub(super) fn thread(&self) -> u32 {
        self.own.thread.as_raw_nonzero().get().unsigned_abs()
    }

    /// Publishes the caller of this thread to the others.
    pub(super) fn publish_caller(&self, caller: u32) {
        self.publish_caller_at(caller, milliseconds());
    }

    fn publish_caller_at(&self, caller: u32, now: u32) {
        let last_caller = u64::from(caller) << 32 | u64::from(now);
        self.own.last_caller.store(last_caller, Ordering::Relaxed);
    }

    /// Whether no thread has published another caller in the last milliseconds, so many as
    /// `within`; false if the list is locked.
    pub(super) fn is_only_caller(&self, caller: u32, within: u32) -> bool {
        self.is_only_caller_at(caller, within, milliseconds())
    }

    fn is_only_caller_at(&self, caller: u32, within: u32, now: u32) -> bool {
        let Some(members) = self.threads.members.try_lock() else {
            return false;
        };
        members.iter().filter_map(Weak::upgrade).all(|member| {
            let last_caller = member.last_caller.load(Ordering::Relaxed);
            let when = u32::try_from(last_caller & u64::from(u32::MAX)).expect("masked");
            let has_none = last_caller == 0;
            has_none || last_caller >> 32 == u64::from(caller) || now.wrapping_sub(when) > within
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};
    use std::thread;

    use rustix::thread::{CpuSet, sched_getaffinity};

    use super::ServerThreads;

    fn cores() -> CpuSet {
        sched_getaffinity(None).expect("Linux has it")
    }

    #[test]
    fn one_thread_moves_all_others_except_those_that_left() {
        let threads = Arc::new(ServerThreads::new());
        let members = Arc::clone(&threads);
        let (joined, has_joined) = mpsc::channel();
        let (look, looks) = mpsc::channel();
        let (publish_caller, told) = mpsc::channel();
        let other = thread::spawn(move || {
            let membership = members.join();
            joined.send(()).expect("it waits");
            for () in looks {
                publish_caller
                    .send((membership.core(), cores()))
                    .expect("it waits");
            }
            drop(membership);
            cores()
        });
        has_joined.recv().expect("it has joined");
        let mover = thread::spawn(move || {
            let allowed_cores = cores();
            let first = (0..CpuSet::MAX_CPU).find(|&core| allowed_cores.is_set(core));
            let own = threads.join();
            let see = || {
                look.send(()).expect("it waits");
                told.recv().expect("it looks")
            };
            own.move_all(first);
            let (core, kept) = see();
            assert_eq!((core, kept.count()), (first, 1));
            own.move_all(None);
            assert_eq!(see(), (None, allowed_cores));
            drop(look);
            assert_eq!(other.join().expect("no panic"), allowed_cores);
            own.move_all(first);
            let members = own.threads.members.lock();
            let left = members.iter().filter(|member| member.strong_count() > 0);
            assert_eq!(left.count(), 1);
        });
        mover.join().expect("no panic");
    }

    #[test]
    fn a_caller_is_the_only_one_unless_another_was_published_lately() {
        const WITHIN: u32 = 2;
        let threads = Arc::new(ServerThreads::new());
        let (one, other) = (threads.join(), threads.join());
        let now = u32::MAX;
        one.publish_caller_at(7, now);
        assert!(
            one.is_only_caller_at(7, WITHIN, now),
            "nobody else has seen anybody"
        );
        other.publish_caller_at(8, now);
        for later in 0..=WITHIN {
            let later = now.wrapping_add(later);
            assert!(!one.is_only_caller_at(7, WITHIN, later));
            assert!(!other.is_only_caller_at(8, WITHIN, later));
        }
        assert!(
            one.is_only_caller_at(7, WITHIN, now.wrapping_add(WITHIN + 1)),
            "that was long ago"
        );
        other.publish_caller_at(7, now);
        assert!(one.is_only_caller_at(7, WITHIN, now));
    }
}
