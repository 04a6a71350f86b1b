//! Threads by name.

use std::io;
use std::time::Duration;

#[cfg(not(loom))]
use std::thread as backend;

#[cfg(loom)]
use loom::thread as backend;

pub use backend::{JoinHandle, yield_now};

/// Threads that borrow from their caller, joined before it goes on.
#[cfg(not(loom))]
pub use std::thread::scope;

/// Starts a thread; the first 15 bytes of `name` are what the system's tools show.
///
/// # Errors
/// The system has no room for another thread.
pub fn try_spawn<F, T>(name: &str, body: F) -> io::Result<JoinHandle<T>>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    backend::Builder::new().name(name.to_owned()).spawn(body)
}

/// Starts a thread.
///
/// # Panics
/// Where the system has no room for another thread; [`try_spawn`] returns the error.
pub fn spawn<F, T>(name: &str, body: F) -> JoinHandle<T>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    try_spawn(name, body).expect("the system has room for another thread")
}

/// Does nothing for at least `time` (a model has no clock and only lets others run).
pub fn sleep(time: Duration) {
    #[cfg(not(loom))]
    backend::sleep(time);
    #[cfg(loom)]
    {
        let _ = time;
        yield_now();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::spawn;

    #[test]
    fn a_thread_bears_its_name_and_gives_its_result() {
        let thread = spawn("committer", || {
            std::thread::current().name().map(str::to_owned)
        });
        assert_eq!(
            thread.join().expect("it does not panic").as_deref(),
            Some("committer")
        );
    }
}
