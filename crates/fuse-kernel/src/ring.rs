//! FUSE over `io_uring` (Linux 6.14): requests come through rings, one for each processor.
//!
//! The kernel has a queue for every possible processor, and sends a request through the queue of
//! the processor on which its caller runs. A thread that stays on that processor serves it, so
//! neither the request nor the reply crosses processors, and one system call replies and waits for
//! the next request. What has no reply, and interruptions, still come over `/dev/fuse`.
//!
//! Each queue has some entries: memory of the process into which the kernel writes a request and
//! from which it reads the reply. The memory is the kernel's or the process's in turn, which the
//! module `memory` proves with a token. Replies may be sent from any thread: the module `answer`.
//! A reply must not be written over a request that is still borrowed, so:
//!
//! - Of a small request, the thread copies all bytes before it serves it. The token goes into the
//!   reply, which may be written to the entry at any time and by any thread.
//! - A large request (a write of a page or more) is borrowed from the entry. The thread keeps the
//!   token, and the reply is staged elsewhere: it is a message to the thread, which reads its
//!   messages only when no request is served, and then writes the reply to the entry.
//!
//! In the handshake a server takes the rings before it can know whether they work, and from then on
//! the kernel holds back all requests until every queue has an entry. So if a ring cannot be made,
//! [`Agreed::start`] has the kernel give up the rings: a registration that fails does that, and
//! there is a ring for it that was made before the handshake. Then everything comes over
//! `/dev/fuse`.

mod answer;
mod command;
mod memory;
mod processors;
mod worker;

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, mpsc};

use io_uring::types::Fd;
use pext4_sync::thread::{self, JoinHandle};

pub(crate) use answer::Way;

use crate::device::Device;
use crate::handshake::Features;
use crate::session::Serve;
use answer::Shared;
use command::Ring;
use processors::Share;
use worker::Worker;

/// Requests of one queue that are served at a time. One would do for a server that replies before
/// it returns. Those that reply later, because a device or a commit makes them wait, occupy an
/// entry meanwhile, and the queue's next callers must not wait for them: perhaps one of these gives
/// free what they wait for. An entry needs address space for the longest request, but memory only
/// for what was used of it, and the kernel prefers the entry that was used last.
pub const DEPTH: usize = 64;

/// Rings that the server wants, and for which there is the means to give them up.
pub(crate) struct Probed(Ring);

impl fmt::Debug for Probed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Probed").finish_non_exhaustive()
    }
}

impl Probed {
    /// `None` if this process can make no ring, as in many containers.
    pub(crate) fn new() -> Option<Self> {
        Ring::builder().build(1).ok().map(Self)
    }

    /// The kernel agrees on these features, with payloads of at most `room` bytes.
    pub(crate) fn agreed(self, features: Features, room: usize) -> Agreed {
        Agreed {
            probed: self,
            features,
            room: room.max(MIN_ROOM),
        }
    }

    /// Has the kernel send requests over `/dev/fuse`. Only before the rings are ready.
    fn give_up(mut self, device: &Device) {
        let command = command::register_nothing(Fd(device.as_fd().as_raw_fd()));
        // SAFETY: the command uses no memory, and its file is open until it has completed.
        let pushed = unsafe { self.0.submission().push(&command) };
        if pushed.is_ok() {
            // If it fails, the connection has ended.
            let _ = self.0.submit_and_wait(1);
        }
    }
}

/// The least that the kernel accepts.
const MIN_ROOM: usize = 8192;

/// Rings on which the handshake has agreed.
#[derive(Debug)]
pub(crate) struct Agreed {
    probed: Probed,
    features: Features,
    room: usize,
}

impl Agreed {
    /// Has the kernel send all requests over `/dev/fuse`.
    pub(crate) fn give_up(self, device: &Device) {
        self.probed.give_up(device);
    }

    /// Starts the threads. If not all rings can be made, there may still be some, through which
    /// nothing comes.
    pub(crate) fn start<S: Serve + 'static>(self, device: &Arc<Device>, server: &Arc<S>) -> Rings {
        let mut rings = Rings {
            threads: Vec::new(),
            are_ready: false,
        };
        rings.are_ready = match processors::shares() {
            Ok(shares) => rings.spawn(shares, &self, device, server),
            Err(_) => false,
        };
        if !rings.are_ready {
            self.probed.give_up(device);
        }
        rings
    }
}

/// The threads of the rings.
pub(crate) struct Rings {
    threads: Vec<(Arc<Shared>, JoinHandle<io::Result<()>>)>,
    /// Whether requests come through them.
    pub(crate) are_ready: bool,
}

impl Rings {
    /// Whether all are ready.
    fn spawn<S: Serve + 'static>(
        &mut self,
        shares: Vec<Share>,
        agreed: &Agreed,
        device: &Arc<Device>,
        server: &Arc<S>,
    ) -> bool {
        let (report, reports) = mpsc::channel();
        let (count, features, room) = (shares.len(), agreed.features, agreed.room);
        for share in shares {
            let (device, server, report) = (Arc::clone(device), Arc::clone(server), report.clone());
            let started = Shared::new(&share.queues, DEPTH, room).and_then(|shared| {
                let shared = Arc::new(shared);
                let name = format!("pext4-ring-{}", share.processor.unwrap_or(0));
                let own = Arc::clone(&shared);
                let body = move || carry(own, &share, features, &device, &*server, report);
                Ok((shared, thread::try_spawn(&name, body)?))
            });
            self.threads.extend(started.ok());
        }
        drop(report);
        // A thread that ends without a report has failed; so have those that were not started.
        reports.iter().filter(|&is_whole| is_whole).count() == count
    }

    /// Waits until all threads have ended; the error of the first one that had any. `has_ended`
    /// says that the connection has, which a thread does not learn if all its entries are in use.
    pub(crate) fn join(self, has_ended: bool) -> io::Result<()> {
        let mut failed = Ok(());
        for (shared, thread) in self.threads {
            if has_ended {
                shared.end();
            }
            let ended = thread.join();
            failed = failed.and(ended.unwrap_or_else(|_| Err(io::Error::other("a panic"))));
        }
        failed
    }
}

/// The body of a ring's thread. It is no error if the ring cannot be made: there is `/dev/fuse`.
fn carry(
    shared: Arc<Shared>,
    share: &Share,
    agreed: Features,
    device: &Device,
    server: &impl Serve,
    report: mpsc::Sender<bool>,
) -> io::Result<()> {
    if let Some(processor) = share.processor {
        processors::stay_on(processor);
    }
    let started = Worker::start(device, shared, agreed);
    let is_whole = started.as_ref().is_ok_and(|(_, is_whole)| *is_whole);
    // The receiver waits for all reports, and for the end of all senders.
    let _ = report.send(is_whole);
    drop(report);
    started.map_or(Ok(()), |(worker, _)| worker.run(server))
}
