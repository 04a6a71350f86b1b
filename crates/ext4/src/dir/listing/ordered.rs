//! Listing a linear directory in an order of its names that is kept from one reply to the next.
//!
//! If a block cannot be read, the directory is listed in batches instead, which skip such blocks.

use pext4_ondisk::directory::{self, NAME_MAX};
use pext4_ondisk::{InodeNumber, LogicalBlock};

use super::super::blocks::{self, BlockKind, DirectoryBlocks, look};
use super::super::{CHANGED, is_own_dot, linear};
use super::{Listed, cookie};
use crate::error::{Error, Result};
use crate::inode::name_orders::{NameOrder, NamePlace};
use crate::types::FileType;

/// Maximum number of blocks of a directory that is read as a whole for each reply.
const MAX_UNORDERED_BLOCKS: u32 = 4;

/// A copy of an entry.
struct NamedEntry {
    inode: InodeNumber,
    file_type: Option<FileType>,
    name: [u8; NAME_MAX],
    length: usize,
}

/// Lists the names whose cookies are `from` or higher, if the directory has at most `max_bytes`
/// bytes. Returns `None` if the end was reached or the visitor returned false, otherwise the cookie
/// from which the caller must continue in batches.
pub(super) fn list<B: DirectoryBlocks>(
    blocks: &B,
    from: u64,
    max_bytes: u64,
    visit: &mut dyn FnMut(Listed<'_>) -> bool,
) -> Result<Option<u64>> {
    let bytes = u64::from(blocks.count()) * u64::from(blocks.settings().block_size);
    let is_short = blocks.is_inline() || blocks.count() <= MAX_UNORDERED_BLOCKS;
    if blocks.is_indexed() || is_short || bytes > max_bytes {
        return Ok(Some(from));
    }
    let Some(order) = order(blocks)? else {
        return Ok(Some(from));
    };
    let mut places = order[order.partition_point(|place| place.cookie < from)..].iter();
    while let Some(place) = places.next() {
        let follower = places.as_slice().first();
        let is_shared = follower.is_some_and(|follower| follower.cookie == place.cookie);
        let named = match read(blocks, *place) {
            Ok(named) => named,
            // Names with the same cookie that were listed already are listed again, as after any
            // reply that ends there.
            Err(Error::Corrupt(_) | Error::Io(_)) => return Ok(Some(place.cookie)),
            Err(error) => return Err(error),
        };
        let listed = Listed {
            inode: named.inode,
            file_type: named.file_type,
            name: &named.name[..named.length],
            cookie: place.cookie,
            next_cookie: place.cookie + u64::from(!is_shared),
        };
        if !visit(listed) {
            break;
        }
    }
    Ok(None)
}

/// The kept order, or a new one, which is then kept; `None` if a block cannot be read.
fn order<B: DirectoryBlocks>(blocks: &B) -> Result<Option<NameOrder>> {
    if let Some(order) = blocks.order() {
        return Ok(Some(order));
    }
    let mut places = Vec::new();
    for block in linear::leaves(blocks) {
        match gather(blocks, block, &mut places) {
            Ok(()) => {}
            Err(Error::Corrupt(_) | Error::Io(_)) => return Ok(None),
            Err(error) => return Err(error),
        }
    }
    places.sort_unstable();
    let order = NameOrder::from(places);
    blocks.keep_order(&order);
    Ok(Some(order))
}

fn gather<B: DirectoryBlocks>(
    blocks: &B,
    block: LogicalBlock,
    places: &mut Vec<NamePlace>,
) -> Result<()> {
    let (format, key) = (blocks.format(), blocks.settings().cookie_key);
    let hasher = blocks.settings().listing_hasher();
    look(blocks, block, BlockKind::Leaf, |bytes| {
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
            places.push(NamePlace {
                cookie: cookie(blocks::hash(&hasher, entry.name), key, entry.name),
                block: block.get(),
                offset: u32::try_from(record.offset).expect("blocks are small"),
            });
        }
        Ok(())
    })
}

fn read<B: DirectoryBlocks>(blocks: &B, place: NamePlace) -> Result<NamedEntry> {
    let (block, format) = (LogicalBlock(place.block), blocks.format());
    look(blocks, block, BlockKind::Leaf, |bytes| {
        let record = directory::record_at(bytes, format, place.offset as usize)?;
        let changed = || pext4_ondisk::Corrupt::new("directory", CHANGED);
        let entry = record.entry().ok_or_else(changed)?;
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
