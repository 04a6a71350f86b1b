//! Maps the blocks of the files of an empty file system: by extents, or by pointers without that
//! feature.

use pext4_ondisk::checksum::InodeSeed;
use pext4_ondisk::extent::{self, Extent};
use pext4_ondisk::feature::Incompat;
use pext4_ondisk::indirect::{self, DIRECT, MAX_DEPTH};
use pext4_ondisk::inode::{Inode, InodeFlags};
use pext4_ondisk::{BlockNumber, InodeNumber, LogicalBlock};

use super::Run;
use super::contents::Files;
use super::layout::Layout;
use crate::error::{Error, Result};

/// Maps these blocks in an inode, and sets its size and `i_blocks`.
pub(super) fn map_blocks(
    layout: &mut Layout,
    number: InodeNumber,
    inode: &mut Inode,
    runs: &[Run],
    files: &mut Files,
) -> Result<()> {
    let by_extents = layout.geometry.features.has_incompat(Incompat::EXTENTS);
    let of_map = match by_extents {
        true => map_extents(layout, number, inode, runs, files)?,
        false => map_pointers(layout, inode, runs, files)?,
    };
    let blocks: u64 = runs.iter().map(|run| run.end - run.start).sum();
    let block_size = layout.geometry.block_size;
    inode.size = blocks * u64::from(block_size);
    inode.blocks = (blocks + of_map) * u64::from(block_size / 512);
    Ok(())
}

fn too_many_pieces() -> Error {
    Error::Impossible("a file of the system would need too many pieces".to_owned())
}

/// Maps runs by extents, in the inode or in one node below it. Returns the number of blocks of the
/// map.
fn map_extents(
    layout: &mut Layout,
    number: InodeNumber,
    inode: &mut Inode,
    runs: &[Run],
    files: &mut Files,
) -> Result<u64> {
    let mut logical = 0;
    let mut entries = Vec::new();
    for run in runs {
        let length = u32::try_from(run.end - run.start).expect("a run fits an extent");
        let extent = Extent {
            logical: LogicalBlock(logical),
            start: BlockNumber(run.start),
            length,
            unwritten: false,
        };
        entries.push(extent.encode());
        logical += length;
    }
    inode.flags |= InodeFlags::EXTENTS;
    if entries.len() <= extent::capacity(extent::ROOT_SIZE) {
        extent::write_node(&mut inode.block, 0, &entries);
        return Ok(0);
    }
    let block_size = layout.geometry.block_size as usize;
    if entries.len() > extent::capacity(block_size) {
        return Err(too_many_pieces());
    }
    let node = layout.allocate(0, 1)?[0].start;
    let mut bytes = vec![0; block_size];
    extent::write_node(&mut bytes, 0, &entries);
    if let Some(seed) = layout.geometry.checksum_seed() {
        extent::stamp_node(InodeSeed::new(seed, number, inode.generation), &mut bytes);
    }
    files.blocks.push((BlockNumber(node), bytes));
    let index = extent::Index {
        logical: LogicalBlock(0),
        child: BlockNumber(node),
    };
    extent::write_node(&mut inode.block, 1, &[index.encode()]);
    Ok(1)
}

/// Maps runs by pointers: twelve in the inode, then trees of one to three levels. Returns the
/// number of blocks of the map.
fn map_pointers(
    layout: &mut Layout,
    inode: &mut Inode,
    runs: &[Run],
    files: &mut Files,
) -> Result<u64> {
    let blocks: Option<Vec<u32>> = runs
        .iter()
        .flat_map(Clone::clone)
        .map(|block| u32::try_from(block).ok())
        .collect();
    let blocks = blocks.ok_or_else(too_many_pieces)?;
    let (direct, mut rest) = blocks.split_at(blocks.len().min(DIRECT));
    for (slot, &block) in direct.iter().enumerate() {
        indirect::set_entry(&mut inode.block, slot, block);
    }
    let before = files.blocks.len();
    let mut reach = 1;
    for level in 0..MAX_DEPTH {
        reach *= layout.geometry.block_size as usize / 4;
        let (here, behind) = rest.split_at(rest.len().min(reach));
        if !here.is_empty() {
            let root = write_indirect(layout, here, reach, files)?;
            indirect::set_entry(&mut inode.block, DIRECT + level, root);
        }
        rest = behind;
    }
    match rest {
        [] => Ok((files.blocks.len() - before) as u64),
        _ => Err(too_many_pieces()),
    }
}

/// Writes a block of pointers that together map up to `reach` blocks. Returns its number.
fn write_indirect(
    layout: &mut Layout,
    blocks: &[u32],
    reach: usize,
    files: &mut Files,
) -> Result<u32> {
    let block_size = layout.geometry.block_size as usize;
    let each = reach / (block_size / 4);
    let node = layout.allocate(0, 1)?[0].start;
    let mut bytes = vec![0; block_size];
    for (slot, part) in blocks.chunks(each).enumerate() {
        let pointer = match part {
            [block] if each == 1 => *block,
            part => write_indirect(layout, part, each, files)?,
        };
        indirect::set_entry(&mut bytes, slot, pointer);
    }
    files.blocks.push((BlockNumber(node), bytes));
    u32::try_from(node).map_err(|_| too_many_pieces())
}
