//! `pext4 chattr`: flags of files in an image.

use std::ffi::OsString;

use anyhow::Result;
use clap::Args;
use pext4_edit::{Change, EditSession, FlagChange, change};

use crate::editing::{Verb, path};

/// The arguments behind the image.
#[derive(Args)]
pub struct Arguments {
    /// What changes, as with chattr: +i (immutable), -i, +ad-A, =d
    #[arg(allow_hyphen_values = true)]
    flags: FlagChange,
    /// The files and directories
    #[arg(required = true)]
    paths: Vec<OsString>,
    /// Also everything below each directory
    #[arg(short = 'R', long)]
    recursive: bool,
}

impl Verb for Arguments {
    fn apply(&self, session: &mut EditSession) -> Result<()> {
        for name in &self.paths {
            session.apply(&Change::SetFlags(change::SetFlags {
                path: path(name),
                flags: self.flags.clone(),
                recursive: self.recursive,
            }))?;
        }
        Ok(())
    }
}
