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
}

impl Verb for Arguments {
    fn apply(&self, session: &mut EditSession) -> Result<()> {
        session.apply(&Change::Rename {
            from: path(&self.from),
            to: path(&self.to),
        })?;
        Ok(())
    }
}
