//! The clocks of all virtual cores, and who runs next.
//!
//! A core is *running* (one at a time), *ready* (in the heap, by its clock), *blocked* (in some
//! queue, and nowhere else unless its wait has a time-out) or *finished*. What a core does to
//! shared state it does when no ready core is behind it, so everything that is shared changes in
//! the order of the clocks. Entries of the heap that a wake-up has overtaken are told by an old
//! generation and skipped.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};
use std::hash::BuildHasher;
use std::sync::Arc;

use corosensei::Yielder;

use super::lines::{Label, Lines, MOST_CORES, Visit, behind};
use super::locks::{Answer, Lock};
use super::model::Model;
use crate::hash::NumberHash;
use crate::order::Class;
use crate::stretches::{Part, Step, Stretches};
use crate::watch::{Place, Site};

/// Bytes of a cache line.
const LINE: usize = 64;
/// Bytes of an object in which locks are looked for when it is given back.
const MOST_OF_LOCKS: usize = 4096;

/// The least a step takes, so that whoever asks again and again gets older by it.
const LEAST: u64 = 100;

/// How a wait on a condition ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waiting {
    No,
    Condition(usize),
    TimedOut,
}

pub(crate) struct Core {
    pub(crate) clock: u64,
    name: String,
    /// Equal clocks are told apart by it.
    tie: u64,
    /// The part of its work it is in, which its stretches are looked up by.
    pub(crate) part: Part,
    last: Step,
    generation: u64,
    waiting: Waiting,
    /// Since when it waits on a condition.
    asleep_since: u64,
    finished: bool,
    joiners: Vec<usize>,
    /// The way out of the core's coroutine; set when it starts.
    pub(crate) yielder: *const Yielder<(), ()>,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Ready {
    clock: u64,
    tie: u64,
    core: usize,
    generation: u64,
}

/// What was spent where, since the window was opened.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spent {
    pub(crate) steps: u64,
    pub(crate) unknown_steps: u64,
    pub(crate) stretches: u64,
    pub(crate) unknown_stretches: u64,
}

pub(crate) struct Machine {
    pub(crate) cores: Vec<Core>,
    pub(crate) processors: Vec<usize>,
    /// Cores whose work was lent to them and has ended.
    spare: Vec<usize>,
    pub(crate) current: usize,
    ready: BinaryHeap<Reverse<Ready>>,
    pub(crate) lines: Lines,
    pub(crate) locks: HashMap<usize, Lock, NumberHash>,
    conditions: HashMap<usize, VecDeque<usize>, NumberHash>,
    pub(crate) model: Model,
    stretches: Arc<Stretches>,
    seed: u64,
    /// The number that was drawn last; never zero.
    drawn: u64,
    pub(crate) spent: Spent,
    /// Picoseconds that cores waited for what is no lock, spinning or asleep, by place.
    pub(crate) waits: BTreeMap<(&'static str, u32), u64>,
    pub(crate) window: u64,
}

impl Machine {
    pub(crate) fn new(model: Model, stretches: Arc<Stretches>, seed: u64) -> Self {
        Self {
            cores: Vec::new(),
            processors: Vec::new(),
            spare: Vec::new(),
            current: 0,
            ready: BinaryHeap::new(),
            lines: Lines::default(),
            locks: HashMap::default(),
            conditions: HashMap::default(),
            model,
            stretches,
            seed,
            drawn: NumberHash::default().hash_one(seed) | 1,
            spent: Spent::default(),
            waits: BTreeMap::new(),
            window: 0,
        }
    }

    /// Makes a core that is ready now; its processor is one from the end of the machine until it
    /// says otherwise.
    pub(crate) fn add_core(&mut self, name: &str) -> usize {
        let number = self.cores.len();
        assert!(number < MOST_CORES, "at most {MOST_CORES} virtual cores");
        let clock = self.cores.get(self.current).map_or(0, |core| core.clock);
        self.cores.push(Core {
            clock,
            name: name.to_owned(),
            tie: NumberHash::default().hash_one(self.seed ^ ((number as u64) << 32)),
            part: 0,
            last: Step::START,
            generation: 0,
            waiting: Waiting::No,
            asleep_since: 0,
            finished: false,
            joiners: Vec::new(),
            yielder: std::ptr::null(),
        });
        let last = self.model.processors - 1;
        self.processors.push(last - number % self.model.processors);
        self.make_ready(number);
        number
    }

    /// Makes a core for a part of the running one's work, in the middle of which it begins. Its number is the
    /// larger of the two.
    pub(crate) fn lend(&mut self) -> usize {
        let me = self.current;
        let spare = self.spare.iter().position(|&core| core > me);
        let core = match spare {
            Some(position) => self.spare.swap_remove(position),
            None => self.add_core("lent"),
        };
        let waiting = self.model.waiting;
        let called = self.me().clock;
        self.me().clock += waiting.start;
        let (part, last) = (self.me().part, self.me().last);
        let lent = &mut self.cores[core];
        lent.clock = called + waiting.start + waiting.wake;
        (lent.part, lent.last, lent.finished) = (part, last, false);
        self.make_ready(core);
        core
    }

    /// A core that was lent has ended, and who lent it knows.
    pub(crate) fn spare(&mut self, core: usize) {
        self.spare.push(core);
    }

    fn me(&mut self) -> &mut Core {
        &mut self.cores[self.current]
    }

    fn make_ready(&mut self, core: usize) {
        let clock = self.cores[core].clock;
        self.make_ready_at(core, clock);
    }

    fn make_ready_at(&mut self, core: usize, clock: u64) {
        let entry = &mut self.cores[core];
        entry.generation += 1;
        self.ready.push(Reverse(Ready {
            clock,
            tie: entry.tie,
            core,
            generation: entry.generation,
        }));
    }

    /// Whose turn it is; that core runs from now on.
    pub(crate) fn next(&mut self) -> Option<usize> {
        self.drop_stale();
        let Reverse(entry) = self.ready.pop()?;
        let core = &mut self.cores[entry.core];
        core.clock = core.clock.max(entry.clock);
        if let Waiting::Condition(key) = core.waiting {
            core.waiting = Waiting::TimedOut;
            if let Some(queue) = self.conditions.get_mut(&key) {
                queue.retain(|&waiter| waiter != entry.core);
            }
        }
        self.current = entry.core;
        Some(entry.core)
    }

    fn drop_stale(&mut self) {
        while let Some(Reverse(entry)) = self.ready.peek() {
            if entry.generation == self.cores[entry.core].generation {
                return;
            }
            self.ready.pop();
        }
    }

    /// The running core has come to a step; answers whether somebody else goes first.
    pub(crate) fn arrive(&mut self, step: Step) -> bool {
        let (part, last) = (self.me().part, self.me().last);
        let (cost, known) = self.stretches.cost(part, last, step);
        let cost = cost.draw(self.draw());
        self.spent.steps += 1;
        self.spent.stretches += cost;
        if !known {
            self.spent.unknown_steps += 1;
            self.spent.unknown_stretches += cost;
        }
        let me = self.me();
        me.last = step;
        me.clock += cost.max(LEAST);
        self.gives_way()
    }

    /// The next of the numbers that the seed stands for (by xorshift).
    fn draw(&mut self) -> u64 {
        self.drawn ^= self.drawn << 13;
        self.drawn ^= self.drawn >> 7;
        self.drawn ^= self.drawn << 17;
        self.drawn >> 32
    }

    /// Whether a ready core is behind the running one, which is made ready if so.
    fn gives_way(&mut self) -> bool {
        self.drop_stale();
        let (clock, tie) = (self.me().clock, self.me().tie);
        let first = self.ready.peek();
        let behind = first.is_some_and(|Reverse(first)| (first.clock, first.tie) < (clock, tie));
        if behind {
            self.make_ready(self.current);
        }
        behind
    }

    /// Sleeps for a time, which others use.
    pub(crate) fn pass(&mut self, time: u64) {
        self.me().clock += time.max(LEAST);
        self.make_ready(self.current);
    }

    /// Touches a line; answers how far it was away.
    fn touch(&mut self, core: usize, number: usize, label: Label, write: bool) -> u64 {
        self.touch_together(core, std::iter::once(number), label, write, 0)
    }

    /// Touches lines whose addresses are known before any of them has come, and before one has that is so far
    /// ahead; answers how far the farthest was away.
    fn touch_together(
        &mut self,
        core: usize,
        numbers: impl Iterator<Item = usize>,
        label: Label,
        write: bool,
        mut ahead: u64,
    ) -> u64 {
        for number in numbers {
            let visit = Visit {
                core,
                clock: self.cores[core].clock,
                write,
                model: &self.model,
                processors: &self.processors,
                ahead,
            };
            let arrival = self.lines.touch(number, label, visit);
            self.cores[core].clock = arrival.clock;
            ahead = ahead.max(arrival.distance);
        }
        ahead
    }

    /// Reads or writes an atomic.
    pub(crate) fn access(&mut self, address: usize, write: bool, site: Site) {
        self.touch(self.current, address / LINE, Label::At(site), write);
    }

    /// The line that the word of a lock lies on; answers how far it was away.
    fn touch_word(&mut self, core: usize, place: &Place, write: bool) -> u64 {
        self.touch(core, place.address / LINE, Label::Lock(place.class), write)
    }

    /// The other lines of what a lock guards, which move with it: those of the lock together with its word, which was
    /// so far away, then those behind its pointers together.
    fn touch_content(&mut self, core: usize, place: &Place, word: u64) {
        let label = Label::Lock(place.class);
        let last = (place.address + place.bytes.max(1) - 1) / LINE;
        let own = place.address / LINE + 1..=last;
        self.touch_together(core, own, label, place.exclusive, word);
        let behind = lines_behind(place.address, place.class);
        self.touch_together(core, behind, label, place.exclusive, 0);
    }

    /// Memory that was given back has no copies of its lines anywhere: a real allocator keeps it
    /// for the core that gave it back, whose cache has it, while here all cores share one.
    pub(crate) fn forget(&mut self, address: usize, bytes: usize) {
        let end = address + bytes;
        for number in address / LINE..end.div_ceil(LINE) {
            self.lines.forget(number);
        }
        if bytes > MOST_OF_LOCKS {
            return;
        }
        for address in (address..end).step_by(align_of::<u64>()) {
            if let Some(lock) = self.locks.get(&address) {
                lines_behind(address, lock.class).for_each(|number| self.lines.forget(number));
            }
        }
    }

    fn lock(&mut self, place: &Place) -> &mut Lock {
        let lock = self.locks.entry(place.address);
        let lock = lock.or_insert_with(|| Lock::new(place.class));
        // The memory may have been another lock before.
        lock.class = place.class;
        lock
    }

    /// Takes a lock or queues for it; answers whether it was had at once. It may have been waited for `since`
    /// some time.
    pub(crate) fn take(&mut self, place: &Place, since: Option<u64>) -> bool {
        let (core, waiting) = (self.current, self.model.waiting);
        let word = self.touch_word(core, place, true);
        let clock = self.me().clock;
        let lock = self.lock(place);
        if !lock.admits(place.exclusive) {
            let since = since.unwrap_or(clock);
            lock.queue(core, *place, since, clock, &waiting);
            return false;
        }
        if let Some(since) = since {
            lock.count_wait(since, clock);
        }
        self.grant(core, place, word);
        true
    }

    /// Whether a lock is free at this core's time, at a glance.
    pub(crate) fn sees_free(&mut self, place: &Place) -> bool {
        self.touch_word(self.current, place, false);
        self.lock(place).admits(place.exclusive)
    }

    /// The running core was called to a lock that it waits for; answers whether it has it now.
    pub(crate) fn take_when_called(&mut self, place: &Place) -> bool {
        let (core, waiting) = (self.current, self.model.waiting);
        let word = self.touch_word(core, place, true);
        let clock = self.me().clock;
        match self.lock(place).answer(core, clock, &waiting) {
            Answer::Given => self.touch_content(core, place, word),
            Answer::Free => self.grant(core, place, word),
            Answer::Held => return false,
        }
        true
    }

    /// Takes a lock if nobody is in the way by this core's clock; else that was a failure.
    pub(crate) fn try_take(&mut self, place: &Place) -> bool {
        let has_it = self.take_if_free(place);
        if !has_it {
            self.lock(place).counts.failures += 1;
        }
        has_it
    }

    /// Takes a lock if nobody is in the way by this core's clock.
    pub(crate) fn take_if_free(&mut self, place: &Place) -> bool {
        let core = self.current;
        if self.lock(place).admits(place.exclusive) {
            let word = self.touch_word(core, place, true);
            self.grant(core, place, word);
            return true;
        }
        // A look at the word is enough to see that it is held.
        self.touch_word(core, place, false);
        false
    }

    fn grant(&mut self, core: usize, place: &Place, word: u64) {
        let clock = self.cores[core].clock;
        self.lock(place).give(core, place.exclusive, clock);
        self.touch_content(core, place, word);
    }

    /// Gives a lock back and calls whoever is next.
    pub(crate) fn release(&mut self, place: &Place) {
        let (core, waiting) = (self.current, self.model.waiting);
        self.touch_word(core, place, true);
        let clock = self.me().clock;
        let lock = self.lock(place);
        lock.take_back(core, clock);
        for call in lock.call(clock, &waiting) {
            if call.slept {
                self.me().clock += waiting.call;
            }
            self.make_ready_at(call.core, call.at);
        }
    }

    /// Waits on a condition, its lock given back; the caller takes it again.
    pub(crate) fn wait(&mut self, condition: usize, place: &Place, timeout: Option<u64>) {
        self.release(place);
        let core = self.current;
        self.conditions
            .entry(condition)
            .or_default()
            .push_back(core);
        let clock = self.me().clock;
        self.me().asleep_since = clock;
        self.me().waiting = Waiting::Condition(condition);
        // Whatever else is in the heap for this core is of the past.
        self.me().generation += 1;
        if let Some(timeout) = timeout {
            let deadline = self.me().clock.saturating_add(timeout);
            self.make_ready_at(core, deadline);
        }
    }

    /// How the last wait of the running core, at `site`, ended.
    pub(crate) fn end_wait(&mut self, site: Site) -> bool {
        let since = self.me().asleep_since;
        self.note_wait(since, site);
        let me = self.me();
        let timed_out = me.waiting == Waiting::TimedOut;
        me.waiting = Waiting::No;
        timed_out
    }

    /// Notes that the running core has waited at `site`, `since` then.
    pub(crate) fn note_wait(&mut self, since: u64, site: Site) {
        let (window, clock) = (self.window, self.me().clock);
        let waited = clock.saturating_sub(since.max(window));
        *self.waits.entry((site.file(), site.line())).or_default() += waited;
    }

    /// Wakes up to `count` waiters of a condition, one after another.
    pub(crate) fn notify(&mut self, condition: usize, count: usize) {
        let waiting = self.model.waiting;
        for _ in 0..count {
            let queue = self.conditions.get_mut(&condition);
            let Some(core) = queue.and_then(VecDeque::pop_front) else {
                return;
            };
            let awake = self.me().clock + waiting.wake;
            self.me().clock += waiting.call;
            let other = &mut self.cores[core];
            other.waiting = Waiting::No;
            other.clock = other.clock.max(awake);
            self.make_ready(core);
        }
    }

    /// Answers whether `core` has finished; if not, the running one will be woken when it has.
    pub(crate) fn join(&mut self, core: usize) -> bool {
        let me = self.current;
        let ended = self.cores[core].clock;
        if self.cores[core].finished {
            self.me().clock = self.me().clock.max(ended);
            return true;
        }
        self.cores[core].joiners.push(me);
        false
    }

    pub(crate) fn is_finished(&self, core: usize) -> bool {
        self.cores[core].finished
    }

    /// The running core's body has returned.
    pub(crate) fn finish(&mut self) {
        let clock = self.me().clock + self.model.waiting.wake;
        self.me().finished = true;
        for joiner in std::mem::take(&mut self.me().joiners) {
            let other = &mut self.cores[joiner];
            other.clock = other.clock.max(clock);
            self.make_ready(joiner);
        }
    }

    /// Forgets what was used so far: the window that counts begins.
    pub(crate) fn open_window(&mut self) {
        self.lines.open_window();
        for lock in self.locks.values_mut() {
            lock.counts = super::locks::LockCounts::default();
        }
        self.spent = Spent::default();
        self.waits.clear();
        self.window = self.me().clock;
    }

    /// Who is stuck, for the panic that says so.
    pub(crate) fn stuck(&self) -> String {
        let names = self.cores.iter().filter(|core| !core.finished);
        let names: Vec<&str> = names.map(|core| core.name.as_str()).collect();
        names.join(", ")
    }
}

/// The lines that a lock's critical section changes behind a pointer.
fn lines_behind(address: usize, class: Class) -> impl Iterator<Item = usize> {
    // No address of this program is that large, so these are lines of their own.
    (0..behind(class)).map(move |number| usize::MAX - address * 8 - number)
}
