//! Images whose directories have the same blocks of names: each name takes its bytes once, and is
//! there as often as there are directories.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pext4_block::{Access, FileDevice};
use pext4_fs::{CreateAttributes, InodeNumber, MountOptions, Volume};

use crate::oracle::debugfs;
use crate::oracle::format::{Features, Format};

const BLOCK: usize = 1024;
/// Blocks that an inode maps itself, and those that its node of pointers maps.
const DIRECT: usize = 12;
const MAPPED: usize = BLOCK / 4;
/// Bytes of an entry. Long ones, so that the names are not too many for a test.
const ENTRY: usize = 256;

/// The size of the image in bytes.
pub const SIZE: u64 = 4 << 20;
/// So many directories share the names. Together they are larger than the image.
pub const DIRECTORIES: u32 = 20;
/// So many of them are not.
pub const FITTING: u32 = 15;
/// Names in each of them, which are all of one file.
pub const NAMES: u32 = (MAPPED * BLOCK / ENTRY) as u32;
/// Each of them has this name: the path of all is `/!/!/!...`.
pub const NESTED: &str = "!";

/// Where the directories are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// In the root, as `/!0`, `/!1` and so on.
    InRoot,
    /// In one another, each as [`NESTED`], the first name of all.
    InOneAnother,
}

/// Makes such an image.
///
/// # Errors
///
/// A tool is missing; there is no room.
pub fn make(image: &Path, placement: Placement) -> Result<()> {
    Format::new(SIZE, BLOCK as u32, Features::Ext3).make(image)?;
    let directories = fill(image, placement)?;
    let nodes = debugfs::pointer_blocks_of(image, "/names")?;
    let node = nodes.first().context("a node of pointers")?;
    let blocks = debugfs::blocks_of(image, "/names")?;
    let nameless = blocks.first().context("a block without names")?;
    let mut requests = vec!["set_inode_field /first links_count 60000".to_owned()];
    for directory in directories {
        let set = |field: &str| format!("set_inode_field <{directory}> {field}");
        requests.extend((1..DIRECT).map(|block| set(&format!("block[{block}] {nameless}"))));
        requests.push(set(&format!("block[IND] {node}")));
        requests.push(set(&format!("size {}", (DIRECT + MAPPED) * BLOCK)));
    }
    debugfs::command(image, &requests).map(drop)
}

/// Creates the directories, the file that has the names, and one whose content is the blocks of
/// names. Returns the directories.
fn fill(image: &Path, placement: Placement) -> Result<Vec<InodeNumber>> {
    let device = Arc::new(FileDevice::open(image, Access::ReadWrite, Duration::ZERO)?);
    let volume = Volume::open(device, MountOptions::default())?;
    let new = CreateAttributes::default();
    let first = volume.create(InodeNumber::ROOT, b"first", &new)?.inode;
    let names = volume.create(InodeNumber::ROOT, b"names", &new)?.inode;
    let mut nameless = entry(0, "");
    nameless[4..6].copy_from_slice(&(BLOCK as u16).to_le_bytes());
    nameless.resize(BLOCK, 0);
    let entries = (0..NAMES).map(|number| entry(first.get(), &format!("{number:0>240}")));
    for (at, bytes) in [(0, nameless), (DIRECT * BLOCK, entries.flatten().collect())] {
        let written = volume.write(names, at as u64, &bytes)?;
        ensure!(written == bytes.len(), "there is no room");
    }
    let mut directories = Vec::new();
    let mut parent = InodeNumber::ROOT;
    for number in 0..DIRECTORIES {
        let name = match placement {
            Placement::InRoot => format!("!{number}"),
            Placement::InOneAnother => NESTED.to_owned(),
        };
        let made = volume.make_directory(parent, name.as_bytes(), &new)?.inode;
        directories.push(made);
        if placement == Placement::InOneAnother {
            parent = made;
        }
    }
    volume.close()?;
    Ok(directories)
}

/// An entry of a directory.
fn entry(inode: u32, name: &str) -> Vec<u8> {
    let regular = u8::from(inode != 0);
    let mut bytes = inode.to_le_bytes().to_vec();
    bytes.extend((ENTRY as u16).to_le_bytes());
    bytes.extend([name.len() as u8, regular]);
    bytes.extend(name.bytes());
    bytes.resize(ENTRY, 0);
    bytes
}
