//! The meaning of access control lists: their effect on permission bits, and their inheritance.

use super::{
    Entry, GROUP_OBJECT, MASK, OTHER, USER_OBJECT, apply_mode, decode, decode_call, encode,
    encode_call,
};

/// A valid access control list (see acl(5)).
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
        Self::checked(decode_call(bytes).ok()?)
    }

    /// Decodes the stored form; `None` if the value is no valid list.
    #[must_use]
    pub fn from_disk(bytes: &[u8]) -> Option<Self> {
        Self::checked(decode(bytes).ok()?)
    }

    /// Checks that there is exactly one entry each for owner, group and others, at most one mask,
    /// only known permissions, and a mask if users or groups are named.
    fn checked(entries: Vec<Entry>) -> Option<Self> {
        let count = |tag| entries.iter().filter(|entry| entry.tag == tag).count();
        let known = entries.iter().all(|entry| entry.permissions <= 7);
        let named = entries.iter().any(|entry| entry.is_named());
        let whole = count(USER_OBJECT) == 1 && count(GROUP_OBJECT) == 1 && count(OTHER) == 1;
        let masked = count(MASK) == 1 || (count(MASK) == 0 && !named);
        (known && whole && masked).then_some(Self { entries })
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
    use super::{Acl, Entry, GROUP_OBJECT, MASK, OTHER, USER_OBJECT};
    use crate::acl::{NO_ID, USER};

    fn list(entries: &[(u16, u16, u32)]) -> Acl {
        let entries = entries
            .iter()
            .map(|&(tag, permissions, id)| Entry {
                tag,
                permissions,
                id,
            })
            .collect();
        Acl::checked(entries).expect("a valid list")
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
