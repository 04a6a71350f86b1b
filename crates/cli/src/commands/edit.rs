//! `pext4 edit`: many changes of an image at once, from a script or a tar.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Error, Result, anyhow};
use clap::{Args, Parser, Subcommand};
use pext4_edit::{EditError, EditSession, UnpackOptions};
use pext4_image::build::{AttributePatterns, check_attribute_pattern};
use pext4_image::words::words;
use pext4_ondisk::shown::Shown;

use super::{chattr, chmod, chown, cp, ln, mkdir, mknod, mv, put, rm, setxattr, touch, tune};
use crate::device::ImageArgument;
use crate::editing::{How, Verb};
use crate::failure::Misuse;
use crate::{input, script};

/// What UTF-8 begins with where it is marked as such.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Make many changes to an image, all or none, from a script or a tar
#[derive(Args)]
#[command(group = clap::ArgGroup::new("source").required(true))]
pub struct Arguments {
    #[command(flatten)]
    image: ImageArgument,
    /// A script: one command a line, as on the command line but without `pext4` and the image; `-`
    /// is standard input
    #[arg(short = 'f', long = "script", value_name = "FILE", group = "source")]
    script: Option<PathBuf>,
    /// A tar whose files are made in the image; `-` is standard input
    #[arg(long, value_name = "FILE", group = "source")]
    tar: Option<PathBuf>,
    /// The directory of the image that a tar goes to
    #[arg(
        long,
        value_name = "PATH",
        default_value = "/",
        conflicts_with = "script"
    )]
    into: OsString,
    /// The tar is a layer of a container image: its whiteouts remove files
    #[arg(long, conflicts_with = "script")]
    layer: bool,
    /// Leave out extended attributes of the tar whose names match
    #[arg(
        long,
        value_name = "GLOB",
        conflicts_with = "script",
        value_parser = check_attribute_pattern
    )]
    exclude_xattr: Vec<String>,
    #[command(flatten)]
    how: How,
}

/// One line of a script.
#[derive(Parser)]
#[command(
    no_binary_name = true,
    disable_help_flag = true,
    disable_help_subcommand = true
)]
struct Line {
    #[command(subcommand)]
    verb: AnyVerb,
}

#[derive(Subcommand)]
enum AnyVerb {
    Put(put::Arguments),
    Rm(rm::Arguments),
    Mv(mv::Arguments),
    Mkdir(mkdir::Arguments),
    Ln(ln::Arguments),
    Mknod(mknod::Arguments),
    Chmod(chmod::Arguments),
    Chattr(chattr::Arguments),
    Chown(chown::Arguments),
    Touch(touch::Arguments),
    Setxattr(setxattr::Arguments),
    Cp(cp::Arguments),
    Tune(tune::Arguments),
}

impl AnyVerb {
    fn apply(&self, session: &mut EditSession) -> Result<()> {
        match self {
            Self::Put(verb) => verb.apply(session),
            Self::Rm(verb) => verb.apply(session),
            Self::Mv(verb) => verb.apply(session),
            Self::Mkdir(verb) => verb.apply(session),
            Self::Ln(verb) => verb.apply(session),
            Self::Mknod(verb) => verb.apply(session),
            Self::Chmod(verb) => verb.apply(session),
            Self::Chattr(verb) => verb.apply(session),
            Self::Chown(verb) => verb.apply(session),
            Self::Touch(verb) => verb.apply(session),
            Self::Setxattr(verb) => verb.apply(session),
            Self::Cp(verb) => verb.apply(session),
            Self::Tune(verb) => verb.apply(session),
        }
    }
}

/// Runs the command.
///
/// # Errors
///
/// Any error, with the line of the script. The image has not changed, unless the error of the
/// commit says otherwise.
pub fn run(arguments: &Arguments) -> Result<()> {
    if let Some(script) = &arguments.script {
        let commands = read_script(script)?;
        return arguments.how.run(&arguments.image, |session| {
            commands
                .iter()
                .try_for_each(|(place, verb)| verb.apply(session).with_context(|| place.clone()))
        });
    }
    let tar = arguments.tar.as_deref();
    let tar = tar.expect("of the group `source`, one is required");
    let file = open(tar)?;
    let patterns = AttributePatterns::parse(&arguments.exclude_xattr)?;
    arguments.how.run(&arguments.image, |session| {
        let into = crate::editing::path(&arguments.into);
        let mut input = input::stoppable(file, session.progress());
        let options = UnpackOptions {
            is_layer: arguments.layer,
            excludes_attribute: Some(&|name| patterns.matches(name)),
        };
        let done = session.apply_tar_with(&mut input, &into, options);
        done.map(drop).map_err(|error| named(error, tar))
    })
}

/// Parses all lines, before the first one is applied.
fn read_script(path: &Path) -> Result<Vec<(String, AnyVerb)>> {
    let text = script::read(open(path)?).with_context(|| path.display().to_string())?;
    // Some editors begin every file with it.
    let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&text);
    let mut commands = Vec::new();
    // Standard input is read to its end, so a second reader would find nothing.
    let mut reader = (path == Path::new("-")).then(|| "the script itself".to_owned());
    for (index, line) in text.split(|&byte| byte == b'\n').enumerate() {
        let place = format!("{}:{}", path.display(), index + 1);
        let words = words(line).map_err(|text| Misuse(format!("{place}: {text}")))?;
        let Some(verb) = words.first() else {
            continue;
        };
        // A file that is no script holds anything, of which clap shows only a part.
        if !verb.is_ascii() || verb.iter().any(u8::is_ascii_control) {
            let problem = format!("{place}: `{}` is no command", Shown(verb));
            return Err(Misuse(problem).into());
        }
        let line =
            Line::try_parse_from(words.into_iter().map(OsString::from_vec)).map_err(|error| {
                let line = first_line(&error);
                Misuse(format!("{place}: {}", Shown(line.as_bytes())))
            })?;
        if matches!(&line.verb, AnyVerb::Put(put) if put.reads_standard_input()) {
            if let Some(reader) = &reader {
                return Err(Misuse(format!("{place}: standard input is {reader}")).into());
            }
            reader = Some(format!("read to its end by {place} already"));
        }
        commands.push((place, line.verb));
    }
    Ok(commands)
}

/// An error of clap in one line.
fn first_line(error: &clap::Error) -> String {
    let text = error.to_string();
    // Lists in an error are separate lines below the message.
    let message = text
        .lines()
        .map(str::trim)
        .skip_while(|line| line.is_empty());
    let lines: Vec<&str> = message.take_while(|line| !line.is_empty()).collect();
    let line = lines.join(" ");
    match line.strip_prefix("error: ").unwrap_or(&line) {
        "" => "not understood".to_owned(),
        line => line.to_owned(),
    }
}

fn open(path: &Path) -> Result<File> {
    if path == Path::new("-") {
        return input::standard().context("standard input");
    }
    File::open(path).map_err(|error| anyhow!("{}: cannot open it: {error}", path.display()))
}

/// Adds the archive's path to its errors.
fn named(error: EditError, tar: &Path) -> Error {
    let standard = Path::new("-");
    match error {
        EditError::Tar(_) | EditError::TarEntry { .. } if tar != standard => {
            Error::new(error).context(tar.display().to_string())
        }
        // The library reads a stream and calls it `-`.
        EditError::Host {
            path,
            action,
            source,
        } if path == standard => {
            let path = tar.to_owned();
            EditError::Host {
                path,
                action,
                source,
            }
            .into()
        }
        error => error.into(),
    }
}
