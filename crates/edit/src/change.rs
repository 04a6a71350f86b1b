//! The changes of a session: what each does, one function a verb.
//!
//! Paths are bytes and begin at the image's root, with or without a leading slash. Symbolic links on
//! the way are followed inside the image; at the end of a path only where the verb says so. Where a
//! verb takes a destination that is a directory, the file goes into it under its own name, as with
//! the commands of the same names.

mod anew;
mod attributes;
mod bring;
mod names;
mod spot;

use std::io::Read;
use std::path::PathBuf;

use pext4_fs::{DeviceNumber, FileType, Time};

use crate::error::Result;
use crate::mode::ModeChange;
use crate::plant::Overrides;
use crate::session::EditSession;

/// Which directories a link goes into, under the name of its target, where its path leads to one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Into {
    /// Any.
    #[default]
    Any,
    /// Not those that a symbolic link leads to.
    NotThroughLinks,
    /// None: the path is the link's own.
    None,
}

/// One change.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Change {
    /// Brings a file or a tree of the host into the image, with attributes, extended attributes,
    /// holes and hard links.
    Put {
        /// On the host.
        from: PathBuf,
        /// In the image.
        to: Vec<u8>,
        /// A destination that is a directory is the tree's top itself.
        exactly: bool,
        /// Whether extended attributes come along.
        xattrs: bool,
        /// What is to be different from the host's file.
        overrides: Overrides,
    },
    /// Makes a file with this content, in place of what is there.
    Write {
        /// The file.
        path: Vec<u8>,
        /// Its content.
        content: Vec<u8>,
        /// Permissions and owner; 0644 and root where nothing is said.
        overrides: Overrides,
    },
    /// Copies a file or a tree within the image, or from another one, with everything.
    Copy {
        /// The other image.
        image: Option<PathBuf>,
        /// In that image.
        from: Vec<u8>,
        /// In this image.
        to: Vec<u8>,
        /// A destination that is a directory is the tree's top itself.
        exactly: bool,
        /// Whether directories are copied.
        recursive: bool,
    },
    /// Removes a name; a symbolic link is removed itself.
    Remove {
        /// What.
        path: Vec<u8>,
        /// Directories with all that is in them.
        recursive: bool,
        /// What is not there is no error.
        force: bool,
    },
    /// Moves a name.
    Rename {
        /// What.
        from: Vec<u8>,
        /// Where to; a directory that is there takes it in.
        to: Vec<u8>,
        /// A directory that is there is replaced if it is empty, and does not take it in.
        exactly: bool,
        /// Where something is at the destination, nothing is moved, and that is no error.
        keep: bool,
    },
    /// Makes a directory.
    MakeDirectory {
        /// Which.
        path: Vec<u8>,
        /// With the directories it lies in; one that is there is no error.
        parents: bool,
        /// Permissions of the directory itself; 0755 where nothing is said.
        permissions: Option<u16>,
    },
    /// Makes another name for a file.
    Link {
        /// The file; a symbolic link is not followed.
        target: Vec<u8>,
        /// The name.
        path: Vec<u8>,
        /// In place of what is there.
        force: bool,
        /// Which directories take it in.
        into: Into,
    },
    /// Makes a symbolic link.
    Symlink {
        /// Where it leads, as it is.
        target: Vec<u8>,
        /// The link.
        path: Vec<u8>,
        /// In place of what is there.
        force: bool,
        /// Which directories take it in.
        into: Into,
    },
    /// Makes a device, a fifo or a socket.
    MakeNode {
        /// Which.
        path: Vec<u8>,
        /// What kind.
        kind: FileType,
        /// For devices.
        device: DeviceNumber,
        /// Permissions; 0644 where nothing is said.
        permissions: Option<u16>,
    },
    /// Changes permissions; a symbolic link is followed.
    SetMode {
        /// Of what.
        path: Vec<u8>,
        /// How.
        mode: ModeChange,
        /// Of all below, too, but of no symbolic link.
        recursive: bool,
    },
    /// Changes owner and group.
    SetOwner {
        /// Of what.
        path: Vec<u8>,
        /// The owner.
        uid: Option<u32>,
        /// The group.
        gid: Option<u32>,
        /// Of all below, too.
        recursive: bool,
        /// Of a symbolic link itself.
        no_follow: bool,
    },
    /// Sets times; a file that is not there is made, empty.
    Touch {
        /// Which.
        path: Vec<u8>,
        /// The time; the present where nothing is said.
        time: Option<Time>,
        /// Nothing is made.
        no_create: bool,
    },
    /// Sets an extended attribute; access control lists as system calls take them.
    SetXattr {
        /// Of what; a symbolic link is followed.
        path: Vec<u8>,
        /// The full name, as in `user.note`.
        name: Vec<u8>,
        /// The value.
        value: Vec<u8>,
    },
    /// Removes an extended attribute.
    RemoveXattr {
        /// Of what; a symbolic link is followed.
        path: Vec<u8>,
        /// The full name.
        name: Vec<u8>,
    },
}

impl EditSession {
    /// Applies a change. After an error the session is to be dropped: part of the change may have
    /// been applied to it.
    ///
    /// # Errors
    ///
    /// What the verb of the same name would say, with the path.
    pub fn apply(&mut self, change: &Change) -> Result<()> {
        let _stand = self.stand();
        match change {
            Change::Put { .. } | Change::Write { .. } | Change::Copy { .. } => self.bring(change),
            Change::Remove {
                path,
                recursive,
                force,
            } => self.remove(path, *recursive, *force),
            Change::Rename {
                from,
                to,
                exactly,
                keep,
            } => self.rename(from, to, *exactly, *keep),
            Change::MakeDirectory {
                path,
                parents,
                permissions,
            } => self.make_directory(path, *parents, *permissions),
            Change::Link { .. } | Change::Symlink { .. } | Change::MakeNode { .. } => {
                self.make_name(change)
            }
            other => self.set(other),
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
