//! The attributes by which a mount reports on itself, and one by which it is changed.

use pext4_fs::Volume;

/// The attribute whose value is a report of the mount as text. The root has it, as has every file
/// without an own attribute of this name; `listxattr` does not list it.
pub const REPORT: &str = "user.pext4.report";
/// The same report as JSON.
pub const REPORT_JSON: &str = "user.pext4.report.json";
/// The most bytes of a value, as Linux limits them.
pub const MAX_VALUE: usize = 64 << 10;
/// What the server has reported, a line each, the oldest first (see [`ErrorLog`](crate::ErrorLog)).
pub const MESSAGES: &str = "user.pext4.messages";
/// Whether block searches use the index of groups: 0 or 1. Every user who may write to the root
/// can set it there.
pub const OPTIMIZE_SCAN: &str = "user.pext4.mb_optimize_scan";
/// The start of the names that [`groups_from`] makes.
const GROUPS: &str = "user.pext4.groups.json.";

/// The attribute whose value is a JSON list of groups, the first of them `first`: as many as fit
/// into a value, none if there are no more.
#[must_use]
pub fn groups_from(first: u32) -> String {
    format!("{GROUPS}{first}")
}

/// The first group that an attribute of this name lists, if it is one of [`groups_from`].
pub(crate) fn first_group(name: &[u8]) -> Option<u32> {
    let digits = name.strip_prefix(GROUPS.as_bytes())?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// The list of groups from `first` on, as many as fit into `room` bytes.
pub(crate) fn list_groups(volume: &Volume, first: u32, room: usize) -> String {
    let mut list = "[".to_owned();
    for group in (first..u32::MAX).map_while(|number| volume.group_report(number)) {
        let group = group.to_json();
        // With a comma and the end.
        if list.len() + group.len() + 2 > room {
            break;
        }
        if list.len() > 1 {
            list.push(',');
        }
        list.push_str(&group);
    }
    list.push(']');
    list
}

#[cfg(test)]
mod tests {
    use super::{first_group, groups_from, list_groups};
    use crate::testing;

    #[test]
    fn the_name_of_a_list_says_where_it_begins() {
        assert_eq!(first_group(groups_from(131_071).as_bytes()), Some(131_071));
        assert_eq!(first_group(b"user.pext4.groups.json."), None);
        assert_eq!(first_group(b"user.pext4.report.json"), None);
    }

    #[test]
    fn lists_have_all_groups_and_none_twice() {
        let volume = testing::volume();
        let report = |number| volume.group_report(number).map(|group| group.to_json());
        let (first, second) = (report(0).expect("a group"), report(1).expect("another"));
        assert_eq!(report(2), None);
        let room = first.len() + 3 + second.len();
        let both = format!("[{first},{second}]");
        assert_eq!(list_groups(&volume, 0, room), both);
        assert_eq!(list_groups(&volume, 0, room - 1), format!("[{first}]"));
        assert_eq!(list_groups(&volume, 1, room), format!("[{second}]"));
        assert_eq!(list_groups(&volume, 2, room), "[]");
        assert_eq!(list_groups(&volume, u32::MAX, room), "[]");
    }
}
