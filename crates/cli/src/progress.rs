//! A progress bar for long work, on terminals only.
//!
//! The work runs in the caller's thread and updates counters. A second thread reads them every
//! [`INTERVAL`] and draws a bar on standard error. The bar is removed before the result is printed.
//! If standard error is no terminal, or with `-q` or `--json`, there is no bar.

use std::io::{self, IsTerminal};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use pext4_block::{Phase, Progress};
use pext4_edit::EditError;
use pext4_sync::atomic::{AtomicBool, Ordering};
use pext4_sync::{Class, Condvar, Mutex, thread};

use crate::interrupt::Interrupt;
use crate::output::print_error;

/// The time between two updates of the bar.
const INTERVAL: Duration = Duration::from_millis(100);

/// The progress of work at one moment.
#[derive(Debug)]
pub struct ProgressState {
    /// What is being done.
    pub verb: &'static str,
    pub measure: Measure,
    pub position: u64,
    pub length: u64,
    /// Additional text, if the measure's template has a place for it.
    pub text: String,
}

/// What is counted, and whether the total is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Only the elapsed time.
    Time,
    /// Names, of an unknown total.
    Names,
    /// Files, of a known total.
    Files,
    /// Bytes, of a known total.
    Bytes,
    /// Bytes of an unknown total, after the text.
    BytesSoFar,
    /// Percent of a known total, which the text names.
    Percent,
    /// Measurements, of a known total; the text names the present one.
    Points,
}

/// The columns of a terminal that does not say how many it has.
const USUAL_COLUMNS: u16 = 80;
/// Columns from which on any of the texts leaves room for a bar, and for the widest bar.
const ENOUGH_FOR_A_BAR: u16 = 74;
const ENOUGH_FOR_THE_WIDEST: u16 = 104;

/// How much is shown, so that it fits one line: a longer one would be drawn again below itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Width {
    /// The verb and a number.
    Narrow,
    /// All, with a bar in the columns that are left.
    Usual,
    /// All, with the widest bar.
    Wide,
}

impl Width {
    fn of(columns: u16) -> Self {
        match columns {
            ENOUGH_FOR_THE_WIDEST.. => Self::Wide,
            ENOUGH_FOR_A_BAR.. => Self::Usual,
            _ => Self::Narrow,
        }
    }

    /// That of standard error.
    fn of_terminal() -> Self {
        let size = rustix::termios::tcgetwinsize(io::stderr());
        let columns = size.map_or(0, |size| size.ws_col);
        Self::of(match columns {
            0 => USUAL_COLUMNS,
            columns => columns,
        })
    }
}

impl Measure {
    fn template(self, width: Width) -> String {
        let bar = match width {
            Width::Narrow => return self.narrow_template().to_owned(),
            Width::Usual => "[{wide_bar}]",
            Width::Wide => "[{bar:30}]",
        };
        match self {
            Self::Time => "{prefix:9} {elapsed}".to_owned(),
            Self::Names => "{prefix:9} {pos} names  {per_sec}".to_owned(),
            Self::Files => {
                format!("{{prefix:9}} {bar} {{pos}} of {{len}} files  {{per_sec}}  {{eta}} left")
            }
            Self::Bytes => format!(
                "{{prefix:9}} {bar} {{bytes}} of {{total_bytes}}  {{bytes_per_sec}}  {{eta}} left"
            ),
            Self::BytesSoFar => "{prefix:9} {msg}, {bytes}  {bytes_per_sec}".to_owned(),
            Self::Percent => format!("{{prefix:9}} {bar} {{percent}} % of {{msg}}"),
            Self::Points => format!("{{prefix}}  {bar} {{pos}}/{{len}}  {{msg}}"),
        }
    }

    fn narrow_template(self) -> &'static str {
        match self {
            Self::Time => "{prefix:9} {elapsed}",
            Self::Names => "{prefix:9} {pos} names",
            Self::BytesSoFar => "{prefix:9} {bytes}",
            Self::Files | Self::Bytes | Self::Percent | Self::Points => "{prefix:9} {percent} %",
        }
    }

    fn style(self, width: Width) -> ProgressStyle {
        let template = self.template(width);
        ProgressStyle::with_template(&template).expect("a test tries all of them")
    }
}

impl ProgressState {
    /// Work of which only the elapsed time is known.
    pub fn elapsed(verb: &'static str) -> Self {
        Self {
            verb,
            measure: Measure::Time,
            position: 0,
            length: 0,
            text: String::new(),
        }
    }

    /// Work on an image; `verb` says what it does in [`Phase::Working`].
    pub fn of(verb: &'static str, progress: &Progress) -> Self {
        let state = progress.state();
        let verb = match state.phase {
            Phase::Reading => "reading",
            Phase::Planning => "planning",
            Phase::Cloning => "cloning",
            Phase::Writing => "writing",
            Phase::Syncing => "syncing",
            _ => verb,
        };
        let (measure, shown) = match (state.bytes.total, state.files.total, state.phase) {
            (Some(_), _, _) => (Measure::Bytes, state.bytes),
            (_, Some(_), _) => (Measure::Files, state.files),
            (_, _, Phase::Reading) => (Measure::Names, state.files),
            (_, _, Phase::Working) => (Measure::BytesSoFar, state.bytes),
            _ => (Measure::Time, state.bytes),
        };
        Self {
            measure,
            position: shown.done,
            length: shown.total.unwrap_or(0),
            text: match state.files.done {
                1 => "1 file".to_owned(),
                count => format!("{count} files"),
            },
            ..Self::elapsed(verb)
        }
    }
}

/// Whether progress is to be shown.
pub fn is_wanted(quiet: bool, json: bool) -> bool {
    !quiet && !json && io::stderr().is_terminal()
}

/// A line about the work while it runs; the bar is drawn again below it.
pub fn print(text: &str) {
    let clear = if io::stderr().is_terminal() {
        "\r\x1b[K"
    } else {
        ""
    };
    print_error(format_args!("{clear}{text}"));
}

/// Prints the error of a file that is left out.
pub fn report_skipped(error: &EditError) {
    print(&format!("pext4: left out: {error}"));
}

/// Runs work, and shows its progress if `is_wanted`.
pub fn watch<R>(
    is_wanted: bool,
    state: impl Fn() -> ProgressState + Sync,
    work: impl FnOnce() -> R,
) -> R {
    if !is_wanted {
        return work();
    }
    let bar = Bar::new();
    run_beside(|| bar.show(&state()), work)
}

/// As [`watch`], and calls `stop` on the first signal that asks the process to end. Another one, a
/// moment later, ends the process at once.
///
/// # Errors
///
/// The signals cannot be caught.
pub fn watch_until<R>(
    is_wanted: bool,
    state: impl Fn() -> ProgressState + Sync,
    stop: impl Fn() + Sync,
    work: impl FnOnce() -> R,
) -> io::Result<R> {
    let interrupt = Interrupt::catch()?;
    Ok(watch_with_interrupt(
        &interrupt, is_wanted, state, stop, work,
    ))
}

/// As [`watch_until`], for work in several parts: the signals are caught already. If one came
/// before this part, `stop` is called before `work`.
pub fn watch_with_interrupt<R>(
    interrupt: &Interrupt,
    is_wanted: bool,
    state: impl Fn() -> ProgressState + Sync,
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
            bar.show(&state());
        }
    };
    run_beside(look_after, work)
}

/// As [`watch_with_interrupt`], for work that goes on after a signal: the first one is answered by
/// this line.
pub fn watch_to_the_end<R>(
    interrupt: &Interrupt,
    is_wanted: bool,
    state: impl Fn() -> ProgressState + Sync,
    answer: &str,
    work: impl FnOnce() -> R,
) -> R {
    let is_answered = AtomicBool::new(false);
    let answer_once = || {
        if !is_answered.swap(true, Ordering::Relaxed) {
            print(answer);
        }
    };
    let done = watch_with_interrupt(interrupt, is_wanted, state, answer_once, work);
    // One that came shortly before the end is answered as well.
    if interrupt.came() {
        answer_once();
    }
    done
}

/// Runs work, and calls `again` repeatedly in another thread meanwhile.
fn run_beside<R>(again: impl Fn() + Sync, work: impl FnOnce() -> R) -> R {
    let end = End {
        is_reached: Mutex::new(Class::Leaf, false),
        reached: Condvar::new(),
    };
    thread::scope(|scope| {
        // If the system refuses the thread, there is no progress, and only another signal works.
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

/// Sets the end when it is dropped, also after a panic of the work.
struct Reaching<'a>(&'a End);

impl Drop for Reaching<'_> {
    fn drop(&mut self) {
        *self.0.is_reached.lock() = true;
        self.0.reached.notify_all();
    }
}

/// What determines how a bar is drawn. For another verb or measure it is also reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shown {
    verb: &'static str,
    measure: Measure,
    width: Width,
}

/// A bar on standard error, which is removed on drop.
pub struct Bar {
    bar: ProgressBar,
    /// What it was drawn for last.
    shown: Mutex<Option<Shown>>,
}

impl Bar {
    pub fn new() -> Self {
        Self {
            bar: ProgressBar::no_length().with_style(Measure::Time.style(Width::Narrow)),
            shown: Mutex::new(Class::Leaf, None),
        }
    }

    /// Brings the bar up to date.
    pub fn show(&self, state: &ProgressState) {
        self.show_in(Width::of_terminal(), state);
    }

    fn show_in(&self, width: Width, state: &ProgressState) {
        let what = Shown {
            verb: state.verb,
            measure: state.measure,
            width,
        };
        let before = self.shown.lock().replace(what);
        let is_new = before.is_none_or(|it| (it.verb, it.measure) != (state.verb, state.measure));
        // Each call may draw, so the style comes first, and then what it shows.
        if before != Some(what) {
            self.bar.set_style(state.measure.style(width));
            self.bar.set_prefix(state.verb);
        }
        self.bar.set_message(state.text.clone());
        self.bar.set_length(state.length.max(state.position));
        if is_new {
            self.bar.reset();
        }
        self.bar.set_position(state.position);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::{
        Bar, ENOUGH_FOR_A_BAR, ENOUGH_FOR_THE_WIDEST, Interrupt, Measure, Phase, Progress,
        ProgressState, Width, run_beside, watch, watch_with_interrupt,
    };
    use indicatif::{ProgressDrawTarget, TermLike};
    use pext4_sync::atomic::{AtomicU32, Ordering};
    use pext4_sync::{Class, Condvar, Mutex};
    use std::io;
    use std::sync::Arc;

    #[test]
    fn work_and_watching_run_side_by_side() {
        let (looks, more) = (Mutex::new(Class::Leaf, 0), Condvar::new());
        let again = || {
            *looks.lock() += 1;
            more.notify_all();
        };
        let result = run_beside(again, || {
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
        let state = || {
            looks.fetch_add(1, Ordering::Relaxed);
            ProgressState::elapsed("working")
        };
        assert_eq!(watch(false, state, || 7), 7);
        assert_eq!(looks.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn what_is_shown_depends_on_the_phase_and_on_what_is_known() {
        let progress = Progress::default();
        progress.add(1, 5);
        let state = ProgressState::of("copying", &progress);
        assert_eq!(
            (state.verb, state.measure),
            ("copying", Measure::BytesSoFar)
        );
        assert_eq!((state.position, state.text.as_str()), (5, "1 file"));
        let cloning = progress.during(Phase::Cloning, || ProgressState::of("copying", &progress));
        assert_eq!((cloning.verb, cloning.measure), ("cloning", Measure::Time));
        for (phase, files, bytes, verb, measure, length) in [
            (Phase::Reading, 0, 0, "reading", Measure::Names, 0),
            (Phase::Planning, 0, 0, "planning", Measure::Time, 0),
            (Phase::Cloning, 0, 9, "cloning", Measure::Bytes, 9),
            (Phase::Writing, 8, 9, "writing", Measure::Bytes, 9),
            (Phase::Writing, 8, 0, "writing", Measure::Files, 8),
            (Phase::Syncing, 0, 0, "syncing", Measure::Time, 0),
        ] {
            progress.enter(phase, files, bytes);
            let state = ProgressState::of("copying", &progress);
            let shown = (state.verb, state.measure, state.length);
            assert_eq!(shown, (verb, measure, length));
        }
    }

    /// Of work in several parts, a signal during one is seen before the next begins.
    #[test]
    fn work_begins_after_a_signal_that_came_before() {
        let (interrupt, is_stopped) = (Interrupt::sent(), AtomicU32::new(0));
        let stop = || is_stopped.store(1, Ordering::Relaxed);
        let state = || ProgressState::elapsed("working");
        let seen = || is_stopped.load(Ordering::Relaxed);
        assert_eq!(
            watch_with_interrupt(&interrupt, false, state, stop, seen),
            1
        );
    }

    /// A terminal that keeps the widest line.
    #[derive(Clone, Debug)]
    struct Paper {
        columns: u16,
        widest: Arc<AtomicU32>,
    }

    impl Paper {
        fn write(&self, text: &str) -> io::Result<()> {
            let width = u32::try_from(text.chars().count()).expect("a short line");
            self.widest.fetch_max(width, Ordering::Relaxed);
            Ok(())
        }
    }

    impl TermLike for Paper {
        fn width(&self) -> u16 {
            self.columns
        }
        fn move_cursor_up(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_down(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_right(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_left(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn write_line(&self, text: &str) -> io::Result<()> {
            self.write(text)
        }
        fn write_str(&self, text: &str) -> io::Result<()> {
            self.write(text)
        }
        fn clear_line(&self) -> io::Result<()> {
            Ok(())
        }
        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn every_measure_fits_one_line_of_the_terminal() {
        for (measure, length, text) in [
            (Measure::Time, 0, ""),
            (Measure::Names, 0, ""),
            (Measure::Files, 4_000_000_000, ""),
            (Measure::Bytes, (1 << 50) - 1, ""),
            (Measure::BytesSoFar, (1 << 50) - 1, "1000000 files"),
            (Measure::Percent, 100, "directories and their indexes"),
            (Measure::Points, 1000, "kernel ext4, tasks 1024"),
        ] {
            for columns in [32, ENOUGH_FOR_A_BAR, 80, ENOUGH_FOR_THE_WIDEST, 200] {
                let paper = Paper {
                    columns,
                    widest: Arc::default(),
                };
                let bar = Bar::new();
                let target = ProgressDrawTarget::term_like(Box::new(paper.clone()));
                bar.bar.set_draw_target(target);
                bar.show_in(
                    Width::of(columns),
                    &ProgressState {
                        measure,
                        position: 7,
                        length,
                        text: text.to_owned(),
                        ..ProgressState::elapsed("exporting")
                    },
                );
                bar.bar.tick();
                let widest = paper.widest.load(Ordering::Relaxed);
                assert!(widest > 9, "{measure:?} in {columns}: it was not drawn");
                assert!(
                    widest <= columns.into(),
                    "{measure:?} in {columns}: {widest}"
                );
            }
        }
    }

    #[test]
    fn the_watching_ends_with_work_that_panics() {
        let outcome = std::panic::catch_unwind(|| run_beside(|| (), || panic!("on purpose")));
        assert!(outcome.is_err());
    }
}
