//! Threads: starting them, work on several at once, and what a thread does to itself (it sleeps,
//! yields, has a working directory of its own).
//!
//! In a model they are loom's threads; on virtual cores they are cores of the machine, and their
//! sleep passes in its time.

use std::io;
use std::time::Duration;

#[cfg(not(any(loom, feature = "virtual")))]
use std::thread as backend;

#[cfg(loom)]
use loom::thread as backend;

#[cfg(all(feature = "virtual", not(loom)))]
pub use on_virtual_cores::{JoinHandle, yield_now};

#[cfg(not(all(feature = "virtual", not(loom))))]
pub use backend::{JoinHandle, yield_now};

/// Threads that borrow from their caller, and are joined before it continues.
#[cfg(not(loom))]
pub use std::thread::scope;

/// Starts a thread in a scope.
///
/// # Errors
///
/// The system cannot start another thread.
#[cfg(not(loom))]
pub fn try_spawn_scoped<'scope, F, T>(
    scope: &'scope std::thread::Scope<'scope, '_>,
    body: F,
) -> io::Result<std::thread::ScopedJoinHandle<'scope, T>>
where
    F: FnOnce() -> T + Send + 'scope,
    T: Send + 'scope,
{
    std::thread::Builder::new().spawn_scoped(scope, body)
}

/// Runs `work` on all parts in parallel, the first on the calling thread and each other on a thread
/// of its own; returns the results in the order of the parts. If the system refuses a thread, its
/// part runs on the calling thread. In a model, and in a calibration of virtual cores, the parts
/// run one after another.
///
/// # Panics
///
/// With the panic of a part, after all have ended.
pub fn at_once<T: Send, R: Send>(parts: Vec<T>, work: &(impl Fn(T) -> R + Sync)) -> Vec<R> {
    #[cfg(all(feature = "virtual", not(loom)))]
    if crate::virtual_cores::is_inside() {
        return crate::virtual_cores::at_once(parts, work);
    }
    #[cfg(any(loom, feature = "virtual"))]
    return parts.into_iter().map(work).collect();
    #[cfg(not(any(loom, feature = "virtual")))]
    on_threads(parts, work, backend::Builder::new)
}

#[cfg(not(any(loom, feature = "virtual")))]
fn on_threads<T: Send, R: Send>(
    parts: Vec<T>,
    work: &(impl Fn(T) -> R + Sync),
    builder: impl Fn() -> backend::Builder,
) -> Vec<R> {
    // A part is stored where both threads can take it, since a refused thread drops its closure.
    let parts: Vec<_> = parts
        .into_iter()
        .map(|part| std::sync::Mutex::new(Some(part)))
        .collect();
    let run = |part: &std::sync::Mutex<Option<T>>| {
        let part = part.lock().ok().and_then(|mut part| part.take());
        work(part.expect("each part is taken once"))
    };
    let run = &run;
    scope(|scope| {
        let start = |part| {
            builder()
                .spawn_scoped(scope, move || run(part))
                .map_err(|_| part)
        };
        let others: Vec<_> = parts.iter().skip(1).map(start).collect();
        let own = parts.first().map(run);
        let rest = others.into_iter().map(|other| match other {
            Ok(thread) => thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            Err(part) => run(part),
        });
        own.into_iter().chain(rest).collect()
    })
}

/// Starts a thread; the system's tools show the first 15 bytes of `name`.
///
/// # Errors
///
/// The system cannot start another thread.
pub fn try_spawn<F, T>(name: &str, body: F) -> io::Result<JoinHandle<T>>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    #[cfg(all(feature = "virtual", not(loom)))]
    return on_virtual_cores::try_spawn(name, body);
    #[cfg(not(all(feature = "virtual", not(loom))))]
    backend::Builder::new().name(name.to_owned()).spawn(body)
}

/// Starts a thread.
///
/// # Panics
///
/// If the system cannot start another thread; [`try_spawn`] returns the error.
pub fn spawn<F, T>(name: &str, body: F) -> JoinHandle<T>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    try_spawn(name, body).expect("the system has room for another thread")
}

/// Whether the caller is the thread of `handle` (in a model always false).
#[must_use]
pub fn is_current<T>(handle: &JoinHandle<T>) -> bool {
    #[cfg(all(feature = "virtual", not(loom)))]
    return handle.is_current();
    #[cfg(not(any(loom, feature = "virtual")))]
    return handle.thread().id() == backend::current().id();
    #[cfg(loom)]
    {
        let _ = handle;
        false
    }
}

/// Gives the calling thread a working directory of its own (with root and umask), which begins as
/// the process's. For threads that were started for a task: on the process's first thread, the
/// change would last.
///
/// # Errors
///
/// If the system forbids it, as containers may.
#[allow(unsafe_code)]
pub fn own_working_directory() -> io::Result<()> {
    // SAFETY: of everything that a thread can stop sharing, only the table of open files affects
    // the ownership of descriptors in safe code, and this flag does not concern that table.
    let own = unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::FS) };
    Ok(own?)
}

/// Sleeps for at least `time` (a model has no clock and only yields).
#[cfg_attr(feature = "virtual", track_caller)]
pub fn sleep(time: Duration) {
    #[cfg(all(feature = "virtual", not(loom)))]
    on_virtual_cores::sleep(time, std::panic::Location::caller());
    #[cfg(not(any(loom, feature = "virtual")))]
    backend::sleep(time);
    #[cfg(loom)]
    {
        let _ = time;
        yield_now();
    }
}

#[cfg(all(feature = "virtual", not(loom)))]
mod on_virtual_cores {
    use std::io;
    use std::panic::Location;
    use std::thread as backend;
    use std::time::Duration;

    use crate::virtual_cores;
    use crate::watch::{Site, sleeping};

    /// A handle to wait for a thread, real or virtual.
    pub struct JoinHandle<T>(Kind<T>);

    impl<T> std::fmt::Debug for JoinHandle<T> {
        fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            formatter.debug_struct("JoinHandle").finish_non_exhaustive()
        }
    }

    enum Kind<T> {
        Real(backend::JoinHandle<T>),
        Virtual(virtual_cores::Thread<T>),
    }

    impl<T> JoinHandle<T> {
        /// Waits until the thread has ended.
        ///
        /// # Errors
        ///
        /// The thread's panic.
        pub fn join(self) -> backend::Result<T> {
            match self.0 {
                Kind::Real(handle) => handle.join(),
                Kind::Virtual(thread) => thread.join(),
            }
        }

        /// Whether the thread has ended.
        #[must_use]
        pub fn is_finished(&self) -> bool {
            match &self.0 {
                Kind::Real(handle) => handle.is_finished(),
                Kind::Virtual(thread) => thread.is_finished(),
            }
        }

        pub(super) fn is_current(&self) -> bool {
            match &self.0 {
                Kind::Real(handle) => handle.thread().id() == backend::current().id(),
                Kind::Virtual(thread) => thread.is_current(),
            }
        }
    }

    pub(super) fn try_spawn<F, T>(name: &str, body: F) -> io::Result<JoinHandle<T>>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        if virtual_cores::is_inside() {
            let thread = virtual_cores::spawn(name, body);
            return Ok(JoinHandle(Kind::Virtual(thread)));
        }
        let thread = backend::Builder::new().name(name.to_owned()).spawn(body)?;
        Ok(JoinHandle(Kind::Real(thread)))
    }

    pub(super) fn sleep(time: Duration, site: Site) {
        if virtual_cores::is_inside() {
            virtual_cores::sleep(time, site);
        } else {
            sleeping(site, || backend::sleep(time));
        }
    }

    /// Lets other threads run.
    #[track_caller]
    pub fn yield_now() {
        if virtual_cores::is_inside() {
            virtual_cores::sleep(Duration::from_nanos(300), Location::caller());
        } else {
            backend::yield_now();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::spawn;

    #[cfg(not(feature = "virtual"))]
    #[test]
    fn parts_of_refused_threads_run_on_the_caller() {
        // More than any address space has.
        let refused = || std::thread::Builder::new().stack_size(1 << 47);
        assert!(refused().spawn(|| ()).is_err());
        let here = std::thread::current().id();
        let done = super::on_threads(
            vec![1, 2, 3],
            &|part| (part * part, std::thread::current().id()),
            refused,
        );
        assert_eq!(done, [(1, here), (4, here), (9, here)]);
    }

    #[cfg(not(feature = "virtual"))]
    #[test]
    fn a_threads_own_working_directory_does_not_change_the_process() {
        let here = || std::env::current_dir().expect("there is one");
        let before = here();
        let elsewhere = std::thread::spawn(move || {
            super::own_working_directory().ok()?;
            std::env::set_current_dir("/proc/self").expect("Linux has it");
            Some(here())
        });
        let Some(elsewhere) = elsewhere.join().expect("it does not panic") else {
            return eprintln!("SKIPPED: this system lets no thread have one of its own");
        };
        assert_ne!(elsewhere, before);
        assert_eq!(here(), before);
    }

    #[test]
    fn a_thread_has_its_name_and_returns_its_result() {
        let thread = spawn("committer", || {
            std::thread::current().name().map(str::to_owned)
        });
        assert_eq!(
            thread.join().expect("it does not panic").as_deref(),
            Some("committer")
        );
    }
}
