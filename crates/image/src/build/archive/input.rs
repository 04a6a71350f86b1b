//! The input of an archive reader: a plain file, or a stream that is read once.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use pext4_block::Progress;
use pext4_sync::atomic::{AtomicBool, Ordering};
use pext4_sync::thread;
use pext4_tar::{BLOCK, Blocks};

use super::super::error::{Error, Result};
use super::super::queue::Queue;
use super::spool::Writer;

/// Read size in bytes while small entries follow each other.
const WIDE_READ_BYTES: usize = 64 << 10;
/// Read size after a large content, which is skipped.
const NARROW_READ_BYTES: usize = 2 * BLOCK;
/// Read size of a stream in bytes.
const CHUNK_BYTES: usize = 1 << 20;
/// Size of the buffer behind a decompressor in bytes. A stream may have many small parts, each with
/// its own buffer.
const DECOMPRESSED_BYTES: usize = 64 << 10;
/// Maximum number of chunks that wait between the two threads of a stream.
const MAX_WAITING_CHUNKS: usize = 8;

/// The input of an archive reader.
pub(in crate::build) trait Input: Blocks<Error = Error> {
    /// Skips a content of `length` bytes and its padding. Returns the offset from which it can be
    /// read later, or `None` if the archive ends before.
    fn take_content(&mut self, length: u64) -> Result<Option<u64>>;
}

/// A plain file.
pub(in crate::build) struct FileInput<'a> {
    file: &'a File,
    path: &'a Path,
    size: u64,
    position: u64,
    window: Vec<u8>,
    window_at: u64,
    /// The size of the next read in bytes.
    width: usize,
}

impl<'a> FileInput<'a> {
    pub fn new(file: &'a File, path: &'a Path) -> Result<Self> {
        let size = file
            .metadata()
            .map_err(|cause| Error::source(path, "find its size", cause))?
            .len();
        Ok(Self {
            file,
            path,
            size,
            position: 0,
            window: Vec::new(),
            window_at: 0,
            width: WIDE_READ_BYTES,
        })
    }

    fn fill(&mut self) -> io::Result<()> {
        self.window.resize(self.width, 0);
        self.window_at = self.position;
        let mut filled = 0;
        while filled < self.width {
            let rest = &mut self.window[filled..];
            match self.file.read_at(rest, self.position + filled as u64) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.window.truncate(filled);
        Ok(())
    }

    /// What was read from the position on.
    fn in_window(&self) -> Option<&[u8]> {
        let start = usize::try_from(self.position.checked_sub(self.window_at)?).ok()?;
        self.window.get(start..)
    }

    fn next_block(&self) -> Option<&[u8; BLOCK]> {
        self.in_window()?.first_chunk()
    }
}

impl Blocks for FileInput<'_> {
    type Error = Error;

    fn read_block(&mut self, block: &mut [u8; BLOCK]) -> Result<usize> {
        if self.next_block().is_none() {
            self.fill()
                .map_err(|cause| Error::source(self.path, "read it", cause))?;
        }
        let Some(found) = self.next_block() else {
            let rest = self.in_window().unwrap_or_default();
            block[..rest.len()].copy_from_slice(rest);
            return Ok(rest.len());
        };
        *block = *found;
        self.position += BLOCK as u64;
        Ok(BLOCK)
    }

    fn skip(&mut self, length: u64) -> Result<bool> {
        self.take_content(length).map(|place| place.is_some())
    }
}

impl Input for FileInput<'_> {
    fn take_content(&mut self, length: u64) -> Result<Option<u64>> {
        let place = self.position;
        let padded = length.checked_next_multiple_of(BLOCK as u64);
        let end = padded.and_then(|padded| place.checked_add(padded));
        let Some(end) = end.filter(|&end| end <= self.size) else {
            return Ok(None);
        };
        self.position = end;
        self.width = if length > WIDE_READ_BYTES as u64 {
            NARROW_READ_BYTES
        } else {
            WIDE_READ_BYTES
        };
        Ok(Some(place))
    }
}

/// A stream. Its contents are copied to the spool.
pub(in crate::build) struct StreamInput<'a> {
    path: &'a Path,
    chunks: &'a Queue<io::Result<Vec<u8>>>,
    has_ended: &'a AtomicBool,
    progress: &'a Progress,
    chunk: Vec<u8>,
    position: usize,
    spool: Writer<'a>,
}

impl StreamInput<'_> {
    /// The buffered bytes; empty only at the end of the stream.
    fn available(&mut self) -> Result<&[u8]> {
        if self.position == self.chunk.len() {
            self.chunk = match self.chunks.take_or_check(|| self.progress.check())? {
                Some(chunk) => chunk.map_err(|cause| Error::source(self.path, "read it", cause))?,
                None => Vec::new(),
            };
            self.position = 0;
        }
        Ok(&self.chunk[self.position..])
    }

    /// Passes `length` bytes to `take`, in pieces. Returns false if the stream ends before.
    fn pass(
        &mut self,
        length: u64,
        mut take: impl FnMut(&mut Writer<'_>, &[u8]) -> Result<()>,
    ) -> Result<bool> {
        let mut left = length;
        while left > 0 {
            let available = self.available()?.len();
            if available == 0 {
                return Ok(false);
            }
            let count = usize::try_from(left).map_or(available, |left| left.min(available));
            let piece = &self.chunk[self.position..self.position + count];
            take(&mut self.spool, piece)?;
            self.position += count;
            left -= count as u64;
        }
        Ok(true)
    }

    fn pass_padding(&mut self, length: u64) -> Result<bool> {
        let padding = length.next_multiple_of(BLOCK as u64) - length;
        self.pass(padding, |_, _| Ok(()))
    }

    fn finish(self) -> Result<()> {
        self.spool.finish()
    }
}

impl Blocks for StreamInput<'_> {
    type Error = Error;

    fn read_block(&mut self, block: &mut [u8; BLOCK]) -> Result<usize> {
        let mut filled = 0;
        self.pass(BLOCK as u64, |_, piece| {
            block[filled..filled + piece.len()].copy_from_slice(piece);
            filled += piece.len();
            Ok(())
        })?;
        Ok(filled)
    }

    fn skip(&mut self, length: u64) -> Result<bool> {
        Ok(self.pass(length, |_, _| Ok(()))? && self.pass_padding(length)?)
    }

    fn note_end(&mut self) {
        self.has_ended.store(true, Ordering::Release);
    }
}

impl Input for StreamInput<'_> {
    fn take_content(&mut self, length: u64) -> Result<Option<u64>> {
        let place = self.spool.begin(length)?;
        if !self.pass(length, |spool, piece| spool.write(piece))? {
            return Ok(None);
        }
        Ok(self.pass_padding(length)?.then_some(place))
    }
}

/// The compression of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::build) enum Compression {
    None,
    Gzip,
    Zstandard,
}

impl Compression {
    /// Detects the compression from the first bytes.
    pub fn detect(start: &[u8]) -> Self {
        match start {
            [0x1F, 0x8B, ..] => Self::Gzip,
            // Parallel compressors add skippable frames before and between the data frames.
            [0x28, 0xB5, 0x2F, 0xFD, ..] | [0x50..=0x5F, 0x2A, 0x4D, 0x18, ..] => Self::Zstandard,
            _ => Self::None,
        }
    }

    /// Whether these bytes start another part of a stream with this compression. Anything else is
    /// padding.
    fn continues_with(self, start: &[u8]) -> bool {
        Self::detect(start) == self
    }
}

/// Maximum number of bytes behind the archive's end mark that are decompressed to reach the
/// checksum. It is far more than the padding of any archiver.
const MAX_TRAILING_BYTES: u64 = 256 << 20;
/// Each part counts at least this many bytes.
const MIN_PART_BYTES: u64 = 4096;

/// Maximum number of bytes that are read behind the end of an archive, so that the program that
/// writes the stream does not get a broken pipe.
pub(in crate::build) const MAX_PADDING_BYTES: u64 = 1 << 20;

/// Reads a stream. A separate thread reads and decompresses it, and `read` gets the result as the
/// input of an archive. Returns the stream when both have reached its end.
///
/// A compressed stream is decompressed to its end, since checksums are last. It is an error if it
/// continues for too long behind the archive's end mark. Data behind its last part, or behind the
/// archive in a plain stream, is skipped, up to `max_trailing` bytes.
///
/// A thread that waits for a stalled stream cannot be interrupted. After an error or a stop request
/// it is detached: it drops the stream at the next data or at its end.
pub(in crate::build) fn with_stream<R: Read + Send + 'static>(
    raw: R,
    path: &Path,
    spool: Writer<'_>,
    max_trailing: u64,
    progress: &Progress,
    read: impl FnOnce(StreamInput<'_>) -> Result<StreamInput<'_>>,
) -> Result<R> {
    let shared = Arc::new(Shared {
        chunks: Queue::new(MAX_WAITING_CHUNKS),
        has_ended: AtomicBool::new(false),
        is_sound: AtomicBool::new(false),
    });
    let results = Arc::new(Queue::new(1));
    let (thread_shared, thread_result) = (Arc::clone(&shared), Arc::clone(&results));
    thread::try_spawn("pext4-stream", move || {
        let end = StreamEnd {
            shared: Arc::clone(&thread_shared),
            results: thread_result,
        };
        let mut reader = StreamReader {
            reader: BufReader::with_capacity(CHUNK_BYTES, raw),
            shared: &thread_shared,
            trailing_left: MAX_TRAILING_BYTES,
        };
        let done = reader.run(max_trailing);
        end.results.put(done.map(|()| reader.reader.into_inner()));
    })
    .map_err(|cause| Error::source(path, "start a thread to read it", cause))?;
    let input = StreamInput {
        path,
        chunks: &shared.chunks,
        has_ended: &shared.has_ended,
        progress,
        chunk: Vec::new(),
        position: 0,
        spool,
    };
    let done = read(input).and_then(StreamInput::finish);
    shared.is_sound.store(done.is_ok(), Ordering::Release);
    shared.chunks.abandon();
    done?;
    let result = results.take_or_check(|| progress.check())?;
    result
        .unwrap_or_else(|| Err(thread_failed()))
        .map_err(|cause| Error::source(path, "read it", cause))
}

/// The state that the thread that reads a stream shares with the consumer.
struct Shared {
    chunks: Queue<io::Result<Vec<u8>>>,
    /// Whether the archive's end mark was read.
    has_ended: AtomicBool,
    /// Whether the consumer read the archive without an error. Valid once the queue is abandoned.
    is_sound: AtomicBool,
}

/// Ends what the consumer waits for when the thread that reads a stream ends, even by a panic, as
/// of a decoder.
struct StreamEnd<R> {
    shared: Arc<Shared>,
    results: Arc<Queue<io::Result<R>>>,
}

impl<R> Drop for StreamEnd<R> {
    fn drop(&mut self) {
        // Only a thread that panics gets here before the consumer has abandoned the chunks.
        self.shared.chunks.put(Err(thread_failed()));
        self.shared.chunks.close();
        self.results.close();
    }
}

fn thread_failed() -> io::Error {
    io::Error::other("the thread that reads it failed")
}

/// The thread that reads a stream.
struct StreamReader<'a, R> {
    reader: BufReader<R>,
    shared: &'a Shared,
    /// How many more bytes behind the archive may be decompressed.
    trailing_left: u64,
}

impl<R: Read> StreamReader<'_, R> {
    /// Sends the decompressed stream until its end or until the queue is abandoned, then skips what
    /// follows a valid archive. Errors are sent to the consumer. If the consumer did not need the
    /// data behind which they occur, they are returned.
    fn run(&mut self, max_trailing: u64) -> io::Result<()> {
        let sent = self.send_all();
        if let Err(error) = &sent {
            let copy = io::Error::new(error.kind(), error.to_string());
            self.shared.chunks.put(Err(copy));
        }
        self.shared.chunks.close_and_wait();
        if self.shared.is_sound.load(Ordering::Acquire) {
            sent?;
            io::copy(&mut (&mut self.reader).take(max_trailing), &mut io::sink())?;
        }
        Ok(())
    }

    /// Sends all parts of a stream.
    fn send_all(&mut self) -> io::Result<()> {
        let mut start = self.start()?;
        let compression = Compression::detect(&start);
        if compression == Compression::None {
            return send(&mut start.chain(&mut self.reader), &self.shared.chunks).map(drop);
        }
        loop {
            if !self.send_part(compression, &start)? {
                return Ok(());
            }
            // The queue does not report that it was abandoned while a part is empty.
            let has_ended = self.shared.has_ended.load(Ordering::Acquire);
            if has_ended || self.shared.is_sound.load(Ordering::Acquire) {
                self.count_trailing(MIN_PART_BYTES)?;
            }
            start = self.start()?;
            if !compression.continues_with(&start) {
                return Ok(());
            }
        }
    }

    /// Counts bytes behind the archive against the limit.
    fn count_trailing(&mut self, bytes: u64) -> io::Result<()> {
        let left = self.trailing_left.checked_sub(bytes);
        self.trailing_left = left.ok_or_else(|| {
            let max_mib = MAX_TRAILING_BYTES >> 20;
            io::Error::other(format!(
                "it goes on for over {max_mib} MiB behind its end mark"
            ))
        })?;
        Ok(())
    }

    /// Reads the next four bytes, or fewer at the end.
    fn start(&mut self) -> io::Result<Vec<u8>> {
        let mut start = Vec::with_capacity(4);
        (&mut self.reader).take(4).read_to_end(&mut start)?;
        Ok(start)
    }

    /// Sends one part of a compressed stream. `start` are its first bytes. Returns false if the
    /// queue was abandoned and the archive was not valid.
    fn send_part(&mut self, compression: Compression, start: &[u8]) -> io::Result<bool> {
        let part = start.chain(&mut self.reader);
        let decoder: Box<dyn Read + '_> = match compression {
            Compression::Zstandard => {
                Box::new(zstd::stream::read::Decoder::with_buffer(part)?.single_frame())
            }
            _ => Box::new(flate2::bufread::GzDecoder::new(part)),
        };
        let mut decoder = BufReader::with_capacity(DECOMPRESSED_BYTES, decoder);
        if send(&mut decoder, &self.shared.chunks).map_err(with_advice)? {
            return Ok(true);
        }
        // Only the checksum remains to be verified.
        let is_sound = self.shared.is_sound.load(Ordering::Acquire);
        if is_sound {
            let passed = io::copy(&mut decoder.take(self.trailing_left + 1), &mut io::sink())?;
            self.count_trailing(passed)?;
        }
        Ok(is_sound)
    }
}

/// Says what to do about a window that takes more memory than the decoder grants to an archive that
/// it does not trust.
fn with_advice(error: io::Error) -> io::Error {
    let told = error.to_string();
    match told.contains("too much memory") {
        true => io::Error::new(
            error.kind(),
            format!("{told} (its window exceeds 128 MiB): pipe it through `zstd -dc --long=31`"),
        ),
        false => error,
    }
}

/// Sends the data of a reader until its end. Returns false if the queue was abandoned.
fn send(reader: &mut dyn BufRead, chunks: &Queue<io::Result<Vec<u8>>>) -> io::Result<bool> {
    loop {
        let chunk = match reader.fill_buf() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            bytes => bytes?.to_vec(),
        };
        reader.consume(chunk.len());
        if chunk.is_empty() {
            return Ok(true);
        }
        if !chunks.put(Ok(chunk)) {
            return Ok(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Cursor, Read};
    use std::path::Path;
    use std::time::Duration;

    use pext4_block::Progress;
    use pext4_sync::thread;
    use pext4_tar::{BLOCK, Blocks};

    use super::super::spool::Spool;
    use super::with_stream;

    /// A stream whose decoder has a defect.
    struct Defect;

    impl Read for Defect {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            panic!("a defect of a decoder");
        }
    }

    /// Reads blocks until the first `taken` of them or the end, and returns the error.
    fn error_of(stream: impl Read + Send + 'static, taken: usize) -> String {
        let progress = std::sync::Arc::new(Progress::default());
        let watched = std::sync::Arc::clone(&progress);
        thread::try_spawn("watchdog", move || {
            thread::sleep(Duration::from_secs(20));
            watched.stop();
        })
        .expect("a thread");
        let spool = Spool::new(tempfile::tempfile().expect("a temporary file"));
        let path = Path::new("archive");
        let read = with_stream(
            stream,
            path,
            spool.writer(path),
            1,
            &progress,
            |mut input| {
                let mut block = [0; BLOCK];
                for _ in 0..taken {
                    if input.read_block(&mut block)? < BLOCK {
                        break;
                    }
                }
                Ok(input)
            },
        );
        read.map(drop).expect_err("the thread panics").to_string()
    }

    #[test]
    fn a_panic_of_the_thread_that_reads_is_an_error() {
        let good = || Cursor::new(vec![0; 2 * BLOCK]);
        let failed = "archive: cannot read it: the thread that reads it failed";
        assert_eq!(error_of(Defect, 9), failed);
        assert_eq!(error_of(good().chain(Defect), 9), failed);
        // Behind what the consumer needs.
        assert_eq!(error_of(good().chain(Defect), 1), failed);
    }
}
