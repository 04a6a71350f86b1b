//! Checks concurrent histories for linearisability.
//!
//! Threads run operations on one volume and record when each was called and when it returned. The
//! history is *linearisable* if the operations can be ordered, each at one moment between its call
//! and its return, so that the model gives every observed answer and the final tree. The search is
//! Wing and Gong's: choose any operation that no unfinished operation precedes, apply it to the
//! model, continue, and take it back if that fails. A search state that was reached before (the
//! same operations done, the same model) is not searched again.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};

use pext4_fs::RenameMode;

use crate::Random;
use crate::model::Model;
use crate::op::{NewAttributes, Op, Target};
use crate::outcome::{Outcome, Subject};
use crate::tree::Tree;
use crate::volume::VolumeSubject;

/// Most operations in a history: a set of them is one 64-bit word.
pub const MOST: usize = 64;
/// Most steps of a search; after them the history is undecided.
const STEP_LIMIT: usize = 2_000_000;
/// Slots of each thread; no two threads use the same number.
const SLOTS: u8 = 3;

/// One operation of a history.
#[derive(Clone, Debug)]
pub struct Call {
    /// The thread that called.
    pub thread: usize,
    /// The operation.
    pub op: Op,
    /// What it returned.
    pub outcome: Outcome,
    /// Time of the call, on a clock that all threads share.
    pub called: u64,
    /// Time of the return.
    pub returned: u64,
}

/// The result of a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// An order exists; the indices of the calls in it.
    Linear(Vec<usize>),
    /// No order exists.
    Impossible,
    /// The search was given up.
    Undecided,
}

/// Searches for an order of a history that starts from the model `start` and ends with the tree
/// `end`.
#[must_use]
pub fn search(start: &Model, history: &[Call], end: Option<&Tree>) -> Verdict {
    assert!(history.len() <= MOST, "a history is counted in one word");
    let mut search = Search {
        history,
        end,
        seen: HashSet::new(),
        steps: 0,
        order: Vec::new(),
    };
    match search.extend(start, 0) {
        true => Verdict::Linear(search.order),
        false if search.steps >= STEP_LIMIT => Verdict::Undecided,
        false => Verdict::Impossible,
    }
}

struct Search<'a> {
    history: &'a [Call],
    end: Option<&'a Tree>,
    seen: HashSet<(u64, u64)>,
    steps: usize,
    order: Vec<usize>,
}

impl Search<'_> {
    /// Whether the calls that are not in `done` can follow in some order.
    fn extend(&mut self, model: &Model, done: u64) -> bool {
        if self.order.len() == self.history.len() {
            return self
                .end
                .is_none_or(|tree| model.differences(tree).is_empty());
        }
        self.steps += 1;
        if self.steps >= STEP_LIMIT || !self.seen.insert((done, model.fingerprint())) {
            return false;
        }
        let open = |index: usize| done >> index & 1 == 0;
        let first_return = (0..self.history.len()).filter(|&index| open(index));
        let first_return = first_return.map(|index| self.history[index].returned).min();
        let Some(first_return) = first_return else {
            return false;
        };
        for index in (0..self.history.len()).filter(|&index| open(index)) {
            let call = &self.history[index];
            if call.called > first_return {
                continue;
            }
            let mut next = model.clone();
            if next.follow(&call.op, &call.outcome).is_ok() {
                self.order.push(index);
                if self.extend(&next, done | 1 << index) {
                    return true;
                }
                self.order.pop();
            }
        }
        false
    }
}

/// A history as text.
#[must_use]
pub fn tell(history: &[Call]) -> String {
    let mut calls: Vec<&Call> = history.iter().collect();
    calls.sort_by_key(|call| call.called);
    let lines = calls.iter().map(|call| {
        let outcome = crate::model::tell(&call.outcome);
        format!(
            "  [{:4} {:4}] thread {}: {} -> {outcome}",
            call.called, call.returned, call.thread, call.op
        )
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The parameters of a concurrent history.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Number of threads.
    pub threads: usize,
    /// Operations of each thread.
    pub each: usize,
    /// Directories that the threads share.
    pub directories: usize,
}

/// Runs threads on one volume, in directories that they share, which are made in the volume and in
/// `model` first. Returns the history.
pub fn record(
    subject: &mut VolumeSubject,
    model: &mut Model,
    plan: Plan,
    seed: u64,
) -> Result<Vec<Call>, String> {
    let mut random = Random::new(seed);
    let mut shared = Vec::new();
    for number in 0..plan.directories {
        let at = Target::path(&format!("shared{number}"));
        crate::campaign::step(
            subject,
            model,
            &Op::MakeDirectory {
                at: at.clone(),
                new: NewAttributes::plain(0o755),
            },
        )?;
        shared.push(Target::inode(
            model.resolve(&at).map_err(|_| "just made".to_owned())?,
        ));
    }
    model.keeps_unnamed = true;
    let clock = Arc::new(AtomicU64::new(0));
    let barrier = Arc::new(Barrier::new(plan.threads));
    let workers: Vec<_> = (0..plan.threads)
        .map(|thread| {
            let mut own = subject.beside(model.root());
            let (clock, barrier) = (Arc::clone(&clock), Arc::clone(&barrier));
            let (shared, mut random) = (shared.clone(), random.fork());
            std::thread::spawn(move || {
                let now = || clock.fetch_add(1, Ordering::SeqCst);
                barrier.wait();
                let mut calls = Vec::with_capacity(plan.each);
                for _ in 0..plan.each {
                    let op = operation(&mut random, &shared, thread as u8 * SLOTS);
                    let called = now();
                    let outcome = own.run(&op);
                    calls.push(Call {
                        thread,
                        op,
                        outcome,
                        called,
                        returned: now(),
                    });
                }
                calls
            })
        })
        .collect();
    let mut history = Vec::new();
    for worker in workers {
        history.extend(worker.join().map_err(|_| "a thread panicked".to_owned())?);
    }
    Ok(history)
}

/// An operation that is a single call of the volume: no name is looked up except the last one.
fn operation(random: &mut Random, shared: &[Target], first_slot: u8) -> Op {
    let slot = first_slot + random.below(SLOTS.into()) as u8;
    let held = Target::slot(slot);
    let place = |random: &mut Random| {
        let directory = if random.chance(1, 8) {
            held.clone()
        } else {
            random.pick(shared).clone()
        };
        directory.join(&[*random.pick(b"abc")])
    };
    let modes = [
        RenameMode::Replace,
        RenameMode::NoReplace,
        RenameMode::Exchange,
    ];
    let new = NewAttributes::plain(0o644);
    match random.weighted(&[16, 8, 14, 6, 18, 8, 10, 8, 6, 4, 6, 4]) {
        0 => Op::Create {
            at: place(random),
            new,
        },
        1 => Op::MakeDirectory {
            at: place(random),
            new: NewAttributes::plain(0o755),
        },
        2 => Op::Unlink(place(random)),
        3 => Op::RemoveDirectory(place(random)),
        4 => Op::Rename {
            from: place(random),
            to: place(random),
            mode: *random.pick(&modes),
        },
        5 => Op::Link {
            of: held.clone(),
            at: place(random),
        },
        6 => Op::Hold {
            of: place(random),
            slot,
        },
        7 => Op::Write {
            of: held.clone(),
            offset: random.below(3) * 100,
            length: 100,
            fill: random.below(50),
        },
        8 => Op::Read {
            of: held.clone(),
            offset: 0,
            length: 400,
        },
        9 => Op::Truncate {
            of: held.clone(),
            size: random.below(400),
        },
        10 => Op::Stat(held.clone()),
        _ => Op::Lookup(place(random)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errno::{EEXIST, ENOENT, Failure};
    use crate::outcome::Answer;

    fn call(thread: usize, op: &str, outcome: Outcome, called: u64, returned: u64) -> Call {
        Call {
            thread,
            op: op.parse().expect("an operation"),
            outcome,
            called,
            returned,
        }
    }

    #[test]
    fn an_order_is_found_where_one_exists() {
        let history = [
            call(0, "unlink /a", Ok(Answer::Done), 0, 9),
            call(1, "symlink /a 777 0 0 x", Err(Failure::new(EEXIST)), 1, 2),
            call(1, "unlink /a", Err(Failure::new(ENOENT)), 5, 6),
        ];
        let mut start = Model::empty(4096);
        start
            .run(&"create /a 644 0 0".parse().expect("an operation"))
            .expect("there is room");
        assert_eq!(
            search(&start, &history, None),
            Verdict::Linear(vec![1, 0, 2])
        );
    }

    #[test]
    fn a_history_that_cannot_be_is_told() {
        let history = [
            call(0, "unlink /a", Ok(Answer::Done), 0, 3),
            call(1, "unlink /a", Ok(Answer::Done), 1, 2),
        ];
        let mut start = Model::empty(4096);
        start
            .run(&"create /a 644 0 0".parse().expect("an operation"))
            .expect("there is room");
        assert_eq!(search(&start, &history, None), Verdict::Impossible);
        let late = [
            call(0, "unlink /a", Ok(Answer::Done), 0, 1),
            call(
                1,
                "rmdir /a",
                Err(Failure::new(crate::errno::ENOTDIR)),
                2,
                3,
            ),
        ];
        assert_eq!(
            search(&start, &late, None),
            Verdict::Impossible,
            "real time orders them"
        );
    }

    #[test]
    fn the_tree_at_the_end_decides_too() {
        let start = Model::empty(4096);
        assert_eq!(
            search(&start, &[], Some(&Tree::default())),
            Verdict::Impossible
        );
    }
}
