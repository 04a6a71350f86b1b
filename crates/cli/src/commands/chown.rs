//! `pext4 chown`: owners of files in an image.

use std::ffi::OsString;

use anyhow::Result;
use clap::Args;
use pext4_edit::{Change, EditSession, change};

use crate::editing::{Verb, path};
use crate::owner;

/// The arguments behind the image.
#[derive(Args)]
pub struct Arguments {
    #[arg(help = owner::help_in_image())]
    owner: String,
    /// The files
    #[arg(required = true)]
    paths: Vec<OsString>,
    /// Also everything below each directory; of a symbolic link, the link itself
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Change symbolic links themselves, not the files that they lead to
    #[arg(long)]
    no_dereference: bool,
}

impl Verb for Arguments {
    fn apply(&self, session: &mut EditSession) -> Result<()> {
        let (uid, gid) = owner::parse(&self.owner, session)?;
        for name in &self.paths {
            session.apply(&Change::SetOwner(change::SetOwner {
                path: path(name),
                uid,
                gid,
                recursive: self.recursive,
                no_follow: self.no_dereference,
            }))?;
        }
        Ok(())
    }
}
