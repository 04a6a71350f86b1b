//! Kinds of files, as directory entries and modes encode them.

use std::fmt;

/// The kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileType {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A character special file.
    CharacterDevice,
    /// A block special file.
    BlockDevice,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A symbolic link.
    Symlink,
}

/// The bits of a mode that contain the kind (`S_IFMT`).
pub const KIND_MASK: u16 = 0o170_000;
/// The bits of a mode that are not the kind: permissions, set-id bits and the sticky bit.
pub const PERMISSIONS: u16 = 0o7777;
/// The bit of a program that runs as its file's owner (`S_ISUID`).
pub const SET_USER_ID: u16 = 0o4000;
/// The bit of a program that runs with its file's group, and of a directory that gives new files in
/// it its own group (`S_ISGID`).
pub const SET_GROUP_ID: u16 = 0o2000;

/// Each kind with its number in directory entries and its bits in modes.
const KINDS: [(FileType, u8, u16); 7] = [
    (FileType::Regular, 1, 0o100_000),
    (FileType::Directory, 2, 0o040_000),
    (FileType::CharacterDevice, 3, 0o020_000),
    (FileType::BlockDevice, 4, 0o060_000),
    (FileType::Fifo, 5, 0o010_000),
    (FileType::Socket, 6, 0o140_000),
    (FileType::Symlink, 7, 0o120_000),
];

impl FileType {
    /// The kind from the byte in a directory entry; `None` for 0 ("unknown") and undefined numbers.
    #[must_use]
    pub fn from_entry(number: u8) -> Option<Self> {
        KINDS
            .iter()
            .find(|kind| kind.1 == number)
            .map(|kind| kind.0)
    }

    /// The byte in a directory entry.
    #[must_use]
    pub fn to_entry(self) -> u8 {
        self.row().1
    }

    /// The kind from the bits of a mode (`st_mode`); `None` for undefined bits.
    #[must_use]
    pub fn from_mode(mode: u16) -> Option<Self> {
        KINDS
            .iter()
            .find(|kind| kind.2 == mode & KIND_MASK)
            .map(|kind| kind.0)
    }

    /// The bits of a mode, without permissions.
    #[must_use]
    pub fn to_mode(self) -> u16 {
        self.row().2
    }

    fn row(self) -> &'static (Self, u8, u16) {
        KINDS
            .iter()
            .find(|kind| kind.0 == self)
            .expect("the table has every kind")
    }
}

/// Its name in a sentence, such as `regular file`.
impl fmt::Display for FileType {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Regular => "regular file",
            Self::Directory => "directory",
            Self::CharacterDevice => "character device",
            Self::BlockDevice => "block device",
            Self::Fifo => "named pipe",
            Self::Socket => "socket",
            Self::Symlink => "symbolic link",
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{FileType, KINDS};

    #[test]
    fn numbers_and_modes_go_both_ways() {
        for (kind, number, mode) in KINDS {
            assert_eq!(FileType::from_entry(kind.to_entry()), Some(kind));
            assert_eq!(FileType::from_mode(kind.to_mode() | 0o4755), Some(kind));
            assert_eq!((kind.to_entry(), kind.to_mode()), (number, mode));
        }
        let names: BTreeSet<String> = KINDS.iter().map(|kind| kind.0.to_string()).collect();
        assert_eq!(names.len(), KINDS.len());
        assert_eq!(format!("{:>14}", FileType::Symlink), " symbolic link");
        assert_eq!(FileType::from_entry(0), None);
        assert_eq!(FileType::from_entry(8), None);
        assert_eq!(FileType::from_mode(0), None);
        assert_eq!(FileType::from_mode(0o110_000), None);
    }
}
