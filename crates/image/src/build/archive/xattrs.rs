//! The extended attributes of an archive's entry, including access control lists.

use pext4_ondisk::acl;
use pext4_ondisk::acl::text::{List, Problem};
use pext4_ondisk::xattr::{self, Attribute};
use pext4_tar::Entry;

use super::super::attributes;
use super::super::rules::Rules;

/// The extended attributes of an entry.
#[derive(Default)]
pub(super) struct Attributes {
    pub all: Vec<Attribute>,
    /// The access list, if the entry has it as text. Not all archivers store the mode that follows
    /// from it in the header.
    pub access: Option<List>,
    /// Whether there is a default list.
    pub has_default: bool,
}

/// The attributes of an entry, except those that the rules exclude, which may be invalid. If an
/// access control list is present in both forms, the text has precedence. A list that says no more
/// than the mode is left out.
pub(super) fn attributes(entry: &Entry, rules: &Rules) -> Result<Attributes, String> {
    let mut found = Attributes::default();
    for (name, value) in entry.attributes.attributes() {
        if rules.excludes_attribute(&name) {
            continue;
        }
        let value = value.map_err(|problem| {
            let shown = String::from_utf8_lossy(&name);
            format!("its attribute {shown}: {problem}")
        })?;
        found.all.push(attributes::to_stored(&name, &value)?);
    }
    let list = |name, text: &[u8]| match rules.excludes_attribute(name) {
        true => Ok(None),
        false => List::parse(text).map_err(|problem| match problem {
            Problem::Named(_) => {
                format!("{problem}; --exclude-xattr 'system.posix_acl_*' leaves lists out")
            }
            problem => problem.to_string(),
        }),
    };
    found.access = list(acl::ACCESS, &entry.access_list)?;
    if let Some(list) = &found.access {
        put(&mut found.all, acl::ACCESS, list);
    }
    if let Some(list) = list(acl::DEFAULT, &entry.default_list)? {
        put(&mut found.all, acl::DEFAULT, &list);
        found.has_default = true;
    }
    let mode = match &found.access {
        Some(list) => list.permissions(),
        None => entry.permissions,
    };
    found
        .all
        .retain(|attribute| !attributes::is_list_of_mode(attribute, mode));
    attributes::check_total_size(&found.all)?;
    Ok(found)
}

/// Adds a list, and replaces an existing one.
fn put(attributes: &mut Vec<Attribute>, name: &[u8], list: &List) {
    let (index, rest) = xattr::split_name(name).expect("lists have numbers of their own");
    attributes.retain(|other| !other.is_named(index, rest));
    attributes.push(Attribute::new(index, rest, &list.stored()));
}

#[cfg(test)]
mod tests {
    use super::attributes;
    use crate::build::rules::{Rules, name_patterns};

    /// An entry preceded by one pax record.
    fn entry(record: &str) -> pext4_tar::Entry {
        let mut archive = tar::Builder::new(Vec::new());
        let (key, value) = record.split_once('=').unwrap();
        archive
            .append_pax_extensions([(key, value.as_bytes())])
            .unwrap();
        let mut header = tar::Header::new_ustar();
        header.set_size(0);
        header.set_cksum();
        archive.append_data(&mut header, "file", &b""[..]).unwrap();
        let bytes = archive.into_inner().unwrap();
        let mut reader = pext4_tar::Reader::new(Bytes(&bytes));
        reader
            .next_entry()
            .unwrap_or_else(|_| panic!("{record}"))
            .unwrap()
    }

    struct Bytes<'a>(&'a [u8]);

    impl pext4_tar::Blocks for Bytes<'_> {
        type Error = ();

        fn read_block(&mut self, block: &mut [u8; pext4_tar::BLOCK]) -> Result<bool, ()> {
            let Some((first, rest)) = self.0.split_first_chunk() else {
                return Ok(false);
            };
            (*block, self.0) = (*first, rest);
            Ok(true)
        }

        fn skip(&mut self, _: u64) -> Result<bool, ()> {
            Ok(true)
        }
    }

    #[test]
    fn lists_that_say_only_the_mode_are_left_out() {
        for (list, kept) in [
            ("user::rwx,group::r-x,other::---", 0),
            ("user::rwx,user:7:r--,group::r-x,mask::r-x,other::---", 1),
            ("user::rwx,group::r-x,mask::r-x,other::---", 1),
        ] {
            let entry = entry(&format!("SCHILY.acl.access={list}"));
            let found = attributes(&entry, &Rules::default()).unwrap();
            assert_eq!(found.all.len(), kept, "{list}");
            assert_eq!(found.access.unwrap().permissions(), 0o750, "{list}");
        }
    }

    #[test]
    fn excluded_attributes_may_be_invalid() {
        let rules = |patterns: &[&str]| Rules {
            exclude_attributes: name_patterns(
                &patterns
                    .iter()
                    .copied()
                    .map(str::to_owned)
                    .collect::<Vec<_>>(),
            )
            .unwrap(),
            ..Rules::default()
        };
        for (record, name, says) in [
            (
                "SCHILY.acl.access=user:lisa:rwx",
                "system.posix_acl_access",
                "`lisa`",
            ),
            (
                "SCHILY.acl.default=nonsense",
                "system.posix_acl_*",
                "`nonsense`",
            ),
            (
                "SCHILY.xattr.system.nfs4_acl=x",
                "system.nfs4_acl",
                "nfs4_acl",
            ),
            ("LIBARCHIVE.xattr.user.%61=d*g", "user.a", "base64"),
        ] {
            let entry = entry(record);
            let told = attributes(&entry, &rules(&[])).err().expect(record);
            assert!(told.contains(says), "{told}");
            let found = attributes(&entry, &rules(&[name])).expect(record);
            assert!(found.all.is_empty() && found.access.is_none(), "{record}");
        }
    }
}
