//! Which flags an inode may have, by its kind and the features.

use pext4_ondisk::InodeNumber;
use pext4_ondisk::directory::FileType;
use pext4_ondisk::feature::{Compat, Incompat};
use pext4_ondisk::inode::InodeFlags;

use super::{InodeSubject, has_map, is_own};
use crate::check::catalogue::Kind;

/// Flags, whether the inode must not have them, and what is wrong if it has.
type FlagRule = (InodeFlags, bool, &'static str);

fn flag_rules(subject: &InodeSubject<'_>) -> [FlagRule; 11] {
    let is = |kind| subject.kind == Some(kind);
    let incompat = |bits| subject.features().has_incompat(bits);
    let has_map = is(FileType::Regular) || is(FileType::Directory) || is(FileType::Symlink);
    let is_directory = is(FileType::Directory);
    let is_special = subject.kind.is_some() && !has_map;
    let has_inline_data = subject.has(InodeFlags::INLINE_DATA);
    [
        (
            InodeFlags::EXTENTS,
            !incompat(Incompat::EXTENTS),
            "extents without the feature",
        ),
        (
            InodeFlags::EXTENTS,
            has_inline_data,
            "extents and inline data at once",
        ),
        (
            InodeFlags::EXTENTS,
            subject.inode.is_fast_symlink(),
            "extents, and the target of the link is in the inode",
        ),
        (
            InodeFlags::INLINE_DATA,
            !incompat(Incompat::INLINE_DATA),
            "inline data without the feature",
        ),
        (
            InodeFlags::INDEX,
            !is_directory,
            "an index, and it is no directory",
        ),
        (
            InodeFlags::INDEX,
            !subject.features().has_compat(Compat::DIR_INDEX),
            "an index without the feature",
        ),
        (
            InodeFlags::INDEX,
            has_inline_data,
            "an index and inline data at once",
        ),
        (
            InodeFlags::IMAGIC,
            !is_own(subject) && !subject.features().has_compat(Compat::IMAGIC_INODES),
            "an inode of AFS without the feature",
        ),
        (
            InodeFlags::EA_INODE,
            !incompat(Incompat::EA_INODE),
            "an attribute's value without the feature",
        ),
        (
            InodeFlags::EXTENTS,
            is_special,
            "extents, and it has no content",
        ),
        (
            InodeFlags::IMMUTABLE | InodeFlags::APPEND,
            is_special || is(FileType::Symlink),
            "immutable or append-only, which only files and directories may be",
        ),
    ]
}

/// The rules on directories whose names are folded.
fn casefold_rules(subject: &InodeSubject<'_>) -> [FlagRule; 2] {
    let is_directory = subject.kind == Some(FileType::Directory);
    let has_feature = subject.features().has_incompat(Incompat::CASEFOLD);
    [
        (
            InodeFlags::CASEFOLD,
            !is_directory,
            "names whose case does not matter, and it is no directory",
        ),
        (
            InodeFlags::CASEFOLD,
            !has_feature,
            "names whose case does not matter, without the feature",
        ),
    ]
}

/// Reports the first rule on flags that the inode breaks.
pub(super) fn check_flags(subject: &InodeSubject<'_>) {
    let mut broken = flag_rules(subject)
        .into_iter()
        .chain(casefold_rules(subject))
        .filter(|(flags, is_forbidden, _)| *is_forbidden && subject.inode.flags.intersects(*flags));
    let has_clusters = subject.examination.volume.geometry.has_bigalloc();
    let text = match broken.next() {
        Some((_, _, text)) => text,
        None if has_clusters && uses_block_map(subject) => {
            "a block map in a file system of clusters"
        }
        None => return,
    };
    subject.report(Kind::InodeFlags, || text.to_owned());
}

fn uses_block_map(subject: &InodeSubject<'_>) -> bool {
    has_map(subject)
        && subject.number != InodeNumber::RESIZE
        && !subject.inode.has_extents()
        && subject.inode.block.iter().any(|&byte| byte != 0)
}
