//! Reads the layers of a container image with several threads.

use std::os::unix::fs::FileExt;
use std::path::Path;

use pext4_sync::atomic::{AtomicUsize, Ordering};
use pext4_sync::thread;

use super::{Archive, Options};
use crate::build::archive::apply::ArchiveWriter;
use crate::build::archive::input::{Compression, FileInput, with_stream};
use crate::build::archive::spool::Spool;
use crate::build::archive::{Reader, Record};
use crate::build::error::{Error, Result};
use crate::build::first_error::FirstError;
use crate::build::oci;
use crate::build::queue::{AbandonAtEnd, Queue};
use crate::build::tree::Tree;

/// Number of records that a layer's thread sends at once.
const RECORDS_PER_MESSAGE: usize = 256;
/// Number of messages that wait together in the queues of a container image's layers: threads that
/// read later layers wait when theirs are full, so that the memory does not depend on the layers.
const MAX_WAITING_MESSAGES: usize = 256;

/// Reads the layers of a container image with several threads, and lays them over one another in
/// order.
pub(super) struct LayerReader<'a> {
    blobs: &'a [oci::Blob],
    archives: &'a [Archive],
    /// One queue per layer. The calling thread consumes one after the other. Threads take layers in
    /// order, so the one that is consumed is complete or has a thread that waits for nothing else,
    /// however full the later queues are.
    queues: Vec<Queue<Vec<Record>>>,
    next: AtomicUsize,
    spool: &'a Spool,
    image: &'a Path,
    options: &'a Options<'a>,
    first_error: FirstError,
}

/// Closes a queue when its producer ends, even by a panic, as of a decoder.
struct CloseAtEnd<'a>(&'a Queue<Vec<Record>>);

impl Drop for CloseAtEnd<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl<'a> LayerReader<'a> {
    /// `archives` are the files of `blobs`, in their order. What has to be decompressed goes to
    /// `spool`; `image` is what errors about that name.
    pub(super) fn new(
        blobs: &'a [oci::Blob],
        archives: &'a [Archive],
        spool: &'a Spool,
        image: &'a Path,
        options: &'a Options<'a>,
    ) -> Self {
        let room = (MAX_WAITING_MESSAGES / blobs.len().max(1)).max(1);
        Self {
            blobs,
            archives,
            queues: blobs.iter().map(|_| Queue::new(room)).collect(),
            next: AtomicUsize::new(0),
            spool,
            image,
            options,
            first_error: FirstError::new(),
        }
    }

    /// Reads and applies all layers, numbered from `first`. Returns which of them went through the
    /// spool.
    pub(super) fn run(self, tree: &mut Tree, first: u16, threads: usize) -> Result<Vec<bool>> {
        thread::scope(|scope| {
            let count = threads.min(self.blobs.len());
            let start = |_: &usize| thread::try_spawn_scoped(scope, || self.work()).is_ok();
            if (0..count).take_while(start).count() == 0 {
                // This thread first produces all records and then consumes them.
                self.queues.iter().for_each(Queue::unbound);
                self.work();
            }
            let _end = AbandonAtEnd(&self.queues);
            for (number, (blob, queue)) in (first..).zip(self.blobs.iter().zip(&self.queues)) {
                let options = self.options;
                let max_names = options.limits.files;
                let mut archive_writer =
                    ArchiveWriter::new(&blob.path, options.rules, number, max_names)
                        .container_layer();
                while let Some(records) = queue.take() {
                    self.options.progress.add(records.len() as u64, 0);
                    let applied = records
                        .into_iter()
                        .try_for_each(|record| archive_writer.apply(tree, record))
                        .and_then(|()| Ok(self.options.progress.check()?));
                    if let Err(error) = applied {
                        self.fail(error);
                    }
                }
                if let Err(error) = archive_writer.finish(tree) {
                    self.fail(error);
                }
            }
        });
        self.first_error.finish()?;
        self.archives.iter().map(is_compressed).collect()
    }

    fn fail(&self, error: Error) {
        self.first_error.record(error);
        self.queues.iter().for_each(Queue::abandon);
    }

    fn work(&self) {
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(blob) = self.blobs.get(number) else {
                return;
            };
            if self.first_error.has_failed() {
                return;
            }
            // Also if the thread panics, or the consumer would wait for this layer.
            let _end = CloseAtEnd(&self.queues[number]);
            if let Err(error) = self.read(number, blob) {
                self.fail(error);
            }
        }
    }

    fn read(&self, number: usize, blob: &oci::Blob) -> Result<()> {
        let archive = &self.archives[number];
        let queue = &self.queues[number];
        let mut records = Vec::new();
        let take = |record| {
            records.push(record);
            if records.len() < RECORDS_PER_MESSAGE || queue.put(std::mem::take(&mut records)) {
                Ok(())
            } else {
                Err(Error::Interrupted)
            }
        };
        let (rules, limits) = (self.options.rules, self.options.limits);
        if is_compressed(archive)? {
            let writer = self.spool.writer(self.image);
            let progress = self.options.progress;
            let raw = blob.open()?;
            let verified = with_stream(raw, &blob.path, writer, u64::MAX, progress, |input| {
                let reader = Reader::new(&blob.path, input, rules, limits);
                let end = reader.container_layer().read(take)?;
                Ok(end.input)
            })?;
            verified.verify(blob)?;
        } else {
            blob.check(&archive.file)?;
            let input = FileInput::new(&archive.file, &blob.path)?;
            Reader::new(&blob.path, input, rules, limits)
                .container_layer()
                .read(take)?;
        }
        queue.put(records);
        Ok(())
    }
}

fn is_compressed(archive: &Archive) -> Result<bool> {
    let mut start = [0; 4];
    let read = archive
        .file
        .read_at(&mut start, 0)
        .map_err(|cause| Error::source(&archive.path, "read it", cause))?;
    Ok(Compression::detect(&start[..read]) != Compression::None)
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    use super::{CloseAtEnd, Queue};

    #[test]
    fn a_layer_ends_with_the_thread_that_reads_it() {
        let queue = Queue::new(1);
        let panicking = AssertUnwindSafe(|| {
            let _end = CloseAtEnd(&queue);
            resume_unwind(Box::new("as a panic does"));
        });
        assert!(catch_unwind(panicking).is_err());
        let taken = queue.take_or_check(|| Err("nothing ended it"));
        assert!(matches!(taken, Ok(None)), "{:?}", taken.err());
    }
}
