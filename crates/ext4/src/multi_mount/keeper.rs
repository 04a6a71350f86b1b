//! The thread that keeps a claim. It begins before the mount that made the claim has replayed
//! anything, which may take longer than others wait.

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use pext4_sync::order::Class;
use pext4_sync::thread::{self, JoinHandle};
use pext4_sync::{Condvar, Mutex, time};

use super::Claim;
use crate::error::{Error, Result};
use crate::store::Store;

/// A claim that a thread keeps until it is released.
pub struct Keeper {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<Claim>>,
}

/// What the thread and the volume share.
struct Shared {
    /// Whether the claim is to be kept no longer. A leaf.
    is_ending: Mutex<bool>,
    ends: Condvar,
    /// What becomes read-only if the claim is lost, once there is something.
    store: OnceLock<Weak<Store>>,
}

impl Keeper {
    /// Begins to keep a claim.
    ///
    /// # Errors
    ///
    /// `Io` if the system cannot start a thread.
    pub fn start(claim: Claim) -> Result<Self> {
        let shared = Arc::new(Shared {
            is_ending: Mutex::new(Class::Leaf, false),
            ends: Condvar::new(),
            store: OnceLock::new(),
        });
        let own = Arc::clone(&shared);
        let thread = thread::try_spawn("pext4-mmp", move || own.keep(claim))?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// Has the volume of this store become read-only if the claim is lost. Until then only its
    /// device refuses writes.
    pub fn attach(&self, store: Weak<Store>) {
        // Called once, by the mount.
        let _ = self.shared.store.set(store);
    }

    /// Releases the file system.
    ///
    /// # Errors
    ///
    /// `InUse` if another machine has claimed it since the thread last looked; `Io`. If the thread
    /// found that out, there is nothing to release, and the volume has stopped already.
    pub fn release(mut self) -> Result<()> {
        match self.end() {
            Some(mut claim) => claim.release(),
            None => Ok(()),
        }
    }

    fn end(&mut self) -> Option<Claim> {
        let thread = self.thread.take()?;
        *self.shared.is_ending.lock() = true;
        self.shared.ends.notify_all();
        // A thread that panicked has dropped the claim, and so released it.
        thread.join().ok()
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        drop(self.end());
    }
}

impl Shared {
    /// Renews the claim at intervals until it is to end, or is lost.
    fn keep(&self, mut claim: Claim) -> Claim {
        while self.passes(claim.interval) {
            match claim.renew() {
                Ok(()) => {}
                Err(Error::Io(_)) if !claim.is_overdue() => {}
                Err(error) => {
                    claim.fence.fence(&error.to_string());
                    self.stop(&error);
                    break;
                }
            }
        }
        claim
    }

    /// Makes the volume read-only.
    fn stop(&self, error: &Error) {
        let Some(store) = self.store.get().and_then(Weak::upgrade) else {
            return;
        };
        let reason = format!("multiple mount protection: {error}");
        match store.try_journal() {
            Some(journal) => journal.abort_by_device(&reason),
            None => store.set_read_only(),
        }
    }

    /// Waits for `interval`. False if the claim is to end.
    fn passes(&self, interval: Duration) -> bool {
        let until = time::now() + interval;
        let mut is_ending = self.is_ending.lock();
        while !*is_ending {
            let left = until.saturating_sub(time::now());
            if left.is_zero() {
                return true;
            }
            self.ends.wait_for(&mut is_ending, left);
        }
        false
    }
}
