//! `pext4 mkdir`: makes directories in an image.

use std::ffi::OsString;

use anyhow::Result;
use clap::Args;
use pext4_edit::{Change, EditSession};

use crate::editing::{Verb, path};
use crate::mode;

/// The arguments behind the image.
#[derive(Args)]
pub struct Arguments {
    /// The directories
    #[arg(required = true)]
    paths: Vec<OsString>,
    /// With the directories they lie in; what is there is no error
    #[arg(short, long)]
    parents: bool,
    /// Permissions in octal
    #[arg(short, long, value_name = "MODE", value_parser = mode::parse)]
    mode: Option<u16>,
}

impl Verb for Arguments {
    fn apply(&self, session: &mut EditSession) -> Result<()> {
        for name in &self.paths {
            session.apply(&Change::MakeDirectory {
                path: path(name),
                parents: self.parents,
                permissions: self.mode,
            })?;
        }
        Ok(())
    }
}
