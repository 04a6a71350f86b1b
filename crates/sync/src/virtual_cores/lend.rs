//! Work that a core lends to others for a while: it goes on when all of it is done.
//!
//! What is lent borrows from the stack of the core that lends. So that core stays where it is until all others
//! have ended, also when one of them panics; if the lender itself panics meanwhile the program ends. A machine
//! that is taken away before drops the bodies of its cores where they stand, those with the larger numbers first,
//! and who lends has a smaller number than all that it lends to.

use std::panic::resume_unwind;

use super::{Body, NEWBORN, Thread, is_inside, new_body, with};

/// Does `work` on every part, the first on the calling core and each other on one of its own; answers what it
/// made of each, in their order.
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

/// Ends the program if its owner is unwound while others borrow from it.
struct Borrowed(bool);

impl Drop for Borrowed {
    fn drop(&mut self) {
        // Without a machine the others have been dropped already.
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
    // SAFETY: only the lifetime is forgotten. `at_once`, the only caller, goes on when the body has ended, as the
    // head of this file says; a body that has not run to its end is dropped before what it borrows.
    let body: Box<dyn FnOnce()> = unsafe { std::mem::transmute(body) };
    let body: Body = new_body(core, body);
    NEWBORN.with_borrow_mut(|newborn| newborn.push((core, body)));
    thread
}

fn take_back<R>(thread: Thread<R>) -> std::thread::Result<R> {
    let core = thread.core;
    let made = thread.join();
    with(|machine| machine.spare(core));
    made
}
