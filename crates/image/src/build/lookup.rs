//! Walks paths in the tree as the image will resolve them: symbolic links are followed inside the
//! image, and `..` stops at its root. The tree's index must exist.

use pext4_ondisk::directory::name_problem;

use super::tree::{Id, ROOT, Tree};

/// Maximum number of symbolic links that one path may traverse, as in Linux.
const MAX_SYMLINKS: u32 = 40;

/// Maximum number of names that the symbolic links on one path may add to it: twice those of the
/// longest path that Linux accepts. Forty links could add forty times as many, and an archive could
/// use them for each of its entries.
const MAX_LINKED_NAMES: usize = 4096;

/// Why a path leads to no directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Obstacle {
    /// It leads through something that is neither a directory nor a symbolic link, or a link leads
    /// to a name that the image cannot hold.
    NoDirectory,
    /// More symbolic links than [`MAX_SYMLINKS`].
    ManyLinks,
    /// Links that add more than [`MAX_LINKED_NAMES`].
    LongLinks,
}

impl std::fmt::Display for Obstacle {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoDirectory => formatter.write_str("it is no directory"),
            Self::ManyLinks => write!(
                formatter,
                "it leads to no directory: it has more than {MAX_SYMLINKS} symbolic links, or they form a circle"
            ),
            Self::LongLinks => write!(
                formatter,
                "it is too deep: its symbolic links lead through more than {MAX_LINKED_NAMES} directories"
            ),
        }
    }
}

/// Where the path of a directory leads.
pub(super) struct Destination {
    /// The last directory on it that exists.
    pub at: Id,
    /// The names below, of directories that do not exist.
    pub missing: Vec<Vec<u8>>,
}

/// Follows a path. The error says why it cannot be followed.
pub(super) fn locate(tree: &Tree, path: &[u8]) -> Result<Destination, Obstacle> {
    locate_from(tree, ROOT, path, |_| {})
}

/// Whether a path leads through a symbolic link of which that is so, or ends at another file of
/// which it is.
pub(super) fn leads_through(tree: &Tree, path: &[u8], is_so: impl Fn(Id) -> bool) -> bool {
    let mut leads = false;
    // An obstacle was passed on as well.
    let _ = locate_from(tree, ROOT, path, |id| leads |= is_so(id));
    leads
}

/// Follows a path from a directory, and passes on the names on it that are no directories.
fn locate_from(
    tree: &Tree,
    start: Id,
    path: &[u8],
    mut meet: impl FnMut(Id),
) -> Result<Destination, Obstacle> {
    let mut rest: Vec<Vec<u8>> = names(path).map(<[u8]>::to_vec).rev().collect();
    let (mut at, mut missing, mut links) = (start, Vec::new(), 0);
    let mut linked_names = 0;
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
        let Some(named) = found else {
            if name_problem(&name).is_some() {
                return Err(Obstacle::NoDirectory);
            }
            missing.push(name);
            continue;
        };
        let found = tree.owner(named);
        if tree.node(found).is_directory() {
            at = found;
            continue;
        }
        meet(named);
        if !tree.node(found).is_symlink() {
            return Err(Obstacle::NoDirectory);
        } else if links == MAX_SYMLINKS {
            return Err(Obstacle::ManyLinks);
        } else {
            links += 1;
            let target = tree.target(found);
            if target.starts_with(b"/") {
                at = ROOT;
            }
            linked_names += names(target).count();
            if linked_names > MAX_LINKED_NAMES {
                return Err(Obstacle::LongLinks);
            }
            rest.extend(names(target).rev().map(<[u8]>::to_vec));
        }
    }
    Ok(Destination { at, missing })
}

/// The node at a path, if it exists.
pub(super) fn find(tree: &Tree, path: &[u8]) -> Option<Id> {
    let Some((folder, name)) = split(path) else {
        return Some(ROOT);
    };
    let destination = locate(tree, folder).ok()?;
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
    let destination = locate_from(tree, parent, name, |_| {}).ok()?;
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
