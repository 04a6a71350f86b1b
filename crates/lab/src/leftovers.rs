//! What a run could not remove.
//!
//! Whatever a run creates is removed by a destructor, also after a failure or an interruption.
//! Destructors return no errors, so they write here what is still there, for whoever ends the run
//! to report.

use std::fmt::Display;
use std::io;
use std::sync::{Mutex, PoisonError};

static LEFT: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Notes that something could not be removed, unless it was gone already.
pub fn note(what: impl Display, error: &io::Error) {
    if error.kind() != io::ErrorKind::NotFound {
        note_why(what, error);
    }
}

/// Notes that something is still there.
pub fn note_why(what: impl Display, why: impl Display) {
    let mut left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
    left.push(format!("{what}: {why}"));
}

/// Returns and forgets what was noted: one line each, what it is and why it is still there.
#[must_use]
pub fn take() -> Vec<String> {
    std::mem::take(&mut LEFT.lock().unwrap_or_else(PoisonError::into_inner))
}
