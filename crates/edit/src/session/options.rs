//! How a session works.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use pext4_block::{FileDevice, Progress};

/// How a session may apply its changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Way {
    /// A transaction if the changes fit into one, else a clone.
    #[default]
    Auto,
    /// A transaction. If the changes do not fit, that is an error.
    Transaction,
    /// A clone.
    Clone,
}

/// Gets the reason why an image is copied.
pub type OnClone = dyn Fn(&str) + Send + Sync;

/// How a session works.
#[derive(Clone)]
pub struct EditOptions {
    /// The time (since 1970) of all time stamps. With it the same edit of the same image gives the
    /// same bytes.
    pub time: Option<Duration>,
    /// How to apply the changes.
    pub way: Way,
    /// How long to wait for another program that uses the image; by default
    /// [`FileDevice::USUAL_WAIT`].
    pub wait: Duration,
    /// The maximum number of bytes of new data kept in memory. What exceeds it is written to free
    /// blocks of the image. Without a journal, of all changed blocks: what exceeds it is written to
    /// a clone.
    pub memory: usize,
    /// Called with the reason before the image is copied, which can take a while.
    pub on_clone: Option<Arc<OnClone>>,
    /// Counts what the session does, and can stop it.
    pub progress: Arc<Progress>,
}

impl Default for EditOptions {
    fn default() -> Self {
        Self {
            time: None,
            way: Way::Auto,
            wait: FileDevice::USUAL_WAIT,
            memory: 64 << 20,
            on_clone: None,
            progress: Arc::default(),
        }
    }
}

impl fmt::Debug for EditOptions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("EditOptions")
            .field("time", &self.time)
            .field("way", &self.way)
            .field("wait", &self.wait)
            .field("memory", &self.memory)
            .field("progress", &self.progress)
            .finish_non_exhaustive()
    }
}
