//! A bounded queue between threads.
//!
//! A producer *closes* the queue when nothing follows: consumers then get the remaining items and
//! the end. Either side *abandons* the queue when it gives up: `put` then returns false, and no
//! thread waits any more. A thread that produces everything before it consumes *unbounds* the
//! queue. A thread that panics must not leave others waiting: a producer's end is in a `drop`, a
//! consumer holds an [`AbandonAtEnd`].

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use pext4_sync::{Class, Condvar, Mutex};

/// The interval at which a waiting consumer checks whether it should continue.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// A bounded queue between threads.
pub(super) struct Queue<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

struct State<T> {
    items: VecDeque<T>,
    room: usize,
    is_closed: bool,
    is_abandoned: bool,
}

impl<T> Queue<T> {
    /// A queue in which producers wait while it contains `room` items.
    pub fn new(room: usize) -> Self {
        Self {
            state: Mutex::new(
                Class::Leaf,
                State {
                    items: VecDeque::new(),
                    room,
                    is_closed: false,
                    is_abandoned: false,
                },
            ),
            changed: Condvar::new(),
        }
    }

    /// Adds an item, and waits while the queue is full. Returns false if the queue was abandoned.
    pub fn put(&self, item: T) -> bool {
        let mut state = self.state.lock();
        while state.items.len() >= state.room && !state.is_abandoned {
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

    /// Returns the next item, and waits for one. `None` at the end or if the queue was abandoned.
    pub fn take(&self) -> Option<T> {
        let never: Result<_, Infallible> = self.take_or_check(|| Ok(()));
        never.unwrap_or_else(|never| match never {})
    }

    /// As [`Queue::take`], but calls `check` periodically while it waits. An error of `check` ends
    /// the wait.
    pub fn take_or_check<E>(&self, check: impl Fn() -> Result<(), E>) -> Result<Option<T>, E> {
        let mut state = self.state.lock();
        while state.items.is_empty() && !state.is_closed && !state.is_abandoned {
            if self.changed.wait_for(&mut state, CHECK_INTERVAL) {
                check()?;
            }
        }
        if state.is_abandoned {
            return Ok(None);
        }
        let was_full = state.items.len() >= state.room;
        let item = state.items.pop_front();
        drop(state);
        if was_full {
            self.changed.notify_all();
        }
        Ok(item)
    }

    /// Removes the bound: no producer waits.
    pub fn unbound(&self) {
        self.state.lock().room = usize::MAX;
        self.changed.notify_all();
    }

    /// Marks the end: no more items follow.
    pub fn close(&self) {
        self.state.lock().is_closed = true;
        self.changed.notify_all();
    }

    /// As [`Queue::close`], and waits until the queue is abandoned.
    pub fn close_and_wait(&self) {
        let mut state = self.state.lock();
        state.is_closed = true;
        self.changed.notify_all();
        while !state.is_abandoned {
            self.changed.wait(&mut state);
        }
    }

    /// Gives up the queue: its remaining items are not needed any more.
    pub fn abandon(&self) {
        self.state.lock().is_abandoned = true;
        self.changed.notify_all();
    }
}

/// Abandons queues when it goes, with the consumer that holds it: no producer waits for one that
/// has panicked.
pub(super) struct AbandonAtEnd<'a, T>(pub &'a [Queue<T>]);

impl<T> Drop for AbandonAtEnd<'_, T> {
    fn drop(&mut self) {
        self.0.iter().for_each(Queue::abandon);
    }
}

#[cfg(test)]
mod tests {
    use super::{AbandonAtEnd, Queue};

    #[test]
    fn no_producer_waits_for_a_consumer_that_panicked() {
        let queue = Queue::new(1);
        assert!(queue.put(1));
        let queues = std::slice::from_ref(&queue);
        pext4_sync::thread::scope(|scope| {
            scope.spawn(|| while queue.put(2) {});
            let consumer = std::panic::AssertUnwindSafe(|| {
                let _end = AbandonAtEnd(queues);
                std::panic::resume_unwind(Box::new("as a panic does"));
            });
            assert!(std::panic::catch_unwind(consumer).is_err());
            let is_abandoned = queue.state.lock().is_abandoned;
            // So that the test fails, and does not wait for the producer.
            queue.abandon();
            assert!(is_abandoned);
        });
    }

    #[test]
    fn items_are_taken_in_order() {
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
    fn a_queue_without_a_bound_takes_everything() {
        let queue = Queue::new(1);
        queue.unbound();
        assert!((0..100).all(|number| queue.put(number)));
        assert_eq!(queue.take(), Some(0));
    }

    #[test]
    fn an_abandoned_queue_wakes_waiting_producers() {
        let queue = Queue::new(1);
        assert!(queue.put(1));
        pext4_sync::thread::scope(|scope| {
            scope.spawn(|| assert!(!queue.put(2)));
            queue.abandon();
        });
        assert_eq!(queue.take(), None);
    }
}
