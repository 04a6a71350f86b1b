//! `pext4 build`: makes an image from directories, archives and container images.

use std::ffi::{OsStr, OsString};
use std::io;
use std::num::NonZeroUsize;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use pext4_block::Progress;
use pext4_image::build::{
    self, Builder, Free, Map, Owner, Platform, Size, Source, Summary, check_attribute_pattern,
    check_pattern, parse_owner, parse_time,
};
use pext4_image::mkfs::hash_seed;
use pext4_ondisk::shown::Shown;
use pext4_ondisk::time::Time;
use serde::Serialize;
use uuid::Uuid;

use crate::count::count;
use crate::device::add_user;
use crate::failure::Misuse;
use crate::format;
use crate::moment::source_date_epoch;
use crate::names::ImageName;
use crate::output::{print_error, print_result};
use crate::progress::{self, ProgressState};
use crate::{owner, size, uuid_text};

/// What was done by the time that the summary is printed.
const DONE: &str = "the image was built";

/// Build an ext4 image from directories, tar archives and container images
///
/// Later sources lie over earlier ones: directories are merged, also where an earlier one has a
/// symbolic link to a directory, and everything else is replaced. The same sources and options give
/// the same bytes.
#[derive(Args)]
pub struct Arguments {
    /// The image to make
    image: PathBuf,
    /// A directory, a tar archive (plain, gzip or zstd; - for standard input) or an OCI layout;
    /// dir:, tar: or oci: before it says which
    #[arg(required = true, value_name = "SOURCE")]
    sources: Vec<OsString>,
    /// Its size, like 512M or 10G, or auto: as large as needed
    #[arg(long, short = 's', default_value = "auto", value_parser = parse_size)]
    size: Fitted,
    /// Free space of an image sized by itself, in percent of it or as a size [default: 10%]
    #[arg(long, value_name = "SHARE", value_parser = parse_free)]
    free: Option<Free>,
    /// Bytes in a block: 1024, 2048, 4096, or more up to 65536, which few systems mount
    #[arg(short = 'b', value_name = "BYTES", value_parser = format::block_size, default_value = "4096")]
    block_size: u32,
    /// Minimum number of inodes; if absent, as many as needed and some more
    #[arg(short = 'N', value_name = "COUNT", value_parser = format::inodes)]
    inodes: Option<u64>,
    /// Bytes in an inode
    #[arg(short = 'I', value_name = "BYTES", value_parser = format::inode_size, default_value = "256")]
    inode_size: u16,
    /// Label, at most 16 bytes
    #[arg(short = 'L', value_name = "LABEL", value_parser = format::label, default_value = "")]
    label: String,
    /// UUID; made from the sources and the options if absent
    #[arg(short = 'U', value_name = "UUID", value_parser = uuid_text::parse_stated)]
    uuid: Option<Uuid>,
    /// Seed of directory hashes, as a UUID; made likewise
    #[arg(long, value_name = "UUID", value_parser = uuid_text::parse_stated)]
    hash_seed: Option<Uuid>,
    /// Percent of the blocks that are kept for root
    #[arg(short = 'm', value_name = "PERCENT", value_parser = format::reserved_percent, default_value = "0")]
    reserved: f64,
    /// Features to turn on, or off with ^ before them; `none` turns all off
    #[arg(
        short = 'O',
        value_name = "FEATURE,...",
        value_delimiter = ',',
        value_parser = format::feature
    )]
    features: Vec<String>,
    /// Size of the journal
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    journal_size: Option<u64>,
    #[arg(
        long,
        value_name = "OWNER",
        value_parser = parse_owner,
        help = format!("Owner of everything: {}", owner::help_in_new_image())
    )]
    owner: Option<Owner>,
    /// Leave out names that match, or with a slash in it whole paths: as an archive states them,
    /// and as they are in the image; with a slash at the end directories only
    #[arg(long, value_name = "GLOB", value_parser = check_pattern)]
    exclude: Vec<String>,
    /// Leave out extended attributes whose names match
    #[arg(long, value_name = "GLOB", value_parser = check_attribute_pattern)]
    exclude_xattr: Vec<String>,
    /// Time of everything: @SECONDS or 2023-11-14T22:13:20Z
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    mtime: Option<Time>,
    /// A file that maps ids, owners and modes
    #[arg(long, value_name = "FILE")]
    map: Option<PathBuf>,
    /// Leave out what cannot be read, and say so
    #[arg(long)]
    skip_unreadable: bool,
    /// Leave other mounted file systems out
    #[arg(long, short = 'x')]
    one_file_system: bool,
    /// Refuse archives whose contents, with their maps of holes, are more than this [default: the
    /// size of the image, if given]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    limit: Option<u64>,
    /// Choose the image for this platform from an OCI layout, such as linux/amd64
    #[arg(long, value_name = "OS/ARCH", value_parser = Platform::parse)]
    platform: Option<Platform>,
    /// Choose the image with this tag from an OCI layout
    #[arg(long, value_name = "NAME")]
    tag: Option<String>,
    /// Threads, at most 1024 [default: one a processor]
    #[arg(long, value_name = "COUNT", value_parser = format::threads)]
    threads: Option<NonZeroUsize>,
    /// Do not wait until the image is on its disk
    #[arg(long)]
    no_sync: bool,
    /// Replace the image if it exists; a file that is no ext4 image stays, unless it is empty
    #[arg(long, short = 'f')]
    force: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Say nothing but errors
    #[arg(short = 'q', long)]
    quiet: bool,
}

/// A size, or as large as needed.
#[derive(Clone, Copy, Debug)]
enum Fitted {
    Auto,
    Bytes(u64),
}

fn parse_size(text: &str) -> Result<Fitted, String> {
    match text {
        "auto" => Ok(Fitted::Auto),
        text => size::parse(text).map(Fitted::Bytes),
    }
}

fn parse_free(text: &str) -> Result<Free, String> {
    let Some(percent) = text.strip_suffix('%') else {
        return size::parse(text).map(Free::Bytes);
    };
    let (whole, tenth) = percent.split_once('.').unwrap_or((percent, "0"));
    let thousandths = match (whole.parse::<u32>(), tenth.parse::<u32>()) {
        (Ok(whole @ 0..=95), Ok(tenth))
            if tenth < 10 && tenth.to_string().len() == tenth_length(percent) =>
        {
            Some(10 * whole + tenth)
        }
        _ => None,
    };
    thousandths
        .map(Free::Thousandths)
        .ok_or_else(|| format!("`{text}` is no share; write 10% (up to 95.9%) or a size"))
}

/// The digits after the point, or 1 if there are none.
fn tenth_length(percent: &str) -> usize {
    percent.split_once('.').map_or(1, |(_, tenth)| tenth.len())
}

/// Runs the command.
///
/// # Errors
///
/// A source cannot be read, is invalid or does not fit; the image cannot be written, or is in use.
pub fn run(arguments: &Arguments) -> Result<()> {
    let start = Instant::now();
    if arguments.image.as_os_str() == "-" {
        let problem = "an image does not go to standard output, as its parts are written in no order; \
                       a file called `-` is `./-`";
        return Err(Misuse(problem.to_owned()).into());
    }
    let progress = Arc::new(Progress::default());
    let builder = builder(arguments)?.progress(Arc::clone(&progress));
    let built = progress::watch_until(
        progress::is_wanted(arguments.quiet, arguments.json),
        || ProgressState::of("reading", &progress),
        || progress.stop(),
        || builder.build(&arguments.image),
    )?;
    let summary = built.map_err(|error| match error {
        build::Error::InUse(error) => add_user(&arguments.image, error),
        build::Error::Interrupted => {
            let image = arguments.image.display().to_string();
            anyhow::Error::from(build::Error::Interrupted).context(image)
        }
        error => error.into(),
    })?;
    if !arguments.quiet && !arguments.json {
        for note in &summary.notes {
            print_error(format_args!("pext4: {note}"));
        }
    }
    if arguments.json {
        print_json(&arguments.image, &summary, start.elapsed())?;
    } else if !arguments.quiet {
        let text = describe(&arguments.image, &summary, start.elapsed());
        print_result(text, DONE)?;
    }
    Ok(())
}

fn builder(arguments: &Arguments) -> Result<Builder> {
    let block_size = arguments.block_size;
    let mut builder = Builder::new()
        .size(size_of(arguments)?)
        .block_size(block_size)
        .inode_size(arguments.inode_size)
        .label(arguments.label.as_bytes())
        .reserved_percent(arguments.reserved)
        .features(&arguments.features)
        .skip_unreadable(arguments.skip_unreadable)
        .on_skipped(|error| progress::print(&format!("pext4: left out: {error}")))
        .one_file_system(arguments.one_file_system)
        .sync(!arguments.no_sync)
        .replace(arguments.force);
    for source in &arguments.sources {
        builder = builder.source(source_of(source)?);
    }
    for pattern in &arguments.exclude {
        builder = builder.exclude(pattern);
    }
    for pattern in &arguments.exclude_xattr {
        builder = builder.exclude_attribute(pattern);
    }
    if let Some(bytes) = arguments.journal_size {
        builder = builder.journal_blocks(format::journal_blocks(bytes, block_size)?);
    }
    let builder = with_identity(builder, arguments)?;
    with_wishes(builder, arguments)
}

fn size_of(arguments: &Arguments) -> Result<Size> {
    match (arguments.size, arguments.free) {
        (Fitted::Auto, None) => Ok(Size::default()),
        (Fitted::Auto, Some(free)) => Ok(Size::Auto(free)),
        (Fitted::Bytes(bytes), None) => Ok(Size::Bytes(bytes)),
        (Fitted::Bytes(_), Some(_)) => {
            let problem = "--free is for --size auto: an image of a given size has what is left";
            Err(Misuse(problem.to_owned()).into())
        }
    }
}

/// Everything but the contents that makes two images differ.
fn with_identity(mut builder: Builder, arguments: &Arguments) -> Result<Builder> {
    if let Some(uuid) = arguments.uuid {
        builder = builder.uuid(uuid.into_bytes());
    }
    if let Some(seed) = arguments.hash_seed {
        builder = builder.hash_seed(hash_seed(seed.into_bytes()));
    }
    if let Some(seconds) = source_date_epoch()? {
        builder = builder.date(seconds);
    }
    Ok(builder)
}

fn with_wishes(mut builder: Builder, arguments: &Arguments) -> Result<Builder> {
    if let Some(count) = arguments.inodes {
        builder = builder.inodes(count);
    }
    if let Some((uid, gid)) = arguments.owner {
        builder = builder.owner(uid, gid);
    }
    if let Some(time) = arguments.mtime {
        builder = builder.mtime(time);
    }
    if let Some(path) = &arguments.map {
        let name = || path.display().to_string();
        let text = std::fs::read(path).with_context(|| format!("{}: cannot read it", name()))?;
        let map = Map::parse(&text).map_err(|error| Misuse(error.to_string()));
        let map = map.with_context(name)?;
        builder = builder.map(map);
    }
    if let Some(limit) = arguments.limit {
        builder = builder.limit(limit);
    }
    if let Some(platform) = &arguments.platform {
        builder = builder.platform(platform.clone());
    }
    if let Some(tag) = &arguments.tag {
        builder = builder.tag(tag);
    }
    if let Some(threads) = arguments.threads {
        builder = builder.threads(threads.get());
    }
    Ok(builder)
}

/// The source that a word of the command line names.
fn source_of(word: &OsStr) -> Result<Source> {
    if word == "-" {
        let name = "standard input".to_owned();
        return Ok(Source::Stream(name, Box::new(io::stdin())).detected());
    }
    if let Some((kind, path)) = word.as_bytes().split_at_checked("dir:".len()) {
        let path = PathBuf::from(OsStr::from_bytes(path));
        match kind {
            b"dir:" => return Ok(Source::Directory(path)),
            b"tar:" => return Ok(Source::Archive(path)),
            b"oci:" => return Ok(Source::OciLayout(path)),
            _ => {}
        }
    }
    if word.is_empty() {
        bail!("an empty path is no source");
    }
    let failed = || format!("{}: cannot look at it", Shown(word.as_bytes()));
    Source::at(Path::new(word)).with_context(failed)
}

fn describe(image: &Path, summary: &Summary, time: Duration) -> String {
    let skipped = match summary.skipped {
        0 => String::new(),
        skipped => {
            let (one, many) = ("name was left out: it", "names were left out: they");
            format!("\n{} cannot be read", count(skipped, one, many))
        }
    };
    format!(
        "{}: {}, {} with {}, {} free, in {:.2} s\nUUID {}{skipped}",
        image.display(),
        size::show(summary.size),
        count(summary.names, "name", "names"),
        size::show(summary.content),
        size::show(summary.free_blocks * u64::from(summary.block_size)),
        time.as_secs_f64(),
        Uuid::from_bytes(summary.uuid)
    )
}

/// The summary in JSON.
#[derive(Serialize)]
struct JsonSummary<'a> {
    #[serde(flatten)]
    image: ImageName,
    size: u64,
    block_size: u32,
    blocks: u64,
    free_blocks: u64,
    inodes: u32,
    free_inodes: u32,
    journal_blocks: u32,
    names: u64,
    directories: u64,
    content: u64,
    skipped: u64,
    notes: &'a [String],
    uuid: String,
    features: &'a [String],
    seconds: f64,
}

fn print_json(image: &Path, summary: &Summary, time: Duration) -> Result<()> {
    let object = JsonSummary {
        image: ImageName::of(image),
        size: summary.size,
        block_size: summary.block_size,
        blocks: summary.blocks,
        free_blocks: summary.free_blocks,
        inodes: summary.inodes,
        free_inodes: summary.free_inodes,
        journal_blocks: summary.journal_blocks,
        names: summary.names,
        directories: summary.directories,
        content: summary.content,
        skipped: summary.skipped,
        notes: &summary.notes,
        uuid: Uuid::from_bytes(summary.uuid).to_string(),
        features: &summary.features,
        seconds: time.as_secs_f64(),
    };
    print_result(serde_json::to_string_pretty(&object)?, DONE)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Free, parse_free};

    #[test]
    fn free_space_is_a_share_or_a_size() {
        assert_eq!(parse_free("10%"), Ok(Free::Thousandths(100)));
        assert_eq!(parse_free("0%"), Ok(Free::Thousandths(0)));
        assert_eq!(parse_free("12.5%"), Ok(Free::Thousandths(125)));
        assert_eq!(parse_free("64M"), Ok(Free::Bytes(64 << 20)));
        for text in ["96%", "-1%", "%", "1.25%", "ten"] {
            assert!(parse_free(text).is_err(), "{text}");
        }
    }
}
