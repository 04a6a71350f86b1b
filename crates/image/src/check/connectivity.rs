//! Pass 3: whether the root leads to every directory, and `..` back.

use pext4_ondisk::InodeNumber;

use super::catalogue::Kind;
use super::directories::Tree;
use super::findings::Place;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mark {
    Unknown,
    /// On the way that is being walked.
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

/// Climbs from a directory to the first that is known, and reports where the way ends.
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

/// Whether it waits to be deleted: no name is to lead to it.
fn is_orphan(tree: &Tree<'_>, number: InodeNumber) -> bool {
    tree.examination.orphans.contains(number)
}

/// Compares `..` with the directory that has the name, and counts the link that it should be.
fn check_parent(tree: &Tree<'_>, place: usize) {
    let list = &tree.directories.list;
    let own = InodeNumber(list[place].inode);
    let stored = tree.dot_dot(place);
    let parent = match tree.parent(place) {
        Some(parent) => InodeNumber(list[parent].inode),
        None if own == InodeNumber::ROOT => own,
        // When its name was taken away, so was the link that its `..` had been.
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
