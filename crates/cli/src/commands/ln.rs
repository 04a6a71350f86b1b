//! `pext4 ln`: makes links in an image.

use std::ffi::OsString;

use anyhow::Result;
use clap::Args;
use pext4_edit::{Change, EditSession, IntoDirectory, change};

use crate::editing::{Verb, path};

/// The arguments behind the image.
#[derive(Args)]
pub struct Arguments {
    /// The file that gets another name, or where a symbolic link leads
    target: OsString,
    /// The link
    path: OsString,
    /// Make a symbolic link
    #[arg(short, long)]
    symbolic: bool,
    /// Replace an existing file
    #[arg(short, long)]
    force: bool,
    /// A symbolic link to a directory at the link's path is not followed into it
    #[arg(short, long)]
    no_dereference: bool,
    /// A directory at the link's path is not entered: the path is the link's own
    #[arg(short = 'T', long)]
    no_target_directory: bool,
}

impl Verb for Arguments {
    fn apply(&self, session: &mut EditSession) -> Result<()> {
        let (target, path, force) = (path(&self.target), path(&self.path), self.force);
        let into = match (self.no_target_directory, self.no_dereference) {
            (true, _) => IntoDirectory::Never,
            (false, true) => IntoDirectory::NotThroughLinks,
            (false, false) => IntoDirectory::Always,
        };
        let change = if self.symbolic {
            Change::Symlink(change::Symlink {
                target,
                path,
                force,
                into,
            })
        } else {
            Change::Link(change::Link {
                target,
                path,
                force,
                into,
            })
        };
        Ok(session.apply(&change)?)
    }
}
