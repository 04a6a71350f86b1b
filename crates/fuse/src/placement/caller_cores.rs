//! Reads on which cores callers run, on a thread that serves no requests.
//!
//! `/proc/PID/stat` contains a process's core. Reading it waits while that process executes
//! `execve`, where the kernel closes the close-on-exec files and sends their dirty pages to the
//! server. A serving thread that reads the file of its own caller could thus wait for itself, for
//! ever. So it sends a query through its [`CoreQuery`], one thread for the whole process answers,
//! and the serving thread takes the answer at a later call. If the answering thread must wait, no
//! caller is followed meanwhile; the wait ends because the server continues to serve.
//!
//! Each serving thread has at most one query in the queue, which bounds its length. The queue's
//! lock is a leaf, taken for a thread's rare samples. A thread that finds it held tries again
//! later, since the answering thread is in the idle class. An answer is one store into the querying
//! thread's own cache line.

use std::collections::VecDeque;
use std::fs;
use std::sync::{Arc, OnceLock};

use pext4_sync::atomic::{AtomicU32, Ordering};
use pext4_sync::order::Class;
use pext4_sync::thread::try_spawn;
use pext4_sync::{CachePadded, Condvar, Mutex, scheduling};

/// Index of the core in `/proc/PID/stat`, counted after the command's closing parenthesis.
const CORE_FIELD: usize = 36;

/// Set in an answer that has arrived.
const ANSWERED: u32 = 1 << 31;
/// In place of a core that is unknown.
const UNKNOWN: u16 = u16::MAX;

/// The answer to the query of one serving thread: a core of 16 bits, and [`ANSWERED`].
pub(super) struct CoreQuery(Arc<CachePadded<AtomicU32>>);

/// A query: where to store the answer, and a process; process 0 is none.
type Query = (Arc<CachePadded<AtomicU32>>, u32);

/// The queue of the answering thread.
struct Queries {
    waiting: Mutex<VecDeque<Query>>,
    not_empty: Condvar,
}

impl CoreQuery {
    pub(super) fn new() -> Self {
        Self(Arc::new(CachePadded::new(AtomicU32::new(0))))
    }

    /// Queries the core of a process. False if there will be no answer: the queue is locked by
    /// another thread, or the answering thread could not be started.
    ///
    /// The first query starts the answering thread, which inherits the caller's placement. So a
    /// thread must not follow a caller before it has had an answer.
    pub(super) fn ask(&self, process: u32) -> bool {
        let Some(queries) = Queries::shared() else {
            return false;
        };
        queries.ask((Arc::clone(&self.0), process))
    }

    /// The answer, once, if it has come: the core, unless it is unknown.
    pub(super) fn take(&self) -> Option<Option<usize>> {
        let answer = self.0.load(Ordering::Relaxed);
        if answer & ANSWERED == 0 {
            return None;
        }
        // There is one query at a time, so no other answer is stored meanwhile.
        self.0.store(0, Ordering::Relaxed);
        Some(decode(answer))
    }
}

impl Queries {
    /// The process's queue; the first call starts the answering thread.
    fn shared() -> Option<&'static Self> {
        static QUERIES: OnceLock<Option<Arc<Queries>>> = OnceLock::new();
        let start = || {
            let queries = Arc::new(Queries {
                waiting: Mutex::new(Class::Leaf, VecDeque::new()),
                not_empty: Condvar::new(),
            });
            let answering = Arc::clone(&queries);
            let thread = try_spawn("pext4-callers", move || answering.run());
            thread.is_ok().then_some(queries)
        };
        QUERIES.get_or_init(start).as_deref()
    }

    fn ask(&self, query: Query) -> bool {
        let Some(mut waiting) = self.waiting.try_lock() else {
            return false;
        };
        waiting.push_back(query);
        drop(waiting);
        self.not_empty.notify_one();
        true
    }

    fn run(&self) {
        // The core where this thread runs, or ran a moment ago, must count as free for the caller
        // that is woken next.
        let _ = scheduling::set_idle_class(true);
        loop {
            let (answer, process) = self.next();
            answer.store(encode(core_of(process)), Ordering::Relaxed);
        }
    }

    fn next(&self) -> Query {
        let mut waiting = self.waiting.lock();
        loop {
            if let Some(query) = waiting.pop_front() {
                return query;
            }
            self.not_empty.wait(&mut waiting);
        }
    }
}

fn encode(core: Option<usize>) -> u32 {
    let short = core.and_then(|core| u16::try_from(core).ok());
    ANSWERED | u32::from(short.unwrap_or(UNKNOWN))
}

fn decode(answer: u32) -> Option<usize> {
    let core = u16::try_from(answer & u32::from(u16::MAX)).expect("masked");
    (core != UNKNOWN).then_some(usize::from(core))
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

    use super::{CoreQuery, core_in, core_of, decode, encode};

    #[test]
    fn each_query_has_one_answer() {
        let (query, id) = (CoreQuery::new(), process::id());
        assert_eq!(query.take(), None, "nobody has asked");
        for process in [id, 0, u32::MAX] {
            while !query.ask(process) {
                thread::yield_now();
            }
            let core = loop {
                match query.take() {
                    Some(core) => break core,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(core.is_some(), process == id);
            assert_eq!(query.take(), None, "it was taken");
        }
    }

    #[test]
    fn an_answer_keeps_the_core() {
        for core in [None, Some(0), Some(70), Some(0xfffe)] {
            assert_eq!(decode(encode(core)), core);
        }
        assert_eq!(decode(encode(Some(1 << 16))), None);
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
