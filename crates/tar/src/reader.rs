//! Passing over an archive, entry by entry.

use pext4_ondisk::time::Time;

use super::header::{self, Behind};
use super::records::Records;
use super::{BLOCK, Blocks, Entry, Fault, Kind, sparse};

/// The longest extension header that is believed. A map of very many pieces may stand in one.
const LONGEST_EXTENSION: u64 = 8 << 20;

/// Bytes that headers for all entries may say together: each entry gets a copy.
const MOST_GLOBAL: usize = 64 << 10;

/// Blocks of zeroes behind the end mark that are passed over to see what follows: 4 MiB, more than any
/// archiver pads its last record with.
const MOST_PADDING: usize = 8192;

/// Passes over an archive.
pub struct Reader<I> {
    input: I,
    /// What `g` headers said, to hold for all entries that follow.
    global: Records,
    /// A block of it has been read.
    has_begun: bool,
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
    own: Vec<u8>,
}

type Result<T, I> = std::result::Result<T, Fault<<I as Blocks>::Error>>;

fn unsound<T, E>(entry: &[u8], problem: impl Into<String>) -> std::result::Result<T, Fault<E>> {
    Err(Fault::Unsound {
        entry: entry.to_vec(),
        problem: problem.into(),
    })
}

impl<I: Blocks> Reader<I> {
    /// A reader of an archive that begins with the input's first block.
    pub fn new(input: I) -> Self {
        Self {
            input,
            global: Records::default(),
            has_begun: false,
            is_posix: false,
            peeked: None,
        }
    }

    /// The input, which stands at the content of the entry that came last.
    pub fn input(&mut self) -> &mut I {
        &mut self.input
    }

    /// Gives the input back.
    pub fn into_input(self) -> I {
        self.input
    }

    /// The next entry, whose content the input gives next; `None` at the end mark.
    ///
    /// # Errors
    /// [`Fault`], of the input or of what the archive says.
    pub fn next_entry(&mut self) -> Result<Option<Entry>, I> {
        let mut extensions = Extensions::default();
        let mut block = [0; BLOCK];
        loop {
            if let Some(peeked) = self.peeked.take() {
                block = peeked;
            } else if !self.read(&mut block)? {
                return unsound(b"", self.without_end_mark());
            }
            self.has_begun = true;
            if block == [0; BLOCK] {
                // What nobody follows must make sense all the same.
                let read = Records::default().read(&extensions.own);
                read.or_else(|problem| unsound(b"", problem))?;
                self.check_end()?;
                return Ok(None);
            }
            if !header::has_sum(&block) {
                return unsound(b"", not_a_header(&block));
            }
            if !self.extend(&block, &mut extensions)? {
                return self.entry(&block, extensions).map(Some);
            }
        }
    }

    /// Nothing that is an archive's own may lie behind the end mark: whoever joins archives with `cat`
    /// wants all of them, and would miss the others without a word.
    fn check_end(&mut self) -> Result<(), I> {
        self.input.note_end();
        let mut block = [0; BLOCK];
        for _ in 0..MOST_PADDING {
            if !self.read(&mut block)? {
                return Ok(());
            }
            if block == [0; BLOCK] {
                continue;
            }
            if header::has_sum(&block) {
                let problem = "another archive follows behind its end mark, which would be lost: give each \
                               of them alone, or join them with `tar -A` instead of `cat`";
                return unsound(b"", problem);
            }
            break;
        }
        Ok(())
    }

    fn without_end_mark(&self) -> &'static str {
        match self.has_begun {
            true => "it ends without an end mark: it was cut short",
            false => "it has less than a header: it is empty, was cut short, or is no tar archive",
        }
    }

    fn read(&mut self, block: &mut [u8; BLOCK]) -> Result<bool, I> {
        self.input.read_block(block).map_err(Fault::Input)
    }

    /// Keeps what an extension header says; false if the header is an entry's own.
    fn extend(&mut self, header: &[u8; BLOCK], extensions: &mut Extensions) -> Result<bool, I> {
        let flag = header[header::FLAG];
        if !matches!(flag, b'x' | b'g' | b'L' | b'K' | b'V' | b'X') {
            return Ok(false);
        }
        let Some(size) = header::number(&header[header::SIZE]) else {
            return unsound(b"", "an extension header states no size");
        };
        if size > LONGEST_EXTENSION {
            return unsound(
                b"",
                format!(
                    "an extension header of {size} bytes: up to {LONGEST_EXTENSION} are believed"
                ),
            );
        }
        let content = self.small_content(size)?;
        self.is_posix |= matches!(flag, b'x' | b'X' | b'g');
        match flag {
            b'x' | b'X' => extensions.own = content,
            b'g' => {
                let read = self.global.read(&content);
                read.or_else(|problem| unsound(b"", problem))?;
                if self.global.size() > MOST_GLOBAL {
                    let problem = format!(
                        "its extension headers for all entries say more than {MOST_GLOBAL} bytes"
                    );
                    return unsound(b"", problem);
                }
            }
            b'L' => extensions.name = Some(header::text(&content).to_vec()),
            b'K' => extensions.link = Some(header::text(&content).to_vec()),
            // The label of a volume.
            _ => {}
        }
        Ok(true)
    }

    /// A content that is needed now.
    fn small_content(&mut self, size: u64) -> Result<Vec<u8>, I> {
        let length = usize::try_from(size).expect("bounded by what is believed");
        let mut bytes = Vec::new();
        let mut block = [0; BLOCK];
        while bytes.len() < length {
            if !self.read(&mut block)? {
                return unsound(b"", "it ends inside an extension header: it was cut short");
            }
            bytes.extend_from_slice(&block);
        }
        bytes.truncate(length);
        Ok(bytes)
    }

    fn entry(&mut self, header: &[u8; BLOCK], extensions: Extensions) -> Result<Entry, I> {
        let mut said = self.global.clone();
        let own = said.read(&extensions.own);
        own.or_else(|problem| unsound(&header::name(header), problem))?;
        let name = (said.sparse.name.take())
            .or(said.name.take())
            .or(extensions.name)
            .unwrap_or_else(|| header::name(header));
        if said.link.is_none() {
            said.link = extensions.link;
        }
        let (mut entry, said) =
            describe(header, name.clone(), said).or_else(|problem| unsound(&name, problem))?;
        if entry.kind == Kind::File {
            self.find_segments(header, &said, &mut entry)?;
            return Ok(entry);
        }
        let stated = std::mem::take(&mut entry.stored);
        entry.size = 0;
        self.pass(
            &entry.name,
            header::behind(header[header::FLAG], self.is_posix),
            stated,
        )?;
        Ok(entry)
    }

    /// Passes over what follows an entry that keeps no content.
    fn pass(&mut self, name: &[u8], behind: Behind, stated: u64) -> Result<(), I> {
        let mut left = stated;
        if behind == Behind::Either && left > 0 {
            let mut block = [0; BLOCK];
            if !self.read(&mut block)? {
                return unsound(name, "the archive ends inside it: it was cut short");
            }
            if header::has_sum(&block) {
                self.peeked = Some(block);
                return Ok(());
            }
            left = left.saturating_sub(BLOCK as u64);
        }
        if behind != Behind::Header && !self.input.skip(left).map_err(Fault::Input)? {
            return unsound(name, "the archive ends inside it: it was cut short");
        }
        Ok(())
    }

    /// Where what the archive holds of a file lies in it.
    fn find_segments(
        &mut self,
        header: &[u8; BLOCK],
        said: &sparse::Said,
        entry: &mut Entry,
    ) -> Result<(), I> {
        let map = if header[header::FLAG] == b'S' {
            Some(self.old_map(header, &entry.name)?)
        } else if said.is_inside() {
            Some(self.inner_map(said.real_size, entry)?)
        } else {
            said.map()
        };
        if let Some(map) = map {
            let map = map.check(entry.stored);
            let map = map.or_else(|problem| unsound(&entry.name, problem))?;
            entry.size = map.size;
            entry.segments = Some(map.segments);
        }
        Ok(())
    }

    /// The map of a GNU sparse file, which goes on in further blocks behind its header.
    fn old_map(&mut self, header: &[u8; BLOCK], name: &[u8]) -> Result<sparse::Map, I> {
        let failed = |problem: String| Fault::Unsound {
            entry: name.to_vec(),
            problem,
        };
        let (mut map, mut goes_on) = sparse::Map::of_header(header).map_err(failed)?;
        let mut block = [0; BLOCK];
        while goes_on {
            if !self.read(&mut block)? {
                return unsound(name, "the archive ends inside its map of holes");
            }
            goes_on = map.extend(&block).map_err(failed)?;
        }
        Ok(map)
    }

    /// The map of a POSIX sparse file, which is the start of its content.
    fn inner_map(&mut self, real_size: u64, entry: &mut Entry) -> Result<sparse::Map, I> {
        let mut text = sparse::Text::new(real_size);
        let mut block = [0; BLOCK];
        loop {
            if entry.stored < BLOCK as u64 || !self.read(&mut block)? {
                return unsound(&entry.name, "it ends inside its map of holes");
            }
            entry.stored -= BLOCK as u64;
            match text.read(&block) {
                Err(problem) => return unsound(&entry.name, problem),
                Ok(Some(map)) => return Ok(map),
                Ok(None) => {}
            }
        }
    }
}

/// What a block that is no header may be.
fn not_a_header(block: &[u8; BLOCK]) -> String {
    let compressed = [
        (&b"\x1f\x8b"[..], "gzip -dc"),
        (b"\x28\xb5\x2f\xfd", "zstd -dc"),
        (b"\xfd7zXZ", "xz -dc"),
        (b"BZh", "bzip2 -dc"),
    ];
    let found = compressed
        .iter()
        .find(|(magic, _)| block.starts_with(magic));
    match found {
        Some((_, command)) => format!("it is compressed: pipe it through `{command}`"),
        None => "it is no tar archive, or damaged: a header's checksum is wrong".to_owned(),
    }
}

/// What a header and its extensions say; of the size all is taken for stored.
fn describe(
    header: &[u8; BLOCK],
    name: Vec<u8>,
    said: Records,
) -> std::result::Result<(Entry, sparse::Said), String> {
    let flag = header[header::FLAG];
    let kind = header::kind(flag, &name).ok_or_else(|| {
        let shown = char::from(flag).escape_default();
        format!("entries of type `{shown}` are not understood")
    })?;
    let small = |range: std::ops::Range<usize>, what: &str| {
        let number = header::number(&header[range]).and_then(|number| u32::try_from(number).ok());
        number.ok_or_else(|| format!("its {what} is no number of 32 bits"))
    };
    let mode = header::number(&header[header::MODE]).ok_or("its mode is no number")?;
    let modified = match said.modified {
        Some(time) => time,
        None => {
            let seconds = header::signed_number(&header[header::TIME]);
            Time::from_seconds(seconds.ok_or("its time is no number")?)
        }
    };
    let stated = match said.size {
        Some(size) => size,
        None => header::number(&header[header::SIZE]).ok_or("it states no size")?,
    };
    // Old archives have anything there; only of a device it counts.
    let device = match kind {
        Kind::CharacterDevice | Kind::BlockDevice => (
            said.major
                .map_or_else(|| small(header::MAJOR, "major device number"), Ok)?,
            said.minor
                .map_or_else(|| small(header::MINOR, "minor device number"), Ok)?,
        ),
        _ => (0, 0),
    };
    let entry = Entry {
        name,
        kind,
        link: said
            .link
            .unwrap_or_else(|| header::text(&header[header::LINK]).to_vec()),
        permissions: u16::try_from(mode & 0o7777).expect("masked to 12 bits"),
        uid: said.uid.map_or_else(|| small(header::UID, "owner"), Ok)?,
        gid: said.gid.map_or_else(|| small(header::GID, "group"), Ok)?,
        modified,
        accessed: said.accessed,
        device,
        size: stated,
        stored: stated,
        segments: None,
        attributes: said.attributes,
        access_list: said.access_list,
        default_list: said.default_list,
    };
    Ok((entry, said.sparse))
}
