//! The spool: a scratch file without a name beside the image that keeps contents of streams until
//! they are copied into the image.
//!
//! Large contents are page-aligned, so that the host may share their blocks with the image instead
//! of copying them; small ones are packed. Several archives may write at the same time, each into
//! its own areas.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use pext4_sync::atomic::{AtomicU64, Ordering};

use super::super::error::{Error, Result};

/// Contents of at least this many bytes get an area of their own.
const MIN_LARGE_BYTES: u64 = 256 << 10;
/// Size in bytes of an area that small contents share.
const SMALL_AREA_BYTES: usize = 1 << 20;
/// Alignment of areas in bytes.
const PAGE_BYTES: u64 = 4096;

/// The spool file.
pub(in crate::build) struct Spool {
    pub file: File,
    end: AtomicU64,
}

impl Spool {
    pub fn new(file: File) -> Self {
        Self {
            file,
            end: AtomicU64::new(0),
        }
    }

    fn reserve(&self, length: u64) -> Result<u64> {
        let rounded = length
            .checked_next_multiple_of(PAGE_BYTES)
            .ok_or_else(|| Error::impossible("an archive states a size beyond all numbers"))?;
        let start = self.end.fetch_add(rounded, Ordering::Relaxed);
        if start
            .checked_add(rounded)
            .is_none_or(|end| end > i64::MAX.cast_unsigned())
        {
            return Err(Error::impossible(
                "the archives state more than any file can hold",
            ));
        }
        Ok(start)
    }

    /// A writer for one archive.
    pub fn writer<'a>(&'a self, image: &'a Path) -> Writer<'a> {
        Writer {
            spool: self,
            image,
            small: Vec::new(),
            small_at: 0,
            large_at: None,
        }
    }
}

/// Writes the contents of one archive.
pub(in crate::build) struct Writer<'a> {
    spool: &'a Spool,
    /// The image, for messages.
    image: &'a Path,
    /// The contents of the current area of small contents.
    small: Vec<u8>,
    small_at: u64,
    /// The offset of the next piece of a large content.
    large_at: Option<u64>,
}

impl Writer<'_> {
    /// Begins a content of `length` bytes. Returns its offset.
    pub fn begin(&mut self, length: u64) -> Result<u64> {
        if length >= MIN_LARGE_BYTES {
            let place = self.spool.reserve(length)?;
            self.large_at = Some(place);
            return Ok(place);
        }
        self.large_at = None;
        let length = usize::try_from(length).expect("below 256 KiB");
        if self.small.capacity() == 0 || self.small.len() + length > SMALL_AREA_BYTES {
            self.flush()?;
            self.small_at = self.spool.reserve(SMALL_AREA_BYTES as u64)?;
            self.small.reserve(SMALL_AREA_BYTES);
        }
        Ok(self.small_at + self.small.len() as u64)
    }

    /// Writes the next piece of the current content.
    pub fn write(&mut self, piece: &[u8]) -> Result<()> {
        match &mut self.large_at {
            Some(at) => {
                let place = *at;
                *at += piece.len() as u64;
                self.put(place, piece)
            }
            None => {
                self.small.extend_from_slice(piece);
                Ok(())
            }
        }
    }

    fn flush(&mut self) -> Result<()> {
        self.put(self.small_at, &self.small)?;
        self.small.clear();
        Ok(())
    }

    fn put(&self, place: u64, bytes: &[u8]) -> Result<()> {
        self.spool
            .file
            .write_all_at(bytes, place)
            .map_err(|cause| Error::output(self.image, "keep contents beside it", cause))
    }

    /// Writes the buffered contents.
    pub fn finish(mut self) -> Result<()> {
        self.flush()
    }
}
