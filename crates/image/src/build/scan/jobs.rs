//! The jobs of a scan, on a stack that its threads share.

use std::ffi::{CStr, CString};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use pext4_sync::{Class, Condvar, Mutex};

/// An open directory.
pub(super) struct OpenDirectory {
    pub fd: OwnedFd,
    pub number: u32,
    /// Its path from the root of the source.
    pub path: Vec<u8>,
}

pub(super) enum Job {
    List {
        parent: Arc<OpenDirectory>,
        name: CString,
        number: u32,
    },
    Stat {
        directory: Arc<OpenDirectory>,
        names: Names,
    },
}

/// Names of one directory, concatenated.
#[derive(Default)]
pub(super) struct Names {
    /// NUL-terminated.
    bytes: Vec<u8>,
    pub count: usize,
}

impl Names {
    pub fn push(&mut self, name: &CStr) {
        self.bytes.extend_from_slice(name.to_bytes_with_nul());
        self.count += 1;
    }

    pub fn iter(&self) -> impl Iterator<Item = &CStr> {
        let names = self.bytes.split_inclusive(|&byte| byte == 0);
        names.filter_map(|name| CStr::from_bytes_with_nul(name).ok())
    }
}

/// Waiting jobs, and the number of running ones.
pub(super) struct Stack {
    state: Mutex<StackState>,
    changed: Condvar,
}

#[derive(Default)]
struct StackState {
    waiting: Vec<Job>,
    running: usize,
}

impl Stack {
    pub fn new() -> Self {
        Self {
            state: Mutex::new(Class::Leaf, StackState::default()),
            changed: Condvar::new(),
        }
    }

    pub fn push(&self, jobs: impl IntoIterator<Item = Job>) {
        self.state.lock().waiting.extend(jobs);
        self.changed.notify_all();
    }

    /// Returns the next job; `None` when no job waits and none runs that could add one.
    pub fn pop(&self, was_working: bool) -> Option<Job> {
        let mut state = self.state.lock();
        if was_working {
            state.running -= 1;
        }
        loop {
            if let Some(job) = state.waiting.pop() {
                state.running += 1;
                return Some(job);
            }
            if state.running == 0 {
                self.changed.notify_all();
                return None;
            }
            self.changed.wait(&mut state);
        }
    }

    pub fn clear(&self) {
        self.state.lock().waiting.clear();
    }

    /// Ends the job of a thread that panicked. The others find no more.
    pub fn give_up(&self) {
        let mut state = self.state.lock();
        state.running -= 1;
        state.waiting.clear();
        drop(state);
        self.changed.notify_all();
    }
}
