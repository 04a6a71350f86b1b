//! Makes whoever opens the image while its mount ends wait until it is closed, by a lease
//! ([`delay_openers`]).
//!
//! `umount` returns before the server has written its last changes, so the next program must wait
//! from that moment on. The threads that read `/dev/fuse` learn of the end too late: where other
//! programs keep all cores busy, milliseconds after that program has opened the image (one that
//! followed its caller runs only when nobody else wants the core), and then there can be no lease
//! any more. The table of mounts changes before `umount` returns. So a thread of its own waits for
//! that, which no request wakes.
//!
//! A mount that is gone from the table may go on: detached while it is in use, or copied into
//! another mount namespace. Then the lease is given up after [`PATIENCE`], since its image is one
//! in use, which anybody may look at, and taken again when the session ends.
//!
//! What remains: a program that had the image open before; a server in another mount namespace
//! than the `umount`, which sees no change of its table; one that gets no processor between the
//! change and the return of `umount`; the last `close` on a mount that was detached long ago.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

use pext4_fuse_kernel::{admit_openers, delay_openers};
use pext4_sync::order::Class;
use pext4_sync::{Mutex, thread};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::mount::Unmounter;

/// How long openers wait for a mount that is gone from the table to end.
const PATIENCE: Duration = Duration::from_secs(1);
/// The table of mounts, which can be polled for changes (proc(5)).
const TABLE: &str = "/proc/self/mountinfo";

/// Delays those who open an image, from the end of its mount until it is closed.
pub struct OpenersDelay<F> {
    shared: Arc<Shared<F>>,
}

struct Shared<F> {
    /// The image. It is closed when its volume is.
    image: Weak<F>,
    lease: Mutex<Lease>,
    /// Wakes the thread that watches the table.
    waker: OwnedFd,
}

#[derive(Default)]
struct Lease {
    /// Whether it was taken and not given up. To take it again while somebody waits for it fails.
    is_held: bool,
    /// Whether the session has ended: then it stays until the image is closed.
    is_final: bool,
}

impl<F> fmt::Debug for OpenersDelay<F> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("OpenersDelay")
            .finish_non_exhaustive()
    }
}

impl<F: AsFd + Send + Sync + 'static> OpenersDelay<F> {
    /// Starts to watch the table of mounts for the mount that `unmounter` can end. `image` is the
    /// open file of its image. Where the system does not show the table, or no thread can be
    /// started, openers wait from the end of the session on.
    ///
    /// # Errors
    ///
    /// This process has too many files open.
    pub fn of_mount(unmounter: Unmounter, image: Weak<F>) -> io::Result<Self> {
        let delay = Self::new(image)?;
        let watching = Arc::clone(&delay.shared);
        if let Ok(table) = File::open(TABLE) {
            let is_gone = move || unmounter.is_gone_from_table();
            let watch = move || watching.watch(&table, PATIENCE, &is_gone);
            let _ = thread::try_spawn("pext4-table", watch);
        }
        Ok(delay)
    }

    fn new(image: Weak<F>) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            image,
            lease: Mutex::new(Class::Leaf, Lease::default()),
            waker: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        });
        Ok(Self { shared })
    }

    /// To be called when the session has ended, before the image is closed: from now on openers
    /// wait for that.
    ///
    /// # Errors
    ///
    /// Those of [`delay_openers`]: as somebody else has the image open. Then nobody waits.
    pub fn session_has_ended(self) -> io::Result<()> {
        let leased = self.shared.delay(true);
        // Its counter has room for one.
        let _ = rustix::io::write(&self.shared.waker, &1u64.to_ne_bytes());
        leased
    }
}

impl<F: AsFd> Shared<F> {
    /// Takes the lease, if it is not held. Once it is final it is not given up.
    fn delay(&self, is_final: bool) -> io::Result<()> {
        let mut lease = self.lease.lock();
        lease.is_final |= is_final;
        if lease.is_held {
            return Ok(());
        }
        if let Some(image) = self.image.upgrade() {
            delay_openers(&*image)?;
            lease.is_held = true;
        }
        Ok(())
    }

    /// Takes the lease when the mount is gone from the table, and keeps it for so long at most,
    /// until the session has ended.
    fn watch(
        &self,
        table: &File,
        patience: Duration,
        is_gone: &dyn Fn() -> bool,
    ) -> io::Result<()> {
        let mut was_there = true;
        loop {
            let is_there = !is_gone();
            if was_there && !is_there {
                // If somebody has the image open, it is tried again when the session has ended.
                let _ = self.delay(false);
                if self.wait_for_end(Some(patience), None)? {
                    return Ok(());
                }
                self.give_up();
            }
            was_there = is_there;
            if self.wait_for_end(None, Some(table))? {
                return Ok(());
            }
        }
    }

    /// Gives up the lease of a mount that goes on.
    fn give_up(&self) {
        let mut lease = self.lease.lock();
        if lease.is_final || !lease.is_held {
            return;
        }
        lease.is_held = false;
        if let Some(image) = self.image.upgrade() {
            // It was held, or the system has taken it away from a server that took too long.
            let _ = admit_openers(&*image);
        }
    }

    /// Waits until the session has ended, for so long at most, or until the table changes. Returns
    /// whether it has ended.
    fn wait_for_end(&self, limit: Option<Duration>, table: Option<&File>) -> io::Result<bool> {
        let limit = limit.map(|limit| Timespec {
            tv_sec: limit.as_secs().cast_signed(),
            tv_nsec: limit.subsec_nanos().into(),
        });
        let mut events = Vec::from([PollFd::new(&self.waker, PollFlags::IN)]);
        events.extend(table.map(|table| PollFd::new(table, PollFlags::PRI)));
        rustix::io::retry_on_intr(|| poll(&mut events, limit.as_ref()))?;
        Ok(!events[0].revents().is_empty())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::io;
    use std::os::unix::fs::MetadataExt;
    use std::sync::Arc;
    use std::time::Duration;

    use pext4_fuse_kernel::{admit_openers, delay_openers};
    use pext4_sync::thread::{self, JoinHandle};

    use super::{OpenersDelay, TABLE};

    /// An image, on a file system with leases.
    fn image() -> Option<(tempfile::TempDir, Arc<File>)> {
        let folder = tempfile::tempdir().expect("there is room");
        let image = File::create(folder.path().join("image")).expect("a free name");
        if let Err(error) = delay_openers(&image) {
            eprintln!("SKIPPED: no leases here: {error}");
            return None;
        }
        admit_openers(&image).expect("it was taken");
        Some((folder, Arc::new(image)))
    }

    /// Whether somebody has a lease of a file.
    fn is_leased(image: &File) -> bool {
        let number = format!(":{}", image.metadata().expect("it is open").ino());
        let locks = fs::read_to_string("/proc/locks").expect("Linux has it");
        let mut locks = locks.lines().map(|line| line.split_whitespace());
        locks.any(|mut words| {
            words.nth(1) == Some("LEASE") && words.any(|word| word.ends_with(&number))
        })
    }

    /// A reading may miss a line while other tests take and give up leases.
    fn assert_leased(image: &File) {
        let mut readings = (0..100).map(|_| {
            thread::sleep(Duration::from_millis(1));
            is_leased(image)
        });
        assert!(readings.any(|is_so| is_so));
    }

    /// Waits until something is so.
    fn wait_until(is_so: impl Fn() -> bool) {
        while !is_so() {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Watches a table in which the mount is no longer.
    fn watch_after_the_end(image: &Arc<File>) -> (OpenersDelay<File>, JoinHandle<io::Result<()>>) {
        const LONG: Duration = Duration::from_secs(3600);
        let delay = OpenersDelay::new(Arc::downgrade(image)).expect("room for a file");
        let shared = Arc::clone(&delay.shared);
        let watch = thread::try_spawn("watch", move || {
            let table = File::open(TABLE)?;
            shared.watch(&table, LONG, &|| true)
        });
        (delay, watch.expect("room for a thread"))
    }

    #[test]
    fn openers_wait_before_the_session_has_ended_and_after() {
        let Some((_folder, image)) = image() else {
            return;
        };
        let (delay, watch) = watch_after_the_end(&image);
        wait_until(|| is_leased(&image));
        delay.session_has_ended().expect("nobody else has it open");
        let watched = watch.join().expect("no panic");
        watched.expect("files can be waited for");
        assert_leased(&image);
    }

    #[test]
    fn a_lease_is_given_up_only_before_the_session_has_ended() {
        let Some((_folder, image)) = image() else {
            return;
        };
        let delay = OpenersDelay::new(Arc::downgrade(&image)).expect("room for a file");
        let shared = Arc::clone(&delay.shared);
        shared.give_up();
        shared.delay(false).expect("nobody else has it open");
        assert_leased(&image);
        shared.give_up();
        assert!(!is_leased(&image));
        delay.session_has_ended().expect("nobody else has it open");
        shared.give_up();
        assert_leased(&image);
    }

    /// Who waits has not opened it.
    #[test]
    fn somebody_who_waits_is_nobody_who_has_the_image_open() {
        let Some((folder, image)) = image() else {
            return;
        };
        let (delay, watch) = watch_after_the_end(&image);
        wait_until(|| is_leased(&image));
        let path = folder.path().join("image");
        let opener = thread::try_spawn("opener", move || File::open(path).map(drop));
        let opener = opener.expect("room for a thread");
        // What the system says of a lease that somebody waits for.
        wait_until(|| {
            let locks = fs::read_to_string("/proc/locks").expect("Linux has it");
            let number = format!(":{} ", image.metadata().expect("it is open").ino());
            let mut locks = locks.lines().filter(|line| line.contains(&number));
            locks.any(|line| line.contains("BREAKING"))
        });
        delay.session_has_ended().expect("it is held");
        let watched = watch.join().expect("no panic");
        watched.expect("files can be waited for");
        drop(image);
        let opened = opener.join().expect("no panic");
        opened.expect("it is closed now");
    }

    #[test]
    fn it_is_told_that_somebody_has_the_image_open() {
        let Some((folder, image)) = image() else {
            return;
        };
        let (delay, watch) = watch_after_the_end(&image);
        wait_until(|| is_leased(&image));
        delay.shared.give_up();
        let _other = File::open(folder.path().join("image")).expect("it is there");
        let error = delay.session_has_ended().expect_err("it is open elsewhere");
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        let watched = watch.join().expect("no panic");
        watched.expect("files can be waited for");
    }
}
