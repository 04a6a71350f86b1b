//! `pext4 mkdir`: makes directories in an image.

use std::ffi::OsString;

use anyhow::Result;
use clap::Args;
use pext4_edit::{Change, EditSession, ModeChange, change};

use crate::editing::{Verb, path};

/// The arguments behind the image.
#[derive(Args)]
pub struct Arguments {
    /// The directories
    #[arg(required = true)]
    paths: Vec<OsString>,
    /// Also make missing parents; an existing directory is no error
    #[arg(short, long)]
    parents: bool,
    /// Permissions: octal (0750), or what changes of 0777 (go-w); letters without any of ugoa as
    /// under the umask 022
    #[arg(short, long, value_name = "MODE", allow_hyphen_values = true)]
    mode: Option<ModeChange>,
}

impl Verb for Arguments {
    fn apply(&self, session: &mut EditSession) -> Result<()> {
        for name in &self.paths {
            session.apply(&Change::MakeDirectory(change::MakeDirectory {
                path: path(name),
                parents: self.parents,
                mode: self.mode.clone(),
            }))?;
        }
        Ok(())
    }
}
