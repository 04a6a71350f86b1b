//! Pass 3: whether every directory is reachable from the root, and `..` leads to its parent.

use pext4_ondisk::InodeNumber;

use super::catalogue::Kind;
use super::directories::Tree;
use super::findings::Place;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mark {
    Unknown,
    /// On the path that is being climbed.
    OnPath,
    Done,
}

/// Runs the pass.
pub(super) fn check(tree: &Tree<'_>) {
    let list = &tree.directories.list;
    let mut marks = vec![Mark::Unknown; list.len()];
    let mut way = Vec::new();
    for place in 0..list.len() {
        climb(tree, place, &mut marks, &mut way);
        check_parent(tree, place);
    }
}

/// Climbs from a directory to the first ancestor that was visited. Reports a missing parent or a
/// loop.
fn climb(tree: &Tree<'_>, place: usize, marks: &mut [Mark], way: &mut Vec<usize>) {
    let number = |place: usize| InodeNumber(tree.directories.list[place].inode);
    let report = |kind, place, text: &str| {
        let place = Place::inode(number(place));
        tree.examination
            .findings
            .add(kind, place, || text.to_owned());
    };
    let mut at = place;
    while marks[at] == Mark::Unknown {
        marks[at] = Mark::OnPath;
        way.push(at);
        match tree.parent(at) {
            Some(parent) => at = parent,
            None if number(at) == InodeNumber::ROOT || is_orphan(tree, number(at)) => break,
            None => {
                report(Kind::DirectoryUnattached, at, "no name leads to it");
                break;
            }
        }
        if marks[at] == Mark::OnPath {
            report(Kind::DirectoryLoop, at, "it lies below itself");
        }
    }
    for place in way.drain(..) {
        marks[place] = Mark::Done;
    }
}

/// Whether it is an orphan, to which no name must lead.
fn is_orphan(tree: &Tree<'_>, number: InodeNumber) -> bool {
    tree.examination.orphans.contains(number)
}

/// Compares `..` with the directory that has the name, and counts its link to the parent.
fn check_parent(tree: &Tree<'_>, place: usize) {
    let list = &tree.directories.list;
    let own = InodeNumber(list[place].inode);
    let stored = tree.dot_dot(place);
    let parent = match tree.parent(place) {
        Some(parent) => InodeNumber(list[parent].inode),
        None if own == InodeNumber::ROOT => own,
        // Removing the name of a directory also removes the link of its `..`.
        None if is_orphan(tree, own) => return,
        None => return tree.inodes.link(stored),
    };
    tree.inodes.link(parent);
    if stored.get() != 0 && stored != parent {
        let place = Place::inode(own);
        tree.examination
            .findings
            .add(Kind::DirectoryDotDot, place, || {
                format!("'..' leads to inode {stored}, its name lies in {parent}")
            });
    }
}
