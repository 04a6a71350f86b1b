//! Ids of users and groups, as people and archives state them.

/// The id that is nobody's: chown(2) takes it for "no change", and no process can have it.
const NOBODY: u32 = u32::MAX;

/// The id, if a file can belong to it.
///
/// # Errors
///
/// It is the one that stands for no user and no group.
pub fn check_id(id: u32) -> Result<u32, String> {
    match id {
        NOBODY => Err(format!("{NOBODY} is the id of no user and no group")),
        id => Ok(id),
    }
}

/// A user or a group, as a text states it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Party<'t> {
    /// Its number, which [`check_id`] has accepted.
    Id(u32),
    /// Its name.
    Name(&'t str),
}

/// The group of an [`OwnerText`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupText<'t> {
    /// It does not change.
    Unchanged,
    /// The own group of the user, whose name ends in a colon.
    OfUser(&'t str),
    /// The stated one.
    Stated(Party<'t>),
}

/// Owners as chown(1) takes them: `USER`, `USER:GROUP`, `:GROUP`, `USER:`, as numbers or names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerText<'t> {
    /// The user; `None` if it does not change.
    pub user: Option<Party<'t>>,
    /// The group.
    pub group: GroupText<'t>,
}

impl<'t> OwnerText<'t> {
    /// Splits a text.
    ///
    /// # Errors
    ///
    /// The text states neither user nor group, or an id that is nobody's.
    pub fn parse(text: &'t str) -> Result<Self, String> {
        let (user, group) = match text.split_once(':') {
            Some((user, group)) => (user, Some(group)),
            None => (text, None),
        };
        let user = (!user.is_empty()).then(|| party(user)).transpose();
        let user = user.map_err(|problem| format!("`{text}`: {problem}"))?;
        let group = match (group, user) {
            (None | Some(""), None) => {
                return Err(format!(
                    "`{text}` names no owner; write USER, USER:GROUP or :GROUP"
                ));
            }
            (None, _) => GroupText::Unchanged,
            (Some(""), Some(Party::Name(name))) => GroupText::OfUser(name),
            (Some(""), Some(Party::Id(_))) => {
                return Err(format!(
                    "`{text}` does not say which group, and a number has none of its own; write USER:GROUP"
                ));
            }
            (Some(group), _) => {
                let group = party(group).map_err(|problem| format!("`{text}`: {problem}"))?;
                GroupText::Stated(group)
            }
        };
        Ok(Self { user, group })
    }
}

fn party(word: &str) -> Result<Party<'_>, String> {
    // As in coreutils, a sign says that it is not a name of digits.
    let digits = word.strip_prefix('+').unwrap_or(word);
    if digits.is_empty() || digits.bytes().any(|byte| !byte.is_ascii_digit()) {
        return Ok(Party::Name(word));
    }
    let number = digits.parse();
    let number = number.map_err(|_| format!("an id is at most {}", NOBODY - 1))?;
    check_id(number).map(Party::Id)
}

#[cfg(test)]
mod tests {
    use super::{GroupText, OwnerText, Party, check_id};

    #[test]
    fn owners_are_stated_in_the_forms_of_chown() {
        use GroupText::{OfUser, Stated, Unchanged};
        use Party::{Id, Name};
        for (text, user, group) in [
            ("0", Some(Id(0)), Unchanged),
            ("root", Some(Name("root")), Unchanged),
            ("1000:100", Some(Id(1000)), Stated(Id(100))),
            ("+7:+8", Some(Id(7)), Stated(Id(8))),
            (":8", None, Stated(Id(8))),
            ("root:root", Some(Name("root")), Stated(Name("root"))),
            ("root:", Some(Name("root")), OfUser("root")),
            ("-1", Some(Name("-1")), Unchanged),
        ] {
            assert_eq!(
                OwnerText::parse(text),
                Ok(OwnerText { user, group }),
                "{text}"
            );
        }
        for (text, says) in [
            ("", "names no owner"),
            (":", "names no owner"),
            ("1000:", "write USER:GROUP"),
            ("4294967296", "at most 4294967294"),
            ("0:4294967295", "`0:4294967295`: 4294967295 is"),
        ] {
            let told = OwnerText::parse(text).unwrap_err();
            assert!(told.contains(says), "{text}: {told}");
        }
    }

    #[test]
    fn all_ids_but_the_last_have_owners() {
        for id in [0, 1000, 65_534, u32::MAX - 1] {
            assert_eq!(check_id(id), Ok(id));
        }
        let told = check_id(u32::MAX).unwrap_err();
        assert!(told.starts_with("4294967295 is"), "{told}");
    }
}
