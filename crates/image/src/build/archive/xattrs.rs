//! The extended attributes of an archive's entry, including access control lists.

use pext4_ondisk::xattr::Attribute;
use pext4_tar::{Entry, checked};

use super::super::attributes::{self, MAX_TOTAL_BYTES};
use super::super::rules::Rules;

/// The extended attributes of an entry.
pub(super) struct Attributes {
    pub all: Vec<Attribute>,
    /// The permissions (0777) that follow from the access list, if the entry has it as text.
    pub permissions: Option<u16>,
}

/// The attributes of an entry, except those that the rules exclude, which may be invalid. A list
/// that says no more than the mode is left out.
pub(super) fn attributes(entry: &Entry, rules: &Rules) -> Result<Attributes, String> {
    let found = checked::attributes(entry, MAX_TOTAL_BYTES, |name| {
        rules.excludes_attribute(name)
    })
    .map_err(|problem| format!("{problem}; {}", problem.way_out()))?;
    let all = found.all.iter();
    let all = all.map(|(name, value)| attributes::of_stored(name, value));
    let mut all = all.collect::<Result<Vec<_>, _>>()?;
    let mode = found.permissions.unwrap_or(entry.permissions);
    all.retain(|attribute| !attributes::is_list_of_mode(attribute, mode));
    Ok(Attributes {
        all,
        permissions: found.permissions,
    })
}

#[cfg(test)]
mod tests {
    use super::attributes;
    use crate::build::patterns::AttributePatterns;
    use crate::build::rules::Rules;

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

        fn read_block(&mut self, block: &mut [u8; pext4_tar::BLOCK]) -> Result<usize, ()> {
            let Some((first, rest)) = self.0.split_first_chunk() else {
                return Ok(0);
            };
            (*block, self.0) = (*first, rest);
            Ok(pext4_tar::BLOCK)
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
            assert_eq!(found.permissions, Some(0o750), "{list}");
        }
    }

    #[test]
    fn excluded_attributes_may_be_invalid() {
        let rules = |patterns: &[&str]| Rules {
            exclude_attributes: AttributePatterns::parse(
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
            assert!(told.contains("--exclude-xattr"), "{told}");
            let found = attributes(&entry, &rules(&[name])).expect(record);
            assert!(
                found.all.is_empty() && found.permissions.is_none(),
                "{record}"
            );
        }
    }
}
