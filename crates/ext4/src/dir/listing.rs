//! Listing a directory in an order that insertions and removals do not disturb.
//!
//! A cookie is the position at which a listing continues. 0 is `.`, 1 is `..`, and every other
//! entry has a cookie that is computed only from its name: the upper 31 bits of the hash that
//! orders the index, then 32 bits of a hash with a key chosen at mount. An entry that exists
//! throughout a listing is returned exactly once, whatever is inserted, removed, split or indexed
//! between two calls. Linear directories use the same cookies, since they may become indexed at any
//! time.
//!
//! Linux uses the index's minor hash where we use the keyed one. The minor hash is zero for the
//! legacy hash and can be forged for the others, so an image could contain more names with one
//! cookie than a reply has room for.
//!
//! A leaf that cannot be read is skipped. Names in it after the damage are missing from the
//! listing, other names are not, and its error is returned after everything else was listed. If too
//! many leaves are damaged, the listing ends.
//!
//! Memory: names are gathered leaf by leaf (with the leaves that continue a run of equal hashes),
//! and at most [`BUDGET`] bytes of them are kept, those with the lowest cookies. A linear directory
//! is gathered as a whole under the same limit. If it has more than a few blocks, its names are
//! sorted once and the order is kept (`ordered`); if it is too long for that, it is read again for
//! each batch.

mod ordered;

use std::hash::Hasher as _;

use pext4_ondisk::InodeNumber;
use pext4_ondisk::directory::Entry;
use pext4_ondisk::dirhash::Hasher;

use super::blocks::{self, BlockKind, DirectoryBlocks};
use super::index::{Path, Seek};
use super::{corrupt_in, is_dot, leaf, linear, parent};
use crate::error::{Error, Result};
use crate::inode::name_orders::MAX_DIRECTORY_BYTES;
use crate::types::FileType;

/// No entry has this cookie or a higher one.
pub const COOKIE_END: u64 = i64::MAX as u64;
const COOKIE_DOT: u64 = 0;
const COOKIE_DOT_DOT: u64 = 1;
const COOKIE_FIRST: u64 = 2;
/// Maximum bytes of gathered entries; beyond it, those with the highest cookies are dropped again.
const BUDGET: usize = 256 << 10;
/// Maximum number of unreadable leaves that a listing skips.
const MAX_SKIPPED_LEAVES: u32 = 1000;

/// One entry of a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed<'a> {
    /// The inode to which it refers.
    pub inode: InodeNumber,
    /// The kind of file, if the directory stores it.
    pub file_type: Option<FileType>,
    /// The name's bytes.
    pub name: &'a [u8],
    /// The entry's own cookie: a listing from it starts with this entry.
    pub cookie: u64,
    /// The cookie with which a listing continues after this entry: `cookie + 1`, or `cookie` itself
    /// if more entries with the same cookie follow.
    pub next_cookie: u64,
}

impl Listed<'_> {
    /// Whether it is an entry `.` or `..` that is not the directory's own.
    pub fn is_stray_dot(&self) -> bool {
        self.cookie >= COOKIE_FIRST && is_dot(self.name)
    }
}

/// Calls `visit` with the entries whose cookies are `from` or higher, in the order of their
/// cookies, until it returns false. The entry for which it returned false counts as not listed.
///
/// Entries that share a cookie are listed one after the other, and only the last of them has a
/// higher `next_cookie`. A caller that divides a listing into replies must put all of them into
/// one: if the last does not fit, the reply ends before the first, or the next reply lists them
/// again.
///
/// `visit` runs under the directory's lock and must not use the directory.
///
/// # Errors
///
/// `Corrupt` for impossible bytes on the path; errors of the blocks. An error of a leaf is returned
/// after the visitor has returned false or seen the rest of the directory; a listing that continues
/// after that leaf does not report it again.
pub fn list<B: DirectoryBlocks>(
    blocks: &B,
    from: u64,
    visit: &mut dyn FnMut(Listed<'_>) -> bool,
) -> Result<()> {
    let limits = Limits {
        gathered: BUDGET,
        ordered: MAX_DIRECTORY_BYTES,
    };
    list_within(blocks, from, limits, visit)
}

/// Limits on the memory of a listing.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    /// Maximum bytes of gathered entries.
    pub gathered: usize,
    /// Maximum bytes of a directory whose order is kept.
    pub ordered: u64,
}

/// As [`list`], within the given limits.
pub(super) fn list_within<B: DirectoryBlocks>(
    blocks: &B,
    from: u64,
    limits: Limits,
    visit: &mut dyn FnMut(Listed<'_>) -> bool,
) -> Result<()> {
    if !list_dots(blocks, from, visit)? {
        return Ok(());
    }
    let from = from.max(COOKIE_FIRST);
    match ordered::list(blocks, from, limits.ordered, visit)? {
        Some(from) => list_batches(blocks, from, limits.gathered, visit),
        None => Ok(()),
    }
}

fn list_batches<B: DirectoryBlocks>(
    blocks: &B,
    mut from: u64,
    budget: usize,
    visit: &mut dyn FnMut(Listed<'_>) -> bool,
) -> Result<()> {
    let mut skipped = SkippedLeaves::default();
    while from < COOKIE_END {
        let mut batch = Batch::new(from, budget, skipped);
        let unread = gather(blocks, &mut batch);
        skipped = std::mem::take(&mut batch.skipped);
        let wants_more = batch.visit_all(visit);
        let Some(next) = batch.cut.or(unread?).filter(|_| wants_more) else {
            break;
        };
        debug_assert!(next > from, "each batch advances");
        from = next;
    }
    skipped.error.map_or(Ok(()), Err)
}

/// Lists `.` and `..` if `from` includes them; false if the visitor returned false.
fn list_dots<B: DirectoryBlocks>(
    blocks: &B,
    from: u64,
    visit: &mut dyn FnMut(Listed<'_>) -> bool,
) -> Result<bool> {
    let dot = |inode, name, cookie| Listed {
        inode,
        file_type: Some(FileType::Directory),
        name,
        cookie,
        next_cookie: cookie + 1,
    };
    if from == COOKIE_DOT && !visit(dot(blocks.inode(), b".", COOKIE_DOT)) {
        return Ok(false);
    }
    if from <= COOKIE_DOT_DOT && !visit(dot(parent(blocks)?, b"..", COOKIE_DOT_DOT)) {
        return Ok(false);
    }
    Ok(true)
}

/// Fills a batch. Returns the cookie from which on there may be entries that were not read yet.
fn gather<B: DirectoryBlocks>(blocks: &B, batch: &mut Batch) -> Result<Option<u64>> {
    let key = blocks.settings().cookie_key;
    match Path::descend_if_sound(blocks, Seek::Hash(major_of(batch.from)))? {
        Some(path) => gather_run(blocks, path, key, batch),
        None => {
            let hasher = blocks.settings().listing_hasher();
            for block in linear::leaves(blocks) {
                let read = linear::for_each_in(blocks, block, |entry| {
                    let major = blocks::hash(&hasher, entry.name);
                    batch.add(cookie(major, key, entry.name), entry);
                });
                batch.skipped.note(read)?;
            }
            Ok(None)
        }
    }
}

/// Gathers the leaf at the end of a path, and those that continue its last run of equal hashes.
fn gather_run<B: DirectoryBlocks>(
    blocks: &B,
    mut path: Path,
    key: u64,
    batch: &mut Batch,
) -> Result<Option<u64>> {
    let hasher: Hasher = path.hasher();
    for _ in 0..blocks.count() {
        let (lowest, highest) = path.leaf_range(blocks)?;
        let read = leaf::for_each(blocks, path.leaf(), BlockKind::Leaf, |entry| {
            // A name in the wrong leaf (its hash was computed with the other signedness of `char`)
            // is listed where it is rather than not at all.
            let major = blocks::hash(&hasher, entry.name).clamp(lowest, highest);
            batch.add(cookie(major, key, entry.name), entry);
        });
        batch.skipped.note(read)?;
        match path.next_hash() {
            None => return Ok(None),
            Some(next) if next & 1 == 0 => return Ok(Some(cookie_of_major(next))),
            Some(_) => path.advance(blocks)?,
        }
    }
    Err(corrupt_in(
        blocks,
        path.leaf(),
        "is in an index that leads in circles",
    ))
}

fn cookie_of_major(major: u32) -> u64 {
    u64::from(major >> 1) << 32
}

fn major_of(cookie: u64) -> u32 {
    u32::try_from(cookie >> 32 << 1 & u64::from(u32::MAX)).expect("32 bits are left")
}

fn cookie(major: u32, key: u64, name: &[u8]) -> u64 {
    let mut keyed = std::hash::DefaultHasher::new();
    keyed.write_u64(key);
    keyed.write(name);
    let minor = keyed.finish() & u64::from(u32::MAX);
    (cookie_of_major(major) | minor).clamp(COOKIE_FIRST, COOKIE_END - 1)
}

/// The entries with the lowest cookies from `from` on.
struct Batch {
    from: u64,
    budget: usize,
    entries: Vec<Gathered>,
    names: Vec<u8>,
    /// The lowest cookie of which entries were dropped.
    cut: Option<u64>,
    skipped: SkippedLeaves,
}

/// Leaves that could not be read.
#[derive(Default)]
struct SkippedLeaves {
    count: u32,
    /// The error of the first one.
    error: Option<Error>,
}

impl SkippedLeaves {
    /// Records a leaf that cannot be read, because of the device or its bytes. Fails if there are
    /// too many.
    fn note(&mut self, read: Result<()>) -> Result<()> {
        let error = match read {
            Err(error @ (Error::Corrupt(_) | Error::Io(_))) => error,
            read => return read,
        };
        self.count += 1;
        if self.count > MAX_SKIPPED_LEAVES {
            return Err(self.error.take().unwrap_or(error));
        }
        self.error.get_or_insert(error);
        Ok(())
    }
}

struct Gathered {
    cookie: u64,
    inode: InodeNumber,
    file_type: Option<FileType>,
    start: usize,
    length: usize,
}

impl Batch {
    fn new(from: u64, budget: usize, skipped: SkippedLeaves) -> Self {
        Self {
            from,
            budget,
            entries: Vec::new(),
            names: Vec::new(),
            cut: None,
            skipped,
        }
    }

    fn add(&mut self, cookie: u64, entry: &Entry<'_>) {
        if cookie < self.from || self.cut.is_some_and(|cut| cookie >= cut) {
            return;
        }
        self.entries.push(Gathered {
            cookie,
            inode: entry.inode,
            file_type: entry.file_type,
            start: self.names.len(),
            length: entry.name.len(),
        });
        self.names.extend_from_slice(entry.name);
        if self.names.len() + self.entries.len() * size_of::<Gathered>() > self.budget {
            self.shrink();
        }
    }

    /// Drops the entries of the upper half, but never only some of those that share a cookie.
    fn shrink(&mut self) {
        self.entries.sort_by_key(|entry| entry.cookie);
        let middle = self.entries[self.entries.len() / 2].cookie;
        let mut kept = self.entries.partition_point(|entry| entry.cookie < middle);
        if kept == 0 {
            kept = self.entries.partition_point(|entry| entry.cookie <= middle);
        }
        match self.entries.get(kept) {
            Some(first_dropped) => self.cut = Some(first_dropped.cookie),
            None => self.budget *= 2,
        }
        self.entries.truncate(kept);
        self.pack_names();
    }

    fn pack_names(&mut self) {
        let mut packed = Vec::with_capacity(self.names.len());
        for entry in &mut self.entries {
            let name = &self.names[entry.start..entry.start + entry.length];
            entry.start = packed.len();
            packed.extend_from_slice(name);
        }
        self.names = packed;
    }

    /// Visits the entries in the order of their cookies; false if the visitor returned false.
    fn visit_all(&mut self, visit: &mut dyn FnMut(Listed<'_>) -> bool) -> bool {
        self.entries.sort_by_key(|entry| entry.cookie);
        for (index, entry) in self.entries.iter().enumerate() {
            let follower = self.entries.get(index + 1);
            let shared = follower.is_some_and(|follower| follower.cookie == entry.cookie);
            let listed = Listed {
                inode: entry.inode,
                file_type: entry.file_type,
                name: &self.names[entry.start..entry.start + entry.length],
                cookie: entry.cookie,
                next_cookie: entry.cookie + u64::from(!shared),
            };
            if !visit(listed) {
                return false;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::{Batch, Entry, InodeNumber, cookie_of_major, major_of};

    fn visited(batch: &mut Batch) -> Vec<(u64, u64)> {
        let mut visited = Vec::new();
        batch.visit_all(&mut |entry| {
            assert_eq!(entry.name, entry.inode.get().to_string().as_bytes());
            visited.push((entry.cookie, entry.next_cookie));
            true
        });
        visited
    }

    fn batch_of(cookies: &[u64], budget: usize) -> Batch {
        let mut batch = Batch::new(10, budget, super::SkippedLeaves::default());
        for (number, &cookie) in (1..).zip(cookies) {
            let name = u32::to_string(&number);
            let inode = InodeNumber(number);
            batch.add(
                cookie,
                &Entry {
                    inode,
                    file_type: None,
                    name: name.as_bytes(),
                },
            );
        }
        batch
    }

    #[test]
    fn only_the_last_of_a_shared_cookie_advances() {
        let mut batch = batch_of(&[30, 9, 20, 30, 10, 20, 20], 1 << 20);
        let expected = [(10, 11), (20, 20), (20, 20), (20, 21), (30, 30), (30, 31)];
        assert_eq!(visited(&mut batch), expected);
        assert_eq!(batch.cut, None);
    }

    #[test]
    fn a_shared_cookie_is_never_cut_in_two() {
        let cookies: Vec<u64> = [50, 40, 40, 40, 40, 40, 40, 40, 40, 60, 70, 80].repeat(20);
        let mut batch = batch_of(&cookies, 3000);
        let cut = batch.cut.expect("it is over the limit");
        let visited = visited(&mut batch);
        assert_eq!(
            visited.iter().filter(|&&(cookie, _)| cookie == 40).count(),
            8 * 20
        );
        assert!(visited.iter().all(|&(cookie, _)| cookie < cut));
    }

    #[test]
    fn one_cookie_may_exceed_the_limit() {
        let mut batch = batch_of(&[77; 500], 1000);
        assert_eq!(batch.cut, None);
        assert_eq!(visited(&mut batch).len(), 500);
    }

    #[test]
    fn majors_survive_in_cookies() {
        for major in [0, 2, 0x7FFF_FFFE, 0x8000_0000, 0xFFFF_FFFC] {
            assert_eq!(major_of(cookie_of_major(major)), major);
            assert_eq!(major_of(cookie_of_major(major) | 0xFFFF_FFFF), major);
        }
    }
}
