//! The reader of archives: entries one after the other, and the content of each as a stream.

use std::io::Read;

use pext4_tar::{BLOCK, Blocks, Entry, Malformed, ReadError, Reader};

use crate::change::fill;
use crate::error::{EditError, HostContext, Result};

/// A tar archive.
pub(crate) struct Archive<'r> {
    entries: Reader<Input<'r>>,
}

/// The stream that the archive is read from.
struct Input<'r> {
    stream: &'r mut dyn Read,
    /// The bytes of the current entry that were not read yet, and the padding after them.
    left: u64,
    padding: u64,
}

fn cut_short<T>(entry: &[u8]) -> Result<T> {
    let problem = "the archive ends inside it: it was cut short";
    Err(EditError::Tar(Malformed::new(entry, problem)))
}

impl<'r> Archive<'r> {
    pub(crate) fn new(stream: &'r mut dyn Read) -> Self {
        let input = Input {
            stream,
            left: 0,
            padding: 0,
        };
        Self {
            entries: Reader::new(input),
        }
    }

    /// The next entry. Skips the unread rest of the current one.
    pub(crate) fn next(&mut self) -> Result<Option<Entry>> {
        if !self.entries.input().skip_rest()? {
            return cut_short(b"");
        }
        let entry = match self.entries.next_entry() {
            Ok(entry) => entry,
            Err(ReadError::Input(error)) => return Err(error),
            Err(ReadError::Malformed(malformed)) => return Err(EditError::Tar(malformed)),
        };
        if let Some(entry) = &entry {
            let input = self.entries.input();
            input.left = entry.stored;
            input.padding = padding(entry.stored);
        }
        Ok(entry)
    }

    /// Whether the archive ended without an end mark.
    pub(crate) fn lacks_end_mark(&self) -> bool {
        self.entries.lacks_end_mark()
    }

    /// Reads the next bytes of the current entry; 0 at its end.
    pub(crate) fn read(&mut self, entry: &Entry, into: &mut [u8]) -> Result<usize> {
        let input = self.entries.input();
        let available = usize::try_from(input.left).unwrap_or(usize::MAX);
        let length = into.len().min(available);
        if !input.read_exact(&mut into[..length])? {
            return cut_short(&entry.name);
        }
        input.left -= length as u64;
        Ok(length)
    }
}

impl Input<'_> {
    /// Fills the buffer, or what the rest of the stream fills of it. Returns the length of that.
    fn fill(&mut self, into: &mut [u8]) -> Result<usize> {
        fill(self.stream, into).with_host_file("-".as_ref(), "read the tar")
    }

    /// Fills the whole buffer; false if the stream ends before.
    fn read_exact(&mut self, into: &mut [u8]) -> Result<bool> {
        Ok(self.fill(into)? == into.len())
    }

    fn skip_rest(&mut self) -> Result<bool> {
        let left = std::mem::take(&mut self.left);
        let padding = std::mem::take(&mut self.padding);
        Ok(self.discard(left)? && self.discard(padding)?)
    }

    fn discard(&mut self, mut left: u64) -> Result<bool> {
        let mut piece = [0; 16 * BLOCK];
        while left > 0 {
            let length = usize::try_from(left).map_or(piece.len(), |left| left.min(piece.len()));
            if !self.read_exact(&mut piece[..length])? {
                return Ok(false);
            }
            left -= length as u64;
        }
        Ok(true)
    }
}

impl Blocks for Input<'_> {
    type Error = EditError;

    fn read_block(&mut self, block: &mut [u8; BLOCK]) -> Result<usize> {
        self.fill(block)
    }

    fn skip(&mut self, length: u64) -> Result<bool> {
        Ok(self.discard(length)? && self.discard(padding(length))?)
    }
}

fn padding(length: u64) -> u64 {
    (BLOCK as u64 - length % BLOCK as u64) % BLOCK as u64
}
