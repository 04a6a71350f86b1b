//! `pext4 mv`: moves files within an image.

use std::ffi::OsString;

use anyhow::Result;
use clap::Args;
use pext4_edit::{Change, EditSession};

use crate::editing::{Verb, path};

/// The arguments behind the image.
#[derive(Args)]
pub struct Arguments {
    /// What to move
    from: OsString,
    /// Where to; a directory that is there takes it in
    to: OsString,
    /// Move nothing if the destination exists
    #[arg(short, long)]
    no_clobber: bool,
    /// A directory at the destination is not entered: it is replaced if it is empty
    #[arg(short = 'T', long)]
    no_target_directory: bool,
}

impl Verb for Arguments {
    fn apply(&self, session: &mut EditSession) -> Result<()> {
        session.apply(&Change::Rename {
            from: path(&self.from),
            to: path(&self.to),
            no_target_directory: self.no_target_directory,
            no_clobber: self.no_clobber,
        })?;
        Ok(())
    }
}
