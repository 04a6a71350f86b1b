//! The thread that keeps a claim.

use std::sync::{Arc, Weak};
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
}

impl Keeper {
    /// Begins to keep a claim. If it is lost, the volume of `store` becomes read-only.
    ///
    /// # Errors
    ///
    /// `Io` if the system cannot start a thread.
    pub fn start(claim: Claim, store: Weak<Store>) -> Result<Self> {
        let shared = Arc::new(Shared {
            is_ending: Mutex::new(Class::Leaf, false),
            ends: Condvar::new(),
        });
        let own = Arc::clone(&shared);
        let thread = thread::try_spawn("pext4-mmp", move || own.keep(claim, &store))?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// Releases the file system.
    ///
    /// # Errors
    ///
    /// `InUse` if it was lost meanwhile; `Io`.
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
    fn keep(&self, mut claim: Claim, store: &Weak<Store>) -> Claim {
        let mut renewed = time::now();
        while self.passes(claim.interval) {
            match claim.renew() {
                Ok(()) => renewed = time::now(),
                // Others wait for longer than this before they claim what is not renewed.
                Err(Error::Io(_)) if time::now() - renewed < claim.longest_silence() => {}
                Err(error) => {
                    claim.fence.fence(&error.to_string());
                    stop(store, &error);
                    break;
                }
            }
        }
        claim
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

impl Claim {
    /// For how long updates may fail before another machine could claim the file system.
    fn longest_silence(&self) -> Duration {
        Duration::from_secs(self.mmp.check_interval.into())
    }
}

/// Makes the volume read-only.
fn stop(store: &Weak<Store>, error: &Error) {
    let Some(store) = store.upgrade() else {
        return;
    };
    let reason = format!("multiple mount protection: {error}");
    match store.try_journal() {
        Some(journal) => journal.abort_by_device(&reason),
        None => store.set_read_only(),
    }
}
