//! `pext4 chmod`: permissions of files in an image.

use std::ffi::OsString;

use anyhow::Result;
use clap::Args;
use pext4_edit::{Change, EditSession, ModeChange, change};

use crate::editing::{Verb, path};

/// The arguments behind the image.
#[derive(Args)]
pub struct Arguments {
    /// The permissions: octal (0755), or what changes (u+x,go-w); letters without any of ugoa (+w)
    /// as under the umask 022
    #[arg(allow_hyphen_values = true)]
    mode: ModeChange,
    /// The files
    #[arg(required = true)]
    paths: Vec<OsString>,
    /// Also everything below each directory; symbolic links stay as they are
    #[arg(short = 'R', long)]
    recursive: bool,
}

impl Verb for Arguments {
    fn apply(&self, session: &mut EditSession) -> Result<()> {
        for name in &self.paths {
            session.apply(&Change::SetMode(change::SetMode {
                path: path(name),
                mode: self.mode.clone(),
                recursive: self.recursive,
            }))?;
        }
        Ok(())
    }
}
