//! The number of holds of each inode.
//!
//! Holds are counted separately from the inodes in memory: a kernel that caches millions of names
//! holds as many inodes, and only a number for each must stay in memory. The counts are in pages,
//! indexed by inode number, that are allocated when one of their inodes is first loaded. A page is
//! never freed, so the memory is at most four bytes per inode of the image. Every count is atomic;
//! [`Inode::claim_reaping`](super::Inode::claim_reaping) says how they are ordered against an
//! inode's links.

use std::sync::OnceLock;

use pext4_ondisk::InodeNumber;
use pext4_sync::Bits;
use pext4_sync::atomic::{AtomicU32, Ordering};

/// Counts of a page: of as many inodes as a line of their group's bits has, since cores that create
/// files take them from different lines.
const PER_PAGE: usize = Bits::LINE as usize;
/// Counts on one cache line.
const PER_LINE: usize = 16;

/// Where the count with this index lies in its page: neighbours lie on different lines, since the
/// files that one thread creates or walks through are neighbours of those of the next thread.
const fn place(index: usize) -> usize {
    let lines = PER_PAGE / PER_LINE;
    let within = index % PER_PAGE;
    within % lines * PER_LINE + within / lines
}

/// The index of an inode's count; that of the first inode is 0, as in its group's bits.
const fn index_of(inode: InodeNumber) -> usize {
    inode.0.saturating_sub(1) as usize
}

/// Aligned so that it shares no cache line with data that every core reads.
#[repr(align(64))]
struct Page([AtomicU32; PER_PAGE]);

/// The holds on all inodes of a volume.
pub struct Holds {
    pages: Box<[OnceLock<Box<Page>>]>,
}

impl Holds {
    /// No holds on any of `inodes` inodes.
    pub(super) fn new(inodes: u32) -> Self {
        let pages = (inodes as usize).div_ceil(PER_PAGE).max(1);
        Self {
            pages: (0..pages).map(|_| OnceLock::new()).collect(),
        }
    }

    /// Allocates the page of an inode that is being loaded. So whoever takes the first hold in a
    /// page, and whoever looks for one at the same time, find the page: it is only the counts whose
    /// order matters.
    pub(super) fn prepare(&self, inode: InodeNumber) {
        self.page(inode);
    }

    fn page(&self, inode: InodeNumber) -> &Page {
        self.pages[index_of(inode) / PER_PAGE]
            .get_or_init(|| Box::new(Page(std::array::from_fn(|_| AtomicU32::new(0)))))
    }

    fn count(&self, inode: InodeNumber) -> &AtomicU32 {
        &self.page(inode).0[place(index_of(inode))]
    }

    /// Adds one hold. A count that reaches its maximum stays there.
    pub(super) fn take(&self, inode: InodeNumber) {
        let _ = self
            .count(inode)
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |held| {
                held.checked_add(1)
            });
    }

    /// Removes `count` holds; true if none is left.
    pub(super) fn give(&self, inode: InodeNumber, count: u64) -> bool {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let before = self
            .count(inode)
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |held| {
                Some(if held == u32::MAX && count < u32::MAX {
                    held
                } else {
                    held.saturating_sub(count)
                })
            });
        before.is_ok_and(|before| before <= count)
    }

    /// All inodes that are held.
    pub(crate) fn all(&self) -> Vec<InodeNumber> {
        let mut held = Vec::new();
        for (page, first) in self.pages.iter().zip((1..).step_by(PER_PAGE)) {
            let Some(page) = page.get() else {
                continue;
            };
            for (index, number) in (first..).take(PER_PAGE).enumerate() {
                if page.0[place(index)].load(Ordering::SeqCst) > 0 {
                    held.push(InodeNumber(number));
                }
            }
        }
        held
    }

    /// Whether the inode has no holds.
    pub(crate) fn is_free(&self, inode: InodeNumber) -> bool {
        // A damaged directory may name an inode behind the last.
        let index = index_of(inode);
        let page = self.pages.get(index / PER_PAGE).and_then(OnceLock::get);
        page.is_none_or(|page| page.0[place(index)].load(Ordering::SeqCst) == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::{Holds, InodeNumber, PER_LINE, PER_PAGE, index_of, place};

    #[test]
    fn holds_are_counted_by_inode() {
        let holds = Holds::new(5000);
        let (first, last) = (InodeNumber(1), InodeNumber(5000));
        assert!(holds.is_free(last));
        holds.take(last);
        holds.take(last);
        assert!(holds.is_free(first) && !holds.is_free(last));
        holds.take(InodeNumber(7));
        assert_eq!(holds.all(), [InodeNumber(7), last]);
        assert!(holds.give(InodeNumber(7), 1));
        assert_eq!(holds.all(), [last]);
        assert!(!holds.give(last, 1));
        assert!(holds.give(last, 1));
        assert!(holds.is_free(last));
        assert!(
            holds.is_free(InodeNumber(u32::MAX)),
            "there is no such inode"
        );
    }

    #[test]
    fn inodes_of_one_line_of_bits_share_no_line_with_others() {
        assert_eq!(index_of(InodeNumber(512)) / PER_PAGE, 0);
        assert_eq!(index_of(InodeNumber(513)) / PER_PAGE, 1);
    }

    #[test]
    fn neighbours_lie_on_different_lines() {
        let mut places: Vec<usize> = (0..PER_PAGE).map(place).collect();
        for pair in places.windows(PER_LINE) {
            let mut lines: Vec<usize> = pair.iter().map(|place| place / PER_LINE).collect();
            lines.sort_unstable();
            lines.dedup();
            assert_eq!(lines.len(), PER_LINE);
        }
        places.sort_unstable();
        assert!(
            places.into_iter().eq(0..PER_PAGE),
            "each has a place of its own"
        );
    }

    #[test]
    fn more_given_back_than_taken_is_none() {
        let holds = Holds::new(10);
        holds.take(InodeNumber(3));
        assert!(holds.give(InodeNumber(3), u64::MAX));
        assert!(holds.give(InodeNumber(3), 1));
        assert!(holds.is_free(InodeNumber(3)));
    }
}

#[cfg(all(test, loom))]
mod models {
    //! An inode of which only links, holds and the mark of the thread that reaps it exist.

    use std::sync::Arc;

    use pext4_sync::{Class, Mutex, thread};

    use super::{Holds, InodeNumber};

    const INODE: InodeNumber = InodeNumber(7);

    #[derive(Default)]
    struct State {
        links: u32,
        dead: bool,
    }

    struct Model {
        holds: Holds,
        state: Mutex<State>,
    }

    impl Model {
        /// With one link and this many holds.
        fn new(holds: u64) -> Arc<Self> {
            let state = State {
                links: 1,
                dead: false,
            };
            let model = Self {
                holds: Holds::new(10),
                state: Mutex::new(Class::Leaf, state),
            };
            (0..holds).for_each(|_| model.holds.take(INODE));
            Arc::new(model)
        }

        /// As `Inode::claim_reaping`.
        fn claim_reaping(&self) -> bool {
            let mut state = self.state.lock();
            let due = state.links == 0 && !state.dead && self.holds.is_free(INODE);
            state.dead |= due;
            due
        }

        fn unlink(&self) -> bool {
            self.state.lock().links = 0;
            self.claim_reaping()
        }

        fn forget(&self) -> bool {
            self.holds.give(INODE, 1) && self.state.lock().links == 0 && self.claim_reaping()
        }
    }

    #[test]
    fn one_thread_reaps_when_the_last_link_and_hold_go_at_once() {
        pext4_sync::model(|| {
            let model = Model::new(1);
            let beside = Arc::clone(&model);
            let other = thread::spawn("other", move || beside.forget());
            let mine = model.unlink();
            let others = other.join().expect("it does not panic");
            assert!(mine != others, "exactly one of them reaps the inode");
        });
    }

    #[test]
    fn one_thread_reaps_when_several_give_back_the_last_holds() {
        pext4_sync::model(|| {
            let model = Model::new(2);
            let forgetters = [(); 2].map(|()| {
                let beside = Arc::clone(&model);
                thread::spawn("forgetter", move || beside.forget())
            });
            let mine = model.unlink();
            let others = forgetters.map(|thread| thread.join().expect("it does not panic"));
            let claims = [mine, others[0], others[1]];
            assert_eq!(claims.iter().filter(|&&claimed| claimed).count(), 1);
        });
    }
}
