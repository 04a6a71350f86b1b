//! The supported commands of `ioctl(2)`: flags, project, generation, the volume's label, `FITRIM`,
//! by which `fstrim` discards free space, and `EXT4_IOC_CHECKPOINT`, which empties the journal
//! (`Documentation/filesystems/ext4/journal.rst` of Linux).
//!
//! A command's number contains the size of its argument; the kernel copies that many bytes in and
//! out.

use pext4_fs::{Attributes, InodeNumber, SetAttributes};
use pext4_ondisk::inode::InodeFlags;

use super::{Answer, Caller, Capability, Dispatch, Errno, kernel_release};

/// `FS_IOC_GETFLAGS`.
const GET_FLAGS: u32 = 0x8008_6601;
/// `FS_IOC_SETFLAGS`.
const SET_FLAGS: u32 = 0x4008_6602;
/// `FS_IOC_GETVERSION`.
const GET_VERSION: u32 = 0x8008_7601;
/// `FS_IOC_FSGETXATTR`.
const GET_EXTENDED: u32 = 0x801c_581f;
/// `FS_IOC_FSSETXATTR`.
const SET_EXTENDED: u32 = 0x401c_5820;
/// `FS_IOC_GETFSLABEL`.
const GET_LABEL: u32 = 0x8100_9431;
/// `FS_IOC_SETFSLABEL`.
const SET_LABEL: u32 = 0x4100_9432;
/// `FITRIM`.
const TRIM: u32 = 0xc018_5879;
/// `EXT4_IOC_CHECKPOINT`.
const CHECKPOINT: u32 = 0x4004_662b;

/// `EXT4_IOC_CHECKPOINT_FLAG_DISCARD` or `EXT4_IOC_CHECKPOINT_FLAG_ZEROOUT`: the journal's blocks
/// are discarded or overwritten as well.
const CHECKPOINT_AND_ERASE: u32 = 0x1 | 0x2;
/// `EXT4_IOC_CHECKPOINT_FLAG_DRY_RUN`: only the flags are checked.
const CHECKPOINT_DRY_RUN: u32 = 0x4;

/// The file must not change at all, or only grow.
const IMMUTABLE: u32 = InodeFlags::IMMUTABLE.bits();
const APPEND: u32 = InodeFlags::APPEND.bits();
/// Data is written to the journal: only root may set this.
const JOURNAL_DATA: u32 = InodeFlags::JOURNAL_DATA.bits();

/// Bytes of the argument of the label commands.
const LABEL_FIELD: usize = 256;

/// Bytes of the argument of the extended commands (`struct fsxattr`).
const EXTENDED_LENGTH: usize = 28;
/// Offset of the project number in it.
const PROJECT_AT: usize = 12;

/// Flags of ext4 and their bit in the extended structure.
const EXTENDED_BITS: [(InodeFlags, u32); 7] = [
    (InodeFlags::IMMUTABLE, 0x0000_0008),
    (InodeFlags::APPEND, 0x0000_0010),
    (InodeFlags::SYNC, 0x0000_0020),
    (InodeFlags::NOATIME, 0x0000_0040),
    (InodeFlags::NODUMP, 0x0000_0080),
    (InodeFlags::PROJINHERIT, 0x0000_0200),
    (InodeFlags::DAX, 0x0000_8000),
];

/// Bits of the extended structure that Linux ignores on ext4: a real-time device and its
/// inheritance, symbolic links that may not be made, a size of extents, no defragmentation, the
/// stream allocator, and a size of copied extents.
const IGNORED_BITS: u32 =
    0x0000_0001 | 0x0000_0100 | 0x0000_0400 | 0x0000_0800 | 0x0000_2000 | 0x0000_4000 | 0x0001_0000;

fn to_extended(flags: u32) -> u32 {
    EXTENDED_BITS
        .iter()
        .filter(|(ours, _)| flags & ours.bits() != 0)
        .fold(0, |bits, (_, bit)| bits | bit)
}

/// `flags`, with those that have a bit in the extended structure set as in `extended`.
fn from_extended(flags: u32, extended: u32) -> Answer<u32> {
    let known = EXTENDED_BITS.iter().fold(0, |bits, (_, bit)| bits | bit);
    if extended & !(known | IGNORED_BITS) != 0 {
        return Err(Errno::NOT_SUPPORTED);
    }
    Ok(EXTENDED_BITS.iter().fold(flags, |flags, (ours, bit)| {
        if extended & bit == 0 {
            flags & !ours.bits()
        } else {
            flags | ours.bits()
        }
    }))
}

/// Whether a command is one of encryption (`FS_IOC_SET_ENCRYPTION_POLICY` to
/// `FS_IOC_GET_ENCRYPTION_NONCE`) or of fs-verity (`FS_IOC_ENABLE_VERITY` to
/// `FS_IOC_READ_VERITY_METADATA`). A Linux without these knows the commands and supports none.
fn is_of_encryption_or_verity(command: u32) -> bool {
    let (group, number) = (command >> 8 & 0xff, command & 0xff);
    group == u32::from(b'f') && matches!(number, 19..=27 | 133..=135)
}

fn word(bytes: &[u8]) -> Answer<u32> {
    let word = bytes.first_chunk().ok_or(Errno::INVALID)?;
    Ok(u32::from_le_bytes(*word))
}

impl Dispatch {
    /// Whether a command changes flags. The kernel must write its dirty pages of the file before,
    /// since an immutable or append-only file would refuse them afterwards. It sends the times of
    /// these writes when the flag is set: [`Dispatch::set_attributes`] accepts them.
    #[must_use]
    pub fn changes_flags(command: u32) -> bool {
        matches!(command, SET_FLAGS | SET_EXTENDED)
    }

    /// Whether a command waits for a commit or the device.
    #[must_use]
    pub fn takes_long(command: u32) -> bool {
        matches!(command, TRIM | CHECKPOINT)
    }

    /// Executes a command and returns the bytes for the caller.
    ///
    /// # Errors
    ///
    /// `ENOTTY` for an unknown command; `EPERM` if only root may use it; `EOPNOTSUPP` for flags or
    /// a mode that are not supported, and for commands of encryption and fs-verity; `EINVAL` for a
    /// malformed argument; the volume's.
    pub fn control(
        &self,
        caller: Caller,
        node: u64,
        command: u32,
        input: &[u8],
    ) -> Answer<Vec<u8>> {
        let inode = Self::inode(node)?;
        match command {
            GET_FLAGS => Ok(self.present(inode)?.flags.to_le_bytes().to_vec()),
            GET_VERSION => Ok(self.present(inode)?.generation.to_le_bytes().to_vec()),
            SET_FLAGS => {
                let (present, wanted) = (self.present(inode)?, word(input)?);
                check_known(wanted)?;
                let changed = present.flags ^ wanted;
                check_may_change_flags(caller, present.uid, changed, kernel_checks_flags())?;
                self.set_flags(inode, wanted, changed, None)
            }
            GET_EXTENDED => {
                let mut structure = vec![0; EXTENDED_LENGTH];
                let present = self.present(inode)?;
                structure[..4].copy_from_slice(&to_extended(present.flags).to_le_bytes());
                structure[PROJECT_AT..][..4].copy_from_slice(&present.project.to_le_bytes());
                Ok(structure)
            }
            SET_EXTENDED => {
                if input.len() < EXTENDED_LENGTH {
                    return Err(Errno::INVALID);
                }
                let project = word(&input[PROJECT_AT..])?;
                let present = self.present(inode)?;
                let wanted = from_extended(present.flags, word(input)?)?;
                let changed = present.flags ^ wanted;
                check_may_change_flags(caller, present.uid, changed, kernel_checks_flags())?;
                self.set_flags(inode, wanted, changed, Some(project))
            }
            GET_LABEL => {
                let mut field = self.volume.label();
                field.resize(LABEL_FIELD, 0);
                Ok(field)
            }
            SET_LABEL | TRIM | CHECKPOINT if !caller.has(Capability::Administration) => {
                Err(Errno::NOT_PERMITTED)
            }
            SET_LABEL => {
                let label = input.split(|&byte| byte == 0).next().unwrap_or_default();
                self.answer(self.volume.set_label(label))?;
                Ok(Vec::new())
            }
            TRIM => self.trim(input),
            CHECKPOINT => self.checkpoint(word(input)?),
            _ if is_of_encryption_or_verity(command) => Err(Errno::NOT_SUPPORTED),
            _ => Err(Errno::NO_SUCH_COMMAND),
        }
    }

    /// Empties the log. Erasing it is not supported: its old blocks stay readable on the device
    /// until they are overwritten.
    fn checkpoint(&self, flags: u32) -> Answer<Vec<u8>> {
        let erase = flags & CHECKPOINT_AND_ERASE;
        if flags & !(CHECKPOINT_AND_ERASE | CHECKPOINT_DRY_RUN) != 0
            || erase == CHECKPOINT_AND_ERASE
        {
            return Err(Errno::INVALID);
        }
        if erase != 0 {
            return Err(Errno::NOT_SUPPORTED);
        }
        if flags & CHECKPOINT_DRY_RUN == 0 {
            self.answer(self.volume.checkpoint())?;
        }
        Ok(Vec::new())
    }

    /// `FITRIM`: start, length and minimal length of a run are three numbers of 64 bits, in bytes.
    /// The number of discarded bytes is returned in place of the length.
    fn trim(&self, input: &[u8]) -> Answer<Vec<u8>> {
        let mut range: [u8; 24] = *input.first_chunk().ok_or(Errno::INVALID)?;
        let field = |at: usize| {
            let bytes = range[at..].first_chunk().expect("one of three fields");
            u64::from_le_bytes(*bytes)
        };
        let (start, length, least) = (field(0), field(8), field(16));
        let trimmed = self.answer(self.volume.trim(start, length, least))?;
        range[8..16].copy_from_slice(&trimmed.to_le_bytes());
        Ok(range.to_vec())
    }

    fn present(&self, inode: InodeNumber) -> Answer<Attributes> {
        self.answer(self.volume.attributes(inode))
    }

    fn set_flags(
        &self,
        inode: InodeNumber,
        flags: u32,
        changed: u32,
        project: Option<u32>,
    ) -> Answer<Vec<u8>> {
        if flags & changed & APPEND != 0 {
            // They could only be of an earlier file with this number.
            self.append_gaps.forget(inode);
        }
        let set = SetAttributes {
            flags: Some(flags),
            project,
            ..SetAttributes::default()
        };
        self.answer(self.volume.set_attributes(inode, &set))?;
        self.commit_change()?;
        Ok(Vec::new())
    }
}

pub(super) fn is_immutable(flags: u32) -> bool {
    flags & IMMUTABLE != 0
}

/// Whether a file with these flags is immutable or append-only.
pub(super) fn is_protected(flags: u32) -> bool {
    flags & (IMMUTABLE | APPEND) != 0
}

/// Refuses bits that are no flags, before it matters who may set them: as in ext4.
fn check_known(flags: u32) -> Answer<()> {
    let known = InodeFlags::USER_VISIBLE.bits();
    (flags & !known == 0)
        .then_some(())
        .ok_or(Errno::NOT_SUPPORTED)
}

/// Checks that the caller may act for the file's owner, and what else some of the flags need.
/// Kernels since 5.13 check this, except for journalled data; older ones do not check it at all.
fn check_may_change_flags(
    caller: Caller,
    owner: u32,
    changed: u32,
    kernel_checks: bool,
) -> Answer<()> {
    let needs = |is_needed: bool, capability| !is_needed || caller.has(capability);
    let may = needs(changed & JOURNAL_DATA != 0, Capability::Resources)
        && (kernel_checks
            || needs(caller.uid != owner, Capability::Ownership)
                && needs(changed & (IMMUTABLE | APPEND) != 0, Capability::Immutable));
    may.then_some(()).ok_or(Errno::NOT_PERMITTED)
}

/// Whether the running kernel checks who changes flags.
fn kernel_checks_flags() -> bool {
    kernel_release::is_at_least((5, 13))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{
        APPEND, CHECKPOINT, Caller, Dispatch, EXTENDED_LENGTH, Errno, GET_FLAGS, IMMUTABLE,
        JOURNAL_DATA, SET_EXTENDED, SET_FLAGS, TRIM, check_may_change_flags, from_extended,
        to_extended,
    };
    use crate::testing;

    #[test]
    fn commands_that_wait_are_told_apart() {
        assert!(Dispatch::takes_long(TRIM) && Dispatch::takes_long(CHECKPOINT));
        assert!(Dispatch::changes_flags(SET_FLAGS));
        assert!(!Dispatch::takes_long(GET_FLAGS) && !Dispatch::changes_flags(GET_FLAGS));
    }

    #[test]
    fn flags_are_the_owners_to_change_and_some_are_roots() {
        let may = |uid, changed| {
            let caller = Caller {
                uid,
                gid: 0,
                thread: 0,
            };
            let may = |checks| check_may_change_flags(caller, 1000, changed, checks).is_ok();
            assert!(may(true) == (uid == 0 || changed & JOURNAL_DATA == 0));
            may(false)
        };
        assert!(may(0, 0) && may(0, IMMUTABLE | APPEND | JOURNAL_DATA));
        assert!(may(1000, 0) && may(1000, 0x80));
        assert!(
            ![IMMUTABLE, APPEND, JOURNAL_DATA]
                .iter()
                .any(|&flag| may(1000, flag))
        );
        assert!(!may(1001, 0) && !may(1001, 0x80));
    }

    #[test]
    fn bits_that_are_no_flags_are_refused_to_everybody() {
        let dispatch = testing::dispatch(&Arc::new(testing::volume()));
        let stranger = Caller {
            uid: 1000,
            gid: 1000,
            thread: 0,
        };
        let set = |flags: u32| dispatch.control(stranger, 1, SET_FLAGS, &flags.to_le_bytes());
        assert_eq!(set(u32::MAX), Err(Errno::NOT_SUPPORTED));
        assert_eq!(set(JOURNAL_DATA), Err(Errno::NOT_PERMITTED));
    }

    #[test]
    fn an_argument_that_is_too_short_is_invalid() {
        let dispatch = testing::dispatch(&Arc::new(testing::volume()));
        let root = Caller {
            uid: 0,
            gid: 0,
            thread: 0,
        };
        let control = |command, length| dispatch.control(root, 1, command, &vec![0; length]);
        let short = [
            (SET_FLAGS, 3),
            (SET_EXTENDED, EXTENDED_LENGTH - 1),
            (TRIM, 23),
            (CHECKPOINT, 3),
        ];
        for (command, length) in short {
            assert_eq!(
                control(command, length),
                Err(Errno::INVALID),
                "{command:#x}"
            );
        }
        assert_eq!(control(SET_EXTENDED, EXTENDED_LENGTH), Ok(Vec::new()));
        assert_eq!(control(0, 0), Err(Errno::NO_SUCH_COMMAND));
        let set_policy = 0x800c_6613;
        for command in [set_policy, 0x8010_661b, 0x4080_6685, 0xc028_6687] {
            let refused = Err(Errno::NOT_SUPPORTED);
            assert_eq!(control(command, 128), refused, "{command:#x}");
        }
    }

    #[test]
    fn extended_bits_change_only_what_they_can_tell() {
        let immutable_with_extents = 0x0008_0010;
        assert_eq!(to_extended(immutable_with_extents), 0x8);
        assert_eq!(from_extended(immutable_with_extents, 0x10), Ok(0x0008_0020));
        assert_eq!(from_extended(0x0008_0000, 0), Ok(0x0008_0000));
        assert_eq!(from_extended(0, 1 << 31), Err(Errno::NOT_SUPPORTED));
        for ignored in [0x0101, 0x0800, 0x1_0000] {
            assert_eq!(from_extended(0x0008_0000, ignored), Ok(0x0008_0000));
        }
        assert_eq!(from_extended(0, 0x8000), Ok(0x0200_0000));
    }
}
