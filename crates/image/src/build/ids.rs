//! Maps user and group IDs in attribute values. If a mapping changes the IDs of owners, it also
//! changes those in access control lists and capabilities. This happens once for each set of
//! attributes.

use std::collections::HashSet;

use pext4_ondisk::acl;
use pext4_ondisk::xattr::{self, Attribute};

use super::attributes::value_of;
use super::error::{Error, Result};
use super::mapping::Map;
use super::tree::{NONE, Tree};

const CAPABILITY: &[u8] = b"security.capability";
/// The field of a capability that names the root user of its namespace. It is last, so its end is
/// the length of such a capability (`capabilities(7)`).
const NAMESPACE_OWNER: std::ops::Range<usize> = 20..24;
/// The last byte of a capability's first word, its version: with and without this field.
const WITH_OWNER: u8 = 3;
const WITHOUT_OWNER: u8 = 2;

/// Maps the IDs in all attributes of a tree according to a mapping.
pub(super) fn map(tree: &mut Tree, mapping: &Map) -> Result<()> {
    if !mapping.maps_ids() {
        return Ok(());
    }
    // Found once, and only if it is needed.
    let mut users = None;
    for set in 1..tree.sets.len() {
        let set = u32::try_from(set).expect("sets are counted in 32 bits");
        let old = tree.sets.get(set);
        let changed = old.iter().map(|one| mapped(one, mapping));
        match changed.collect::<std::result::Result<Vec<_>, _>>() {
            Ok(changed) => tree.sets.change(set, &changed),
            Err(problem) => {
                // A set that only removed files have does not matter.
                let users = users.get_or_insert_with(|| tree.users_of_sets());
                let user = users[set as usize];
                if user != NONE {
                    return Err(Error::unsound(tree.shown_path(user), problem));
                }
            }
        }
    }
    Ok(())
}

fn mapped(attribute: &Attribute, mapping: &Map) -> std::result::Result<Attribute, String> {
    let value = value_of(attribute);
    let name = xattr::full_name(attribute.index, &attribute.name).unwrap_or_default();
    let changed = if acl::is_list(&name) {
        list(value, mapping)?
    } else if name == CAPABILITY {
        capability(value, mapping)
    } else {
        None
    };
    Ok(match changed {
        Some(value) => Attribute::new(attribute.index, &attribute.name, &value),
        None => attribute.clone(),
    })
}

/// The mapped access control list, or `None` if its IDs do not change. The entries are sorted by
/// ID.
fn list(value: &[u8], mapping: &Map) -> std::result::Result<Option<Vec<u8>>, String> {
    let Ok(old) = acl::decode(value) else {
        return Ok(None);
    };
    let mut entries = old.clone();
    for entry in &mut entries {
        entry.id = match entry.tag {
            acl::USER => mapping.uid(entry.id),
            acl::GROUP => mapping.gid(entry.id),
            _ => entry.id,
        };
    }
    if entries == old {
        return Ok(None);
    }
    let mut named = HashSet::new();
    for entry in entries.iter().filter(|entry| entry.is_named()) {
        if !named.insert((entry.tag, entry.id)) {
            return Err(format!(
                "its access list names {} twice once the mapping has changed ids; map them to different ones, \
                 or leave the list out by --exclude-xattr 'system.posix_acl_*'",
                entry.id
            ));
        }
    }
    entries.sort_by_key(|entry| (entry.tag, entry.id));
    Ok(Some(acl::encode(&entries)))
}

/// The mapped capability, or `None` if it does not change: only one for the namespace of a user
/// whose ID changes does. A capability for user 0 applies to everybody, like one without a user.
fn capability(value: &[u8], mapping: &Map) -> Option<Vec<u8>> {
    let mut value = value.to_vec();
    if value.len() != NAMESPACE_OWNER.end || value[3] != WITH_OWNER {
        return None;
    }
    let (words, _) = value[NAMESPACE_OWNER].as_chunks::<4>();
    let old = u32::from_le_bytes(words[0]);
    match mapping.uid(old) {
        new if new == old => return None,
        0 => {
            value.truncate(NAMESPACE_OWNER.start);
            value[3] = WITHOUT_OWNER;
        }
        new => value[NAMESPACE_OWNER].copy_from_slice(&new.to_le_bytes()),
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::super::attributes::to_stored;
    use super::super::mapping::Map;
    use super::super::tree::{Metadata, ROOT, Tree};
    use super::{map, value_of};

    /// The attribute values after the mapping.
    fn changed(attributes: &[(&[u8], &[u8])], lines: &str) -> Result<Vec<Vec<u8>>, String> {
        let mut tree = Tree::new(&Metadata::default());
        let set = attributes
            .iter()
            .map(|(name, value)| to_stored(name, value).expect("sound attributes"));
        let set = tree.sets.intern(set.collect());
        tree.node_mut(ROOT).attributes = set;
        let mapping = Map::parse(lines).expect("sound lines");
        map(&mut tree, &mapping).map_err(|error| error.to_string())?;
        let values = tree.sets.get(set);
        Ok(values.iter().map(|one| value_of(one).to_vec()).collect())
    }

    #[test]
    fn capabilities_follow_the_owner_of_their_namespace() {
        let capability = |version: u8, owner: &[u8]| {
            let mut value = vec![1, 0, 0, version, 0, 32];
            value.resize(20, 0);
            [&value, owner].concat()
        };
        let of_a_thousand = capability(3, &1000u32.to_le_bytes());
        for (lines, expected) in [
            ("uid 1000 7", capability(3, &7u32.to_le_bytes())),
            ("uid 1000 0", capability(2, &[])),
            ("gid 1000 7", of_a_thousand.clone()),
            ("uid 0 7", of_a_thousand.clone()),
        ] {
            let found = changed(&[(b"security.capability", &of_a_thousand)], lines);
            assert_eq!(found, Ok(vec![expected]), "{lines}");
        }
        for other in [capability(2, &[]), capability(3, &[]), vec![], vec![3; 24]] {
            let found = changed(&[(b"security.capability", &other)], "uid 0 7");
            assert_eq!(found, Ok(vec![other]));
        }
    }

    /// A list for user 1000 and another one.
    fn list_with(other: u32) -> Vec<u8> {
        let mut list = vec![2, 0, 0, 0];
        for (tag, id) in [
            (1u16, u32::MAX),
            (2, other),
            (2, 1000),
            (4, u32::MAX),
            (32, 0),
        ] {
            list.extend([tag.to_le_bytes(), [4, 0]].concat());
            list.extend(id.to_le_bytes());
        }
        list
    }

    #[test]
    fn lists_that_only_removed_files_have_do_not_matter() {
        let mut tree = Tree::new(&Metadata::default());
        tree.make_index();
        let lists = ["uid 1000 5", "uid 5 6"].map(|lines| Map::parse(lines).expect("sound"));
        let mut add = |name: &[u8], other: u32| {
            let name_of_list = b"system.posix_acl_access";
            let list = to_stored(name_of_list, &list_with(other)).expect("a sound list");
            let metadata = Metadata {
                mode: 0o100_644,
                attributes: tree.sets.intern(vec![list]),
                ..Metadata::default()
            };
            tree.put(ROOT, name, &metadata).expect("room")
        };
        let _replaced = add(b"file", 5);
        add(b"file", 6);
        map(&mut tree, &lists[0]).expect("nobody has the first list");
        let told = map(&mut tree, &lists[1]).expect_err("the second names 6 twice");
        assert!(told.to_string().starts_with("/file: "), "{told}");
    }

    #[test]
    fn a_list_with_duplicate_mapped_ids_is_refused() {
        let list = list_with(5);
        let told = changed(&[(b"system.posix_acl_default", &list)], "uid 1000 5").unwrap_err();
        assert!(
            told.starts_with("/: its access list names 5 twice"),
            "{told}"
        );
    }
}
