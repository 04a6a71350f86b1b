//! Reading tar archives: the old, the POSIX and the GNU kind, with their extensions.
//!
//! An archive is passed over once, from its start to its end mark. Headers become *records*; what
//! the archive holds of a file stays where it is (in a plain file) or goes into the spool (from a
//! stream), and the record says where. The `tar` crate knows the bytes of a header; what is believed
//! is decided here: nothing about sizes is taken on trust, every stated length has a bound, and a
//! content that is shorter than stated is an error. What states a size and has no content is passed
//! over, so that the next entry is found.
//!
//! A record's name is a list of sound names below the root: absolute names and `..` are refused.

pub(super) mod apply;
mod header;
pub(super) mod input;
mod pax;
mod sparse;
pub(super) mod spool;

use std::ffi::OsStr;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use pext4_ondisk::xattr::Attribute;

use super::error::{Error, Result};
use super::rules::Rules;
use super::tree::{Facts, judge_name};
use header::{Behind, Described};
use input::Input;

/// Bytes of a tar block.
pub(super) const BLOCK: usize = 512;
/// The longest extension header that is believed.
const LONGEST_EXTENSION: u64 = 1 << 20;

/// What an archive may not exceed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Limits {
    /// Bytes of contents, holes not counted.
    pub bytes: Option<u64>,
    /// Names.
    pub files: Option<u64>,
}

/// One entry of an archive.
pub(super) struct Record {
    /// Names from the root, joined by slashes; empty for the root itself.
    pub path: Vec<u8>,
    /// `content` is where the content lies.
    pub facts: Facts,
    /// Of a hard link: the path of the file it is another name of.
    pub link: Option<Vec<u8>>,
    /// Of a symbolic link.
    pub target: Option<Vec<u8>>,
    pub segments: Option<Box<[Range<u64>]>>,
    pub attributes: Vec<Attribute>,
}

/// Passes over an archive.
pub(super) struct Reader<'a, I> {
    /// Its name for messages.
    path: &'a Path,
    input: I,
    rules: &'a Rules,
    limits: Limits,
    bytes: u64,
    files: u64,
    /// What `g` headers said, to hold for all entries that follow.
    global: Vec<u8>,
    /// It had a header of POSIX' own format.
    is_posix: bool,
    /// A header that was read when a content might have followed.
    peeked: Option<[u8; BLOCK]>,
}

/// Extensions that the next entry has.
#[derive(Default)]
struct Extensions {
    name: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    pax: Vec<u8>,
}

impl<'a, I: Input> Reader<'a, I> {
    pub fn new(path: &'a Path, input: I, rules: &'a Rules, limits: Limits) -> Self {
        Self {
            path,
            input,
            rules,
            limits,
            bytes: 0,
            files: 0,
            global: Vec::new(),
            is_posix: false,
            peeked: None,
        }
    }

    /// Reads all entries up to the end mark; `take` gets each. Then the input is given back.
    pub fn read(mut self, mut take: impl FnMut(Record) -> Result<()>) -> Result<I> {
        let mut extensions = Extensions::default();
        let mut block = [0; BLOCK];
        loop {
            if let Some(peeked) = self.peeked.take() {
                block = peeked;
            } else if !self.input.read_block(&mut block)? {
                return Err(self.unsound("it ends without an end mark, so it has been cut off"));
            }
            if block == [0; BLOCK] {
                return Ok(self.input);
            }
            let header = tar::Header::from_byte_slice(&block);
            header::check_sum(header).map_err(|problem| self.unsound(problem))?;
            if self.extend(header, &mut extensions)? {
                continue;
            }
            let extensions = std::mem::take(&mut extensions);
            if let Some(record) = self.record(header, extensions)? {
                take(record)?;
            }
        }
    }

    fn unsound(&self, problem: impl Into<String>) -> Error {
        Error::unsound(self.path, problem)
    }

    /// An error about an entry: names archive and entry.
    fn unsound_entry(&self, name: &[u8], problem: impl AsRef<str>) -> Error {
        let shown = PathBuf::from(OsStr::from_bytes(name));
        self.unsound(format!("{}: {}", shown.display(), problem.as_ref()))
    }

    /// Keeps what an extension header says; false if the header is an entry's own.
    fn extend(&mut self, header: &tar::Header, extensions: &mut Extensions) -> Result<bool> {
        let kind = header.as_bytes()[156];
        if !matches!(kind, b'x' | b'g' | b'L' | b'K' | b'V' | b'X') {
            return Ok(false);
        }
        let size = header
            .entry_size()
            .map_err(|_| self.unsound("an extension header states no size"))?;
        if size > LONGEST_EXTENSION {
            return Err(self.unsound(format!(
                "an extension header of {size} bytes: up to {LONGEST_EXTENSION} are believed"
            )));
        }
        let content = self.small_content(size)?;
        let until_nul = || {
            let end = content.iter().position(|&byte| byte == 0);
            content[..end.unwrap_or(content.len())].to_vec()
        };
        self.is_posix |= matches!(kind, b'x' | b'X' | b'g');
        match kind {
            b'x' | b'X' => extensions.pax = content,
            b'g' => self.global = content,
            b'L' => extensions.name = Some(until_nul()),
            b'K' => extensions.link = Some(until_nul()),
            _ => {}
        }
        Ok(true)
    }

    /// A content that is needed now.
    fn small_content(&mut self, size: u64) -> Result<Vec<u8>> {
        let length = usize::try_from(size).expect("bounded by what is believed");
        let mut bytes = vec![0; length.next_multiple_of(BLOCK)];
        for block in bytes.as_chunks_mut::<BLOCK>().0 {
            if !self.input.read_block(block)? {
                return Err(self.unsound("it ends inside an extension header"));
            }
        }
        bytes.truncate(length);
        Ok(bytes)
    }

    /// The record of an entry, its content passed over; `None` where the rules leave it out.
    fn record(&mut self, header: &tar::Header, extensions: Extensions) -> Result<Option<Record>> {
        let mut pax = pax::Values::default();
        for said in [&self.global, &extensions.pax] {
            pax.read(said)
                .map_err(|problem| self.unsound_entry(&header.path_bytes(), problem))?;
        }
        let name = (pax.sparse.name.take())
            .or(pax.path.take())
            .or(extensions.name)
            .unwrap_or_else(|| header.path_bytes().into_owned());
        let failed = |problem: String| self.unsound_entry(&name, problem);
        let path = sound_path(&name).map_err(failed)?;
        let link = (pax.link.take())
            .or(extensions.link)
            .or_else(|| header.link_name_bytes().map(|link| link.into_owned()));
        let described = header::describe(header, &name, &pax).map_err(failed)?;
        let stated = pax
            .size
            .map_or_else(|| header.entry_size(), Ok)
            .map_err(|_| self.unsound_entry(&name, "it states no size"))?;
        let mut record = Record {
            path,
            facts: described.facts,
            link: None,
            target: None,
            segments: None,
            attributes: Vec::new(),
        };
        let is_left_out = self.rules.want_paths() && is_left_out(self.rules, &record.path);
        if !is_left_out && described.kind != Described::HardLink {
            dress(&pax, self.rules, described.kind, &mut record).map_err(failed)?;
        }
        match described.kind {
            Described::Symlink => {
                record.facts.size = 0;
                record.target = Some(self.link_target(&name, link)?);
            }
            Described::HardLink => {
                let target = self.link_target(&name, link)?;
                record.link = Some(sound_path(&target).map_err(|problem| {
                    let shown = String::from_utf8_lossy(&target).into_owned();
                    self.unsound_entry(&name, format!("it is a link to {shown}: {problem}"))
                })?);
            }
            Described::File | Described::Sparse | Described::Other => {}
        }
        let holds_file = matches!(described.kind, Described::File | Described::Sparse);
        self.count(&name, if holds_file { stated } else { 0 })?;
        if holds_file {
            self.take_content(header, &name, &pax, stated, &described.kind, &mut record)?;
        } else {
            self.pass(&name, header::behind(header, self.is_posix), stated)?;
        }
        Ok((!is_left_out).then_some(record))
    }

    fn link_target(&self, name: &[u8], link: Option<Vec<u8>>) -> Result<Vec<u8>> {
        link.filter(|link| !link.is_empty())
            .ok_or_else(|| self.unsound_entry(name, "it is a link that leads nowhere"))
    }

    /// Counts an entry against the limits, before its content is read.
    fn count(&mut self, name: &[u8], bytes: u64) -> Result<()> {
        self.files += 1;
        self.bytes = self.bytes.saturating_add(bytes);
        if self.limits.files.is_some_and(|most| self.files > most) {
            return Err(self.unsound_entry(name, "more entries than the image may have inodes"));
        }
        if let Some(most) = self.limits.bytes.filter(|&most| self.bytes > most) {
            return Err(self.unsound_entry(
                name,
                format!("with its {bytes} bytes the contents exceed the limit of {most}"),
            ));
        }
        Ok(())
    }

    fn take_content(
        &mut self,
        header: &tar::Header,
        name: &[u8],
        pax: &pax::Values,
        stated: u64,
        kind: &Described,
        record: &mut Record,
    ) -> Result<()> {
        let mut left = stated;
        let map = match kind {
            Described::Sparse => Some(self.old_map(header, name)?),
            _ if pax.sparse.is_inside() => Some(self.inner_map(name, pax, &mut left)?),
            _ => pax.sparse.map(),
        };
        record.facts.size = left;
        if let Some(map) = map {
            let map = map
                .check(left)
                .map_err(|problem| self.unsound_entry(name, problem))?;
            record.facts.size = map.size;
            record.segments = Some(map.segments);
        }
        let Some(place) = self.input.take_content(left)? else {
            return Err(self.unsound_entry(name, "the archive ends inside it"));
        };
        record.facts.content = place;
        Ok(())
    }

    /// Passes over what follows an entry that keeps no content.
    fn pass(&mut self, name: &[u8], behind: Behind, stated: u64) -> Result<()> {
        let mut left = stated;
        if behind == Behind::Either && left > 0 {
            let mut block = [0; BLOCK];
            if !self.input.read_block(&mut block)? {
                return Err(self.unsound_entry(name, "the archive ends inside it"));
            }
            if header::check_sum(tar::Header::from_byte_slice(&block)).is_ok() {
                self.peeked = Some(block);
                return Ok(());
            }
            left = left.saturating_sub(BLOCK as u64);
        }
        if behind != Behind::Header && !self.input.skip(left)? {
            return Err(self.unsound_entry(name, "the archive ends inside it"));
        }
        Ok(())
    }

    /// The map of a GNU sparse file, which goes on in further blocks behind its header.
    fn old_map(&mut self, header: &tar::Header, name: &[u8]) -> Result<sparse::Map> {
        let failed = |problem: String| self.unsound_entry(name, problem);
        let (mut map, mut goes_on) = sparse::Map::of_header(header).map_err(failed)?;
        while goes_on {
            let mut block = [0; BLOCK];
            if !self.input.read_block(&mut block)? {
                return Err(self.unsound_entry(name, "the archive ends inside its map of holes"));
            }
            goes_on = map
                .extend(&block)
                .map_err(|problem| self.unsound_entry(name, problem))?;
        }
        Ok(map)
    }

    /// The map of a POSIX sparse file, which is the start of its content.
    fn inner_map(&mut self, name: &[u8], pax: &pax::Values, left: &mut u64) -> Result<sparse::Map> {
        let mut text = sparse::Text::new(pax.sparse.real_size);
        loop {
            let mut block = [0; BLOCK];
            if *left < BLOCK as u64 || !self.input.read_block(&mut block)? {
                return Err(self.unsound_entry(name, "it ends inside its map of holes"));
            }
            *left -= BLOCK as u64;
            let done = text
                .read(&block)
                .map_err(|problem| self.unsound_entry(name, problem))?;
            if let Some(map) = done {
                return Ok(map);
            }
        }
    }
}

/// Gives a record its extended attributes, and the mode that an access control list makes. Linux keeps
/// no list at a link, and one for what is made inside at directories only.
fn dress(
    pax: &pax::Values,
    rules: &Rules,
    kind: Described,
    record: &mut Record,
) -> std::result::Result<(), String> {
    let found = pax.attributes(rules)?;
    let is_link = kind == Described::Symlink;
    let is_directory = record.facts.mode & 0o170_000 == 0o040_000;
    if is_link && (found.access.is_some() || found.has_default) {
        return Err("it is a symbolic link with an access control list".to_owned());
    }
    if found.has_default && !is_directory {
        let problem = "it has a default access control list, which only directories can have";
        return Err(problem.to_owned());
    }
    if let Some(list) = &found.access {
        record.facts.mode = record.facts.mode & !0o777 | list.permissions();
    }
    record.attributes = found.all;
    Ok(())
}

/// Whether a path or a directory above it is left out.
fn is_left_out(rules: &Rules, path: &[u8]) -> bool {
    let ends = (0..path.len()).filter(|&end| path[end] == b'/');
    ends.chain([path.len()])
        .any(|end| end > 0 && rules.excludes(&path[..end]))
}

/// The names of an entry's path, joined by single slashes.
fn sound_path(name: &[u8]) -> std::result::Result<Vec<u8>, String> {
    if name.starts_with(b"/") {
        return Err("it has an absolute name; make the archive without them".to_owned());
    }
    let mut path = Vec::with_capacity(name.len());
    for part in name.split(|&byte| byte == b'/') {
        match part {
            b"" | b"." => continue,
            b".." => return Err("its name leads out of a directory with `..`".to_owned()),
            part => judge_name(part).map_or(Ok(()), Err)?,
        }
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(part);
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::sound_path;

    #[test]
    fn paths_stay_inside() {
        for (name, path) in [
            (&b"a"[..], &b"a"[..]),
            (b"./a//b/./c/", b"a/b/c"),
            (b"./", b""),
            (b".", b""),
        ] {
            assert_eq!(sound_path(name).as_deref(), Ok(path));
        }
        for name in [&b"/etc"[..], b"../x", b"a/../../x", b"a/..", b"a\0b"] {
            assert!(sound_path(name).is_err(), "{name:?}");
        }
    }
}
