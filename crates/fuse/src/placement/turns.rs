//! Processes that change names in one directory, one after another.
//!
//! The kernel holds the lock of a directory while it waits for the reply to a change of its names.
//! So of all processes that change names in one directory a single one waits for the server, and a
//! single thread can serve them. That thread goes to the core of each in its turn, which may last
//! for one call. It knows these cores from queries, which it repeats if they are older than
//! [`VALID`], one at a time. As long as it does not know a caller's core it stays where it is, and
//! the turn costs as much as it would without.
//!
//! Which calls belong to the turns: changes of names in the directory, and all other calls of the
//! processes that change them. Any other call ends the turns, since its caller need not wait for
//! the directory; so does data.

use std::time::{Duration, Instant};

/// Changes of names in one directory, by several processes, after which these take turns.
const CALLS_TO_TAKE_TURNS: u32 = 64;
/// Calls of one process in a row after which it takes no turns any more.
const CALLS_ALONE: u32 = 4096;
/// Most processes that take turns. The core of one among more is not known any more when its turn
/// comes.
const MAX_CALLERS: usize = 16;
/// How long an answer about a core is used without a new query.
const VALID: Duration = Duration::from_millis(2);

/// The turns that one thread serves, or could serve.
#[derive(Default)]
pub(super) struct Turns {
    /// The directory in which names were changed last.
    directory: Option<u64>,
    /// Changes of names in it.
    changes: u32,
    /// Calls since another process called.
    alone: u32,
    callers: Vec<Caller>,
}

/// A process that changes names in the directory.
struct Caller {
    process: u32,
    core: Option<usize>,
    asked: Option<Instant>,
}

impl Turns {
    /// Notes a call of a process, and the directory in which it changes names, if it does. Returns
    /// whether it is a part of turns.
    pub(super) fn note(&mut self, process: u32, directory: Option<u64>) -> bool {
        let is_known = self.position(process).is_some();
        let is_part = match directory {
            Some(_) => directory == self.directory,
            None => is_known,
        };
        let is_crowd = !is_known && self.callers.len() >= MAX_CALLERS;
        if !is_part || is_crowd || self.alone >= CALLS_ALONE {
            self.begin_in(directory);
        }
        if directory.is_some() {
            self.changes = self.changes.saturating_add(1);
        }
        match self.position(process) {
            Some(0) => self.alone = self.alone.saturating_add(1),
            position if self.changes > 0 => {
                self.alone = 0;
                self.make_first(process, position);
            }
            _ => {}
        }
        self.changes >= CALLS_TO_TAKE_TURNS && self.callers.len() > 1
    }

    /// Forgets all calls: others follow, in this directory if they change names.
    pub(super) fn begin_in(&mut self, directory: Option<u64>) {
        self.directory = directory;
        self.changes = 0;
        self.alone = 0;
        self.callers.clear();
    }

    fn position(&self, process: u32) -> Option<usize> {
        self.callers
            .iter()
            .position(|caller| caller.process == process)
    }

    /// Keeps the callers in the order of their last turns.
    fn make_first(&mut self, process: u32, position: Option<usize>) {
        let caller = match position {
            Some(position) => self.callers.remove(position),
            None => Caller {
                process,
                core: None,
                asked: None,
            },
        };
        self.callers.insert(0, caller);
    }

    /// The processes, beginning with the one that called last.
    pub(super) fn processes(&self) -> Vec<u32> {
        self.callers.iter().map(|caller| caller.process).collect()
    }

    /// The core of the process that called last, if it is known.
    pub(super) fn core(&self) -> Option<usize> {
        self.callers.first().and_then(|caller| caller.core)
    }

    /// The process that called last, if its core should be queried.
    pub(super) fn to_ask(&self, now: Instant) -> Option<u32> {
        let caller = self.callers.first()?;
        let is_valid = |asked: Instant| now.saturating_duration_since(asked) < VALID;
        (!caller.asked.is_some_and(is_valid)).then_some(caller.process)
    }

    /// Notes that the core of the process that called last is queried.
    pub(super) fn note_asked(&mut self, now: Instant) {
        if let Some(caller) = self.callers.first_mut() {
            caller.asked = Some(now);
        }
    }

    /// Notes the answer to a query.
    pub(super) fn learn(&mut self, process: u32, core: Option<usize>) {
        if let Some(position) = self.position(process) {
            self.callers[position].core = core;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::{CALLS_ALONE, CALLS_TO_TAKE_TURNS, MAX_CALLERS, Turns, VALID};

    const DIRECTORY: u64 = 5;

    /// Turns of processes 7 and 8.
    fn turns() -> Turns {
        let mut turns = Turns::default();
        for call in 1..=CALLS_TO_TAKE_TURNS {
            let takes = turns.note(7 + call % 2, Some(DIRECTORY));
            assert_eq!(takes, call == CALLS_TO_TAKE_TURNS);
        }
        turns
    }

    #[test]
    fn processes_that_change_one_directory_take_turns() {
        let mut turns = turns();
        assert!(turns.note(8, None), "a call between two changes");
        assert!(turns.note(7, Some(DIRECTORY)));
    }

    #[test]
    fn other_directories_and_other_callers_end_turns() {
        let mut other = turns();
        assert!(!other.note(7, Some(6)));
        assert!(!other.note(8, Some(DIRECTORY)));
        let mut stranger = turns();
        assert!(!stranger.note(9, None));
        assert!(!stranger.note(8, Some(DIRECTORY)));
        let mut third = turns();
        assert!(third.note(9, Some(DIRECTORY)), "it waits for its turn too");
    }

    #[test]
    fn one_process_takes_no_turns() {
        let mut turns = turns();
        let mut alone = || turns.note(7, Some(DIRECTORY));
        assert!((0..CALLS_ALONE).all(|_| alone()), "the other one may call");
        assert!((0..1000).all(|_| !alone()));
        let mut one = Turns::default();
        assert!((0..1000).all(|_| !one.note(7, Some(DIRECTORY))));
    }

    #[test]
    fn cores_are_known_for_a_while() {
        let (mut turns, now) = (turns(), Instant::now());
        let last = turns.processes()[0];
        assert_eq!((turns.core(), turns.to_ask(now)), (None, Some(last)));
        turns.note_asked(now);
        assert_eq!(turns.to_ask(now), None);
        turns.learn(last, Some(3));
        assert_eq!(turns.core(), Some(3));
        assert!(turns.note(15 - last, Some(DIRECTORY)));
        assert_eq!(turns.core(), None, "that of the other one");
        assert!(turns.note(last, Some(DIRECTORY)));
        assert_eq!(
            (turns.core(), turns.to_ask(now + VALID)),
            (Some(3), Some(last))
        );
    }

    #[test]
    fn a_crowd_takes_no_turns() {
        let mut few = turns();
        for call in 0..1000 {
            assert!(few.note(7 + call % MAX_CALLERS as u32, Some(DIRECTORY)));
        }
        let crowd = 0..=MAX_CALLERS as u32;
        let mut many = turns();
        let calls = crowd.cycle().take(1000);
        let last = calls.map(|process| many.note(process, Some(DIRECTORY)));
        assert!(last.skip(MAX_CALLERS).all(|takes| !takes));
    }
}
