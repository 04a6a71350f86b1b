//! The process that a request comes from, and what it may do.
//!
//! The kernel tells a caller's user, group and thread. What else matters for the few decisions that
//! it leaves to the server stands in `/proc` while the caller waits for its answer: its other
//! groups, and its capabilities. A capability counts only in the server's own user namespace: in
//! one of its own every process may have all of them. Where `/proc` says nothing about the caller
//! (late writes have none, and a caller may be in another PID namespace), its user and group alone
//! decide.
//!
//! A thread may also act with other credentials than its own, but `/proc` shows its own: overlayfs
//! acts as its mounter, `nfsd` and `ksmbd` as their clients. Then too its user and group alone
//! decide, and whoever changes a file's content does not keep its set-id bits, since the client of
//! a server may be root without that right.

use std::fs;
use std::os::unix::fs::MetadataExt;

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
        let Some(status) = self.status() else {
            return self.uid == 0;
        };
        if !self.acts_as_user_of(&status) {
            return self.uid == 0 && capability != Capability::SetIds;
        }
        match capabilities(&status).zip(self.shares_user_namespace()) {
            Some((held, is_shared)) => is_shared && held & 1 << capability as u32 != 0,
            None => self.uid == 0,
        }
    }

    /// Whether the file keeps a set-group-id bit when the caller changes it.
    pub(super) fn may_keep_group_id(self, file: &Attributes) -> bool {
        self.is_in_group(file.gid) || self.has(Capability::SetIds)
    }

    /// Whether the file loses a set-group-id bit when the caller gives it an access list, if the
    /// kernel has `told`. What it tells is of the user as whom the thread acts. Overlayfs acts as
    /// its mounter, and its own order that the bit goes never reaches a server. So the thread
    /// itself must be allowed to keep the bit, too.
    pub(super) fn list_takes_group_id(self, file: &Attributes, told: Option<bool>) -> bool {
        let status = self.status();
        let is_another = |status: &String| !self.acts_as_user_of(status);
        let acts_for_another = status.as_ref().is_some_and(is_another);
        let takes = told.unwrap_or_else(|| {
            let is_overlay = acts_for_another && self.uid == 0;
            !is_overlay && !self.may_keep_group_id(file)
        });
        // Of a thread that acts for itself, the kernel has judged its own user namespace.
        let counts = || !acts_for_another || self.shares_user_namespace() != Some(false);
        let loses = |status: String| {
            let is_member = identity(&status, "Gid:") == Some(file.gid);
            let is_capable = capabilities(&status)
                .is_none_or(|held| held & 1 << Capability::SetIds as u32 != 0 && counts());
            !is_member && !names_group(&status, file.gid) && !is_capable
        };
        takes || status.is_some_and(loses)
    }

    /// Whether the kernel lets the caller read `trusted` attributes. It lets nobody from whom the
    /// first user namespace is hidden, as it is from all callers if it is from the server.
    pub(super) fn sees_trusted(self) -> bool {
        self.has(Capability::Administration) && is_in_first_user_namespace()
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
        let lists = |status: String| self.acts_as(&status) && names_group(&status, group);
        self.gid == group || self.status().is_some_and(lists)
    }

    /// Whether the user of the request is the thread's own.
    fn acts_as_user_of(self, status: &str) -> bool {
        identity(status, "Uid:") == Some(self.uid)
    }

    /// Whether the user and the group of the request are the thread's own.
    fn acts_as(self, status: &str) -> bool {
        self.acts_as_user_of(status) && identity(status, "Gid:") == Some(self.gid)
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

/// Whether the server is in the first user namespace, which has a fixed inode number
/// (`PROC_USER_INIT_INO`).
fn is_in_first_user_namespace() -> bool {
    const FIRST: u64 = 0xEFFF_FFFD;
    let namespace = fs::metadata("/proc/self/ns/user");
    namespace.map_or(true, |namespace| namespace.ino() == FIRST)
}

/// The number with which a thread accesses files, in the text of `/proc/PID/status`: the last of
/// four.
fn identity(status: &str, name: &str) -> Option<u32> {
    let numbers = status.lines().find_map(|line| line.strip_prefix(name))?;
    numbers.split_ascii_whitespace().nth(3)?.parse().ok()
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
    use pext4_fs::{Attributes, FileType, InodeNumber};

    use super::{Caller, Capability, capabilities, identity, names_group};

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
    fn a_thread_that_acts_for_another_is_known_by_its_numbers() {
        let status = "Uid:\t65534\t65534\t65534\t1000\nGid:\t5\t5\t5\t6\nGroups:\t4\n";
        assert_eq!(identity(status, "Uid:"), Some(1000));
        assert_eq!(identity("Uid:\t1\t2\n", "Uid:"), None);
        let caller = |uid, gid| Caller {
            uid,
            gid,
            thread: 0,
        };
        assert!(caller(1000, 6).acts_as(status));
        assert!(!caller(0, 6).acts_as(status) && !caller(1000, 0).acts_as(status));
        assert!(!caller(1000, 6).acts_as(""));
    }

    /// As overlayfs has a thread of root act for nobody, and one of nobody for root.
    #[test]
    fn what_another_may_is_not_what_the_thread_itself_may() {
        // This thread, which acts for somebody else.
        let thread = rustix::thread::gettid()
            .as_raw_nonzero()
            .get()
            .cast_unsigned();
        let own = rustix::process::geteuid().as_raw();
        let other = |uid| Caller {
            uid,
            gid: 7,
            thread,
        };
        assert!(!other(own + 1).has(Capability::Administration));
        if own != 0 {
            assert!(other(0).has(Capability::Administration));
            assert!(!other(0).has(Capability::SetIds));
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

    #[test]
    fn of_a_caller_out_of_sight_the_kernel_knows_what_a_list_takes() {
        let caller = |uid, gid| Caller {
            uid,
            gid,
            thread: 0,
        };
        let mut file = Attributes::new(InodeNumber(12), FileType::Regular, 0o2755);
        file.gid = 9;
        for told in [false, true] {
            assert_eq!(caller(1000, 7).list_takes_group_id(&file, Some(told)), told);
        }
        for (uid, gid, takes) in [(1000, 7, true), (1000, 9, false), (0, 7, false)] {
            assert_eq!(caller(uid, gid).list_takes_group_id(&file, None), takes);
        }
    }
}
