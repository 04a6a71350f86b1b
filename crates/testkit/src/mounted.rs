//! A mounted directory as a subject: the kernel's ext4, which checks the model itself, or any other
//! mount.
//!
//! Every file is reached through an `O_PATH` descriptor, component by component, so that no
//! symbolic link is followed; operations that need an ordinary descriptor open `/proc/self/fd/N`
//! again. Requires root, and a file system that supports everything.

mod files;
mod walk;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use pext4_fs::{AllocateMode, FileType, RenameMode, SetTime, SetXattrMode};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, Gid, Mode, OFlags, RenameFlags, SeekFrom, Timespec, Timestamps,
    Uid, XattrFlags,
};

use self::files::{
    list, open_path, open_root, proc_path, read_all, read_link, reopen, seek_settled, seekable,
    stat, xattr, xattr_names,
};
pub use self::walk::walk;
use crate::content::pattern;
use crate::errno::{EBADF, EINVAL, EIO, ENXIO, Failure};
use crate::op::{Base, NewAttributes, Op, Target};
use crate::outcome::{Answer, Outcome, SET_GROUP_ID, Space, Subject};
use crate::tree::Tree;

/// Opens the directory again after a remount, however it is mounted.
pub type Remount = Box<dyn FnMut() -> anyhow::Result<()> + Send>;

/// A mounted directory under test.
pub struct MountedSubject {
    directory: PathBuf,
    root: OwnedFd,
    slots: BTreeMap<u8, OwnedFd>,
    remount: Option<Remount>,
}

impl fmt::Debug for MountedSubject {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("MountedSubject")
            .field("directory", &self.directory)
            .finish_non_exhaustive()
    }
}

type Result<T, E = Failure> = std::result::Result<T, E>;

fn answer(file: impl AsFd) -> Outcome {
    stat(file).map(Answer::File)
}

fn done<E: Into<Failure>>(result: Result<(), E>) -> Outcome {
    result.map(|()| Answer::Done).map_err(Into::into)
}

fn timespec(time: Option<SetTime>) -> Timespec {
    match time {
        None => Timespec {
            tv_sec: 0,
            tv_nsec: rustix::fs::UTIME_OMIT,
        },
        Some(SetTime::Now) => Timespec {
            tv_sec: 0,
            tv_nsec: rustix::fs::UTIME_NOW,
        },
        Some(SetTime::To(time)) => Timespec {
            tv_sec: time.seconds,
            tv_nsec: time.nanoseconds.into(),
        },
    }
}

impl MountedSubject {
    /// The directory at which the file system is mounted. Sets the process's umask to 0.
    pub fn new(directory: &Path, remount: Option<Remount>) -> Result<Self> {
        rustix::process::umask(Mode::empty());
        let root = open_root(directory)?;
        Ok(Self {
            directory: directory.to_owned(),
            root,
            slots: BTreeMap::new(),
            remount,
        })
    }

    fn walk(&self, target: &Target) -> Result<OwnedFd> {
        let start = match target.base {
            Base::Root => &self.root,
            Base::Slot(slot) => self.slots.get(&slot).ok_or_else(|| Failure::new(EBADF))?,
            Base::Inode(_) => return Err(Failure::new(EINVAL)),
        };
        let mut file = rustix::io::fcntl_dupfd_cloexec(start, 0)?;
        for name in &target.path {
            file = open_path(&file, name)?;
        }
        Ok(file)
    }

    fn place<'a>(&self, at: &'a Target) -> Result<(OwnedFd, &'a OsStr)> {
        let (directory, name) = at.split().ok_or_else(|| Failure::new(EINVAL))?;
        Ok((self.walk(&directory)?, OsStr::from_bytes(name)))
    }

    /// Sets the owner of a new file; in a set-group-id directory the group is already set.
    fn set_initial_owner(directory: &OwnedFd, file: &OwnedFd, new: NewAttributes) -> Outcome {
        let inherited = stat(directory)?.permissions & SET_GROUP_ID != 0;
        let gid = (!inherited).then(|| Gid::from_raw(new.gid));
        own(file, Some(Uid::from_raw(new.uid)), gid)?;
        answer(file)
    }

    fn run_namespace(&mut self, op: &Op) -> Outcome {
        match op {
            Op::Lookup(at) => answer(self.walk(at)?),
            Op::Create { at, new } => {
                let (directory, name) = self.place(at)?;
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
                let mode = Mode::from_raw_mode(new.permissions.into());
                let file = rustix::fs::openat(&directory, name, flags, mode)?;
                Self::set_initial_owner(&directory, &file, *new)
            }
            Op::MakeDirectory { at, new } => {
                let (directory, name) = self.place(at)?;
                let mode = Mode::from_raw_mode(new.permissions.into());
                rustix::fs::mkdirat(&directory, name, mode)?;
                Self::set_initial_owner(&directory, &open_path(&directory, name.as_bytes())?, *new)
            }
            Op::MakeNode {
                at,
                new,
                kind,
                device,
            } => {
                let (directory, name) = self.place(at)?;
                let mode = Mode::from_raw_mode(new.permissions.into());
                let kind = rustix::fs::FileType::from_raw_mode(mode_type(*kind).into());
                let device = rustix::fs::makedev(device.0, device.1);
                rustix::fs::mknodat(&directory, name, kind, mode, device)?;
                Self::set_initial_owner(&directory, &open_path(&directory, name.as_bytes())?, *new)
            }
            Op::MakeSymlink { at, new, to } => {
                let (directory, name) = self.place(at)?;
                rustix::fs::symlinkat(OsStr::from_bytes(to), &directory, name)?;
                Self::set_initial_owner(&directory, &open_path(&directory, name.as_bytes())?, *new)
            }
            Op::Link { of, at } => {
                let of = self.walk(of)?;
                let (directory, name) = self.place(at)?;
                rustix::fs::linkat(&of, "", &directory, name, AtFlags::EMPTY_PATH)?;
                answer(&of)
            }
            _ => op.belongs_elsewhere(),
        }
    }

    fn run_removal(&mut self, op: &Op) -> Outcome {
        match op {
            Op::Unlink(at) => {
                let (directory, name) = self.place(at)?;
                done(rustix::fs::unlinkat(&directory, name, AtFlags::empty()))
            }
            Op::RemoveDirectory(at) => {
                let (directory, name) = self.place(at)?;
                done(rustix::fs::unlinkat(&directory, name, AtFlags::REMOVEDIR))
            }
            Op::Rename { from, to, mode } => {
                let (old, old_name) = self.place(from)?;
                let (new, new_name) = self.place(to)?;
                let flags = match mode {
                    RenameMode::Replace => RenameFlags::empty(),
                    RenameMode::NoReplace => RenameFlags::NOREPLACE,
                    RenameMode::Exchange => RenameFlags::EXCHANGE,
                    other => panic!("{other:?} has no flag here"),
                };
                done(rustix::fs::renameat_with(
                    &old, old_name, &new, new_name, flags,
                ))
            }
            Op::Hold { of, slot } => {
                let file = self.walk(of)?;
                self.slots.insert(*slot, file);
                Ok(Answer::Done)
            }
            Op::CreateUnnamed {
                directory,
                new,
                slot,
            } => {
                let directory = self.walk(directory)?;
                let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
                let mode = Mode::from_raw_mode(new.permissions.into());
                let file = rustix::fs::open(proc_path(&directory), flags, mode)?;
                let told = Self::set_initial_owner(&directory, &file, *new)?;
                self.slots.insert(*slot, file);
                Ok(told)
            }
            Op::Release(slot) => {
                self.slots.remove(slot);
                Ok(Answer::Done)
            }
            _ => op.belongs_elsewhere(),
        }
    }

    fn run_file(&mut self, op: &Op) -> Outcome {
        match op {
            Op::Read { of, offset, length } => {
                let file = reopen(&self.walk(of)?, OFlags::RDONLY)?;
                read_all(&file, *offset, *length as usize).map(Answer::Bytes)
            }
            Op::Write {
                of,
                offset,
                length,
                fill,
            } => {
                let file = reopen(&self.walk(of)?, OFlags::WRONLY)?;
                let count = rustix::io::pwrite(&file, &pattern(*fill, *length as usize), *offset)?;
                Ok(Answer::Count(count as u64))
            }
            Op::Truncate { of, size } => {
                let file = reopen(&self.walk(of)?, OFlags::WRONLY)?;
                done(rustix::fs::ftruncate(&file, *size))
            }
            Op::Allocate {
                of,
                mode,
                offset,
                length,
            } => {
                let file = reopen(&self.walk(of)?, OFlags::WRONLY)?;
                done(rustix::fs::fallocate(
                    &file,
                    allocate_flags(*mode),
                    *offset,
                    *length,
                ))
            }
            Op::SeekData { of, offset } => seek(&self.walk(of)?, SeekFrom::Data(*offset)),
            Op::SeekHole { of, offset } => seek(&self.walk(of)?, SeekFrom::Hole(*offset)),
            Op::SyncFile { of, data_only } => {
                let file = reopen(&self.walk(of)?, OFlags::RDONLY)?;
                done(if *data_only {
                    rustix::fs::fdatasync(&file)
                } else {
                    rustix::fs::fsync(&file)
                })
            }
            _ => op.belongs_elsewhere(),
        }
    }

    fn run_attribute(&mut self, op: &Op) -> Outcome {
        match op {
            Op::SetMode { of, permissions } => {
                let mode = Mode::from_raw_mode((*permissions).into());
                done(rustix::fs::chmod(proc_path(&self.walk(of)?), mode))
            }
            Op::SetOwner { of, uid, gid } => {
                let file = self.walk(of)?;
                done(own(
                    &file,
                    Some(Uid::from_raw(*uid)),
                    Some(Gid::from_raw(*gid)),
                ))
            }
            Op::SetTimes {
                of,
                accessed,
                modified,
            } => {
                let times = Timestamps {
                    last_access: timespec(*accessed),
                    last_modification: timespec(*modified),
                };
                let file = self.walk(of)?;
                done(rustix::fs::utimensat(
                    CWD,
                    proc_path(&file),
                    &times,
                    AtFlags::empty(),
                ))
            }
            _ => op.belongs_elsewhere(),
        }
    }

    fn run_xattr(&mut self, op: &Op) -> Outcome {
        match op {
            Op::SetXattr {
                of,
                name,
                length,
                fill,
                mode,
            } => {
                let flags = match mode {
                    SetXattrMode::Any => XattrFlags::empty(),
                    SetXattrMode::Create => XattrFlags::CREATE,
                    SetXattrMode::Replace => XattrFlags::REPLACE,
                    other => panic!("{other:?} has no flag here"),
                };
                let value = pattern(*fill, *length as usize);
                let name = OsStr::from_bytes(name);
                done(rustix::fs::setxattr(
                    proc_path(&self.walk(of)?),
                    name,
                    &value,
                    flags,
                ))
            }
            Op::GetXattr { of, name } => xattr(&self.walk(of)?, name).map(Answer::Bytes),
            Op::RemoveXattr { of, name } => {
                let name = OsStr::from_bytes(name);
                done(rustix::fs::removexattr(proc_path(&self.walk(of)?), name))
            }
            Op::ListXattrs(of) => xattr_names(&self.walk(of)?).map(Answer::Names),
            _ => op.belongs_elsewhere(),
        }
    }

    fn statistics(&self) -> Outcome {
        let told = rustix::fs::statfs(&self.directory)?;
        Ok(Answer::Space(Space {
            blocks: told.f_blocks,
            free_blocks: told.f_bfree,
            inodes: told.f_files,
            free_inodes: told.f_ffree,
        }))
    }

    fn open_again(&mut self) -> Outcome {
        self.slots.clear();
        let Some(remount) = &mut self.remount else {
            return Ok(Answer::Done);
        };
        self.root = open_root(Path::new("/"))?;
        remount().map_err(|error| Failure {
            errno: EIO,
            text: format!("{error:#}"),
        })?;
        self.root = open_root(&self.directory)?;
        Ok(Answer::Done)
    }
}

impl Subject for MountedSubject {
    /// All variants are listed here, so that none is forgotten.
    fn run(&mut self, op: &Op) -> Outcome {
        match op {
            Op::Lookup(_)
            | Op::Create { .. }
            | Op::MakeDirectory { .. }
            | Op::MakeNode { .. }
            | Op::MakeSymlink { .. }
            | Op::Link { .. } => self.run_namespace(op),
            Op::Unlink(_)
            | Op::RemoveDirectory(_)
            | Op::Rename { .. }
            | Op::Hold { .. }
            | Op::CreateUnnamed { .. }
            | Op::Release(_) => self.run_removal(op),
            Op::Read { .. }
            | Op::Write { .. }
            | Op::Truncate { .. }
            | Op::Allocate { .. }
            | Op::SeekData { .. }
            | Op::SeekHole { .. }
            | Op::SyncFile { .. } => self.run_file(op),
            Op::SetMode { .. } | Op::SetOwner { .. } | Op::SetTimes { .. } => {
                self.run_attribute(op)
            }
            Op::SetXattr { .. }
            | Op::GetXattr { .. }
            | Op::RemoveXattr { .. }
            | Op::ListXattrs(_) => self.run_xattr(op),
            Op::ReadLink(of) => read_link(&self.walk(of)?).map(Answer::Bytes),
            Op::List { directory, at_once } => {
                list(&self.walk(directory)?, *at_once as usize).map(Answer::Entries)
            }
            Op::Stat(of) => answer(self.walk(of)?),
            Op::Statistics => self.statistics(),
            Op::Sync => done(rustix::fs::syncfs(reopen(&self.root, OFlags::RDONLY)?)),
            Op::Remount => self.open_again(),
        }
    }

    fn tree(&mut self) -> Result<Tree> {
        walk(&self.directory)
    }
}

/// Changes the owner and keeps the mode (`chown` clears set-id bits).
fn own(file: &OwnedFd, uid: Option<Uid>, gid: Option<Gid>) -> Result<()> {
    let before = stat(file)?;
    rustix::fs::chownat(file, "", uid, gid, AtFlags::EMPTY_PATH)?;
    if before.kind != FileType::Symlink && stat(file)?.permissions != before.permissions {
        let mode = Mode::from_raw_mode(before.permissions.into());
        rustix::fs::chmod(proc_path(file), mode)?;
    }
    Ok(())
}

fn allocate_flags(mode: AllocateMode) -> FallocateFlags {
    let keep = FallocateFlags::KEEP_SIZE;
    match mode {
        AllocateMode::Extend => FallocateFlags::empty(),
        AllocateMode::KeepSize => keep,
        AllocateMode::PunchHole => FallocateFlags::PUNCH_HOLE | keep,
        AllocateMode::ZeroRange { keep_size: false } => FallocateFlags::ZERO_RANGE,
        AllocateMode::ZeroRange { keep_size: true } => FallocateFlags::ZERO_RANGE | keep,
        other => panic!("{other:?} has no flags here"),
    }
}

fn seek(file: &OwnedFd, to: SeekFrom) -> Outcome {
    let size = stat(file)?.size;
    let file = seekable(file)?;
    let found = seek_settled(&file, to)?;
    // Linux finds "data" at the very end if a page of the cache extends beyond the file.
    let beyond = matches!(to, SeekFrom::Data(_)) && found >= size;
    if beyond {
        Err(Failure::new(ENXIO))
    } else {
        Ok(Answer::Offset(found))
    }
}

/// The type bits of a mode.
fn mode_type(kind: FileType) -> u16 {
    match kind {
        FileType::Fifo => 0o010_000,
        FileType::CharacterDevice => 0o020_000,
        FileType::Directory => 0o040_000,
        FileType::BlockDevice => 0o060_000,
        FileType::Regular => 0o100_000,
        FileType::Symlink => 0o120_000,
        FileType::Socket => 0o140_000,
    }
}
