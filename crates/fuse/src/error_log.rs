//! Messages about errors that an error number cannot describe.
//!
//! A system call returns only an errno; which block of the image is corrupt, or that the device
//! failed, is reported here. Each text is reported once, and at most `MOST` different ones, so
//! that a corrupt image does not fill the log. They are also kept, for systems whose log nobody
//! keeps.

use std::fmt;
use std::mem;

use pext4_sync::Mutex;
use pext4_sync::order::Class;

/// How many different texts are reported.
const MOST: usize = 100;

/// Reports each error once.
pub struct ErrorLog {
    reported: Mutex<Reported>,
    print: Box<dyn Fn(&str) + Send + Sync>,
}

#[derive(Default)]
struct Reported {
    /// What was reported, the oldest first.
    texts: Vec<String>,
    /// Whether a text was not reported because of the bound.
    has_refused: bool,
}

/// What became of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Noted {
    /// It is new.
    Kept,
    /// It was kept before.
    Known,
    /// It is the first for which there is no room.
    FirstFull,
    /// There is no room.
    Full,
}

impl ErrorLog {
    /// A log whose messages are passed to `print`.
    pub fn new(print: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self {
            reported: Mutex::new(Class::Leaf, Reported::default()),
            print: Box::new(print),
        }
    }

    /// Reports `text` even if the bound is reached, unless it was reported before: why the volume
    /// changes nothing any more, of which there is one reason.
    pub fn report_beyond_bound(&self, text: &str) {
        if self.note(text, usize::MAX) == Noted::Kept {
            (self.print)(text);
        }
    }

    /// Reports `text`, unless it was reported before or the bound is reached.
    pub fn report(&self, text: &str) {
        match self.note(text, MOST) {
            Noted::Kept => (self.print)(text),
            Noted::Known | Noted::Full => {}
            Noted::FirstFull => (self.print)("further errors are not reported"),
        }
    }

    /// What was reported so far, the oldest first, a line each, as far as `room` bytes hold it.
    #[must_use]
    pub fn reported(&self, room: usize) -> String {
        let mut lines = String::new();
        for text in &self.reported.lock().texts {
            if lines.len() + text.len() + 1 > room {
                break;
            }
            lines.push_str(text);
            lines.push('\n');
        }
        lines
    }

    /// Keeps a text, unless it was kept before or there are `most` already.
    fn note(&self, text: &str, most: usize) -> Noted {
        let mut reported = self.reported.lock();
        if reported.texts.iter().any(|known| known == text) {
            return Noted::Known;
        }
        if reported.texts.len() >= most {
            return match mem::replace(&mut reported.has_refused, true) {
                false => Noted::FirstFull,
                true => Noted::Full,
            };
        }
        reported.texts.push(text.to_owned());
        Noted::Kept
    }
}

impl fmt::Debug for ErrorLog {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ErrorLog").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::{ErrorLog, MOST};
    use std::sync::{Arc, Mutex};

    #[test]
    fn reports_each_text_once_and_stops_after_many() {
        let printed = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&printed);
        let error_log = ErrorLog::new(move |text| sink.lock().unwrap().push(text.to_owned()));
        error_log.report("corrupt inode 12");
        error_log.report("corrupt inode 12");
        assert_eq!(printed.lock().unwrap().as_slice(), ["corrupt inode 12"]);
        for number in 0..2 * MOST {
            error_log.report(&format!("corrupt block {number}"));
        }
        for _ in 0..2 {
            error_log.report_beyond_bound("the volume is read-only now");
        }
        let mut printed = printed.lock().unwrap();
        let last = printed.pop();
        assert_eq!(last.as_deref(), Some("the volume is read-only now"));
        assert_eq!(printed.len(), MOST + 1);
        assert_eq!(printed[MOST], "further errors are not reported");
        let kept = error_log.reported(usize::MAX);
        assert_eq!(kept.lines().count(), MOST + 1);
        let first = "corrupt inode 12\ncorrupt block 0\n";
        assert!(kept.starts_with(first), "{kept}");
        assert_eq!(error_log.reported(first.len()), first);
        assert_eq!(error_log.reported(first.len() - 1), "corrupt inode 12\n");
    }

    #[test]
    fn the_notice_comes_also_if_another_report_fills_the_log() {
        let printed = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&printed);
        let error_log = ErrorLog::new(move |text| sink.lock().unwrap().push(text.to_owned()));
        for number in 1..MOST {
            error_log.report(&format!("corrupt block {number}"));
        }
        error_log.report_beyond_bound("the volume is read-only now");
        assert_eq!(printed.lock().unwrap().len(), MOST);
        for text in ["corrupt inode 12", "corrupt inode 13"] {
            error_log.report(text);
        }
        let printed = printed.lock().unwrap();
        assert_eq!(printed[MOST..], ["further errors are not reported"]);
    }
}
