//! Listing a directory without a usable index in an order of its names that is kept from one reply
//! to the next.
//!
//! The order of a directory with too many names for it is made and kept in parts, each with the
//! names of a range of cookies.

use pext4_ondisk::directory::{self, NAME_MAX};
use pext4_ondisk::dirhash::Hasher;
use pext4_ondisk::{Corrupt, InodeNumber, LogicalBlock};

use super::super::blocks::{self, BlockKind, DirectoryBlocks, look};
use super::super::{CHANGED, is_own_dot, kind_of, linear};
use super::{COOKIE_END, Damage, Listed, MAX_SHARED, cookie, hasher_of, next_cookie};
use crate::error::{Error, Result};
use crate::inode::name_orders::{NameOrder, NamePlace, OrderedNames};
use crate::types::FileType;

/// Maximum number of blocks of a directory that is read as a whole for each reply.
const MAX_UNORDERED_BLOCKS: u32 = 4;

/// How a part of a listing ended.
pub(super) enum Ended {
    /// The visitor returned false.
    ByVisitor,
    /// All names below this cookie are listed.
    At(u64),
    /// A block is not what it was when the order was made: the listing must continue from this
    /// cookie without an order.
    ByChange(u64),
}

/// A copy of an entry.
struct NamedEntry {
    inode: InodeNumber,
    file_type: Option<FileType>,
    name: [u8; NAME_MAX],
    length: usize,
}

impl NamedEntry {
    fn name(&self) -> &[u8] {
        &self.name[..self.length]
    }
}

/// The names that share a cookie, each once.
#[derive(Default)]
struct Run {
    names: Vec<NamedEntry>,
    /// One of them that the directory holds more than once.
    repeated: Option<usize>,
}

/// Whether a directory is long enough for an order.
pub(super) fn is_long<B: DirectoryBlocks>(blocks: &B) -> bool {
    !blocks.is_inline() && blocks.count() > MAX_UNORDERED_BLOCKS
}

/// Lists the names whose cookies are `from` or higher, up to the end of the kept order that has
/// them, or of a new one of at most `most` names.
pub(super) fn list<B: DirectoryBlocks>(
    blocks: &B,
    from: u64,
    most: usize,
    damage: &mut Damage,
    visit: &mut dyn FnMut(Listed<'_>) -> bool,
) -> Result<Ended> {
    let hasher = hasher_of(blocks);
    let order = match blocks.order(from) {
        Some(order) => order,
        None => make(blocks, &hasher, (from, most), damage)?,
    };
    let places = &order.places[order.places.partition_point(|place| place.cookie < from)..];
    let mut run = Run::default();
    for sharing in places.chunk_by(|one, next| one.cookie == next.cookie) {
        let cookie = sharing[0].cookie;
        match run.read(blocks, &hasher, sharing) {
            Ok(()) => {}
            // Names with the same cookie that were listed already are listed again, as after any
            // reply that ends there.
            Err(Error::Corrupt(_) | Error::Io(_)) => return Ok(Ended::ByChange(cookie)),
            Err(error) => return Err(error),
        }
        if !run.visit(cookie, visit) {
            return Ok(Ended::ByVisitor);
        }
        if let Some(position) = run.repeated {
            damage.note_repeated(run.names[position].name());
        }
    }
    if let Some(corrupt) = &order.damage {
        let error = || corrupt.clone().into();
        damage.error.get_or_insert_with(error);
    }
    Ok(Ended::At(order.end))
}

impl Run {
    fn read<B: DirectoryBlocks>(
        &mut self,
        blocks: &B,
        hasher: &Hasher,
        places: &[NamePlace],
    ) -> Result<()> {
        self.names.clear();
        self.repeated = None;
        for &place in places {
            let named = read(blocks, hasher, place)?;
            let same = |other: &NamedEntry| other.name() == named.name();
            match self.names.iter().position(same) {
                Some(position) => self.repeated = Some(position),
                None => self.names.push(named),
            }
        }
        Ok(())
    }

    /// Visits them; false if the visitor returned false.
    fn visit(&self, cookie: u64, visit: &mut dyn FnMut(Listed<'_>) -> bool) -> bool {
        let mut names = self.names.iter().enumerate();
        names.all(|(position, named)| {
            visit(Listed {
                inode: named.inode,
                file_type: named.file_type,
                name: named.name(),
                cookie,
                next_cookie: next_cookie(cookie, position, self.names.len()),
            })
        })
    }
}

/// Makes an order of the names from a cookie on, and keeps it unless the device failed: then names
/// are missing that may be there next time. Damaged leaves are noted in the order.
fn make<B: DirectoryBlocks>(
    blocks: &B,
    hasher: &Hasher,
    (from, most): (u64, usize),
    damage: &mut Damage,
) -> Result<NameOrder> {
    let mark = blocks.begin_order();
    let mut lowest = Lowest::new(from, most);
    let mut own = Damage::of(blocks.inode());
    for block in linear::leaves(blocks) {
        match own.skip(gather(blocks, hasher, block, &mut lowest)) {
            Ok(()) => {}
            // Too many leaves: the listing ends with the names that were found.
            Err(error @ (Error::Corrupt(_) | Error::Io(_))) => {
                own.error = Some(error);
                break;
            }
            Err(error) => return Err(error),
        }
    }
    let (corrupt, failure) = match own.error {
        Some(Error::Corrupt(corrupt)) => (Some(corrupt), None),
        other => (None, other),
    };
    let order = NameOrder::new(lowest.into_order(corrupt));
    match failure {
        None => blocks.keep_order(mark, &order),
        Some(failure) => {
            damage.error.get_or_insert(failure);
        }
    }
    Ok(order)
}

/// The names with the lowest cookies of a range.
struct Lowest {
    start: u64,
    end: u64,
    most: usize,
    places: Vec<NamePlace>,
}

impl Lowest {
    fn new(start: u64, most: usize) -> Self {
        Self {
            start,
            end: COOKIE_END,
            // Half of them are more than can share a cookie.
            most: most.max(4 * MAX_SHARED),
            places: Vec::new(),
        }
    }

    fn add(&mut self, place: NamePlace) {
        if !(self.start..self.end).contains(&place.cookie) {
            return;
        }
        self.places.push(place);
        if self.places.len() >= self.most {
            self.shrink();
        }
    }

    /// Drops the upper half, but never only some of those that share a cookie.
    fn shrink(&mut self) {
        self.sort();
        if let Some(middle) = self.places.get(self.most / 2) {
            self.end = middle.cookie;
            let kept = self.places.partition_point(|place| place.cookie < self.end);
            self.places.truncate(kept);
        }
    }

    /// Sorts them, and drops those of more than `MAX_SHARED` with one cookie: different names of
    /// one cookie are not so many, so it is one name again and again.
    fn sort(&mut self) {
        self.places.sort_unstable();
        let (mut last, mut count) = (None, 0);
        self.places.retain(|place| {
            count = if last == Some(place.cookie) {
                count + 1
            } else {
                1
            };
            last = Some(place.cookie);
            count <= MAX_SHARED
        });
    }

    fn into_order(mut self, damage: Option<Corrupt>) -> OrderedNames {
        self.sort();
        OrderedNames {
            start: self.start,
            end: self.end,
            places: self.places.into_boxed_slice(),
            damage,
        }
    }
}

fn cookie_of<B: DirectoryBlocks>(blocks: &B, hasher: &Hasher, name: &[u8]) -> u64 {
    cookie(
        blocks::hash(hasher, name),
        blocks.settings().cookie_key,
        name,
    )
}

fn gather<B: DirectoryBlocks>(
    blocks: &B,
    hasher: &Hasher,
    block: LogicalBlock,
    lowest: &mut Lowest,
) -> Result<()> {
    let format = blocks.format();
    let kind = linear::leaf_kind(blocks);
    look(blocks, block, kind, |bytes| {
        if kind == BlockKind::Either && kind_of(bytes) == BlockKind::Index {
            return Ok(());
        }
        let mut index = 0;
        for record in directory::records(bytes, format) {
            let record = record?;
            let Some(entry) = record.entry() else {
                continue;
            };
            index += 1;
            if is_own_dot(blocks, block, index - 1, entry.name) {
                continue;
            }
            lowest.add(NamePlace {
                cookie: cookie_of(blocks, hasher, entry.name),
                block: block.get(),
                offset: u32::try_from(record.offset).expect("blocks are small"),
            });
        }
        Ok(())
    })
}

fn read<B: DirectoryBlocks>(blocks: &B, hasher: &Hasher, place: NamePlace) -> Result<NamedEntry> {
    let (block, format) = (LogicalBlock(place.block), blocks.format());
    look(blocks, block, linear::leaf_kind(blocks), |bytes| {
        let record = directory::record_at(bytes, format, place.offset as usize)?;
        let changed = || Corrupt::new("directory", CHANGED);
        let entry = record.entry().ok_or_else(changed)?;
        // Where there is an index, names may come and go under the lock of their leaf alone.
        if blocks.is_indexed() && cookie_of(blocks, hasher, entry.name) != place.cookie {
            return Err(changed());
        }
        let mut name = [0; NAME_MAX];
        name[..entry.name.len()].copy_from_slice(entry.name);
        Ok(NamedEntry {
            inode: entry.inode,
            file_type: entry.file_type,
            name,
            length: entry.name.len(),
        })
    })
}
