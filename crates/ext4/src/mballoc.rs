//! The block allocator: which blocks a request gets.
//!
//! A request is served from, in this order: the file's preallocation; for small files the run of
//! the caller's shard; the goal; and a scan of the groups by criteria, each less demanding than the
//! one before ([`scan`], in the order of [`walk`]). Every criterion except the last skips groups
//! that are locked; the last one waits, so that space in a busy group is not missed (rule D4). If
//! nothing is found, preallocations are discarded and the scan is repeated a bounded number of
//! times (rule D13).
//!
//! Freed blocks become allocatable with the commit of the transaction that freed them. An operation
//! that gets `NoSpace` while [`Groups::has_pending_frees`] stops its handle, waits for a commit and
//! tries again.
//!
//! Credits: an allocation dirties one group, that is
//! [`CREDITS_PER_GROUP`](crate::groups::CREDITS_PER_GROUP) blocks; a free dirties as many for each
//! group that it reaches.

mod free;
mod known;
mod prealloc;
mod request;
mod scan;
mod walk;

use std::sync::Arc;

use pext4_jbd2::Handle;
use pext4_ondisk::{BlockNumber, GroupNumber, InodeNumber};

pub use crate::groups::Preallocation;
pub use request::{Purpose, Request, Run, Zone};

use crate::error::{Refusal, Result};
use crate::groups::{Groups, SpaceActivity};
use crate::statistics::Event;
use prealloc::SmallUse;
use request::Plan;

/// How often a scan that found nothing is repeated after space has moved.
const RETRIES: u32 = 3;

impl Groups {
    /// Allocates 1 to `request.length` clusters in one run.
    ///
    /// # Errors
    ///
    /// `Refused(NoSpace)` if there is no block that the request may have.
    pub fn allocate(&self, handle: &mut Handle<'_>, request: &Request) -> Result<Run> {
        let length = self.granted(request)?;
        let (run, _) = self.scan_with_retries(handle, &Plan::exactly(request, length))?;
        Ok(run)
    }

    /// As [`Groups::allocate`], for the data of a file: uses its preallocation, and sets blocks
    /// aside in it for the file's growth.
    ///
    /// # Errors
    ///
    /// As [`Groups::allocate`].
    pub fn allocate_for_file(
        &self,
        handle: &mut Handle<'_>,
        request: &Request,
        preallocation: &mut Option<Arc<Preallocation>>,
    ) -> Result<Run> {
        let length = self.granted(request)?;
        if let Some(held) = preallocation.take() {
            let run = match request.zone.contains(held.group()) {
                true => self.use_preallocation(handle, &held, request.logical, length),
                false => None,
            };
            if run.is_some()
                || self.is_left(&held) && request.is_inside(self.store.geometry.cluster_size())
            {
                *preallocation = Some(held);
            } else {
                self.discard(&held);
            }
            if let Some(run) = run {
                self.count_event(Event::FromPreallocation);
                return Ok(run);
            }
        }
        if request.zone == Zone::Anywhere
            && request.is_small(self.store.geometry.cluster_size())
            && let Some(run) = self.allocate_small(handle, request, length)?
        {
            return Ok(run);
        }
        let free = self.hints.recent_free(|| self.free_clusters());
        let plan = Plan::growing(request, length, &self.store.geometry, free);
        let (run, surplus) = self.scan_with_retries(handle, &plan)?;
        if let Some(surplus) = surplus
            && let Some(before) = preallocation.replace(surplus)
        {
            self.discard(&before);
        }
        Ok(run)
    }

    /// The stream goal that a file should remember after `run` was found for it: its group, if
    /// files have goals of their own and this one is not small.
    pub fn own_stream_goal(&self, request: &Request, run: Run) -> Option<GroupNumber> {
        let has_own =
            self.has_own_stream_goals() && !request.is_small(self.store.geometry.cluster_size());
        has_own
            .then(|| self.store.geometry.group_of(run.start))
            .flatten()
    }

    /// How many of the requested blocks the reserve allows.
    fn granted(&self, request: &Request) -> Result<u32> {
        let wanted = request.length.max(1);
        let may_use_reserve = request.may_use_reserve || request.purpose == Purpose::Metadata;
        let granted = match may_use_reserve {
            true => {
                self.counts.note_taken(wanted);
                wanted
            }
            false => self.counts.grant(wanted),
        };
        if granted == 0 {
            return Err(Refusal::NoSpace.into());
        }
        Ok(granted)
    }

    /// Serves a small file from its shard's run; `None` if space is too short for such a run, or
    /// another thread is using it.
    fn allocate_small(
        &self,
        handle: &mut Handle<'_>,
        request: &Request,
        length: u32,
    ) -> Result<Option<Run>> {
        if let Some(held) = self.hints.locality() {
            match self.use_small(handle, &held, length) {
                SmallUse::Taken(run) => {
                    self.count_event(Event::FromLocality);
                    return Ok(Some(run));
                }
                SmallUse::Busy => return Ok(None),
                SmallUse::Short => {
                    self.discard(&held);
                }
            }
        }
        let Some(plan) = self.plan_for_locality(request, length) else {
            return Ok(None);
        };
        let (run, surplus) = self.scan_with_retries(handle, &plan)?;
        if let Some(before) = self.hints.set_locality(surplus) {
            self.discard(&before);
        }
        Ok(Some(run))
    }

    /// Scans, and scans again after preallocations were discarded or other threads freed space.
    fn scan_with_retries(
        &self,
        handle: &mut Handle<'_>,
        plan: &Plan,
    ) -> Result<(Run, Option<Arc<Preallocation>>)> {
        let mut activity = SpaceActivity::default();
        for _ in 0..=RETRIES {
            let found = self.scan(handle, plan);
            self.report();
            if let Some(found) = found {
                return Ok(found);
            }
            let discarded = self.discard_preallocations(plan.requested);
            let has_changed = activity.has_changed(self);
            if discarded == 0 && !has_changed {
                break;
            }
        }
        Err(Refusal::NoSpace.into())
    }

    /// The goal of a file without blocks: the start of its inode's group.
    #[must_use]
    pub fn goal_of(&self, inode: InodeNumber) -> BlockNumber {
        let geometry = &self.store.geometry;
        geometry.inode_group(inode).map_or(
            BlockNumber(u64::from(geometry.first_data_block)),
            |(group, _)| geometry.first_block(group),
        )
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
