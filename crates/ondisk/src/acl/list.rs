//! What access control lists mean: what they do to permission bits, and what new files inherit.

use super::{
    Entry, GROUP_OBJECT, MASK, OTHER, USER_OBJECT, decode, decode_call, encode, encode_call,
    follow_mode,
};

/// An access control list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl {
    entries: Vec<Entry>,
}

/// What a new file gets from its directory's default list.
#[derive(Debug, PartialEq, Eq)]
pub struct Inherited {
    /// Permission bits.
    pub permissions: u16,
    /// Its own list, unless the bits say it all.
    pub access: Option<Acl>,
}

impl Acl {
    /// Reads the form that system calls carry; `None` if it is not one.
    #[must_use]
    pub fn from_call(bytes: &[u8]) -> Option<Self> {
        Self::checked(decode_call(bytes).ok()?)
    }

    /// Reads the form that the image stores; `None` if it is not one.
    #[must_use]
    pub fn from_disk(bytes: &[u8]) -> Option<Self> {
        Self::checked(decode(bytes).ok()?)
    }

    /// Exactly one entry each for owner, group and others, at most one mask, no unknown permissions,
    /// and a mask where users or groups are named.
    fn checked(entries: Vec<Entry>) -> Option<Self> {
        let count = |tag| entries.iter().filter(|entry| entry.tag == tag).count();
        let known = entries.iter().all(|entry| entry.permissions <= 7);
        let named = entries.iter().any(|entry| entry.is_named());
        let whole = count(USER_OBJECT) == 1 && count(GROUP_OBJECT) == 1 && count(OTHER) == 1;
        let masked = count(MASK) == 1 || (count(MASK) == 0 && !named);
        (known && whole && masked).then_some(Self { entries })
    }

    /// The form that system calls carry.
    #[must_use]
    pub fn to_call(&self) -> Vec<u8> {
        encode_call(&self.entries)
    }

    /// The form that the image stores.
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

    /// The tag whose permissions the mode's group bits show.
    fn group_class(&self) -> u16 {
        if self.get(MASK).is_some() {
            MASK
        } else {
            GROUP_OBJECT
        }
    }

    /// The nine bits that a mode shows of this list.
    #[must_use]
    pub fn mode_bits(&self) -> u16 {
        let bits = |tag| self.get(tag).unwrap_or(0);
        bits(USER_OBJECT) << 6 | bits(self.group_class()) << 3 | bits(OTHER)
    }

    /// Whether the nine bits say all that the list says.
    #[must_use]
    pub fn is_mode_only(&self) -> bool {
        self.entries.len() == 3
    }

    /// The list after `chmod` to these bits.
    #[must_use]
    pub fn with_mode(mut self, mode: u16) -> Self {
        follow_mode(&mut self.entries, mode);
        self
    }

    /// What a file inherits from this default list whose mode is set as it is made: these bits, whatever
    /// the list says.
    #[must_use]
    pub fn inherit_exactly(&self, mode: u16) -> Inherited {
        let access = self.clone().with_mode(mode & 0o777);
        Inherited {
            permissions: mode,
            access: (!access.is_mode_only()).then_some(access),
        }
    }

    /// What a file made with `mode` inherits from this default list: no more than both allow.
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
            // Cut between entries, the rule for others is missing; cut elsewhere, bytes are.
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
