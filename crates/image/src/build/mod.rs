//! Building an image from directories, archives and container images: in one pass over the names,
//! one plan, and one pass over the contents, with every core.
//!
//! 1. *Read*: names and attributes become a `tree`, at 72 bytes and its name a file. Contents
//!    stay where they are; those of streams go into a scratch file beside the image.
//! 2. *Plan*: the tree is put in `order`, which gives inode numbers; the `shape` of
//!    everything is known from it, then the `size` of the image, then every `place`.
//!    All of this is a function of the input and the options alone.
//! 3. *Write*: everything is written (`write`) where it belongs, by all threads, in no order.
//!
//! So the same input and options give the same bytes, on any machine and with any number of threads.
//! The image gets its name only when it is whole; whatever goes wrong before leaves nothing.
//!
//! # Example
//!
//! ```
//! use pext4_image::build::{Builder, Source};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! let tree = folder.path().join("root");
//! std::fs::create_dir_all(tree.join("etc"))?;
//! std::fs::write(tree.join("etc/hostname"), "example\n")?;
//!
//! let image = folder.path().join("root.img");
//! let summary = Builder::new()
//!     .source(Source::Directory(tree))
//!     .owner(0, 0)
//!     .label("root")
//!     .build(&image)?;
//! assert_eq!(summary.names, 2);
//! assert_eq!(std::fs::metadata(&image)?.len(), summary.size);
//! # Ok(())
//! # }
//! ```

mod archive;
mod attributes;
mod crew;
mod error;
mod ids;
mod moment;
mod oci;
mod order;
mod output;
mod place;
mod progress;
mod queue;
mod rules;
mod scan;
mod shape;
mod size;
mod sources;
mod tree;
mod write;

use std::path::Path;
use std::sync::Arc;

use pext4_ondisk::dirhash::{Hasher, Signedness};
use pext4_ondisk::feature::{Compat, Incompat};
use pext4_ondisk::superblock::Superblock;
use pext4_ondisk::time::Time;
use sha2::{Digest as _, Sha256};

pub use error::{Error, Result};
pub use moment::parse_time;
pub use oci::Platform;
pub use progress::{Phase, Progress};
pub use rules::{Map, parse_owner};
pub use size::{Free, Size};
pub use sources::Source;

use crate::mkfs::{self, plan};
use archive::Limits;
use order::Order;
use output::Output;
use place::{Full, Places};
use shape::{Shape, Terms};
use size::{Frame, Need};
use sources::Sources;
use tree::{Facts, ROOT, Tree};

/// Bytes in a block, unless told otherwise: what a page has, whatever the size of the image.
const BLOCK_SIZE: u32 = 4096;
/// A size at which the options are tried before anything is read.
const TRIAL_SIZE: u64 = 256 << 20;
/// How often a size that was found too small after all is raised.
const RAISES: u32 = 16;
/// Of a root that no source describes: its time, until the image's is known.
const UNKNOWN: i64 = i64::MIN;

/// What was built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Bytes of the image.
    pub size: u64,
    /// Bytes in a block.
    pub block_size: u32,
    /// Blocks.
    pub blocks: u64,
    /// Blocks that are free.
    pub free_blocks: u64,
    /// Inodes.
    pub inodes: u32,
    /// Inodes that are free.
    pub free_inodes: u32,
    /// Blocks of the journal; 0 without one.
    pub journal_blocks: u32,
    /// Names in the image, the root not counted.
    pub names: u64,
    /// Directories among them, and the root.
    pub directories: u64,
    /// Bytes of contents, in whole blocks and without holes.
    pub content: u64,
    /// Names that were skipped because they could not be read.
    pub skipped: u64,
    /// UUID of the file system.
    pub uuid: [u8; 16],
    /// Names of its features.
    pub features: Vec<String>,
}

/// Says what an image is made of and what it shall be, and builds it.
#[derive(Debug)]
pub struct Builder {
    sources: Vec<Source>,
    size: Size,
    format: mkfs::Options,
    rules: rules::Rules,
    exclude: Vec<String>,
    exclude_attributes: Vec<String>,
    date: Option<i64>,
    limit: Option<u64>,
    platform: Option<Platform>,
    tag: Option<String>,
    threads: usize,
    skip_unreadable: bool,
    one_file_system: bool,
    sync: bool,
    replace: bool,
    progress: Arc<Progress>,
}

impl Default for Builder {
    fn default() -> Self {
        Self::new()
    }
}

impl Builder {
    /// An image of nothing yet: sized to fit with a tenth of it free, blocks of 4 KiB, upstream's
    /// features, nothing reserved, one thread a core.
    #[must_use]
    pub fn new() -> Self {
        Self {
            sources: Vec::new(),
            size: Size::default(),
            format: mkfs::Options {
                block_size: Some(BLOCK_SIZE),
                reserved_percent: 0.0,
                ..mkfs::Options::default()
            },
            rules: rules::Rules::default(),
            exclude: Vec::new(),
            exclude_attributes: Vec::new(),
            date: None,
            limit: None,
            platform: None,
            tag: None,
            threads: std::thread::available_parallelism().map_or(1, Into::into),
            skip_unreadable: false,
            one_file_system: false,
            sync: true,
            replace: false,
            progress: Arc::default(),
        }
    }

    /// Adds a source, over those that were added before.
    #[must_use]
    pub fn source(mut self, source: Source) -> Self {
        self.sources.push(source);
        self
    }

    /// How large the image shall be.
    #[must_use]
    pub fn size(mut self, size: Size) -> Self {
        self.size = size;
        self
    }

    /// Bytes in a block: 1024, 2048 or 4096.
    #[must_use]
    pub fn block_size(mut self, bytes: u32) -> Self {
        self.format.block_size = Some(bytes);
        self
    }

    /// Inodes, at least; fitted to what the image holds otherwise. An archive with more entries is
    /// refused.
    #[must_use]
    pub fn inodes(mut self, count: u64) -> Self {
        self.format.inodes = Some(count);
        self
    }

    /// Bytes in an inode: a power of two from 128 to the block size.
    #[must_use]
    pub fn inode_size(mut self, bytes: u16) -> Self {
        self.format.inode_size = bytes;
        self
    }

    /// The label, at most 16 bytes.
    #[must_use]
    pub fn label(mut self, label: impl Into<Vec<u8>>) -> Self {
        self.format.label = label.into();
        self
    }

    /// The UUID; made from the input and the options otherwise.
    #[must_use]
    pub fn uuid(mut self, uuid: [u8; 16]) -> Self {
        self.format.uuid = Some(uuid);
        self
    }

    /// The seed of directory hashes; made from the input and the options otherwise.
    #[must_use]
    pub fn hash_seed(mut self, seed: [u32; 4]) -> Self {
        self.format.hash_seed = Some(seed);
        self
    }

    /// Share of the blocks that only the superuser may use, in percent (0 to 50).
    #[must_use]
    pub fn reserved_percent(mut self, percent: f64) -> Self {
        self.format.reserved_percent = percent;
        self
    }

    /// Turns features on by upstream's names, or off with `^` before them.
    #[must_use]
    pub fn features(mut self, names: impl IntoIterator<Item = String>) -> Self {
        self.format.features.extend(names);
        self
    }

    /// Blocks of the journal; upstream's choice otherwise.
    #[must_use]
    pub fn journal_blocks(mut self, blocks: u32) -> Self {
        self.format.journal_blocks = Some(blocks);
        self
    }

    /// Everything belongs to this owner and group.
    #[must_use]
    pub fn owner(mut self, uid: u32, gid: u32) -> Self {
        self.rules.owner = Some((uid, gid));
        self
    }

    /// Leaves out what a pattern matches: a name at any depth, or with a slash in it a whole path.
    #[must_use]
    pub fn exclude(mut self, pattern: impl Into<String>) -> Self {
        self.exclude.push(pattern.into());
        self
    }

    /// Leaves out extended attributes whose names a pattern matches.
    #[must_use]
    pub fn exclude_attribute(mut self, pattern: impl Into<String>) -> Self {
        self.exclude_attributes.push(pattern.into());
        self
    }

    /// Everything was last changed at this time.
    #[must_use]
    pub fn mtime(mut self, time: Time) -> Self {
        self.rules.mtime = Some(time);
        self
    }

    /// The date of the image, in seconds since 1970: no time in it is later. Otherwise the latest
    /// time of the input that is not in the future.
    #[must_use]
    pub fn date(mut self, seconds: i64) -> Self {
        self.date = Some(seconds);
        self
    }

    /// Changes owners and attributes as a mapping file says.
    #[must_use]
    pub fn map(mut self, map: Map) -> Self {
        self.rules.map = map;
        self
    }

    /// Leaves out what cannot be read, instead of failing.
    #[must_use]
    pub fn skip_unreadable(mut self, skip: bool) -> Self {
        self.skip_unreadable = skip;
        self
    }

    /// Does not look into directories of the host on which other file systems are mounted.
    #[must_use]
    pub fn one_file_system(mut self, stay: bool) -> Self {
        self.one_file_system = stay;
        self
    }

    /// Refuses archives that state more bytes of contents.
    #[must_use]
    pub fn limit(mut self, bytes: u64) -> Self {
        self.limit = Some(bytes);
        self
    }

    /// Which image of an OCI layout is meant, if it has several.
    #[must_use]
    pub fn platform(mut self, platform: Platform) -> Self {
        self.platform = Some(platform);
        self
    }

    /// The name of the image of an OCI layout that is meant, if it has several.
    #[must_use]
    pub fn tag(mut self, tag: &str) -> Self {
        self.tag = Some(tag.to_owned());
        self
    }

    /// How many threads work; at least one. The image is the same with any number.
    #[must_use]
    pub fn threads(mut self, count: usize) -> Self {
        self.threads = count.max(1);
        self
    }

    /// Whether the image is made durable before it gets its name.
    #[must_use]
    pub fn sync(mut self, sync: bool) -> Self {
        self.sync = sync;
        self
    }

    /// Whether an image of that name may be replaced.
    #[must_use]
    pub fn replace(mut self, replace: bool) -> Self {
        self.replace = replace;
        self
    }

    /// How far the build is, to be looked at while it runs; it can also be asked to stop there.
    #[must_use]
    pub fn progress(&self) -> Arc<Progress> {
        Arc::clone(&self.progress)
    }

    /// Builds the image.
    ///
    /// # Errors
    /// Names the path and what is wrong with it. Nothing is left behind then, and an image that was
    /// there before is as it was.
    pub fn build(mut self, image: &Path) -> Result<Summary> {
        self.rules.latest = self.date;
        self.rules.exclude = rules::path_patterns(&self.exclude).map_err(Error::Impossible)?;
        self.rules.exclude_attributes =
            rules::name_patterns(&self.exclude_attributes).map_err(Error::Impossible)?;
        let trial = self.trial()?;
        let output = Output::create(image, self.replace)?;
        let (tree, contents, skipped) = self.read(&output)?;
        self.progress.enter(Phase::Planning, 0, 0);
        let mut planned = self.plan(tree, &trial)?;
        planned.summary.skipped = skipped;
        let mut output = output;
        output.set_size(planned.frame.size)?;
        let files = planned.order.inodes.len() as u64;
        self.progress
            .enter(Phase::Writing, files, planned.places.bytes);
        let image_of = write::Image {
            tree: &planned.tree,
            order: &planned.order,
            shape: &planned.shape,
            places: &planned.places,
            frame: &planned.frame,
            contents: &contents,
            output: &output,
            progress: &self.progress,
        };
        image_of.write(self.threads)?;
        self.publish(output, image)?;
        Ok(planned.summary)
    }

    fn publish(&self, output: Output, image: &Path) -> Result<()> {
        self.progress.enter(Phase::Syncing, 0, 0);
        if self.sync {
            output.sync()?;
        }
        self.progress.check()?;
        output.publish()?;
        if self.sync {
            Output::sync_folder(image)?;
        }
        Ok(())
    }

    /// A superblock as the options ask for it: fails for options that nothing can satisfy.
    fn trial(&self) -> Result<Superblock> {
        plan::check_inodes(self.format.inodes)?;
        let options = mkfs::Options {
            // As few as there may be: how many fit is a question of the size, which is found later.
            inodes: Some(1),
            uuid: Some([0; 16]),
            hash_seed: Some([0; 4]),
            time: Some(0),
            ..self.format.clone()
        };
        if self.sources.is_empty() {
            return Err(Error::impossible("nothing to build from: name a source"));
        }
        let is_layout = |source: &Source| matches!(source, Source::OciLayout(_));
        let chooses = self.platform.is_some() || self.tag.is_some();
        if chooses && !self.sources.iter().any(is_layout) {
            return Err(Error::impossible(
                "--platform and --tag choose an image of an OCI layout, and no source is one",
            ));
        }
        let (trial, _) = plan::plan(TRIAL_SIZE, &options)?;
        if !trial.features.has_incompat(Incompat::EXTENTS) {
            return Err(Error::impossible(
                "files are laid out in extents: the feature extent cannot be turned off here",
            ));
        }
        Ok(trial)
    }

    fn read(&mut self, output: &Output) -> Result<(Tree, Vec<sources::Contents>, u64)> {
        let mut root = Facts {
            mode: 0o040_755,
            seconds: UNKNOWN,
            ..Facts::default()
        };
        // It has no access list that would have to follow its mode.
        let _ = self.rules.apply(Vec::new, &mut root);
        let limits = Limits {
            bytes: match (self.limit, self.size) {
                (None, Size::Bytes(bytes)) => Some(bytes),
                (limit, _) => limit,
            },
            files: self.format.inodes,
        };
        let options = sources::Options {
            rules: &self.rules,
            limits,
            threads: self.threads,
            skip_unreadable: self.skip_unreadable,
            one_file_system: self.one_file_system,
            wanted: oci::Wanted {
                platform: self.platform.as_ref(),
                tag: self.tag.as_deref(),
            },
            progress: &self.progress,
        };
        self.progress.enter(Phase::Reading, 0, 0);
        let mut sources = Sources::new(options, output, Tree::new(&root));
        for source in std::mem::take(&mut self.sources) {
            sources.add(source)?;
        }
        let mut read = sources.finish();
        ids::map(&mut read.0, &self.rules)?;
        Ok(read)
    }

    /// Gives everything its number, the image its size, and everything its place.
    fn plan(&self, mut tree: Tree, trial: &Superblock) -> Result<Planned> {
        let time = self.time(&tree);
        if tree.node(ROOT).seconds == UNKNOWN {
            tree.node_mut(ROOT).seconds = time;
        }
        let has_orphan_file = trial.features.has_compat(Compat::ORPHAN_FILE);
        let first = order::LOST_FOUND + 1 + u32::from(has_orphan_file);
        let lost_found = Facts {
            mode: 0o040_700,
            seconds: time,
            ..Facts::default()
        };
        let order = order::order(&mut tree, first, &lost_found, self.threads)?;
        let block_size = 1024u32 << trial.log_block_size;
        shape::check_files(&tree, &order, &trial.features, u64::from(block_size))?;
        let mut options = self.options(&order, time);
        let terms = Terms {
            features: &trial.features,
            block_size,
            inode_size: trial.inode_size,
            hasher: Hasher {
                version: trial.hash_version(),
                signedness: trial.hash_signedness().unwrap_or(Signedness::Signed),
                seed: options.hash_seed.expect("it was made or given"),
            },
            may_grow_levels: !self.format.features.iter().any(|name| name == "^large_dir"),
            threads: self.threads,
        };
        let shape = Shape::of(&mut tree, &order, &terms)?;
        if shape.needs_large_dir {
            options.features.push("large_dir".to_owned());
        }
        self.progress.check()?;
        self.settle(tree, order, shape, &options)
    }

    /// Finds a size at which everything finds its place.
    fn settle(
        &self,
        mut tree: Tree,
        order: Order,
        shape: Shape,
        options: &mkfs::Options,
    ) -> Result<Planned> {
        let inodes = order.inodes.len() as u64 - 2 + u64::from(order.first) - 1;
        let mut need = Need {
            blocks: shape.blocks,
            inodes,
            block_size: shape.block_size,
        };
        for _ in 0..RAISES {
            let mut frame = size::fit(&need, self.size, options)?;
            let more = order.inodes.len() - 2;
            frame
                .layout
                .allocate_inodes(u32::try_from(more).expect("inodes were counted"));
            for directory in &order.directories {
                let number = pext4_ondisk::InodeNumber(tree.node(directory.node).inode);
                frame.layout.count_directory(number);
            }
            match place::place(&mut tree, &order, &shape, &mut frame.layout) {
                Ok(places) => {
                    let journal_blocks = frame.files.journal_blocks;
                    frame.layout.finish(&mut frame.superblock, journal_blocks);
                    let summary = summary(&order, &places, &frame);
                    return Ok(Planned {
                        tree,
                        order,
                        shape,
                        places,
                        frame,
                        summary,
                    });
                }
                Err(Full) => need.blocks += need.blocks / 100 + 64,
            }
        }
        Err(Error::impossible(
            "the free space lies in too many pieces: ask for a larger image",
        ))
    }

    /// The date of the image. Checkers take a superblock that was written in the future for damaged,
    /// so times of the input that lie there do not count.
    fn time(&self, tree: &Tree) -> i64 {
        let present = plan::present();
        let latest = || {
            tree.nodes
                .iter()
                .filter(|node| !node.is_gone && node.seconds <= present)
                .map(|node| node.seconds)
        };
        let time = self.date.or_else(|| latest().max()).unwrap_or(0);
        time.clamp(0, i64::from(u32::MAX))
    }

    /// The options of the format, with UUID and seed made from the input where they are not given.
    fn options(&self, order: &Order, time: i64) -> mkfs::Options {
        let mut hasher = Sha256::new();
        hasher.update(order.digest);
        let format = &self.format;
        let said = (
            self.size,
            format.block_size,
            format.inodes,
            format.inode_size,
            time,
        );
        hasher.update(format!("{said:?}"));
        let said = (
            &format.label,
            &format.features,
            format.journal_blocks,
            format.reserved_percent,
        );
        hasher.update(format!("{said:?}"));
        let digest: [u8; 32] = hasher.finalize().into();
        let (words, _) = digest.as_chunks::<4>();
        let mut uuid: [u8; 16] = digest[..16].try_into().expect("16 of 32 bytes");
        // Version 8 is for who makes a UUID in a way of their own.
        uuid[6] = uuid[6] & 0x0F | 0x80;
        uuid[8] = uuid[8] & 0x3F | 0x80;
        mkfs::Options {
            uuid: Some(format.uuid.unwrap_or(uuid)),
            hash_seed: Some(format.hash_seed.unwrap_or_else(|| {
                std::array::from_fn(|word| u32::from_le_bytes(words[4 + word]))
            })),
            time: Some(time),
            ..format.clone()
        }
    }
}

/// Everything that is known before the first content is written.
struct Planned {
    tree: Tree,
    order: Order,
    shape: Shape,
    places: Places,
    frame: Frame,
    summary: Summary,
}

fn summary(order: &Order, places: &Places, frame: &Frame) -> Summary {
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
        content: places.bytes,
        skipped: 0,
        uuid: frame.superblock.uuid,
        features: frame.superblock.features.names(),
    }
}
