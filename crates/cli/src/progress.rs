//! How far long work is, on a terminal and nowhere else.
//!
//! The work runs in the caller's thread and counts, in numbers that anybody may read; a thread beside
//! it reads them now and then and moves a bar on standard error. The bar is gone before the work's
//! result is told. Where standard error is no terminal, or `-q` or `--json` ask for silence, there is
//! neither bar nor thread.

use std::io::{self, IsTerminal};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use pext4_edit::EditError;
use pext4_sync::{Class, Condvar, Mutex, thread};

use crate::interrupt::Interrupt;
use crate::say::aside;

/// How often the bar moves.
const INTERVAL: Duration = Duration::from_millis(100);

/// How far something is at a moment.
#[derive(Debug)]
pub struct Look {
    /// What is being done.
    pub verb: &'static str,
    pub measure: Measure,
    pub position: u64,
    pub length: u64,
    /// What else is said, where the measure has a place for it.
    pub text: String,
}

/// What is counted, and whether its end is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Nothing but time.
    Time,
    /// Names, of nobody knows how many.
    Names,
    /// Files, of all.
    Files,
    /// Bytes, of all.
    Bytes,
    /// Bytes beside what the text says, of nobody knows how many.
    BytesSoFar,
    /// Steps of what the text says.
    Percent,
}

impl Measure {
    fn template(self) -> &'static str {
        match self {
            Self::Time => "{prefix:9} {elapsed}",
            Self::Names => "{prefix:9} {pos} names  {per_sec}",
            Self::Files => "{prefix:9} [{bar:30}] {pos} of {len} files  {per_sec}  {eta} left",
            Self::Bytes => {
                "{prefix:9} [{bar:30}] {bytes} of {total_bytes}  {bytes_per_sec}  {eta} left"
            }
            Self::BytesSoFar => "{prefix:9} {msg}, {bytes}  {bytes_per_sec}",
            Self::Percent => "{prefix:9} [{bar:30}] {percent} % of {msg}",
        }
    }

    fn style(self) -> ProgressStyle {
        ProgressStyle::with_template(self.template()).expect("a test tries all of them")
    }
}

impl Look {
    /// Something of which only the time is known.
    pub fn at(verb: &'static str) -> Self {
        Self {
            verb,
            measure: Measure::Time,
            position: 0,
            length: 0,
            text: String::new(),
        }
    }

    /// An edit or a copy, of which nobody knows the end before.
    pub fn so_far(verb: &'static str, progress: &pext4_edit::Progress) -> Self {
        if progress.is_copying() {
            return Self::at("cloning");
        }
        Self {
            measure: Measure::BytesSoFar,
            position: progress.bytes(),
            text: match progress.files() {
                1 => "1 file".to_owned(),
                count => format!("{count} files"),
            },
            ..Self::at(verb)
        }
    }
}

/// Whether progress is to be shown.
pub fn is_wanted(quiet: bool, json: bool) -> bool {
    !quiet && !json && io::stderr().is_terminal()
}

/// A line about the work while it runs; the bar is drawn again below it.
pub fn say(text: &str) {
    let clear = if io::stderr().is_terminal() {
        "\r\x1b[K"
    } else {
        ""
    };
    aside(format_args!("{clear}{text}"));
}

/// Says what of an image is left out, and why.
pub fn say_left_out(error: &EditError) {
    say(&format!("pext4: left out: {error}"));
}

/// Does work and shows how far it is, if that is wanted.
pub fn watch<R>(is_wanted: bool, look: impl Fn() -> Look + Sync, work: impl FnOnce() -> R) -> R {
    if !is_wanted {
        return work();
    }
    let bar = Bar::new();
    meanwhile(|| bar.show(&look()), work)
}

/// As [`watch`]; a first signal that asks the process to end calls `stop`, a second one ends it at
/// once.
///
/// # Errors
/// The signals cannot be caught.
pub fn watch_until<R>(
    is_wanted: bool,
    look: impl Fn() -> Look + Sync,
    stop: impl Fn() + Sync,
    work: impl FnOnce() -> R,
) -> io::Result<R> {
    let interrupt = Interrupt::catch()?;
    Ok(watch_caught(&interrupt, is_wanted, look, stop, work))
}

/// As [`watch_until`], for work in several parts: the signals are caught already. If one came
/// before this part, `stop` is called before `work`.
pub fn watch_caught<R>(
    interrupt: &Interrupt,
    is_wanted: bool,
    look: impl Fn() -> Look + Sync,
    stop: impl Fn() + Sync,
    work: impl FnOnce() -> R,
) -> R {
    if interrupt.came() {
        stop();
    }
    let bar = is_wanted.then(Bar::new);
    let look_after = || {
        if interrupt.came() {
            stop();
        }
        if let Some(bar) = &bar {
            bar.show(&look());
        }
    };
    meanwhile(look_after, work)
}

/// Does work, and something else again and again beside it.
fn meanwhile<R>(again: impl Fn() + Sync, work: impl FnOnce() -> R) -> R {
    let end = End {
        is_reached: Mutex::new(Class::Leaf, false),
        reached: Condvar::new(),
    };
    thread::scope(|scope| {
        // Where the system has no room for it, nobody looks: a first signal is not seen then, a second one is.
        let _beside = thread::try_spawn_scoped(scope, || end.repeat(&again));
        let _reaching = Reaching(&end);
        work()
    })
}

/// Whether the work has ended.
struct End {
    is_reached: Mutex<bool>,
    reached: Condvar,
}

impl End {
    fn repeat(&self, again: &(impl Fn() + Sync)) {
        while !self.is_reached_soon() {
            again();
        }
    }

    fn is_reached_soon(&self) -> bool {
        let mut is_reached = self.is_reached.lock();
        if !*is_reached {
            self.reached.wait_for(&mut is_reached, INTERVAL);
        }
        *is_reached
    }
}

/// Tells that the work has ended, however that is.
struct Reaching<'a>(&'a End);

impl Drop for Reaching<'_> {
    fn drop(&mut self) {
        *self.0.is_reached.lock() = true;
        self.0.reached.notify_all();
    }
}

/// A bar on standard error, gone when it is dropped.
pub struct Bar {
    bar: ProgressBar,
    /// What it was drawn for last; something else begins anew.
    shown: Mutex<Option<(&'static str, Measure)>>,
}

impl Bar {
    pub fn new() -> Self {
        Self {
            bar: ProgressBar::no_length(),
            shown: Mutex::new(Class::Leaf, None),
        }
    }

    /// Brings the bar up to date.
    pub fn show(&self, look: &Look) {
        let what = (look.verb, look.measure);
        let shown = self.shown.lock().replace(what);
        if shown != Some(what) {
            self.bar.reset();
            self.bar.set_style(look.measure.style());
            self.bar.set_prefix(look.verb);
        }
        self.bar.set_length(look.length.max(look.position));
        self.bar.set_message(look.text.clone());
        self.bar.set_position(look.position);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::{Bar, Interrupt, Look, Measure, meanwhile, watch, watch_caught};
    use pext4_sync::atomic::{AtomicU32, Ordering};
    use pext4_sync::{Class, Condvar, Mutex};

    #[test]
    fn work_and_watching_run_side_by_side() {
        let (looks, more) = (Mutex::new(Class::Leaf, 0), Condvar::new());
        let again = || {
            *looks.lock() += 1;
            more.notify_all();
        };
        let result = meanwhile(again, || {
            // It ends only because somebody looks while it runs, more than once.
            let mut seen = looks.lock();
            while *seen < 2 {
                more.wait(&mut seen);
            }
            "done"
        });
        assert_eq!(result, "done");
    }

    #[test]
    fn nobody_looks_where_nothing_is_shown() {
        let looks = AtomicU32::new(0);
        let look = || {
            looks.fetch_add(1, Ordering::Relaxed);
            Look::at("working")
        };
        assert_eq!(watch(false, look, || 7), 7);
        assert_eq!(looks.load(Ordering::Relaxed), 0);
    }

    /// Of work in several parts, a signal during one is seen before the next begins.
    #[test]
    fn work_begins_after_a_signal_that_came_before() {
        let (interrupt, is_stopped) = (Interrupt::sent(), AtomicU32::new(0));
        let stop = || is_stopped.store(1, Ordering::Relaxed);
        let look = || Look::at("working");
        let seen = || is_stopped.load(Ordering::Relaxed);
        assert_eq!(watch_caught(&interrupt, false, look, stop, seen), 1);
    }

    #[test]
    fn every_measure_can_be_drawn() {
        let bar = Bar::new();
        for measure in [
            Measure::Time,
            Measure::Names,
            Measure::Files,
            Measure::Bytes,
            Measure::BytesSoFar,
            Measure::Percent,
        ] {
            bar.show(&Look {
                measure,
                position: 7,
                ..Look::at("working")
            });
        }
    }

    #[test]
    fn the_watching_ends_with_work_that_panics() {
        let outcome = std::panic::catch_unwind(|| meanwhile(|| (), || panic!("on purpose")));
        assert!(outcome.is_err());
    }
}
