//! The last pass: looks up the paths of inodes that findings name.
//!
//! If there are such findings, all directories are read once more for the names of those inodes,
//! and then their ancestors for the names of the directories on the way. Inodes in encrypted or
//! inline directories get no path.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::ControlFlow;

use pext4_ondisk::{BlockNumber, InodeNumber, directory};

use super::Pass;
use super::budget::Budget;
use super::directories::{MAX_BROKEN_BLOCKS, Tree};
use super::findings::Finding;
use super::parallel::Workers;

/// The maximum length of a path in bytes.
const MAX_PATH_LENGTH: usize = 4096;

/// The index of a directory in the list, and a name in it.
type Named = (usize, Vec<u8>);

/// Fills in the paths.
pub(super) fn fill_in(tree: &Tree<'_>, findings: &mut [Finding], workers: &Workers<'_>) {
    let wanted: HashSet<u32> = findings
        .iter()
        .filter_map(|finding| Some(finding.place.inode?.get()))
        .collect();
    if wanted.is_empty() {
        return;
    }
    let count = u32::try_from(tree.directories.list.len()).unwrap_or(u32::MAX);
    let budget = budget(tree);
    let found = workers.each(Pass::Paths, count, HashMap::new, |found, place| {
        let reader = Reader {
            tree,
            workers,
            budget: &budget,
            place: place as usize,
        };
        reader.each_name(|name, inode| {
            if wanted.contains(&inode) {
                keep(found, inode, (place as usize, name.to_vec()));
            }
            ControlFlow::Continue(())
        });
    });
    let mut names = HashMap::new();
    for (inode, named) in found.into_iter().flatten() {
        keep(&mut names, inode, named);
    }
    let directories = ancestor_names(tree, &names, workers);
    for finding in findings {
        if let Some(inode) = finding.place.inode {
            finding.place.path = path(tree, inode.get(), &names, &directories);
        }
    }
}

/// Bounds the blocks that are read: directories that share no blocks have no more than the image.
fn budget(tree: &Tree<'_>) -> Budget {
    Budget::new(tree.examination.blocks_to_read)
}

/// Keeps the first of several names that lead to an inode.
fn keep(names: &mut HashMap<u32, Named>, inode: u32, named: Named) {
    match names.entry(inode) {
        Entry::Vacant(vacant) => {
            vacant.insert(named);
        }
        Entry::Occupied(mut kept) if named < *kept.get() => {
            kept.insert(named);
        }
        Entry::Occupied(_) => {}
    }
}

/// Reads the names of one directory.
struct Reader<'a> {
    tree: &'a Tree<'a>,
    workers: &'a Workers<'a>,
    budget: &'a Budget,
    place: usize,
}

impl Reader<'_> {
    /// Calls `each` with every name except `.` and `..`, until it breaks.
    fn each_name(&self, mut each: impl FnMut(&[u8], u32) -> ControlFlow<()>) {
        let subject = self.tree.subject(self.place);
        let volume = &self.tree.examination.volume;
        if subject.directory.is_inline || subject.directory.is_encrypted {
            return;
        }
        let end = subject.blocks();
        let mut broken = 0;
        let mut bytes = vec![0; volume.block_size()];
        for run in subject.runs.iter().filter(|run| run.logical < end) {
            for offset in 0..run.length.min(end - run.logical) {
                let is_over = broken == MAX_BROKEN_BLOCKS || self.workers.is_cancelled();
                if is_over || !self.budget.take(1) {
                    return;
                }
                let block = BlockNumber(run.start + u64::from(offset));
                if volume.read(block, &mut bytes).is_err() {
                    continue;
                }
                for entry in directory::entries(&bytes, volume.format) {
                    let Ok(entry) = entry else {
                        broken += 1;
                        break;
                    };
                    let is_dot = matches!(entry.name, b"." | b"..");
                    if !is_dot && each(entry.name, entry.inode.get()).is_break() {
                        return;
                    }
                }
            }
        }
    }
}

/// The names of all directories on the way from the root to those of `names`, by index. Every
/// directory that contains some of them is read once, as far as needed.
fn ancestor_names(
    tree: &Tree<'_>,
    names: &HashMap<u32, Named>,
    workers: &Workers<'_>,
) -> HashMap<usize, Vec<u8>> {
    let list = &tree.directories.list;
    let mut seen = HashSet::new();
    let mut wanted: BTreeMap<usize, HashMap<u32, usize>> = BTreeMap::new();
    for &(mut place, _) in names.values() {
        // If a directory was seen, its ancestors were seen too.
        while seen.insert(place) {
            let Some(parent) = tree.parent(place) else {
                break;
            };
            let children = wanted.entry(parent).or_default();
            children.insert(list[place].inode, place);
            place = parent;
        }
    }
    let wanted: Vec<_> = wanted.into_iter().collect();
    let count = u32::try_from(wanted.len()).unwrap_or(u32::MAX);
    let budget = budget(tree);
    let found = workers.each(Pass::Paths, count, HashMap::new, |found, number| {
        let (parent, children) = &wanted[number as usize];
        let reader = Reader {
            tree,
            workers,
            budget: &budget,
            place: *parent,
        };
        let mut left = children.clone();
        reader.each_name(|name, inode| {
            if let Some(place) = left.remove(&inode) {
                found.insert(place, name.to_vec());
            }
            match left.is_empty() {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        });
    });
    found.into_iter().flatten().collect()
}

/// The path to an inode, if all directories on it have names.
fn path(
    tree: &Tree<'_>,
    inode: u32,
    names: &HashMap<u32, Named>,
    directories: &HashMap<usize, Vec<u8>>,
) -> Option<Vec<u8>> {
    if inode == InodeNumber::ROOT.get() {
        return Some(b"/".to_vec());
    }
    let &(mut place, ref name) = names.get(&inode)?;
    let mut parts = vec![name.clone()];
    let mut length = name.len() + 1;
    while tree.directories.list[place].inode != InodeNumber::ROOT.get() {
        let parent = tree.parent(place)?;
        let name = directories.get(&place)?;
        length += name.len() + 1;
        if length > MAX_PATH_LENGTH {
            return None;
        }
        parts.push(name.clone());
        place = parent;
    }
    let mut path = Vec::with_capacity(length);
    for part in parts.iter().rev() {
        path.push(b'/');
        path.extend_from_slice(part);
    }
    Some(path)
}
