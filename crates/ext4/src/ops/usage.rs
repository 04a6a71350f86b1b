//! What users, groups and projects use.

use crate::error::Result;
use crate::quota::read_usage;
use crate::types::{OwnerKind, Usage};
use crate::volume::Volume;

impl Volume {
    /// The usage of all owners of a kind, by their numbers; `None` if the image does not count it
    /// (features `quota` and, for projects, `project`). On a volume that is written it is that of
    /// the last commit: [`Volume::sync`] comes before.
    ///
    /// # Errors
    ///
    /// `Corrupt` if the quota file of a volume that is only read cannot be true; `Io`.
    pub fn usage(&self, kind: OwnerKind) -> Result<Option<Vec<Usage>>> {
        let store = &self.inodes.store;
        self.run(|| match (&self.quotas, store.quota_inode(kind)) {
            (Some(quotas), _) => quotas.usage(store, kind),
            (None, Some(number)) => read_usage(&self.inodes, kind, number).map(Some),
            (None, None) => Ok(None),
        })
    }
}
