//! Operations as text: one line each, words separated by one space.
//!
//! A target is `/a/b`, `#3/b` (slot 3) or `@12/b` (inode 12). Bytes of names that are not plain are
//! written as `%2f`; eight or more equal bytes in a row are written as `{x*250}`. Empty lines and
//! lines that start with `;` are ignored.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Result, anyhow, bail};
use pext4_fs::{AllocateMode, FileType, RenameMode, SetTime, SetXattrMode, Time};

use super::{Base, Name, NewAttributes, Op, Target};

/// Shortest run of equal bytes that is abbreviated.
const RUN: usize = 8;

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"._-+,=:~".contains(&byte)
}

/// A name as text.
#[must_use]
pub fn escape(name: &[u8]) -> String {
    let mut text = String::new();
    let mut rest = name;
    while let Some(&byte) = rest.first() {
        let run = rest.iter().take_while(|&&other| other == byte).count();
        let one = if is_plain(byte) {
            char::from(byte).to_string()
        } else {
            format!("%{byte:02x}")
        };
        let taken = if run >= RUN {
            text.push_str(&format!("{{{one}*{run}}}"));
            run
        } else {
            text.push_str(&one);
            1
        };
        rest = &rest[taken..];
    }
    text
}

/// A name from its text.
pub fn unescape(text: &str) -> Result<Name> {
    let mut name = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        if let Some(run) = rest.strip_prefix('{') {
            let (inside, behind) = run.split_once('}').context("a `{` without `}`")?;
            let (byte, count) = inside.split_once('*').context("a run without `*`")?;
            let (byte, more) = one_byte(byte)?;
            if !more.is_empty() {
                bail!("a run repeats one byte, not `{inside}`");
            }
            name.extend(std::iter::repeat_n(byte, count.parse::<u16>()?.into()));
            rest = behind;
        } else {
            let (byte, behind) = one_byte(rest)?;
            name.push(byte);
            rest = behind;
        }
    }
    Ok(name)
}

fn one_byte(text: &str) -> Result<(u8, &str)> {
    if let Some(code) = text.strip_prefix('%') {
        let digits = code.get(..2).context("`%` wants two digits")?;
        return Ok((u8::from_str_radix(digits, 16)?, &code[2..]));
    }
    let byte = *text.as_bytes().first().context("a byte is missing")?;
    if !is_plain(byte) {
        bail!("byte {byte:#x} must be written as %{byte:02x}");
    }
    Ok((byte, &text[1..]))
}

impl fmt::Display for Target {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.base {
            Base::Root if self.path.is_empty() => formatter.write_str("/")?,
            Base::Root => {}
            Base::Slot(slot) => write!(formatter, "#{slot}")?,
            Base::Inode(number) => write!(formatter, "@{number}")?,
        }
        self.path
            .iter()
            .try_for_each(|name| write!(formatter, "/{}", escape(name)))
    }
}

impl FromStr for Target {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let (start, names) = text.split_once('/').unwrap_or((text, ""));
        let base = if start.is_empty() {
            Base::Root
        } else if let Some(slot) = start.strip_prefix('#') {
            Base::Slot(slot.parse()?)
        } else if let Some(number) = start.strip_prefix('@') {
            Base::Inode(number.parse()?)
        } else {
            bail!("`{text}` starts with none of `/`, `#`, `@`");
        };
        let names = names.split('/').filter(|name| !name.is_empty());
        Ok(Self {
            base,
            path: names.map(unescape).collect::<Result<_>>()?,
        })
    }
}

impl fmt::Display for NewAttributes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{:o} {} {}",
            self.permissions, self.uid, self.gid
        )
    }
}

const RENAMES: [(&str, RenameMode); 3] = [
    ("replace", RenameMode::Replace),
    ("noreplace", RenameMode::NoReplace),
    ("exchange", RenameMode::Exchange),
];

const ALLOCATIONS: [(&str, AllocateMode); 5] = [
    ("extend", AllocateMode::Extend),
    ("keep", AllocateMode::KeepSize),
    ("punch", AllocateMode::PunchHole),
    ("zero", AllocateMode::ZeroRange { keep_size: false }),
    ("zerokeep", AllocateMode::ZeroRange { keep_size: true }),
];

const XATTR_MODES: [(&str, SetXattrMode); 3] = [
    ("any", SetXattrMode::Any),
    ("create", SetXattrMode::Create),
    ("replace", SetXattrMode::Replace),
];

const KINDS: [(&str, FileType); 7] = [
    ("file", FileType::Regular),
    ("dir", FileType::Directory),
    ("char", FileType::CharacterDevice),
    ("block", FileType::BlockDevice),
    ("fifo", FileType::Fifo),
    ("socket", FileType::Socket),
    ("symlink", FileType::Symlink),
];

fn word_of<T: PartialEq>(table: &[(&'static str, T)], value: &T) -> &'static str {
    table
        .iter()
        .find(|(_, item)| item == value)
        .map_or("?", |(word, _)| word)
}

fn value_of<T: Copy>(table: &[(&str, T)], word: &str) -> Result<T> {
    let found = table.iter().find(|(name, _)| *name == word);
    found
        .map(|&(_, value)| value)
        .ok_or_else(|| anyhow!("unknown word `{word}`"))
}

/// The word for a kind of file.
#[must_use]
pub fn kind_word(kind: FileType) -> &'static str {
    word_of(&KINDS, &kind)
}

fn time_text(time: Option<SetTime>) -> String {
    match time {
        None => "-".to_owned(),
        Some(SetTime::Now) => "now".to_owned(),
        Some(SetTime::To(time)) => format!("{}.{:09}", time.seconds, time.nanoseconds),
    }
}

fn time_value(text: &str) -> Result<Option<SetTime>> {
    Ok(match text {
        "-" => None,
        "now" => Some(SetTime::Now),
        _ => {
            let (seconds, nanoseconds) = text.split_once('.').context("seconds.nanoseconds")?;
            let time = Time {
                seconds: seconds.parse()?,
                nanoseconds: nanoseconds.parse()?,
            };
            Some(SetTime::To(time))
        }
    })
}

impl fmt::Display for Op {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lookup(of) => write!(out, "lookup {of}"),
            Self::Create { at, new } => write!(out, "create {at} {new}"),
            Self::MakeDirectory { at, new } => write!(out, "mkdir {at} {new}"),
            Self::MakeNode {
                at,
                new,
                kind,
                device: (major, minor),
            } => {
                write!(out, "mknod {at} {new} {} {major} {minor}", kind_word(*kind))
            }
            Self::MakeSymlink { at, new, to } => write!(out, "symlink {at} {new} {}", escape(to)),
            Self::Link { of, at } => write!(out, "link {of} {at}"),
            Self::Unlink(at) => write!(out, "unlink {at}"),
            Self::RemoveDirectory(at) => write!(out, "rmdir {at}"),
            Self::Rename { from, to, mode } => {
                write!(out, "rename {from} {to} {}", word_of(&RENAMES, mode))
            }
            Self::Hold { of, slot } => write!(out, "hold {of} #{slot}"),
            Self::CreateUnnamed {
                directory,
                new,
                slot,
            } => {
                write!(out, "tmpfile {directory} {new} #{slot}")
            }
            Self::Release(slot) => write!(out, "release #{slot}"),
            other => other.fmt_content(out),
        }
    }
}

impl Op {
    fn fmt_content(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read { of, offset, length } => write!(out, "read {of} {offset} {length}"),
            Self::Write {
                of,
                offset,
                length,
                fill,
            } => {
                write!(out, "write {of} {offset} {length} {fill}")
            }
            Self::Truncate { of, size } => write!(out, "truncate {of} {size}"),
            Self::Allocate {
                of,
                mode,
                offset,
                length,
            } => {
                write!(
                    out,
                    "allocate {of} {} {offset} {length}",
                    word_of(&ALLOCATIONS, mode)
                )
            }
            Self::SeekData { of, offset } => write!(out, "seekdata {of} {offset}"),
            Self::SeekHole { of, offset } => write!(out, "seekhole {of} {offset}"),
            Self::SyncFile {
                of,
                data_only: false,
            } => write!(out, "fsync {of}"),
            Self::SyncFile {
                of,
                data_only: true,
            } => write!(out, "fdatasync {of}"),
            other => other.fmt_attribute(out),
        }
    }

    fn fmt_attribute(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SetMode { of, permissions } => write!(out, "chmod {of} {permissions:o}"),
            Self::SetOwner { of, uid, gid } => write!(out, "chown {of} {uid} {gid}"),
            Self::SetTimes {
                of,
                accessed,
                modified,
            } => {
                write!(
                    out,
                    "times {of} {} {}",
                    time_text(*accessed),
                    time_text(*modified)
                )
            }
            Self::SetXattr {
                of,
                name,
                length,
                fill,
                mode,
            } => {
                let mode = word_of(&XATTR_MODES, mode);
                write!(out, "setxattr {of} {} {length} {fill} {mode}", escape(name))
            }
            Self::GetXattr { of, name } => write!(out, "getxattr {of} {}", escape(name)),
            Self::RemoveXattr { of, name } => write!(out, "rmxattr {of} {}", escape(name)),
            Self::ListXattrs(of) => write!(out, "listxattrs {of}"),
            other => other.fmt_reading(out),
        }
    }

    fn fmt_reading(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ReadLink(of) => write!(out, "readlink {of}"),
            Self::List { directory, at_once } => write!(out, "list {directory} {at_once}"),
            Self::Stat(of) => write!(out, "stat {of}"),
            Self::Statistics => out.write_str("statfs"),
            Self::Sync => out.write_str("sync"),
            Self::Remount => out.write_str("remount"),
            _ => Err(fmt::Error),
        }
    }
}

/// The words of one line, read one after another.
struct Words<'a>(std::str::Split<'a, char>);

impl Words<'_> {
    fn word(&mut self) -> Result<&str> {
        self.0.next().context("a word is missing")
    }

    fn number<T: FromStr>(&mut self) -> Result<T>
    where
        T::Err: std::error::Error + Send + Sync + 'static,
    {
        let word = self.word()?;
        word.parse()
            .with_context(|| format!("`{word}` is no number"))
    }

    fn target(&mut self) -> Result<Target> {
        self.word()?.parse()
    }

    fn place(&mut self) -> Result<Target> {
        let target = self.target()?;
        if target.path.is_empty() {
            bail!("`{target}` names no entry of a directory");
        }
        Ok(target)
    }

    fn slot(&mut self) -> Result<u8> {
        let word = self.word()?;
        Ok(word
            .strip_prefix('#')
            .context("a slot starts with `#`")?
            .parse()?)
    }

    fn octal(&mut self) -> Result<u16> {
        Ok(u16::from_str_radix(self.word()?, 8)?)
    }

    fn fresh(&mut self) -> Result<NewAttributes> {
        Ok(NewAttributes {
            permissions: self.octal()?,
            uid: self.number()?,
            gid: self.number()?,
        })
    }

    fn name(&mut self) -> Result<Name> {
        unescape(self.word()?)
    }
}

impl FromStr for Op {
    type Err = anyhow::Error;

    fn from_str(line: &str) -> Result<Self> {
        let mut words = Words(line.split(' '));
        let verb = words.word()?.to_owned();
        let op = match namespace(&verb, &mut words)? {
            Some(op) => op,
            None => {
                file(&verb, &mut words)?.with_context(|| format!("unknown operation `{verb}`"))?
            }
        };
        match words.0.next() {
            None => Ok(op),
            Some(extra) => bail!("`{extra}` is one word too many"),
        }
    }
}

fn namespace(verb: &str, words: &mut Words<'_>) -> Result<Option<Op>> {
    Ok(Some(match verb {
        "lookup" => Op::Lookup(words.place()?),
        "create" => Op::Create {
            at: words.place()?,
            new: words.fresh()?,
        },
        "mkdir" => Op::MakeDirectory {
            at: words.place()?,
            new: words.fresh()?,
        },
        "mknod" => Op::MakeNode {
            at: words.place()?,
            new: words.fresh()?,
            kind: value_of(&KINDS, words.word()?)?,
            device: (words.number()?, words.number()?),
        },
        "symlink" => Op::MakeSymlink {
            at: words.place()?,
            new: words.fresh()?,
            to: words.name()?,
        },
        "link" => Op::Link {
            of: words.target()?,
            at: words.place()?,
        },
        "unlink" => Op::Unlink(words.place()?),
        "rmdir" => Op::RemoveDirectory(words.place()?),
        "rename" => Op::Rename {
            from: words.place()?,
            to: words.place()?,
            mode: value_of(&RENAMES, words.word()?)?,
        },
        "hold" => Op::Hold {
            of: words.target()?,
            slot: words.slot()?,
        },
        "tmpfile" => Op::CreateUnnamed {
            directory: words.target()?,
            new: words.fresh()?,
            slot: words.slot()?,
        },
        "release" => Op::Release(words.slot()?),
        "statfs" => Op::Statistics,
        "sync" => Op::Sync,
        "remount" => Op::Remount,
        _ => return Ok(None),
    }))
}

fn file(verb: &str, words: &mut Words<'_>) -> Result<Option<Op>> {
    let Ok(of) = words.target() else {
        return Ok(None);
    };
    Ok(Some(match verb {
        "read" => Op::Read {
            of,
            offset: words.number()?,
            length: words.number()?,
        },
        "write" => Op::Write {
            of,
            offset: words.number()?,
            length: words.number()?,
            fill: words.number()?,
        },
        "truncate" => Op::Truncate {
            of,
            size: words.number()?,
        },
        "allocate" => Op::Allocate {
            of,
            mode: value_of(&ALLOCATIONS, words.word()?)?,
            offset: words.number()?,
            length: words.number()?,
        },
        "seekdata" => Op::SeekData {
            of,
            offset: words.number()?,
        },
        "seekhole" => Op::SeekHole {
            of,
            offset: words.number()?,
        },
        "readlink" => Op::ReadLink(of),
        "list" => Op::List {
            directory: of,
            at_once: words.number()?,
        },
        "stat" => Op::Stat(of),
        "fsync" => Op::SyncFile {
            of,
            data_only: false,
        },
        "fdatasync" => Op::SyncFile {
            of,
            data_only: true,
        },
        _ => return attribute(verb, of, words),
    }))
}

fn attribute(verb: &str, of: Target, words: &mut Words<'_>) -> Result<Option<Op>> {
    Ok(Some(match verb {
        "chmod" => Op::SetMode {
            of,
            permissions: words.octal()?,
        },
        "chown" => Op::SetOwner {
            of,
            uid: words.number()?,
            gid: words.number()?,
        },
        "times" => Op::SetTimes {
            of,
            accessed: time_value(words.word()?)?,
            modified: time_value(words.word()?)?,
        },
        "setxattr" => Op::SetXattr {
            of,
            name: words.name()?,
            length: words.number()?,
            fill: words.number()?,
            mode: value_of(&XATTR_MODES, words.word()?)?,
        },
        "getxattr" => Op::GetXattr {
            of,
            name: words.name()?,
        },
        "rmxattr" => Op::RemoveXattr {
            of,
            name: words.name()?,
        },
        "listxattrs" => Op::ListXattrs(of),
        _ => return Ok(None),
    }))
}

/// Parses a text with one operation a line.
pub fn parse(text: &str) -> Result<Vec<Op>> {
    let mut ops = Vec::new();
    for (index, line) in text.lines().enumerate() {
        // A space at the end may precede an empty word, such as an empty link target.
        if line.trim().is_empty() || line.starts_with(';') {
            continue;
        }
        ops.push(
            line.parse()
                .with_context(|| format!("line {}: `{line}`", index + 1))?,
        );
    }
    Ok(ops)
}

/// The text of operations, one a line.
#[must_use]
pub fn print(ops: &[Op]) -> String {
    ops.iter().map(|op| format!("{op}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Random;
    use crate::model::Model;
    use crate::op::generate::{Generator, Profile};

    #[test]
    fn every_generated_operation_survives_its_text() {
        let mut random = Random::new(11);
        let mut model = Model::empty(4096);
        let generator = Generator::new(Profile::everything());
        let mut verbs = std::collections::BTreeSet::new();
        for _ in 0..5000 {
            let op = generator.next(&mut random, &model);
            let text = op.to_string();
            let again: Op = text
                .parse()
                .unwrap_or_else(|error| panic!("{text}: {error:#}"));
            assert_eq!(again, op, "{text}");
            verbs.insert(text.split(' ').next().map(str::to_owned));
            let _ = model.run(&op);
        }
        assert!(
            verbs.len() >= 30,
            "only {} verbs were seen: {verbs:?}",
            verbs.len()
        );
    }

    #[test]
    fn strange_names_are_written_plainly() {
        let name = [b"a b/%{".as_slice(), &[b'x'; 250], &[0xff; 9], b"end"].concat();
        let text = escape(&name);
        assert_eq!(text, "a%20b%2f%25%7b{x*250}{%ff*9}end");
        assert_eq!(unescape(&text).expect("own text"), name);
    }

    #[test]
    fn an_empty_word_at_the_end_survives() {
        let op = Op::MakeSymlink {
            at: Target::path("/a"),
            new: NewAttributes::plain(0o777),
            to: Vec::new(),
        };
        let ops = [op, Op::Sync];
        assert_eq!(parse(&print(&ops)).expect("own text"), ops);
    }

    #[test]
    fn nonsense_is_refused() {
        for line in [
            "create / 644 0 0",
            "frob /a",
            "unlink /a b",
            "write /a 1 2",
            "stat a",
        ] {
            assert!(line.parse::<Op>().is_err(), "{line}");
        }
        assert_eq!(parse("; a comment\n\nsync\n").expect("fine"), [Op::Sync]);
    }
}
