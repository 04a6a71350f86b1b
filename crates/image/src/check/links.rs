//! Pass 4: whether every inode in use has as many names as it counts.

use pext4_ondisk::inode::{Inode, MAX_LINKS};
use pext4_ondisk::{GroupNumber, InodeNumber};
use pext4_sync::atomic::Ordering;

use super::Pass;
use super::catalogue::Kind;
use super::directories::Tree;
use super::findings::Place;
use super::inodes::InodeState;
use super::parallel::Workers;

/// Runs the pass.
pub(super) fn check(tree: &Tree<'_>, workers: &Workers<'_>) {
    let geometry = &tree.examination.volume.geometry;
    workers.each(
        Pass::Links,
        geometry.group_count,
        || (),
        |(), group| {
            check_group(tree, GroupNumber(group));
        },
    );
}

fn check_group(tree: &Tree<'_>, group: GroupNumber) {
    let examination = tree.examination;
    let geometry = &examination.volume.geometry;
    for (index, state, links) in tree.inodes.group(group).kept() {
        let left = links.load(Ordering::Relaxed).cast_signed();
        if !state.is_used() || (left == 0 && !state.holds_value()) {
            continue;
        }
        let Some(number) = geometry.inode_at(group, index) else {
            return;
        };
        let is_nameless = number < geometry.first_inode && number != InodeNumber::ROOT;
        if is_nameless || examination.hidden.contains(&number) {
            continue;
        }
        let Ok(inode) = examination.volume.inode(&examination.groups, number) else {
            continue;
        };
        if state.holds_value() {
            check_value(tree, number, &inode);
        } else {
            check_links(tree, number, state, &inode, left);
        }
    }
}

fn check_links(tree: &Tree<'_>, number: InodeNumber, state: InodeState, inode: &Inode, left: i32) {
    let found = i32::from(inode.links) - left;
    let findings = &tree.examination.findings;
    if state.is_directory() {
        let is_attached = tree
            .directories
            .find(number)
            .is_some_and(|place| number == InodeNumber::ROOT || tree.parent(place).is_some());
        let counts_no_more =
            inode.links == 1 && (state.is_overflown() || found > i32::from(MAX_LINKS));
        if !is_attached || counts_no_more {
            return;
        }
    } else if found == 0 {
        return findings.add(Kind::InodeUnattached, Place::inode(number), || {
            format!("counts {} names, has none", inode.links)
        });
    }
    findings.add(Kind::LinkCount, Place::inode(number), || {
        format!("counts {} names, has {found}", inode.links)
    });
}

fn check_value(tree: &Tree<'_>, number: InodeNumber, inode: &Inode) {
    let found = tree.examination.values.found(u64::from(number.get()));
    let stored = inode.value_references();
    if found != 0 && inode.links != 1 {
        let place = Place::inode(number);
        tree.examination.findings.add(Kind::ValueInode, place, || {
            format!("counts {} links, not 1", inode.links)
        });
    }
    if found == 0 && stored == 0 {
        return tree
            .examination
            .findings
            .add(Kind::InodeUnattached, Place::inode(number), || {
                "holds a value, and no attribute has it".to_owned()
            });
    }
    if found != stored {
        let place = Place::inode(number);
        tree.examination
            .findings
            .add(Kind::ValueReferences, place, || {
                format!("counts {stored} attributes, has {found}")
            });
    }
}
