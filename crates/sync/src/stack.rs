//! A lock-free stack: any thread pushes, any thread takes all elements.
//!
//! There is no pop of a single element, and so no ABA problem: a push compares only the head that
//! it links to, which is correct even if that node was taken and pushed again meanwhile, and taking
//! swaps the whole chain for null. A node belongs to its pusher until the exchange that publishes
//! it, to the stack until the swap that takes it, and then to the taker alone.
//!
//! A push happens before the take that returns its element.

use std::fmt;
use std::marker::PhantomData;
use std::ptr;

use crate::atomic::{AtomicPtr, Ordering};

/// A lock-free stack of `T`.
pub struct Stack<T> {
    head: AtomicPtr<Node<T>>,
    /// `AtomicPtr` is `Send` and `Sync` for any type. This stack moves its elements between
    /// threads, as a standard mutex does, and so needs the same bound: `T: Send`.
    owns: PhantomData<std::sync::Mutex<T>>,
}

impl<T> fmt::Debug for Stack<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Stack").finish_non_exhaustive()
    }
}

struct Node<T> {
    value: T,
    next: *mut Node<T>,
}

impl<T> Stack<T> {
    /// An empty stack.
    #[must_use]
    pub fn new() -> Self {
        Self {
            head: AtomicPtr::new(ptr::null_mut()),
            owns: PhantomData,
        }
    }

    /// Puts `value` on top.
    pub fn push(&self, value: T) {
        let node = Box::into_raw(Box::new(Node {
            value,
            next: ptr::null_mut(),
        }));
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            // SAFETY: `node` comes from `Box::into_raw` above and is not published yet: each
            // iteration follows an exchange that failed, so only this thread has the pointer.
            unsafe { (*node).next = head };
            // Release: the taker of the node sees `value` and `next`. The nodes below were released
            // by their own pushes, whose release sequences this exchange continues.
            match self
                .head
                .compare_exchange_weak(head, node, Ordering::Release, Ordering::Relaxed)
            {
                Ok(_) => return,
                Err(seen) => head = seen,
            }
        }
    }

    /// Takes all elements that are on the stack; the newest is first. Who finds the stack empty
    /// afterwards also sees what this thread did before.
    pub fn take_all(&self) -> Drain<T> {
        Drain {
            head: self.head.swap(ptr::null_mut(), Ordering::AcqRel),
            owns: PhantomData,
        }
    }

    /// Whether the stack is empty at the moment.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.head.load(Ordering::Acquire).is_null()
    }
}

impl<T> Default for Stack<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Drop for Stack<T> {
    fn drop(&mut self) {
        drop(self.take_all());
    }
}

/// The elements taken from a [`Stack`], newest first; dropping it drops the rest.
pub struct Drain<T> {
    head: *mut Node<T>,
    owns: PhantomData<Box<Node<T>>>,
}

impl<T> fmt::Debug for Drain<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Drain").finish_non_exhaustive()
    }
}

impl<T> Iterator for Drain<T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        if self.head.is_null() {
            return None;
        }
        // SAFETY: the pointer was made by `Box::into_raw` in `push`, and the swap in `take_all`
        // gave its chain to this drain alone; it is turned back into a box only once, since `head`
        // is advanced below.
        let node = unsafe { Box::from_raw(self.head) };
        let Node { value, next } = *node;
        self.head = next;
        Some(value)
    }
}

impl<T> Drop for Drain<T> {
    fn drop(&mut self) {
        self.for_each(drop);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use super::Stack;
    use crate::atomic::{AtomicBool, Ordering};
    use crate::thread;

    #[test]
    fn the_newest_comes_first() {
        let stack = Stack::new();
        assert!(stack.is_empty());
        for number in 0..4 {
            stack.push(number);
        }
        assert!(!stack.is_empty());
        assert_eq!(stack.take_all().collect::<Vec<_>>(), [3, 2, 1, 0]);
        assert!(stack.is_empty());
        assert_eq!(stack.take_all().next(), None);
    }

    #[test]
    fn no_element_is_lost_or_taken_twice() {
        const EACH: u64 = 5000;
        let stack = Stack::new();
        let done = AtomicBool::new(false);
        let mut taken = thread::scope(|scope| {
            let taker = || {
                let mut taken = Vec::new();
                while !done.load(Ordering::Acquire) {
                    taken.extend(stack.take_all());
                }
                taken
            };
            let takers = [scope.spawn(taker), scope.spawn(taker)];
            let pushers: Vec<_> = (0..3)
                .map(|thread| {
                    let stack = &stack;
                    scope.spawn(move || {
                        for number in 0..EACH {
                            stack.push(Box::new(thread * EACH + number));
                        }
                    })
                })
                .collect();
            for pusher in pushers {
                pusher.join().expect("a pusher does not panic");
            }
            done.store(true, Ordering::Release);
            takers
                .map(|taker| taker.join().expect("a taker does not panic"))
                .concat()
        });
        taken.extend(stack.take_all());
        let mut numbers: Vec<u64> = taken.into_iter().map(|number| *number).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (0..3 * EACH).collect::<Vec<_>>());
    }

    #[test]
    fn what_is_not_taken_is_dropped() {
        let element = Arc::new(());
        let stack = Stack::new();
        for _ in 0..10 {
            stack.push(Arc::clone(&element));
        }
        let mut drain = stack.take_all();
        drain.next();
        stack.push(Arc::clone(&element));
        assert_eq!(Arc::strong_count(&element), 11);
        drop(drain);
        assert_eq!(Arc::strong_count(&element), 2);
        drop(stack);
        assert_eq!(Arc::strong_count(&element), 1);
    }

    #[test]
    fn a_long_stack_is_dropped_without_recursion() {
        let stack = Stack::new();
        for number in 0..1_000_000 {
            stack.push(number);
        }
        drop(stack);
    }
}

#[cfg(all(test, loom))]
mod models {
    use std::sync::Arc;

    use super::Stack;
    use crate::atomic::{AtomicU32, Ordering};

    #[test]
    fn pushers_and_a_taker_lose_nothing() {
        loom::model(|| {
            let stack = Arc::new(Stack::new());
            let pushers = [1, 2].map(|number| {
                let stack = Arc::clone(&stack);
                loom::thread::spawn(move || stack.push(loom::alloc::Track::new(number)))
            });
            let mut taken: Vec<_> = stack.take_all().map(|number| *number.get_ref()).collect();
            for pusher in pushers {
                pusher.join().expect("a pusher does not panic");
            }
            taken.extend(stack.take_all().map(|number| *number.get_ref()));
            taken.sort_unstable();
            assert_eq!(taken, [1, 2]);
        });
    }

    /// What a `sync` relies on that finds no changes in the transaction it has seen running.
    #[test]
    fn an_empty_stack_shows_what_its_taker_did_before() {
        loom::model(|| {
            let stack = Arc::new(Stack::new());
            let opened = Arc::new(AtomicU32::new(0));
            stack.push(1);
            let taker = {
                let (stack, opened) = (Arc::clone(&stack), Arc::clone(&opened));
                loom::thread::spawn(move || {
                    opened.store(1, Ordering::Relaxed);
                    drop(stack.take_all());
                })
            };
            if stack.is_empty() {
                assert_eq!(opened.load(Ordering::Relaxed), 1);
            }
            taker.join().expect("the taker does not panic");
        });
    }

    #[test]
    fn two_takers_share_nothing() {
        loom::model(|| {
            let stack = Arc::new(Stack::new());
            stack.push(1);
            let other = {
                let stack = Arc::clone(&stack);
                loom::thread::spawn(move || {
                    stack.push(2);
                    stack.take_all().collect::<Vec<_>>()
                })
            };
            let mut taken: Vec<_> = stack.take_all().collect();
            taken.extend(other.join().expect("the other taker does not panic"));
            taken.extend(stack.take_all());
            taken.sort_unstable();
            assert_eq!(taken, [1, 2]);
        });
    }
}
