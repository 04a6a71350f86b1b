//! `pext4 mkfs`: makes an empty file system.

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use pext4_block::{Access, Device, FileDevice, open_unlocked};
use pext4_fs::path::MAX_SYMLINKS;
use pext4_image::build::{Owner, parse_owner};
use pext4_image::is_vacant;
use pext4_image::mkfs::{Design, FileSystem, Options, Summary, clear, hash_seed};
use pext4_sync::atomic::{AtomicU64, Ordering};
use serde::Serialize;
use uuid::Uuid;

use crate::device::{self, add_user};
use crate::failure::Misuse;
use crate::format;
use crate::interrupt::Interrupt;
use crate::moment::source_date_epoch;
use crate::names::ImageName;
use crate::output::print_result;
use crate::progress::{self, Measure, ProgressState};
use crate::{owner, size, uuid_text};

/// Make an empty file system in an image, with upstream's defaults
#[derive(Args)]
pub struct Arguments {
    /// The image to make, or a block device
    image: PathBuf,
    /// Its size, like 512M, 10G or 1T; not needed for what exists
    #[arg(long, short = 's', value_parser = size::parse)]
    size: Option<u64>,
    /// Which file system
    #[arg(
        short = 't',
        long = "type",
        value_name = "TYPE",
        value_enum,
        default_value = "ext4"
    )]
    file_system: Type,
    /// Bytes in a block: 1024, 2048, 4096, or more up to 65536, which few systems mount
    #[arg(short = 'b', value_name = "BYTES", value_parser = format::block_size)]
    block_size: Option<u32>,
    /// Inodes
    #[arg(short = 'N', value_name = "COUNT", value_parser = format::inodes)]
    inodes: Option<u64>,
    /// An inode for so many bytes
    #[arg(
        short = 'i',
        value_name = "BYTES",
        value_parser = format::bytes_per_inode,
        conflicts_with = "inodes"
    )]
    bytes_per_inode: Option<u64>,
    /// Bytes in an inode
    #[arg(short = 'I', value_name = "BYTES", value_parser = format::inode_size, default_value = "256")]
    inode_size: u16,
    /// Label, at most 16 bytes
    #[arg(short = 'L', value_name = "LABEL", value_parser = format::label, default_value = "")]
    label: String,
    /// UUID; random if absent or `random`, `time` makes it of the time, `clear` leaves it empty
    #[arg(short = 'U', value_name = "UUID", value_parser = uuid_text::parse)]
    uuid: Option<Uuid>,
    /// Seed of directory hashes, as a UUID; random if absent. With it, -U and SOURCE_DATE_EPOCH the
    /// same options give the same bytes
    #[arg(long, value_name = "UUID", value_parser = uuid_text::parse)]
    hash_seed: Option<Uuid>,
    /// Percent of the blocks that are kept for root
    #[arg(short = 'm', value_name = "PERCENT", value_parser = format::reserved_percent, default_value = "5")]
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
        help = format!(
            "Owner of the root directory, in what is absent the caller: {}",
            owner::help_in_new_image()
        )
    )]
    root_owner: Option<Owner>,
    /// Overwrite what the image holds
    #[arg(long)]
    force: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Say nothing but errors
    #[arg(short = 'q', long, conflicts_with = "json")]
    quiet: bool,
}

/// What `-t` takes.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Type {
    /// Without journal, extents and checksums
    Ext2,
    /// The same with a journal
    Ext3,
    /// With all that is on by default upstream
    Ext4,
}

impl From<Type> for FileSystem {
    fn from(name: Type) -> Self {
        match name {
            Type::Ext2 => Self::Ext2,
            Type::Ext3 => Self::Ext3,
            Type::Ext4 => Self::Ext4,
        }
    }
}

/// Runs the command.
///
/// # Errors
///
/// The image is not empty, or cannot be written; the options contradict each other.
pub fn run(arguments: &Arguments) -> Result<()> {
    let mut options = options(arguments)?;
    let target = target(arguments)?;
    let block_size = block_size(&target, &options)?;
    options.block_size = Some(block_size);
    let journal = arguments.journal_size;
    let journal = journal.map(|bytes| format::journal_blocks(bytes, block_size));
    options.journal_blocks = journal.transpose()?;
    // Until the options are known to be valid there is nothing to clean up.
    let made = make(&arguments.image, target, &options, || {
        Ok(Some(Interrupt::catch().context("cannot catch signals")?))
    })?;
    if arguments.quiet {
        return Ok(());
    }
    let text = match arguments.json {
        true => json(&arguments.image, &made)?,
        false => describe(&arguments.image, &made),
    };
    print_result(text, "the file system was made")?;
    Ok(())
}

/// Creates an image with all defaults. The caller has checked that it does not exist, and catches
/// signals later, in its own way.
///
/// # Errors
///
/// The image cannot be created.
pub fn create(image: &Path, size: u64) -> Result<Summary> {
    let options = Options {
        root_owner: caller(),
        ..Options::default()
    };
    make(image, Target::NewFile(size), &options, || Ok(None))
}

/// The target of the file system.
enum Target {
    /// A file, which gets this size.
    File(u64),
    /// A file of this size where there is none.
    NewFile(u64),
    /// A block device.
    Device {
        device: FileDevice,
        /// Whether the progress of clearing it is shown.
        shows_progress: bool,
    },
}

impl Target {
    fn size(&self) -> u64 {
        match self {
            Self::File(size) | Self::NewFile(size) => *size,
            Self::Device { device, .. } => device.size(),
        }
    }

    /// The least that it reads or writes at once, in bytes, if it is a block device that says so.
    fn sector_size(&self) -> Option<u64> {
        match self {
            Self::File(_) | Self::NewFile(_) => None,
            Self::Device { device, .. } => device.sector_size(),
        }
    }
}

/// The bytes in a block: at least those of a sector, since Linux mounts no smaller blocks.
fn block_size(target: &Target, options: &Options) -> Result<u32> {
    let usual = options.block_size_at(target.size());
    let sector = target.sector_size().unwrap_or(0);
    if sector <= usual.into() {
        return Ok(usual);
    }
    match options.block_size {
        None => Ok(u32::try_from(sector).unwrap_or(u32::MAX)),
        Some(wanted) => {
            let problem = format!(
                "-b {wanted}: the device has sectors of {sector} bytes, and a block is not smaller \
                 than a sector"
            );
            Err(Misuse(problem).into())
        }
    }
}

/// Makes the file system, unless a signal comes that `catch` has caught. The content of the target
/// is not touched until the options are known to be valid.
fn make(
    image: &Path,
    target: Target,
    options: &Options,
    catch: impl FnOnce() -> Result<Option<Interrupt>>,
) -> Result<Summary> {
    let name = || image.display().to_string();
    let named = |error| add_user(image, error);
    let design = Design::new(target.size(), options).with_context(name)?;
    let interrupt = catch()?;
    let is_stopped = || interrupt.as_ref().is_some_and(Interrupt::came);
    let device = match target {
        Target::File(size) => FileDevice::create(image, size).map_err(named)?,
        Target::NewFile(size) => {
            FileDevice::create_new(end_of_links(image), size).map_err(named)?
        }
        Target::Device {
            device,
            shows_progress,
        } => {
            if !clear_device(&device, shows_progress, &is_stopped).with_context(name)? {
                bail!("{}: interrupted: it is partly cleared", name());
            }
            device
        }
    };
    // A file has just been made of zeroes, and a block device has been cleared.
    let written = design.write_zeroed(&device, &is_stopped);
    let is_interrupted = matches!(written, Err(pext4_image::Error::Interrupted));
    let written = written.with_context(name);
    let made = written.and_then(|made| Ok(device.flush().map(|()| made)?));
    if made.is_err() {
        device.remove_if_new();
    }
    if is_interrupted && image.exists() {
        bail!(
            "{}: interrupted: it has no file system yet; --force makes one",
            name()
        );
    }
    made
}

/// The path to which a path leads if nothing is there. A new file is never made through a link.
fn end_of_links(path: &Path) -> PathBuf {
    let mut end = path.to_owned();
    for _ in 0..MAX_SYMLINKS {
        let Ok(target) = fs::read_link(&end) else {
            break;
        };
        end = end.parent().unwrap_or(Path::new("")).join(target);
    }
    end
}

fn caller() -> (u32, u32) {
    (
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    )
}

fn root_owner(wanted: Option<Owner>) -> (u32, u32) {
    let ((uid, gid), caller) = (wanted.unwrap_or_default(), caller());
    (uid.unwrap_or(caller.0), gid.unwrap_or(caller.1))
}

fn options(arguments: &Arguments) -> Result<Options> {
    Ok(Options {
        file_system: arguments.file_system.into(),
        block_size: arguments.block_size,
        inodes: arguments.inodes,
        bytes_per_inode: arguments.bytes_per_inode,
        inode_size: arguments.inode_size,
        label: arguments.label.clone().into_bytes(),
        uuid: arguments.uuid.map(Uuid::into_bytes),
        reserved_percent: arguments.reserved,
        features: arguments.features.clone(),
        hash_seed: arguments.hash_seed.map(|seed| hash_seed(seed.into_bytes())),
        time: source_date_epoch()?.map(|seconds| seconds.clamp(0, i64::from(u32::MAX))),
        root_owner: root_owner(arguments.root_owner),
        ..Options::default()
    })
}

/// Finds the target of the file system, and refuses one that is not empty.
fn target(arguments: &Arguments) -> Result<Target> {
    let image = &arguments.image;
    let name = || image.display().to_string();
    let existing = match fs::metadata(image) {
        Ok(existing) => Some(existing),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error).with_context(name),
    };
    if existing.is_some() && !arguments.force && !is_empty(image)? {
        bail!(
            "{}: it holds something already; --force overwrites it",
            name()
        );
    }
    match existing {
        Some(existing) if existing.file_type().is_block_device() => {
            if arguments.size.is_some() {
                return Err(Misuse("--size: a block device has its size".to_owned()).into());
            }
            let device = device::open(image, Access::ReadWrite)?;
            Ok(Target::Device {
                device,
                shows_progress: progress::is_wanted(arguments.quiet, arguments.json),
            })
        }
        Some(existing) => Ok(Target::File(arguments.size.unwrap_or(existing.len()))),
        None => match arguments.size {
            Some(size) if arguments.force => Ok(Target::File(size)),
            Some(size) => Ok(Target::NewFile(size)),
            None => Err(Misuse(format!("{}: a new image needs --size", name())).into()),
        },
    }
}

/// Clears a block device, and shows the progress where that takes long. Returns whether it is
/// cleared; it is not if that was interrupted.
fn clear_device(
    device: &FileDevice,
    shows_progress: bool,
    is_stopped: &dyn Fn() -> bool,
) -> Result<bool> {
    let cleared = AtomicU64::new(0);
    let state = || ProgressState {
        measure: Measure::Bytes,
        position: cleared.load(Ordering::Relaxed),
        length: device.size(),
        ..ProgressState::elapsed("clearing")
    };
    let on_cleared = |bytes| cleared.store(bytes, Ordering::Relaxed);
    let clear = || clear(device, &on_cleared, is_stopped);
    Ok(progress::watch(shows_progress, state, clear)?)
}

/// Whether a file or device is as good as empty.
fn is_empty(image: &Path) -> Result<bool> {
    let mut file = open_unlocked(image)?;
    is_vacant(&mut file).with_context(|| image.display().to_string())
}

#[derive(Serialize)]
struct JsonSummary<'a> {
    #[serde(flatten)]
    image: ImageName,
    size: u64,
    block_size: u32,
    blocks: u64,
    inodes: u32,
    groups: u32,
    journal_blocks: u32,
    uuid: String,
    features: &'a [String],
}

fn json(image: &Path, made: &Summary) -> Result<String> {
    let object = JsonSummary {
        image: ImageName::of(image),
        size: made.blocks.saturating_mul(u64::from(made.block_size)),
        block_size: made.block_size,
        blocks: made.blocks,
        inodes: made.inodes,
        groups: made.groups,
        journal_blocks: made.journal_blocks,
        uuid: Uuid::from_bytes(made.uuid).to_string(),
        features: &made.features,
    };
    Ok(serde_json::to_string_pretty(&object)?)
}

fn describe(image: &Path, made: &Summary) -> String {
    let bytes = size::show(made.blocks.saturating_mul(u64::from(made.block_size)));
    let journal = match made.journal_blocks {
        0 => "no journal".to_owned(),
        blocks => {
            let bytes = u64::from(blocks) * u64::from(made.block_size);
            format!("a journal of {}", size::show(bytes))
        }
    };
    format!(
        "{}: {bytes}, {} blocks of {} bytes, {} inodes, {journal}\nUUID {}",
        image.display(),
        made.blocks,
        made.block_size,
        made.inodes,
        Uuid::from_bytes(made.uuid)
    )
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use clap::Parser;

    use super::{Arguments, Interrupt, Options, make, target};

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn arguments(image: &Path, more: &[&str]) -> Arguments {
        let image = image.to_str().expect("a path in UTF-8");
        let words = ["mkfs", image, "--size", "1M"].into_iter();
        Line::parse_from(words.chain(more.iter().copied())).arguments
    }

    #[test]
    fn a_file_that_appears_meanwhile_stays_without_force() {
        let folder = tempfile::tempdir().expect("room");
        let image = folder.path().join("image");
        for (more, is_kept) in [(&[][..], true), (&["--force"][..], false)] {
            let found = target(&arguments(&image, more)).expect("nothing is there");
            fs::write(&image, "precious").expect("room");
            let made = make(&image, found, &Options::default(), || Ok(None));
            assert_eq!(made.is_err(), is_kept);
            assert_eq!(fs::read(&image).expect("there") == b"precious", is_kept);
            fs::remove_file(&image).expect("there");
        }
    }

    #[test]
    fn an_interruption_leaves_no_new_file() {
        let folder = tempfile::tempdir().expect("room");
        let image = folder.path().join("image");
        let interrupted = || {
            let target = target(&arguments(&image, &[])).expect("nothing is there");
            let options = Options::default();
            let made = make(&image, target, &options, || Ok(Some(Interrupt::sent())));
            crate::failure::line(&made.expect_err("it was interrupted"))
        };
        let told = interrupted();
        assert!(
            told.ends_with("image: interrupted; nothing was left behind"),
            "{told}"
        );
        assert!(!image.exists());
        fs::write(&image, []).expect("room");
        let told = interrupted();
        assert!(told.contains("no file system yet; --force"), "{told}");
        assert_eq!(fs::metadata(&image).expect("it stays").len(), 1 << 20);
    }

    #[test]
    fn links_that_lead_nowhere_lead_to_the_new_image() {
        let folder = tempfile::tempdir().expect("room");
        let names = ["first", "second", "image"];
        let [first, second, image] = names.map(|name| folder.path().join(name));
        symlink("second", &first).expect("a fresh place");
        symlink(&image, &second).expect("a fresh place");
        let found = target(&arguments(&first, &[])).expect("nothing is there");
        make(&first, found, &Options::default(), || Ok(None)).expect("room");
        assert_eq!(fs::metadata(&image).expect("there").len(), 1 << 20);
        assert!(fs::symlink_metadata(&first).expect("there").is_symlink());
    }
}
