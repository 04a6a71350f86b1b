//! `pext4 ln`: makes links in an image.

use std::ffi::OsString;

use anyhow::Result;
use clap::Args;
use pext4_edit::{Change, EditSession};

use crate::editing::{Verb, path};

/// The arguments behind the image.
#[derive(Args)]
pub struct Arguments {
    /// The file that gets another name, or where a symbolic link leads
    target: OsString,
    /// The link
    path: OsString,
    /// A symbolic link
    #[arg(short, long)]
    symbolic: bool,
    /// In place of what is there
    #[arg(short, long)]
    force: bool,
}

impl Verb for Arguments {
    fn apply(&self, session: &mut EditSession) -> Result<()> {
        let (target, path, force) = (path(&self.target), path(&self.path), self.force);
        let change = if self.symbolic {
            Change::Symlink {
                target,
                path,
                force,
            }
        } else {
            Change::Link {
                target,
                path,
                force,
            }
        };
        Ok(session.apply(&change)?)
    }
}
