//! Discarding free blocks on the device, on request.

use crate::error::{Refusal, Result};
use crate::volume::Volume;

impl Volume {
    /// Discards the free blocks that lie wholly within the `length` bytes from byte `start` on, in
    /// runs of at least `least` bytes (`FITRIM`). Returns how many bytes were discarded. Space that
    /// was freed before the call is included: the call commits first.
    ///
    /// # Errors
    ///
    /// `Refused(Invalid)` for a range beyond the end or shorter than a block, and if `least` is
    /// a cluster or more above a group; `Refused(NotSupported)` if the device cannot discard;
    /// `Refused(ReadOnly)`, also if the journal has stopped or its commit makes it stop; `Corrupt`,
    /// `Io`.
    pub fn trim(&self, start: u64, length: u64, least: u64) -> Result<u64> {
        let store = &self.inodes.store;
        let block_size = u64::from(store.block_size());
        let first = start.div_ceil(block_size);
        let end = start.saturating_add(length) / block_size;
        let cluster_size = u64::from(store.geometry.cluster_size());
        if first >= store.geometry.blocks_count || length < block_size {
            return Err(Refusal::Invalid.into());
        }
        let group = u64::from(store.geometry.clusters_per_group);
        // As in Linux, whole clusters count.
        if least / cluster_size > group {
            return Err(Refusal::Invalid.into());
        }
        let least = u32::try_from(least.div_ceil(cluster_size)).unwrap_or(u32::MAX);
        self.run(|| {
            store.check_writable()?;
            let committed = store.journal().commit_running();
            if committed.is_err() {
                // Why the journal has stopped is no error of the trim.
                store.check_writable()?;
            }
            committed?;
            let trimmed = self.inodes.groups.trim(&(first..end), least)?;
            Ok(trimmed * block_size)
        })
    }
}
