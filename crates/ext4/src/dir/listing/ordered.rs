//! Listing a linear directory by the order of its names, which is kept from one reply to the next.
//!
//! Only a directory that is whole is listed so: where a block cannot be read the batches go on, which know what to
//! pass over.

use pext4_ondisk::directory::{self, NAME_MAX};
use pext4_ondisk::{InodeNumber, LogicalBlock};

use super::super::blocks::{self, BlockKind, DirectoryBlocks, look};
use super::super::{CHANGED, is_dot, linear};
use super::{Listed, cookie};
use crate::error::{Error, Result};
use crate::inode::name_orders::{NameOrder, NamePlace};
use crate::types::FileType;

/// A directory of so many blocks is read as a whole for each reply.
const FEW_BLOCKS: u32 = 4;

/// A name and what it leads to, out of its block.
struct Named {
    inode: InodeNumber,
    file_type: Option<FileType>,
    name: [u8; NAME_MAX],
    length: usize,
}

/// Shows the names from a cookie on if the directory has at most `longest` bytes. `None` if the end was
/// reached or the visitor stopped, else the cookie at which to continue.
pub(super) fn list<B: DirectoryBlocks>(
    blocks: &B,
    from: u64,
    longest: u64,
    visit: &mut dyn FnMut(Listed<'_>) -> bool,
) -> Result<Option<u64>> {
    let bytes = u64::from(blocks.count()) * u64::from(blocks.settings().block_size);
    let is_short = blocks.is_inline() || blocks.count() <= FEW_BLOCKS;
    if blocks.is_indexed() || is_short || bytes > longest {
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
            // Names that share the cookie and were shown already are shown again, as in any reply that ends there.
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

/// The order that is kept, or that of all blocks; `None` where a block cannot be read.
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
        for record in directory::records(bytes, format) {
            let record = record?;
            let Some(entry) = record.entry.filter(|entry| !is_dot(entry.name)) else {
                continue;
            };
            places.push(NamePlace {
                cookie: cookie(blocks::hash(&hasher, entry.name), key, entry.name),
                block: block.get(),
                offset: u32::try_from(record.offset).expect("blocks are small"),
            });
        }
        Ok(())
    })
}

fn read<B: DirectoryBlocks>(blocks: &B, place: NamePlace) -> Result<Named> {
    let (block, format) = (LogicalBlock(place.block), blocks.format());
    look(blocks, block, BlockKind::Leaf, |bytes| {
        let record = directory::record_at(bytes, format, place.offset as usize)?;
        let changed = || pext4_ondisk::Corrupt::new("directory", CHANGED);
        let entry = record.entry.ok_or_else(changed)?;
        let mut name = [0; NAME_MAX];
        name[..entry.name.len()].copy_from_slice(entry.name);
        Ok(Named {
            inode: entry.inode,
            file_type: entry.file_type,
            name,
            length: entry.name.len(),
        })
    })
}
