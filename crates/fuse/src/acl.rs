//! POSIX access control lists: their two byte formats and what they do to permission bits.
//!
//! System calls carry a list as the value of `system.posix_acl_access` or `..._default` in version
//! 2 (every entry has an id); ext4 stores version 1, where only named users and groups have one.
//! The kernel checks permissions by the lists it reads through the server, but leaves three duties
//! to it: the mode must follow a list that is set, a list must follow a mode that is set, and new
//! files inherit from their directory's default list.

/// The extended attribute with the list that decides about access.
pub(crate) const ACCESS: &[u8] = b"system.posix_acl_access";
/// The extended attribute with the list that new files in a directory inherit.
pub(crate) const DEFAULT: &[u8] = b"system.posix_acl_default";

const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

const VERSION_OF_CALLS: u32 = 2;
const VERSION_ON_DISK: u32 = 1;
const NO_ID: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rule {
    tag: u16,
    permissions: u16,
    id: u32,
}

impl Rule {
    fn is_named(self) -> bool {
        matches!(self.tag, USER | GROUP)
    }
}

/// An access control list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Acl {
    rules: Vec<Rule>,
}

/// What a new file gets from its directory's default list.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Inherited {
    /// Permission bits.
    pub permissions: u16,
    /// Its own list, unless the bits say it all.
    pub access: Option<Acl>,
}

fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    Some(u16::from_le_bytes(
        bytes.get(offset..offset.checked_add(2)?)?.try_into().ok()?,
    ))
}

fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_le_bytes(
        bytes.get(offset..offset.checked_add(4)?)?.try_into().ok()?,
    ))
}

impl Acl {
    /// Reads the form that system calls carry; `None` if it is not one.
    pub(crate) fn from_call(bytes: &[u8]) -> Option<Self> {
        if u32_at(bytes, 0)? != VERSION_OF_CALLS {
            return None;
        }
        let rules = bytes[4..].chunks(8).map(|rule| {
            Some(Rule {
                tag: u16_at(rule, 0)?,
                permissions: u16_at(rule, 2)?,
                id: u32_at(rule, 4)?,
            })
        });
        Self::checked(rules.collect::<Option<_>>()?)
    }

    /// Reads the form that the image stores; `None` if it is not one.
    pub(crate) fn from_disk(bytes: &[u8]) -> Option<Self> {
        if u32_at(bytes, 0)? != VERSION_ON_DISK {
            return None;
        }
        let mut rules = Vec::new();
        let mut offset = 4;
        while offset < bytes.len() {
            let mut rule = Rule {
                tag: u16_at(bytes, offset)?,
                permissions: u16_at(bytes, offset + 2)?,
                id: NO_ID,
            };
            offset += 4;
            if rule.is_named() {
                rule.id = u32_at(bytes, offset)?;
                offset += 4;
            }
            rules.push(rule);
        }
        Self::checked(rules)
    }

    /// Exactly one rule each for owner, group and others, at most one mask, known tags only, and a
    /// mask where users or groups are named.
    fn checked(rules: Vec<Rule>) -> Option<Self> {
        let count = |tag| rules.iter().filter(|rule| rule.tag == tag).count();
        let known = rules.iter().all(|rule| {
            rule.permissions <= 7
                && matches!(rule.tag, USER_OBJ | USER | GROUP_OBJ | GROUP | MASK | OTHER)
        });
        let named = rules.iter().any(|rule| rule.is_named());
        let whole = count(USER_OBJ) == 1 && count(GROUP_OBJ) == 1 && count(OTHER) == 1;
        let masked = count(MASK) == 1 || (count(MASK) == 0 && !named);
        (known && whole && masked).then_some(Self { rules })
    }

    /// The form that system calls carry.
    pub(crate) fn to_call(&self) -> Vec<u8> {
        let mut bytes = VERSION_OF_CALLS.to_le_bytes().to_vec();
        for rule in &self.rules {
            bytes.extend(rule.tag.to_le_bytes());
            bytes.extend(rule.permissions.to_le_bytes());
            bytes.extend(rule.id.to_le_bytes());
        }
        bytes
    }

    /// The form that the image stores.
    pub(crate) fn to_disk(&self) -> Vec<u8> {
        let mut bytes = VERSION_ON_DISK.to_le_bytes().to_vec();
        for rule in &self.rules {
            bytes.extend(rule.tag.to_le_bytes());
            bytes.extend(rule.permissions.to_le_bytes());
            if rule.is_named() {
                bytes.extend(rule.id.to_le_bytes());
            }
        }
        bytes
    }

    fn get(&self, tag: u16) -> Option<u16> {
        self.rules
            .iter()
            .find(|rule| rule.tag == tag)
            .map(|rule| rule.permissions)
    }

    fn set(&mut self, tag: u16, permissions: u16) {
        for rule in self.rules.iter_mut().filter(|rule| rule.tag == tag) {
            rule.permissions = permissions & 7;
        }
    }

    /// The tag whose permissions the mode's group bits show.
    fn group_class(&self) -> u16 {
        if self.get(MASK).is_some() {
            MASK
        } else {
            GROUP_OBJ
        }
    }

    /// The nine bits that a mode shows of this list.
    pub(crate) fn mode_bits(&self) -> u16 {
        let bits = |tag| self.get(tag).unwrap_or(0);
        bits(USER_OBJ) << 6 | bits(self.group_class()) << 3 | bits(OTHER)
    }

    /// Whether the nine bits say all that the list says.
    pub(crate) fn is_mode_only(&self) -> bool {
        self.rules.len() == 3
    }

    /// The list after `chmod` to these bits.
    pub(crate) fn with_mode(mut self, mode: u16) -> Self {
        self.set(USER_OBJ, mode >> 6);
        self.set(self.group_class(), mode >> 3);
        self.set(OTHER, mode);
        self
    }

    /// What a file made with `mode` inherits from this default list: no more than both allow.
    pub(crate) fn inherit(&self, mode: u16) -> Inherited {
        let bits = self.mode_bits() & mode & 0o777;
        let access = self.clone().with_mode(bits);
        Inherited {
            permissions: mode & 0o7000 | bits,
            access: (!access.is_mode_only()).then_some(access),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Acl, GROUP_OBJ, MASK, NO_ID, OTHER, Rule, USER, USER_OBJ};

    fn list(rules: &[(u16, u16, u32)]) -> Acl {
        let rules = rules
            .iter()
            .map(|&(tag, permissions, id)| Rule {
                tag,
                permissions,
                id,
            })
            .collect();
        Acl::checked(rules).expect("a valid list")
    }

    fn with_a_named_user() -> Acl {
        list(&[
            (USER_OBJ, 7, NO_ID),
            (USER, 6, 1000),
            (GROUP_OBJ, 5, NO_ID),
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
            changed.get(GROUP_OBJ),
            Some(5),
            "the group itself keeps its rule"
        );
        assert_eq!(changed.get(MASK), Some(4));
        let plain = list(&[
            (USER_OBJ, 7, NO_ID),
            (GROUP_OBJ, 5, NO_ID),
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
        assert_eq!(access.get(USER_OBJ), Some(6));
        assert_eq!(access.get(MASK), Some(6));
        assert_eq!(
            access.get(USER),
            Some(6),
            "named users keep their rule under the mask"
        );
        let plain = list(&[
            (USER_OBJ, 7, NO_ID),
            (GROUP_OBJ, 5, NO_ID),
            (OTHER, 0, NO_ID),
        ]);
        let inherited = plain.inherit(0o666);
        assert_eq!((inherited.permissions, inherited.access), (0o640, None));
    }
}
