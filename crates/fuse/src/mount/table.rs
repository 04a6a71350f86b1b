//! Finds our mounts in the system's table.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use pext4_block::mountinfo::mounts_of;
pub use pext4_block::mountinfo::{Mount, mounts};

use super::{FILE_SYSTEM_TYPE, Source};

/// Whether pext4 serves a mount.
#[must_use]
pub fn is_ours(mount: &Mount) -> bool {
    mount.file_system_type == FILE_SYSTEM_TYPE
}

/// Whether a later mount is on the same directory as the one at this place of the table.
#[must_use]
pub fn is_covered(mounts: &[Mount], place: usize) -> bool {
    let mut later = mounts[place + 1..].iter();
    later.any(|other| other.directory == mounts[place].directory)
}

/// The mount of `source` that was just made on `directory`, a path without symbolic links. Another
/// server may have mounted there as well.
pub(super) fn made_on(directory: &Path, source: &Source) -> Option<Mount> {
    latest_of(source, directory, mounts().ok()?)
}

fn latest_of(source: &Source, directory: &Path, mounts: Vec<Mount>) -> Option<Mount> {
    let source = source.text();
    let is_it =
        |mount: &Mount| is_ours(mount) && mount.directory == directory && mount.source == source;
    mounts.into_iter().rfind(is_it)
}

/// The first of the mounts that shows the same file system as `mount`, which need not be mounted
/// any more: the directory may have been bound to another place as well.
#[must_use]
pub fn same_elsewhere<'a>(mount: &Mount, mounts: &'a [Mount]) -> Option<&'a Mount> {
    mounts.iter().find(|other| is_same(mount, other))
}

/// A process that sees the file system of `mount` mounted in another mount namespace than that of
/// this process. A mount is copied into every new namespace, and an unmounting need not reach the
/// copy. `None` also if such processes may not be looked at.
#[must_use]
pub fn in_another_namespace(mount: &Mount) -> Option<u32> {
    let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/mnt")).ok();
    let mut seen = HashSet::from([namespace("self")?]);
    super::processes().find(|process| {
        let is_new = namespace(&process.to_string()).is_some_and(|other| seen.insert(other));
        let mounts = || mounts_of(*process).unwrap_or_default();
        is_new && same_elsewhere(mount, &mounts()).is_some()
    })
}

/// Whether two mounts show the same file system of pext4. The kernel reuses a device number after
/// its mount has ended, so that the source must be the same too.
fn is_same(made: &Mount, other: &Mount) -> bool {
    is_ours(other) && other.device == made.device && other.source == made.source
}

/// The directories on which the mount `made`, as it was when it was made, is on top now.
pub(super) fn places_of(made: &Mount, mounts: &[Mount]) -> Vec<PathBuf> {
    let is_place = |&place: &usize| is_same(made, &mounts[place]) && !is_covered(mounts, place);
    let places = (0..mounts.len()).filter(is_place);
    places
        .map(|place| mounts[place].directory.clone())
        .collect()
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::{Mount, Source, latest_of, places_of};

    fn mount(minor: u32, directory: &str, file_system_type: &str, source: &str) -> Mount {
        Mount {
            device: (0, minor),
            directory: PathBuf::from(directory),
            file_system_type: file_system_type.to_owned(),
            source: PathBuf::from(source),
            read_only: false,
            user: None,
        }
    }

    #[test]
    fn a_mount_is_found_wherever_it_is_on_top() {
        let made = mount(7, "/old/a", "fuse.pext4", "/image");
        let table = [
            mount(1, "/", "ext4", "/dev/root"),
            mount(7, "/new/a", "fuse.pext4", "/image"),
            mount(7, "/bound", "fuse.pext4", "/image"),
            mount(7, "/covered", "fuse.pext4", "/image"),
            mount(8, "/covered", "tmpfs", "none"),
            mount(9, "/old/a", "fuse.pext4", "/other"),
        ];
        let found = places_of(&made, &table);
        assert_eq!(found, [Path::new("/new/a"), Path::new("/bound")]);
    }

    #[test]
    fn another_servers_mount_on_the_directory_is_not_taken_for_the_own_one() {
        let own = mount(7, "/a", "fuse.pext4", "/image");
        let table = vec![own.clone(), mount(8, "/a", "fuse.pext4", "/other")];
        let source = Source {
            file: PathBuf::from("/image"),
            offset: 0,
        };
        assert_eq!(latest_of(&source, Path::new("/a"), table), Some(own));
    }

    #[test]
    fn a_number_that_is_used_again_is_another_mount() {
        let made = mount(7, "/a", "fuse.pext4", "/image");
        let table = [mount(7, "/a", "fuse.pext4", "/other")];
        assert!(places_of(&made, &table).is_empty());
    }
}
