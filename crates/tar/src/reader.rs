//! Reads an archive entry by entry.

use std::fmt;

use pext4_ondisk::owner::check_id;
use pext4_ondisk::time::Time;

use super::header::{self, Following};
use super::records::Records;
use super::{BLOCK, Blocks, Entry, Kind, Malformed, ReadError, sparse};

/// Maximal size of an extension header in bytes; one may contain a map of very many segments.
const MAX_EXTENSION_BYTES: u64 = 8 << 20;

/// Maximal size of all values from headers for all entries, in bytes: each entry gets a copy.
const MAX_GLOBAL: usize = 64 << 10;

/// Maximal number of zero blocks after the end mark that are read to see what follows: 64 MiB, more
/// than any archiver uses to pad its last record. (A program that writes it into a pipe would not
/// end well if it were not read.)
const MAX_PADDING: usize = 1 << 17;

/// Reads an archive.
pub struct Reader<I> {
    input: I,
    /// The values from `g` headers, for all entries that follow.
    global: Records,
    /// A block has been read.
    has_begun: bool,
    /// An extended header of the POSIX format has been read.
    is_posix: bool,
    /// Whether there was an entry.
    has_entry: bool,
    /// The input is known to be all that was written.
    is_complete: bool,
    /// The input ended where a header would be.
    lacks_end_mark: bool,
    /// A header that was read when a content might have followed.
    peeked: Option<[u8; BLOCK]>,
}

impl<I> fmt::Debug for Reader<I> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Reader").finish_non_exhaustive()
    }
}

/// The extension headers before an entry.
#[derive(Default)]
struct Extensions {
    name: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    own: Vec<u8>,
    /// Whether one was read that is only for the entry.
    are_for_entry: bool,
}

type Result<T, I> = std::result::Result<T, ReadError<<I as Blocks>::Error>>;

fn malformed<T, E>(
    entry: &[u8],
    problem: impl Into<String>,
) -> std::result::Result<T, ReadError<E>> {
    Err(ReadError::Malformed(Malformed::new(entry, problem)))
}

impl<I: Blocks> Reader<I> {
    /// A reader of the archive that begins with the input's next block.
    pub fn new(input: I) -> Self {
        Self {
            input,
            global: Records::default(),
            has_begun: false,
            is_posix: false,
            has_entry: false,
            is_complete: false,
            lacks_end_mark: false,
            peeked: None,
        }
    }

    /// States that the input is all that was written, as a verified digest shows. Then an input
    /// without any entry and without an end mark is an empty archive.
    #[must_use]
    pub fn complete(mut self) -> Self {
        self.is_complete = true;
        self
    }

    /// Whether the archive ended without an end mark, behind an entry. It is whole, as some
    /// archivers write none, or was cut short there.
    pub fn lacks_end_mark(&self) -> bool {
        self.lacks_end_mark
    }

    /// The input, positioned at the content of the last entry.
    pub fn input(&mut self) -> &mut I {
        &mut self.input
    }

    /// Returns the input.
    pub fn into_input(self) -> I {
        self.input
    }

    /// The next entry, whose content is next in the input; `None` at the end mark, and at the end
    /// of an input that ends behind an entry.
    ///
    /// # Errors
    ///
    /// The input failed, or the archive is malformed.
    pub fn next_entry(&mut self) -> Result<Option<Entry>, I> {
        let mut extensions = Extensions::default();
        let mut block = [0; BLOCK];
        loop {
            if let Some(peeked) = self.peeked.take() {
                block = peeked;
            } else {
                let length = self.input.read_block(&mut block);
                let length = length.map_err(ReadError::Input)?;
                if length < BLOCK {
                    return self.end_without_mark(&block[..length], &extensions);
                }
            }
            self.has_begun = true;
            if block == [0; BLOCK] {
                // An extension header that no entry follows must be well-formed too.
                let read = Records::default().read(&extensions.own);
                read.or_else(|problem| malformed(b"", problem))?;
                self.check_end()?;
                return Ok(None);
            }
            if !header::has_sum(&block) {
                return malformed(b"", not_a_header(&block));
            }
            if !self.extend(&block, &mut extensions)? {
                self.has_entry = true;
                return self.entry(&block, extensions).map(Some);
            }
        }
    }

    /// Fails if another archive follows after the end mark: a user who joins archives with `cat`
    /// wants all of them, and would lose the others without a warning. Fails as well if there was
    /// no entry and anything follows: many files that are no archives begin with zeroes.
    fn check_end(&mut self) -> Result<(), I> {
        self.input.note_end();
        let mut block = [0; BLOCK];
        for _ in 0..MAX_PADDING {
            if !self.read(&mut block)? {
                return Ok(());
            }
            if block == [0; BLOCK] {
                continue;
            }
            if header::has_sum(&block) {
                let problem = "another archive follows behind its end mark, which would be lost: give each \
                               of them alone, or join them with `tar -A` instead of `cat`";
                return malformed(b"", problem);
            }
            if !self.has_entry {
                let problem = "it is no tar archive: it begins with zeroes, as an empty one, but something else \
                               follows (an ext4 image has to be exported as an archive first)";
                return malformed(b"", problem);
            }
            break;
        }
        Ok(())
    }

    /// Ends where the input does; `rest` is what there is of a header.
    fn end_without_mark(
        &mut self,
        rest: &[u8],
        extensions: &Extensions,
    ) -> Result<Option<Entry>, I> {
        let may_end = self.has_entry || self.is_complete;
        if may_end && rest.is_empty() && !extensions.are_for_entry {
            self.lacks_end_mark = true;
            return Ok(None);
        }
        let problem = if !self.has_begun {
            compressed(rest).unwrap_or_else(|| {
                "it has less than a header: it is empty, was cut short, or is no tar archive"
                    .to_owned()
            })
        } else if !rest.is_empty() {
            "it ends inside a header: it was cut short".to_owned()
        } else if extensions.are_for_entry {
            "it ends behind an extension header: it was cut short".to_owned()
        } else {
            "it has neither an entry nor an end mark: it was cut short".to_owned()
        };
        malformed(b"", problem)
    }

    /// Reads a block; false if the input ends before its end.
    fn read(&mut self, block: &mut [u8; BLOCK]) -> Result<bool, I> {
        let length = self.input.read_block(block).map_err(ReadError::Input)?;
        Ok(length == BLOCK)
    }

    /// Reads an extension header; false if `header` is the header of an entry.
    fn extend(&mut self, header: &[u8; BLOCK], extensions: &mut Extensions) -> Result<bool, I> {
        let flag = header[header::FLAG];
        if !matches!(flag, b'x' | b'g' | b'L' | b'K' | b'V' | b'X') {
            return Ok(false);
        }
        let Some(size) = header::number(&header[header::SIZE]) else {
            return malformed(b"", "an extension header states no size");
        };
        if size > MAX_EXTENSION_BYTES {
            return malformed(
                b"",
                format!(
                    "an extension header of {size} bytes: up to {MAX_EXTENSION_BYTES} are believed"
                ),
            );
        }
        let content = self.small_content(size)?;
        self.is_posix |= matches!(flag, b'x' | b'X' | b'g');
        extensions.are_for_entry |= !matches!(flag, b'g' | b'V');
        match flag {
            b'x' | b'X' => extensions.own = content,
            b'g' => {
                let read = self.global.read(&content);
                read.or_else(|problem| malformed(b"", problem))?;
                if self.global.size() > MAX_GLOBAL {
                    let problem = format!(
                        "its extension headers for all entries say more than {MAX_GLOBAL} bytes"
                    );
                    return malformed(b"", problem);
                }
            }
            b'L' => extensions.name = Some(header::text(&content).to_vec()),
            b'K' => extensions.link = Some(header::text(&content).to_vec()),
            // `V`: the label of a volume.
            _ => {}
        }
        Ok(true)
    }

    /// Reads the content of an extension header.
    fn small_content(&mut self, size: u64) -> Result<Vec<u8>, I> {
        let length = usize::try_from(size).expect("bounded by what is believed");
        let mut bytes = Vec::new();
        let mut block = [0; BLOCK];
        while bytes.len() < length {
            if !self.read(&mut block)? {
                return malformed(b"", "it ends inside an extension header: it was cut short");
            }
            bytes.extend_from_slice(&block);
        }
        bytes.truncate(length);
        Ok(bytes)
    }

    fn entry(&mut self, header: &[u8; BLOCK], extensions: Extensions) -> Result<Entry, I> {
        let mut records = self.global.clone();
        let own = records.read(&extensions.own);
        own.or_else(|problem| malformed(&header::name(header), problem))?;
        let name = (records.sparse.name.take())
            .or(records.name.take())
            .or(extensions.name)
            .unwrap_or_else(|| header::name(header));
        if records.link.is_none() {
            records.link = extensions.link;
        }
        let (mut entry, records) =
            describe(header, name.clone(), records).or_else(|problem| malformed(&name, problem))?;
        if entry.kind == Kind::File {
            self.read_map(header, &records, &mut entry)?;
            return Ok(entry);
        }
        let stated_size = std::mem::take(&mut entry.stored);
        entry.size = 0;
        self.skip_content(
            &entry.name,
            header::following(header[header::FLAG], self.is_posix),
            stated_size,
        )?;
        Ok(entry)
    }

    /// Skips what follows an entry whose content is not used.
    fn skip_content(
        &mut self,
        name: &[u8],
        following: Following,
        stated_size: u64,
    ) -> Result<(), I> {
        let mut left = stated_size;
        if following == Following::Either && left > 0 {
            let mut block = [0; BLOCK];
            let length = self.input.read_block(&mut block);
            match length.map_err(ReadError::Input)? {
                // Nothing follows, whatever size is stated: the input ends without an end mark.
                0 => return Ok(()),
                BLOCK => {}
                _ => return malformed(name, "the archive ends inside it: it was cut short"),
            }
            if header::has_sum(&block) {
                self.peeked = Some(block);
                return Ok(());
            }
            left = left.saturating_sub(BLOCK as u64);
        }
        if following != Following::Header && !self.input.skip(left).map_err(ReadError::Input)? {
            return malformed(name, "the archive ends inside it: it was cut short");
        }
        Ok(())
    }

    /// If the file is sparse, reads its map.
    fn read_map(
        &mut self,
        header: &[u8; BLOCK],
        records: &sparse::PaxMap,
        entry: &mut Entry,
    ) -> Result<(), I> {
        let map = if header[header::FLAG] == b'S' {
            Some(self.gnu_map(header, &entry.name)?)
        } else if records.is_inside() {
            Some(self.map_in_content(records.real_size, entry)?)
        } else {
            records.map()
        };
        if let Some(map) = map {
            let map = map.check(entry.stored);
            let map = map.or_else(|problem| malformed(&entry.name, problem))?;
            entry.size = map.size;
            entry.segments = Some(map.segments);
        }
        Ok(())
    }

    /// The map of a GNU sparse file, which continues in further blocks after its header.
    fn gnu_map(&mut self, header: &[u8; BLOCK], name: &[u8]) -> Result<sparse::Map, I> {
        let failed = |problem: String| ReadError::Malformed(Malformed::new(name, problem));
        let (mut map, mut continues) = sparse::Map::from_header(header).map_err(failed)?;
        let mut block = [0; BLOCK];
        while continues {
            if !self.read(&mut block)? {
                return malformed(name, "the archive ends inside its map of holes");
            }
            continues = map.extend(&block).map_err(failed)?;
        }
        Ok(map)
    }

    /// The map of a POSIX sparse file, which is at the start of its content.
    fn map_in_content(&mut self, real_size: u64, entry: &mut Entry) -> Result<sparse::Map, I> {
        let mut text = sparse::TextMap::new(real_size);
        let mut block = [0; BLOCK];
        loop {
            if entry.stored < BLOCK as u64 || !self.read(&mut block)? {
                return malformed(&entry.name, "it ends inside its map of holes");
            }
            entry.stored -= BLOCK as u64;
            match text.read(&block) {
                Err(problem) => return malformed(&entry.name, problem),
                Ok(Some(map)) => return Ok(map),
                Ok(None) => {}
            }
        }
    }
}

/// Describes a block that is not a header.
fn not_a_header(block: &[u8; BLOCK]) -> String {
    compressed(block).unwrap_or_else(|| {
        "it is no tar archive, or damaged: a header's checksum is wrong".to_owned()
    })
}

/// What helps if a block is the start of a compressed file.
fn compressed(block: &[u8]) -> Option<String> {
    let formats = [
        (&b"\x1f\x8b"[..], "gzip -dc"),
        (b"\x28\xb5\x2f\xfd", "zstd -dc"),
        (b"\xfd7zXZ", "xz -dc"),
        (b"BZh", "bzip2 -dc"),
        (b"\x04\x22\x4d\x18", "lz4 -dc"),
    ];
    let found = formats.iter().find(|(magic, _)| block.starts_with(magic));
    found.map(|(_, command)| format!("it is compressed: pipe it through `{command}`"))
}

/// The entry that a header and its extensions describe. The stated size is taken for both the size
/// of the file and that of its content.
fn describe(
    header: &[u8; BLOCK],
    name: Vec<u8>,
    records: Records,
) -> std::result::Result<(Entry, sparse::PaxMap), String> {
    let flag = header[header::FLAG];
    let kind = header::kind(flag, &name).ok_or_else(|| {
        let shown = char::from(flag).escape_default();
        format!("entries of type `{shown}` are not understood")
    })?;
    let small = |range: std::ops::Range<usize>, what: &str| {
        let number = header::number(&header[range]).and_then(|number| u32::try_from(number).ok());
        number.ok_or_else(|| format!("its {what} is no number of 32 bits"))
    };
    let owner = |record: Option<u32>, range, what| {
        let id = record.map_or_else(|| small(range, what), Ok)?;
        check_id(id).map_err(|problem| format!("its {what}: {problem}"))
    };
    let mode = header::number(&header[header::MODE]).ok_or("its mode is no number")?;
    let modified = match records.modified {
        Some(time) => time,
        None => {
            let seconds = header::signed_number(&header[header::TIME]);
            Time::from_seconds(seconds.ok_or("its time is no number")?)
        }
    };
    let stated_size = match records.size {
        Some(size) => size,
        None => header::number(&header[header::SIZE]).ok_or("it states no size")?,
    };
    // In old archives other kinds may have any bytes there.
    let device = match kind {
        Kind::CharacterDevice | Kind::BlockDevice => (
            records
                .major
                .map_or_else(|| small(header::MAJOR, "major device number"), Ok)?,
            records
                .minor
                .map_or_else(|| small(header::MINOR, "minor device number"), Ok)?,
        ),
        _ => (0, 0),
    };
    let entry = Entry {
        name,
        kind,
        link: records
            .link
            .unwrap_or_else(|| header::text(&header[header::LINK]).to_vec()),
        permissions: u16::try_from(mode & 0o7777).expect("masked to 12 bits"),
        uid: owner(records.uid, header::UID, "owner")?,
        gid: owner(records.gid, header::GID, "group")?,
        modified,
        accessed: records.accessed,
        device,
        size: stated_size,
        stored: stated_size,
        segments: None,
        attributes: records.attributes,
        access_list: records.access_list,
        default_list: records.default_list,
    };
    Ok((entry, records.sparse))
}
