//! `pext4 rm`: removes files of an image.

use std::ffi::OsString;

use anyhow::Result;
use clap::Args;
use pext4_edit::{Change, EditSession, change};

use crate::editing::{Verb, path};

/// The arguments behind the image.
#[derive(Args)]
pub struct Arguments {
    /// What to remove
    #[arg(required = true)]
    paths: Vec<OsString>,
    /// Remove directories and everything in them
    #[arg(short, long, visible_short_alias = 'R')]
    recursive: bool,
    /// A missing file is no error
    #[arg(short, long)]
    force: bool,
}

impl Verb for Arguments {
    fn apply(&self, session: &mut EditSession) -> Result<()> {
        for name in &self.paths {
            session.apply(&Change::Remove(change::Remove {
                path: path(name),
                recursive: self.recursive,
                force: self.force,
            }))?;
        }
        Ok(())
    }
}
