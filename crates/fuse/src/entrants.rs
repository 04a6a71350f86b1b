//! Who can enter a mount, and who judges what they may do there.
//!
//! As a rule the kernel judges (`default_permissions`). For that it wants to know each directory's mode and access
//! list on the way, and each change of a directory makes it forget them: it asks again before the next change, so half
//! of all requests of a process that makes files are questions of this kind.
//!
//! The kernel lets nobody into a mount but the user and group that mounted, unless `allow_other` was asked for. Where
//! those are root's, and root has its capabilities, there is nothing to judge: then the kernel is not asked to, and the
//! few things that even root may not do are told by the server ([`Dispatch::check_access_of_root`]). `-o
//! default_permissions` has the kernel judge all the same, for processes of root that gave up capabilities.
//!
//! [`Dispatch::check_access_of_root`]: crate::dispatch::Dispatch::check_access_of_root

use std::fs;

use rustix::process::{getegid, geteuid, getgid, getuid};
use rustix::thread::{CapabilitySet, capabilities};

use crate::options::KernelOptions;

/// A map of ids (`user_namespaces(7)`) that maps each to itself.
const EVERY_ID: [&str; 3] = ["0", "0", "4294967295"];

/// Who can enter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entrants {
    /// Processes whose rights the kernel must judge.
    Judged,
    /// None but root's, which may do everything.
    Root,
}

impl Entrants {
    /// Who will be able to enter what the calling process mounts with `options`.
    pub(crate) fn of(options: &KernelOptions) -> Self {
        let is_open = options.allow_other || options.judged;
        match !is_open && is_root() && has_capabilities() && is_of_the_host() {
            true => Self::Root,
            false => Self::Judged,
        }
    }

    /// Whether the kernel judges.
    pub(crate) fn are_judged(self) -> bool {
        self == Self::Judged
    }
}

fn is_root() -> bool {
    let users = [getuid(), geteuid()];
    let groups = [getgid(), getegid()];
    users.into_iter().all(|user| user.is_root()) && groups.into_iter().all(|group| group.is_root())
}

/// Whether it has what lets root do what modes forbid, and may mount by itself.
fn has_capabilities() -> bool {
    let wanted = CapabilitySet::SYS_ADMIN
        | CapabilitySet::DAC_OVERRIDE
        | CapabilitySet::DAC_READ_SEARCH
        | CapabilitySet::FOWNER
        | CapabilitySet::FSETID;
    capabilities(None).is_ok_and(|sets| sets.effective.contains(wanted))
}

/// Whether root is root of all ids: in a namespace it has no right over files of ids that are not there.
fn is_of_the_host() -> bool {
    ["/proc/self/uid_map", "/proc/self/gid_map"]
        .into_iter()
        .all(|path| fs::read_to_string(path).is_ok_and(|map| maps_every_id(&map)))
}

fn maps_every_id(map: &str) -> bool {
    map.split_ascii_whitespace().eq(EVERY_ID)
}

#[cfg(test)]
mod tests {
    use super::{Entrants, KernelOptions, maps_every_id};

    #[test]
    fn only_the_map_of_the_host_maps_every_id() {
        assert!(maps_every_id("         0          0 4294967295\n"));
        for map in [
            "0 1000 1\n",
            "0 100000 65536\n",
            "0 0 4294967294\n4294967294 4294967294 1\n",
            "",
        ] {
            assert!(!maps_every_id(map), "{map}");
        }
    }

    #[test]
    fn others_are_judged_and_so_is_everybody_where_that_was_asked_for() {
        for (allow_other, judged) in [(true, false), (false, true)] {
            let options = KernelOptions {
                allow_other,
                judged,
                ..KernelOptions::default()
            };
            assert_eq!(Entrants::of(&options), Entrants::Judged);
        }
    }
}
