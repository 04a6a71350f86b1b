//! The thread of a ring.
//!
//! It takes completions, each of which is a request in an entry, serves them, and submits the
//! replies that there are when it sleeps next: one system call for the replies, and for the wait.
//!
//! The thread does not end while the kernel has one of its entries: the kernel would write to
//! memory that is not the process's any more, and those who wait for the queue would wait for ever.
//! A panic of the server is caught, and the others are served. Should the thread itself fail, it
//! ends the process; then the kernel ends the connection, and everybody who waits has an error.

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process;
use std::sync::Arc;

use io_uring::opcode::PollAdd;
use io_uring::squeue::Entry128;
use io_uring::{cqueue, types};
use rustix::event::PollFlags;
use rustix::io::Errno;
use zerocopy::FromBytes;

use super::answer::{self, Answer, Shared, Ticket, Way};
use super::command::{self, Ring};
use super::memory::{Head, Slot};
use crate::device::Device;
use crate::handshake::Features;
use crate::reply::{Carrier, Reply};
use crate::request::{Body, Message};
use crate::session::Serve;
use crate::wire::InHeader;

/// Marks completions of the event counter's poll.
const WAKER: u64 = u64::MAX;
/// Names and bytes of at most so many bytes are copied before they are served. Then the reply can
/// be written at once and from anywhere; longer ones cost less if they are borrowed.
const SMALL: usize = 1024;

/// A completion.
struct Event {
    name: u64,
    result: i32,
    has_more: bool,
}

/// A ring, and what is known of its entries.
pub(super) struct Worker {
    ring: Ring,
    shared: Arc<Shared>,
    /// The features on which the handshake has agreed.
    agreed: Features,
    /// Where each entry's memory is, for its registration.
    vectors: Vec<[[usize; 2]; 2]>,
    /// The slots of entries whose requests were borrowed, until their replies come.
    held: Vec<Option<Slot>>,
    small: Box<[u8; SMALL]>,
    events: Vec<Event>,
    answers: Vec<Answer>,
    /// Entries that the kernel has.
    given: usize,
    /// Entries that the kernel has refused for another reason than the connection's end.
    lost: usize,
    has_ended: bool,
    /// What to report in the end.
    failed: io::Result<()>,
}

impl Worker {
    /// Makes a ring on the calling thread and registers the entries. Whether each queue has one is
    /// the second value.
    pub(super) fn start(
        device: &Device,
        shared: Arc<Shared>,
        agreed: Features,
    ) -> io::Result<(Self, bool)> {
        let count = shared.entries.len();
        let ring = Ring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_submit_all()
            // A command for every entry, and one for the event counter.
            .build(u32::try_from(count + 1).map_err(|_| Errno::INVAL)?)?;
        ring.submitter()
            .register_files(&[device.as_fd().as_raw_fd()])?;
        answer::settle(&shared);
        let entries = shared.entries.iter();
        let mut worker = Self {
            ring,
            vectors: entries.map(|entry| entry.memory.vectors()).collect(),
            shared,
            agreed,
            held: (0..count).map(|_| None).collect(),
            small: Box::new([0; SMALL]),
            events: Vec::new(),
            answers: Vec::new(),
            given: 0,
            lost: 0,
            has_ended: false,
            failed: Ok(()),
        };
        let is_whole = worker.register()?;
        Ok((worker, is_whole))
    }

    /// Gives the kernel all entries; whether each queue has one. Without any it is an error.
    fn register(&mut self) -> io::Result<bool> {
        let shared = Arc::clone(&self.shared);
        for (index, entry) in shared.entries.iter().enumerate() {
            let command = command::register(entry.queue, &self.vectors[index]);
            self.give(index, command);
        }
        self.watch();
        // Nothing of it was done if this fails.
        if let Err(error) = self.ring.submit() {
            self.given = 0;
            return Err(error);
        }
        self.reap();
        let failed = |index: &usize| {
            let mut events = self.events.iter();
            events.any(|event| event.name == *index as u64 && event.result < 0)
        };
        let refused: Vec<_> = (0..shared.entries.len()).filter(failed).collect();
        if refused.len() == shared.entries.len() {
            self.given = 0;
            let result = self.events.first().map_or(0, |event| -event.result);
            return Err(io::Error::from_raw_os_error(result));
        }
        let mut queues: Vec<_> = shared.entries.iter().map(|entry| entry.queue).collect();
        queues.dedup();
        Ok(queues.iter().all(|queue| {
            let mut entries = shared.entries.iter().enumerate();
            entries.any(|(index, entry)| entry.queue == *queue && !refused.contains(&index))
        }))
    }

    /// Serves until the connection has ended and the kernel has returned all entries. Replies that
    /// come later have no receiver.
    pub(super) fn run(mut self, server: &impl Serve) -> io::Result<()> {
        loop {
            let mut events = mem::take(&mut self.events);
            let mut left = events.len();
            for event in events.drain(..) {
                self.take(&event, server);
                left -= 1;
                // The next request may have to wait for a device, and those that were served shall
                // not. If this fails, they are submitted with the others.
                if self.submit_answers() && left > 0 {
                    let _ = self.ring.submit();
                }
            }
            self.events = events;
            self.submit_answers();
            if self.given == 0 && self.has_ended {
                return mem::replace(&mut self.failed, Ok(()));
            }
            if self.lost == self.shared.entries.len() {
                give_up("the kernel refused all entries");
            }
            self.wait();
            self.reap();
        }
    }

    /// Submits, and sleeps until there is a completion.
    fn wait(&self) {
        match self.ring.submitter().submit_and_wait(1) {
            Ok(_) => {}
            Err(error) => match Errno::from_io_error(&error) {
                // A signal; or the kernel lacks memory or has completions to deliver first.
                Some(Errno::INTR | Errno::AGAIN | Errno::BUSY) => {}
                _ => give_up(&error.to_string()),
            },
        }
    }

    /// Takes note of what was completed.
    fn reap(&mut self) {
        let completed = self.ring.completion().map(|event| Event {
            name: event.user_data(),
            result: event.result(),
            has_more: cqueue::more(event.flags()),
        });
        self.events.extend(completed);
    }

    fn take(&mut self, event: &Event, server: &impl Serve) {
        match usize::try_from(event.name) {
            Ok(index) if index < self.held.len() => {
                self.given -= 1;
                if event.result >= 0 {
                    self.serve(index, server);
                } else {
                    self.end_entry(Errno::from_raw_os_error(-event.result));
                }
            }
            // The inbox is looked at in any case.
            _ if event.has_more => {}
            _ => self.watch(),
        }
    }

    /// The kernel does not want an entry any more.
    fn end_entry(&mut self, error: Errno) {
        match error {
            Errno::NOTCONN | Errno::CONNABORTED | Errno::NODEV | Errno::CANCELED => {
                self.has_ended = true;
            }
            // The request was given up before its reply came, since the connection is about to end.
            Errno::NOENT => {}
            _ => self.lost += 1,
        }
    }

    /// Serves the request in an entry.
    fn serve(&mut self, index: usize, server: &impl Serve) {
        // SAFETY: the kernel has just completed the entry's command, by which it gives it back, and
        // there was no command since. Slots are made only here, once for each completion, and
        // `submit` drops the last one before it makes the command that leads to the next.
        let slot = unsafe { Slot::new(Arc::clone(&self.shared), index) };
        let head = *slot.head();
        let length = slot.payload().len();
        let served = if length <= SMALL {
            let small = &mut self.small[..length];
            small.copy_from_slice(slot.payload());
            call(server, self.agreed, &head, small, Way::Direct(slot))
        } else {
            let shared = Arc::clone(&self.shared);
            let way = Way::Staged(Ticket { shared, index });
            let served = call(server, self.agreed, &head, slot.payload(), way);
            // The reply may have come already: it waits on a list for this thread.
            self.held[index] = Some(slot);
            served
        };
        if served.is_err() {
            let failed = mem::replace(&mut self.failed, Ok(()));
            self.failed = failed.and(Err(io::Error::other("a panic")));
        }
    }

    /// Makes commands of all replies that there are; whether there was one.
    fn submit_answers(&mut self) -> bool {
        let mut answers = mem::take(&mut self.answers);
        answer::collect(&mut answers);
        self.has_ended |= self.shared.receive(&mut answers);
        let has_some = !answers.is_empty();
        for answer in answers.drain(..) {
            match answer {
                Answer::Written(slot) => self.submit(slot),
                Answer::Staged(staged) => {
                    if let Some(mut slot) = self.held[staged.index].take() {
                        slot.write(staged.unique, staged.error, [&staged.bytes, &[]]);
                        self.submit(slot);
                    }
                }
            }
        }
        self.answers = answers;
        has_some
    }

    fn submit(&mut self, slot: Slot) {
        let index = slot.index();
        let commit = slot.head().commit;
        drop(slot);
        let queue = self.shared.entries[index].queue;
        self.give(index, command::commit_and_fetch(queue, commit));
    }

    /// Gives the kernel an entry of which there is no slot.
    fn give(&mut self, index: usize, command: Entry128) {
        self.given += 1;
        self.push(&command.user_data(index as u64));
    }

    /// Waits for the event counter as well.
    fn watch(&mut self) {
        let waker = types::Fd(self.shared.waker.as_raw_fd());
        let poll = PollAdd::new(waker, u32::from(PollFlags::IN.bits().cast_unsigned())).multi(true);
        self.push(&Entry128::from(poll.build().user_data(WAKER)));
    }

    fn push(&mut self, command: &Entry128) {
        // SAFETY: a poll needs no memory. The commands of an entry use its memory, which `shared`
        // owns: it lives until this thread has ended, and the thread does not end before the
        // command is completed (see `drop`). There is no slot of the entry. The vectors that
        // registrations read live as long as the ring.
        let pushed = unsafe { self.ring.submission().push(command) };
        if pushed.is_err() {
            // There is room for one command of each entry, and it has at most one.
            give_up("more commands than entries");
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.shared.close();
        if self.given > 0 {
            give_up("a panic");
        }
    }
}

/// Ends the process, because neither this thread nor those that wait for it can continue.
fn give_up(reason: &str) -> ! {
    eprintln!("pext4: the ring of a FUSE connection failed, which ends the process: {reason}");
    process::abort();
}

/// Has the server serve a request; an error if it panicked.
fn call(
    server: &impl Serve,
    agreed: Features,
    head: &Head,
    rest: &[u8],
    way: Way,
) -> std::thread::Result<()> {
    let Ok((header, _)) = InHeader::read_from_prefix(&head.message) else {
        unreachable!("the area is longer than a header");
    };
    let reply = Reply::new(header.unique, Carrier::Ring(way));
    match Message::decode(&header, Body::split(&head.operation, rest), agreed) {
        Ok(Message::Call(mut request)) => {
            request.is_through_ring = true;
            catch_unwind(AssertUnwindSafe(|| server.serve(request, reply)))
        }
        // These come over the device. The reply is that of a request that nobody understands.
        Ok(Message::Forget(_)) | Err(_) => {
            drop(reply);
            Ok(())
        }
    }
}
