//! From captures to sealed blocks: the blocks that a commit writes, made once.
//!
//! A captured block is copied and gets its checksum. Captured pieces are copied over the last
//! version of their block, which the cache holds. The sealed page then replaces the one in the
//! cache, so that an object that has left memory can be read from there; a live page that was
//! changed since the capture stays as it is.

use std::collections::BTreeMap;
use std::sync::Arc;

use pext4_block::{Buffer, Cache, Page, Stamp};
use pext4_ondisk::BlockNumber;
use pext4_sync::parts::in_parts;

use crate::client::{Capture, Client};
use crate::error::JournalError;
use crate::transaction::MIN_PART;

/// One block as a transaction writes it.
pub(crate) struct Version {
    pub(crate) block: BlockNumber,
    /// Sealed: it never changes again.
    pub(crate) page: Page,
    /// Keeps the block in memory until the version is home.
    pub(crate) buffer: Arc<Buffer>,
}

/// What was captured of one block.
#[derive(Default)]
struct Parts {
    whole: Option<(Page, Stamp)>,
    pieces: Vec<(u32, Vec<u8>)>,
}

/// Makes the versions of a transaction, sorted by block, with up to `width` threads.
pub(crate) fn merge(
    cache: &Cache,
    client: &dyn Client,
    captures: Vec<Capture>,
    width: usize,
) -> Result<Vec<Version>, JournalError> {
    let mut blocks: BTreeMap<BlockNumber, Parts> = BTreeMap::new();
    for capture in captures {
        match capture {
            Capture::Block { block, page, stamp } => {
                let before = blocks
                    .entry(block)
                    .or_default()
                    .whole
                    .replace((page, stamp));
                debug_assert!(before.is_none(), "{block:?} is captured once a transaction");
            }
            Capture::Piece {
                block,
                offset,
                bytes,
            } => {
                blocks
                    .entry(block)
                    .or_default()
                    .pieces
                    .push((offset, bytes));
            }
        }
    }
    let sealed = in_parts(
        blocks.into_iter().collect(),
        MIN_PART,
        width,
        |part: Vec<_>| {
            let versions = part.into_iter().map(|(block, parts)| match parts.whole {
                Some(whole) => Ok(seal_block(cache, client, block, whole, &parts.pieces)),
                None => seal_pieces(cache, client, block, &parts.pieces),
            });
            versions.collect::<Result<Vec<_>, _>>()
        },
    );
    let mut versions = Vec::new();
    for part in sealed {
        versions.append(&mut part?);
    }
    Ok(versions)
}

fn seal_block(
    cache: &Cache,
    client: &dyn Client,
    block: BlockNumber,
    (captured, stamp): (Page, Stamp),
    pieces: &[(u32, Vec<u8>)],
) -> Version {
    let page = sealed(client, block, stamp, &captured, pieces);
    let buffer = cache.peek(block).unwrap_or_else(|| cache.get_zeroed(block));
    {
        let mut state = buffer.write();
        // If the next transaction has changed the bytes, its commit seals them.
        if state.page().same(&captured) {
            state.replace_by_sealed(page.clone());
        } else if state.dirty_in.is_none() {
            // No later transaction has changes here. The captured page was never the cache's, but
            // an object's own (a bitmap, a block of the orphan file), or the buffer has left memory
            // since and is a new one of zeroes.
            *state.page_mut() = page.clone();
        }
    }
    Version {
        block,
        page,
        buffer,
    }
}

fn seal_pieces(
    cache: &Cache,
    client: &dyn Client,
    block: BlockNumber,
    pieces: &[(u32, Vec<u8>)],
) -> Result<Version, JournalError> {
    let buffer = cache
        .get(block)
        .map_err(JournalError::io("reading a block to be committed"))?;
    let base = buffer.page();
    let page = sealed(client, block, Stamp::NONE, &base, pieces);
    buffer.replace_page(page.clone());
    Ok(Version {
        block,
        page,
        buffer,
    })
}

/// A copy of `base` with the pieces and the checksum filled in.
fn sealed(
    client: &dyn Client,
    block: BlockNumber,
    stamp: Stamp,
    base: &Page,
    pieces: &[(u32, Vec<u8>)],
) -> Page {
    let mut page = base.clone();
    let bytes = page.make_mut();
    for (offset, piece) in pieces {
        let start = *offset as usize;
        bytes[start..start + piece.len()].copy_from_slice(piece);
    }
    client.seal(block, stamp, bytes);
    page
}
