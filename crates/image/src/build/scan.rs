//! Reads the names and attributes of a host directory, with several threads.
//!
//! A job is a directory to list, or a part of a large directory's names to stat. Jobs are on a
//! stack, so that few directories are open at a time; a directory stays open while jobs for its
//! contents remain. Results go to the caller as *batches*. A directory's batch is always sent
//! before its subdirectories are listed, so that the caller knows a parent before its children. The
//! order of batches is otherwise arbitrary: names are sorted later.
//!
//! Symbolic links are never followed, here or when contents are read.

mod batch;
mod entry;
mod examine;
mod jobs;

use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pext4_block::Progress;
use pext4_sync::atomic::{AtomicBool, AtomicU32, Ordering};
use pext4_sync::thread;
use rustix::fs::{CWD, Mode, OFlags, RawDir};

use super::error::{Error, Result};
use super::first_error::FirstError;
use super::queue::{AbandonAtEnd, Queue};
use super::rules::Rules;
pub(super) use batch::Batch;
pub(super) use entry::{LinkKey, ScannedEntry};
use jobs::{Job, Names, OpenDirectory, Stack};

/// Number of names of a large directory that one job stats.
const NAMES_PER_JOB: usize = 512;
/// Size of the buffer for directory entries.
const LISTING_BYTES: usize = 64 << 10;
/// Maximum number of batches that wait for the caller.
const MAX_WAITING_BATCHES: usize = 256;

/// A host directory as a source.
pub(super) struct Source {
    /// Its path, for messages and for attributes.
    pub path: PathBuf,
    pub root: OwnedFd,
}

/// Options of a scan.
pub(super) struct Options<'a> {
    pub rules: &'a Rules,
    pub threads: usize,
    pub skip_unreadable: bool,
    /// Do not descend into other file systems than that of the root.
    pub one_file_system: bool,
    /// Files to exclude, by device and inode number: the image itself, old and new.
    pub leave_out: Vec<(u64, u64)>,
    pub progress: &'a Progress,
}

/// The state of one thread.
struct Worker {
    buffers: entry::Buffers,
    /// Whether the thread has its own working directory, so that `fchdir` does not affect the
    /// others.
    can_chdir: bool,
}

impl Source {
    /// Opens a directory.
    pub fn open(path: &Path) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::openat(CWD, path, flags, Mode::empty())
            .map_err(|errno| Error::source(path, "open it", errno))?;
        Ok(Self {
            path: path.to_owned(),
            root,
        })
    }

    /// The entry of the root itself.
    pub fn root_entry(&self, rules: &Rules) -> Result<ScannedEntry> {
        let stat = rustix::fs::fstat(&self.root)
            .map_err(|errno| Error::source(&self.path, "read its attributes", errno))?;
        entry::from_root(&self.path, &stat, rules)
    }

    /// Reads all names below the root. Calls `take` with every batch, on the caller's thread.
    pub fn read(
        &self,
        options: &Options<'_>,
        mut take: impl FnMut(Batch) -> Result<()>,
    ) -> Result<()> {
        let scan = Scan::new(self, options)?;
        thread::scope(|scope| {
            let _end = AbandonAtEnd(std::slice::from_ref(&scan.batches));
            for _ in 0..options.threads {
                if let Err(cause) = thread::try_spawn_scoped(scope, || scan.work()) {
                    scan.note_missing_thread(cause);
                }
            }
            while let Some(batch) = scan.batches.take() {
                let found = batch.found.len() as u64;
                if let Err(error) = take(batch).and_then(|()| Ok(options.progress.check()?)) {
                    scan.fail(error);
                }
                options.progress.add(found, 0);
            }
        });
        scan.first_error.finish()
    }
}

fn device_of(fd: &OwnedFd) -> rustix::io::Result<u64> {
    rustix::fs::fstat(fd).map(|stat| stat.st_dev)
}

/// The shared state of the threads of one scan.
struct Scan<'a> {
    source: &'a Source,
    options: &'a Options<'a>,
    device: u64,
    stack: Stack,
    batches: Queue<Batch>,
    next_directory: AtomicU32,
    /// Number of threads that have not finished. The last one closes the queue.
    workers: AtomicU32,
    /// Whether any thread started.
    has_begun: AtomicBool,
    first_error: FirstError,
}

/// The end of a worker, also by a panic: then neither the other workers nor the caller wait for
/// what it was doing.
struct WorkerEnd<'a> {
    scan: &'a Scan<'a>,
    has_job: bool,
}

impl Drop for WorkerEnd<'_> {
    fn drop(&mut self) {
        if self.has_job {
            self.scan.stack.give_up();
            self.scan.batches.abandon();
        }
        self.scan.finish_worker();
    }
}

impl<'a> Scan<'a> {
    /// A scan whose only job is the root.
    fn new(source: &'a Source, options: &'a Options<'a>) -> Result<Self> {
        let fd = source
            .root
            .try_clone()
            .map_err(|cause| Error::source(&source.path, "open it again", cause))?;
        let root = Arc::new(OpenDirectory {
            fd,
            number: 0,
            path: Vec::new(),
        });
        let device = device_of(&root.fd)
            .map_err(|errno| Error::source(&source.path, "read its attributes", errno))?;
        let scan = Self {
            source,
            options,
            device,
            stack: Stack::new(),
            batches: Queue::new(MAX_WAITING_BATCHES),
            next_directory: AtomicU32::new(1),
            workers: AtomicU32::new(u32::try_from(options.threads).unwrap_or(1)),
            has_begun: AtomicBool::new(false),
            first_error: FirstError::new(),
        };
        scan.stack.push([Job::List {
            parent: root,
            name: CString::default(),
            number: 0,
        }]);
        Ok(scan)
    }

    fn work(&self) {
        let mut end = self.begin_worker();
        let mut worker = Worker {
            buffers: entry::Buffers::new(),
            can_chdir: thread::own_working_directory().is_ok(),
        };
        let mut listing = vec![MaybeUninit::uninit(); LISTING_BYTES];
        while let Some(job) = self.next_job(&mut end) {
            if self.first_error.has_failed() {
                continue;
            }
            let done = match job {
                Job::List {
                    parent,
                    name,
                    number,
                } => self.list(&parent, &name, number, &mut listing, &mut worker),
                Job::Stat { directory, names } => self.stat_names(&directory, &names, &mut worker),
            };
            if let Err(error) = done {
                self.fail(error);
            }
        }
    }

    fn begin_worker(&self) -> WorkerEnd<'_> {
        self.has_begun.store(true, Ordering::Release);
        WorkerEnd {
            scan: self,
            has_job: false,
        }
    }

    fn next_job(&self, end: &mut WorkerEnd<'_>) -> Option<Job> {
        let job = self.stack.pop(std::mem::take(&mut end.has_job));
        end.has_job = job.is_some();
        job
    }

    /// Counts a thread that finishes. Returns whether it was the last one.
    fn finish_worker(&self) -> bool {
        let is_last = self.workers.fetch_sub(1, Ordering::AcqRel) == 1;
        if is_last {
            self.batches.close();
        }
        is_last
    }

    /// Counts a thread that the system did not start. The others do its work; if none started, the
    /// scan fails.
    fn note_missing_thread(&self, cause: std::io::Error) {
        if self.finish_worker() && !self.has_begun.load(Ordering::Acquire) {
            self.fail(Error::source(
                &self.source.path,
                "start a thread to read it",
                cause,
            ));
        }
    }

    fn fail(&self, error: Error) {
        self.first_error.record(error);
        self.stack.clear();
        self.batches.abandon();
    }

    fn shown(&self, directory: &[u8], name: &[u8]) -> PathBuf {
        let below = entry::joined(directory, name);
        self.source
            .path
            .join(Path::new(std::ffi::OsStr::from_bytes(&below)))
    }

    /// Reads the names of a directory. While it reads, full parts go onto the stack for other
    /// threads; this thread stats the last part.
    fn list(
        &self,
        parent: &Arc<OpenDirectory>,
        name: &CStr,
        number: u32,
        listing: &mut [MaybeUninit<u8>],
        worker: &mut Worker,
    ) -> Result<()> {
        let open = match self.open(parent, name, number) {
            Ok(open) => open,
            Err(error) if number > 0 && self.is_skipped(&error) => {
                self.note_skipped(number, error);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let mut names = Names::default();
        let mut entries = RawDir::new(&open.fd, listing);
        while let Some(entry) = entries.next() {
            let entry = entry.map_err(|errno| {
                Error::source(self.shown(&open.path, b""), "read its names", errno)
            })?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            if names.count == NAMES_PER_JOB {
                self.stack.push([Job::Stat {
                    directory: Arc::clone(&open),
                    names: std::mem::take(&mut names),
                }]);
            }
            names.push(name);
        }
        self.stat_names(&open, &names, worker)
    }

    fn open(
        &self,
        parent: &Arc<OpenDirectory>,
        name: &CStr,
        number: u32,
    ) -> Result<Arc<OpenDirectory>> {
        if number == 0 {
            return Ok(Arc::clone(parent));
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&parent.fd, name, flags, Mode::empty()).map_err(|errno| {
            Error::source(self.shown(&parent.path, name.to_bytes()), "open it", errno)
        })?;
        Ok(Arc::new(OpenDirectory {
            fd,
            number,
            path: entry::joined(&parent.path, name.to_bytes()),
        }))
    }

    /// Whether this is the error of a name that is left out.
    fn is_skipped(&self, error: &Error) -> bool {
        let is_unreadable = |error: &Error| match error {
            Error::Source { cause, .. } => is_unreadable(cause),
            _ => false,
        };
        self.options.skip_unreadable && is_unreadable(error)
    }

    /// A directory that cannot be listed stays in the image, empty.
    fn note_skipped(&self, number: u32, error: Error) {
        let mut batch = Batch::of(number, 0);
        batch.skipped.push(error);
        self.batches.put(batch);
    }

    /// Stats each name, sends the batch, and adds the subdirectories as jobs.
    fn stat_names(
        &self,
        open: &Arc<OpenDirectory>,
        names: &Names,
        worker: &mut Worker,
    ) -> Result<()> {
        // A lookup relative to the working directory is faster than one by path.
        let is_cwd = worker.can_chdir && rustix::process::fchdir(&open.fd).is_ok();
        let mut batch = Batch::of(open.number, names.count);
        let mut jobs = Vec::new();
        for name in names.iter() {
            match self.examine(open, name, is_cwd, &mut worker.buffers) {
                Ok(None) => {}
                Ok(Some((found, device))) => {
                    let is_elsewhere = self.options.one_file_system && device != self.device;
                    let directory = self.add_to_batch(name, found, &mut batch);
                    if let Some(number) = directory.filter(|_| !is_elsewhere) {
                        jobs.push(Job::List {
                            parent: Arc::clone(open),
                            name: name.to_owned(),
                            number,
                        });
                    }
                }
                Err(error) if self.is_skipped(&error) => batch.skipped.push(error),
                Err(error) => return Err(error),
            }
        }
        if self.batches.put(batch) && !jobs.is_empty() {
            self.stack.push(jobs);
        }
        Ok(())
    }

    /// Returns the number that a directory gets.
    fn add_to_batch(&self, name: &CStr, mut found: ScannedEntry, batch: &mut Batch) -> Option<u32> {
        let is_directory = found.metadata.is_directory();
        let number = is_directory.then(|| self.next_directory.fetch_add(1, Ordering::Relaxed));
        found.directory = number;
        batch.push(name.to_bytes(), found);
        number
    }
}

/// Whether an error means that a file is not readable or does not exist (any more).
fn is_unreadable(cause: &std::io::Error) -> bool {
    matches!(
        cause.kind(),
        std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::NotFound
    )
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
    use std::time::Duration;

    use pext4_block::Progress;
    use pext4_sync::{thread, time};

    use super::super::rules::Rules;
    use super::{Options, Scan, Source};

    #[test]
    fn nobody_waits_for_a_worker_that_panicked() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let source = Source::open(folder.path()).expect("it is there");
        let (rules, progress) = (Rules::default(), Progress::default());
        let options = Options {
            rules: &rules,
            threads: 2,
            skip_unreadable: false,
            one_file_system: false,
            leave_out: Vec::new(),
            progress: &progress,
        };
        let scan = Scan::new(&source, &options).expect("a root");
        let mut end = scan.begin_worker();
        assert!(scan.next_job(&mut end).is_some(), "the root");
        thread::scope(|scope| {
            thread::try_spawn_scoped(scope, || scan.work()).expect("a thread");
            let panicking = AssertUnwindSafe(move || {
                let _end = end;
                resume_unwind(Box::new("as a panic does"));
            });
            assert!(catch_unwind(panicking).is_err());
            let begin = time::now();
            let is_late = || time::now().saturating_sub(begin) > Duration::from_secs(20);
            let check = || {
                if is_late() {
                    Err("nothing ended it")
                } else {
                    Ok(())
                }
            };
            let taken = scan.batches.take_or_check(check);
            if taken.is_err() {
                // So that the test fails, and does not wait for the other worker.
                scan.stack.give_up();
            }
            assert!(matches!(taken, Ok(None)), "{:?}", taken.err());
        });
    }
}
