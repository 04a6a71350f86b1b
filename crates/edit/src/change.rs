//! The changes of a session, one function a verb.
//!
//! Paths are bytes and begin at the image's root, with or without a leading slash. Symbolic links
//! on the way are followed inside the image. A link at the end of a path is followed only where the
//! verb says so. If the destination of a verb is an existing directory, the file goes into it under
//! its own name, as with the commands of the same names.

mod attributes;
mod create;
mod import;
mod names;
mod paths;

use std::io::Read;
use std::path::PathBuf;

use pext4_fs::{DeviceNumber, FileType, Time};

use crate::error::Result;
use crate::flags::FlagChange;
use crate::mode::ModeChange;
use crate::session::EditSession;
use crate::tree_writer::Overrides;

/// Whether a new link is created inside a directory that its path leads to, under the name of its
/// target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IntoDirectory {
    /// In every such directory.
    #[default]
    Always,
    /// Unless the path ends in a symbolic link to the directory.
    NotThroughLinks,
    /// Never: the path is that of the link itself.
    Never,
}

/// One change.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Change {
    /// Copies a file or a tree of the host into the image, with attributes, extended attributes,
    /// holes and hard links. The image itself is left out of a tree, which
    /// [`EditSession::notes`] tells.
    Put {
        /// The path on the host.
        from: PathBuf,
        /// The destination in the image.
        to: Vec<u8>,
        /// An existing directory at the destination is the tree's top, not its parent.
        no_target_directory: bool,
        /// Whether extended attributes are copied.
        xattrs: bool,
        /// What differs from the host's file.
        overrides: Overrides,
    },
    /// Creates a file with this content. Replaces an existing file.
    Write {
        /// The file.
        path: Vec<u8>,
        /// Its content.
        content: Vec<u8>,
        /// Permissions and owner; by default 0644 and root.
        overrides: Overrides,
    },
    /// Copies a file or a tree with all its attributes, within the image or from another one.
    Copy {
        /// The other image; `None` for this one.
        image: Option<PathBuf>,
        /// The path in that image.
        from: Vec<u8>,
        /// The destination in this image.
        to: Vec<u8>,
        /// An existing directory at the destination is the tree's top, not its parent.
        no_target_directory: bool,
        /// Whether a directory is copied. If not, a directory is an error.
        recursive: bool,
    },
    /// Removes a name. A symbolic link is not followed.
    Remove {
        /// The path.
        path: Vec<u8>,
        /// Whether a directory is removed with everything in it. If not, a directory is an error.
        recursive: bool,
        /// A missing file is no error.
        force: bool,
    },
    /// Moves a name.
    Rename {
        /// The old path.
        from: Vec<u8>,
        /// The new path, or an existing directory into which the file is moved.
        to: Vec<u8>,
        /// The file is not moved into an existing directory, but replaces it if it is empty.
        no_target_directory: bool,
        /// If the destination exists, nothing is moved, and that is no error.
        no_clobber: bool,
    },
    /// Creates a directory.
    MakeDirectory {
        /// The directory.
        path: Vec<u8>,
        /// Also creates missing parents. An existing directory is no error then.
        parents: bool,
        /// Permissions of the directory itself; by default 0755.
        permissions: Option<u16>,
    },
    /// Creates another name for a file.
    Link {
        /// The file; a symbolic link is not followed.
        target: Vec<u8>,
        /// The new name.
        path: Vec<u8>,
        /// Replaces an existing file.
        force: bool,
        /// Whether it is created inside an existing directory.
        into: IntoDirectory,
    },
    /// Creates a symbolic link.
    Symlink {
        /// Its target, stored unchanged.
        target: Vec<u8>,
        /// The link.
        path: Vec<u8>,
        /// Replaces an existing file.
        force: bool,
        /// Whether it is created inside an existing directory.
        into: IntoDirectory,
    },
    /// Creates a device, a fifo or a socket.
    MakeNode {
        /// The path.
        path: Vec<u8>,
        /// Its type.
        kind: FileType,
        /// The number of a device.
        device: DeviceNumber,
        /// Permissions; by default 0644.
        permissions: Option<u16>,
    },
    /// Changes permissions; a symbolic link is followed.
    SetMode {
        /// The file.
        path: Vec<u8>,
        /// The change.
        mode: ModeChange,
        /// Also changes everything below the path, except symbolic links.
        recursive: bool,
    },
    /// Changes the flags that `chattr` changes, of files and directories; a symbolic link is
    /// followed.
    SetFlags {
        /// The file.
        path: Vec<u8>,
        /// The change.
        flags: FlagChange,
        /// Also changes all files and directories below the path.
        recursive: bool,
    },
    /// Changes owner and group.
    SetOwner {
        /// The file.
        path: Vec<u8>,
        /// The new owner, if it changes.
        uid: Option<u32>,
        /// The new group, if it changes.
        gid: Option<u32>,
        /// Also changes everything below the path. A symbolic link is not followed then.
        recursive: bool,
        /// Changes a symbolic link itself.
        no_follow: bool,
    },
    /// Sets access and modification time; creates an empty file if there is none.
    Touch {
        /// The file; a symbolic link is followed.
        path: Vec<u8>,
        /// The time; by default the present.
        time: Option<Time>,
        /// Creates no file; a missing one is no error.
        no_create: bool,
    },
    /// Sets an extended attribute. An access control list has the form of setxattr(2).
    SetXattr {
        /// The file; a symbolic link is followed.
        path: Vec<u8>,
        /// The full name, as in `user.note`.
        name: Vec<u8>,
        /// The value.
        value: Vec<u8>,
    },
    /// Removes an extended attribute.
    RemoveXattr {
        /// The file; a symbolic link is followed.
        path: Vec<u8>,
        /// The full name.
        name: Vec<u8>,
    },
}

impl EditSession {
    /// Applies a change. After an error the caller must drop the session: part of the change may
    /// have been applied to it.
    ///
    /// # Errors
    ///
    /// The errors of the command of the same name, with the path.
    pub fn apply(&mut self, change: &Change) -> Result<()> {
        let _pinned = self.pin_thread();
        match change {
            Change::Put {
                from,
                to,
                no_target_directory,
                xattrs,
                overrides,
            } => self.put(from, to, *no_target_directory, *xattrs, *overrides),
            Change::Write {
                path,
                content,
                overrides,
            } => self.write(path, content, *overrides),
            Change::Copy {
                image,
                from,
                to,
                no_target_directory,
                recursive,
            } => self.copy(image.as_deref(), from, to, *no_target_directory, *recursive),
            Change::Remove {
                path,
                recursive,
                force,
            } => self.remove(path, *recursive, *force),
            Change::Rename {
                from,
                to,
                no_target_directory,
                no_clobber,
            } => self.rename(from, to, *no_target_directory, *no_clobber),
            Change::MakeDirectory {
                path,
                parents,
                permissions,
            } => self.make_directory(path, *parents, *permissions),
            Change::Link {
                target,
                path,
                force,
                into,
            } => self.link(target, path, *force, *into),
            Change::Symlink {
                target,
                path,
                force,
                into,
            } => self.symlink(target, path, *force, *into),
            Change::MakeNode {
                path,
                kind,
                device,
                permissions,
            } => self.make_node(path, *kind, *device, *permissions),
            Change::SetMode { .. }
            | Change::SetFlags { .. }
            | Change::SetOwner { .. }
            | Change::Touch { .. }
            | Change::SetXattr { .. }
            | Change::RemoveXattr { .. } => self.apply_to_attributes(change),
        }
    }

    /// The part of [`EditSession::apply`] for changes of attributes.
    fn apply_to_attributes(&mut self, change: &Change) -> Result<()> {
        match change {
            Change::SetMode {
                path,
                mode,
                recursive,
            } => self.set_mode(path, mode, *recursive),
            Change::SetFlags {
                path,
                flags,
                recursive,
            } => self.set_flags(path, flags, *recursive),
            Change::SetOwner {
                path,
                uid,
                gid,
                recursive,
                no_follow,
            } => self.set_owner(path, (*uid, *gid), *recursive, *no_follow),
            Change::Touch {
                path,
                time,
                no_create,
            } => self.touch(path, *time, *no_create),
            Change::SetXattr { path, name, value } => self.set_xattr(path, name, value),
            Change::RemoveXattr { path, name } => self.remove_xattr(path, name),
            Change::Put { .. }
            | Change::Write { .. }
            | Change::Copy { .. }
            | Change::Remove { .. }
            | Change::Rename { .. }
            | Change::MakeDirectory { .. }
            | Change::Link { .. }
            | Change::Symlink { .. }
            | Change::MakeNode { .. } => unreachable!("`apply` does these itself"),
        }
    }
}

/// The last name of a path; empty for the root.
pub(crate) fn last_name(path: &[u8]) -> &[u8] {
    path.split(|&byte| byte == b'/')
        .rfind(|name| !name.is_empty())
        .unwrap_or_default()
}

/// Reads until the buffer is full or the stream ends.
pub(crate) fn fill(stream: &mut dyn Read, into: &mut [u8]) -> std::io::Result<usize> {
    let mut done = 0;
    while done < into.len() {
        match stream.read(&mut into[done..]) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}
