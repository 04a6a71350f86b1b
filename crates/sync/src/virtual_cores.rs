//! Virtual cores: runs the engine's own code on any number of simulated processors, in virtual
//! time.
//!
//! [`run`] simulates a machine ([`Model`]). Its main body and every thread it starts through
//! [`crate::thread`] is a virtual core with a clock of its own. All of them are coroutines of one
//! real thread. At each step that touches something shared (a lock, an atomic, a condition, a
//! sleep), the core with the earliest clock runs next. The work between two steps costs what it
//! cost real threads ([`crate::calibration`]). A lock makes its next taker wait until the release;
//! a try-lock fails if the lock is held at that time of the core's clock; a cache line that another
//! core wrote costs a transfer, one at a time. Therefore a run repeats exactly for the same
//! stretches and seed.
//!
//! The simulation sees only what goes through this crate. `docs/VIRTUAL.md` lists what the model
//! leaves out.
//!
//! Every core's body runs on a stack of its own inside one real thread, so all cores share the
//! thread-locals; this crate's own thread-locals ask this module first.

mod lend;
mod lines;
mod locks;
mod machine;
mod memory;
mod model;
mod touches;
mod usage;
mod work;

#[cfg(test)]
mod lock_tests;
#[cfg(test)]
mod memory_tests;
#[cfg(test)]
mod spin_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod usage_tests;

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult};

pub(crate) use self::lend::at_once;
pub use self::memory::Lines as LineAllocator;
pub use self::model::{Model, Waiting};
pub use self::usage::{LineUsage, LockUsage, Usage};
pub use self::work::WorkUsage;
pub use crate::calibration::{Recording, Stretches, record as calibrate, reference};

use self::machine::Machine;
use crate::spin;
use crate::stretches::Step;
use crate::watch::{Action, LockUse, Site};

/// Bytes of a core's stack; only the used part takes memory.
const STACK: usize = 2 << 20;

type Body = Coroutine<(), (), ()>;

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
    static MACHINE: RefCell<Option<Machine>> = const { RefCell::new(None) };
    /// Cores that were created and have not run yet.
    static NEW_CORES: RefCell<Vec<(usize, Body)>> = const { RefCell::new(Vec::new()) };
}

/// Whether the caller runs on a virtual core.
#[inline]
pub(crate) fn is_inside() -> bool {
    INSIDE.try_with(Cell::get).unwrap_or(false)
}

fn with<R>(body: impl FnOnce(&mut Machine) -> R) -> R {
    MACHINE.with_borrow_mut(|machine| {
        body(machine.as_mut().expect("a virtual core runs on a machine"))
    })
}

/// Drops all copies of the lines of freed memory, and ends the records of its locks and lines: what
/// is allocated there next is something else. Memory that the machine itself frees while it
/// works is ignored; no lines are looked up there.
fn forget(address: usize, bytes: usize) {
    if !is_inside() {
        return;
    }
    let _ = MACHINE.try_with(|machine| {
        if let Ok(mut machine) = machine.try_borrow_mut()
            && let Some(machine) = machine.as_mut()
        {
            machine.forget(address, bytes);
        }
    });
}

/// Suspends this core until it runs again.
#[allow(unsafe_code)]
fn suspend() {
    let yielder = with(|machine| machine.cores[machine.current].yielder);
    // SAFETY: the pointer comes from the reference that this core's body got from its coroutine. It
    // is valid as long as the body runs, and this code runs in the body of the current core.
    unsafe { (*yielder).suspend(()) }
}

fn arrive(site: Site, action: Action) {
    let step = Step::new(site, action);
    if with(|machine| machine.arrive(step, site)) {
        suspend();
    }
}

/// Takes a lock, waiting in virtual time.
pub(crate) fn take(lock_use: &LockUse) {
    arrive(lock_use.site, Action::Take);
    take_again(lock_use);
}

/// Takes a lock, spinning before it waits.
pub(crate) fn take_spinning(lock_use: &LockUse) {
    arrive(lock_use.site, Action::Take);
    if with(|machine| machine.take_if_free(lock_use)) {
        return;
    }
    let since = with(Machine::begin_queueing);
    spin::poll(|| is_free(lock_use), pause);
    wait_for(lock_use, Some(since));
}

/// Whether the lock is held; touches only its word.
pub(crate) fn is_held(lock_use: &LockUse) -> bool {
    arrive(lock_use.site, Action::Load);
    !is_free(lock_use)
}

/// Whether a waiting core could take the lock now.
fn is_free(lock_use: &LockUse) -> bool {
    with(|machine| machine.is_free(lock_use))
}

fn take_again(lock_use: &LockUse) {
    wait_for(lock_use, None);
}

/// Takes a lock for which the core has waited since `since`.
fn wait_for(lock_use: &LockUse, since: Option<u64>) {
    let began = since.unwrap_or_else(clock);
    let mut has_it = with(|machine| machine.take(lock_use, since));
    while !has_it {
        suspend();
        has_it = with(|machine| machine.take_when_called(lock_use));
    }
    with(|machine| machine.count_lock_wait(began, lock_use));
}

/// Takes a lock if it is free at this core's time.
pub(crate) fn try_take(lock_use: &LockUse) -> bool {
    arrive(lock_use.site, Action::Try);
    with(|machine| machine.try_take(lock_use))
}

/// Releases a lock.
pub(crate) fn release(lock_use: &LockUse) {
    arrive(lock_use.site, Action::Release);
    with(|machine| machine.release(lock_use));
}

/// Touches an atomic.
pub(crate) fn access(address: usize, write: bool, site: Site) {
    let action = if write { Action::Write } else { Action::Load };
    arrive(site, action);
    with(|machine| machine.access(address, write, site));
}

/// Touches of memory that a held lock guards. They are no steps of their own: they belong to the
/// step before them.
#[derive(Debug)]
pub(crate) struct Touches {
    site: Site,
    /// The longest transfer, in picoseconds, among the lines requested together so far.
    ahead: u64,
}

impl Touches {
    pub(crate) fn at(site: Site) -> Self {
        Self { site, ahead: 0 }
    }

    /// Reads or writes memory: all its lines together with those before, or one after another.
    pub(crate) fn touch(&mut self, memory: Range<usize>, write: bool, together: bool) {
        self.ahead = with(|machine| {
            let ahead = together.then_some(self.ahead);
            machine.touch_memory(memory, write, ahead, self.site)
        });
    }

    /// The lines that follow are requested when those before have arrived.
    pub(crate) fn then(&mut self) {
        self.ahead = 0;
    }
}

/// Requests memory for writing without waiting for it. It is no step of its own: it belongs to the
/// step before it.
pub(crate) fn fetch(memory: Range<usize>, site: Site) {
    with(|machine| machine.fetch(memory, site));
}

/// Waits on a condition and releases the lock meanwhile; returns whether the wait timed out.
pub(crate) fn wait(condition: usize, lock_use: &LockUse, timeout: Option<Duration>) -> bool {
    arrive(lock_use.site, Action::Release);
    with(|machine| machine.wait(condition, lock_use, timeout.map(picoseconds)));
    suspend();
    let timed_out = with(|machine| machine.end_wait(lock_use.site));
    take_again(lock_use);
    timed_out
}

/// Wakes up to `count` waiters. It is no step of its own: it belongs to the step before it.
pub(crate) fn notify(condition: usize, count: usize) {
    with(|machine| machine.notify(condition, count));
}

/// Advances the core's clock by `time`.
pub(crate) fn sleep(time: Duration, site: Site) {
    arrive(site, Action::Other);
    with(|machine| machine.pass(picoseconds(time)));
    suspend();
}

/// Runs `spin`, a spin loop at `site`, and gives it the function that pauses between two tries.
pub(crate) fn spinning(site: Site, spin: impl FnOnce(&dyn Fn()) -> bool) -> bool {
    let since = clock();
    let has_come = spin(&|| {
        arrive(site, Action::Other);
        pause();
    });
    with(|machine| machine.count_wait(since, site));
    has_come
}

/// Spends the pauses between two tries of a spin loop.
fn pause() {
    with(|machine| machine.pass(machine.model.waiting.pause * u64::from(spin::PAUSES)));
    suspend();
}

/// The running core's time, in picoseconds.
fn clock() -> u64 {
    with(|machine| machine.cores[machine.current].clock)
}

/// The running core's time since the machine started.
pub(crate) fn now() -> Duration {
    Duration::from_nanos(clock() / 1000)
}

/// The processor that the running core is on.
pub(crate) fn processor() -> usize {
    with(|machine| machine.processors[machine.current])
}

fn picoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().saturating_mul(1000)).unwrap_or(u64::MAX)
}

/// A handle to a virtual core and its result.
pub(crate) struct Thread<T> {
    core: usize,
    result: Arc<Mutex<Option<std::thread::Result<T>>>>,
}

/// Starts another virtual core that runs `body`.
pub(crate) fn spawn<T: 'static>(name: &str, body: impl FnOnce() -> T + 'static) -> Thread<T> {
    let core = with(|machine| machine.add_core(name));
    let (thread, body) = Thread::of(core, body);
    let body = new_body(core, body);
    NEW_CORES.with_borrow_mut(|new_cores| new_cores.push((core, body)));
    thread
}

fn new_body(core: usize, body: impl FnOnce() + 'static) -> Body {
    let stack = DefaultStack::new(STACK).expect("there is memory for another stack");
    Coroutine::with_stack(stack, move |yielder, ()| {
        with(|machine| machine.cores[core].yielder = yielder);
        body();
    })
}

impl<T> Thread<T> {
    /// A handle to `core`, and `body` changed so that it stores its result there.
    fn of(core: usize, body: impl FnOnce() -> T) -> (Self, impl FnOnce()) {
        let result = Arc::new(Mutex::new(None));
        let place = Arc::clone(&result);
        let body = move || {
            let outcome = catch_unwind(AssertUnwindSafe(body));
            *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
        };
        (Self { core, result }, body)
    }

    /// Waits until the core has ended, and returns its result.
    pub(crate) fn join(self) -> std::thread::Result<T> {
        if !with(|machine| machine.join(self.core)) {
            suspend();
        }
        let mut result = self.result.lock().unwrap_or_else(PoisonError::into_inner);
        result
            .take()
            .expect("a core that has ended left its result")
    }

    pub(crate) fn is_finished(&self) -> bool {
        with(|machine| machine.is_finished(self.core))
    }

    /// Whether this is the running core.
    pub(crate) fn is_current(&self) -> bool {
        is_inside() && with(|machine| machine.current == self.core)
    }
}

/// Moves the calling virtual core to processor `number`.
pub fn move_to(number: usize) {
    with(|machine| machine.processors[machine.current] = number % machine.model.processors);
}

/// Begins a part of the caller's work; the caller is a virtual core or a thread of a calibration.
/// Every part has its own costs of stretches. This is a step, so that no stretch belongs to two
/// parts.
#[track_caller]
pub fn begin_part(number: u8) {
    let site = std::panic::Location::caller();
    if is_inside() {
        arrive(site, Action::Other);
        with(|machine| machine.cores[machine.current].part = number);
    } else {
        crate::calibration::part(site, number);
    }
}

/// Begins the measured window.
pub fn open_window() {
    with(Machine::open_window);
}

/// Returns what was used since [`open_window`].
#[must_use]
pub fn close_window() -> Usage {
    with(|machine| Usage::of(machine))
}

/// Drops the machine when the run ends, also by a panic.
struct Switch;

impl Drop for Switch {
    fn drop(&mut self) {
        INSIDE.set(false);
        MACHINE.take();
    }
}

/// Runs `main` on the first virtual core of a machine and returns its result. Everything that it
/// starts must have ended by then; remaining cores are dropped without running on.
///
/// # Panics
///
/// If `main` panics; if all cores are blocked; if called inside another run.
pub fn run<R: 'static>(
    model: Model,
    stretches: &Arc<Stretches>,
    seed: u64,
    main: impl FnOnce() -> R + 'static,
) -> R {
    assert!(!is_inside(), "a virtual core has no machine of its own");
    let machine = Machine::new(model, Arc::clone(stretches), seed);
    MACHINE.with_borrow_mut(|place| *place = Some(machine));
    let mut bodies = Bodies::default();
    let switch = Switch;
    INSIDE.set(true);
    let result = Rc::new(RefCell::new(None));
    let place = Rc::clone(&result);
    let core = with(|machine| machine.add_core("main"));
    bodies.insert(
        core,
        new_body(core, move || *place.borrow_mut() = Some(main())),
    );
    drive(&mut bodies);
    drop(switch);
    drop(bodies);
    let result = result.take();
    result.expect("the machine runs until its main body has ended")
}

/// The bodies of the cores, by core number. They are dropped from the last to the first: work lent
/// to a core borrows from the stack of a core with a smaller number.
#[derive(Default)]
struct Bodies(Vec<Option<Body>>);

impl Bodies {
    fn insert(&mut self, core: usize, body: Body) {
        let least = self.0.len().max(core + 1);
        self.0.resize_with(least, || None);
        self.0[core] = Some(body);
    }
}

impl Drop for Bodies {
    fn drop(&mut self) {
        while self.0.pop().is_some() {}
    }
}

/// Runs the cores, always the one with the earliest clock, until the first core has ended.
fn drive(bodies: &mut Bodies) {
    loop {
        let Some(core) = with(Machine::next) else {
            let stuck = with(|machine| machine.stuck());
            panic!("no virtual core can go on: {stuck}");
        };
        let body = bodies.0[core].as_mut();
        let body = body.expect("a core that has ended is not ready");
        let outcome = body.resume(());
        for (number, body) in NEW_CORES.take() {
            bodies.insert(number, body);
        }
        if let CoroutineResult::Return(()) = outcome {
            with(Machine::finish);
            bodies.0[core] = None;
            if core == 0 {
                return;
            }
        }
    }
}
