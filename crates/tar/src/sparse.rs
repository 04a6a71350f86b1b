//! Sparse files in archives: the ranges of their data, in the four formats that GNU tar has used.

use std::ops::Range;

use super::BLOCK;
use super::header;
use super::records::number;

/// The most segments of a sparse file that are read, empty ones included.
pub const MAX_SEGMENTS: usize = 1 << 20;

/// The segments of a file as the archive states them, not yet checked.
#[derive(Debug, Default)]
pub(crate) struct Map {
    /// Offset and length of each, in bytes.
    pieces: Vec<(u64, u64)>,
    /// Bytes of the file, including holes.
    size: u64,
}

/// A map that was checked.
pub(crate) struct ValidMap {
    pub segments: Box<[Range<u64>]>,
    /// Bytes of the file, including holes.
    pub size: u64,
}

impl Map {
    /// The map in the header of an old sparse file, and whether further blocks of it follow.
    pub fn from_header(header: &[u8; BLOCK]) -> Result<(Self, bool), String> {
        if &header[header::MAGIC] == b"ustar\0" {
            return Err("it has a map of holes in a header that has no room for one".to_owned());
        }
        let mut map = Self {
            pieces: Vec::new(),
            size: header::number(&header[483..495]).ok_or("its real size is no number")?,
        };
        map.add(&header[386..482])?;
        Ok((map, header[482] != 0))
    }

    /// Adds a further block; returns whether another one follows.
    pub fn extend(&mut self, block: &[u8; BLOCK]) -> Result<bool, String> {
        self.add(&block[..504])?;
        Ok(block[504] != 0)
    }

    /// Adds pieces of 12 bytes of offset and 12 bytes of length; empty ones are skipped.
    fn add(&mut self, pieces: &[u8]) -> Result<(), String> {
        let (pieces, _) = pieces.as_chunks::<24>();
        for piece in pieces
            .iter()
            .filter(|piece| piece[0] != 0 && piece[12] != 0)
        {
            match (header::number(&piece[..12]), header::number(&piece[12..])) {
                (Some(offset), Some(length)) => self.push(offset, length)?,
                _ => return Err("its map of holes is no list of numbers".to_owned()),
            }
        }
        Ok(())
    }

    fn push(&mut self, offset: u64, length: u64) -> Result<(), String> {
        if self.pieces.len() == MAX_SEGMENTS {
            return Err(format!("it has more than {MAX_SEGMENTS} pieces"));
        }
        self.pieces.push((offset, length));
        Ok(())
    }

    /// Checks the order of the segments, and that their lengths add up to the bytes in the archive.
    pub fn check(self, held: u64) -> Result<ValidMap, String> {
        let (mut at, mut sum) = (0, 0u64);
        let mut segments = Vec::new();
        for (offset, length) in self.pieces {
            let end = offset.checked_add(length).filter(|&end| end <= self.size);
            let Some(end) = end.filter(|_| offset >= at) else {
                return Err("its map of holes makes no sense".to_owned());
            };
            sum += length;
            at = end;
            if length > 0 {
                segments.push(offset..end);
            }
        }
        if sum != held {
            return Err(format!(
                "its map speaks of {sum} bytes, the archive holds {held}"
            ));
        }
        Ok(ValidMap {
            segments: segments.into_boxed_slice(),
            size: self.size,
        })
    }
}

/// The records about a sparse file in extended headers.
#[derive(Clone, Debug, Default)]
pub(crate) struct PaxMap {
    pub name: Option<Vec<u8>>,
    pub real_size: u64,
    is_version_one: bool,
    is_sparse: bool,
    pieces: Vec<(u64, u64)>,
    offset: Option<u64>,
}

impl PaxMap {
    /// Sets the value of the key `GNU.sparse.` followed by `key`. An empty name removes one from an
    /// earlier header.
    pub fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), String> {
        match key {
            b"name" => self.name = (!value.is_empty()).then(|| value.to_vec()),
            b"realsize" | b"size" => {
                self.real_size = number(key, value)?;
                self.is_sparse = true;
            }
            b"major" => self.is_version_one = number(key, value)? == 1,
            b"offset" => self.offset = Some(number(key, value)?),
            b"numbytes" => {
                let offset = self
                    .offset
                    .take()
                    .ok_or("its map of holes makes no sense")?;
                self.pieces.push((offset, number(key, value)?));
            }
            b"map" => {
                let numbers = value
                    .split(|&byte| byte == b',')
                    .map(|piece| number(key, piece))
                    .collect::<Result<Vec<u64>, String>>()?;
                let (pairs, rest) = numbers.as_chunks::<2>();
                if !rest.is_empty() {
                    return Err("its map of holes makes no sense".to_owned());
                }
                self.pieces = pairs
                    .iter()
                    .map(|&[offset, length]| (offset, length))
                    .collect();
            }
            _ => {}
        }
        Ok(())
    }

    /// Memory of the pieces in bytes.
    pub fn size(&self) -> usize {
        self.pieces.len() * size_of::<(u64, u64)>()
    }

    /// Whether the map is at the start of the content.
    pub fn is_inside(&self) -> bool {
        self.is_version_one
    }

    /// The map, if the records contain one.
    pub fn map(&self) -> Option<Map> {
        self.is_sparse.then(|| Map {
            pieces: self.pieces.clone(),
            size: self.real_size,
        })
    }
}

/// Parser of a map as text: the number of pieces, then offset and length of each, one number per
/// line.
pub(crate) struct TextMap {
    map: Map,
    expected: Option<usize>,
    offset: Option<u64>,
    number: Option<u64>,
}

impl TextMap {
    pub fn new(real_size: u64) -> Self {
        Self {
            map: Map {
                pieces: Vec::new(),
                size: real_size,
            },
            expected: None,
            offset: None,
            number: None,
        }
    }

    /// Reads a block; returns the map once it is complete. The rest of the block is padding.
    pub fn read(&mut self, block: &[u8; BLOCK]) -> Result<Option<Map>, String> {
        for &byte in block {
            match byte {
                b'0'..=b'9' => {
                    let digit = u64::from(byte - b'0');
                    let number = self.number.unwrap_or(0).checked_mul(10);
                    let number = number.and_then(|number| number.checked_add(digit));
                    self.number = Some(number.ok_or("its map of holes makes no sense")?);
                }
                b'\n' => self.end_of_number()?,
                _ => return Err("its map of holes is no list of numbers".to_owned()),
            }
            if self.expected == Some(self.map.pieces.len()) {
                return Ok(Some(std::mem::take(&mut self.map)));
            }
        }
        Ok(None)
    }

    fn end_of_number(&mut self) -> Result<(), String> {
        let number = self
            .number
            .take()
            .ok_or("its map of holes makes no sense")?;
        match (self.expected, self.offset.take()) {
            (None, _) => {
                let expected = usize::try_from(number).ok();
                let expected = expected.filter(|&expected| expected <= MAX_SEGMENTS);
                let text = || format!("it claims {number} pieces");
                self.expected = Some(expected.ok_or_else(text)?);
            }
            (Some(_), None) => self.offset = Some(number),
            (Some(_), Some(offset)) => self.map.push(offset, number)?,
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{BLOCK, Map, TextMap};

    fn map(pieces: &[(u64, u64)], size: u64) -> Map {
        Map {
            pieces: pieces.to_vec(),
            size,
        }
    }

    #[test]
    fn maps_are_checked() {
        let checked = map(&[(0, 10), (100, 20), (200, 0)], 200).check(30).unwrap();
        assert_eq!(&*checked.segments, [0..10, 100..120]);
        assert_eq!(checked.size, 200);
        assert!(
            map(&[(100, 20), (0, 10)], 200).check(30).is_err(),
            "out of order"
        );
        assert!(
            map(&[(0, 10), (5, 20)], 200).check(30).is_err(),
            "overlapping"
        );
        assert!(map(&[(190, 20)], 200).check(20).is_err(), "behind the end");
        assert!(
            map(&[(u64::MAX, 20)], 200).check(20).is_err(),
            "beyond all numbers"
        );
        assert!(map(&[(0, 10)], 200).check(11).is_err(), "not what is held");
    }

    #[test]
    fn text_is_read_to_its_end() {
        let mut block = [0; BLOCK];
        block[..14].copy_from_slice(b"2\n0\n5\n1000\n7\n\0");
        let read = TextMap::new(2000).read(&block).unwrap().unwrap();
        assert_eq!(read.pieces, [(0, 5), (1000, 7)]);
        block[0] = b'x';
        assert!(TextMap::new(2000).read(&block).is_err());
        assert!(TextMap::new(2000).read(&[b'9'; BLOCK]).is_err());
    }
}
