//! Claims where cores meet: each in a lane of its own ([`Lane`]).
//!
//! Makers of files in one directory all begin at the lowest free number of one group. Who loses a race
//! for a number there takes a line of 512 free numbers for itself, by taking the first of them, and goes
//! on in it until it is full, or until somebody else is met there. Then it goes back to a line of its own
//! where it has freed numbers since; or it takes another one, if it met others in this transaction or the
//! last one; else it begins at the lowest number again: numbers are dense where nobody else is. Where no
//! line is all free it shares the roomiest. A shard looks for lines from the same place on each time.
//!
//! Lanes are for tables whose slots may be used in any order, and where a number freed a moment ago
//! may be used again. Directories need none, as their makers part by group.
//!
//! [`Lane`]: crate::groups::lane::Lane

use pext4_jbd2::Handle;
use pext4_ondisk::{GroupNumber, InodeNumber};
use pext4_sync::Bits;
use pext4_sync::hash::spread;

use super::claim::Patience;
use crate::groups::Groups;
use crate::groups::inodes::Claimed;
use crate::groups::lane::Lane;

/// Free numbers that a line must have to become a lane: four blocks' worth, at 256 bytes in 4 KiB.
const LEAST_ROOM: u32 = 64;
/// All-free lines that may be lost to others before a shard shares one.
const MOST_LOST: u32 = 16;

/// A line that could become a lane.
#[derive(Clone, Copy)]
struct Line {
    group: GroupNumber,
    line: u32,
    room: u32,
}

impl Groups {
    /// Claims an inode in the caller's lane for files whose directory lies in `home`, if it has one. A
    /// full lane is given up for another one.
    pub(super) fn claim_in_lane(
        &self,
        handle: &mut Handle<'_>,
        home: GroupNumber,
    ) -> Option<InodeNumber> {
        let (shard, lane) = self.hints.lane();
        let (group, line) = lane.place(home)?;
        if let Some(line) = line
            && let Some(bits) = self.open_for_claim(handle, group, Patience::Tries)
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
                // Neighbours look first in places that lie far apart.
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

    /// Claims in a line that the shard had before, and that has room again.
    fn claim_past_lane(&self, handle: &mut Handle<'_>, lane: &Lane) -> Option<(Line, Claimed)> {
        let mut past = lane.past().map(|(group, line)| Line {
            group,
            line,
            room: self.room_in(group, line),
        });
        let at = past.find(|at| at.room >= LEAST_ROOM)?;
        let bits = self.open_for_claim(handle, at.group, Patience::Tries)?;
        Some((at, bits.claim_in_line(at.line)?))
    }

    /// Numbers that are free in a line, at a look; none if the line is not there.
    fn room_in(&self, group: GroupNumber, line: u32) -> u32 {
        let bits = self.slot(group).inodes.get();
        bits.map_or(0, |bits| bits.room_in_line(line))
    }

    fn claim_new_lane(
        &self,
        handle: &mut Handle<'_>,
        home: GroupNumber,
        mut first: u32,
    ) -> Option<(Line, Claimed)> {
        for _ in 0..MOST_LOST {
            let at = self
                .roomiest(home, first)
                .filter(|at| at.room >= LEAST_ROOM)?;
            let bits = self.open_for_claim(handle, at.group, Patience::Tries)?;
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

    /// The first line that is all free, else the one with the most free numbers, of the groups from
    /// `home` on and in each from its line number `first` on.
    fn roomiest(&self, home: GroupNumber, first: u32) -> Option<Line> {
        let mut best: Option<Line> = None;
        for group in self.order_from(home).take(self.near() as usize) {
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
        let slot = self.slot(group);
        let (line, room) = match slot.inodes.get() {
            Some(bits) if slot.free_inodes_hint() > 0 => bits.roomiest_line(first)?,
            // Nobody has asked it for anything yet.
            None if slot.free_inodes_hint() == self.store.geometry.inodes_per_group => {
                let lines = self.store.geometry.inodes_per_group / Bits::LINE;
                (first.checked_rem(lines)?, Bits::LINE)
            }
            _ => return None,
        };
        Some(Line { group, line, room })
    }
}
