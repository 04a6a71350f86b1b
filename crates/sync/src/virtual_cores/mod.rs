//! Virtual cores: the engine's own code on as many processors as one likes, in virtual time.
//!
//! [`run`] imitates a machine ([`Model`]). Its main body and every thread it starts through
//! [`crate::thread`] is a virtual core with a clock of its own. All of them are coroutines of one
//! real thread, and at each step that touches something shared (a lock, an atomic, a condition, a
//! sleep) the core that is furthest behind goes on. The work between two steps costs what it cost
//! real threads ([`crate::calibration`]); a lock makes its next taker wait until the release; a
//! try-lock fails if the lock is held at the trier's time; a cache line that another core wrote
//! costs a transfer, one at a time. So for the same stretches and seed a run repeats exactly.
//!
//! What is seen is what goes through this crate. `docs/VIRTUAL.md` says what the model leaves out.
//!
//! A core's body runs on a stack of its own inside one real thread, so thread-locals are shared by
//! all cores; this crate's own ask here first.

mod lend;
mod lines;
mod locks;
mod machine;
mod memory;
mod model;
mod usage;

#[cfg(test)]
mod lock_tests;
#[cfg(test)]
mod spin_tests;
#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
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
pub use crate::calibration::{Recording, Stretches, record as calibrate, reference};

use self::machine::Machine;
use crate::spin;
use crate::stretches::Step;
use crate::watch::{Action, Place, Site};

/// Bytes of a core's stack; only what is used takes memory.
const STACK: usize = 2 << 20;

type Body = Coroutine<(), (), ()>;

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
    static MACHINE: RefCell<Option<Machine>> = const { RefCell::new(None) };
    /// Cores that were made and have not run yet.
    static NEWBORN: RefCell<Vec<(usize, Body)>> = const { RefCell::new(Vec::new()) };
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

/// Notes that memory was given back. The machine's own may be, while it is at work; nobody looks for
/// lines there.
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

/// Lets others run until it is this core's turn again.
#[allow(unsafe_code)]
fn suspend() {
    let yielder = with(|machine| machine.cores[machine.current].yielder);
    // SAFETY: the pointer was taken from the reference that this core's body got from its
    // coroutine, which is valid as long as the body runs, and we are in the body of the current
    // core.
    unsafe { (*yielder).suspend(()) }
}

fn arrive(site: Site, action: Action) {
    let step = Step::new(site, action);
    if with(|machine| machine.arrive(step)) {
        suspend();
    }
}

/// Takes a lock, waiting in virtual time.
pub(crate) fn take(place: &Place) {
    arrive(place.site, Action::Take);
    take_again(place);
}

/// Takes a lock, spinning before it waits.
pub(crate) fn take_spinning(place: &Place) {
    arrive(place.site, Action::Take);
    if with(|machine| machine.take_if_free(place)) {
        return;
    }
    let since = clock();
    spin::poll(|| sees_free(place), pause);
    wait_for(place, Some(since));
}

/// Whether somebody holds a lock, at a glance.
pub(crate) fn is_held(place: &Place) -> bool {
    arrive(place.site, Action::Load);
    !sees_free(place)
}

/// Whether a lock could be had now, which a core asks that waits for it.
fn sees_free(place: &Place) -> bool {
    with(|machine| machine.sees_free(place))
}

fn take_again(place: &Place) {
    wait_for(place, None);
}

/// Takes a lock that has been waited for `since` then.
fn wait_for(place: &Place, since: Option<u64>) {
    let mut has_it = with(|machine| machine.take(place, since));
    while !has_it {
        suspend();
        has_it = with(|machine| machine.take_when_called(place));
    }
}

/// Takes a lock if it is free at this core's time.
pub(crate) fn try_take(place: &Place) -> bool {
    arrive(place.site, Action::Try);
    with(|machine| machine.try_take(place))
}

/// Gives a lock back.
pub(crate) fn release(place: &Place) {
    arrive(place.site, Action::Release);
    with(|machine| machine.release(place));
}

/// Touches an atomic.
pub(crate) fn access(address: usize, write: bool, site: Site) {
    let action = if write { Action::Write } else { Action::Load };
    arrive(site, action);
    with(|machine| machine.access(address, write, site));
}

/// Waits on a condition with a lock that is given back meanwhile; answers whether time ran out.
pub(crate) fn wait(condition: usize, place: &Place, timeout: Option<Duration>) -> bool {
    arrive(place.site, Action::Release);
    with(|machine| machine.wait(condition, place, timeout.map(picoseconds)));
    suspend();
    let timed_out = with(|machine| machine.end_wait(place.site));
    take_again(place);
    timed_out
}

/// Wakes up to `count` waiters; no step of its own, since it goes with the one before.
pub(crate) fn notify(condition: usize, count: usize) {
    with(|machine| machine.notify(condition, count));
}

/// Lets time pass.
pub(crate) fn sleep(time: Duration, site: Site) {
    arrive(site, Action::Other);
    with(|machine| machine.pass(picoseconds(time)));
    suspend();
}

/// Runs what `spin`s at `site`, with the pause it makes between two looks.
pub(crate) fn spinning(site: Site, spin: impl FnOnce(&dyn Fn()) -> bool) -> bool {
    let since = clock();
    let has_come = spin(&|| {
        arrive(site, Action::Other);
        pause();
    });
    with(|machine| machine.note_wait(since, site));
    has_come
}

/// Lets the pauses pass that are made between two looks at something.
fn pause() {
    with(|machine| machine.pass(machine.model.waiting.pause * u64::from(spin::PAUSES)));
    suspend();
}

/// The running core's time, in picoseconds.
fn clock() -> u64 {
    with(|machine| machine.cores[machine.current].clock)
}

/// The running core's time since the machine was switched on.
pub(crate) fn now() -> Duration {
    Duration::from_nanos(clock() / 1000)
}

/// The processor the running core is on.
pub(crate) fn processor() -> usize {
    with(|machine| machine.processors[machine.current])
}

fn picoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().saturating_mul(1000)).unwrap_or(u64::MAX)
}

/// What a virtual core leaves behind.
pub(crate) struct Thread<T> {
    core: usize,
    result: Arc<Mutex<Option<std::thread::Result<T>>>>,
}

/// Makes another virtual core run `body`.
pub(crate) fn spawn<T: 'static>(name: &str, body: impl FnOnce() -> T + 'static) -> Thread<T> {
    let core = with(|machine| machine.add_core(name));
    let (thread, body) = Thread::of(core, body);
    let body = new_body(core, body);
    NEWBORN.with_borrow_mut(|newborn| newborn.push((core, body)));
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
    /// What `core` leaves behind when it runs `body` as it is answered.
    fn of(core: usize, body: impl FnOnce() -> T) -> (Self, impl FnOnce()) {
        let result = Arc::new(Mutex::new(None));
        let place = Arc::clone(&result);
        let body = move || {
            let outcome = catch_unwind(AssertUnwindSafe(body));
            *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
        };
        (Self { core, result }, body)
    }

    /// Waits until it has ended.
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

    /// Whether it is the running one.
    pub(crate) fn is_current(&self) -> bool {
        is_inside() && with(|machine| machine.current == self.core)
    }
}

/// Puts the calling virtual core on processor `number`.
pub fn move_to(number: usize) {
    with(|machine| machine.processors[machine.current] = number % machine.model.processors);
}

/// The caller, a virtual core or a thread of a calibration, begins a part of its work: a stretch of code
/// costs in each what it cost there.
pub fn begin_part(number: u8) {
    if is_inside() {
        with(|machine| machine.cores[machine.current].part = number);
    } else {
        crate::calibration::part(number);
    }
}

/// Begins the window that counts.
pub fn open_window() {
    with(Machine::open_window);
}

/// Tells what was used since [`open_window`].
#[must_use]
pub fn close_window() -> Usage {
    with(|machine| Usage::of(machine))
}

/// Takes the machine away when the run ends, however it ends.
struct Switch;

impl Drop for Switch {
    fn drop(&mut self) {
        INSIDE.set(false);
        MACHINE.take();
    }
}

/// Runs `main` on the first virtual core of a machine and answers what it returns. Whatever it
/// starts must have ended by then; cores that have not are dropped where they stand.
///
/// # Panics
/// With the panic of `main`; if no core can go on; and inside another run.
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

/// What the cores run, by their numbers. The last goes first when all are dropped: what was lent to a core lies on
/// the stack of one with a smaller number.
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

/// Lets cores run, always the one that is furthest behind, until the first one has ended.
fn drive(bodies: &mut Bodies) {
    loop {
        let Some(core) = with(Machine::next) else {
            let stuck = with(|machine| machine.stuck());
            panic!("no virtual core can go on: {stuck}");
        };
        let body = bodies.0[core].as_mut();
        let body = body.expect("a core that has ended is not ready");
        let outcome = body.resume(());
        for (number, body) in NEWBORN.take() {
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
