//! The table of mounts.

use std::path::Path;

use pext4_block::mountinfo::{self, Mount};

/// The type of the file system that contains a path without symbolic links.
pub fn type_of(path: &Path) -> Option<String> {
    nearest(mountinfo::mounts().ok()?, path)
}

/// Whether this directory is a mount point.
pub fn is_mounted(directory: &Path) -> bool {
    let mounts = mountinfo::mounts().unwrap_or_default();
    mounts.iter().any(|mount| mount.directory == directory)
}

/// The type of the mount with the longest matching directory; the latest if there are several.
fn nearest(mounts: Vec<Mount>, path: &Path) -> Option<String> {
    let above = mounts
        .into_iter()
        .filter(|mount| path.starts_with(&mount.directory));
    let nearest = above.max_by_key(|mount| mount.directory.components().count());
    nearest.map(|mount| mount.file_system_type)
}

#[cfg(test)]
mod tests {
    use super::{Mount, Path, nearest};

    fn mount((directory, kind): (&str, &str)) -> Mount {
        Mount {
            device: (0, 1),
            directory: directory.into(),
            file_system_type: kind.to_owned(),
            source: "somewhere".into(),
            read_only: false,
            user: None,
        }
    }

    #[test]
    fn the_nearest_and_latest_mount_counts() {
        let mounts = [
            ("/", "ext4"),
            ("/dev/shm", "tmpfs"),
            ("/mnt", "xfs"),
            ("/mnt", "fuse.pext4"),
        ];
        let kind = |path| nearest(mounts.map(mount).to_vec(), Path::new(path));
        assert_eq!(kind("/home/me").as_deref(), Some("ext4"));
        assert_eq!(kind("/dev/shm/x").as_deref(), Some("tmpfs"));
        assert_eq!(kind("/mnt/a/b").as_deref(), Some("fuse.pext4"));
        assert_eq!(kind("/mntx").as_deref(), Some("ext4"));
        assert_eq!(nearest(Vec::new(), Path::new("/")), None);
    }
}
