//! The clocks of all virtual cores, and the choice of the core that runs next.
//!
//! A core is *running* (one at a time), *ready* (in the heap, ordered by its clock), *blocked* (in
//! exactly one queue, and in the heap only if its wait has a time-out) or *finished*. A core
//! changes shared state only when no ready core has an earlier clock, so all shared state changes
//! in the order of the clocks. A heap entry that a wake-up has made obsolete has an old generation
//! and is skipped.

use std::cmp::Reverse;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, VecDeque};
use std::hash::BuildHasher;
use std::sync::Arc;

use corosensei::Yielder;

use super::lines::{Lines, MAX_CORES};
use super::locks::{Answer, Lock, LockCounts};
use super::model::Model;
use super::work::Work;
use crate::hash::NumberHash;
use crate::order::Class;
use crate::stretches::{Part, Step, Stretches};
use crate::watch::{LockUse, Site};

/// Picoseconds that a step takes at least, so that the clock of a polling core advances.
const MIN_STEP: u64 = 100;

/// How a wait on a condition ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waiting {
    No,
    Condition(usize),
    TimedOut,
}

/// A lock that is held, and the lines behind its pointer.
pub(super) struct Owing {
    pub(super) address: usize,
    /// What the lock guards was told: the lines behind it are those.
    pub(super) told: bool,
}

pub(crate) struct Core {
    pub(crate) clock: u64,
    name: String,
    /// Breaks ties between equal clocks.
    tie: u64,
    /// The current part of its work; the costs of its stretches depend on it.
    pub(crate) part: Part,
    last: Step,
    /// The source location of `last`.
    last_site: Option<Site>,
    /// The locks it holds whose class has lines behind a pointer: it pays for these when it
    /// releases the lock, unless it has told what it used.
    pub(super) owing: Vec<Owing>,
    generation: u64,
    waiting: Waiting,
    /// When its wait on a condition began.
    asleep_since: u64,
    /// When its wait for a lock began.
    queueing_since: Option<u64>,
    /// Picoseconds that it has waited for locks, and for lines on their way to others.
    pub(super) queued: u64,
    finished: bool,
    joiners: Vec<usize>,
    /// Suspends the core's coroutine; set when the coroutine starts.
    pub(crate) yielder: *const Yielder<(), ()>,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Ready {
    clock: u64,
    tie: u64,
    core: usize,
    generation: u64,
}

/// The time spent on each kind of work since the window was opened.
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
    /// Lent cores whose work has ended, for reuse.
    spare: Vec<usize>,
    pub(crate) current: usize,
    ready: BinaryHeap<Reverse<Ready>>,
    pub(crate) lines: Lines,
    pub(crate) locks: HashMap<usize, Lock, NumberHash>,
    /// The addresses of all locks, in order.
    pub(super) addresses: BTreeSet<usize>,
    /// The use of locks whose memory was freed after cores had waited for them.
    pub(super) freed_locks: Vec<(Class, LockCounts)>,
    conditions: HashMap<usize, VecDeque<usize>, NumberHash>,
    pub(crate) model: Model,
    stretches: Arc<Stretches>,
    seed: u64,
    /// The last random number; never zero.
    drawn: u64,
    pub(crate) spent: Spent,
    pub(super) work: Work,
    /// Picoseconds that cores waited, spinning or asleep, for something that is no lock, by source
    /// location.
    pub(crate) waits: BTreeMap<(&'static str, u32), u64>,
    /// Picoseconds that cores waited for locks, by the class and the source location of the call.
    pub(crate) lock_waits: BTreeMap<(Class, &'static str, u32), u64>,
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
            addresses: BTreeSet::new(),
            freed_locks: Vec::new(),
            conditions: HashMap::default(),
            model,
            stretches,
            seed,
            drawn: NumberHash::default().hash_one(seed) | 1,
            spent: Spent::default(),
            work: Work::default(),
            waits: BTreeMap::new(),
            lock_waits: BTreeMap::new(),
            window: 0,
        }
    }

    /// Creates a core, ready at the current time. It runs on a processor counted from the end of
    /// the machine until it chooses another one.
    pub(crate) fn add_core(&mut self, name: &str) -> usize {
        let number = self.cores.len();
        assert!(number < MAX_CORES, "at most {MAX_CORES} virtual cores");
        let clock = self.cores.get(self.current).map_or(0, |core| core.clock);
        self.cores.push(Core {
            clock,
            name: name.to_owned(),
            tie: NumberHash::default().hash_one(self.seed ^ ((number as u64) << 32)),
            part: 0,
            last: Step::START,
            last_site: None,
            owing: Vec::new(),
            generation: 0,
            waiting: Waiting::No,
            asleep_since: 0,
            queueing_since: None,
            queued: 0,
            finished: false,
            joiners: Vec::new(),
            yielder: std::ptr::null(),
        });
        let last = self.model.processors - 1;
        self.processors.push(last - number % self.model.processors);
        self.make_ready(number);
        number
    }

    /// Creates a core for a part of the running core's work, starting now. The new core has the
    /// higher number.
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
        let me = self.me();
        let (part, last, last_site) = (me.part, me.last, me.last_site);
        let lent = &mut self.cores[core];
        lent.clock = called + waiting.start + waiting.wake;
        (lent.part, lent.last, lent.last_site) = (part, last, last_site);
        lent.finished = false;
        self.make_ready(core);
        core
    }

    /// Marks a lent core that has ended as free for reuse; the lending core has been notified.
    pub(crate) fn spare(&mut self, core: usize) {
        self.spare.push(core);
    }

    pub(super) fn me(&mut self) -> &mut Core {
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

    /// Chooses the next core and makes it the running one.
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

    /// The running core has reached a step. Returns whether another core runs first.
    pub(crate) fn arrive(&mut self, step: Step, site: Site) -> bool {
        let me = self.me();
        let (part, last, last_site) = (me.part, me.last, me.last_site);
        let (cost, known) = self.stretches.cost(part, last, step);
        let cost = cost.draw(self.draw());
        self.spent.steps += 1;
        self.spent.stretches += cost;
        if !known {
            self.spent.unknown_steps += 1;
            self.spent.unknown_stretches += cost;
        }
        self.work.add((last, step), last_site, site, cost);
        let me = self.me();
        (me.last, me.last_site) = (step, Some(site));
        me.clock += cost.max(MIN_STEP);
        self.yields()
    }

    /// The next random number of the seed (xorshift).
    fn draw(&mut self) -> u64 {
        self.drawn ^= self.drawn << 13;
        self.drawn ^= self.drawn >> 7;
        self.drawn ^= self.drawn << 17;
        self.drawn >> 32
    }

    /// Whether a ready core has an earlier clock than the running one; if so, the running one
    /// becomes ready.
    fn yields(&mut self) -> bool {
        self.drop_stale();
        let (clock, tie) = (self.me().clock, self.me().tie);
        let first = self.ready.peek();
        let behind = first.is_some_and(|Reverse(first)| (first.clock, first.tie) < (clock, tie));
        if behind {
            self.make_ready(self.current);
        }
        behind
    }

    /// Sleeps for a time, during which other cores run.
    pub(crate) fn pass(&mut self, time: u64) {
        self.me().clock += time.max(MIN_STEP);
        self.make_ready(self.current);
    }

    fn lock(&mut self, lock_use: &LockUse) -> &mut Lock {
        let lock = match self.locks.entry(lock_use.address) {
            Entry::Occupied(lock) => lock.into_mut(),
            Entry::Vacant(place) => {
                self.addresses.insert(lock_use.address);
                place.insert(Lock::new(lock_use.class))
            }
        };
        // Memory that nobody reports, as that of a stack, may have held another lock before.
        if lock.class != lock_use.class {
            end(lock, &mut self.freed_locks);
            lock.class = lock_use.class;
        }
        lock
    }

    /// Ends the record of the lock at `address`, whose memory is freed: the next lock there is
    /// another one. What does not depend on the lock stays, as for `parking_lot`, which knows a
    /// lock by its address: when a sleeper was last handed one.
    pub(super) fn end_lock(&mut self, address: usize) {
        if let Some(lock) = self.locks.get_mut(&address) {
            end(lock, &mut self.freed_locks);
        }
    }

    /// The running core begins to wait for a lock; returns the time.
    pub(crate) fn begin_queueing(&mut self) -> u64 {
        let me = self.me();
        *me.queueing_since.get_or_insert(me.clock)
    }

    /// Whether a core waits for a lock at the moment.
    pub(super) fn is_queueing(&self, core: usize) -> bool {
        self.cores[core].queueing_since.is_some()
    }

    /// Takes a lock or queues for it; returns whether the core has it now. `since` is when the core
    /// began to wait, if it has waited already.
    pub(crate) fn take(&mut self, lock_use: &LockUse, since: Option<u64>) -> bool {
        let (core, waiting) = (self.current, self.model.waiting);
        let word = self.touch_word(core, lock_use, true);
        let clock = self.me().clock;
        let lock = self.lock(lock_use);
        if !lock.admits(lock_use.exclusive) {
            let since = since.unwrap_or(clock);
            lock.queue(core, *lock_use, since, clock, &waiting);
            self.begin_queueing();
            return false;
        }
        if let Some(since) = since {
            lock.count_wait(since, clock);
        }
        self.grant(core, lock_use, word);
        true
    }

    /// Whether a core can take the lock at its current time; touches only the word.
    pub(crate) fn is_free(&mut self, lock_use: &LockUse) -> bool {
        self.touch_word(self.current, lock_use, false);
        self.lock(lock_use).admits(lock_use.exclusive)
    }

    /// Retries after the running core was called for a lock; returns whether it has the lock now.
    pub(crate) fn take_when_called(&mut self, lock_use: &LockUse) -> bool {
        let (core, waiting) = (self.current, self.model.waiting);
        let word = self.touch_word(core, lock_use, true);
        let clock = self.me().clock;
        match self.lock(lock_use).answer(core, clock, &waiting) {
            Answer::Given => self.begin_work(core, lock_use, word),
            Answer::Free => self.grant(core, lock_use, word),
            Answer::Held => return false,
        }
        true
    }

    /// Takes a lock if it is free at this core's time; otherwise counts a failure.
    pub(crate) fn try_take(&mut self, lock_use: &LockUse) -> bool {
        let has_it = self.take_if_free(lock_use);
        if !has_it {
            self.lock(lock_use).counts.failures += 1;
        }
        has_it
    }

    /// Takes a lock if it is free at this core's time.
    pub(crate) fn take_if_free(&mut self, lock_use: &LockUse) -> bool {
        let core = self.current;
        if self.lock(lock_use).admits(lock_use.exclusive) {
            let word = self.touch_word(core, lock_use, true);
            self.grant(core, lock_use, word);
            return true;
        }
        // Reading the word is enough to see that it is held.
        self.touch_word(core, lock_use, false);
        false
    }

    fn grant(&mut self, core: usize, lock_use: &LockUse, word: u64) {
        let clock = self.cores[core].clock;
        self.lock(lock_use).give(core, lock_use.exclusive, clock);
        self.begin_work(core, lock_use, word);
    }

    /// A core has got a lock, whose word came after `word` picoseconds.
    fn begin_work(&mut self, core: usize, lock_use: &LockUse, word: u64) {
        let holder = &mut self.cores[core];
        if let Some(since) = holder.queueing_since.take() {
            holder.queued += holder.clock.saturating_sub(since);
        }
        self.touch_content(core, lock_use, word);
        let queued = self.cores[core].queued;
        self.lock(lock_use).begin(core, queued);
    }

    /// Releases a lock and calls the next waiters.
    pub(crate) fn release(&mut self, lock_use: &LockUse) {
        let (core, waiting) = (self.current, self.model.waiting);
        // Waiting for the lock's own lines, which follows, is not waiting elsewhere.
        let queued = self.me().queued;
        self.touch_behind(core, lock_use);
        self.touch_word(core, lock_use, true);
        let clock = self.me().clock;
        let lock = self.lock(lock_use);
        lock.take_back(core, clock, queued);
        for call in lock.call(clock, &waiting) {
            if call.slept {
                self.me().clock += waiting.call;
            }
            self.make_ready_at(call.core, call.at);
        }
    }

    /// Waits on a condition and releases the lock; the caller takes the lock again afterwards.
    pub(crate) fn wait(&mut self, condition: usize, lock_use: &LockUse, timeout: Option<u64>) {
        self.release(lock_use);
        let core = self.current;
        self.conditions
            .entry(condition)
            .or_default()
            .push_back(core);
        let clock = self.me().clock;
        self.me().asleep_since = clock;
        self.me().waiting = Waiting::Condition(condition);
        // All other heap entries of this core are obsolete.
        self.me().generation += 1;
        if let Some(timeout) = timeout {
            let deadline = self.me().clock.saturating_add(timeout);
            self.make_ready_at(core, deadline);
        }
    }

    /// Ends the last wait of the running core, at `site`; returns whether it timed out.
    pub(crate) fn end_wait(&mut self, site: Site) -> bool {
        let since = self.me().asleep_since;
        self.count_wait(since, site);
        let me = self.me();
        let timed_out = me.waiting == Waiting::TimedOut;
        me.waiting = Waiting::No;
        timed_out
    }

    /// Counts that the running core has waited for this lock since `since`, and for its lines.
    pub(crate) fn count_lock_wait(&mut self, since: u64, lock_use: &LockUse) {
        let (window, clock) = (self.window, self.me().clock);
        let waited = clock.saturating_sub(since.max(window));
        let key = (lock_use.class, lock_use.site.file(), lock_use.site.line());
        *self.lock_waits.entry(key).or_default() += waited;
    }

    /// Counts that the running core has waited at `site` since `since`.
    pub(crate) fn count_wait(&mut self, since: u64, site: Site) {
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

    /// Whether `core` has finished; if not, the running core will be woken when it has.
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

    /// Resets all counts: the measured window begins.
    pub(crate) fn open_window(&mut self) {
        let clock = self.me().clock;
        self.lines.open_window();
        for core in &mut self.cores {
            core.queueing_since = core.queueing_since.map(|since| since.max(clock));
        }
        for lock in self.locks.values_mut() {
            lock.open_window(clock, |core| self.cores[core].queued);
        }
        self.freed_locks.clear();
        self.spent = Spent::default();
        self.work.open_window();
        self.waits.clear();
        self.lock_waits.clear();
        self.window = clock;
    }

    /// The blocked cores, for the message of the panic.
    pub(crate) fn stuck(&self) -> String {
        let names = self.cores.iter().filter(|core| !core.finished);
        let names: Vec<&str> = names.map(|core| core.name.as_str()).collect();
        names.join(", ")
    }
}

/// Keeps what was counted of a lock among `freed`, if a core waited for it, and begins anew: of
/// all others there are too many, and whom nobody waits for limits nobody.
fn end(lock: &mut Lock, freed: &mut Vec<(Class, LockCounts)>) {
    let counts = std::mem::take(&mut lock.counts);
    if counts.contended > 0 {
        freed.push((lock.class, counts));
    }
}
