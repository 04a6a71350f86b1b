//! The search for a run through the groups.
//!
//! First the exact goal. The search spins for its group if that is locked, so placement stays
//! predictable without contention, but does not wait for a holder that was preempted. Then the
//! criteria, one function each, each less demanding than the one before:
//!
//! 1. `power2_aligned`: an aligned power of two, in a group that has one that large;
//! 2. `goal_length_fast`: the wanted length, in a group whose average run is as long;
//! 3. `best_available`: the wanted length trimmed, but not below the requested one, in a group
//!    whose average run is as long (only with the index of groups, which makes it cheap);
//! 4. `goal_length_slow`: the wanted length, in any group with as many free blocks (with the index
//!    only if a group is filed that may have so long a run);
//! 5. `any_free`: any run in any group, the longest first. Only this criterion waits for a locked
//!    group, unless the setting makes all of them wait. It asks the index first, and passes through
//!    all groups if that finds nothing.
//!
//! [`walk`](super::walk) determines the order of groups. Groups are chosen by hints and tested
//! again under the lock (rule D5). A corrupt group is skipped; a goal in one counts as no goal.
//!
//! What is found for a large file, at its goal too, becomes the stream goal, as in Linux. Files
//! that remember goals of their own tell others only where the criteria have led them.

use std::sync::Arc;

use pext4_jbd2::Handle;
use pext4_ondisk::GroupNumber;

use super::request::{Plan, Run, Surplus};
use crate::groups::buddy::Span;
use crate::groups::index::{By, orders};
use crate::groups::info::{GroupInfo, mark};
use crate::groups::{Groups, LockedGroup, Preallocation};
use crate::statistics::Event;

/// A criterion's function, and the event that is counted when it finds something.
type Criterion<S> = (Event, fn(&mut S) -> Option<Found>);

/// The smallest order for which `power2_aligned` searches.
const MIN_ORDER: u32 = 2;
/// The maximum number of groups that one criterion reads into memory.
const MAX_LOADS: u32 = 8;
/// The maximum number of orders by which `best_available` trims a request.
const MAX_TRIMMED: u32 = 3;

#[cfg(test)]
thread_local! {
    /// The number of groups that searches of this thread have passed without the index.
    pub(super) static PASSED: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// The run that was found, and the preallocation that holds the surplus.
pub(super) type Found = (Run, Option<Arc<Preallocation>>);

/// One search.
pub(super) struct Scan<'a, 'h> {
    pub groups: &'a Groups,
    pub handle: &'a mut Handle<'h>,
    pub plan: &'a Plan,
    /// The group in which the walk begins.
    pub first: GroupNumber,
    /// Groups from this number on may not serve the request.
    pub end: u32,
    /// The block at which the search in the first group begins.
    offset: u32,
    /// The number of groups that this criterion has read into memory.
    pub loads: u32,
    seen: Seen,
    /// The event of the criterion that found something.
    hit: Option<Event>,
}

/// The groups that a search met, for the statistics.
#[derive(Default)]
struct Seen {
    considered: u64,
    busy: u64,
    scanned: u64,
}

/// Finds a run in a group, starting at a block of it.
pub(super) trait Find: Fn(&mut LockedGroup<'_>, u32) -> Option<Span> {}
impl<F: Fn(&mut LockedGroup<'_>, u32) -> Option<Span>> Find for F {}

impl Groups {
    /// Searches for a run for `plan` and takes it.
    pub(super) fn scan(&self, handle: &mut Handle<'_>, plan: &Plan) -> Option<Found> {
        let geometry = &self.store.geometry;
        let goal = geometry
            .group_of(plan.goal)
            .zip(geometry.cluster_in_group(plan.goal));
        let within = goal.filter(|&(group, _)| plan.zone.contains(group));
        let (first, offset) = within.unwrap_or_default();
        let mut scan = Scan {
            groups: self,
            handle,
            plan,
            first,
            end: plan.zone.of(self.count()),
            offset,
            loads: 0,
            seen: Seen::default(),
            hit: None,
        };
        let found = scan.at_goal().or_else(|| scan.by_criteria());
        let result = found.as_ref().map_or(Event::Nothing, |_| Event::Found);
        let hit = scan.hit.unwrap_or(Event::Nothing);
        let seen = &scan.seen;
        self.store.tally.add([
            (Event::Searches, 1),
            (result, 1),
            (hit, u64::from(found.is_some())),
            (Event::GroupsConsidered, seen.considered),
            (Event::GroupsBusy, seen.busy),
            (Event::GroupsScanned, seen.scanned),
        ]);
        found
    }
}

impl Scan<'_, '_> {
    /// Takes the blocks from the goal on, if they are free. A goal in a corrupt group counts as no
    /// goal.
    fn at_goal(&mut self) -> Option<Found> {
        if self.groups.info(self.first).free_hint() == 0 {
            return None;
        }
        let held = if self.groups.waits_for_busy() {
            Some(self.groups.lock(self.first))
        } else {
            self.groups.lock_spinning(self.first)
        };
        let Some(mut held) = held else {
            self.seen.busy += 1;
            return None;
        };
        if !held.load_blocks() {
            return None;
        }
        let length = held.blocks().buddy.run_at(self.offset, self.plan.wanted);
        let enough = if self.plan.continues {
            1
        } else {
            self.plan.requested
        };
        if length < enough {
            return None;
        }
        self.hit = Some(Event::GoalHits);
        let start = self.offset;
        let found = self.claim(&mut held, Span { start, length });
        drop(held);
        if !self.groups.has_own_stream_goals() {
            self.remember(&found, None);
        }
        Some(found)
    }

    /// Tries the criteria, one after the other.
    fn by_criteria(&mut self) -> Option<Found> {
        let stream = self.begin_at_stream_goal();
        let criteria: [Criterion<Self>; 5] = [
            (Event::PowerHits, Self::power2_aligned),
            (Event::AverageHits, Self::goal_length_fast),
            (Event::TrimmedHits, Self::best_available),
            (Event::LinearHits, Self::goal_length_slow),
            (Event::AnyHits, Self::any_free),
        ];
        for (hit, criterion) in criteria {
            self.loads = 0;
            let Some(found) = criterion(self) else {
                continue;
            };
            self.hit = Some(hit);
            self.remember(&found, stream);
            return Some(found);
        }
        None
    }

    /// For a large file, begins the walk at its own stream goal, or else at the shared one; returns
    /// that group.
    fn begin_at_stream_goal(&mut self) -> Option<GroupNumber> {
        let plan = self.plan;
        let goal = plan.is_stream.then(|| {
            plan.own_goal
                .or_else(|| self.groups.stream_goal(plan.inode))
        });
        let goal = goal.flatten().filter(|&goal| plan.zone.contains(goal));
        if let Some(goal) = goal.filter(|&goal| goal != self.first) {
            (self.first, self.offset) = (goal, 0);
        }
        goal
    }

    /// Makes the run's group the goal of its file if that is large; `stream` is the goal at which
    /// the search began.
    fn remember(&self, found: &Found, stream: Option<GroupNumber>) {
        if !self.plan.is_stream {
            return;
        }
        let Some(group) = self.groups.store.geometry.group_of(found.0.start) else {
            return;
        };
        if stream == Some(group) {
            self.groups.count_event(Event::StreamGoalHits);
        }
        // A file that stays in its own goal's group leaves the shared goal unchanged.
        if self.plan.own_goal != Some(group) {
            self.groups.set_stream_goal(self.plan.inode, group);
        }
    }

    fn power2_aligned(&mut self) -> Option<Found> {
        let order = self.plan.wanted.ilog2();
        if !self.plan.wanted.is_power_of_two() || order < MIN_ORDER {
            return None;
        }
        self.by_order(
            By::Largest,
            order..orders().end,
            |info| info.largest_hint() >= Some(order),
            |_| {
                move |held: &mut LockedGroup<'_>, from| {
                    held.blocks().buddy.find_aligned(from, order)
                }
            },
        )
    }

    fn goal_length_fast(&mut self) -> Option<Found> {
        let wanted = self.plan.wanted;
        self.by_order(
            By::Average,
            wanted.ilog2()..orders().end,
            |info| info.average_hint() >= wanted,
            |_| move |held: &mut LockedGroup<'_>, from| held.blocks().buddy.find_run(from, wanted),
        )
    }

    fn best_available(&mut self) -> Option<Found> {
        let wanted = self.plan.wanted;
        let order = wanted.ilog2();
        // Not below the requested length.
        let asked = self.plan.requested.next_power_of_two().ilog2();
        let least = order.saturating_sub(MAX_TRIMMED).max(asked);
        if !self.groups.index.is_in_use() || least >= order {
            return None;
        }
        self.by_order(
            By::Average,
            (least..order).rev(),
            |info| info.free_hint() > 0,
            |order| {
                move |held: &mut LockedGroup<'_>, from| {
                    let buddy = &held.blocks().buddy;
                    let whole = buddy.find_run(from, wanted);
                    whole.or_else(|| buddy.find_run(from, 1 << order))
                }
            },
        )
    }

    fn goal_length_slow(&mut self) -> Option<Found> {
        let wanted = self.plan.wanted;
        let longest = longest_inside(wanted);
        // On a large volume without such a run all groups would be asked in vain.
        if !self.may_have_runs(longest.unwrap_or(0)) {
            return None;
        }
        self.one_by_one(
            |info| info.free_hint() >= wanted && info.largest_hint() >= longest,
            |held, from| held.blocks().buddy.find_run(from, wanted),
        )
    }

    /// First in groups with the longest runs, going by the index or else by hints, then in any
    /// group with a free block.
    fn any_free(&mut self) -> Option<Found> {
        let found = self.longest_filed(|scan, number| scan.wait_for(number));
        if found.is_some() {
            return found;
        }
        let longest = self
            .order()
            .filter_map(|group| self.groups.info(group).largest_hint())
            .max()?;
        let longest = longest.min(self.plan.wanted.ilog2());
        self.wait_for_any(|info| info.largest_hint() >= Some(longest))
            .or_else(|| self.wait_for_any(|info| info.free_hint() > 0))
    }

    fn wait_for_any(&mut self, good: impl Fn(&GroupInfo) -> bool) -> Option<Found> {
        let groups = self.groups;
        self.order().find_map(|number| {
            let is_good = good(groups.info(number));
            is_good.then(|| self.wait_for(number)).flatten()
        })
    }

    /// Searches one group, and waits for it if it is busy.
    fn wait_for(&mut self, number: GroupNumber) -> Option<Found> {
        self.seen.considered += 1;
        self.groups.make_room_for(number);
        let mut held = self.groups.lock(number);
        if !held.load_blocks() {
            return None;
        }
        self.seen.scanned += 1;
        let span = held.blocks().buddy.find_large(self.plan.wanted)?;
        Some(self.claim(&mut held, span))
    }

    /// All groups that may serve, in the circular order of their numbers from the first of the walk
    /// on.
    pub(super) fn order(&self) -> impl Iterator<Item = GroupNumber> + use<> {
        let (end, first) = (self.end, self.first.get());
        let order = (first..end).chain(0..first).map(GroupNumber);
        #[cfg(test)]
        let order = order.inspect(|_| PASSED.set(PASSED.get() + 1));
        order
    }

    /// Searches one group, if its hints are `good` and unless it is busy.
    pub(super) fn search_group(
        &mut self,
        number: GroupNumber,
        good: &impl Fn(&GroupInfo) -> bool,
        find: &impl Find,
    ) -> Option<Found> {
        let groups = self.groups;
        let info = groups.info(number);
        if !good(info) {
            return None;
        }
        self.seen.considered += 1;
        let waits = groups.waits_for_busy();
        if !waits && info.written.state.is_locked() {
            self.seen.busy += 1;
            return None;
        }
        if !self.may_load(info) {
            return None;
        }
        let held = if waits {
            Some(groups.lock(number))
        } else {
            groups.try_lock(number)
        };
        let Some(mut held) = held else {
            self.seen.busy += 1;
            return None;
        };
        if !held.load_blocks() {
            return None;
        }
        self.seen.scanned += 1;
        let from = if number == self.first { self.offset } else { 0 };
        let span =
            find(&mut held, from).or_else(|| if from > 0 { find(&mut held, 0) } else { None })?;
        Some(self.claim(&mut held, span))
    }

    /// Whether the group is in memory, or this criterion may read one more.
    fn may_load(&mut self, info: &GroupInfo) -> bool {
        if info.is(mark::BLOCKS_LOADED) {
            return true;
        }
        self.loads += 1;
        if self.loads > MAX_LOADS {
            return false;
        }
        self.groups.make_room();
        true
    }

    /// Takes a run, or the part of it that the plan can use.
    fn claim(&mut self, held: &mut LockedGroup<'_>, span: Span) -> Found {
        let plan = self.plan;
        let used = span.length.min(plan.requested);
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

/// The largest order of which every run of `length` blocks contains an aligned run.
fn longest_inside(length: u32) -> Option<u32> {
    length.saturating_add(1).ilog2().checked_sub(1)
}
