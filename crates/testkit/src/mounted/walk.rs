//! Reads the whole tree of a mounted directory.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::Path;

use pext4_fs::FileType;
use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::Result;
use super::files::{
    list, open_path, open_root, read_all, read_link, seek_settled, seekable, stat, xattr,
    xattr_names,
};
use crate::content::Content;
use crate::errno::{EIO, ENXIO, Failure};
use crate::tree::{Item, Tree, join};

/// Bytes read at once.
const STRIDE: usize = 1 << 20;

/// Walks a mounted directory; returns its whole tree.
pub fn walk(directory: &Path) -> Result<Tree> {
    let mut tree = Tree::default();
    let root = open_root(directory)?;
    tree.items.insert(Vec::new(), item(&root)?);
    let mut todo = vec![(Vec::new(), root)];
    while let Some((path, directory)) = todo.pop() {
        for listed in list(&directory, usize::from(u16::MAX))? {
            let at = join(&path, &listed.name);
            let file = open_path(&directory, &listed.name)?;
            let mut found = item(&file);
            if let Err(failure) = &mut found {
                failure
                    .text
                    .push_str(&format!(" at {}", crate::tree::show(&at)));
            }
            let found = found?;
            if !listed.agrees(&found.facts) {
                let text = format!("{listed:?} is listed, {:?} is there", found.facts);
                return Err(Failure { errno: EIO, text });
            }
            if found.facts.kind == FileType::Directory {
                todo.push((at.clone(), file));
            }
            tree.items.insert(at, found);
        }
    }
    Ok(tree)
}

fn item(file: &OwnedFd) -> Result<Item> {
    let facts = stat(file)?;
    let mut xattrs = BTreeMap::new();
    for name in xattr_names(file)? {
        let value = xattr(file, &name)?;
        xattrs.insert(name, value);
    }
    let content = (facts.kind == FileType::Regular).then(|| content(file, facts.size));
    let link = (facts.kind == FileType::Symlink).then(|| read_link(file));
    Ok(Item {
        facts,
        content: content.transpose()?,
        link: link.transpose()?,
        xattrs,
    })
}

fn content(file: &OwnedFd, size: u64) -> Result<Content> {
    let file = seekable(file)?;
    let mut content = Content::default();
    content.resize(size);
    let mut at = 0;
    while at < size {
        let data = match seek_settled(&file, SeekFrom::Data(at)) {
            Err(Errno::NXIO) => break,
            Ok(data) if data >= size => break,
            other => other?,
        };
        let hole = seek_settled(&file, SeekFrom::Hole(data)).map_err(|error| {
            let text = format!("{error} when seeking a hole from {data} of {size}");
            Failure {
                text,
                ..Failure::from(error)
            }
        })?;
        at = data;
        while at < hole {
            let take = (hole - at).min(STRIDE as u64) as usize;
            let bytes = read_all(&file, at, take)?;
            if bytes.is_empty() {
                return Err(Failure {
                    errno: ENXIO,
                    text: format!("nothing to read at {at}"),
                });
            }
            content.write(at, &bytes);
            at += bytes.len() as u64;
        }
    }
    Ok(content)
}
