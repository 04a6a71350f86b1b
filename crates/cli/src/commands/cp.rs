//! `pext4 cp`: copies files within an image and from another one.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use pext4_edit::{Change, EditSession, change};

use crate::editing::{Verb, apply_to, destination, path};
use crate::partitions::refuse_disk_at;
use crate::{device, size};

/// The arguments behind the image.
#[derive(Args)]
pub struct Arguments {
    /// What to copy, with all its attributes, but not immutable or append-only; `/dir/.` is what is
    /// in a directory
    #[arg(required = true)]
    from: Vec<OsString>,
    /// Where to; a directory that is there takes it in
    to: OsString,
    /// The image in which FROM is, if it is another one
    #[arg(long = "from", value_name = "IMAGE")]
    other: Option<PathBuf>,
    /// Where the file system begins in that image, in bytes: the start of a partition
    #[arg(
        long,
        value_name = "BYTES",
        value_parser = size::parse_offset,
        requires = "other",
        default_value = "0",
        hide_default_value = true
    )]
    from_offset: u64,
    /// Copy directories and everything in them
    #[arg(short, long, visible_short_aliases = ['R', 'a'])]
    recursive: bool,
    /// A directory at the destination is not entered: the source is put in its place or merged
    #[arg(short = 'T', long)]
    no_target_directory: bool,
}

impl Verb for Arguments {
    fn apply(&self, session: &mut EditSession) -> Result<()> {
        let to = destination(&self.to, self.from.len(), self.no_target_directory)?;
        let copied: Vec<_> = self
            .from
            .iter()
            .map(|from| {
                Change::CopyFile(change::CopyFile {
                    image: self.other.clone(),
                    image_offset: self.from_offset,
                    from: path(from),
                    to: to.clone(),
                    no_target_directory: self.no_target_directory,
                    recursive: self.recursive,
                })
            })
            .collect();
        let done = apply_to(session, &to, &copied);
        match &self.other {
            Some(other) => {
                let done = device::opened(other, self.from_offset, done);
                done.map_err(|error| {
                    let refused = refuse_disk_at(other, self.from_offset);
                    refused.err().unwrap_or(error)
                })
            }
            None => Ok(done?),
        }
    }
}
