//! Whole contents of files, by path.

use std::io;
use std::ops::Deref;

use super::{AsVolumePath, Paths};
use crate::error::{Refusal, Result};
use crate::volume::Volume;

impl<V: Deref<Target = Volume> + Clone> Paths<V> {
    /// The whole content of a file. Holes count as the zeroes that they are, and a small image may
    /// have a file of many TiB: [`Self::read_up_to`] is for an image that is not trusted.
    ///
    /// # Errors
    ///
    /// As [`Volume::read`]; an `Io` error of the kind `OutOfMemory`.
    pub fn read(&self, path: impl AsVolumePath) -> Result<Vec<u8>> {
        self.read_up_to(path, u64::MAX)
    }

    /// The whole content of a file of at most `most` bytes.
    ///
    /// # Errors
    ///
    /// `Refused(FileTooLarge)` for a larger file; as [`Self::read`].
    pub fn read_up_to(&self, path: impl AsVolumePath, most: u64) -> Result<Vec<u8>> {
        const CHUNK: usize = 1 << 20;
        let file = self.resolve(path)?;
        let mut content = Vec::new();
        // The size in the image may be wrong: memory grows with the bytes that were read.
        loop {
            let start = content.len();
            if content.try_reserve(CHUNK).is_err() {
                return Err(io::Error::from(io::ErrorKind::OutOfMemory).into());
            }
            content.resize(start + CHUNK, 0);
            let count = self
                .volume
                .read(file.inode, start as u64, &mut content[start..])?;
            content.truncate(start + count);
            if content.len() as u64 > most {
                return Err(Refusal::FileTooLarge.into());
            }
            if count < CHUNK {
                return Ok(content);
            }
        }
    }

    /// The whole content of a file that is text in UTF-8; as large as [`Self::read`] allows.
    ///
    /// # Errors
    ///
    /// As [`Self::read`]; an `Io` error of the kind `InvalidData` if it is not UTF-8.
    pub fn read_to_string(&self, path: impl AsVolumePath) -> Result<String> {
        let not_text = |error| io::Error::new(io::ErrorKind::InvalidData, error);
        Ok(String::from_utf8(self.read(path)?).map_err(not_text)?)
    }

    /// Replaces the whole content of a file, which is created if it does not exist.
    ///
    /// # Errors
    ///
    /// As [`Paths::open_with`] and [`Volume::write`].
    pub fn write(&self, path: impl AsVolumePath, content: impl AsRef<[u8]>) -> Result<()> {
        self.create(path)?.write_all_at(content.as_ref(), 0)
    }
}
