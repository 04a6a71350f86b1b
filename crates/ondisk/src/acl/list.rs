//! The meaning of access control lists: which are valid, their effect on permission bits, and their
//! inheritance.

use super::{
    Entry, GROUP_OBJECT, MASK, NO_ID, OTHER, USER_OBJECT, apply_mode, decode, decode_call, encode,
    encode_call,
};

/// The reason why a list is refused. Messages escape quoted text, so that no terminal interprets
/// it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// It is not UTF-8.
    #[error("its access control list is no text")]
    NotText,
    /// An entry cannot be parsed; the entry.
    #[error("its access control list has the entry `{}`, which makes no sense", .0.escape_debug())]
    Entry(String),
    /// An entry names a user or group without a number; the name.
    #[error(
        "its access control list names `{}` without a number, and only numbers can be kept; bsdtar \
         writes them (--acls --format pax), GNU tar does not",
        .0.escape_debug()
    )]
    Named(String),
    /// An entry is for the id that stands for nobody ([`NO_ID`]).
    #[error("its access control list has an entry for the id {NO_ID}, which is nobody's")]
    Nobody,
    /// An entry permits what is not reading, writing or executing; its permissions.
    #[error("its access control list has an entry with the permissions {0:#o}")]
    Permissions(u16),
    /// Two entries are for the same subject.
    #[error("its access control list has an entry twice")]
    Twice,
    /// The entries are not in the order of their tags.
    #[error("its access control list has its entries out of order")]
    Order,
    /// A mandatory entry is missing; the start of that entry.
    #[error("its access control list lacks the entry `{0}`")]
    Missing(&'static str),
}

/// A valid access control list (see acl(5)). Its entries are in the order of their tags, unless it
/// was [read from an image](Acl::from_disk).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl {
    entries: Vec<Entry>,
}

/// The permissions that a new file inherits from its directory's default list.
#[derive(Debug, PartialEq, Eq)]
pub struct Inherited {
    /// Permission bits (0777).
    pub permissions: u16,
    /// The file's access list; `None` if the bits alone express it.
    pub access: Option<Acl>,
}

impl Acl {
    /// Decodes the form of system calls; `None` if the value is no valid list.
    #[must_use]
    pub fn from_call(bytes: &[u8]) -> Option<Self> {
        Self::new(decode_call(bytes).ok()?).ok()
    }

    /// Decodes the stored form; `None` if the value is no valid list. Its entries may be in any
    /// order: an image may have such a list already, and it means the same.
    #[must_use]
    pub fn from_disk(bytes: &[u8]) -> Option<Self> {
        let list = Self {
            entries: decode(bytes).ok()?,
        };
        list.check_entries().is_ok().then_some(list)
    }

    /// A list of these entries, if it is one that Linux takes from `setxattr`. Linux looks at
    /// the order of tags, but not at that of ids, nor whether one is there twice.
    ///
    /// # Errors
    ///
    /// The first problem of the list.
    pub fn new(entries: Vec<Entry>) -> Result<Self, Problem> {
        let list = Self { entries };
        list.check_entries()?;
        if !list.entries.is_sorted_by_key(|entry| entry.tag) {
            return Err(Problem::Order);
        }
        Ok(list)
    }

    /// Checks that there is exactly one entry each for owner, group and others, at most one mask,
    /// only known permissions and ids of somebody, and a mask if users or groups are named.
    fn check_entries(&self) -> Result<(), Problem> {
        for entry in &self.entries {
            if entry.permissions > 7 {
                return Err(Problem::Permissions(entry.permissions));
            }
            if entry.is_named() && entry.id == NO_ID {
                return Err(Problem::Nobody);
            }
        }
        let is_named = self.entries.iter().any(|entry| entry.is_named());
        for (tag, name, is_needed) in [
            (USER_OBJECT, "user::", true),
            (GROUP_OBJECT, "group::", true),
            (MASK, "mask::", is_named),
            (OTHER, "other::", true),
        ] {
            match self.entries.iter().filter(|entry| entry.tag == tag).count() {
                0 if is_needed => return Err(Problem::Missing(name)),
                0 | 1 => {}
                _ => return Err(Problem::Twice),
            }
        }
        Ok(())
    }

    /// The entries.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The list in the form of system calls.
    #[must_use]
    pub fn to_call(&self) -> Vec<u8> {
        encode_call(&self.entries)
    }

    /// The list in the stored form.
    #[must_use]
    pub fn to_disk(&self) -> Vec<u8> {
        encode(&self.entries)
    }

    fn get(&self, tag: u16) -> Option<u16> {
        self.entries
            .iter()
            .find(|entry| entry.tag == tag)
            .map(|entry| entry.permissions)
    }

    /// The tag of the entry whose permissions are the mode's group bits.
    fn group_class(&self) -> u16 {
        if self.get(MASK).is_some() {
            MASK
        } else {
            GROUP_OBJECT
        }
    }

    /// The nine permission bits (0777) that the mode of a file with this list has.
    #[must_use]
    pub fn mode_bits(&self) -> u16 {
        let bits = |tag| self.get(tag).unwrap_or(0);
        bits(USER_OBJECT) << 6 | bits(self.group_class()) << 3 | bits(OTHER)
    }

    /// Whether the nine permission bits alone express the list.
    #[must_use]
    pub fn is_mode_only(&self) -> bool {
        self.entries.len() == 3
    }

    /// The list after `chmod` to these bits.
    #[must_use]
    pub fn with_mode(mut self, mode: u16) -> Self {
        apply_mode(&mut self.entries, mode);
        self
    }

    /// The permissions of a new file under this default list if its mode is set explicitly when it
    /// is created: exactly `mode`, whatever the list permits.
    #[must_use]
    pub fn inherit_exactly(&self, mode: u16) -> Inherited {
        let access = self.clone().with_mode(mode & 0o777);
        Inherited {
            permissions: mode,
            access: (!access.is_mode_only()).then_some(access),
        }
    }

    /// The permissions of a new file created with `mode` under this default list: those that both
    /// allow.
    #[must_use]
    pub fn inherit(&self, mode: u16) -> Inherited {
        self.inherit_exactly(mode & (0o7000 | self.mode_bits()))
    }
}

#[cfg(test)]
mod tests {
    use super::{Acl, Entry, GROUP_OBJECT, MASK, OTHER, Problem, USER_OBJECT};
    use crate::acl::{GROUP, NO_ID, USER, encode, encode_call};

    fn entries(entries: &[(u16, u16, u32)]) -> Vec<Entry> {
        let entry = |&(tag, permissions, id)| Entry {
            tag,
            permissions,
            id,
        };
        entries.iter().map(entry).collect()
    }

    fn list(these: &[(u16, u16, u32)]) -> Acl {
        let entries = entries(these);
        Acl::new(entries).expect("a valid list")
    }

    fn with_a_named_user() -> Acl {
        list(&[
            (USER_OBJECT, 7, NO_ID),
            (USER, 6, 1000),
            (GROUP_OBJECT, 5, NO_ID),
            (MASK, 7, NO_ID),
            (OTHER, 4, NO_ID),
        ])
    }

    #[test]
    fn both_forms_keep_every_rule() {
        let acl = with_a_named_user();
        assert_eq!(Acl::from_call(&acl.to_call()), Some(acl.clone()));
        assert_eq!(Acl::from_disk(&acl.to_disk()), Some(acl.clone()));
        assert_eq!(acl.to_call().len(), 4 + 5 * 8);
        assert_eq!(acl.to_disk().len(), 4 + 4 * 4 + 8);
        assert_eq!(acl.to_disk()[..8], [1, 0, 0, 0, 1, 0, 7, 0]);
    }

    #[test]
    fn what_is_no_list_is_refused() {
        let good = with_a_named_user();
        let call = good.to_call();
        for cut in 0..call.len() {
            let entries = cut.checked_sub(4).map(|rest| rest / 8);
            // A cut between entries loses the rule for others; any other cut loses bytes of an
            // entry.
            assert_eq!(
                Acl::from_call(&call[..cut]),
                None,
                "{cut} bytes, {entries:?} entries"
            );
        }
        let disk = good.to_disk();
        for cut in 0..disk.len() {
            assert_eq!(Acl::from_disk(&disk[..cut]), None, "{cut} bytes");
        }
        assert_eq!(
            Acl::from_call(&disk),
            None,
            "the version on disk is not that of calls"
        );
        let mut wrong = call;
        wrong[4] = 0x40;
        assert_eq!(Acl::from_call(&wrong), None, "unknown tag");
    }

    /// What Linux 6.18 answers to `setxattr` on ext4 for each of these.
    #[test]
    fn a_list_of_a_call_is_valid_where_linux_takes_it() {
        const OWNER: (u16, u16, u32) = (USER_OBJECT, 6, NO_ID);
        const TEAM: (u16, u16, u32) = (GROUP_OBJECT, 4, NO_ID);
        const LIMIT: (u16, u16, u32) = (MASK, 7, NO_ID);
        const ALL: (u16, u16, u32) = (OTHER, 4, NO_ID);
        for taken in [
            &[OWNER, (USER, 4, 1), (USER, 6, 1), TEAM, LIMIT, ALL][..],
            &[OWNER, (USER, 4, 2), (USER, 6, 1), TEAM, LIMIT, ALL],
            &[OWNER, TEAM, (GROUP, 4, 2), (GROUP, 4, 1), LIMIT, ALL],
            &[OWNER, TEAM, LIMIT, ALL],
        ] {
            let call = encode_call(&entries(taken));
            assert!(Acl::from_call(&call).is_some(), "{taken:?}");
        }
        for (refused, problem) in [
            (&[TEAM, OWNER, ALL][..], Problem::Order),
            (&[OWNER, (GROUP, 4, 2), TEAM, LIMIT, ALL], Problem::Order),
            (&[OWNER, TEAM, (USER, 4, 2), LIMIT, ALL], Problem::Order),
            (&[OWNER, (USER, 4, 2), TEAM, ALL, LIMIT], Problem::Order),
            (
                &[OWNER, (USER, 4, 2), TEAM, ALL],
                Problem::Missing("mask::"),
            ),
            (&[OWNER, OWNER, TEAM, ALL], Problem::Twice),
            (&[OWNER, TEAM, LIMIT, LIMIT, ALL], Problem::Twice),
            (
                &[OWNER, (USER, 4, NO_ID), TEAM, LIMIT, ALL],
                Problem::Nobody,
            ),
            (
                &[(USER_OBJECT, 14, NO_ID), TEAM, ALL],
                Problem::Permissions(14),
            ),
        ] {
            let (refused, is_order) = (entries(refused), problem == Problem::Order);
            assert_eq!(Acl::new(refused.clone()), Err(problem), "{refused:?}");
            assert_eq!(Acl::from_call(&encode_call(&refused)), None);
            // What is stored may be out of order.
            let stored = Acl::from_disk(&encode(&refused));
            assert_eq!(stored.is_some(), is_order, "{refused:?}");
        }
    }

    #[test]
    fn the_group_bits_are_the_mask_where_there_is_one() {
        let acl = with_a_named_user();
        assert_eq!(acl.mode_bits(), 0o774);
        assert!(!acl.is_mode_only());
        let changed = acl.with_mode(0o640);
        assert_eq!(changed.mode_bits(), 0o640);
        assert_eq!(
            changed.get(GROUP_OBJECT),
            Some(5),
            "the group itself keeps its rule"
        );
        assert_eq!(changed.get(MASK), Some(4));
        let plain = list(&[
            (USER_OBJECT, 7, NO_ID),
            (GROUP_OBJECT, 5, NO_ID),
            (OTHER, 4, NO_ID),
        ]);
        assert!(plain.is_mode_only());
        assert_eq!(plain.with_mode(0o600).mode_bits(), 0o600);
    }

    #[test]
    fn new_files_get_no_more_than_list_and_mode_allow() {
        let inherited = with_a_named_user().inherit(0o2666);
        assert_eq!(inherited.permissions, 0o2664);
        let access = inherited.access.expect("a user is named");
        assert_eq!(access.get(USER_OBJECT), Some(6));
        assert_eq!(access.get(MASK), Some(6));
        assert_eq!(
            access.get(USER),
            Some(6),
            "named users keep their rule under the mask"
        );
        let plain = list(&[
            (USER_OBJECT, 7, NO_ID),
            (GROUP_OBJECT, 5, NO_ID),
            (OTHER, 0, NO_ID),
        ]);
        let inherited = plain.inherit(0o666);
        assert_eq!((inherited.permissions, inherited.access), (0o640, None));
    }
}
