//! `pext4 touch`: times of files in an image, and empty files.

use std::ffi::OsString;

use anyhow::Result;
use clap::Args;
use pext4_edit::{Change, EditSession, change};
use pext4_fs::Time;
use pext4_image::build::parse_time;

use crate::editing::{Verb, path};

/// The arguments behind the image.
#[derive(Args)]
pub struct Arguments {
    /// The files; what is not there is made, empty
    #[arg(required = true)]
    paths: Vec<OsString>,
    /// The time, like 2024-05-01T12:00:00Z or @SECONDS; else that of --mtime or SOURCE_DATE_EPOCH,
    /// or the present
    #[arg(short, long, value_name = "TIME", value_parser = parse_time)]
    date: Option<Time>,
    /// Do not create missing files
    #[arg(short = 'c', long)]
    no_create: bool,
}

impl Verb for Arguments {
    fn apply(&self, session: &mut EditSession) -> Result<()> {
        for name in &self.paths {
            session.apply(&Change::Touch(change::Touch {
                path: path(name),
                time: self.date,
                no_create: self.no_create,
            }))?;
        }
        Ok(())
    }
}
