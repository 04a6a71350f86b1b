//! Finds our mounts in the system's table.

use std::io;
use std::path::{Path, PathBuf};

pub use pext4_block::mountinfo::{Mount, mounts};

use super::FILE_SYSTEM_TYPE;

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

/// Our mount that is on top of `directory`, a path without symbolic links.
///
/// # Errors
///
/// The table cannot be read.
pub(super) fn ours_on(directory: &Path) -> io::Result<Option<Mount>> {
    Ok(top_of(directory)?.filter(is_ours))
}

/// The mount that is on top of `directory`, a path without symbolic links.
///
/// # Errors
///
/// The table cannot be read.
fn top_of(directory: &Path) -> io::Result<Option<Mount>> {
    let mut mounts = mounts()?.into_iter();
    Ok(mounts.rfind(|mount| mount.directory == directory))
}

/// The directories on which the mount `made`, as it was when it was made, is on top now.
pub(super) fn places_of(made: &Mount, mounts: &[Mount]) -> Vec<PathBuf> {
    // The kernel reuses a device number after its mount has ended.
    let is_it = |mount: &Mount| {
        is_ours(mount) && mount.device == made.device && mount.source == made.source
    };
    let is_place = |&place: &usize| is_it(&mounts[place]) && !is_covered(mounts, place);
    let places = (0..mounts.len()).filter(is_place);
    places
        .map(|place| mounts[place].directory.clone())
        .collect()
}

/// Whether `fusectl`, which shows the connections, is mounted on this folder.
pub(super) fn shows_connections(folder: &Path) -> bool {
    let shows = |mount: &Mount| mount.file_system_type == "fusectl" && mount.directory == folder;
    mounts().is_ok_and(|mounts| mounts.iter().any(shows))
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::{Mount, places_of};

    fn mount(minor: u32, directory: &str, file_system_type: &str, source: &str) -> Mount {
        Mount {
            device: (0, minor),
            directory: PathBuf::from(directory),
            file_system_type: file_system_type.to_owned(),
            source: PathBuf::from(source),
            read_only: false,
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
    fn a_number_that_is_used_again_is_another_mount() {
        let made = mount(7, "/a", "fuse.pext4", "/image");
        let table = [mount(7, "/a", "fuse.pext4", "/other")];
        assert!(places_of(&made, &table).is_empty());
    }
}
