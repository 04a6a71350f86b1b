//! The progress of long work, which other threads may read at any time, and the flag by which they
//! stop it.
//!
//! The caller makes a [`Progress`], gives it to an edit, a build or a resize with its options, and
//! keeps another reference to it. What does the work counts in it, and looks at the flag.

use std::sync::atomic::AtomicBool;

use pext4_sync::atomic::{AtomicU8, AtomicU64, Ordering};
use thiserror::Error;

/// A phase of long work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Phase {
    /// Changes an image, or copies out of one. How much there is to do is not known.
    #[default]
    Working,
    /// Reads names, sizes and attributes of sources, and the contents of streams and compressed
    /// archives.
    Reading,
    /// Determines what goes where.
    Planning,
    /// Copies the whole image, to work on the copy.
    Cloning,
    /// Writes contents and metadata.
    Writing,
    /// Makes it durable.
    Syncing,
}

impl Phase {
    /// All of them, each at the place of its number.
    const ALL: [Self; 6] = [
        Self::Working,
        Self::Reading,
        Self::Planning,
        Self::Cloning,
        Self::Writing,
        Self::Syncing,
    ];
}

/// How much of something is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// What is done.
    pub done: u64,
    /// All that there is to do, if that is known and not nothing.
    pub total: Option<u64>,
}

/// The progress of work at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProgressState {
    /// The present phase.
    pub phase: Phase,
    /// Files that were made, changed, removed or copied; while reading, that were found. Each name
    /// of a file counts.
    pub files: Amount,
    /// Bytes of contents that were written.
    pub bytes: Amount,
}

/// The work was asked to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("interrupted")]
pub struct Stopped;

/// The progress of work, shared with those who watch it. They can also stop it.
#[derive(Debug, Default)]
pub struct Progress {
    phase: AtomicU8,
    files: Counted,
    bytes: Counted,
    /// The standard library's, since a signal handler may set it.
    is_stopped: AtomicBool,
}

impl Progress {
    /// The progress at this moment. Each number is right; two of them may be of different moments.
    #[must_use]
    pub fn state(&self) -> ProgressState {
        let phase = usize::from(self.phase.load(Ordering::Relaxed));
        ProgressState {
            phase: Phase::ALL[phase],
            files: self.files.amount(),
            bytes: self.bytes.amount(),
        }
    }

    /// Asks the work to stop: it ends with an error that is called `Interrupted`, as soon as it can
    /// without damage. It is one store, which a signal handler may make.
    pub fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
    }

    /// Whether [`Self::stop`] was called.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Relaxed)
    }

    /// For what does the work: whether it may go on.
    ///
    /// # Errors
    ///
    /// It was asked to stop.
    pub fn check(&self) -> Result<(), Stopped> {
        match self.is_stopped() {
            true => Err(Stopped),
            false => Ok(()),
        }
    }

    /// For what does the work: begins a phase with so many files and bytes, 0 where that is not
    /// known.
    pub fn enter(&self, phase: Phase, files: u64, bytes: u64) {
        self.files.begin(files);
        self.bytes.begin(bytes);
        self.phase.store(phase as u8, Ordering::Relaxed);
    }

    /// For what does the work: sets the phase while `work` runs. What was counted stays.
    pub fn during<R>(&self, phase: Phase, work: impl FnOnce() -> R) -> R {
        let before = self.phase.swap(phase as u8, Ordering::Relaxed);
        let done = work();
        self.phase.store(before, Ordering::Relaxed);
        done
    }

    /// For what does the work: counts files and bytes.
    pub fn add(&self, files: u64, bytes: u64) {
        self.files.done.fetch_add(files, Ordering::Relaxed);
        self.bytes.done.fetch_add(bytes, Ordering::Relaxed);
    }

    /// For what does the work: as [`Self::add`] and [`Self::check`].
    ///
    /// # Errors
    ///
    /// It was asked to stop.
    pub fn count(&self, files: u64, bytes: u64) -> Result<(), Stopped> {
        self.add(files, bytes);
        self.check()
    }
}

/// An [`Amount`] that changes.
#[derive(Debug, Default)]
struct Counted {
    done: AtomicU64,
    /// 0 if it is not known.
    total: AtomicU64,
}

impl Counted {
    fn amount(&self) -> Amount {
        let total = self.total.load(Ordering::Relaxed);
        Amount {
            done: self.done.load(Ordering::Relaxed),
            total: (total > 0).then_some(total),
        }
    }

    fn begin(&self, total: u64) {
        self.done.store(0, Ordering::Relaxed);
        self.total.store(total, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::{Amount, Phase, Progress, Stopped};

    #[test]
    fn each_phase_counts_from_the_start_and_a_passing_one_leaves_the_counts() {
        let progress = Progress::default();
        assert_eq!(progress.state().phase, Phase::Working);
        assert_eq!(progress.state().files, Amount::default());
        for phase in Phase::ALL {
            progress.enter(phase, 0, 9);
            progress.add(2, 3);
            let cloning = progress.during(Phase::Cloning, || progress.state().phase);
            assert_eq!(cloning, Phase::Cloning);
            let state = progress.state();
            assert_eq!(state.phase, phase);
            assert_eq!((state.files.done, state.files.total), (2, None));
            assert_eq!((state.bytes.done, state.bytes.total), (3, Some(9)));
        }
    }

    #[test]
    fn a_stop_is_seen_from_then_on() {
        let progress = Progress::default();
        assert_eq!(progress.check(), Ok(()));
        progress.stop();
        assert!(progress.is_stopped());
        assert_eq!(progress.check(), Err(Stopped));
    }
}
