//! `pext4 put`: files of the host into an image.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use pext4_edit::{Change, EditSession, ModeChange, Overrides, change};

use crate::editing::{Verb, apply_to, destination};
use crate::failure::Misuse;
use crate::{input, owner};

/// The arguments behind the image.
#[derive(Args)]
pub struct Arguments {
    /// The files or directories; `-` is standard input, `DIR/.` what is in DIR
    #[arg(required = true)]
    from: Vec<PathBuf>,
    /// Where they go; into a directory that is there, under their own names
    to: OsString,
    /// A directory at the destination is not entered: the source is put in its place or merged
    #[arg(short = 'T', long)]
    no_target_directory: bool,
    #[arg(
        long,
        value_name = "OWNER",
        help = format!("Owner of everything, else that of the source: {}", owner::help_in_image())
    )]
    owner: Option<String>,
    /// Permissions: octal (0755), or a change (go-w) of the source's, or of 0644 for standard input
    #[arg(short, long, value_name = "MODE", allow_hyphen_values = true)]
    mode: Option<ModeChange>,
    /// Leave extended attributes behind
    #[arg(long)]
    no_xattrs: bool,
}

impl Arguments {
    /// Whether one of the files is standard input.
    pub fn reads_standard_input(&self) -> bool {
        self.from.iter().any(|from| is_standard_input(from))
    }

    /// The permissions that a file gets; `None` for those it has.
    fn permissions(&self, from: &Path) -> Result<Option<u16>> {
        let Some(mode) = &self.mode else {
            return Ok(None);
        };
        if is_standard_input(from) {
            return Ok(Some(mode.apply(0o644, false)));
        }
        let found = fs::symlink_metadata(from);
        let found = found.with_context(|| format!("{}: cannot look at it", from.display()))?;
        let bits = found.permissions().mode() & 0o7777;
        let bits = u16::try_from(bits).expect("twelve bits");
        Ok(Some(mode.apply(bits, found.is_dir())))
    }
}

fn is_standard_input(from: &Path) -> bool {
    from.as_os_str() == "-"
}

impl Verb for Arguments {
    fn apply(&self, session: &mut EditSession) -> Result<()> {
        let (uid, gid) = match &self.owner {
            Some(owner) => owner::parse(owner, session)?,
            None => (None, None),
        };
        let to = destination(&self.to, self.from.len(), self.no_target_directory)?;
        let overrides = |from: &Path| {
            let permissions = self.permissions(from)?;
            anyhow::Ok(Overrides {
                uid,
                gid,
                permissions,
            })
        };
        if self.reads_standard_input() {
            let is_only_one = self.from.len() == 1;
            return write_standard_input(session, &to, is_only_one, overrides(Path::new("-"))?);
        }
        let put = self.from.iter().map(|from| {
            anyhow::Ok(Change::Put(change::Put {
                from: from.clone(),
                to: to.clone(),
                no_target_directory: self.no_target_directory,
                xattrs: !self.no_xattrs,
                overrides: overrides(from)?,
            }))
        });
        Ok(apply_to(session, &to, &put.collect::<Result<Vec<_>>>()?)?)
    }
}

fn write_standard_input(
    session: &mut EditSession,
    to: &[u8],
    is_only_one: bool,
    overrides: Overrides,
) -> Result<()> {
    if to.ends_with(b"/") || !is_only_one {
        let problem = "standard input has no name: give the path of the file";
        return Err(Misuse(problem.to_owned()).into());
    }
    let input = input::standard().context("standard input")?;
    let mut input = input::stoppable(input, session.progress());
    Ok(session.write_from(to, &mut input, overrides)?)
}
