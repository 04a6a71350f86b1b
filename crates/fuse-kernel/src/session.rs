//! A connection: the handshake, and the threads that carry its requests.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use pext4_sync::thread;
use zerocopy::FromBytes;

use crate::device::{Device, Notifier};
use crate::handshake::{Wanted, shake_hands};
use crate::reply::{Carrier, Reply};
use crate::request::{Forgotten, Message, Request};
use crate::wire::InHeader;

/// Bytes of a request beside those that it writes.
const HEADERS: usize = 4096;
/// Input/output error: the reply to a request that cannot be understood.
const IO_ERROR: i32 = 5;

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
    max_write: usize,
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
        shake_hands(&device, wanted)?;
        Ok(Self {
            device: Arc::new(device),
            max_write: wanted.max_write as usize,
        })
    }

    /// A sender of notifications.
    #[must_use]
    pub fn notifier(&self) -> Notifier {
        Notifier::new(Arc::clone(&self.device))
    }

    /// Serves requests on so many threads until the directory is unmounted. A thread that fails
    /// leaves the others the work.
    ///
    /// # Errors
    ///
    /// That of the first thread that failed, when all have ended; or no thread can be started.
    pub fn run<S: Serve + 'static>(self, server: &Arc<S>, threads: usize) -> io::Result<()> {
        let mut started = Vec::new();
        let mut failed = Ok(());
        for number in 0..threads {
            let device = match number {
                0 => Ok(Arc::clone(&self.device)),
                _ => self.device.of_same_connection().map(Arc::new),
            };
            let server = Arc::clone(server);
            let room = HEADERS + self.max_write;
            let thread = device.and_then(|device| {
                let name = format!("pext4-fuse-{number}");
                thread::try_spawn(&name, move || serve_all(&device, &*server, room))
            });
            match thread {
                Ok(thread) => started.push(thread),
                Err(error) => failed = failed.and(Err(error)),
            }
        }
        if !started.is_empty() {
            // Fewer threads serve as well.
            failed = Ok(());
        }
        for thread in started {
            let ended = thread.join();
            failed = failed.and(ended.unwrap_or_else(|_| Err(io::Error::other("a panic"))));
        }
        failed
    }
}

/// Serves what one open file receives.
fn serve_all(device: &Arc<Device>, server: &impl Serve, room: usize) -> io::Result<()> {
    let mut buffer = vec![0; room];
    while let Some(length) = device.read(&mut buffer)? {
        let (header, body) = InHeader::read_from_prefix(&buffer[..length])
            .map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
        match Message::decode(&header, body) {
            Ok(Message::Call(request)) => {
                let carrier = Carrier::Device(Arc::clone(device));
                server.serve(request, Reply::new(header.unique, carrier));
            }
            Ok(Message::Forget(forgotten)) => server.forget(forgotten),
            Err(_) => device.send(header.unique, -IO_ERROR, [&[], &[]])?,
        }
    }
    Ok(())
}
