//! Decides whether the kernel checks permissions on a mount.
//!
//! In general the kernel checks them (`default_permissions`). For that it needs the mode and access
//! list of each directory in a path, and each change of a directory makes it drop them: it asks
//! again before the next change, so half of all requests of a process that makes files only ask for
//! these.
//!
//! Without `allow_other` the kernel admits only the user and group that mounted. If these are
//! root's, and root has its capabilities, there is nothing to check: the mount omits
//! `default_permissions`, and the server refuses the few things that even root may not do
//! ([`Dispatch::check_access_of_root`]). `-o default_permissions` makes the kernel check all the
//! same, for processes of root that have dropped capabilities.
//!
//! [`Dispatch::check_access_of_root`]: crate::dispatch::Dispatch::check_access_of_root

use std::fs;

use rustix::process::{getegid, geteuid, getgid, getuid};
use rustix::thread::{CapabilitySet, capabilities};

use crate::options::KernelOptions;

/// The id map (`user_namespaces(7)`) that maps each id to itself.
const EVERY_ID: [&str; 3] = ["0", "0", "4294967295"];

/// Who checks permissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AccessPolicy {
    /// The kernel.
    Kernel,
    /// Nobody: only processes of root can access the mount, and they may do everything.
    RootOnly,
}

impl AccessPolicy {
    /// The policy of a mount that the calling process makes with `options`.
    pub(crate) fn for_mount(options: &KernelOptions) -> Self {
        let is_open = options.allow_other || options.check_permissions;
        match !is_open && is_root() && has_capabilities() && is_of_the_host() {
            true => Self::RootOnly,
            false => Self::Kernel,
        }
    }

    /// Whether the kernel checks permissions.
    pub(crate) fn is_checked_by_kernel(self) -> bool {
        self == Self::Kernel
    }
}

fn is_root() -> bool {
    let users = [getuid(), geteuid()];
    let groups = [getgid(), getegid()];
    users.into_iter().all(|user| user.is_root()) && groups.into_iter().all(|group| group.is_root())
}

/// Whether the process has the capabilities to override modes and to mount.
fn has_capabilities() -> bool {
    let wanted = CapabilitySet::SYS_ADMIN
        | CapabilitySet::DAC_OVERRIDE
        | CapabilitySet::DAC_READ_SEARCH
        | CapabilitySet::FOWNER
        | CapabilitySet::FSETID;
    capabilities(None).is_ok_and(|sets| sets.effective.contains(wanted))
}

/// Whether all ids are mapped: in a user namespace root has no rights over files of unmapped ids.
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
    use super::{AccessPolicy, KernelOptions, maps_every_id};

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
    fn the_kernel_checks_if_others_may_enter_or_if_it_was_asked_to() {
        for (allow_other, check_permissions) in [(true, false), (false, true)] {
            let options = KernelOptions {
                allow_other,
                check_permissions,
                ..KernelOptions::default()
            };
            assert_eq!(AccessPolicy::for_mount(&options), AccessPolicy::Kernel);
        }
    }
}
