//! Ranges of append-only files that wait for their bytes.
//!
//! The kernel opens files without asking the server, so the server checks that writes to an
//! append-only file only append: bytes inside the file must be those that are there already. But
//! the kernel writes its cached pages in no certain order, and `fallocate` lengthens a file whose
//! last bytes are still in the cache. So when the file grows past bytes that nobody has written,
//! these are a *gap*, and the bytes that come for a gap are new ones. A gap ends where bytes are
//! written to it, and all gaps of a file when the kernel forgets it, after it has written
//! everything.
//!
//! Locking: none across calls. A writer adds the gap that it leaves before it writes, and then
//! looks at the size again; it fills the gaps that it writes to both before and after it writes. So
//! whichever of two writers is first, what one has written is in no gap that the other has added.

use std::collections::HashMap;
use std::ops::Range;

use pext4_fs::InodeNumber;
use pext4_sync::atomic::{AtomicBool, Ordering};
use pext4_sync::{Class, Mutex};

/// Maximum number of gaps of a file.
const MAX_GAPS: usize = 16 << 10;

/// The gaps of all files that have some.
pub struct AppendGaps {
    files: Mutex<HashMap<InodeNumber, Vec<Range<u64>>>>,
    /// Whether there may be any, so that a file that is forgotten mostly costs one load only.
    /// [atomic; written under `files`]
    has_any: AtomicBool,
}

impl AppendGaps {
    /// No gaps.
    pub fn new() -> Self {
        Self {
            files: Mutex::new(Class::Leaf, HashMap::new()),
            has_any: AtomicBool::new(false),
        }
    }

    /// Adds a gap. If the file has too many, the oldest ends: the kernel has most likely written
    /// what it had for that.
    pub fn add(&self, inode: InodeNumber, gap: Range<u64>) {
        if gap.is_empty() {
            return;
        }
        let mut files = self.files.lock();
        self.has_any.store(true, Ordering::Release);
        let gaps = files.entry(inode).or_default();
        match gaps.last_mut() {
            Some(last) if gap.start <= last.end && last.start <= gap.end => {
                *last = last.start.min(gap.start)..last.end.max(gap.end);
            }
            _ => {
                if gaps.len() == MAX_GAPS {
                    gaps.remove(0);
                }
                gaps.push(gap);
            }
        }
    }

    /// Ends the gaps in a range, and returns the parts of it that were in gaps, in order and apart
    /// from each other.
    pub fn fill(&self, inode: InodeNumber, range: &Range<u64>) -> Vec<Range<u64>> {
        let mut files = self.files.lock();
        let Some(gaps) = files.get_mut(&inode) else {
            return Vec::new();
        };
        let mut filled = Vec::new();
        let mut left = Vec::new();
        for gap in gaps.drain(..) {
            let part = gap.start.max(range.start)..gap.end.min(range.end);
            if part.is_empty() {
                left.push(gap);
                continue;
            }
            left.extend([gap.start..part.start, part.end..gap.end]);
            filled.push(part);
        }
        left.retain(|gap| !gap.is_empty());
        match left.is_empty() {
            true => drop(files.remove(&inode)),
            false => *gaps = left,
        }
        joined(filled)
    }

    /// Forgets all gaps of a file.
    pub fn forget(&self, inode: InodeNumber) {
        self.files.lock().remove(&inode);
    }

    /// Forgets all gaps of a file if nobody holds it now: who adds one holds the file.
    pub fn forget_unless(&self, inode: InodeNumber, is_held: impl FnOnce() -> bool) {
        if !self.has_any.load(Ordering::Acquire) {
            return;
        }
        let mut files = self.files.lock();
        if !is_held() {
            files.remove(&inode);
        }
        self.has_any.store(!files.is_empty(), Ordering::Release);
    }
}

/// The same bytes, as ranges in order that do not meet.
fn joined(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut joined: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match joined.last_mut() {
            Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::{AppendGaps, InodeNumber, MAX_GAPS};

    const FILE: InodeNumber = InodeNumber(12);

    #[test]
    fn a_gap_ends_where_it_is_filled() {
        let gaps = AppendGaps::new();
        assert_eq!(gaps.fill(FILE, &(0..100)), []);
        gaps.add(FILE, 10..30);
        gaps.add(FILE, 20..50);
        gaps.add(FILE, 70..80);
        assert_eq!(gaps.fill(InodeNumber(13), &(0..100)), []);
        assert_eq!(gaps.fill(FILE, &(0..25)), vec![10..25], "they overlap");
        assert_eq!(gaps.fill(FILE, &(40..75)), [40..50, 70..75]);
        assert_eq!(gaps.fill(FILE, &(0..100)), [25..40, 75..80]);
        assert_eq!(gaps.fill(FILE, &(0..100)), []);
        assert!(gaps.files.lock().is_empty());
    }

    #[test]
    fn gaps_are_forgotten_with_the_file_and_the_oldest_of_too_many() {
        let gaps = AppendGaps::new();
        let end = 4 * MAX_GAPS as u64;
        for start in (0..end).step_by(2) {
            gaps.add(FILE, start..start + 1);
        }
        assert_eq!(gaps.files.lock()[&FILE].len(), MAX_GAPS);
        assert_eq!(gaps.fill(FILE, &(0..1)), []);
        assert_eq!(gaps.fill(FILE, &(end - 2..end)), vec![end - 2..end - 1]);
        gaps.forget_unless(FILE, || true);
        assert_eq!(gaps.files.lock().len(), 1);
        gaps.forget_unless(FILE, || {
            assert!(gaps.files.try_lock().is_none(), "no gap can be added now");
            false
        });
        assert!(gaps.files.lock().is_empty());
        gaps.forget_unless(FILE, || unreachable!("there are no gaps"));
    }

    #[test]
    fn gaps_that_meet_are_one() {
        let gaps = AppendGaps::new();
        for part in [10..20, 20..30, 5..12] {
            gaps.add(FILE, part);
        }
        assert_eq!(gaps.files.lock()[&FILE], vec![5..30]);
    }
}
