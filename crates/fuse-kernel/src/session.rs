//! A connection: the handshake, and the threads that carry its requests.

use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use pext4_sync::thread::{self, JoinHandle};
use zerocopy::FromBytes;

use crate::device::{Device, Notifier};
use crate::handshake::{Features, Wanted, shake_hands};
use crate::reply::{Carrier, Reply};
use crate::request::{Body, Forgotten, Message, Request};
use crate::ring::{Agreed, Probed};
use crate::wire::InHeader;

/// Bytes of a request beside those that it writes.
const HEADERS: usize = 4096;

/// What serves requests. The methods are called from several threads at once.
pub trait Serve: Send + Sync {
    /// Executes a request, and replies now or later.
    fn serve(&self, request: Request<'_>, reply: Reply);

    /// The kernel has forgotten nodes.
    fn forget(&self, forgotten: Forgotten<'_>);
}

/// A connection to the kernel.
pub struct Session {
    device: Arc<Device>,
    agreed: Features,
    max_write: usize,
    rings: Option<Agreed>,
}

impl fmt::Debug for Session {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Session").finish_non_exhaustive()
    }
}

impl Session {
    /// Shakes hands over the open `/dev/fuse` with which a directory was just mounted.
    ///
    /// # Errors
    ///
    /// Those of the device; or the kernel's version is too old.
    pub fn negotiate(device: OwnedFd, wanted: &Wanted) -> io::Result<Self> {
        let device = Device::new(device);
        let mut wanted = *wanted;
        let wants_rings = wanted.features.contains(Features::OVER_IO_URING);
        let probed = wants_rings.then(Probed::new).flatten();
        // What is taken cannot be given back in the handshake.
        wanted
            .features
            .set(Features::OVER_IO_URING, probed.is_some());
        let answer = shake_hands(&device, &wanted)?;
        let agreed = answer.features();
        let probed = probed.filter(|_| agreed.contains(Features::OVER_IO_URING));
        Ok(Self {
            device: Arc::new(device),
            agreed,
            max_write: wanted.max_write as usize,
            rings: probed.map(|probed| probed.agreed(agreed, answer.max_payload())),
        })
    }

    /// Whether the handshake agreed on [`Features::OVER_IO_URING`]. Then the kernel holds back
    /// requests until [`Session::run`] has made the rings or given them up; the threads of those
    /// that were made are named `pext4-ring-` with a number.
    #[must_use]
    pub fn is_over_io_uring(&self) -> bool {
        self.rings.is_some()
    }

    /// A sender of notifications.
    #[must_use]
    pub fn notifier(&self) -> Notifier {
        Notifier::new(Arc::clone(&self.device))
    }

    /// Serves requests until the directory is unmounted, on so many threads that read `/dev/fuse`;
    /// a thread that fails leaves the others the work. If requests come through rings, there is a
    /// thread for each processor, and only one reads `/dev/fuse`.
    ///
    /// # Errors
    ///
    /// That of the first thread that failed, when all have ended; or no thread can be started.
    pub fn run<S: Serve + 'static>(mut self, server: &Arc<S>, threads: usize) -> io::Result<()> {
        let mut readers = Readers::default();
        self.read(server, 0..threads.min(1), &mut readers);
        // Nothing comes through the rings before somebody can read what does not.
        let rings = self.rings.take().and_then(|agreed| {
            if readers.started.is_empty() {
                agreed.give_up(&self.device);
                return None;
            }
            Some(agreed.start(&self.device, server))
        });
        if !rings.as_ref().is_some_and(|rings| rings.are_ready) {
            self.read(server, 1..threads, &mut readers);
        }
        let (mut failed, has_ended) = readers.join();
        if let Some(rings) = rings {
            failed = failed.and(rings.join(has_ended));
        }
        failed
    }

    /// Starts threads that read `/dev/fuse`.
    fn read<S: Serve + 'static>(
        &self,
        server: &Arc<S>,
        numbers: Range<usize>,
        readers: &mut Readers,
    ) {
        for number in numbers {
            let device = match number {
                0 => Ok(Arc::clone(&self.device)),
                _ => self.device.of_same_connection().map(Arc::new),
            };
            let server = Arc::clone(server);
            let (agreed, room) = (self.agreed, HEADERS + self.max_write);
            let thread = device.and_then(|device| {
                let name = format!("pext4-fuse-{number}");
                thread::try_spawn(&name, move || serve_all(&device, &*server, agreed, room))
            });
            match thread {
                Ok(thread) => readers.started.push(thread),
                Err(error) => readers.refused = readers.refused.take().or(Some(error)),
            }
        }
    }
}

/// The threads that read `/dev/fuse`.
#[derive(Default)]
struct Readers {
    started: Vec<JoinHandle<io::Result<()>>>,
    /// Why one could not be started.
    refused: Option<io::Error>,
}

impl Readers {
    /// Waits until all have ended: the first error, and whether one has seen the connection's end.
    fn join(self) -> (io::Result<()>, bool) {
        // Fewer threads serve as well.
        let refused = self.refused.filter(|_| self.started.is_empty());
        let (mut failed, mut has_ended) = (refused.map_or(Ok(()), Err), false);
        for thread in self.started {
            let ended = thread.join();
            has_ended |= matches!(ended, Ok(Ok(())));
            failed = failed.and(ended.unwrap_or_else(|_| Err(io::Error::other("a panic"))));
        }
        (failed, has_ended)
    }
}

/// Serves what one open file receives. A panic of the server is an error in the end, and the thread
/// goes on: it may be the only one that learns what the kernel has forgotten.
fn serve_all(
    device: &Arc<Device>,
    server: &impl Serve,
    agreed: Features,
    room: usize,
) -> io::Result<()> {
    let mut buffer = vec![0; room];
    let mut failed = Ok(());
    while let Some(length) = device.read(&mut buffer)? {
        let served = catch_unwind(AssertUnwindSafe(|| {
            serve(device, server, agreed, &buffer[..length])
        }));
        failed = failed.and(served.map_err(|_| io::Error::other("a panic")));
    }
    failed
}

fn serve(device: &Arc<Device>, server: &impl Serve, agreed: Features, message: &[u8]) {
    // Without a header there is nobody to reply to.
    let Ok((header, body)) = InHeader::read_from_prefix(message) else {
        return;
    };
    let reply = |header: &InHeader| {
        let carrier = Carrier::Device(Arc::clone(device));
        Reply::new(header.unique, carrier)
    };
    match Message::decode(&header, Body::joined(body), agreed) {
        Ok(Message::Call(request)) => server.serve(request, reply(&header)),
        Ok(Message::Forget(forgotten)) => server.forget(forgotten),
        Err(_) => drop(reply(&header)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use zerocopy::{FromBytes, FromZeros, IntoBytes};

    use super::{Device, Features, Forgotten, InHeader, Reply, Request, Serve, serve_all};
    use crate::wire::{OutHeader, opcode};

    /// Panics at the first thing that is forgotten.
    struct Fragile(AtomicU32);

    impl Serve for Fragile {
        fn serve(&self, _: Request<'_>, reply: Reply) {
            reply.done();
        }

        fn forget(&self, _: Forgotten<'_>) {
            assert_ne!(self.0.fetch_add(1, Ordering::Relaxed), 0, "the first");
        }
    }

    fn message(opcode: u32, unique: u64, body: &[u8]) -> Vec<u8> {
        let mut header = InHeader::new_zeroed();
        (header.opcode, header.unique) = (opcode, unique);
        [header.as_bytes(), body].concat()
    }

    #[test]
    fn a_panic_or_an_odd_message_does_not_end_the_thread() {
        // As of the device, a read takes one message.
        let (kernel, device) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .expect("Linux has them");
        for message in [
            message(opcode::FORGET, 1, &[1; 8]),
            message(opcode::FORGET, 2, &[1; 8]),
            vec![7; 10],
            message(opcode::LOOKUP, 3, b"no end"),
            message(opcode::READLINK, 4, &[]),
        ] {
            rustix::io::write(&kernel, &message).expect("there is room");
        }
        let serving = std::thread::spawn(move || {
            let (device, server) = (Arc::new(Device::new(device)), Fragile(AtomicU32::new(0)));
            let ended = serve_all(&device, &server, Features::empty(), 4096);
            (ended.is_err(), server.0.into_inner())
        });
        let replies = [3, 4].map(|unique| {
            let mut reply = [0; 64];
            let length = rustix::io::read(&kernel, &mut reply).expect("it replies");
            let header = OutHeader::read_from_bytes(&reply[..length]).expect("nothing else");
            assert_eq!(header.unique, unique);
            header.error
        });
        assert_eq!(replies, [-5, 0]);
        drop(kernel);
        let (has_failed, forgotten) = serving.join().expect("it goes on");
        assert!(has_failed, "the panic is told in the end");
        assert_eq!(forgotten, 2);
    }
}
