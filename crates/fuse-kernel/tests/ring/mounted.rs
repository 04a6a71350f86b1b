//! A file system with one file in memory, and what mounts it.

use std::ffi::CString;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use pext4_fuse_kernel::{
    Attributes, Entry, Features, Forgotten, Listing, Notifier, Operation, Reply, Request, Serve,
    Session, Statfs, Wanted,
};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use tempfile::TempDir;

/// The name of the file.
pub const FILE: &str = "file";

const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";
const ROOT: u64 = 1;
const NODE: u64 = 2;
const NO_SUCH_FILE: i32 = 2;
const NOT_PERMITTED: i32 = 1;
const NOT_SUPPORTED: i32 = 38;
const INTERRUPTION: u32 = 36;

/// Bytes that differ with the seed.
pub fn content(size: usize, seed: u8) -> Vec<u8> {
    let mut state = u32::from(seed) + 1;
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..size).map(next).collect()
}

/// Threads of this process that carry rings.
pub fn ring_threads() -> usize {
    let tasks = fs::read_dir("/proc/self/task").expect("Linux has it");
    let names = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.starts_with("pext4-ring-")).count()
}

/// When and where replies are sent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Sending {
    /// At once, by the thread that serves.
    AtOnce,
    /// After a while, by another thread.
    Later,
    /// By another thread, which the serving one waits for.
    FromElsewhere,
}

type Job = Box<dyn FnOnce() + Send>;

/// The server.
pub struct Server {
    pub content: Mutex<Vec<u8>>,
    /// The target of the link that was to be made last.
    pub target: Mutex<Vec<u8>>,
    /// Replies that are not sent.
    pub held: Mutex<Vec<Reply>>,
    /// Requests by the way that they came. Interruptions, which always come over the device, are
    /// not counted: anything that the kernel wants a caller to do makes one.
    pub through_rings: AtomicU64,
    pub over_device: AtomicU64,
    sending: Mutex<Sending>,
    jobs: Mutex<mpsc::Sender<Job>>,
}

impl Server {
    fn new() -> Arc<Self> {
        let (sender, jobs) = mpsc::channel::<Job>();
        thread::spawn(move || jobs.into_iter().for_each(|job| job()));
        Arc::new(Self {
            content: Mutex::default(),
            target: Mutex::default(),
            held: Mutex::default(),
            through_rings: AtomicU64::new(0),
            over_device: AtomicU64::new(0),
            sending: Mutex::new(Sending::AtOnce),
            jobs: Mutex::new(sender),
        })
    }

    pub fn set_sending(&self, sending: Sending) {
        *self.sending.lock().expect("no panic") = sending;
    }

    fn sending(&self) -> Sending {
        *self.sending.lock().expect("no panic")
    }

    /// Sends a reply.
    fn reply(&self, send: impl FnOnce() + Send + 'static) {
        let enqueue = |job| {
            self.jobs
                .lock()
                .expect("no panic")
                .send(job)
                .expect("it runs")
        };
        match self.sending() {
            Sending::Later => enqueue(Box::new(|| {
                thread::sleep(Duration::from_micros(100));
                send();
            })),
            Sending::FromElsewhere => {
                let (sent, is_sent) = mpsc::channel();
                enqueue(Box::new(move || {
                    send();
                    let _ = sent.send(());
                }));
                let _ = is_sent.recv();
            }
            Sending::AtOnce => send(),
        }
    }

    fn attributes(&self, node: u64) -> Attributes {
        let size = match node {
            NODE => self.content.lock().expect("no panic").len() as u64,
            _ => 0,
        };
        Attributes {
            inode: node,
            size,
            mode: if node == ROOT { 0o040_755 } else { 0o100_644 },
            links: 1,
            block_size: 4096,
            ..Attributes::default()
        }
    }

    fn look_up(&self, name: &[u8], reply: Reply) {
        match name {
            b"file" => reply.entry(&Entry {
                node: NODE,
                generation: 0,
                name_valid: Duration::from_secs(60),
                valid: Duration::from_secs(60),
                attributes: self.attributes(NODE),
            }),
            b"panic" => panic!("as is wanted"),
            _ if name.starts_with(b"held") => self.held.lock().expect("no panic").push(reply),
            _ => reply.error(NO_SUCH_FILE),
        }
    }

    fn read(&self, offset: u64, size: u32, reply: Reply) {
        let content = self.content.lock().expect("no panic");
        let begin = content.len().min(offset as usize);
        let end = content.len().min(begin + size as usize);
        let bytes = content[begin..end].to_vec();
        drop(content);
        self.reply(move || reply.bytes(&bytes));
    }

    fn write(&self, offset: u64, data: &[u8], reply: Reply) {
        let (begin, end) = (offset as usize, offset as usize + data.len());
        // A reply that came while the request was borrowed would change the data.
        let write = || {
            let mut content = self.content.lock().expect("no panic");
            let length = content.len().max(end);
            content.resize(length, 0);
            content[begin..end].copy_from_slice(data);
        };
        let size = data.len() as u32;
        if self.sending() == Sending::FromElsewhere {
            let before = data.to_vec();
            write();
            self.reply(move || reply.written(size));
            assert!(before == data, "the reply was written over the request");
        } else {
            write();
            self.reply(move || reply.written(size));
        }
    }

    fn list(&self, cookie: u64, size: u32, reply: Reply) {
        let mut listing = Listing::new(size);
        if cookie == 0 {
            listing.add(NODE, 1, 0o100_644, FILE.as_bytes());
        }
        reply.bytes(listing.bytes());
    }
}

impl Serve for Server {
    fn serve(&self, request: Request<'_>, reply: Reply) {
        let counter = match request.is_through_ring {
            true => &self.through_rings,
            false => &self.over_device,
        };
        if !matches!(request.operation, Operation::Other(INTERRUPTION)) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
        match request.operation {
            Operation::Lookup { name } => self.look_up(name, reply),
            Operation::GetAttributes { .. } => {
                reply.attributes(Duration::ZERO, &self.attributes(request.node));
            }
            Operation::SetAttributes(set) => {
                if let Some(size) = set.size {
                    self.content
                        .lock()
                        .expect("no panic")
                        .resize(size as usize, 0);
                }
                reply.attributes(Duration::ZERO, &self.attributes(request.node));
            }
            Operation::MakeSymlink { target, .. } => {
                *self.target.lock().expect("no panic") = target.to_vec();
                reply.error(NOT_PERMITTED);
            }
            Operation::Read { offset, size, .. } => self.read(offset, size, reply),
            Operation::Write { offset, data, .. } => self.write(offset, data, reply),
            Operation::List { cookie, size, .. } => self.list(cookie, size, reply),
            Operation::Statfs => reply.statfs(&Statfs::default()),
            Operation::Sync { .. } | Operation::Destroy => reply.done(),
            _ => reply.error(NOT_SUPPORTED),
        }
    }

    fn forget(&self, _: Forgotten<'_>) {}
}

/// A machine whose kernel offers rings, until this is dropped. There is one at a time.
pub struct Machine {
    before: String,
    _alone: MutexGuard<'static, ()>,
}

impl Machine {
    /// `None`, and a loud word about it, if it has none.
    pub fn with_rings() -> Option<Self> {
        static ALONE: Mutex<()> = Mutex::new(());
        // Another test may have failed.
        let alone = ALONE.lock().unwrap_or_else(|poison| poison.into_inner());
        let skipped = |why: &str| {
            eprintln!("SKIPPED: {why}");
            None
        };
        if !rustix::process::geteuid().is_root() {
            return skipped("this needs root");
        }
        if !Path::new("/dev/fuse").exists() {
            return skipped("there is no /dev/fuse");
        }
        let Ok(before) = fs::read_to_string(PARAMETER) else {
            return skipped("this kernel has no FUSE over io_uring");
        };
        if fs::write(PARAMETER, "Y").is_err() {
            return skipped("FUSE over io_uring cannot be enabled");
        }
        let machine = Self {
            before,
            _alone: alone,
        };
        let negotiated = machine.negotiate(Features::OVER_IO_URING);
        if !negotiated.session.is_over_io_uring() {
            return skipped("the kernel or this process has no rings");
        }
        drop(negotiated);
        Some(machine)
    }

    /// Mounts, and shakes hands.
    pub fn negotiate(&self, features: Features) -> Negotiated {
        let device = OpenOptions::new().read(true).write(true).open("/dev/fuse");
        let device = device.expect("root may open it");
        let directory = Directory(tempfile::tempdir().expect("there is room"));
        let number = device.as_raw_fd();
        let options = format!("fd={number},rootmode=40755,user_id=0,group_id=0");
        let options = CString::new(options).expect("it has no zero byte");
        let flags = MountFlags::NODEV | MountFlags::NOSUID;
        mount("ring", directory.0.path(), "fuse", flags, &*options).expect("root may mount");
        let wanted = Wanted {
            features: features
                | Features::NO_OPEN
                | Features::NO_OPEN_DIRECTORY
                | Features::BIG_WRITES
                | Features::MAX_PAGES
                | Features::ASYNC_READ
                | Features::ASYNC_DIRECT
                | Features::PARALLEL_DIRECTORIES,
            max_write: 1 << 20,
            max_background: 64,
            time_granularity: Duration::from_nanos(1),
        };
        Negotiated {
            session: Session::negotiate(device.into(), &wanted).expect("it is new enough"),
            directory,
        }
    }

    /// Mounts and serves, with so many threads that read the device.
    pub fn mount(&self, features: Features, threads: usize) -> Mounted {
        self.negotiate(features).run(threads)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = fs::write(PARAMETER, self.before.trim());
    }
}

/// A directory that is unmounted when it is dropped.
struct Directory(TempDir);

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = unmount(self.0.path(), UnmountFlags::FORCE | UnmountFlags::DETACH);
    }
}

/// A connection after the handshake.
pub struct Negotiated {
    pub session: Session,
    directory: Directory,
}

impl Negotiated {
    /// Serves with so many threads that read the device.
    pub fn run(self, threads: usize) -> Mounted {
        let server = Server::new();
        let (notifier, served) = (self.session.notifier(), Arc::clone(&server));
        let runner = thread::spawn(move || self.session.run(&served, threads));
        Mounted {
            directory: self.directory,
            notifier,
            server,
            runner,
        }
    }
}

/// The mounted file system.
pub struct Mounted {
    directory: Directory,
    notifier: Notifier,
    pub server: Arc<Server>,
    runner: JoinHandle<io::Result<()>>,
}

impl Mounted {
    /// Waits until requests come through the rings, and counts from there: those from before the
    /// rings were ready come over the device.
    pub fn count_from_rings_on(&self) {
        let missing = self.directory().join("missing");
        let is_ready = |_| {
            let _ = fs::metadata(&missing);
            self.server.through_rings.load(Ordering::Relaxed) > 0
        };
        assert!((0..1000).any(is_ready), "no request comes through a ring");
        self.server.over_device.store(0, Ordering::Relaxed);
    }

    pub fn directory(&self) -> &Path {
        self.directory.0.path()
    }

    pub fn file(&self) -> PathBuf {
        self.directory().join(FILE)
    }

    /// Makes the kernel read the file's content again.
    pub fn invalidate(&self) {
        self.notifier
            .invalidate(NODE, 0)
            .expect("it knows the node");
    }

    /// Unmounts; what the session returns then.
    pub fn end(self, flags: UnmountFlags) -> io::Result<()> {
        unmount(self.directory(), flags).expect("nobody uses it");
        let begin = Instant::now();
        while !self.runner.is_finished() {
            assert!(begin.elapsed() < Duration::from_secs(20), "it goes on");
            thread::sleep(Duration::from_millis(1));
        }
        self.runner.join().expect("no panic")
    }
}
