//! The ways of a reply to the thread whose ring carries it.
//!
//! A reply that is sent on the ring's own thread is put on a list of that thread, without a lock or
//! a system call; the thread submits what is on the list before it serves the next request or
//! sleeps. Any other thread puts it into the ring's inbox, under a lock that is held for a few
//! instructions, and wakes the ring's thread through an event counter if the inbox was empty.

use std::cell::{Cell, RefCell};
use std::io;
use std::mem;
use std::os::fd::OwnedFd;
use std::ptr;
use std::sync::Arc;

use pext4_sync::{Class, Mutex};
use rustix::event::{EventfdFlags, eventfd};

use super::memory::{Memory, Slot};

/// An entry of a ring.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) queue: u16,
    pub(super) memory: Memory,
}

/// What a ring's thread shares with those that send replies.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(super) entries: Box<[Entry]>,
    inbox: Mutex<Inbox>,
    /// An event counter, on which the ring's thread is woken.
    pub(super) waker: OwnedFd,
}

#[derive(Debug)]
struct Inbox {
    answers: Vec<Answer>,
    /// Whether the connection has ended, which somebody else has seen.
    has_ended: bool,
    /// Whether the ring's thread is there. Slots hold the inbox that they lie in, so nothing may
    /// stay there for ever.
    is_open: bool,
}

/// A reply on its way to the ring's thread.
#[derive(Debug)]
pub(super) enum Answer {
    /// It is in the entry's memory.
    Written(Slot),
    /// It still has to be written there by the ring's thread, which has the slot.
    Staged(Staged),
}

impl Answer {
    fn shared(&self) -> &Arc<Shared> {
        match self {
            Self::Written(slot) => slot.shared(),
            Self::Staged(staged) => &staged.shared,
        }
    }
}

/// A reply that is not in its entry's memory yet.
#[derive(Debug)]
pub(super) struct Staged {
    shared: Arc<Shared>,
    pub(super) index: usize,
    pub(super) unique: u64,
    pub(super) error: i32,
    pub(super) bytes: Vec<u8>,
}

impl Shared {
    /// Entries for some queues, each with so many of so much room.
    pub(super) fn new(queues: &[u16], depth: usize, room: usize) -> io::Result<Self> {
        let entries = queues.iter().flat_map(|&queue| {
            (0..depth).map(move |_| {
                Ok(Entry {
                    queue,
                    memory: Memory::new(room)?,
                })
            })
        });
        let entries = entries.collect::<io::Result<_>>()?;
        let inbox = Inbox {
            answers: Vec::new(),
            has_ended: false,
            is_open: true,
        };
        Ok(Self {
            entries,
            inbox: Mutex::new(Class::Leaf, inbox),
            waker: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    /// Tells the ring's thread that the connection has ended.
    pub(super) fn end(&self) {
        self.inbox.lock().has_ended = true;
        self.wake();
    }

    /// Moves what came from other threads behind `answers`; whether the connection has ended.
    pub(super) fn receive(&self, answers: &mut Vec<Answer>) -> bool {
        let mut inbox = self.inbox.lock();
        answers.append(&mut inbox.answers);
        inbox.has_ended
    }

    /// What is still to come has no receiver.
    pub(super) fn close(&self) {
        let mut inbox = self.inbox.lock();
        inbox.is_open = false;
        let answers = mem::take(&mut inbox.answers);
        drop(inbox);
        drop(answers);
    }

    fn post(&self, answer: Answer) {
        let mut inbox = self.inbox.lock();
        if !inbox.is_open {
            drop(inbox);
            return drop(answer);
        }
        let was_empty = inbox.answers.is_empty();
        inbox.answers.push(answer);
        drop(inbox);
        if was_empty {
            self.wake();
        }
    }

    fn wake(&self) {
        // It fails only if the counter is full, and then the thread has been woken.
        let _ = rustix::io::write(&self.waker, &1u64.to_ne_bytes());
    }
}

/// The list of replies that were sent on this thread.
struct Here {
    /// Of this ring; null if the thread has none.
    ring: Cell<*const Shared>,
    answers: RefCell<Vec<Answer>>,
}

thread_local! {
    static HERE: Here = const {
        Here {
            ring: Cell::new(ptr::null()),
            answers: RefCell::new(Vec::new()),
        }
    };
}

/// Makes the calling thread the one of this ring.
pub(super) fn settle(shared: &Arc<Shared>) {
    HERE.with(|here| here.ring.set(Arc::as_ptr(shared)));
}

/// Exchanges the thread's list for `answers`, which is empty.
pub(super) fn collect(answers: &mut Vec<Answer>) {
    HERE.with(|here| mem::swap(&mut *here.answers.borrow_mut(), answers));
}

/// How a reply reaches its entry's memory.
#[derive(Debug)]
pub(crate) enum Way {
    /// Whoever sends it writes it there.
    Direct(Slot),
    /// The request was borrowed from there, so the ring's thread does that later.
    Staged(Ticket),
}

/// Names an entry whose slot the ring's thread has.
#[derive(Debug)]
pub(crate) struct Ticket {
    pub(super) shared: Arc<Shared>,
    pub(super) index: usize,
}

impl Way {
    pub(crate) fn send(self, unique: u64, error: i32, parts: [&[u8]; 2]) {
        match self {
            Self::Direct(mut slot) => {
                slot.write(unique, error, parts);
                deliver(Answer::Written(slot));
            }
            Self::Staged(Ticket { shared, index }) => {
                let bytes = parts.concat();
                deliver(Answer::Staged(Staged {
                    shared,
                    index,
                    unique,
                    error,
                    bytes,
                }));
            }
        }
    }
}

fn deliver(answer: Answer) {
    let mut answer = Some(answer);
    // A thread that is ending has no list any more; it is no ring's then.
    let _ = HERE.try_with(|here| {
        let is_here = |answer: &mut Answer| here.ring.get() == Arc::as_ptr(answer.shared());
        let taken = answer.take_if(is_here);
        here.answers.borrow_mut().extend(taken);
    });
    if let Some(answer) = answer {
        let shared = Arc::clone(answer.shared());
        shared.post(answer);
    }
}
