//! The threads that serve one mount: what each saw last, and where all of them run.
//!
//! The kernel gives a request to the thread that has waited longest. If one stayed behind where the caller was before,
//! its core would be woken for every other call, and a thread that always comes too late gets no call at which it could
//! move. So who moves moves all.
//!
//! The list's lock is a leaf, taken where a thread begins and looks; all places change under it. Who finds it held
//! does without: its holder may be one that gives way to everybody and waits for a core. Between two looks a thread
//! reads its own place only, which is a cache line of its own. The list does not own its members: one that has
//! ended is passed over (where thread-local values are dropped, no lock can be taken any more). That its number is
//! another thread's by the time it is moved would take all numbers to be given out within that moment.

use std::sync::{Arc, Weak};

use pext4_sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use pext4_sync::order::Class;
use pext4_sync::{CachePadded, Mutex};
use rustix::thread::{CpuSet, Pid, gettid, sched_getaffinity, sched_setaffinity};

use super::callers::milliseconds;

/// For how long what a thread saw counts for the others.
const RECENT_MS: u32 = 2;
/// In place of a core: the thread runs wherever there is room.
const ANYWHERE: usize = usize::MAX;

/// The threads of one mount.
pub(super) struct Together {
    members: Mutex<Vec<Weak<CachePadded<Member>>>>,
}

/// One of them.
struct Member {
    /// [immutable]
    thread: Pid,
    /// [immutable] The cores it may use at all; `None` if the system does not say.
    everywhere: Option<CpuSet>,
    core: AtomicUsize,
    /// The caller at its last look, and when in milliseconds.
    seen: AtomicU64,
}

/// The calling thread as one of them, until it is dropped.
pub(super) struct Membership {
    together: Arc<Together>,
    own: Arc<CachePadded<Member>>,
}

impl Together {
    pub(super) fn new() -> Self {
        Self {
            members: Mutex::new(Class::Leaf, Vec::new()),
        }
    }

    /// Makes the calling thread one of them, which runs wherever there is room.
    pub(super) fn join(self: &Arc<Self>) -> Membership {
        let own = Arc::new(CachePadded::new(Member {
            thread: gettid(),
            everywhere: sched_getaffinity(None).ok(),
            core: AtomicUsize::new(ANYWHERE),
            seen: AtomicU64::new(0),
        }));
        let mut members = self.members.lock();
        members.retain(|member| member.strong_count() > 0);
        members.push(Arc::downgrade(&own));
        drop(members);
        Membership {
            together: Arc::clone(self),
            own,
        }
    }
}

impl Member {
    /// Moves the thread. Called under the list's lock.
    fn move_to(&self, core: Option<usize>) {
        let Some(everywhere) = &self.everywhere else {
            return;
        };
        let core = core.filter(|&core| core < CpuSet::MAX_CPU && everywhere.is_set(core));
        let mut only = CpuSet::new();
        let cores = match core {
            Some(core) => {
                only.set(core);
                &only
            }
            None => everywhere,
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
    pub(super) fn everywhere(&self) -> Option<CpuSet> {
        self.own.everywhere
    }

    /// Keeps all threads on a core, or lets them run anywhere; nothing where another one moves them.
    pub(super) fn move_all(&self, core: Option<usize>) {
        let Some(members) = self.together.members.try_lock() else {
            return;
        };
        let members = members.iter().filter_map(Weak::upgrade);
        for other in members.filter(|member| !Arc::ptr_eq(member, &self.own)) {
            other.move_to(core);
        }
        // The last, since it may have to wait there.
        self.own.move_to(core);
    }

    /// Tells the others of this one's caller.
    pub(super) fn tell(&self, caller: u32) {
        self.tell_at(caller, milliseconds());
    }

    fn tell_at(&self, caller: u32, now: u32) {
        let seen = u64::from(caller) << 32 | u64::from(now);
        self.own.seen.store(seen, Ordering::Relaxed);
    }

    /// Whether no other thread has seen another caller lately, as far as can be told.
    pub(super) fn agree(&self, caller: u32) -> bool {
        self.agree_at(caller, milliseconds())
    }

    fn agree_at(&self, caller: u32, now: u32) -> bool {
        let Some(members) = self.together.members.try_lock() else {
            return false;
        };
        members.iter().filter_map(Weak::upgrade).all(|member| {
            let seen = member.seen.load(Ordering::Relaxed);
            let when = u32::try_from(seen & u64::from(u32::MAX)).expect("masked");
            seen >> 32 == u64::from(caller) || now.wrapping_sub(when) > RECENT_MS
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};
    use std::thread;

    use rustix::thread::{CpuSet, sched_getaffinity};

    use super::{RECENT_MS, Together};

    fn cores() -> CpuSet {
        sched_getaffinity(None).expect("Linux has it")
    }

    #[test]
    fn all_move_with_one_but_not_who_has_left() {
        let together = Arc::new(Together::new());
        let members = Arc::clone(&together);
        let (joined, has_joined) = mpsc::channel();
        let (look, looks) = mpsc::channel();
        let (tell, told) = mpsc::channel();
        let other = thread::spawn(move || {
            let membership = members.join();
            joined.send(()).expect("it waits");
            for () in looks {
                tell.send((membership.core(), cores())).expect("it waits");
            }
            drop(membership);
            cores()
        });
        has_joined.recv().expect("it has joined");
        let mover = thread::spawn(move || {
            let everywhere = cores();
            let first = (0..CpuSet::MAX_CPU).find(|&core| everywhere.is_set(core));
            let own = together.join();
            let see = || {
                look.send(()).expect("it waits");
                told.recv().expect("it looks")
            };
            own.move_all(first);
            let (core, kept) = see();
            assert_eq!((core, kept.count()), (first, 1));
            own.move_all(None);
            assert_eq!(see(), (None, everywhere));
            drop(look);
            assert_eq!(other.join().expect("no panic"), everywhere);
            own.move_all(first);
            let members = own.together.members.lock();
            let left = members.iter().filter(|member| member.strong_count() > 0);
            assert_eq!(left.count(), 1);
        });
        mover.join().expect("no panic");
    }

    #[test]
    fn who_saw_another_caller_lately_disagrees() {
        let together = Arc::new(Together::new());
        let (one, other) = (together.join(), together.join());
        let now = u32::MAX;
        one.tell_at(7, now);
        assert!(one.agree_at(7, now), "nobody else has seen anybody");
        other.tell_at(8, now);
        for later in 0..=RECENT_MS {
            let later = now.wrapping_add(later);
            assert!(!one.agree_at(7, later) && !other.agree_at(8, later));
        }
        assert!(
            one.agree_at(7, now.wrapping_add(RECENT_MS + 1)),
            "that was long ago"
        );
        other.tell_at(7, now);
        assert!(one.agree_at(7, now));
    }
}
