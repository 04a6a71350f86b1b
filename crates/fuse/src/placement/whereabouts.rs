//! On which cores the callers run, read by a thread that serves nobody.
//!
//! `/proc/PID/stat` tells a process's core, and whoever reads it waits while that process begins a program (`execve`).
//! There the kernel closes the files that the program is not meant to have, and what was written to them goes to their
//! server: a serving thread that read of its own caller could wait for itself, for ever. So it leaves a question at its
//! [`Desk`], one thread for the whole process answers, and the serving thread finds the answer at a later call. If the
//! one that answers must wait, nobody is followed meanwhile; the waiting ends because the server goes on.
//!
//! Each desk has one question at most on its way, so the list of questions is no longer than there are desks. The
//! list's lock is a leaf, taken at a thread's rare looks; who finds it held asks another time, since the thread that
//! answers gives way to everybody. An answer is one store into the asking desk's own cache line.

use std::collections::VecDeque;
use std::fs;
use std::sync::{Arc, OnceLock};

use pext4_sync::atomic::{AtomicU64, Ordering};
use pext4_sync::order::Class;
use pext4_sync::thread::try_spawn;
use pext4_sync::{CachePadded, Condvar, Mutex, scheduling};

/// Where `/proc/PID/stat` tells the core, counted behind the command's closing parenthesis.
const CORE_FIELD: usize = 36;

/// Set in an answer that has come.
const ANSWERED: u64 = 1 << 63;
/// In place of a core that is not known.
const UNKNOWN: u16 = u16::MAX;

/// The cores of the processes that were asked for, in the same order.
pub(super) type Cores = [Option<usize>; 2];

/// Where one serving thread asks, and finds the answer: two cores of 16 bits, and [`ANSWERED`].
pub(super) struct Desk(Arc<CachePadded<AtomicU64>>);

/// A question: whose desk, and the two processes; process 0 is none.
type Question = (Arc<CachePadded<AtomicU64>>, [u32; 2]);

/// What waits for the thread that answers.
struct Questions {
    waiting: Mutex<VecDeque<Question>>,
    come: Condvar,
}

impl Desk {
    pub(super) fn new() -> Self {
        Self(Arc::new(CachePadded::new(AtomicU64::new(0))))
    }

    /// Asks for the cores of two processes. False if nobody will answer: others ask just now, or no thread could be
    /// started.
    ///
    /// The first to ask starts the thread that answers, which takes over the first one's place; who asks must not
    /// follow anybody before it has had an answer.
    pub(super) fn ask(&self, processes: [u32; 2]) -> bool {
        let Some(questions) = Questions::answered() else {
            return false;
        };
        questions.ask((Arc::clone(&self.0), processes))
    }

    /// The answer, once, if it has come.
    pub(super) fn take(&self) -> Option<Cores> {
        let answer = self.0.load(Ordering::Relaxed);
        if answer & ANSWERED == 0 {
            return None;
        }
        // One question at a time: nobody stores another answer meanwhile.
        self.0.store(0, Ordering::Relaxed);
        Some(decode(answer))
    }
}

impl Questions {
    /// The list that a thread answers, which is started for the first question.
    fn answered() -> Option<&'static Self> {
        static QUESTIONS: OnceLock<Option<Arc<Questions>>> = OnceLock::new();
        let start = || {
            let questions = Arc::new(Questions {
                waiting: Mutex::new(Class::Leaf, VecDeque::new()),
                come: Condvar::new(),
            });
            let answering = Arc::clone(&questions);
            let thread = try_spawn("pext4-callers", move || answering.answer_for_ever());
            thread.is_ok().then_some(questions)
        };
        QUESTIONS.get_or_init(start).as_deref()
    }

    fn ask(&self, question: Question) -> bool {
        let Some(mut waiting) = self.waiting.try_lock() else {
            return false;
        };
        waiting.push_back(question);
        drop(waiting);
        self.come.notify_one();
        true
    }

    fn answer_for_ever(&self) {
        // A core where it runs, or did a moment ago, is to count as free for the caller that is about to be woken.
        let _ = scheduling::set_idle_class(true);
        loop {
            let (desk, processes) = self.next();
            desk.store(encode(processes.map(core_of)), Ordering::Relaxed);
        }
    }

    fn next(&self) -> Question {
        let mut waiting = self.waiting.lock();
        loop {
            if let Some(question) = waiting.pop_front() {
                return question;
            }
            self.come.wait(&mut waiting);
        }
    }
}

fn encode([first, second]: Cores) -> u64 {
    let short = |core: Option<usize>| core.and_then(|core| u16::try_from(core).ok());
    let bits = |core| u64::from(short(core).unwrap_or(UNKNOWN));
    ANSWERED | bits(first) << 16 | bits(second)
}

fn decode(answer: u64) -> Cores {
    [16, 0].map(|shift| {
        let bits = u16::try_from(answer >> shift & u64::from(u16::MAX)).expect("masked");
        (bits != UNKNOWN).then_some(usize::from(bits))
    })
}

/// The core that a process ran on last.
fn core_of(process: u32) -> Option<usize> {
    if process == 0 {
        return None;
    }
    core_in(&fs::read_to_string(format!("/proc/{process}/stat")).ok()?)
}

fn core_in(stat: &str) -> Option<usize> {
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(CORE_FIELD)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::process;
    use std::thread;

    use super::{Desk, core_in, core_of, decode, encode};

    #[test]
    fn an_answer_comes_once_for_each_question() {
        let desk = Desk::new();
        assert_eq!(desk.take(), None, "nobody has asked");
        for processes in [[process::id(), 0], [u32::MAX, process::id()]] {
            while !desk.ask(processes) {
                thread::yield_now();
            }
            let cores = loop {
                match desk.take() {
                    Some(cores) => break cores,
                    None => thread::yield_now(),
                }
            };
            let known = cores.map(|core| core.is_some());
            assert_eq!(known, processes.map(|process| process == process::id()));
            assert_eq!(desk.take(), None, "it was taken");
        }
    }

    #[test]
    fn an_answer_tells_each_core_apart() {
        for cores in [[None, None], [Some(0), Some(70)], [None, Some(0xfffe)]] {
            assert_eq!(decode(encode(cores)), cores);
        }
        assert_eq!(decode(encode([Some(1 << 16), Some(3)])), [None, Some(3)]);
    }

    #[test]
    fn the_core_is_found_behind_any_command_name() {
        let fields: Vec<String> = (3..=52).map(|field| field.to_string()).collect();
        let stat = format!("17 (a ) b) {}", fields.join(" "));
        assert_eq!(core_in(&stat), Some(39));
        assert_eq!(core_in("17 (cut"), None);
    }

    #[test]
    fn a_process_that_is_gone_has_no_core() {
        assert!(core_of(process::id()).is_some());
        assert_eq!(core_of(u32::MAX), None);
        assert_eq!(core_of(0), None, "/proc/0 is none");
    }
}
