//! Reading the names and attributes of a directory of the host, with all threads.
//!
//! A job is a directory to list, or a part of a large directory's names to ask for their attributes.
//! Jobs lie on a stack, so that few directories are open at a time; a directory stays open while
//! jobs for what it holds are left. What a job finds goes to the caller as a *batch*; a directory's
//! batch is always sent before the directories in it are listed, so that the caller knows a parent
//! before its children. The order of batches means nothing: names are sorted later.
//!
//! Symbolic links are never followed, neither here nor when contents are read.

mod entry;

use std::ffi::{CStr, CString};
use std::fs::File;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pext4_sync::atomic::{AtomicBool, AtomicU32, Ordering};
use pext4_sync::{Class, Condvar, Mutex, thread};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RawDir, StatxFlags};
use rustix::io::Errno;

use super::error::{Error, Result};
use super::progress::{Progress, Verdict};
use super::queue::Queue;
use super::rules::Rules;
use entry::Reach;
pub(super) use entry::{Found, LinkKey};

/// Names of a large directory that one job asks for.
const NAMES_PER_JOB: usize = 512;
/// Bytes of a directory that are read at a time.
const LISTING: usize = 64 << 10;
/// Batches that wait for the caller.
const WAITING: usize = 256;

/// A directory of the host as a source.
pub(super) struct Source {
    /// Its path, for messages and for attributes.
    pub path: PathBuf,
    pub root: OwnedFd,
}

/// How to read it.
pub(super) struct Options<'a> {
    pub rules: &'a Rules,
    pub threads: usize,
    pub skip_unreadable: bool,
    /// Stay on the file system of the root.
    pub one_file_system: bool,
    /// Files that are left out, by device and number: the image itself, old and new.
    pub leave_out: Vec<(u64, u64)>,
    pub progress: &'a Progress,
}

/// Some of the names of one directory.
pub(super) struct Batch {
    /// The directory, by the number that was given to it; 0 is the root.
    pub directory: u32,
    pub names: Vec<u8>,
    pub found: Vec<Found>,
    /// Names that were left out because they could not be read.
    pub skipped: u64,
}

/// A directory that is open.
struct Open {
    fd: OwnedFd,
    number: u32,
    /// Its path from the root of the source.
    path: Vec<u8>,
}

enum Job {
    List {
        parent: Arc<Open>,
        name: CString,
        number: u32,
    },
    Ask {
        directory: Arc<Open>,
        names: Names,
    },
}

/// Names of one directory, one behind the other.
#[derive(Default)]
struct Names {
    /// Each with the zero behind it.
    bytes: Vec<u8>,
    count: usize,
}

impl Names {
    fn push(&mut self, name: &CStr) {
        self.bytes.extend_from_slice(name.to_bytes_with_nul());
        self.count += 1;
    }

    fn iter(&self) -> impl Iterator<Item = &CStr> {
        let names = self.bytes.split_inclusive(|&byte| byte == 0);
        names.filter_map(|name| CStr::from_bytes_with_nul(name).ok())
    }
}

/// What one thread has for itself.
struct Worker {
    buffers: entry::Buffers,
    /// Whether it can go to a directory without taking the process along.
    may_stand: bool,
}

/// Jobs, and how many are being done.
struct Stack {
    state: Mutex<(Vec<Job>, usize)>,
    changed: Condvar,
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

    /// What the root itself is.
    pub fn root_entry(&self, rules: &Rules) -> Result<Found> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::NO_AUTOMOUNT;
        let stat = rustix::fs::statx(&self.root, c"", flags, StatxFlags::BASIC_STATS)
            .map_err(|errno| Error::source(&self.path, "read its attributes", errno))?;
        entry::of_root(&self.path, &stat, rules)
    }

    /// Reads all names below the root; `take` gets every batch, in the caller's thread.
    pub fn read(
        &self,
        options: &Options<'_>,
        mut take: impl FnMut(Batch) -> Result<()>,
    ) -> Result<()> {
        let fd = self
            .root
            .try_clone()
            .map_err(|cause| Error::source(&self.path, "open it again", cause))?;
        let root = Arc::new(Open {
            fd,
            number: 0,
            path: Vec::new(),
        });
        let device = device_of(&root.fd)
            .map_err(|errno| Error::source(&self.path, "read its attributes", errno))?;
        let scan = Scan {
            source: self,
            options,
            device,
            stack: Stack {
                state: Mutex::new(Class::Leaf, (Vec::new(), 0)),
                changed: Condvar::new(),
            },
            batches: Queue::new(WAITING),
            next_directory: AtomicU32::new(1),
            workers: AtomicU32::new(u32::try_from(options.threads).unwrap_or(1)),
            has_begun: AtomicBool::new(false),
            verdict: Verdict::new(),
        };
        scan.stack.push([Job::List {
            parent: root,
            name: CString::default(),
            number: 0,
        }]);
        thread::scope(|scope| {
            for _ in 0..options.threads {
                if let Err(cause) = thread::try_spawn_scoped(scope, || scan.work()) {
                    scan.go_without(cause);
                }
            }
            while let Some(batch) = scan.batches.take() {
                let found = batch.found.len() as u64;
                if let Err(error) = take(batch).and_then(|()| options.progress.check()) {
                    scan.give_up(error);
                }
                options.progress.add(found, 0);
            }
        });
        scan.verdict.finish()
    }
}

fn device_of(fd: &OwnedFd) -> rustix::io::Result<u64> {
    rustix::fs::fstat(fd).map(|stat| stat.st_dev)
}

/// All that the threads of one reading share.
struct Scan<'a> {
    source: &'a Source,
    options: &'a Options<'a>,
    device: u64,
    stack: Stack,
    batches: Queue<Batch>,
    next_directory: AtomicU32,
    /// Threads that still work; the last one closes the queue.
    workers: AtomicU32,
    /// Whether there was one.
    has_begun: AtomicBool,
    verdict: Verdict,
}

impl Stack {
    fn push(&self, jobs: impl IntoIterator<Item = Job>) {
        self.state.lock().0.extend(jobs);
        self.changed.notify_all();
    }

    /// The next job; `None` once there is none and none can come.
    fn pop(&self, was_working: bool) -> Option<Job> {
        let mut state = self.state.lock();
        if was_working {
            state.1 -= 1;
        }
        loop {
            if let Some(job) = state.0.pop() {
                state.1 += 1;
                return Some(job);
            }
            if state.1 == 0 {
                self.changed.notify_all();
                return None;
            }
            self.changed.wait(&mut state);
        }
    }

    fn clear(&self) {
        self.state.lock().0.clear();
    }
}

impl Scan<'_> {
    fn work(&self) {
        self.has_begun.store(true, Ordering::Release);
        let mut worker = Worker {
            buffers: entry::Buffers::new(),
            may_stand: thread::own_working_directory().is_ok(),
        };
        let mut listing = vec![MaybeUninit::uninit(); LISTING];
        let mut was_working = false;
        while let Some(job) = self.stack.pop(was_working) {
            was_working = true;
            if self.verdict.has_failed() {
                continue;
            }
            let done = match job {
                Job::List {
                    parent,
                    name,
                    number,
                } => self.list(&parent, &name, number, &mut listing, &mut worker),
                Job::Ask { directory, names } => self.ask(&directory, &names, &mut worker),
            };
            if let Err(error) = done {
                self.give_up(error);
            }
        }
        self.leave();
    }

    /// Counts a thread that works no more; whether it was the last one.
    fn leave(&self) -> bool {
        let is_last = self.workers.fetch_sub(1, Ordering::AcqRel) == 1;
        if is_last {
            self.batches.close();
        }
        is_last
    }

    /// Counts a thread that the system did not start. The others do its work; without any there is nobody.
    fn go_without(&self, cause: std::io::Error) {
        if self.leave() && !self.has_begun.load(Ordering::Acquire) {
            self.give_up(Error::source(
                &self.source.path,
                "start a thread to read it",
                cause,
            ));
        }
    }

    fn give_up(&self, error: Error) {
        self.verdict.note(error);
        self.stack.clear();
        self.batches.abandon();
    }

    fn shown(&self, directory: &[u8], name: &[u8]) -> PathBuf {
        let below = entry::joined(directory, name);
        self.source
            .path
            .join(Path::new(std::ffi::OsStr::from_bytes(&below)))
    }

    /// Reads the names of a directory, and asks for the last of them; the others are left to
    /// whoever is free while the reading goes on.
    fn list(
        &self,
        parent: &Arc<Open>,
        name: &CStr,
        number: u32,
        listing: &mut [MaybeUninit<u8>],
        worker: &mut Worker,
    ) -> Result<()> {
        let open = match self.open(parent, name, number) {
            Ok(open) => open,
            Err(Error::Source { cause, .. })
                if self.options.skip_unreadable && number > 0 && is_unreadable(&cause) =>
            {
                self.note_skipped(number);
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
                self.stack.push([Job::Ask {
                    directory: Arc::clone(&open),
                    names: std::mem::take(&mut names),
                }]);
            }
            names.push(name);
        }
        self.ask(&open, &names, worker)
    }

    fn open(&self, parent: &Arc<Open>, name: &CStr, number: u32) -> Result<Arc<Open>> {
        if number == 0 {
            return Ok(Arc::clone(parent));
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&parent.fd, name, flags, Mode::empty()).map_err(|errno| {
            Error::source(self.shown(&parent.path, name.to_bytes()), "open it", errno)
        })?;
        Ok(Arc::new(Open {
            fd,
            number,
            path: entry::joined(&parent.path, name.to_bytes()),
        }))
    }

    /// A directory that cannot be listed stays, empty.
    fn note_skipped(&self, number: u32) {
        self.batches.put(Batch {
            directory: number,
            names: Vec::new(),
            found: Vec::new(),
            skipped: 1,
        });
    }

    /// Asks what each name is, hands that on, and leaves the directories among them as jobs.
    fn ask(&self, open: &Arc<Open>, names: &Names, worker: &mut Worker) -> Result<()> {
        // The kernel finds a name from where the thread stands faster than by its path.
        let stands = worker.may_stand && rustix::process::fchdir(&open.fd).is_ok();
        let mut batch = Batch {
            directory: open.number,
            names: Vec::new(),
            found: Vec::with_capacity(names.count),
            skipped: 0,
        };
        let mut jobs = Vec::new();
        for name in names.iter() {
            match self.find(open, name, stands, &mut worker.buffers) {
                Ok(None) => {}
                Ok(Some(found)) => self.enter(open, name, found, &mut batch, &mut jobs),
                Err(Error::Source { cause, .. })
                    if self.options.skip_unreadable && is_unreadable(&cause) =>
                {
                    batch.skipped += 1;
                }
                Err(error) => return Err(error),
            }
        }
        if self.batches.put(batch) && !jobs.is_empty() {
            self.stack.push(jobs);
        }
        Ok(())
    }

    fn enter(
        &self,
        open: &Arc<Open>,
        name: &CStr,
        mut found: Found,
        batch: &mut Batch,
        jobs: &mut Vec<Job>,
    ) {
        let start = batch.names.len();
        batch.names.extend_from_slice(name.to_bytes());
        found.name = start..batch.names.len();
        let is_directory = found.facts.mode & 0o170_000 == 0o040_000;
        if is_directory {
            let number = self.next_directory.fetch_add(1, Ordering::Relaxed);
            found.directory = Some(number);
            if !(self.options.one_file_system && found.device != self.device) {
                jobs.push(Job::List {
                    parent: Arc::clone(open),
                    name: name.to_owned(),
                    number,
                });
            }
        }
        batch.found.push(found);
    }

    /// What a name is; `None` if it is left out. `stands`: the thread's working directory is that of the name.
    fn find(
        &self,
        open: &Open,
        name: &CStr,
        stands: bool,
        buffers: &mut entry::Buffers,
    ) -> Result<Option<Found>> {
        let rules = self.options.rules;
        if rules.want_paths() && rules.excludes(&entry::joined(&open.path, name.to_bytes())) {
            return Ok(None);
        }
        let failed = |action| {
            move |errno: Errno| {
                Error::source(self.shown(&open.path, name.to_bytes()), action, errno)
            }
        };
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
        let stat = rustix::fs::statx(&open.fd, name, flags, StatxFlags::BASIC_STATS)
            .map_err(failed("read its attributes"))?;
        let mut found = Found::of(&stat);
        let own = (found.device, stat.stx_ino);
        if self.options.leave_out.contains(&own) {
            return Ok(None);
        }
        match FileType::from_raw_mode(u32::from(stat.stx_mode)) {
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(&open.fd, name, Vec::new())
                    .map_err(failed("read where it leads"))?;
                found.facts.size = target.as_bytes().len() as u64;
                found.target = Some(target.into_bytes().into_boxed_slice());
            }
            FileType::RegularFile => self.look_into(open, name, &stat, &mut found)?,
            _ => {}
        }
        let shown = || self.shown(&open.path, name.to_bytes());
        let reach = match stands {
            true => Reach::Standing(name),
            false => Reach::Path(entry::Context {
                source: &self.source.path,
                folder: &open.path,
                fd: &open.fd,
                name,
            }),
        };
        found.attributes = buffers
            .attributes(&reach, rules)
            .map_err(|errno| Error::source(shown(), "read its extended attributes", errno))?;
        Ok(Some(found))
    }

    /// Finds the holes of a file, and whether it can be read where that may be a reason to skip it.
    fn look_into(
        &self,
        open: &Open,
        name: &CStr,
        stat: &rustix::fs::Statx,
        found: &mut Found,
    ) -> Result<()> {
        let may_have_holes =
            stat.stx_size > 0 && stat.stx_blocks.saturating_mul(512) < stat.stx_size;
        if !may_have_holes && !self.options.skip_unreadable {
            return Ok(());
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let failed =
            |errno: Errno| Error::source(self.shown(&open.path, name.to_bytes()), "open it", errno);
        let fd = rustix::fs::openat(&open.fd, name, flags, Mode::empty()).map_err(failed)?;
        if may_have_holes {
            let file = File::from(fd);
            found.segments = entry::segments(&file, stat.stx_size).map_err(|cause| {
                Error::source(
                    self.shown(&open.path, name.to_bytes()),
                    "find its holes",
                    cause,
                )
            })?;
        }
        Ok(())
    }
}

/// Whether an error says that something may not be read or is not there (any more).
fn is_unreadable(cause: &std::io::Error) -> bool {
    matches!(
        cause.kind(),
        std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::NotFound
    )
}
