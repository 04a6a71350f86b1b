//! Changes from what they cannot do without. The rest is as the command has it without options.

use std::path::PathBuf;

use pext4_fs::{DeviceNumber, FileType};

use super::{
    CopyFile, IntoDirectory, Link, MakeDirectory, MakeNode, Put, Remove, RemoveXattr, Rename,
    SetFlags, SetMode, SetOwner, SetXattr, Symlink, Touch, WriteFile,
};
use crate::flags::FlagChange;
use crate::mode::ModeChange;
use crate::tree_writer::Overrides;

impl Put {
    /// Copies with extended attributes and without overrides.
    #[must_use]
    pub fn new(from: impl Into<PathBuf>, to: impl Into<Vec<u8>>) -> Self {
        Self {
            from: from.into(),
            to: to.into(),
            no_target_directory: false,
            xattrs: true,
            overrides: Overrides::default(),
        }
    }
}

impl WriteFile {
    /// Creates it without overrides.
    #[must_use]
    pub fn new(path: impl Into<Vec<u8>>, content: impl Into<Vec<u8>>) -> Self {
        Self {
            path: path.into(),
            content: content.into(),
            overrides: Overrides::default(),
        }
    }
}

impl CopyFile {
    /// Copies a file that is no directory, within this image.
    #[must_use]
    pub fn new(from: impl Into<Vec<u8>>, to: impl Into<Vec<u8>>) -> Self {
        Self {
            image: None,
            image_offset: 0,
            from: from.into(),
            to: to.into(),
            no_target_directory: false,
            recursive: false,
        }
    }
}

impl Remove {
    /// Removes a file that is there and no directory.
    #[must_use]
    pub fn new(path: impl Into<Vec<u8>>) -> Self {
        Self {
            path: path.into(),
            recursive: false,
            force: false,
        }
    }
}

impl Rename {
    /// Moves it, into the destination if that is a directory.
    #[must_use]
    pub fn new(from: impl Into<Vec<u8>>, to: impl Into<Vec<u8>>) -> Self {
        Self {
            from: from.into(),
            to: to.into(),
            no_target_directory: false,
            no_clobber: false,
        }
    }
}

impl MakeDirectory {
    /// Creates it in a directory that is there, with the permissions of the default.
    #[must_use]
    pub fn new(path: impl Into<Vec<u8>>) -> Self {
        Self {
            path: path.into(),
            parents: false,
            mode: None,
        }
    }
}

impl Link {
    /// Creates it where nothing is.
    #[must_use]
    pub fn new(target: impl Into<Vec<u8>>, path: impl Into<Vec<u8>>) -> Self {
        Self {
            target: target.into(),
            path: path.into(),
            force: false,
            into: IntoDirectory::default(),
        }
    }
}

impl Symlink {
    /// Creates it where nothing is.
    #[must_use]
    pub fn new(target: impl Into<Vec<u8>>, path: impl Into<Vec<u8>>) -> Self {
        Self {
            target: target.into(),
            path: path.into(),
            force: false,
            into: IntoDirectory::default(),
        }
    }
}

impl MakeNode {
    /// Creates it with the permissions of the default. What is no device has the number 0:0.
    #[must_use]
    pub fn new(path: impl Into<Vec<u8>>, kind: FileType, device: DeviceNumber) -> Self {
        Self {
            path: path.into(),
            kind,
            device,
            permissions: None,
        }
    }
}

impl SetMode {
    /// Changes the file alone.
    #[must_use]
    pub fn new(path: impl Into<Vec<u8>>, mode: ModeChange) -> Self {
        Self {
            path: path.into(),
            mode,
            recursive: false,
        }
    }
}

impl SetFlags {
    /// Changes the file alone.
    #[must_use]
    pub fn new(path: impl Into<Vec<u8>>, flags: FlagChange) -> Self {
        Self {
            path: path.into(),
            flags,
            recursive: false,
        }
    }
}

impl SetOwner {
    /// Changes the file alone, following a symbolic link; `None` leaves one of the two as it is.
    #[must_use]
    pub fn new(
        path: impl Into<Vec<u8>>,
        uid: impl Into<Option<u32>>,
        gid: impl Into<Option<u32>>,
    ) -> Self {
        Self {
            path: path.into(),
            uid: uid.into(),
            gid: gid.into(),
            recursive: false,
            no_follow: false,
        }
    }
}

impl Touch {
    /// Sets the present time.
    #[must_use]
    pub fn new(path: impl Into<Vec<u8>>) -> Self {
        Self {
            path: path.into(),
            time: None,
            no_create: false,
        }
    }
}

impl SetXattr {
    /// Gives the attribute of that name this value.
    #[must_use]
    pub fn new(
        path: impl Into<Vec<u8>>,
        name: impl Into<Vec<u8>>,
        value: impl Into<Vec<u8>>,
    ) -> Self {
        Self {
            path: path.into(),
            name: name.into(),
            value: value.into(),
        }
    }
}

impl RemoveXattr {
    /// Removes the attribute of that name.
    #[must_use]
    pub fn new(path: impl Into<Vec<u8>>, name: impl Into<Vec<u8>>) -> Self {
        Self {
            path: path.into(),
            name: name.into(),
        }
    }
}
