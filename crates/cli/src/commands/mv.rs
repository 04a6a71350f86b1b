//! `pext4 mv`: moves files within an image.

use std::ffi::OsString;

use anyhow::Result;
use clap::Args;
use pext4_edit::{Change, EditSession, change};

use crate::editing::{Verb, apply_to, destination, path};

/// The arguments behind the image.
#[derive(Args)]
pub struct Arguments {
    /// What to move
    #[arg(required = true)]
    from: Vec<OsString>,
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
        let to = destination(&self.to, self.from.len(), self.no_target_directory)?;
        let moved: Vec<_> = self
            .from
            .iter()
            .map(|from| {
                Change::Rename(change::Rename {
                    from: path(from),
                    to: to.clone(),
                    no_target_directory: self.no_target_directory,
                    no_clobber: self.no_clobber,
                })
            })
            .collect();
        Ok(apply_to(session, &to, &moved)?)
    }
}
