//! `pext4 info`: shows the superblock of an image.

use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, bail};
use clap::Args;
use pext4_fs::{Error, Time};
use pext4_ondisk::casefold;
use pext4_ondisk::feature::{Compat, Incompat};
use pext4_ondisk::geometry::Geometry;
use pext4_ondisk::superblock::{ErrorPolicy, ErrorRecord, State, Superblock};
use serde::Serialize;
use uuid::Uuid;

use super::record;
use crate::columns::{self, Align};
use crate::device::{ImageArgument, tell_kernel_mount};
use crate::names::ImageName;
use crate::output::print_error;
use crate::superblock::{Found, find, needs_replay};
use crate::{moment, names, output, size};

/// Show what an image is: size, features, state
#[derive(Args)]
pub struct Arguments {
    #[command(flatten)]
    image: ImageArgument,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// One of a few words for programs, and what it means, for people.
struct Term {
    word: &'static str,
    meaning: &'static str,
}

impl Serialize for Term {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.word)
    }
}

/// The superblock in JSON.
#[derive(Serialize)]
struct Info {
    #[serde(flatten)]
    image: ImageName,
    label: String,
    /// The label's bytes in hexadecimal, if they are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    label_hex: Option<String>,
    uuid: String,
    state: Term,
    errors: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_error: Option<String>,
    on_error: Term,
    size: u64,
    /// Bytes behind the end of the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    missing: Option<u64>,
    block_size: u32,
    blocks: u64,
    free_blocks: u64,
    reserved_blocks: u64,
    inodes: u32,
    free_inodes: u32,
    inode_size: u16,
    groups: u32,
    blocks_per_group: u32,
    inodes_per_group: u32,
    journal: Term,
    features: Vec<String>,
    /// That of casefolded directories.
    #[serde(skip_serializing_if = "Option::is_none")]
    encoding: Option<String>,
    last_mounted_on: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_mounted_on_hex: Option<String>,
    created: Option<String>,
    mounted: Option<String>,
    written: Option<String>,
    checked: Option<String>,
    mounts: u16,
}

/// Runs the command.
///
/// # Errors
///
/// The image cannot be read, or is not an ext4.
pub fn run(arguments: &Arguments) -> Result<()> {
    let Found {
        superblock,
        damage,
        room,
    } = find(&arguments.image.file, arguments.image.offset)?;
    let name = || arguments.image.file.display().to_string();
    if superblock.features.has_incompat(Incompat::JOURNAL_DEV) {
        bail!(
            "{}: it is the journal of another image, and has no file system",
            name()
        );
    }
    if let Some(corrupt) = damage {
        print_error(format_args!("pext4: {}: {}", name(), Error::from(corrupt)));
    }
    tell_kernel_mount(&arguments.image.file, arguments.image.offset);
    let geometry = Geometry::of(&superblock).map_err(Error::from);
    let geometry = geometry.with_context(name)?;
    let info = Info::of(&arguments.image.file, &superblock, &geometry, room);
    let mut output = output::buffered();
    if arguments.json {
        record::write(&mut output, &info)?;
    } else {
        columns::write(
            &mut output,
            &[Align::Left, Align::Left],
            &rows(&name(), &superblock, &info),
        )?;
    }
    Ok(output.flush()?)
}

impl Info {
    /// What the superblock of an image says, with room for so many bytes of its file system.
    fn of(image: &Path, superblock: &Superblock, geometry: &Geometry, room: u64) -> Self {
        let date = |seconds: i64| {
            let time = Time {
                seconds,
                nanoseconds: 0,
            };
            (seconds != 0).then(|| moment::show_rfc3339(time))
        };
        let label = unpadded(&superblock.volume_name);
        let last_mounted_on = unpadded(&superblock.last_mounted);
        let size = geometry
            .blocks_count
            .saturating_mul(u64::from(geometry.block_size));
        Self {
            image: ImageName::of(image),
            label: names::text(label),
            label_hex: names::hexadecimal_unless_text(label),
            uuid: Uuid::from_bytes(superblock.uuid).to_string(),
            state: state(superblock),
            errors: superblock.error_count,
            last_error: (superblock.error_count > 0).then(|| error(&superblock.last_error)),
            on_error: on_error(superblock.errors),
            size,
            missing: size.checked_sub(room).filter(|&missing| missing > 0),
            block_size: geometry.block_size,
            blocks: geometry.blocks_count,
            free_blocks: superblock.free_blocks,
            reserved_blocks: superblock.reserved_blocks,
            inodes: geometry.inodes_count,
            free_inodes: superblock.free_inodes,
            inode_size: geometry.inode_size,
            groups: geometry.group_count,
            blocks_per_group: geometry.blocks_per_group,
            inodes_per_group: geometry.inodes_per_group,
            journal: journal(superblock),
            features: superblock.features.names(),
            encoding: encoding(superblock),
            last_mounted_on: names::text(last_mounted_on),
            last_mounted_on_hex: names::hexadecimal_unless_text(last_mounted_on),
            created: date(superblock.make_time),
            mounted: date(superblock.mount_time),
            written: date(superblock.write_time),
            checked: date(superblock.check_time),
            mounts: superblock.mount_count,
        }
    }
}

/// The encoding of names in casefolded directories, if there may be any.
fn encoding(superblock: &Superblock) -> Option<String> {
    let folds = superblock.features.has_incompat(Incompat::CASEFOLD);
    let name = match superblock.encoding {
        casefold::UTF8_12_1 => "utf8-12.1".to_owned(),
        other => format!("number {other}"),
    };
    let strict = match superblock.encoding_flags & casefold::STRICT {
        0 => "",
        _ => ", strict",
    };
    folds.then(|| name + strict)
}

/// A name without the padding of its field.
fn unpadded(name: &[u8]) -> &[u8] {
    let end = name
        .iter()
        .position(|&byte| byte == 0)
        .unwrap_or(name.len());
    &name[..end]
}

fn state(superblock: &Superblock) -> Term {
    let (word, meaning) = if superblock.state.contains(State::ERRORS) {
        (
            "errors",
            "errors were found; `e2fsck -f` repairs them (keep a copy)",
        )
    } else if needs_replay(superblock) {
        let meaning = "in use, or not closed cleanly: a mount replays the journal";
        ("needs-replay", meaning)
    } else if superblock.state.contains(State::CLEAN) {
        ("clean", "clean")
    } else {
        ("not-closed", "in use, or not closed cleanly")
    };
    Term { word, meaning }
}

fn on_error(policy: ErrorPolicy) -> Term {
    let (word, meaning) = match policy {
        ErrorPolicy::Continue => ("continue", "continue"),
        // As a mount does with a policy of 0, which some tools leave, and with unknown ones.
        ErrorPolicy::RemountReadOnly | ErrorPolicy::Unknown(_) => {
            ("remount-ro", "remount read-only")
        }
        ErrorPolicy::Panic => ("panic", "stop"),
    };
    Term { word, meaning }
}

fn journal(superblock: &Superblock) -> Term {
    let (word, meaning) = if !superblock.features.has_compat(Compat::HAS_JOURNAL) {
        ("none", "none")
    } else if superblock.journal_inode.get() == 0 {
        ("external", "on another device")
    } else {
        ("internal", "in the image")
    };
    Term { word, meaning }
}

fn error(record: &ErrorRecord) -> String {
    let function = names::show(unpadded(&record.function));
    let mut text = format!(
        "{} in {function}:{}",
        moment::show(record.time),
        record.line
    );
    if record.inode != 0 {
        text.push_str(&format!(", inode {}", record.inode));
    }
    if record.block != 0 {
        text.push_str(&format!(", block {}", record.block));
    }
    text
}

fn rows(name: &str, superblock: &Superblock, info: &Info) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    let mut line = |label: &str, value: String| {
        if !value.is_empty() {
            rows.push(vec![label.to_owned(), value]);
        }
    };
    let bytes = |blocks: u64| size::show(blocks.saturating_mul(u64::from(info.block_size)));
    let date = |seconds: i64| match seconds {
        0 => String::new(),
        seconds => moment::show(seconds),
    };
    let shown = |field: &[u8]| names::show(unpadded(field));
    line("Image", name.to_owned());
    line("Label", shown(&superblock.volume_name));
    line("UUID", info.uuid.clone());
    line("State", info.state.meaning.to_owned());
    if info.errors > 0 {
        line(
            "Errors",
            format!(
                "{}, the last {}",
                info.errors,
                error(&superblock.last_error)
            ),
        );
    }
    if let Some(missing) = info.missing {
        let missing = size::show(missing);
        line(
            "Missing",
            format!("the last {missing}: the file was cut short"),
        );
    }
    line("On errors", info.on_error.meaning.to_owned());
    line("Size", size::show(info.size));
    line(
        "Free",
        format!(
            "{} ({} reserved)",
            bytes(info.free_blocks),
            bytes(info.reserved_blocks)
        ),
    );
    line(
        "Blocks",
        format!("{} of {} bytes", info.blocks, info.block_size),
    );
    let inodes = format!(
        "{} of {} bytes, {} free",
        info.inodes, info.inode_size, info.free_inodes
    );
    line("Inodes", inodes);
    line("Encoding", info.encoding.clone().unwrap_or_default());
    let (blocks, inodes) = (info.blocks_per_group, info.inodes_per_group);
    line(
        "Groups",
        format!("{} of {blocks} blocks and {inodes} inodes", info.groups),
    );
    line("Journal", info.journal.meaning.to_owned());
    line("Features", info.features.join(" "));
    line("Last mounted on", shown(&superblock.last_mounted));
    line("Mounts", info.mounts.to_string());
    line("Created", date(superblock.make_time));
    line("Last mounted", date(superblock.mount_time));
    line("Last written", date(superblock.write_time));
    line("Last checked", date(superblock.check_time));
    rows
}
