//! Counts the instructions of a thread, if the machine and its administrator permit it.
//!
//! Only user mode is counted, which is everything that the library does.

use std::fmt;

use perf_event::events::Hardware;
use perf_event::{Builder, Counter};

/// A running counter of the calling thread; empty if counting is not permitted.
pub struct Instructions(Option<Counter>);

impl fmt::Debug for Instructions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Instructions")
            .finish_non_exhaustive()
    }
}

impl Instructions {
    /// Starts counting for this thread.
    #[must_use]
    pub fn of_this_thread() -> Self {
        Self(running().ok())
    }

    /// Instructions so far.
    pub fn read(&mut self) -> Option<u64> {
        self.0.as_mut()?.read().ok()
    }

    /// Why instructions cannot be counted here; `None` if they can.
    #[must_use]
    pub fn refusal() -> Option<String> {
        let error = running().err()?;
        Some(match error.raw_os_error() {
            Some(1 | 13) => "not permitted (see /proc/sys/kernel/perf_event_paranoid)".to_owned(),
            _ => format!("this machine does not count them ({error})"),
        })
    }
}

fn running() -> std::io::Result<Counter> {
    let mut counter = Builder::new(Hardware::INSTRUCTIONS).build()?;
    counter.enable()?;
    Ok(counter)
}

#[cfg(test)]
mod tests {
    use super::Instructions;

    #[test]
    fn either_they_are_counted_or_it_is_said_why_not() {
        let mut counter = Instructions::of_this_thread();
        match Instructions::refusal() {
            None => {
                let before = counter.read().expect("counted");
                assert!(counter.read().expect("counted") > before);
            }
            Some(why) => {
                assert!(!why.is_empty());
                assert_eq!(counter.read(), None);
            }
        }
    }
}
