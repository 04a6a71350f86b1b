//! `pext4 mknod`: makes devices, fifos and sockets in an image.

use std::ffi::OsString;

use anyhow::Result;
use clap::{Args, ValueEnum};
use pext4_edit::{Change, EditSession, ModeChange, change};
use pext4_fs::{DeviceNumber, FileType};

use crate::editing::{Verb, path};
use crate::failure::Misuse;

/// The arguments behind the image.
#[derive(Args)]
pub struct Arguments {
    /// The file
    path: OsString,
    /// Its kind
    kind: Kind,
    /// Major number of a device
    #[arg(value_parser = clap::value_parser!(u32).range(0..4096))]
    major: Option<u32>,
    /// Minor number of a device
    #[arg(value_parser = clap::value_parser!(u32).range(0..1_048_576))]
    minor: Option<u32>,
    /// Permissions: octal (0600), or what changes of 0666 (go-w); letters without any of ugoa as
    /// under the umask 022
    #[arg(short, long, value_name = "MODE", allow_hyphen_values = true)]
    mode: Option<ModeChange>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// Character device
    C,
    /// Block device
    B,
    /// Fifo
    P,
    /// Socket
    S,
}

impl Verb for Arguments {
    fn apply(&self, session: &mut EditSession) -> Result<()> {
        let device = match (self.kind, self.major, self.minor) {
            (Kind::C | Kind::B, Some(major), Some(minor)) => DeviceNumber { major, minor },
            (Kind::P | Kind::S, None, None) => DeviceNumber::default(),
            _ => {
                let problem = "devices (c, b) have a major and a minor number, others have none";
                return Err(Misuse(problem.to_owned()).into());
            }
        };
        session.apply(&Change::MakeNode(change::MakeNode {
            path: path(&self.path),
            kind: match self.kind {
                Kind::C => FileType::CharacterDevice,
                Kind::B => FileType::BlockDevice,
                Kind::P => FileType::Fifo,
                Kind::S => FileType::Socket,
            },
            device,
            permissions: self.mode.as_ref().map(|mode| mode.apply(0o666, false)),
        }))?;
        Ok(())
    }
}
