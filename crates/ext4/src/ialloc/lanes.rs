//! Claims under contention: each shard in a lane of its own ([`Lane`]).
//!
//! Threads that create files in one directory all begin at the lowest free number of one group. A
//! shard that loses a race for a number there takes a line of 512 free numbers, by claiming the
//! first of them, and claims in this line until it is full, or until it loses a race there. Then it
//! returns to an earlier line of its own in which it has freed numbers since; or it takes another
//! line, if it lost a race in this transaction or the previous one; else it begins at the lowest
//! number again, so that numbers are dense without contention. If no line is entirely free, it
//! shares the one with the most free numbers. A shard's searches for lines always begin at the same
//! line.
//!
//! Lanes are used only for tables whose slots may be used in any order, and with a journal, where a
//! recently freed number may be reused. Directories need none, because [`super::orlov`] spreads
//! them over groups.
//!
//! [`Lane`]: crate::groups::lane::Lane

use pext4_jbd2::Handle;
use pext4_ondisk::{GroupNumber, InodeNumber};
use pext4_sync::Bits;
use pext4_sync::hash::spread;

use super::claim::Busy;
use super::orlov::NEAR;
use crate::groups::Groups;
use crate::groups::inodes::Claimed;
use crate::groups::lane::Lane;

/// The minimum number of free numbers in a line that becomes a lane: four blocks of inodes of 256
/// bytes, with blocks of 4 KiB.
const MIN_ROOM: u32 = 64;
/// The maximum number of free lines that a shard tries to take before it gives up.
const MAX_LOST: u32 = 16;

/// A line that could become a lane.
#[derive(Clone, Copy)]
struct Line {
    group: GroupNumber,
    line: u32,
    room: u32,
}

impl Groups {
    /// Claims an inode in the caller's lane for files whose directory is in `home`, if it has one.
    /// A full lane is replaced by another one.
    pub(super) fn claim_in_lane(
        &self,
        handle: &mut Handle<'_>,
        home: GroupNumber,
    ) -> Option<InodeNumber> {
        let (shard, lane) = self.hints.lane();
        let (group, line) = lane.place(home)?;
        if let Some(line) = line
            && let Some(bits) = self.open_for_claim(handle, group, Busy::Skip)
            && let Some(claimed) = bits.claim_in_line(line)
        {
            if claimed.races > 0 {
                lane.seek(home, handle.tid());
            }
            return self.note_claim(group, &claimed, false);
        }
        let (at, claimed) = match self.claim_past_lane(handle, lane) {
            Some(found) => found,
            None if lane.met_lately(handle.tid()) => {
                // The hash places the first choices of neighbouring shards far apart.
                self.claim_new_lane(handle, home, spread(u64::from(shard)))?
            }
            None => {
                lane.leave();
                return None;
            }
        };
        lane.enter(home, at.group, at.line);
        self.note_claim(at.group, &claimed, false)
    }

    /// Claims in an earlier lane of the shard that has room again.
    fn claim_past_lane(&self, handle: &mut Handle<'_>, lane: &Lane) -> Option<(Line, Claimed)> {
        let mut past = lane.past().map(|(group, line)| Line {
            group,
            line,
            room: self.room_in(group, line),
        });
        let at = past.find(|at| at.room >= MIN_ROOM)?;
        let bits = self.open_for_claim(handle, at.group, Busy::Skip)?;
        Some((at, bits.claim_in_line(at.line)?))
    }

    /// How many numbers of a line are free at the moment; 0 if it does not exist or is not loaded.
    fn room_in(&self, group: GroupNumber, line: u32) -> u32 {
        let bits = self.info(group).inodes.get();
        bits.map_or(0, |bits| bits.room_in_line(line))
    }

    fn claim_new_lane(
        &self,
        handle: &mut Handle<'_>,
        home: GroupNumber,
        mut first: u32,
    ) -> Option<(Line, Claimed)> {
        for _ in 0..MAX_LOST {
            let at = self
                .roomiest(home, first)
                .filter(|at| at.room >= MIN_ROOM)?;
            let bits = self.open_for_claim(handle, at.group, Busy::Skip)?;
            if at.room < Bits::LINE {
                return bits.claim_in_line(at.line).map(|claimed| (at, claimed));
            }
            if let Some(claimed) = bits.claim_start(at.line) {
                return Some((at, claimed));
            }
            first = at.line.wrapping_add(1);
        }
        None
    }

    /// The first line that is entirely free, else the one with the most free numbers, in the groups
    /// from `home` on and in each from its line number `first` on.
    fn roomiest(&self, home: GroupNumber, first: u32) -> Option<Line> {
        let mut best: Option<Line> = None;
        for group in self.order_from(home).take(NEAR) {
            let Some(at) = self.roomiest_of(group, first) else {
                continue;
            };
            if at.room == Bits::LINE {
                return Some(at);
            }
            if best.is_none_or(|best| at.room > best.room) {
                best = Some(at);
            }
        }
        best
    }

    fn roomiest_of(&self, group: GroupNumber, first: u32) -> Option<Line> {
        let info = self.info(group);
        let (line, room) = match info.inodes.get() {
            Some(bits) if info.free_inodes_hint() > 0 => bits.roomiest_line(first)?,
            // Its bitmap was not read yet, and all its inodes are free.
            None if info.free_inodes_hint() == self.store.geometry.inodes_per_group => {
                let lines = self.store.geometry.inodes_per_group / Bits::LINE;
                (first.checked_rem(lines)?, Bits::LINE)
            }
            _ => return None,
        };
        // All numbers of a line may be claimed. Reserved ones of a sound image are in use.
        let start = line * Bits::LINE;
        let reserved = start..self.first_usable(group);
        let may_be_lane = match info.inodes.get() {
            Some(bits) => !bits.has_free_in(reserved),
            None => reserved.is_empty(),
        };
        may_be_lane.then_some(Line { group, line, room })
    }
}
