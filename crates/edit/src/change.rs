//! The changes of a session, one function a verb.
//!
//! Paths are bytes and begin at the image's root, with or without a leading slash. Symbolic links
//! on the way are followed inside the image. A link at the end of a path is followed only where the
//! verb says so. If the destination of a verb is an existing directory, the file goes into it under
//! its own name, as with the commands of the same names.
//!
//! Each change is made from what it cannot do without; the rest is as the command has it without
//! options, and may be stated instead:
//!
//! ```
//! use pext4_edit::change::{Remove, WriteFile};
//!
//! let hostname = WriteFile::new("/etc/hostname", "appliance\n");
//! let cache = Remove {
//!     recursive: true,
//!     ..Remove::new("/var/cache")
//! };
//! ```

mod attributes;
mod constructors;
mod create;
mod import;
mod names;
mod paths;
mod together;

pub use attributes::check_attribute_name;

use std::io::Read;
use std::path::PathBuf;

use pext4_fs::{DeviceNumber, FileType, Time};

use crate::error::Result;
use crate::flags::FlagChange;
use crate::mode::ModeChange;
use crate::session::EditSession;
use crate::tree_writer::Overrides;

pub(crate) use together::PutTogether;

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
    /// Copies from the host.
    Put(Put),
    /// Creates a file with a given content.
    WriteFile(WriteFile),
    /// Copies within the image, or from another one.
    CopyFile(CopyFile),
    /// Removes a name.
    Remove(Remove),
    /// Moves a name.
    Rename(Rename),
    /// Creates a directory.
    MakeDirectory(MakeDirectory),
    /// Creates another name for a file.
    Link(Link),
    /// Creates a symbolic link.
    Symlink(Symlink),
    /// Creates a device, a fifo or a socket.
    MakeNode(MakeNode),
    /// Changes permissions.
    SetMode(SetMode),
    /// Changes the flags of `chattr`.
    SetFlags(SetFlags),
    /// Changes owner and group.
    SetOwner(SetOwner),
    /// Sets access and modification time.
    Touch(Touch),
    /// Sets an extended attribute.
    SetXattr(SetXattr),
    /// Removes an extended attribute.
    RemoveXattr(RemoveXattr),
}

/// Each struct becomes the variant of its name.
macro_rules! into_change {
    ($($verb:ident)*) => {
        $(impl From<$verb> for Change {
            fn from(change: $verb) -> Self {
                Self::$verb(change)
            }
        })*
    };
}

into_change! {
    Put WriteFile CopyFile Remove Rename MakeDirectory Link Symlink MakeNode SetMode SetFlags SetOwner
    Touch SetXattr RemoveXattr
}

/// Copies a file or a tree of the host into the image, with attributes, extended attributes, holes
/// and hard links. The image itself is left out of a tree, which [`EditSession::notes`] tells.
#[derive(Clone, Debug)]
pub struct Put {
    /// The path on the host. One that ends in `.` or `..` stands for what is in the directory: its
    /// files go into a directory at the destination.
    pub from: PathBuf,
    /// The destination in the image.
    pub to: Vec<u8>,
    /// An existing directory at the destination is the tree's top, not its parent.
    pub no_target_directory: bool,
    /// Whether extended attributes are copied.
    pub xattrs: bool,
    /// What differs from the host's file.
    pub overrides: Overrides,
}

/// Creates a file with this content. Replaces an existing file.
#[derive(Clone, Debug)]
pub struct WriteFile {
    /// The file.
    pub path: Vec<u8>,
    /// Its content.
    pub content: Vec<u8>,
    /// Permissions and owner; by default 0644 and root.
    pub overrides: Overrides,
}

/// Copies a file or a tree with all its attributes, within the image or from another one.
#[derive(Clone, Debug)]
pub struct CopyFile {
    /// The other image; `None` for this one.
    pub image: Option<PathBuf>,
    /// Where the file system begins in the other image, in bytes.
    pub image_offset: u64,
    /// The path in that image; `.` and `..` at its end as in [`Put::from`].
    pub from: Vec<u8>,
    /// The destination in this image.
    pub to: Vec<u8>,
    /// An existing directory at the destination is the tree's top, not its parent.
    pub no_target_directory: bool,
    /// Whether a directory is copied. If not, a directory is an error.
    pub recursive: bool,
}

/// Removes a name. A symbolic link is not followed.
#[derive(Clone, Debug)]
pub struct Remove {
    /// The path.
    pub path: Vec<u8>,
    /// Whether a directory is removed with everything in it. If not, a directory is an error.
    pub recursive: bool,
    /// A missing file is no error.
    pub force: bool,
}

/// Moves a name.
#[derive(Clone, Debug)]
pub struct Rename {
    /// The old path.
    pub from: Vec<u8>,
    /// The new path, or an existing directory into which the file is moved.
    pub to: Vec<u8>,
    /// The file is not moved into an existing directory, but replaces it if it is empty.
    pub no_target_directory: bool,
    /// If the destination exists, nothing is moved, and that is no error.
    pub no_clobber: bool,
}

/// Creates a directory.
#[derive(Clone, Debug)]
pub struct MakeDirectory {
    /// The directory.
    pub path: Vec<u8>,
    /// Also creates missing parents. An existing directory is no error then.
    pub parents: bool,
    /// Permissions of the directory itself, as a change of 0777 with the set-group-ID bit that it
    /// inherits; by default 0755 with that bit.
    pub mode: Option<ModeChange>,
}

/// Creates another name for a file.
#[derive(Clone, Debug)]
pub struct Link {
    /// The file; a symbolic link is not followed.
    pub target: Vec<u8>,
    /// The new name.
    pub path: Vec<u8>,
    /// Replaces an existing file.
    pub force: bool,
    /// Whether it is created inside an existing directory.
    pub into: IntoDirectory,
}

/// Creates a symbolic link.
#[derive(Clone, Debug)]
pub struct Symlink {
    /// Its target, stored unchanged.
    pub target: Vec<u8>,
    /// The link.
    pub path: Vec<u8>,
    /// Replaces an existing file.
    pub force: bool,
    /// Whether it is created inside an existing directory.
    pub into: IntoDirectory,
}

/// Creates a device, a fifo or a socket.
#[derive(Clone, Debug)]
pub struct MakeNode {
    /// The path.
    pub path: Vec<u8>,
    /// Its type.
    pub kind: FileType,
    /// The number of a device.
    pub device: DeviceNumber,
    /// Permissions; by default 0644.
    pub permissions: Option<u16>,
}

/// Changes permissions; a symbolic link is followed.
#[derive(Clone, Debug)]
pub struct SetMode {
    /// The file.
    pub path: Vec<u8>,
    /// The change.
    pub mode: ModeChange,
    /// Also changes everything below the path, except symbolic links.
    pub recursive: bool,
}

/// Changes the flags that `chattr` changes, of files and directories; a symbolic link is followed.
#[derive(Clone, Debug)]
pub struct SetFlags {
    /// The file.
    pub path: Vec<u8>,
    /// The change.
    pub flags: FlagChange,
    /// Also changes all files and directories below the path.
    pub recursive: bool,
}

/// Changes owner and group.
#[derive(Clone, Debug)]
pub struct SetOwner {
    /// The file.
    pub path: Vec<u8>,
    /// The new owner, if it changes.
    pub uid: Option<u32>,
    /// The new group, if it changes.
    pub gid: Option<u32>,
    /// Also changes everything below the path. A symbolic link is not followed then.
    pub recursive: bool,
    /// Changes a symbolic link itself.
    pub no_follow: bool,
}

/// Sets access and modification time; creates an empty file if there is none.
#[derive(Clone, Debug)]
pub struct Touch {
    /// The file; a symbolic link is followed.
    pub path: Vec<u8>,
    /// The time; by default the present.
    pub time: Option<Time>,
    /// Creates no file; a missing one is no error.
    pub no_create: bool,
}

/// Sets an extended attribute. An access control list has the form of setxattr(2).
#[derive(Clone, Debug)]
pub struct SetXattr {
    /// The file; a symbolic link is followed.
    pub path: Vec<u8>,
    /// The full name, as in `user.note`.
    pub name: Vec<u8>,
    /// The value.
    pub value: Vec<u8>,
}

/// Removes an extended attribute.
#[derive(Clone, Debug)]
pub struct RemoveXattr {
    /// The file; a symbolic link is followed.
    pub path: Vec<u8>,
    /// The full name.
    pub name: Vec<u8>,
}

impl EditSession {
    /// Applies a change. If it fails, part of it may have been applied to the session, which then
    /// refuses to [`prepare`](Self::prepare).
    ///
    /// # Errors
    ///
    /// An [`EditError`](crate::EditError): `AtPath` for what the file system refuses or cannot
    /// read, `RefusedAtPath` and `Refused` for a change that makes no sense there, `Host` for files
    /// of the host, `OpenImage` and `Image` for the image to copy from, `Image` also for this one
    /// if its device fails, and `Interrupted` after [`Progress::stop`](crate::Progress::stop).
    pub fn apply(&mut self, change: &Change) -> Result<()> {
        self.change(|session| match change {
            Change::Put(change) => session.put(change),
            Change::WriteFile(change) => session.write(change),
            Change::CopyFile(change) => session.copy(change),
            Change::Remove(change) => session.remove(change),
            Change::Rename(change) => session.rename(change),
            Change::MakeDirectory(change) => session.make_directory(change),
            Change::Link(change) => session.link(change),
            Change::Symlink(change) => session.symlink(change),
            Change::MakeNode(change) => session.make_node(change),
            Change::SetMode(change) => session.set_mode(change),
            Change::SetFlags(change) => session.set_flags(change),
            Change::SetOwner(change) => session.set_owner(change),
            Change::Touch(change) => session.touch(change),
            Change::SetXattr(change) => session.set_xattr(change),
            Change::RemoveXattr(change) => session.remove_xattr(change),
        })
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
