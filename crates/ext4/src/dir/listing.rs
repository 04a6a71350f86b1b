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
//! cookie than a reply has room for. Only the same name again has the same cookie for certain: it
//! is listed once, and the listing fails with `Corrupt` at its end. Different names share a cookie
//! by rare chance, and never many of them. Should it be more than [`MAX_SHARED`], the cookie of the
//! next entry advances all the same, so that each listing ends whose replies have room for so many.
//!
//! A leaf that cannot be read is skipped. Names in it after the damage are missing from the
//! listing, other names are not, and its error is returned after everything else was listed. If too
//! many leaves are damaged, the listing ends.
//!
//! Memory: names are gathered leaf by leaf (with the leaves that continue a run of equal hashes),
//! and at most [`BUDGET`] bytes of them are kept, those with the lowest cookies. A directory of a
//! few blocks without a usable index is gathered as a whole under the same limit. If it has more,
//! its names are sorted and their order is kept (`ordered`). An index whose runs of equal hashes
//! are very long is not usable.

mod ordered;

use std::hash::Hasher as _;

use pext4_ondisk::directory::Entry;
use pext4_ondisk::dirhash::Hasher;
use pext4_ondisk::shown::Shown;
use pext4_ondisk::{Corrupt, InodeNumber};

use super::blocks::{self, BlockKind, DirectoryBlocks};
use super::index::{self, Path, Seek};
use super::{corrupt_in, is_dot, leaf, linear, parent};
use crate::error::{Error, Result};
use crate::types::FileType;
use ordered::Ended;

/// No entry has this cookie or a higher one.
pub const COOKIE_END: u64 = i64::MAX as u64;
const COOKIE_DOT: u64 = 0;
const COOKIE_DOT_DOT: u64 = 1;
const COOKIE_FIRST: u64 = 2;
/// Maximum number of entries with one cookie that are listed in one piece. A reply of 4 KiB, the
/// smallest for which the kernel asks, has room for 10 of the longest names with their attributes.
const MAX_SHARED: usize = 8;
/// Maximum bytes of gathered entries; beyond it, those with the highest cookies are dropped again.
const BUDGET: usize = 256 << 10;
/// Maximum number of unreadable leaves that a listing skips.
const MAX_SKIPPED_LEAVES: u32 = 1000;
/// A listing does without an index in which so many leaves continue one hash: each part of it would
/// read all of them. No sound directory has such a run unless somebody has chosen its names for
/// that: a leaf has room for three names or more, and of 2^31 names with hashes of 31 bits, a
/// hundred do not have the same by chance. So what is chosen costs the order of the index, and no
/// name is lost.
const MAX_CONTINUED: u32 = 32;

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
    /// if entries with the same cookie follow that belong into the same reply.
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
/// higher `next_cookie`; of more than [`MAX_SHARED`], all from that one on. A caller that divides a
/// listing into replies must put all of them into one: if the last does not fit, the reply ends
/// before the first, or the next reply lists them again.
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
        ordered: blocks.most_ordered(),
    };
    list_within(blocks, from, limits, visit)
}

/// Limits on the memory of a listing.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    /// Maximum bytes of gathered entries.
    pub gathered: usize,
    /// Maximum number of names whose order is kept at once.
    pub ordered: usize,
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
    let mut damage = Damage::of(blocks.inode());
    list_names(blocks, from, limits, &mut damage, visit)?;
    damage.error.map_or(Ok(()), Err)
}

fn list_names<B: DirectoryBlocks>(
    blocks: &B,
    mut from: u64,
    limits: Limits,
    damage: &mut Damage,
    visit: &mut dyn FnMut(Listed<'_>) -> bool,
) -> Result<()> {
    let mut may_order = ordered::is_long(blocks);
    while from < COOKIE_END {
        let path = Path::descend_if_sound(blocks, Seek::Hash(major_of(from)))?;
        let is_usable = |path: &Path| !path.has_run_of(blocks, MAX_CONTINUED);
        let next = if may_order && !path.as_ref().is_some_and(is_usable) {
            match ordered::list(blocks, from, limits.ordered, damage, visit)? {
                Ended::ByVisitor => break,
                Ended::At(next) => next,
                Ended::ByChange(next) => {
                    may_order = false;
                    from = next;
                    continue;
                }
            }
        } else {
            let mut batch = Batch::new(from, limits.gathered);
            let unread = gather(blocks, path, &mut batch, damage);
            let wants_more = batch.visit_all(damage, visit);
            let next = batch.cut.or(unread?).filter(|_| wants_more);
            let Some(next) = next else { break };
            next
        };
        debug_assert!(next > from, "each part advances");
        from = next;
    }
    Ok(())
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

/// Fills a batch from the leaf of a path, or without one from all leaves. Returns the cookie from
/// which on there may be entries that were not read yet.
fn gather<B: DirectoryBlocks>(
    blocks: &B,
    path: Option<Path>,
    batch: &mut Batch,
    damage: &mut Damage,
) -> Result<Option<u64>> {
    if let Some(path) = path {
        return gather_run(blocks, path, batch, damage);
    }
    let key = blocks.settings().cookie_key;
    let hasher = hasher_of(blocks);
    for block in linear::leaves(blocks) {
        let read = linear::for_each_in(blocks, block, |entry| {
            let major = blocks::hash(&hasher, entry.name);
            batch.add(cookie(major, key, entry.name), entry);
        });
        damage.skip(read)?;
    }
    Ok(None)
}

/// The hash function of a directory's cookies, also where its index cannot be used: part of a
/// listing may come from the index.
fn hasher_of<B: DirectoryBlocks>(blocks: &B) -> Hasher {
    let own = index::hasher_of(blocks);
    own.unwrap_or_else(|| blocks.settings().listing_hasher())
}

/// Gathers the leaf at the end of a path, and those that continue its last run of equal hashes.
fn gather_run<B: DirectoryBlocks>(
    blocks: &B,
    mut path: Path,
    batch: &mut Batch,
    damage: &mut Damage,
) -> Result<Option<u64>> {
    let hasher: Hasher = path.hasher();
    let key = blocks.settings().cookie_key;
    for _ in 0..blocks.count() {
        let (lowest, highest) = path.leaf_range(blocks)?;
        let read = leaf::for_each(blocks, path.leaf(), BlockKind::Leaf, |entry| {
            // A name in the wrong leaf (its hash was computed with the other signedness of `char`)
            // is listed where it is rather than not at all.
            let major = blocks::hash(&hasher, entry.name).clamp(lowest, highest);
            batch.add(cookie(major, key, entry.name), entry);
        });
        damage.skip(read)?;
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

/// The cookie with which a listing continues after the entry at `position` of `count` that share
/// a cookie.
fn next_cookie(cookie: u64, position: usize, count: usize) -> u64 {
    let is_last = position + 1 == count || position + 1 >= MAX_SHARED;
    cookie + u64::from(is_last)
}

/// What a listing passes that is not as it should be.
struct Damage {
    directory: InodeNumber,
    /// The number of leaves that could not be read.
    skipped: u32,
    /// The first error.
    error: Option<Error>,
}

impl Damage {
    fn of(directory: InodeNumber) -> Self {
        Self {
            directory,
            skipped: 0,
            error: None,
        }
    }

    /// Notes a leaf that cannot be read, because of the device or its bytes. Fails if there are too
    /// many.
    fn skip(&mut self, read: Result<()>) -> Result<()> {
        let error = match read {
            Err(error @ (Error::Corrupt(_) | Error::Io(_))) => error,
            read => return read,
        };
        self.skipped += 1;
        if self.skipped > MAX_SKIPPED_LEAVES {
            return Err(self.error.take().unwrap_or(error));
        }
        self.error.get_or_insert(error);
        Ok(())
    }

    /// Notes a name that the directory has more than once.
    fn note_repeated(&mut self, name: &[u8]) {
        let directory = self.directory;
        self.error.get_or_insert_with(|| {
            let problem = format!("holds the name {} more than once", Shown(name));
            let corrupt = Corrupt::new("directory", problem);
            corrupt.in_inode(directory).into()
        });
    }
}

/// The entries with the lowest cookies from `from` on.
struct Batch {
    from: u64,
    budget: usize,
    entries: Vec<Gathered>,
    names: Vec<u8>,
    /// The lowest cookie of which entries were dropped.
    cut: Option<u64>,
}

struct Gathered {
    cookie: u64,
    inode: InodeNumber,
    file_type: Option<FileType>,
    start: usize,
    length: usize,
    /// More entries have this name: only the first of them is kept.
    is_repeated: bool,
}

impl Gathered {
    fn name<'a>(&self, names: &'a [u8]) -> &'a [u8] {
        &names[self.start..self.start + self.length]
    }
}

impl Batch {
    fn new(from: u64, budget: usize) -> Self {
        Self {
            from,
            budget,
            entries: Vec::new(),
            names: Vec::new(),
            cut: None,
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
            is_repeated: false,
        });
        self.names.extend_from_slice(entry.name);
        if self.names.len() + self.entries.len() * size_of::<Gathered>() > self.budget {
            self.shrink();
        }
    }

    /// Sorts the entries, and drops names that are there already.
    fn sort(&mut self) {
        let names = &self.names;
        let key = |entry: &Gathered| (entry.cookie, entry.name(names));
        // Stable: the first of equal names is the one that a lookup finds.
        self.entries.sort_by(|one, other| key(one).cmp(&key(other)));
        self.entries.dedup_by(|later, kept| {
            let is_same = key(later) == key(kept);
            kept.is_repeated |= is_same;
            is_same
        });
    }

    /// Drops repeated names and, if they are less than half, the entries of the upper half, but
    /// never only some of those that share a cookie.
    fn shrink(&mut self) {
        let half = self.entries.len() / 2;
        self.sort();
        if self.entries.len() > half {
            self.cut_in_half();
        }
        self.pack_names();
    }

    fn cut_in_half(&mut self) {
        let middle = self.entries[self.entries.len() / 2].cookie;
        let mut kept = self.entries.partition_point(|entry| entry.cookie < middle);
        if kept == 0 {
            kept = self.entries.partition_point(|entry| entry.cookie <= middle);
        }
        match self.entries.get(kept) {
            Some(first_dropped) => self.cut = Some(first_dropped.cookie),
            // Different names with one cookie, which nobody can choose: they do not become many.
            None => self.budget *= 2,
        }
        self.entries.truncate(kept);
    }

    fn pack_names(&mut self) {
        let mut packed = Vec::with_capacity(self.names.len());
        for entry in &mut self.entries {
            let name = entry.name(&self.names);
            entry.start = packed.len();
            packed.extend_from_slice(name);
        }
        self.names = packed;
    }

    /// Visits the entries in the order of their cookies; false if the visitor returned false.
    fn visit_all(
        &mut self,
        damage: &mut Damage,
        visit: &mut dyn FnMut(Listed<'_>) -> bool,
    ) -> bool {
        self.sort();
        let share_a_cookie = |one: &Gathered, next: &Gathered| one.cookie == next.cookie;
        for group in self.entries.chunk_by(share_a_cookie) {
            for (position, entry) in group.iter().enumerate() {
                let listed = Listed {
                    inode: entry.inode,
                    file_type: entry.file_type,
                    name: entry.name(&self.names),
                    cookie: entry.cookie,
                    next_cookie: next_cookie(entry.cookie, position, group.len()),
                };
                if !visit(listed) {
                    return false;
                }
                if entry.is_repeated {
                    damage.note_repeated(entry.name(&self.names));
                }
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::{Batch, Damage, Entry, InodeNumber, MAX_SHARED, cookie_of_major, major_of};

    fn visited(batch: &mut Batch) -> Vec<(u64, u64)> {
        let mut visited = Vec::new();
        batch.visit_all(&mut Damage::of(InodeNumber(12)), &mut |entry| {
            assert_eq!(entry.name, entry.inode.get().to_string().as_bytes());
            visited.push((entry.cookie, entry.next_cookie));
            true
        });
        visited
    }

    fn batch_of(cookies: &[u64], budget: usize) -> Batch {
        let mut batch = Batch::new(10, budget);
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
    fn many_of_a_shared_cookie_advance_too() {
        let mut batch = batch_of(&[77; 3 * MAX_SHARED], 1 << 20);
        let mut expected = vec![(77, 78); 3 * MAX_SHARED];
        expected[..MAX_SHARED - 1].fill((77, 77));
        assert_eq!(visited(&mut batch), expected);
    }

    #[test]
    fn a_name_that_comes_again_takes_no_room() {
        let mut batch = Batch::new(10, 1000);
        for number in 0..100_000 {
            let name: &[u8] = if number % 1000 == 0 {
                b"other"
            } else {
                b"same"
            };
            let inode = InodeNumber(12 + number);
            let file_type = None;
            batch.add(
                77,
                &Entry {
                    inode,
                    file_type,
                    name,
                },
            );
        }
        assert_eq!((batch.cut, batch.budget), (None, 1000));
        let mut damage = Damage::of(InodeNumber(2));
        let mut visited = Vec::new();
        batch.visit_all(&mut damage, &mut |entry| {
            visited.push((entry.name.to_vec(), entry.inode.get(), entry.next_cookie));
            true
        });
        let expected = [(b"other".to_vec(), 12, 77), (b"same".to_vec(), 13, 78)];
        assert_eq!(visited, expected);
        let error = damage.error.expect("names are repeated").to_string();
        assert!(error.contains("more than once"), "{error}");
    }

    #[test]
    fn majors_survive_in_cookies() {
        for major in [0, 2, 0x7FFF_FFFE, 0x8000_0000, 0xFFFF_FFFC] {
            assert_eq!(major_of(cookie_of_major(major)), major);
            assert_eq!(major_of(cookie_of_major(major) | 0xFFFF_FFFF), major);
        }
    }
}
