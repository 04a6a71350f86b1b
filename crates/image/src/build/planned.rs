//! What is determined before the first content is written: the inode numbers, the size of the
//! image, and the place of every block.
//!
//! The order of the inodes depends on the names alone. It gives the digest from which UUID and hash
//! seed are derived, then the shapes of the directories, which need the hash seed, and then the
//! number of blocks, from which the size follows.

use pext4_ondisk::InodeNumber;
use pext4_ondisk::casefold::Naming;
use pext4_ondisk::dirhash::{Hasher, Signedness};
use pext4_ondisk::feature::{Compat, Features};
use pext4_ondisk::quota::OwnerKind;
use pext4_ondisk::superblock::Superblock;
use pext4_ondisk::time::Time;
use sha2::{Digest as _, Sha256};

use super::error::{Error, Result};
use super::order::{self, Order};
use super::place::{self, NoSpace, Placement};
use super::shape::{self, Parameters, Shape};
use super::size::{self, Frame, Free, Requirements, Size};
use super::tree::{Id, Metadata, ROOT, Tree};
use super::{Builder, Summary, UNKNOWN_TIME};
use crate::mkfs;
use crate::mkfs::plan::now;
use crate::mkfs::quotas::{self, Usage};

/// How many sizes are tried at most: the search ignores fragmentation of the free space, so the
/// size that it finds can be too small.
const MAX_ATTEMPTS: u32 = 16;

/// Everything that is determined before the first content is written.
pub(super) struct Planned {
    pub tree: Tree,
    pub order: Order,
    pub shape: Shape,
    pub placement: Placement,
    pub frame: Frame,
    pub summary: Summary,
}

impl Builder {
    /// Assigns the inode numbers, the size of the image and all blocks.
    pub(super) fn plan(&self, mut tree: Tree, trial: &Superblock) -> Result<Planned> {
        let time = self.time(&tree);
        let storable = |seconds, nanoseconds| {
            self.rules.storable(Time {
                seconds,
                nanoseconds,
            })
        };
        let root = tree.node_mut(ROOT);
        let root_time = match root.seconds {
            UNKNOWN_TIME => storable(time, 0),
            seconds => storable(seconds, root.nanoseconds),
        };
        (root.seconds, root.nanoseconds) = (root_time.seconds, root_time.nanoseconds);
        let has_orphan_file = trial.features.has_compat(Compat::ORPHAN_FILE);
        let counts_projects =
            quotas::kinds(&trial.features).any(|owner| owner == OwnerKind::Project);
        let first = order::LOST_FOUND + 1 + u32::from(has_orphan_file) + u32::from(counts_projects);
        let lost_found = Metadata {
            mode: 0o040_700,
            seconds: storable(time, 0).seconds,
            ..Metadata::default()
        };
        let order = order::order(&mut tree, first, &lost_found, self.threads, &self.progress)?;
        let block_size = 1024u32 << trial.log_block_size;
        shape::check_files(&tree, &order, &trial.features, u64::from(block_size))?;
        let mut options = self.options(&order, time);
        let parameters = Parameters {
            features: &trial.features,
            block_size,
            inode_size: trial.inode_size,
            hasher: Hasher {
                version: trial.hash_version(),
                signedness: trial.hash_signedness().unwrap_or(Signedness::Signed),
                seed: options.hash_seed.expect("it was made or given"),
                naming: Naming::Exact,
            },
            may_grow_levels: !self
                .format
                .features
                .iter()
                .any(|name| name.trim() == "^large_dir"),
            threads: self.threads,
        };
        let shape = Shape::new(&mut tree, &order, &parameters)?;
        if shape.needs_large_dir {
            options.features.push("large_dir".to_owned());
        }
        self.progress.check()?;
        self.fit_size(&trial.features, tree, order, shape, &options)
    }

    /// Lays out an image in which all contents can be placed.
    fn fit_size(
        &self,
        features: &Features,
        mut tree: Tree,
        order: Order,
        shape: Shape,
        options: &mkfs::Options,
    ) -> Result<Planned> {
        let inodes = order.inodes.len() as u64 - 2 + u64::from(order.first) - 1;
        let required = Requirements {
            blocks: shape.blocks,
            inodes,
            block_size: shape.block_size,
            owners: usage_of(features, &tree, &order, |_| 0),
        };
        let mut contents = Contents {
            tree: &mut tree,
            order: &order,
            shape: &shape,
        };
        let (mut frame, placement) = match self.size {
            Size::Auto(free) => contents.place_in_smallest(required, free, options)?,
            Size::Bytes(bytes) => contents.place_in(&required, bytes, options)?,
        };
        let journal_blocks = frame.files.journal_blocks;
        frame.layout.finish(&mut frame.superblock, journal_blocks);
        let space = |id| placement.blocks_of(&tree, &shape, id) * shape.block_size;
        let usage = usage_of(features, &tree, &order, space);
        let block_size = frame.geometry.block_size;
        frame.files.fill_quotas(&usage, block_size);
        let summary = summary(&order, &placement, &frame);
        Ok(Planned {
            tree,
            order,
            shape,
            placement,
            frame,
            summary,
        })
    }

    /// The date of the image. Checkers consider a superblock with a future write time damaged, so
    /// future times of the input are ignored.
    fn time(&self, tree: &Tree) -> i64 {
        let time = self.date.unwrap_or_else(|| {
            let now = now();
            let held = tree.ids().filter(|&id| !tree.is_gone(id));
            let times = held.map(|id| tree.node(id).seconds);
            times.filter(|&time| time <= now).max().unwrap_or(0)
        });
        time.clamp(0, i64::from(u32::MAX))
    }

    /// The options of the format, with UUID and hash seed derived from the input if the caller gave
    /// none.
    fn options(&self, order: &Order, time: i64) -> mkfs::Options {
        let mut hasher = Sha256::new();
        hasher.update(order.digest);
        self.digest_format(&mut hasher, time);
        let digest: [u8; 32] = hasher.finalize().into();
        let mut uuid: [u8; 16] = digest[..16].try_into().expect("16 of 32 bytes");
        let seed = digest[16..].try_into().expect("16 of 32 bytes");
        // UUID version 8 is for custom formats.
        uuid[6] = uuid[6] & 0x0F | 0x80;
        uuid[8] = uuid[8] & 0x3F | 0x80;
        let format = &self.format;
        mkfs::Options {
            uuid: Some(format.uuid.unwrap_or(uuid)),
            hash_seed: Some(format.hash_seed.unwrap_or_else(|| mkfs::hash_seed(seed))),
            time: Some(time),
            ..format.clone()
        }
    }

    /// Adds the options that a derived UUID depends on, field by field, so that it stays the same
    /// from version to version.
    fn digest_format(&self, hasher: &mut Sha256, time: i64) {
        let format = &self.format;
        let (kind, size) = match self.size {
            Size::Bytes(bytes) => (&b"bytes"[..], bytes),
            Size::Auto(Free::Thousandths(share)) => (&b"free thousandths"[..], share.into()),
            Size::Auto(Free::Bytes(bytes)) => (&b"free bytes"[..], bytes),
        };
        add_field(hasher, kind);
        add_field(hasher, &size.to_le_bytes());
        let numbers = [
            format.block_size.map(u64::from),
            format.inodes,
            Some(format.inode_size.into()),
            format.journal_blocks.map(u64::from),
        ];
        for number in numbers {
            match number {
                Some(number) => add_field(hasher, &number.to_le_bytes()),
                None => add_field(hasher, b""),
            }
        }
        add_field(hasher, &time.to_le_bytes());
        add_field(hasher, &format.label);
        add_field(hasher, &format.reserved_percent.to_bits().to_le_bytes());
        for name in &format.features {
            add_field(hasher, name.as_bytes());
        }
    }
}

/// What is to be placed.
struct Contents<'a> {
    tree: &'a mut Tree,
    order: &'a Order,
    shape: &'a Shape,
}

impl Contents<'_> {
    /// Increases the size until everything can be placed. The size search counts the free blocks
    /// only, but extent trees of fragmented files need additional blocks.
    fn place_in_smallest(
        &mut self,
        mut required: Requirements,
        free: Free,
        options: &mkfs::Options,
    ) -> Result<(Frame, Placement)> {
        for _ in 0..MAX_ATTEMPTS {
            let mut frame = size::fit(&required, free, options)?;
            match self.place(&mut frame) {
                Ok(placement) => return Ok((frame, placement)),
                Err(NoSpace) => required.blocks += required.blocks / 100 + 64,
            }
        }
        Err(Error::impossible(
            "the free space lies in too many pieces: ask for a larger image",
        ))
    }

    /// Places everything in an image of this size.
    fn place_in(
        &mut self,
        required: &Requirements,
        bytes: u64,
        options: &mkfs::Options,
    ) -> Result<(Frame, Placement)> {
        for mut frame in size::frames_of(required, bytes, options)? {
            if let Ok(placement) = self.place(&mut frame) {
                return Ok((frame, placement));
            }
        }
        Err(size::too_small(required, bytes, options, |mut frame| {
            let placed = self.place(&mut frame);
            placed.is_ok_and(|placement| {
                placement.undo(self.tree, self.order);
                true
            })
        }))
    }

    fn place(&mut self, frame: &mut Frame) -> std::result::Result<Placement, NoSpace> {
        let more = self.order.inodes.len() - 2;
        frame
            .layout
            .allocate_inodes(u32::try_from(more).expect("inodes were counted"));
        for directory in &self.order.directories {
            let number = InodeNumber(self.tree.node(directory.node).inode);
            frame.layout.count_directory(number);
        }
        place::place(self.tree, self.order, self.shape, &mut frame.layout)
    }
}

/// Adds a field to a digest, with its length: no two lists of fields give the same bytes.
fn add_field(hasher: &mut Sha256, bytes: &[u8]) {
    hasher.update((bytes.len() as u64).to_le_bytes());
    hasher.update(bytes);
}

/// What owners take, if each file takes this number of bytes; nothing if nobody counts it.
fn usage_of(features: &Features, tree: &Tree, order: &Order, space: impl Fn(Id) -> u64) -> Usage {
    let mut usage = Usage::default();
    let is_counted = quotas::kinds(features).next().is_some();
    for &id in order.inodes.iter().filter(|_| is_counted) {
        let node = tree.node(id);
        usage.charge([node.uid, node.gid, 0], space(id));
    }
    usage
}

fn summary(order: &Order, placement: &Placement, frame: &Frame) -> Summary {
    Summary {
        size: frame.size,
        block_size: frame.geometry.block_size,
        blocks: frame.geometry.blocks_count,
        free_blocks: frame.superblock.free_blocks,
        inodes: frame.geometry.inodes_count,
        free_inodes: frame.superblock.free_inodes,
        journal_blocks: frame.files.journal_blocks,
        names: order.names,
        directories: order.directories.len() as u64,
        content: placement.bytes,
        skipped: 0,
        notes: Vec::new(),
        uuid: frame.superblock.uuid,
        features: frame.superblock.features.names(),
    }
}
