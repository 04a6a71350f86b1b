//! The last look: paths to the inodes that findings name.
//!
//! Only where there are findings: directories are read once more for the names of those inodes,
//! and then upwards for the names of the directories on the way. What lies in encrypted or inline
//! directories keeps its number alone.

use std::collections::HashMap;

use pext4_ondisk::{BlockNumber, InodeNumber, directory};

use super::Pass;
use super::directories::Tree;
use super::findings::Finding;
use super::parallel::Workers;

/// Longest path that is made.
const LONGEST: usize = 4096;

/// A name in a directory.
type Named = (usize, Vec<u8>);

/// Fills in the paths.
pub(super) fn fill_in(tree: &Tree<'_>, findings: &mut [Finding], workers: &Workers<'_>) {
    let wanted: HashMap<u32, ()> = findings
        .iter()
        .filter_map(|finding| finding.place.inode)
        .map(|inode| (inode, ()))
        .collect();
    if wanted.is_empty() {
        return;
    }
    let count = u32::try_from(tree.directories.list.len()).unwrap_or(u32::MAX);
    let found = workers.each(Pass::Paths, count, Vec::new, |found, place| {
        each_name(tree, place as usize, |name, inode| {
            if wanted.contains_key(&inode) {
                found.push((inode, (place as usize, name.to_vec())));
            }
        });
    });
    let mut names: HashMap<u32, Named> = HashMap::new();
    for (inode, named) in found.into_iter().flatten() {
        let kept = names.entry(inode).or_insert_with(|| named.clone());
        if named < *kept {
            *kept = named;
        }
    }
    let mut directories = HashMap::new();
    for finding in findings {
        let Some(inode) = finding.place.inode else {
            continue;
        };
        finding.place.path = path(tree, inode, &names, &mut directories);
    }
}

/// Calls `each` with every name of a directory but `.` and `..`.
fn each_name(tree: &Tree<'_>, place: usize, mut each: impl FnMut(&[u8], u32)) {
    let subject = tree.subject(place);
    let volume = &tree.examination.volume;
    if subject.directory.is_inline || subject.directory.is_encrypted {
        return;
    }
    let end = subject.blocks();
    let mut bytes = vec![0; volume.block_size()];
    for run in subject.runs.iter().filter(|run| run.logical < end) {
        for offset in 0..run.length.min(end - run.logical) {
            let block = BlockNumber(run.start + u64::from(offset));
            if volume.read(block, &mut bytes).is_err() {
                continue;
            }
            for entry in directory::entries(&bytes, volume.format).map_while(Result::ok) {
                if !matches!(entry.name, b"." | b"..") {
                    each(entry.name, entry.inode.get());
                }
            }
        }
    }
}

/// The path to an inode, if every step of it has a name.
fn path(
    tree: &Tree<'_>,
    inode: u32,
    names: &HashMap<u32, Named>,
    directories: &mut HashMap<usize, Option<Vec<u8>>>,
) -> Option<Vec<u8>> {
    if inode == InodeNumber::ROOT.get() {
        return Some(b"/".to_vec());
    }
    let &(mut place, ref name) = names.get(&inode)?;
    let mut parts = vec![name.clone()];
    let mut length = name.len() + 1;
    while tree.directories.list[place].inode != InodeNumber::ROOT.get() {
        let parent = tree.parent(place)?;
        let own = tree.directories.list[place].inode;
        let name = directories
            .entry(place)
            .or_insert_with(|| name_in(tree, parent, own))
            .clone()?;
        length += name.len() + 1;
        if length > LONGEST {
            return None;
        }
        parts.push(name);
        place = parent;
    }
    let mut path = Vec::with_capacity(length);
    for part in parts.iter().rev() {
        path.push(b'/');
        path.extend_from_slice(part);
    }
    Some(path)
}

fn name_in(tree: &Tree<'_>, parent: usize, inode: u32) -> Option<Vec<u8>> {
    let mut found = None;
    each_name(tree, parent, |name, target| {
        if target == inode && found.is_none() {
            found = Some(name.to_vec());
        }
    });
    found
}
