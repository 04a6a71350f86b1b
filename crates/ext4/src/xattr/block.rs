//! The block of attributes: read, changed in place or copied, given up.

use std::sync::Arc;

use pext4_block::Buffer;
use pext4_jbd2::Handle;
use pext4_ondisk::xattr::{self, Attribute};
use pext4_ondisk::{BlockNumber, Corrupt, InodeNumber};

use crate::error::{Error, Result};
use crate::inode::table::Inodes;
use crate::mballoc::Request;
use crate::seal;

/// Where an inode's block of attributes is after a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Where it was.
    Same,
    /// There, or nowhere if that is 0.
    Moved(BlockNumber),
}

/// What became of a block that an inode turned away from.
enum Turn {
    /// Others use it; it counts one less.
    Left,
    /// Nobody else uses it.
    Own,
}

/// The attributes in a block.
pub(super) fn attributes(inodes: &Inodes, block: BlockNumber) -> Result<Vec<Attribute>> {
    let buffer = read(inodes, block)?;
    let state = buffer.read();
    let decoded = xattr::Block::decode(&state.page).map_err(|corrupt| corrupt.in_block(block))?;
    Ok(decoded.attributes)
}

/// The buffer of an attribute block, its checksum verified.
fn read(inodes: &Inodes, block: BlockNumber) -> Result<Arc<Buffer>> {
    let store = &inodes.store;
    inodes.check_not_metadata(block, 1)?;
    let buffer = store.read_block(block)?;
    if store.metadata_csum && !buffer.is_verified() {
        let state = buffer.read();
        xattr::verify_block(store.checksum_seed, block, &state.page)?;
        buffer.set_verified();
        drop(state);
    }
    Ok(buffer)
}

fn references(buffer: &Buffer) -> Result<u32> {
    let state = buffer.read();
    Ok(xattr::references(&state.page).map_err(|corrupt| corrupt.in_block(buffer.block()))?)
}

/// Gives an inode the content of its block: in `old` if there is one that no other inode uses, else
/// in a new one.
pub(super) fn write(
    inodes: &Inodes,
    handle: &mut Handle<'_>,
    inode: InodeNumber,
    old: BlockNumber,
    content: &[u8],
) -> Result<Outcome> {
    if old.get() == 0 {
        let block = allocate(inodes, handle, inode)?;
        create(handle, block, content);
        return Ok(Outcome::Moved(block));
    }
    let buffer = read(inodes, old)?;
    if references(&buffer)? == 1 {
        handle.edit(&buffer, seal::xattr_block(), |bytes| {
            bytes.copy_from_slice(content)
        });
        return Ok(Outcome::Same);
    }
    let block = allocate(inodes, handle, inode)?;
    match leave(handle, &buffer) {
        Ok(Turn::Left) => {
            create(handle, block, content);
            Ok(Outcome::Moved(block))
        }
        Ok(Turn::Own) => {
            // The others left since it was looked at.
            inodes.groups.free(handle, block, 1)?;
            handle.edit(&buffer, seal::xattr_block(), |bytes| {
                bytes.copy_from_slice(content)
            });
            Ok(Outcome::Same)
        }
        Err(error) => {
            inodes.groups.free(handle, block, 1)?;
            Err(error)
        }
    }
}

/// Gives up one inode's use of a block, which is freed if that was the last.
pub(super) fn release(inodes: &Inodes, handle: &mut Handle<'_>, block: BlockNumber) -> Result<()> {
    let buffer = read(inodes, block)?;
    let is_own = references(&buffer)? == 1 || matches!(leave(handle, &buffer)?, Turn::Own);
    if is_own {
        inodes.groups.free(handle, block, 1)?;
        handle.forget(block);
    }
    Ok(())
}

/// Counts one inode less, unless it is the only one. Decided under the buffer's lock, since other
/// inodes' operations do the same.
fn leave(handle: &mut Handle<'_>, buffer: &Arc<Buffer>) -> Result<Turn> {
    let turn = handle.edit(
        buffer,
        seal::xattr_block(),
        |bytes| -> std::result::Result<_, Corrupt> {
            let references = xattr::references(bytes)?;
            if references == 1 {
                return Ok(Turn::Own);
            }
            xattr::set_references(bytes, references - 1);
            Ok(Turn::Left)
        },
    );
    turn.map_err(|corrupt| Error::Corrupt(corrupt.in_block(buffer.block())))
}

fn allocate(inodes: &Inodes, handle: &mut Handle<'_>, inode: InodeNumber) -> Result<BlockNumber> {
    let request = Request::one(inode, inodes.groups.goal_of(inode));
    Ok(inodes.groups.allocate(handle, &request)?.start)
}

fn create(handle: &mut Handle<'_>, block: BlockNumber, content: &[u8]) {
    let buffer = handle.create(block, seal::xattr_block());
    handle.edit(&buffer, seal::xattr_block(), |bytes| {
        bytes.copy_from_slice(content)
    });
}
