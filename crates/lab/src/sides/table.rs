//! What is mounted where, by `/proc/self/mountinfo`.

use std::path::{Path, PathBuf};

/// The type of the file system a path without links is on.
pub fn type_of(path: &Path) -> Option<String> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    type_in(&table, path)
}

/// Whether a mount is on this directory.
pub fn is_mounted(directory: &Path) -> bool {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    mounts(&table).any(|(at, _)| at == directory)
}

/// The longest directory above the path counts, of several on it the latest.
fn type_in(table: &str, path: &Path) -> Option<String> {
    mounts(table)
        .filter(|(at, _)| path.starts_with(at))
        .max_by_key(|(at, _)| at.components().count())
        .map(|(_, kind)| kind)
}

/// Directories and types. Blanks in names stay as the table writes them: ours have none.
fn mounts(table: &str) -> impl Iterator<Item = (PathBuf, String)> + '_ {
    table.lines().filter_map(|line| {
        let (fields, rest) = line.split_once(" - ")?;
        let directory = fields.split(' ').nth(4)?;
        Some((PathBuf::from(directory), rest.split(' ').next()?.to_owned()))
    })
}

#[cfg(test)]
mod tests {
    use super::{Path, type_in};

    const TABLE: &str = "\
21 1 254:0 / / rw - ext4 /dev/vda rw
22 21 0:5 / /dev/shm rw,nosuid shared:2 - tmpfs tmpfs rw
23 21 7:0 / /mnt rw - xfs /dev/loop0 rw
24 21 7:1 / /mnt rw - fuse.pext4 /images/a rw
";

    #[test]
    fn the_nearest_and_latest_mount_counts() {
        let kind = |path| type_in(TABLE, Path::new(path));
        assert_eq!(kind("/home/me").as_deref(), Some("ext4"));
        assert_eq!(kind("/dev/shm/x").as_deref(), Some("tmpfs"));
        assert_eq!(kind("/mnt/a/b").as_deref(), Some("fuse.pext4"));
        assert_eq!(kind("/mntx").as_deref(), Some("ext4"));
        assert_eq!(type_in("", Path::new("/")), None);
    }
}
