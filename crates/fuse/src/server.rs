//! A mounted volume, from the mount until the image is closed.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use pext4_fs::Volume;
use pext4_fuse_kernel::Session;
use pext4_sync::{thread, topology};
use thiserror::Error;

use crate::access_policy::AccessPolicy;
use crate::dispatch::Dispatch;
use crate::error_log::ErrorLog;
use crate::mount::{self, Connection, MountError, Source, Unmounter};
use crate::options::KernelOptions;
use crate::requests::{KernelCache, Requests};

/// Bounds of the number of threads that serve requests. Each further thread makes it more expensive
/// for the kernel to select one.
const MIN_THREADS: usize = 2;
const MAX_THREADS: usize = 4;

/// An error at the end of a mount.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EndError {
    /// The transport failed before the directory was unmounted.
    #[error("the connection to the kernel failed: {0}")]
    Connection(#[source] io::Error),
    /// The volume was not closed cleanly; the next mount replays its journal, if it has one.
    #[error("the image was not closed cleanly: {0}")]
    Close(#[source] pext4_fs::Error),
    /// A thread still uses the volume after a second; everything written so far is durable.
    #[error(
        "a thread of the server has not ended; what was written so far is durable, and the next \
         mount replays the journal"
    )]
    StillInUse,
}

/// A volume that is mounted on a directory. If the server is dropped without [`Server::wait`], the
/// mount is served until it is unmounted, and errors of closing the volume are lost; if the process
/// ends before, the next mount replays the journal.
#[must_use = "only `wait` reports whether the image was closed"]
pub struct Server {
    volume: Arc<Volume>,
    serving: Serving,
}

/// The connection over which a volume is served.
struct ServedVolume {
    kernel: KernelCache,
    volume: Weak<Volume>,
}

impl Connection for ServedVolume {
    fn is_connected(&self) -> bool {
        self.kernel.is_connected()
    }

    fn flush_pages(&self) {
        self.kernel.release_all_pages(&self.volume);
    }
}

/// What serves a directory since it was mounted.
struct Serving {
    session: JoinHandle<io::Result<()>>,
    unmounter: Unmounter,
    is_over_io_uring: bool,
}

impl Server {
    /// Mounts `volume` on `directory`, a path without symbolic links (as [`mount::check`] returns
    /// it), and starts to serve. `source` is shown as the device.
    ///
    /// # Errors
    ///
    /// Why it could not be mounted; the volume is then closed.
    pub fn mount(
        volume: Volume,
        directory: &Path,
        source: &Source,
        options: &KernelOptions,
        error_log: Arc<ErrorLog>,
    ) -> Result<Self, MountError> {
        let volume = Arc::new(volume);
        let started = Self::start(&volume, directory, source, options, error_log);
        match started {
            Ok(serving) => Ok(Self { volume, serving }),
            Err(error) => {
                // The error of the mount is the one to report; if closing fails, the next mount
                // replays the journal.
                let _ = close(volume);
                Err(error)
            }
        }
    }

    fn start(
        volume: &Arc<Volume>,
        directory: &Path,
        source: &Source,
        options: &KernelOptions,
        error_log: Arc<ErrorLog>,
    ) -> Result<Serving, MountError> {
        let options = KernelOptions {
            read_only: options.read_only || volume.is_read_only(),
            ..options.clone()
        };
        let access_policy = AccessPolicy::for_mount(&options);
        let dispatch = Arc::new(Dispatch::new(Arc::clone(volume), error_log, &options));
        let requests = Requests::new(dispatch, access_policy, &options)
            .map_err(|error| MountError::System(directory.to_owned(), error))?;
        let device = mount::attach(directory, source, &options, access_policy)?;
        let kernel = requests.kernel();
        let session = Session::negotiate(device, &requests.wanted());
        let started = session.and_then(|session| {
            kernel.connect(session.notifier());
            let is_over_io_uring = session.is_over_io_uring();
            let requests = Arc::new(requests);
            let serve = move || session.run(&requests, thread_count());
            Ok((thread::try_spawn("pext4-session", serve)?, is_over_io_uring))
        });
        let connection = ServedVolume {
            kernel,
            volume: Arc::downgrade(volume),
        };
        match started {
            Ok((session, is_over_io_uring)) => Ok(Serving {
                session,
                unmounter: Unmounter::new(directory, source, Arc::new(connection)),
                is_over_io_uring,
            }),
            Err(error) => {
                // Nobody serves the directory: every access would fail or, as long as the device is
                // open, wait.
                let _ = mount::unmount(directory);
                Err(MountError::Handshake(error))
            }
        }
    }

    /// The volume that is served, for its counts, its failure, or to make all durable. The kernel
    /// does not see what is changed through it: it may have the old state in its cache.
    #[must_use]
    pub fn volume(&self) -> &Volume {
        &self.volume
    }

    /// An [`Unmounter`], which ends the mount from another thread.
    #[must_use]
    pub fn unmounter(&self) -> Unmounter {
        self.serving.unmounter.clone()
    }

    /// Whether the kernel has agreed to send requests through `io_uring`
    /// ([`KernelOptions::io_uring`]).
    #[must_use]
    pub fn is_over_io_uring(&self) -> bool {
        self.serving.is_over_io_uring
    }

    /// Waits until the directory is unmounted, then closes the volume; on return the image is
    /// closed and unlocked.
    ///
    /// # Errors
    ///
    /// The connection failed, or the volume could not be closed cleanly.
    pub fn wait(self) -> Result<(), EndError> {
        self.wait_then(|| ())
    }

    /// As [`Server::wait`]; calls `unmounted` once the directory is unmounted, before anything that
    /// takes time.
    ///
    /// # Errors
    ///
    /// As [`Server::wait`].
    pub fn wait_then(self, unmounted: impl FnOnce()) -> Result<(), EndError> {
        let session = self.serving.session;
        let ended = session
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("a panic")));
        unmounted();
        if ended.is_err() {
            // The kernel does not know that nobody serves the mount. If it cannot be unmounted
            // here, the next mount and `pext4 umount` report it.
            let _ = self.serving.unmounter.end_unserved();
        }
        wait_for_threads(&self.volume);
        close(self.volume)?;
        ended.map_err(EndError::Connection)
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut server = formatter.debug_struct("Server");
        server.field("unmounter", &self.serving.unmounter);
        server.finish_non_exhaustive()
    }
}

fn thread_count() -> usize {
    let cores = topology::processors();
    cores.clamp(MIN_THREADS, MAX_THREADS)
}

/// Waits up to a second for threads that still use the volume: those that serve after one has
/// failed end once the mount is gone, and one that unmounts may just let the kernel write its
/// pages.
fn wait_for_threads(volume: &Arc<Volume>) {
    const TRIES: u32 = 100;
    const PAUSE: Duration = Duration::from_millis(10);
    for _ in 0..TRIES {
        if Arc::strong_count(volume) == 1 {
            return;
        }
        thread::sleep(PAUSE);
    }
}

fn close(volume: Arc<Volume>) -> Result<(), EndError> {
    match Arc::try_unwrap(volume) {
        Ok(volume) => volume.close().map_err(EndError::Close),
        Err(volume) => {
            volume.sync().map_err(EndError::Close)?;
            Err(EndError::StillInUse)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use pext4_sync::thread;

    use super::{Connection, EndError, Server, Serving};
    use crate::access_policy::AccessPolicy;
    use crate::mount::{self, Source, Unmounter};
    use crate::options::KernelOptions;
    use crate::testing;

    /// A connection on which nobody answers.
    struct Unserved;

    impl Connection for Unserved {
        fn is_connected(&self) -> bool {
            true
        }

        fn flush_pages(&self) {
            panic!("nobody would answer");
        }
    }

    #[test]
    fn a_mount_whose_session_fails_is_unmounted() {
        let folder = tempfile::tempdir().expect("a place for temporary files");
        let folder = folder.path().canonicalize().expect("it is there");
        let directory = folder.join("mount");
        std::fs::create_dir(&directory).expect("a free name");
        // Before the mount: mke2fs would access it and wait for it.
        let volume = Arc::new(testing::volume());
        let options = KernelOptions::default();
        let image = Source {
            file: folder.join("image"),
            offset: 0,
        };
        let device = match mount::attach(&directory, &image, &options, AccessPolicy::Kernel) {
            Ok(device) => device,
            Err(error) => return eprintln!("SKIPPED: {error}"),
        };
        let serving = Arc::clone(&volume);
        let session = move || {
            drop(serving);
            Err(io::Error::other("no room for a thread"))
        };
        let serving = Serving {
            session: thread::try_spawn("session", session).expect("room for a thread"),
            unmounter: Unmounter::new(&directory, &image, Arc::new(Unserved)),
            is_over_io_uring: false,
        };
        let server = Server { volume, serving };
        server.volume().sync().expect("it is served and usable");
        let ended = server.wait().expect_err("the session failed");
        assert!(matches!(ended, EndError::Connection(_)), "{ended}");
        let mounts = mount::mounts().expect("Linux has the table");
        let is_left = mounts.iter().any(|mount| mount.directory == directory);
        drop(device);
        if is_left {
            mount::unmount(&directory).expect("nobody uses it");
        }
        assert!(!is_left, "nobody serves the mount");
    }
}
