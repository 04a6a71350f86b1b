//! The whole tree of a volume, as the volume tells it.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, Result};
use pext4_block::Device;
use pext4_fs::{FileType, InodeNumber, MountOptions, Volume};

use super::Held;
use crate::content::Content;
use crate::errno::{EIO, ENXIO, Failure};
use crate::outcome::{Facts, Listed};
use crate::tree::{Item, Tree, join};

/// A path with more directories than this counts as a loop.
const DEEPEST: usize = 4096;
/// Bytes read at once by the walker.
const STRIDE: u64 = 1 << 20;

/// Walks a volume from a directory; returns the tree.
pub fn walk(volume: &Volume, root: InodeNumber) -> Result<Tree, Failure> {
    let mut tree = Tree::default();
    tree.items.insert(Vec::new(), item(volume, root)?);
    let mut todo = vec![(Vec::new(), root, 0)];
    while let Some((path, directory, depth)) = todo.pop() {
        if depth > DEEPEST {
            return Err(Failure {
                errno: EIO,
                text: "directories without end".to_owned(),
            });
        }
        for listed in children(volume, directory)? {
            let at = join(&path, &listed.name);
            let entry = volume.lookup(directory, &listed.name)?;
            let held = Held {
                volume,
                inode: entry.inode,
                holds: 1,
            };
            check_entry(&listed, &entry)?;
            if entry.attributes.file_type == FileType::Directory {
                todo.push((at.clone(), held.inode, depth + 1));
            }
            tree.items.insert(at, item(volume, held.inode)?);
        }
    }
    Ok(tree)
}

fn check_entry(listed: &Listed, entry: &pext4_fs::Entry) -> Result<(), Failure> {
    if listed.agrees(&Facts::from(&entry.attributes)) {
        return Ok(());
    }
    let text = format!("{listed:?} is listed, {:?} is looked up", entry.attributes);
    Err(Failure { errno: EIO, text })
}

fn children(volume: &Volume, directory: InodeNumber) -> Result<Vec<Listed>, Failure> {
    let mut entries = Vec::new();
    volume.read_directory(directory, 0, &mut |entry| {
        if entry.name != b"." && entry.name != b".." {
            entries.push(Listed::from(entry));
        }
        true
    })?;
    Ok(entries)
}

fn item(volume: &Volume, inode: InodeNumber) -> Result<Item, Failure> {
    let attributes = volume.attributes(inode)?;
    let kind = attributes.file_type;
    let mut xattrs = BTreeMap::new();
    for name in volume.xattr_names(inode)? {
        let value = volume.xattr(inode, &name)?;
        xattrs.insert(name, value);
    }
    let content = (kind == FileType::Regular).then(|| content(volume, inode, attributes.size));
    let link = (kind == FileType::Symlink)
        .then(|| volume.read_link(inode))
        .transpose()?;
    Ok(Item {
        facts: Facts::from(&attributes),
        content: content.transpose()?,
        link,
        xattrs,
    })
}

/// Reads a file, skipping what the volume reports as holes.
fn content(volume: &Volume, inode: InodeNumber, size: u64) -> Result<Content, Failure> {
    let wrong = |text: String| Failure { errno: EIO, text };
    let mut content = Content::default();
    content.resize(size);
    let mut at = 0;
    let mut bytes = vec![0; STRIDE as usize];
    while at < size {
        let data = match volume.seek_data(inode, at) {
            Err(error) if error.errno() == ENXIO => break,
            other => other?,
        };
        let hole = volume.seek_hole(inode, data)?;
        if data < at || hole <= data || hole > size {
            return Err(wrong(format!(
                "data at {data}, then a hole at {hole}, sought from {at}"
            )));
        }
        at = data;
        while at < hole {
            let take = (hole - at).min(STRIDE) as usize;
            let count = volume.read(inode, at, &mut bytes[..take])?;
            if count != take {
                return Err(wrong(format!("{count} bytes of {take} at {at}")));
            }
            content.write(at, &bytes[..take]);
            at += take as u64;
        }
    }
    Ok(content)
}

/// Opens, walks and closes an image that nobody else uses.
pub fn tree_of(device: Arc<dyn Device>, read_only: bool) -> Result<Tree> {
    let options = MountOptions {
        read_only,
        ..MountOptions::default()
    };
    let volume = Volume::open(device, options).context("opening the volume")?;
    let tree = walk(&volume, InodeNumber::ROOT).map_err(|failure| anyhow::anyhow!("{failure}"))?;
    volume.close().context("closing the volume")?;
    Ok(tree)
}
