//! Files of an image that cannot be read: an error, or skipped with a report, as the caller asks.

use crate::error::{EditError, Result};

/// Called with the error for each file that is skipped. The error names the path.
pub type OnSkipped<'s> = dyn FnMut(&EditError) + 's;

/// Skips files that cannot be read, or fails.
pub(crate) struct Unreadable<'r, 's> {
    /// Called for each skipped file. Without it an unreadable file is an error.
    on_skipped: Option<&'r mut OnSkipped<'s>>,
    /// The number of skipped files.
    pub(crate) skipped: u64,
}

impl<'r, 's> Unreadable<'r, 's> {
    pub(crate) fn new(on_skipped: Option<&'r mut OnSkipped<'s>>) -> Self {
        Self {
            on_skipped,
            skipped: 0,
        }
    }

    pub(crate) fn can_skip(&self) -> bool {
        self.on_skipped.is_some()
    }

    /// The value that was read; `None` if it is unreadable and is skipped.
    pub(crate) fn or_skip<T>(&mut self, read: Result<T>) -> Result<Option<T>> {
        match (read, &mut self.on_skipped) {
            (Err(error @ EditError::AtPath { .. }), Some(on_skipped)) => {
                on_skipped(&error);
                self.skipped += 1;
                Ok(None)
            }
            (read, _) => read.map(Some),
        }
    }
}
