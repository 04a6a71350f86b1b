//! The search for a run through the groups.
//!
//! First the exact goal: placement stays predictable where nobody contends, since its group is waited
//! for, though no longer than a hold takes whose thread keeps its core. Then the criteria, one
//! function each, in ascending order of what they give up:
//!
//! 1. a power of two, aligned, in a group that has one that large;
//! 2. the wanted length, in a group whose average run is as long;
//! 3. the wanted length trimmed, no further than to what is asked for, in a group whose average run
//!    is as long as that (only with the index of groups, which makes it cheap);
//! 4. the wanted length, in any group with as many free blocks;
//! 5. anything, anywhere, the longest first. Only here a held group is waited for as long as it
//!    takes, unless busy groups are so throughout.
//!
//! In which order groups are looked at is the matter of [`walk`](super::walk). They are chosen by
//! hints; what counts is tested again under the lock (rule D5). A corrupt group is passed by:
//! at the goal too it means "no goal", not failure.

use std::sync::Arc;

use pext4_jbd2::Handle;
use pext4_ondisk::GroupNumber;

use super::request::{Plan, Run, Surplus};
use crate::groups::buddy::Span;
use crate::groups::index::{By, orders};
use crate::groups::slot::{Slot, mark};
use crate::groups::{Groups, Held, Preallocation};
use crate::statistics::Event;

/// One way to search, and what is counted when it finds something.
type Criterion<S> = (Event, fn(&mut S) -> Option<Found>);

/// Powers of two below this order are not worth a search of their own.
const LEAST_ORDER: u32 = 2;
/// Groups that a criterion reads into memory before it leaves the rest to the next one.
const MOST_LOADS: u32 = 8;
/// How many orders the third criterion trims a request by at most.
const MOST_TRIMMED: u32 = 3;

/// What was found: the run, and the preallocation that took the surplus.
pub(super) type Found = (Run, Option<Arc<Preallocation>>);

/// One search.
pub(super) struct Scan<'a, 'h> {
    pub groups: &'a Groups,
    pub handle: &'a mut Handle<'h>,
    pub plan: &'a Plan,
    /// Where the walk begins.
    pub first: GroupNumber,
    /// How many groups may serve.
    pub end: u32,
    /// Where in the first group.
    offset: u32,
    /// Groups read into memory by this criterion.
    pub loads: u32,
    seen: Seen,
    /// Which criterion found something.
    hit: Option<Event>,
}

/// What a search met.
#[derive(Default)]
struct Seen {
    considered: u64,
    busy: u64,
    scanned: u64,
    loaded: u64,
}

/// How a run is looked for in a group; the number is where.
pub(super) trait Find: Fn(&mut Held<'_>, u32) -> Option<Span> {}
impl<F: Fn(&mut Held<'_>, u32) -> Option<Span>> Find for F {}

impl Groups {
    /// Looks for a run as planned and takes it.
    pub(super) fn scan(&self, handle: &mut Handle<'_>, plan: &Plan) -> Option<Found> {
        let geometry = &self.store.geometry;
        let goal = geometry
            .group_of(plan.goal)
            .zip(geometry.offset_in_group(plan.goal));
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
        let found = scan.at_goal().or_else(|| scan.elsewhere());
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
            (Event::GroupsLoaded, seen.loaded),
        ]);
        found
    }
}

impl Scan<'_, '_> {
    /// The blocks from the goal on, if they are free. A corrupt group means no goal, not failure.
    fn at_goal(&mut self) -> Option<Found> {
        if self.groups.slot(self.first).free_hint() == 0 {
            return None;
        }
        let held = if self.groups.waits_for_busy() {
            Some(self.groups.hold(self.first))
        } else {
            self.groups.hold_soon(self.first)
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
            self.plan.least
        };
        if length < enough {
            return None;
        }
        self.hit = Some(Event::GoalHits);
        let start = self.offset;
        Some(self.claim(&mut held, Span { start, length }))
    }

    /// The criteria, one after the other.
    fn elsewhere(&mut self) -> Option<Found> {
        let stream = self.follow_stream();
        let criteria: [Criterion<Self>; 5] = [
            (Event::PowerHits, Self::power_of_two),
            (Event::AverageHits, Self::average),
            (Event::TrimmedHits, Self::best_available),
            (Event::LinearHits, Self::goal_length),
            (Event::AnyHits, Self::anything),
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

    /// Lets a large file begin where it was last, or where the last one ended; answers that group.
    fn follow_stream(&mut self) -> Option<GroupNumber> {
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
        // A file that stays where it was tells nobody.
        if self.plan.own_goal != Some(group) {
            self.groups.set_stream_goal(self.plan.inode, group);
        }
    }

    fn power_of_two(&mut self) -> Option<Found> {
        let order = self.plan.wanted.ilog2();
        if !self.plan.wanted.is_power_of_two() || order < LEAST_ORDER {
            return None;
        }
        self.by_order(
            By::Largest,
            order..orders().end,
            |slot| slot.largest_hint() >= Some(order),
            |_| move |held: &mut Held<'_>, from| held.blocks().buddy.find_aligned(from, order),
        )
    }

    fn average(&mut self) -> Option<Found> {
        let wanted = self.plan.wanted;
        self.by_order(
            By::Average,
            wanted.ilog2()..orders().end,
            |slot| slot.average_hint() >= wanted,
            |_| move |held: &mut Held<'_>, from| held.blocks().buddy.find_run(from, wanted),
        )
    }

    fn best_available(&mut self) -> Option<Found> {
        let wanted = self.plan.wanted;
        let order = wanted.ilog2();
        // Not below what is asked for.
        let asked = self.plan.least.next_power_of_two().ilog2();
        let least = order.saturating_sub(MOST_TRIMMED).max(asked);
        if !self.groups.index.is_in_use() || least >= order {
            return None;
        }
        self.by_order(
            By::Average,
            (least..order).rev(),
            |slot| slot.free_hint() > 0,
            |order| {
                move |held: &mut Held<'_>, from| {
                    let buddy = &held.blocks().buddy;
                    let whole = buddy.find_run(from, wanted);
                    whole.or_else(|| buddy.find_run(from, 1 << order))
                }
            },
        )
    }

    fn goal_length(&mut self) -> Option<Found> {
        let wanted = self.plan.wanted;
        self.one_by_one(
            |slot| slot.free_hint() >= wanted && slot.largest_hint() >= longest_inside(wanted),
            |held, from| held.blocks().buddy.find_run(from, wanted),
        )
    }

    /// First where the longest runs seem to be, then wherever anything is.
    fn anything(&mut self) -> Option<Found> {
        let longest = self
            .order()
            .filter_map(|group| self.groups.slot(group).largest_hint())
            .max()?;
        let longest = longest.min(self.plan.wanted.ilog2());
        self.wait_for(|slot| slot.largest_hint() >= Some(longest))
            .or_else(|| self.wait_for(|slot| slot.free_hint() > 0))
    }

    fn wait_for(&mut self, good: impl Fn(&Slot) -> bool) -> Option<Found> {
        let groups = self.groups;
        self.order().find_map(|number| {
            let slot = groups.slot(number);
            if !good(slot) {
                return None;
            }
            self.seen.considered += 1;
            groups.make_room_for(number);
            let mut held = groups.hold(number);
            if !held.load_blocks() {
                return None;
            }
            self.seen.scanned += 1;
            let span = held.blocks().buddy.find_large(self.plan.wanted)?;
            Some(self.claim(&mut held, span))
        })
    }

    /// All groups that may serve in the order of their numbers, from the first of the walk and around.
    pub(super) fn order(&self) -> impl Iterator<Item = GroupNumber> + use<> {
        let (end, first) = (self.end, self.first.get());
        (first..end).chain(0..first).map(GroupNumber)
    }

    /// Looks into one group, if it looks `good` and unless it is busy.
    pub(super) fn look_into(
        &mut self,
        number: GroupNumber,
        good: &impl Fn(&Slot) -> bool,
        find: &impl Find,
    ) -> Option<Found> {
        let groups = self.groups;
        let slot = groups.slot(number);
        if !good(slot) {
            return None;
        }
        self.seen.considered += 1;
        let waits = groups.waits_for_busy();
        if !waits && slot.state.is_locked() {
            self.seen.busy += 1;
            return None;
        }
        if !self.may_load(slot) {
            return None;
        }
        let held = if waits {
            Some(groups.hold(number))
        } else {
            groups.try_hold(number)
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

    /// Whether the group is in memory, or this criterion may still read one.
    fn may_load(&mut self, slot: &Slot) -> bool {
        if slot.is(mark::BLOCKS_LOADED) {
            return true;
        }
        self.loads += 1;
        if self.loads > MOST_LOADS {
            return false;
        }
        self.seen.loaded += 1;
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

/// The order of the aligned run that every run of `length` blocks has inside.
fn longest_inside(length: u32) -> Option<u32> {
    length.saturating_add(1).ilog2().checked_sub(1)
}
