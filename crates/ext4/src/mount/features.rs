//! Which features allow writing to an image, which only reading, and which prevent a mount.

use pext4_ondisk::casefold;
use pext4_ondisk::feature::{Compat, Incompat, ReadOnlyCompat};
use pext4_ondisk::inode::BASE_SIZE;
use pext4_ondisk::shown::Shown;
use pext4_ondisk::superblock::{State, Superblock};

use crate::error::{Error, Result};
use crate::options::MountOptions;

/// Incompatible features that are read and written.
const WRITTEN: Incompat = Incompat::FILETYPE
    .union(Incompat::RECOVER)
    .union(Incompat::EXTENTS)
    .union(Incompat::SIXTY_FOUR_BIT)
    .union(Incompat::FLEX_BG)
    .union(Incompat::CSUM_SEED)
    .union(Incompat::META_BG)
    .union(Incompat::MMP)
    .union(Incompat::INLINE_DATA)
    .union(Incompat::EA_INODE)
    .union(Incompat::LARGEDIR)
    .union(Incompat::ENCRYPT)
    .union(Incompat::CASEFOLD);

/// Together they allow directories with hashes of names that only their key gives.
const KEYED_NAMES: Incompat = Incompat::ENCRYPT.union(Incompat::CASEFOLD);

/// Read-only compatible features that are written; all others still allow reading.
const READ_ONLY_WRITTEN: ReadOnlyCompat = ReadOnlyCompat::SPARSE_SUPER
    .union(ReadOnlyCompat::LARGE_FILE)
    .union(ReadOnlyCompat::HUGE_FILE)
    .union(ReadOnlyCompat::GDT_CSUM)
    .union(ReadOnlyCompat::DIR_NLINK)
    .union(ReadOnlyCompat::EXTRA_ISIZE)
    .union(ReadOnlyCompat::METADATA_CSUM)
    .union(ReadOnlyCompat::PROJECT)
    .union(ReadOnlyCompat::QUOTA)
    .union(ReadOnlyCompat::BIGALLOC)
    .union(ReadOnlyCompat::VERITY)
    .union(ReadOnlyCompat::ORPHAN_PRESENT);

/// Whether clusters of several blocks are as mke2fs makes them: files have extents, and the last
/// cluster is whole.
fn has_plain_clusters(superblock: &Superblock) -> bool {
    let bits = superblock
        .log_cluster_size
        .checked_sub(superblock.log_block_size);
    let cluster = bits.and_then(|bits| 1_u64.checked_shl(bits));
    let is_whole = cluster.is_some_and(|cluster| superblock.blocks_count.is_multiple_of(cluster));
    is_whole && superblock.features.has_incompat(Incompat::EXTENTS)
}

/// Adds a note if the image is marked as having errors or as not cleanly closed.
pub(super) fn note_state(superblock: &Superblock, notes: &mut Vec<String>) {
    let has_journal = superblock.features.has_compat(Compat::HAS_JOURNAL);
    if superblock.state.contains(State::ERRORS) {
        notes.push("the image is marked as having errors: e2fsck -f should check it".to_owned());
    } else if !has_journal && !superblock.state.contains(State::CLEAN) {
        notes.push(
            "the image has no journal and was not closed cleanly: e2fsck -f should check it"
                .to_owned(),
        );
    }
}

/// Adds a note if the superblock has a text of mount options.
pub(super) fn note_options(superblock: &Superblock, notes: &mut Vec<String>) {
    let options = superblock.mount_options.split(|&byte| byte == 0).next();
    let options = options.filter(|options| !options.is_empty());
    notes.extend(options.map(|options| {
        format!(
            "the mount options in its superblock are not obeyed: {} (`tune2fs -E mount_opts=`)",
            Shown(options)
        )
    }));
}

/// Refuses an image that cannot be read. This comes before any look at the shape of the file
/// system, which an unknown feature may change.
///
/// # Errors
///
/// `Unsupported`, naming the features.
pub(super) fn refuse_unreadable(superblock: &Superblock) -> Result<()> {
    let unreadable = superblock.features.incompat.difference(WRITTEN);
    let folds = superblock.features.has_incompat(Incompat::CASEFOLD);
    if folds && superblock.encoding != casefold::UTF8_12_1 {
        return Err(Error::unsupported(format!(
            "this version cannot read images whose names are in encoding {}, only in {} \
             (utf8-12.1)",
            superblock.encoding,
            casefold::UTF8_12_1
        )));
    }
    if unreadable.is_empty() {
        return Ok(());
    }
    Err(Error::unsupported(format!(
        "this version cannot read images with the features: {}",
        unreadable.names().join(", ")
    )))
}

/// Refuses to write an image whose inodes are to have more in their extra part than there is room
/// for, as Linux refuses it.
fn refuse_extra_sizes(superblock: &Superblock) -> Result<()> {
    let inode_size = superblock.effective_inode_size();
    let room = usize::from(inode_size).saturating_sub(BASE_SIZE);
    let features = &superblock.features;
    if room == 0 || !features.has_read_only_compat(ReadOnlyCompat::EXTRA_ISIZE) {
        return Ok(());
    }
    let sizes = [
        ("min_extra_isize", superblock.min_extra_isize),
        ("want_extra_isize", superblock.want_extra_isize),
    ];
    match sizes
        .into_iter()
        .find(|(_, size)| usize::from(*size) > room)
    {
        None => Ok(()),
        Some((field, size)) => Err(Error::unsupported(format!(
            "its superblock asks for inodes with an extra part of {size} bytes ({field}), and inodes \
             of {inode_size} bytes have room for {room}"
        ))),
    }
}

/// Refuses an image that cannot be read, and turns the mount read-only for one that cannot be
/// written, with a note that names the features.
///
/// # Errors
///
/// `Unsupported`, naming the features.
pub(super) fn check(
    superblock: &Superblock,
    options: &mut MountOptions,
    device_is_read_only: bool,
    notes: &mut Vec<String>,
) -> Result<()> {
    refuse_unreadable(superblock)?;
    if !options.read_only {
        refuse_extra_sizes(superblock)?;
    }
    let features = &superblock.features;
    let mut unwritten = Vec::new();
    if features.incompat.contains(KEYED_NAMES) {
        unwritten.extend(KEYED_NAMES.names());
    }
    unwritten.extend(
        features
            .read_only_compat
            .difference(READ_ONLY_WRITTEN)
            .names(),
    );
    if features.has_read_only_compat(ReadOnlyCompat::BIGALLOC) && !has_plain_clusters(superblock) {
        unwritten.extend(ReadOnlyCompat::BIGALLOC.names());
    }
    if !unwritten.is_empty() && !options.read_only {
        options.read_only = true;
        notes.push(format!(
            "mounted read-only: this version does not write images with the features: {}",
            unwritten.join(", ")
        ));
    }
    if superblock.is_for_hurd() && !options.read_only {
        options.read_only = true;
        let note =
            "mounted read-only: this version does not write images that were made for the Hurd";
        notes.push(note.to_owned());
    }
    if device_is_read_only && !options.read_only {
        options.read_only = true;
        notes.push("mounted read-only: the device cannot be written".to_owned());
    }
    Ok(())
}
