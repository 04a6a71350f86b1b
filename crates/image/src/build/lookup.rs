//! Walks paths in the tree as the image will resolve them: symbolic links are followed inside the
//! image, and `..` stops at its root. The tree's index must exist.

use super::tree::{Id, ROOT, Tree, name_problem};

/// Maximum number of symbolic links that one path may traverse, as in Linux.
const MAX_SYMLINKS: u32 = 40;

/// Where the path of a directory leads.
pub(super) struct Destination {
    /// The last directory on it that exists.
    pub at: Id,
    /// The names below, of directories that do not exist.
    pub missing: Vec<Vec<u8>>,
}

/// Follows a path; `None` if it leads through a file, or symbolic links are too many or lead to
/// names that the image cannot hold.
pub(super) fn locate(tree: &Tree, path: &[u8]) -> Option<Destination> {
    locate_from(tree, ROOT, path)
}

fn locate_from(tree: &Tree, start: Id, path: &[u8]) -> Option<Destination> {
    let mut rest: Vec<Vec<u8>> = names(path).map(<[u8]>::to_vec).rev().collect();
    let (mut at, mut missing, mut links) = (start, Vec::new(), 0);
    while let Some(name) = rest.pop() {
        if name == b".." {
            if missing.pop().is_none() {
                at = tree.node(at).parent;
            }
            continue;
        }
        let found = match missing.is_empty() {
            true => tree.child(at, &name),
            false => None,
        };
        let Some(found) = found.map(|found| tree.owner(found)) else {
            if name_problem(&name).is_some() {
                return None;
            }
            missing.push(name);
            continue;
        };
        if tree.node(found).is_directory() {
            at = found;
        } else if tree.node(found).is_symlink() && links < MAX_SYMLINKS {
            links += 1;
            let target = tree.target(found);
            if target.starts_with(b"/") {
                at = ROOT;
            }
            rest.extend(names(target).rev().map(<[u8]>::to_vec));
        } else {
            return None;
        }
    }
    Some(Destination { at, missing })
}

/// The node at a path, if it exists.
pub(super) fn find(tree: &Tree, path: &[u8]) -> Option<Id> {
    let Some((folder, name)) = split(path) else {
        return Some(ROOT);
    };
    let destination = locate(tree, folder)?;
    match destination.missing.is_empty() {
        true => tree.child(destination.at, name),
        false => None,
    }
}

/// The directory to which a name leads that is a symbolic link of a source before `number`.
pub(super) fn directory_behind_link(
    tree: &Tree,
    parent: Id,
    name: &[u8],
    number: u16,
) -> Option<Id> {
    let link = tree.node(tree.child(parent, name)?);
    if !link.is_symlink() || link.source >= number {
        return None;
    }
    let destination = locate_from(tree, parent, name)?;
    destination.missing.is_empty().then_some(destination.at)
}

/// The names of a path.
pub(super) fn names(path: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    path.split(|&byte| byte == b'/')
        .filter(|name| !matches!(*name, b"" | b"."))
}

/// The parent and the last name of a path; `None` for the root.
pub(super) fn split(path: &[u8]) -> Option<(&[u8], &[u8])> {
    if path.is_empty() {
        return None;
    }
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(slash) => Some((&path[..slash], &path[slash + 1..])),
        None => Some((b"", path)),
    }
}
