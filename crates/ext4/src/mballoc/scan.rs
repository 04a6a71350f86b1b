//! The search for a run through the groups.
//!
//! First the exact goal, for which the scan waits: placement stays predictable where nobody
//! contends. Then the criteria, one function each, every one walking the groups in ascending order
//! from the goal's (for large files: from the stream goal's) and around:
//!
//! 1. a power of two, aligned, in a group that has one that large;
//! 2. the wanted length, in a group whose average run is as long;
//! 3. the longest run that any group still seems to have;
//! 4. anything, anywhere. Only here a held group is waited for.
//!
//! Groups are chosen by hints; what counts is re-tested under the lock (rule D5). A group
//! found full is in nobody's way later: its hints say so.

use std::sync::Arc;

use pext4_jbd2::Handle;
use pext4_ondisk::GroupNumber;

use super::request::{Plan, Run, Surplus};
use crate::groups::buddy::Span;
use crate::groups::slot::{Slot, mark};
use crate::groups::{Groups, Held, Preallocation};

/// Powers of two below this order are not worth a search of their own.
const LEAST_ORDER: u32 = 2;
/// Groups that a criterion reads into memory before it leaves the rest to the next one.
const MOST_LOADS: u32 = 8;
/// Rounds of the third criterion, while hints of groups not in memory turn out too good.
const ROUNDS: u32 = 4;

/// What was found: the run, and the preallocation that took the surplus.
type Found = (Run, Option<Arc<Preallocation>>);

/// One search.
struct Scan<'a, 'h> {
    groups: &'a Groups,
    handle: &'a mut Handle<'h>,
    plan: &'a Plan,
    /// Where the walk begins.
    first: GroupNumber,
    /// Where in the first group.
    offset: u32,
    /// Groups read into memory by this criterion.
    loads: u32,
}

impl Groups {
    /// Looks for a run as planned and takes it.
    pub(super) fn scan(&self, handle: &mut Handle<'_>, plan: &Plan) -> Option<Found> {
        let geometry = &self.store.geometry;
        let goal = geometry
            .group_of(plan.goal)
            .zip(geometry.offset_in_group(plan.goal));
        let (first, offset) = goal.unwrap_or_default();
        let mut scan = Scan {
            groups: self,
            handle,
            plan,
            first,
            offset,
            loads: 0,
        };
        if let Some(found) = scan.at_goal() {
            return Some(found);
        }
        scan.follow_stream();
        let found = scan
            .power_of_two()
            .or_else(|| scan.average())
            .or_else(|| scan.best_available())
            .or_else(|| scan.anything())?;
        scan.remember(&found);
        Some(found)
    }
}

impl Scan<'_, '_> {
    /// The blocks from the goal on, if they are free. A corrupt group means no goal, not failure.
    fn at_goal(&mut self) -> Option<Found> {
        if self.groups.slot(self.first).free_hint() == 0 {
            return None;
        }
        let mut held = self.groups.hold(self.first);
        if !held.load_blocks() {
            return None;
        }
        let length = held.blocks().buddy.run_at(self.offset, self.plan.wanted);
        let enough = if self.plan.continues {
            1
        } else {
            self.plan.least
        };
        (length >= enough).then(|| {
            self.claim(
                &mut held,
                Span {
                    start: self.offset,
                    length,
                },
            )
        })
    }

    fn follow_stream(&mut self) {
        if !self.plan.is_stream {
            return;
        }
        let goal = self.groups.hints.stream_goal(self.plan.inode.get());
        if let Some(goal) = goal.filter(|&goal| goal != self.first) {
            (self.first, self.offset) = (goal, 0);
        }
    }

    fn remember(&self, found: &Found) {
        if self.plan.is_stream
            && let Some(group) = self.groups.store.geometry.group_of(found.0.start)
        {
            self.groups
                .hints
                .set_stream_goal(self.plan.inode.get(), group);
        }
    }

    fn power_of_two(&mut self) -> Option<Found> {
        let order = self.plan.wanted.ilog2();
        if !self.plan.wanted.is_power_of_two() || order < LEAST_ORDER {
            return None;
        }
        self.walk(
            |slot| slot.largest_hint() >= Some(order),
            |held, from| held.blocks().buddy.find_aligned(from, order),
        )
    }

    fn average(&mut self) -> Option<Found> {
        let wanted = self.plan.wanted;
        self.walk(
            |slot| slot.average_hint() >= wanted,
            |held, from| held.blocks().buddy.find_run(from, wanted),
        )
    }

    fn best_available(&mut self) -> Option<Found> {
        let wanted = self.plan.wanted;
        for _ in 0..ROUNDS {
            let hints = self
                .order()
                .filter_map(|group| self.groups.slot(group).largest_hint());
            let best = hints.max()?.min(wanted.ilog2());
            let found = self.walk(
                |slot| slot.largest_hint() >= Some(best),
                |held, from| {
                    let buddy = &held.blocks().buddy;
                    let whole = buddy.find_run(from, wanted);
                    whole.or_else(|| {
                        buddy
                            .find_large(wanted)
                            .filter(|span| span.length >> best > 0)
                    })
                },
            );
            if found.is_some() || self.loads == 0 {
                return found;
            }
        }
        None
    }

    fn anything(&mut self) -> Option<Found> {
        let groups = self.groups;
        self.order().find_map(|number| {
            let slot = groups.slot(number);
            if slot.free_hint() == 0 {
                return None;
            }
            if !slot.is(mark::BLOCKS_LOADED) {
                groups.make_room();
            }
            let mut held = groups.hold(number);
            if !held.load_blocks() {
                return None;
            }
            let span = held.blocks().buddy.find_large(self.plan.wanted)?;
            Some(self.claim(&mut held, span))
        })
    }

    /// All groups in the order of the walk.
    fn order(&self) -> impl Iterator<Item = GroupNumber> + use<> {
        let (count, first) = (self.groups.count(), self.first.get());
        (first..count).chain(0..first).map(GroupNumber)
    }

    /// Walks over the groups that look `good` and that nobody holds, until `find` finds a run.
    fn walk(
        &mut self,
        good: impl Fn(&Slot) -> bool,
        find: impl Fn(&mut Held<'_>, u32) -> Option<Span>,
    ) -> Option<Found> {
        self.loads = 0;
        let groups = self.groups;
        self.order().find_map(|number| {
            let slot = groups.slot(number);
            if !good(slot) || !self.may_load(slot) {
                return None;
            }
            let mut held = groups.try_hold(number)?;
            if !held.load_blocks() {
                return None;
            }
            let from = if number == self.first { self.offset } else { 0 };
            let span = find(&mut held, from)
                .or_else(|| if from > 0 { find(&mut held, 0) } else { None })?;
            Some(self.claim(&mut held, span))
        })
    }

    /// Whether the group is in memory, or this criterion may still read one.
    fn may_load(&mut self, slot: &Slot) -> bool {
        if slot.is(mark::BLOCKS_LOADED) {
            return true;
        }
        self.loads += 1;
        if self.loads > MOST_LOADS {
            return false;
        }
        self.groups.make_room();
        true
    }

    /// Takes a run, or as much of it as the plan can use.
    fn claim(&mut self, held: &mut Held<'_>, span: Span) -> Found {
        let plan = self.plan;
        let used = span.length.min(plan.least);
        let whole = if plan.surplus == Surplus::None {
            used
        } else {
            span.length.min(plan.wanted)
        };
        held.take(
            self.handle,
            Span {
                start: span.start,
                length: whole,
            },
            used,
        );
        let rest = Span {
            start: span.start + used,
            length: whole - used,
        };
        let surplus = plan.surplus.logical().filter(|_| rest.length > 0);
        let preallocation = surplus.map(|logical| held.set_aside(rest, logical));
        (
            Run {
                start: held.block_at(span.start),
                length: used,
            },
            preallocation,
        )
    }
}
