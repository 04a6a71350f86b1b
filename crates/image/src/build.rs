//! Builds an image from directories, archives and container images: one pass over the names, one
//! plan, and one parallel pass over the contents.
//!
//! 1. *Read*: names and attributes go into a `tree`, which takes 72 bytes plus the name for each
//!    file. Contents stay where they are, but those of streams are copied to a scratch file beside
//!    the image.
//! 2. *Plan*: the `order` of the tree determines the inode numbers. The `shape` gives the number of
//!    blocks of everything, the `size` of the image follows from it, and `place` assigns the
//!    blocks. The plan depends only on the input and the options.
//! 3. *Write*: all threads write everything to its place (`write`), in no particular order.
//!
//! So the same input and options give the same bytes, on any machine and with any number of
//! threads. The image gets its name only when it is complete; a build that fails leaves nothing
//! behind.
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
mod directory;
mod error;
mod first_error;
mod ids;
mod lookup;
mod mapping;
mod oci;
mod order;
mod output;
mod packed_image;
mod patterns;
mod place;
mod planned;
mod queue;
mod rules;
mod scan;
mod shape;
mod size;
mod sources;
mod threads;
mod time;
mod tree;
mod write;

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use pext4_block::{Phase, Progress};
use pext4_ondisk::feature::Incompat;
use pext4_ondisk::superblock::Superblock;
use pext4_ondisk::time::Time;
use pext4_sync::topology;

pub use error::{Error, ParseError, Result};
pub use mapping::{Map, Owner, parse_owner};
pub use oci::Platform;
pub use patterns::{AttributePatterns, check_attribute_pattern, check_pattern};
pub use size::{Free, Size};
pub use sources::Source;
pub use time::parse_time;

use crate::MAX_THREADS;
use crate::mkfs::contents::extra_size;
use crate::mkfs::{self, features, inode_counts, plan};
use archive::Limits;
use output::Output;
use sources::{Contents, Everything, Sources};
use tree::{Metadata, Tree};

/// The default block size in bytes: the size of a page, for any size of the image.
const BLOCK_SIZE: u32 = 4096;
/// The image size in bytes with which the options are validated before anything is read.
const TRIAL_SIZE: u64 = 256 << 20;
/// The time of a root that no source describes, until the time of the image is known.
const UNKNOWN_TIME: i64 = i64::MIN;

/// A description of the image that was built.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// Size of the image in bytes.
    pub size: u64,
    /// Block size in bytes.
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
    /// Number of names in the image, without the root.
    pub names: u64,
    /// Number of directories, including the root.
    pub directories: u64,
    /// Size of the contents in bytes, rounded up to whole blocks, without holes.
    pub content: u64,
    /// Number of names that were skipped because they could not be read.
    pub skipped: u64,
    /// Notes for the user about the sources, such as an archive without an end mark.
    pub notes: Vec<String>,
    /// UUID of the file system.
    pub uuid: [u8; 16],
    /// Names of its features, as e2fsprogs spells them.
    pub features: Vec<String>,
}

/// Gets the error of a file that is skipped.
type OnSkipped = dyn Fn(&Error) + Send + Sync;

/// What [`Builder::on_skipped`] was given.
struct Callback(Box<OnSkipped>);

impl fmt::Debug for Callback {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Callback")
    }
}

/// Configures the sources and the properties of an image, and builds it.
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
    on_skipped: Option<Callback>,
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
    /// A builder without sources. Defaults: the image is sized to fit with a tenth of it free,
    /// blocks of 4 KiB, the default features of mke2fs, nothing reserved, one thread per core.
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
            threads: topology::processors(),
            skip_unreadable: false,
            on_skipped: None,
            one_file_system: false,
            sync: true,
            replace: false,
            progress: Arc::default(),
        }
    }

    /// Adds a source. It is laid over the sources that were added before.
    #[must_use]
    pub fn source(mut self, source: Source) -> Self {
        self.sources.push(source);
        self
    }

    /// Sets the size of the image.
    #[must_use]
    pub fn size(mut self, size: Size) -> Self {
        self.size = size;
        self
    }

    /// Sets the block size in bytes ([`mkfs::Options::block_size`]).
    #[must_use]
    pub fn block_size(mut self, bytes: u32) -> Self {
        self.format.block_size = Some(bytes);
        self
    }

    /// Sets the minimum number of inodes. The default depends on the number of files. An archive
    /// with more entries than this is refused.
    #[must_use]
    pub fn inodes(mut self, count: u64) -> Self {
        self.format.inodes = Some(count);
        self
    }

    /// Sets the inode size in bytes: a power of two from 128 to the block size.
    #[must_use]
    pub fn inode_size(mut self, bytes: u16) -> Self {
        self.format.inode_size = bytes;
        self
    }

    /// Sets the label, at most 16 bytes.
    #[must_use]
    pub fn label(mut self, label: impl Into<Vec<u8>>) -> Self {
        self.format.label = label.into();
        self
    }

    /// Sets the UUID. The default is derived from the input and the options.
    #[must_use]
    pub fn uuid(mut self, uuid: [u8; 16]) -> Self {
        self.format.uuid = Some(uuid);
        self
    }

    /// Sets the seed of the directory hashes. The default is derived from the input and the
    /// options.
    #[must_use]
    pub fn hash_seed(mut self, seed: [u32; 4]) -> Self {
        self.format.hash_seed = Some(seed);
        self
    }

    /// Sets the share of the blocks that only the superuser may use, in percent (0 to 50).
    #[must_use]
    pub fn reserved_percent(mut self, percent: f64) -> Self {
        self.format.reserved_percent = percent;
        self
    }

    /// Turns features on, by their names in e2fsprogs, or off, with `^` before the name.
    #[must_use]
    pub fn features(mut self, names: impl IntoIterator<Item: Into<String>>) -> Self {
        let names = names.into_iter().map(Into::into);
        self.format.features.extend(names);
        self
    }

    /// Sets the size of the journal in blocks. The default is that of mke2fs.
    #[must_use]
    pub fn journal_blocks(mut self, blocks: u32) -> Self {
        self.format.journal_blocks = Some(blocks);
        self
    }

    /// Gives all files this owner and group; `None` leaves one of the two as it is.
    #[must_use]
    pub fn owner(mut self, uid: impl Into<Option<u32>>, gid: impl Into<Option<u32>>) -> Self {
        self.rules.owner = (uid.into(), gid.into());
        self
    }

    /// Leaves out names that match a pattern. A pattern without a slash matches a name at any
    /// depth; a pattern with a slash matches a whole path. If symbolic links are on the path of an
    /// archive's entry, that path and the one at which the entry lands are matched.
    #[must_use]
    pub fn exclude(mut self, pattern: impl Into<String>) -> Self {
        self.exclude.push(pattern.into());
        self
    }

    /// Leaves out extended attributes whose names match a pattern.
    #[must_use]
    pub fn exclude_attribute(mut self, pattern: impl Into<String>) -> Self {
        self.exclude_attributes.push(pattern.into());
        self
    }

    /// Gives all files this modification time.
    #[must_use]
    pub fn mtime(mut self, time: Time) -> Self {
        self.rules.mtime = Some(time);
        self
    }

    /// Sets the date of the image, in seconds since 1970. Later times in the input are reduced to
    /// it. The default is the latest time of the input that is not in the future.
    #[must_use]
    pub fn date(mut self, seconds: i64) -> Self {
        self.date = Some(seconds);
        self
    }

    /// Changes owners and attributes as a mapping file specifies.
    #[must_use]
    pub fn map(mut self, map: Map) -> Self {
        self.rules.map = map;
        self
    }

    /// Skips files that cannot be read, instead of failing.
    #[must_use]
    pub fn skip_unreadable(mut self, skip: bool) -> Self {
        self.skip_unreadable = skip;
        self
    }

    /// Calls this for each file that is skipped, with the error, which names the path. It has no
    /// effect without [`Builder::skip_unreadable`].
    #[must_use]
    pub fn on_skipped(mut self, call: impl Fn(&Error) + Send + Sync + 'static) -> Self {
        self.on_skipped = Some(Callback(Box::new(call)));
        self
    }

    /// Does not descend into directories of the host on which other file systems are mounted.
    #[must_use]
    pub fn one_file_system(mut self, stay: bool) -> Self {
        self.one_file_system = stay;
        self
    }

    /// Refuses archives whose headers announce more than this many bytes of contents. Each piece of
    /// a sparse file's map counts as 16 bytes more. A size of the image in bytes
    /// ([`Size::Bytes`]) is also the limit if none is given.
    #[must_use]
    pub fn limit(mut self, bytes: u64) -> Self {
        self.limit = Some(bytes);
        self
    }

    /// Selects the image of an OCI layout by platform, if the layout contains several images.
    #[must_use]
    pub fn platform(mut self, platform: Platform) -> Self {
        self.platform = Some(platform);
        self
    }

    /// Selects the image of an OCI layout by name, if the layout contains several images.
    #[must_use]
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        self.tag = Some(tag.into());
        self
    }

    /// Sets the number of threads, one to 1024. It does not affect the image.
    #[must_use]
    pub fn threads(mut self, count: usize) -> Self {
        self.threads = count.clamp(1, MAX_THREADS);
        self
    }

    /// Sets whether the image is synced to disk before it gets its name. The default is true.
    #[must_use]
    pub fn sync(mut self, sync: bool) -> Self {
        self.sync = sync;
        self
    }

    /// Sets whether an existing image of that name may be replaced. A file that is neither an ext4
    /// image nor empty (its first 64 KiB are zeroes) stays, and is an error, as is one in use.
    #[must_use]
    pub fn replace(mut self, replace: bool) -> Self {
        self.replace = replace;
        self
    }

    /// Sets what counts the progress of the build, and can stop it: then nothing is left behind.
    #[must_use]
    pub fn progress(mut self, progress: Arc<Progress>) -> Self {
        self.progress = progress;
        self
    }

    /// Builds the image.
    ///
    /// # Errors
    ///
    /// The error names the path and the problem. Nothing is left behind then, and an existing image
    /// is unchanged, except as [`Error`] says.
    pub fn build(self, image: impl AsRef<Path>) -> Result<Summary> {
        let image = image.as_ref();
        self.build_at(image).map_err(|error| error.in_image(image))
    }

    fn build_at(mut self, image: &Path) -> Result<Summary> {
        self.progress.enter(Phase::Reading, 0, 0);
        self.rules.latest = self.date;
        self.rules.exclude =
            patterns::PathPatterns::new(&self.exclude).map_err(Error::Impossible)?;
        self.rules.exclude_attributes = AttributePatterns::parse(&self.exclude_attributes)
            .map_err(|error| Error::Impossible(error.0))?;
        let trial = self.trial(image)?;
        self.rules.has_narrow_times = extra_size(trial.inode_size) == 0;
        if self.sources.iter().any(|source| source.is_file_at(image)) {
            let problem = "it is one of the sources, or was IMAGE forgotten?";
            let cause = io::Error::new(io::ErrorKind::InvalidInput, problem);
            return Err(Error::output(image, "replace it", cause));
        }
        let output = Output::create(image, self.replace)?;
        let read = self.read(&output)?;
        self.progress.enter(Phase::Planning, 0, 0);
        let mut planned = self.plan(read.tree, &trial)?;
        planned.summary.skipped = read.skipped;
        planned.summary.notes = read.notes;
        let mut output = output;
        output.set_size(planned.frame.size)?;
        let files = planned.order.inodes.len() as u64;
        self.progress
            .enter(Phase::Writing, files, planned.placement.copied);
        let image_writer = write::Image {
            tree: &planned.tree,
            order: &planned.order,
            shape: &planned.shape,
            placement: &planned.placement,
            frame: &planned.frame,
            contents: &read.contents,
            output: &output,
            progress: &self.progress,
        };
        image_writer.write(self.threads)?;
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

    /// A superblock with the features of the options. Fails if the options cannot be satisfied at
    /// any size.
    fn trial(&self, image: &Path) -> Result<Superblock> {
        let failed = |error| Error::layout(image, error);
        inode_counts::check_inodes(self.format.inodes).map_err(failed)?;
        let options = mkfs::Options {
            // The minimum: whether the inodes fit depends on the size, which is determined later.
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
                "a platform or a tag chooses an image of an OCI layout, and no source is one",
            ));
        }
        // Before `plan`, which may advise to turn off more.
        let named = features::named(options.file_system, &options.features).map_err(failed)?;
        if !named.has_incompat(Incompat::EXTENTS) {
            return Err(Error::impossible(
                "files are laid out in extents: the feature extent cannot be turned off here",
            ));
        }
        let (trial, _) = plan::plan(TRIAL_SIZE, &options).map_err(failed)?;
        size::check_free(self.size, self.format.reserved_percent)?;
        Ok(trial)
    }

    fn read(&mut self, output: &Output) -> Result<Everything> {
        let mut root = Metadata {
            mode: 0o040_755,
            seconds: UNKNOWN_TIME,
            ..Metadata::default()
        };
        // A root without a source has no access list that would have to follow its mode.
        let _ = self.rules.change(|| vec![Vec::new()], &mut root);
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
            on_skipped: self.on_skipped.as_ref().map(|on_skipped| &*on_skipped.0),
            selector: oci::ImageSelector {
                platform: self.platform.as_ref(),
                tag: self.tag.as_deref(),
            },
            progress: &self.progress,
        };
        let mut sources = Sources::new(options, output, Tree::new(&root));
        for source in std::mem::take(&mut self.sources) {
            sources.add(source)?;
        }
        let mut read = sources.finish();
        ids::map(&mut read.tree, &self.rules.map)?;
        let contents = &read.contents;
        let is_archive =
            |number: u16| matches!(contents.get(usize::from(number)), Some(Contents::File(_)));
        self.rules.map.check_paths(&mut read.tree, is_archive)?;
        read.tree.drop_indexes();
        Ok(read)
    }
}
