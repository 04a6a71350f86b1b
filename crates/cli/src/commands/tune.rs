//! `pext4 tune`: label, UUID, reserved blocks and reaction to errors of an image.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use anyhow::Result;
use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{ArgGroup, Args, ValueEnum};
use pext4_edit::{EditSession, ErrorPolicy, Tuning};
use uuid::Uuid;

use crate::editing::Verb;
use crate::{format, uuid_text};

/// The arguments behind the image.
#[derive(Args)]
#[command(group = ArgGroup::new("what").required(true).multiple(true))]
pub struct Arguments {
    /// Label, at most 16 bytes; empty for none
    #[arg(
        short = 'L',
        value_name = "LABEL",
        group = "what",
        value_parser = OsStringValueParser::new().try_map(format::label_of_bytes)
    )]
    label: Option<OsString>,
    /// UUID; random or time for a new one, clear for zeroes
    #[arg(short = 'U', value_name = "UUID", group = "what", value_parser = uuid_text::parse)]
    uuid: Option<Uuid>,
    /// Percent of the blocks that are kept for root, 0 to 50
    #[arg(
        short = 'm',
        value_name = "PERCENT",
        group = "what",
        value_parser = format::reserved_percent
    )]
    reserved: Option<f64>,
    /// What happens when damage is found
    #[arg(short = 'e', value_name = "BEHAVIOUR", group = "what", value_enum)]
    errors: Option<OnError>,
}

#[derive(Clone, Copy, ValueEnum)]
enum OnError {
    /// It is noted, and work goes on
    Continue,
    /// It is noted, and nothing more is written
    RemountRo,
    /// Linux stops the machine; a mount of pext4 becomes read-only
    Panic,
}

impl Verb for Arguments {
    fn apply(&self, session: &mut EditSession) -> Result<()> {
        let errors = |wanted| match wanted {
            OnError::Continue => ErrorPolicy::Continue,
            OnError::RemountRo => ErrorPolicy::RemountReadOnly,
            OnError::Panic => ErrorPolicy::Panic,
        };
        Ok(session.tune(&Tuning {
            label: self.label.as_ref().map(|label| label.as_bytes().to_vec()),
            uuid: self.uuid.map(Uuid::into_bytes),
            reserved_percent: self.reserved,
            errors: self.errors.map(errors),
        })?)
    }
}
