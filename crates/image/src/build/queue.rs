//! What one thread makes and another takes, in order.
//!
//! A queue is *closed* by whoever makes: takers then get what is left and the end. It is *abandoned*
//! by whoever gave up, on either side: makers are told, and nobody waits any more.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use pext4_sync::{Class, Condvar, Mutex};

/// How long somebody waits before looking whether that is still wanted.
const PATIENCE: Duration = Duration::from_millis(100);

/// A queue between threads.
pub(super) struct Queue<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
    room: usize,
}

struct State<T> {
    items: VecDeque<T>,
    is_closed: bool,
    is_abandoned: bool,
}

impl<T> Queue<T> {
    /// A queue whose makers wait while it holds `room` items.
    pub fn new(room: usize) -> Self {
        Self {
            state: Mutex::new(
                Class::Leaf,
                State {
                    items: VecDeque::new(),
                    is_closed: false,
                    is_abandoned: false,
                },
            ),
            changed: Condvar::new(),
            room,
        }
    }

    /// Adds an item, waiting for room; false where it was abandoned.
    pub fn put(&self, item: T) -> bool {
        let mut state = self.state.lock();
        while state.items.len() >= self.room && !state.is_abandoned {
            self.changed.wait(&mut state);
        }
        if state.is_abandoned {
            return false;
        }
        let was_empty = state.items.is_empty();
        state.items.push_back(item);
        drop(state);
        if was_empty {
            self.changed.notify_all();
        }
        true
    }

    /// The next item, waiting for one; `None` at the end or where it was abandoned.
    pub fn take(&self) -> Option<T> {
        let never: Result<_, Infallible> = self.take_unless(|| Ok(()));
        never.unwrap_or_else(|never| match never {})
    }

    /// As [`Queue::take`]; while nothing comes it asks `goes_on` now and then, whose error ends the waiting.
    pub fn take_unless<E>(&self, goes_on: impl Fn() -> Result<(), E>) -> Result<Option<T>, E> {
        let mut state = self.state.lock();
        while state.items.is_empty() && !state.is_closed && !state.is_abandoned {
            if self.changed.wait_for(&mut state, PATIENCE) {
                goes_on()?;
            }
        }
        if state.is_abandoned {
            return Ok(None);
        }
        let was_full = state.items.len() >= self.room;
        let item = state.items.pop_front();
        drop(state);
        if was_full {
            self.changed.notify_all();
        }
        Ok(item)
    }

    /// Says that nothing more comes.
    pub fn close(&self) {
        self.state.lock().is_closed = true;
        self.changed.notify_all();
    }

    /// As [`Queue::close`], and waits until nobody is interested any more.
    pub fn close_and_wait(&self) {
        let mut state = self.state.lock();
        state.is_closed = true;
        self.changed.notify_all();
        while !state.is_abandoned {
            self.changed.wait(&mut state);
        }
    }

    /// Says that nobody is interested any more.
    pub fn abandon(&self) {
        self.state.lock().is_abandoned = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::Queue;

    #[test]
    fn what_is_put_is_taken_in_order() {
        let queue = Queue::new(2);
        pext4_sync::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..1000 {
                    assert!(queue.put(number));
                }
                queue.close();
            });
            for number in 0..1000 {
                assert_eq!(queue.take(), Some(number));
            }
            assert_eq!(queue.take(), None);
        });
    }

    #[test]
    fn nobody_waits_for_who_gave_up() {
        let queue = Queue::new(1);
        assert!(queue.put(1));
        pext4_sync::thread::scope(|scope| {
            scope.spawn(|| assert!(!queue.put(2)));
            queue.abandon();
        });
        assert_eq!(queue.take(), None);
    }
}
