//! The process that a request comes from, and what it may do.
//!
//! The kernel tells a caller's user, group and thread. What else matters for the few decisions that
//! it leaves to the server stands in `/proc` while the caller waits for its answer: its other
//! groups, and its capabilities. A capability counts only in the server's own user namespace: in
//! one of its own every process may have all of them. Where `/proc` says nothing about the caller
//! (late writes have none, and a caller may be in another PID namespace), its user and group alone
//! decide.

use std::fs;

use pext4_fs::{Attributes, CreateAttributes};

/// The process that a request comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Id of the calling thread; 0 if there is none that the server can see.
    pub thread: u32,
}

/// A right that a process may have beside its user's (`capabilities(7)`), with its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Capability {
    /// `CAP_FOWNER`: what is reserved for a file's owner.
    Ownership = 3,
    /// `CAP_FSETID`: files keep their set-id bits when it changes them.
    SetIds = 4,
    /// `CAP_LINUX_IMMUTABLE`: making files immutable or append-only.
    Immutable = 9,
    /// `CAP_SYS_ADMIN`: the volume as a whole, and `trusted` attributes.
    Administration = 21,
    /// `CAP_SYS_RESOURCE`: the journal.
    Resources = 24,
}

impl Caller {
    /// Whether the caller has a capability over what the server serves.
    pub(crate) fn has(self, capability: Capability) -> bool {
        let held = self
            .status()
            .and_then(|status| capabilities(&status))
            .zip(self.shares_user_namespace());
        match held {
            Some((held, is_shared)) => is_shared && held & 1 << capability as u32 != 0,
            None => self.uid == 0,
        }
    }

    /// Whether the file keeps a set-group-id bit when the caller changes it.
    pub(super) fn may_keep_group_id(self, file: &Attributes) -> bool {
        self.is_in_group(file.gid) || self.has(Capability::SetIds)
    }

    /// The owner and group of inodes that the caller makes.
    pub(super) fn owner(self) -> CreateAttributes {
        CreateAttributes {
            uid: self.uid,
            gid: self.gid,
            ..CreateAttributes::default()
        }
    }

    pub(super) fn is_in_group(self, group: u32) -> bool {
        self.gid == group || (self.status()).is_some_and(|status| names_group(&status, group))
    }

    fn status(self) -> Option<String> {
        fs::read_to_string(format!("/proc/{}/status", self.thread)).ok()
    }

    fn shares_user_namespace(self) -> Option<bool> {
        let own = fs::read_link("/proc/self/ns/user").ok()?;
        let callers = fs::read_link(format!("/proc/{}/ns/user", self.thread)).ok()?;
        Some(own == callers)
    }
}

/// The effective capabilities in the text of `/proc/PID/status`.
fn capabilities(status: &str) -> Option<u64> {
    let digits = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(digits.trim(), 16).ok()
}

/// Whether the text of `/proc/PID/status` lists the group as a supplementary one.
fn names_group(status: &str, group: u32) -> bool {
    let groups = status.lines().find_map(|line| line.strip_prefix("Groups:"));
    groups.is_some_and(|groups| {
        let mut numbers = groups.split_ascii_whitespace();
        numbers.any(|number| number.parse::<u32>() == Ok(group))
    })
}

#[cfg(test)]
mod tests {
    use super::{Caller, Capability, capabilities, names_group};

    #[test]
    fn a_status_lists_groups_and_capabilities() {
        let status = "Name:\tcat\nGroups:\t4 24 1000 \nCapEff:\t0000000000200010\nSeccomp:\t0\n";
        assert!(names_group(status, 24) && !names_group(status, 2));
        let held = capabilities(status).expect("it is there");
        let has = |capability| held & 1 << capability as u32 != 0;
        assert!(has(Capability::SetIds) && has(Capability::Administration));
        assert!(!has(Capability::Ownership));
        for nothing in ["", "Name:\tcat\n", "CapEff:\tmany\n"] {
            assert_eq!(capabilities(nothing), None, "{nothing}");
        }
    }

    #[test]
    fn of_a_caller_out_of_sight_the_user_decides() {
        let has = |uid| {
            let caller = Caller {
                uid,
                gid: 0,
                thread: 0,
            };
            caller.has(Capability::Administration)
        };
        assert!(has(0) && !has(1000));
    }
}
