//! Work that a core divides among several cores; it continues when all of them have finished.
//!
//! The work of the other cores borrows from the stack of the lending core. Therefore the lending
//! core does not return before all others have ended, even if one of them panics; if the lending
//! core itself panics meanwhile, the process aborts. If the machine is dropped before that, it
//! drops the bodies of its cores from the highest number down, and a lending core has a smaller
//! number than all cores that it lends to.

use std::panic::resume_unwind;

use super::{Body, NEW_CORES, Thread, is_inside, new_body, with};

/// Applies `work` to every part, the first on the calling core and each other one on a core of its
/// own. Returns the results in the order of the parts.
pub(crate) fn at_once<T, R>(parts: Vec<T>, work: &impl Fn(T) -> R) -> Vec<R> {
    let mut parts = parts.into_iter();
    let own = parts.next();
    let mut borrowed = Borrowed(true);
    let others: Vec<_> = parts.map(|part| lend(move || work(part))).collect();
    let own = own.map(work);
    let others: Vec<_> = others.into_iter().map(take_back).collect();
    borrowed.0 = false;
    let others = others
        .into_iter()
        .map(|made| made.unwrap_or_else(|panic| resume_unwind(panic)));
    own.into_iter().chain(others).collect()
}

/// Aborts the process if its owner unwinds while other cores borrow from it.
struct Borrowed(bool);

impl Drop for Borrowed {
    fn drop(&mut self) {
        // Without a machine the other cores have already been dropped.
        if self.0 && is_inside() {
            std::process::abort();
        }
    }
}

#[allow(unsafe_code)]
fn lend<'a, R: 'a>(body: impl FnOnce() -> R + 'a) -> Thread<R> {
    let core = with(super::Machine::lend);
    let (thread, body) = Thread::of(core, body);
    let body: Box<dyn FnOnce() + 'a> = Box::new(body);
    // SAFETY: this only erases the lifetime. `at_once`, the only caller, continues after the body
    // has ended, as the head of this file says; a body that does not run to its end is dropped
    // before what it borrows.
    let body: Box<dyn FnOnce()> = unsafe { std::mem::transmute(body) };
    let body: Body = new_body(core, body);
    NEW_CORES.with_borrow_mut(|new_cores| new_cores.push((core, body)));
    thread
}

fn take_back<R>(thread: Thread<R>) -> std::thread::Result<R> {
    let core = thread.core;
    let made = thread.join();
    with(|machine| machine.spare(core));
    made
}
