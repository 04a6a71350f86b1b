//! What of an image cannot be read: an error, or left out with a word about it, as whoever reads it wants.

use crate::error::{EditError, Result};

/// Is told why something is left out; the error names the path.
pub type Leave<'l> = dyn FnMut(&EditError) + 'l;

/// What becomes of what cannot be read.
pub(crate) struct Unreadable<'r, 'l> {
    /// Is told of it; without it that is an error.
    leave: Option<&'r mut Leave<'l>>,
    /// What was left out.
    pub(crate) left: u64,
}

impl<'r, 'l> Unreadable<'r, 'l> {
    pub(crate) fn new(leave: Option<&'r mut Leave<'l>>) -> Self {
        Self { leave, left: 0 }
    }

    pub(crate) fn may_be_left(&self) -> bool {
        self.leave.is_some()
    }

    /// What was read; `None` if it was not, and is to be left out then.
    pub(crate) fn or_leave<T>(&mut self, read: Result<T>) -> Result<Option<T>> {
        match (read, &mut self.leave) {
            (Err(error @ EditError::Inside { .. }), Some(leave)) => {
                leave(&error);
                self.left += 1;
                Ok(None)
            }
            (read, _) => read.map(Some),
        }
    }
}
