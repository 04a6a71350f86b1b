//! The number of holds of each inode.
//!
//! Holds are counted separately from the inodes in memory: a kernel that caches millions of names
//! holds as many inodes, and only a number for each must stay in memory. The counts of each group
//! are in pages that are allocated when one of their inodes is first loaded. A page is never freed,
//! so the memory is at most four bytes per inode of the image, but for the ends of groups. Every
//! count is atomic; [`Inode::claim_reaping`](super::Inode::claim_reaping) says how they are ordered
//! against an inode's links.

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
/// files that one thread creates or walks through are neighbours of those of the next thread. Each
/// row of lines is turned a little against the row before, since threads that create equally many
/// files are often a power of two apart.
const fn place(index: usize) -> usize {
    const LINES: usize = PER_PAGE / PER_LINE;
    const TURN: usize = 7;
    let row = index / LINES;
    (index + row * TURN) % LINES * PER_LINE + row
}

/// Aligned so that it shares no cache line with data that every core reads.
#[repr(align(64))]
struct Page([AtomicU32; PER_PAGE]);

/// The holds on all inodes of a volume.
pub struct Holds {
    inodes_per_group: usize,
    pages_per_group: usize,
    pages: Box<[OnceLock<Box<Page>>]>,
}

impl Holds {
    /// No holds on any inode of so many groups of so many inodes.
    pub(super) fn new(groups: u32, inodes_per_group: u32) -> Self {
        let inodes_per_group = inodes_per_group.max(1) as usize;
        let pages_per_group = inodes_per_group.div_ceil(PER_PAGE);
        let pages = groups as usize * pages_per_group;
        Self {
            inodes_per_group,
            pages_per_group,
            pages: (0..pages).map(|_| OnceLock::new()).collect(),
        }
    }

    /// The number of an inode's page, and the place of its count there.
    fn place_of(&self, inode: InodeNumber) -> (usize, usize) {
        let index = inode.get().saturating_sub(1) as usize;
        let (group, within) = (index / self.inodes_per_group, index % self.inodes_per_group);
        let page = group * self.pages_per_group + within / PER_PAGE;
        (page, place(within % PER_PAGE))
    }

    /// Allocates the page of an inode that is being loaded. So whoever takes the first hold in a
    /// page, and whoever looks for one at the same time, find the page: it is only the counts whose
    /// order matters.
    pub(super) fn prepare(&self, inode: InodeNumber) {
        self.count(inode);
    }

    fn count(&self, inode: InodeNumber) -> &AtomicU32 {
        let (page, place) = self.place_of(inode);
        let page = self.pages[page]
            .get_or_init(|| Box::new(Page(std::array::from_fn(|_| AtomicU32::new(0)))));
        &page.0[place]
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
        for (number, page) in self.pages.iter().enumerate() {
            let Some(page) = page.get() else {
                continue;
            };
            let group = number / self.pages_per_group * self.inodes_per_group;
            let first = group + number % self.pages_per_group * PER_PAGE;
            for index in 0..PER_PAGE {
                if page.0[place(index)].load(Ordering::SeqCst) > 0 {
                    let inode = u32::try_from(first + index + 1);
                    held.push(InodeNumber(inode.expect("it was held by its number")));
                }
            }
        }
        held
    }

    /// Whether the inode has no holds.
    pub(crate) fn is_free(&self, inode: InodeNumber) -> bool {
        // A damaged directory may name an inode behind the last.
        let (page, place) = self.place_of(inode);
        let page = self.pages.get(page).and_then(OnceLock::get);
        page.is_none_or(|page| page.0[place].load(Ordering::SeqCst) == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::{Holds, InodeNumber, PER_LINE, PER_PAGE, place};

    #[test]
    fn holds_are_counted_by_inode() {
        let holds = Holds::new(5, 1000);
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
        let holds = Holds::new(3, 1000);
        let page = |inode| holds.place_of(InodeNumber(inode)).0;
        assert_eq!([1, 512, 513, 1000].map(page), [0, 0, 1, 1]);
        assert_eq!([1001, 1512, 1513, 3000].map(page), [2, 2, 3, 5]);
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
        for distance in [32, 64, 128, 256] {
            let pairs = places.iter().zip(&places[distance..]);
            assert!(
                pairs
                    .clone()
                    .all(|(one, other)| one / PER_LINE != other / PER_LINE)
            );
        }
        places.sort_unstable();
        assert!(
            places.into_iter().eq(0..PER_PAGE),
            "each has a place of its own"
        );
    }

    #[test]
    fn more_given_back_than_taken_is_none() {
        let holds = Holds::new(1, 10);
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
                holds: Holds::new(1, 10),
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
