//! Reading a tar archive from a stream: ustar, GNU and pax, sparse files of both kinds.
//!
//! The archive may be an enemy's: sums are checked, headers are bounded in size, numbers are checked,
//! and runs of a sparse file must be in order and add up. An archive that ends before its end mark
//! (a block of zeroes) was cut short, wherever the cut is.

use std::collections::BTreeMap;
use std::io::Read;

use pext4_fs::{DeviceNumber, Time};
use pext4_ondisk::xattr::pax;

use super::{BLOCK, LISTS, checksum};
use crate::change::fill;
use crate::error::{EditError, On, Result, Shown};

/// Bytes of extended headers and long names at most.
const MOST_EXTENDED: u64 = 8 << 20;
/// Runs of data of one sparse file at most.
const MOST_RUNS: usize = 1 << 20;

/// A tar archive.
pub(crate) struct Archive<'r> {
    input: &'r mut dyn Read,
    /// Records that hold for all entries to come.
    global: Records,
    /// Bytes of the present entry that were not read, with its padding.
    left: u64,
    padding: u64,
    /// It had a header of POSIX' own format.
    is_posix: bool,
    /// A header that was read when data might have followed.
    peeked: Option<[u8; BLOCK]>,
}

/// Pax records.
#[derive(Clone, Default)]
struct Records {
    plain: BTreeMap<Vec<u8>, Vec<u8>>,
    attributes: pax::Records,
}

impl Records {
    fn get(&self, key: &[u8]) -> Option<&Vec<u8>> {
        self.plain.get(key)
    }

    /// Takes a record; an empty value takes the key back.
    fn take(&mut self, key: &[u8], value: &[u8]) {
        if self.attributes.take(key, value) {
            return;
        }
        if value.is_empty() {
            self.plain.remove(key);
        } else {
            self.plain.insert(key.to_vec(), value.to_vec());
        }
    }
}

/// One entry; its data is read with [`Archive::read`].
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) name: Vec<u8>,
    pub(crate) link: Vec<u8>,
    /// The type flag; `0` for what is a file under any of its names.
    pub(crate) kind: u8,
    pub(crate) permissions: u16,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) modified: Time,
    pub(crate) accessed: Option<Time>,
    pub(crate) device: DeviceNumber,
    /// Bytes of the file.
    pub(crate) size: u64,
    /// Runs of data, by start and length; the rest are holes.
    pub(crate) runs: Vec<(u64, u64)>,
    pub(crate) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Access control lists in text, by the attribute that they are to be.
    pub(crate) lists: Vec<(&'static [u8], Vec<u8>)>,
}

fn bad<T>(entry: &[u8], problem: impl Into<String>) -> Result<T> {
    Err(EditError::Tar {
        entry: entry.to_vec(),
        problem: problem.into(),
    })
}

const CUT: &str = "it ends too early: it was cut short";

impl<'r> Archive<'r> {
    pub(crate) fn new(input: &'r mut dyn Read) -> Self {
        Self {
            input,
            global: Records::default(),
            left: 0,
            padding: 0,
            is_posix: false,
            peeked: None,
        }
    }

    /// The next entry; what was not read of the last one is skipped.
    pub(crate) fn next(&mut self) -> Result<Option<Entry>> {
        self.skip_rest()?;
        let mut records = self.global.clone();
        let (mut long_name, mut long_link) = (None, None);
        loop {
            let Some(header) = self.header()? else {
                return Ok(None);
            };
            self.is_posix |= matches!(header[156], b'x' | b'X' | b'g');
            match header[156] {
                b'x' | b'X' => parse_records(&self.extended(&header)?, &mut records)?,
                b'g' => {
                    parse_records(&self.extended(&header)?, &mut self.global)?;
                    records = self.global.clone();
                }
                b'L' => long_name = Some(text(&self.extended(&header)?)),
                b'K' => long_link = Some(text(&self.extended(&header)?)),
                // The label of a volume.
                b'V' => {
                    self.extended(&header)?;
                }
                _ => {
                    let mut entry = self.entry(&header, &records)?;
                    entry.name = long_name.unwrap_or(entry.name);
                    entry.link = long_link.unwrap_or(entry.link);
                    self.find_runs(&header, &records, &mut entry)?;
                    return Ok(Some(entry));
                }
            }
        }
    }

    /// Reads data of the present entry, in the order of its runs; 0 at the end.
    pub(crate) fn read(&mut self, entry: &Entry, into: &mut [u8]) -> Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX);
        let length = into.len().min(most);
        self.exactly(&entry.name, length, into)?;
        self.left -= length as u64;
        Ok(length)
    }

    fn exactly(&mut self, entry: &[u8], length: usize, into: &mut [u8]) -> Result<()> {
        let read = fill(self.input, &mut into[..length]).on("-".as_ref(), "read the tar")?;
        if read < length {
            return bad(entry, CUT);
        }
        Ok(())
    }

    fn skip_rest(&mut self) -> Result<()> {
        let mut rest = std::mem::take(&mut self.left) + std::mem::take(&mut self.padding);
        let mut piece = [0; 16 * BLOCK];
        while rest > 0 {
            let length = usize::try_from(rest).map_or(piece.len(), |rest| rest.min(piece.len()));
            self.exactly(b"", length, &mut piece)?;
            rest -= length as u64;
        }
        Ok(())
    }

    /// The next header; `None` at the end mark.
    fn header(&mut self) -> Result<Option<[u8; BLOCK]>> {
        let mut header = [0; BLOCK];
        match self.peeked.take() {
            Some(peeked) => header = peeked,
            None => self.exactly(b"", BLOCK, &mut header)?,
        }
        if header == [0; BLOCK] {
            return Ok(None);
        }
        if has_sum(&header) {
            return Ok(Some(header));
        }
        let compressed = [
            (&b"\x1f\x8b"[..], "gzip -dc"),
            (&b"\x28\xb5\x2f\xfd"[..], "zstd -dc"),
            (&b"\xfd7zXZ"[..], "xz -dc"),
        ];
        let found = compressed
            .iter()
            .find(|(magic, _)| header.starts_with(magic));
        match found {
            Some((_, command)) => bad(
                b"",
                format!("it is compressed: pipe it through `{command}`"),
            ),
            None => bad(
                b"",
                "a header's checksum is wrong: this is no tar, or a damaged one",
            ),
        }
    }

    /// The data of an extended header.
    fn extended(&mut self, header: &[u8; BLOCK]) -> Result<Vec<u8>> {
        let size = number(&header[124..136]).filter(|size| *size <= MOST_EXTENDED);
        let Some(size) = size else {
            return bad(b"", "an extended header is absurdly large");
        };
        let mut bytes = vec![0; usize::try_from(size).expect("bounded")];
        let length = bytes.len();
        self.exactly(b"", length, &mut bytes)?;
        self.padding = padding(size);
        self.skip_rest()?;
        Ok(bytes)
    }

    fn entry(&mut self, header: &[u8; BLOCK], records: &Records) -> Result<Entry> {
        let name = records
            .get(b"GNU.sparse.name")
            .or_else(|| records.get(b"path"))
            .cloned()
            .unwrap_or_else(|| plain_name(header));
        let plain = |range: std::ops::Range<usize>, key: &[u8]| {
            let recorded = records.get(key).map(|value| decimal(value));
            recorded.unwrap_or_else(|| number(&header[range]))
        };
        let known = (|| {
            let size = plain(124..136, b"size")?;
            Some(Entry {
                link: records
                    .get(b"linkpath")
                    .cloned()
                    .unwrap_or_else(|| text(&header[157..257])),
                kind: kind_of(header[156], &name),
                permissions: u16::try_from(number(&header[100..108])? & 0o7777).ok()?,
                uid: u32::try_from(plain(108..116, b"uid")?).ok()?,
                gid: u32::try_from(plain(116..124, b"gid")?).ok()?,
                modified: match records.get(b"mtime") {
                    Some(value) => time(value)?,
                    None => Time {
                        seconds: signed(&header[136..148])?,
                        nanoseconds: 0,
                    },
                },
                accessed: match records.get(b"atime") {
                    Some(value) => Some(time(value)?),
                    None => None,
                },
                // Old archives have anything there; only of a device it counts.
                device: match header[156] {
                    b'3' | b'4' => DeviceNumber {
                        major: u32::try_from(plain(329..337, b"SCHILY.devmajor")?).ok()?,
                        minor: u32::try_from(plain(337..345, b"SCHILY.devminor")?).ok()?,
                    },
                    _ => DeviceNumber::default(),
                },
                size,
                runs: vec![(0, size)],
                xattrs: Vec::new(),
                lists: lists_of(records),
                name: Vec::new(),
            })
        })();
        match known {
            Some(entry) => Ok(Entry {
                xattrs: xattrs_of(records, &name)?,
                name,
                ..entry
            }),
            None => bad(&name, "a number in its header makes no sense"),
        }
    }

    /// Which bytes of the file are in the archive, and how many those are.
    fn find_runs(
        &mut self,
        header: &[u8; BLOCK],
        records: &Records,
        entry: &mut Entry,
    ) -> Result<()> {
        if entry.kind != b'0' {
            self.padding = self.behind(header, entry)?;
            return Ok(());
        }
        self.left = entry.size;
        self.padding = padding(entry.size);
        let sparse = |key: &str| records.get(format!("GNU.sparse.{key}").as_bytes());
        let runs = if header[156] == b'S' {
            let size = number(&header[483..495]);
            self.old_sparse(header, &entry.name)?
                .map(|runs| (runs, size))
        } else if let Some(map) = sparse("map") {
            let size = sparse("size").and_then(|size| decimal(size));
            pairs(map.split(|&byte| byte == b',')).map(|runs| (runs, size))
        } else if sparse("major").is_some() {
            let size = sparse("realsize").and_then(|size| decimal(size));
            self.new_sparse(entry)?.map(|runs| (runs, size))
        } else if sparse("numblocks").is_some() || sparse("size").is_some() {
            return bad(&entry.name, "its sparse form (0.0) is not supported");
        } else {
            return Ok(());
        };
        let Some((runs, Some(size))) = runs else {
            return bad(&entry.name, "its map of a sparse file makes no sense");
        };
        entry.kind = b'0';
        entry.size = size;
        entry.runs = runs;
        entry.runs.retain(|(_, length)| *length > 0);
        self.check_runs(entry)
    }

    /// Bytes to pass over behind the header of an entry that has no data of its own. Of hard links
    /// many archivers state the size of the file, and nothing follows. But in POSIX' own format the
    /// file's data may follow (pax(1), `-o linkdata`), and there it cannot be told by the header
    /// alone; no more can it of a directory that is one by the slash behind its name.
    fn behind(&mut self, header: &[u8; BLOCK], entry: &Entry) -> Result<u64> {
        let may_follow = match header[156] {
            b'1' => self.is_posix,
            0 | b'0' | b'7' => true,
            _ => false,
        };
        if !may_follow || entry.size == 0 {
            return Ok(0);
        }
        let mut block = [0; BLOCK];
        self.exactly(&entry.name, BLOCK, &mut block)?;
        if has_sum(&block) {
            self.peeked = Some(block);
            return Ok(0);
        }
        let left = entry.size.saturating_sub(BLOCK as u64);
        Ok(left.saturating_add(padding(left)))
    }

    fn check_runs(&self, entry: &Entry) -> Result<()> {
        let mut end = 0u64;
        let mut stored = 0u64;
        for (start, length) in &entry.runs {
            let after = start.checked_add(*length).filter(|_| *start >= end);
            let Some(after) = after.filter(|after| *after <= entry.size) else {
                return bad(&entry.name, "its map of a sparse file is not in order");
            };
            end = after;
            stored += length;
        }
        if stored != self.left {
            return bad(&entry.name, "its map of a sparse file does not add up");
        }
        Ok(())
    }

    /// GNU's old form: runs in the header, and in blocks that follow it.
    fn old_sparse(&mut self, header: &[u8; BLOCK], name: &[u8]) -> Result<Option<Vec<(u64, u64)>>> {
        let mut runs = Vec::new();
        let mut block = *header;
        let (mut start, mut count, mut more) = (386, 4, 482);
        loop {
            for index in 0..count {
                let run = &block[start + 24 * index..start + 24 * (index + 1)];
                if run[0] == 0 {
                    break;
                }
                match (number(&run[..12]), number(&run[12..])) {
                    (Some(start), Some(length)) => runs.push((start, length)),
                    _ => return Ok(None),
                }
            }
            if block[more] == 0 || runs.len() > MOST_RUNS {
                return Ok((runs.len() <= MOST_RUNS).then_some(runs));
            }
            self.exactly(name, BLOCK, &mut block)?;
            (start, count, more) = (0, 21, 504);
        }
    }

    /// GNU's form 1.0: the map stands before the data, in decimal lines.
    fn new_sparse(&mut self, entry: &Entry) -> Result<Option<Vec<(u64, u64)>>> {
        let mut lines: Vec<Vec<u8>> = Vec::new();
        let mut line = Vec::new();
        let mut wanted = None;
        let mut block = [0; BLOCK];
        while wanted.is_none_or(|wanted| lines.len() < wanted) {
            if self.left < BLOCK as u64 {
                return Ok(None);
            }
            self.exactly(&entry.name, BLOCK, &mut block)?;
            self.left -= BLOCK as u64;
            for &byte in &block {
                if byte != b'\n' {
                    line.push(byte);
                    continue;
                }
                lines.push(std::mem::take(&mut line));
                if lines.len() == 1 {
                    let count = decimal(&lines[0]).and_then(|count| usize::try_from(count).ok());
                    let Some(count) = count.filter(|count| *count <= MOST_RUNS) else {
                        return Ok(None);
                    };
                    wanted = Some(1 + 2 * count);
                }
                if wanted.is_some_and(|wanted| lines.len() == wanted) {
                    break;
                }
            }
            if line.len() > BLOCK {
                return Ok(None);
            }
        }
        Ok(pairs(lines[1..].iter().map(Vec::as_slice)))
    }
}

/// Whether a block is a header, by its sum.
fn has_sum(block: &[u8; BLOCK]) -> bool {
    number(&block[148..156]) == Some(checksum(block).into())
}

fn padding(size: u64) -> u64 {
    (BLOCK as u64 - size % BLOCK as u64) % BLOCK as u64
}

/// The type flag, with all that are files made one; old archives mark directories by a slash.
fn kind_of(flag: u8, name: &[u8]) -> u8 {
    match flag {
        0 | b'0' | b'7' if name.ends_with(b"/") => b'5',
        0 | b'7' | b'S' => b'0',
        flag => flag,
    }
}

fn plain_name(header: &[u8; BLOCK]) -> Vec<u8> {
    let name = text(&header[..100]);
    let prefix = text(&header[345..500]);
    // Only POSIX headers have a prefix there.
    if prefix.is_empty() || &header[257..263] != b"ustar\0" {
        return name;
    }
    [&prefix[..], b"/", &name].concat()
}

/// A field that ends at its first zero.
fn text(field: &[u8]) -> Vec<u8> {
    let end = field.iter().position(|&byte| byte == 0);
    field[..end.unwrap_or(field.len())].to_vec()
}

/// A number in octal, or in GNU's base 256; an empty field is 0.
fn number(field: &[u8]) -> Option<u64> {
    u64::try_from(signed(field)?).ok()
}

fn signed(field: &[u8]) -> Option<i64> {
    let first = *field.first()?;
    if first & 0x80 == 0 {
        let digits = field
            .iter()
            .copied()
            .skip_while(|byte| *byte == b' ')
            .take_while(|byte| !matches!(byte, 0 | b' '));
        return digits.into_iter().try_fold(0i64, |value, digit| {
            let digit = i64::from(digit).checked_sub(i64::from(b'0'));
            let digit = digit.filter(|digit| (0..8).contains(digit))?;
            value.checked_mul(8)?.checked_add(digit)
        });
    }
    // Two's complement; the mark is part of the sign.
    let negative = first == 0xFF;
    let start = if negative {
        -1
    } else {
        i64::from(first & 0x7F)
    };
    field[1..].iter().try_fold(start, |value, &byte| {
        value.checked_mul(256)?.checked_add(i64::from(byte))
    })
}

fn decimal(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.trim().parse().ok()
}

/// Seconds with a fraction; digits behind the ninth do not count.
fn time(value: &[u8]) -> Option<Time> {
    let value = std::str::from_utf8(value).ok()?;
    let (whole, fraction) = value.split_once('.').unwrap_or((value, ""));
    let negative = whole.starts_with('-');
    let mut seconds: i64 = match whole {
        "" | "-" => 0,
        whole => whole.parse().ok()?,
    };
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let digits: String = fraction
        .chars()
        .chain("000000000".chars())
        .take(9)
        .collect();
    let mut nanoseconds: u32 = digits.parse().ok()?;
    if negative && nanoseconds > 0 {
        seconds = seconds.checked_sub(1)?;
        nanoseconds = 1_000_000_000 - nanoseconds;
    }
    Some(Time {
        seconds,
        nanoseconds,
    })
}

/// Pax records: `length key=value` with a line's end.
fn parse_records(mut bytes: &[u8], into: &mut Records) -> Result<()> {
    while !bytes.is_empty() && bytes[0] != 0 {
        let record = (|| {
            let space = bytes.iter().position(|&byte| byte == b' ')?;
            let length = usize::try_from(decimal(&bytes[..space])?).ok()?;
            let (record, rest) = bytes.split_at_checked(length)?;
            let body = record.get(space + 1..)?.strip_suffix(b"\n")?;
            let equals = body.iter().position(|&byte| byte == b'=')?;
            Some((&body[..equals], &body[equals + 1..], rest))
        })();
        let Some((key, value, rest)) = record else {
            return bad(b"", "an extended header is damaged");
        };
        into.take(key, value);
        bytes = rest;
    }
    Ok(())
}

fn xattrs_of(records: &Records, entry: &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let own = records.attributes.attributes().map(|(name, value)| {
        let value = value.or_else(|problem| {
            let problem = format!("its attribute {}: {problem}", Shown(&name));
            bad(entry, problem)
        });
        Ok((name, value?))
    });
    own.collect()
}

fn lists_of(records: &Records) -> Vec<(&'static [u8], Vec<u8>)> {
    let own = LISTS.iter().filter_map(|(key, attribute)| {
        let text = records.get(key)?;
        Some((*attribute, text.clone()))
    });
    own.collect()
}

fn pairs<'a>(numbers: impl Iterator<Item = &'a [u8]>) -> Option<Vec<(u64, u64)>> {
    let numbers: Vec<u64> = numbers.map(decimal).collect::<Option<_>>()?;
    if !numbers.len().is_multiple_of(2) || numbers.len() / 2 > MOST_RUNS {
        return None;
    }
    let pairs = numbers.chunks_exact(2).map(|pair| (pair[0], pair[1]));
    Some(pairs.collect())
}

#[cfg(test)]
mod tests {
    use super::{Time, number, signed, time};

    #[test]
    fn numbers_are_octal_or_base_256() {
        assert_eq!(number(b"0000644\0"), Some(0o644));
        assert_eq!(number(b"   644 \0"), Some(0o644));
        assert_eq!(number(b"\0\0\0\0"), Some(0));
        assert_eq!(number(b"0008\0"), None);
        assert_eq!(number(&[0x80, 0, 0, 1, 0]), Some(256));
        assert_eq!(signed(&[0xFF, 0xFF, 0xFF, 0xFE]), Some(-2));
        assert_eq!(number(&[0xFF; 12]), None);
        assert_eq!(
            number(&[0x80, 0x7F, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF]),
            None
        );
    }

    #[test]
    fn times_have_fractions_and_signs() {
        let at = |seconds, nanoseconds| {
            Some(Time {
                seconds,
                nanoseconds,
            })
        };
        assert_eq!(time(b"12"), at(12, 0));
        assert_eq!(time(b"12.5"), at(12, 500_000_000));
        assert_eq!(time(b"-0.75"), at(-1, 250_000_000));
        assert_eq!(time(b"-3"), at(-3, 0));
        assert_eq!(time(b"1.0000000019"), at(1, 1));
        assert_eq!(time(b"x"), None);
        assert_eq!(time(b"1.-5"), None);
    }
}
