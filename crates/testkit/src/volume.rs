//! pext4 itself as a subject: operations become calls of [`Volume`].
//!
//! Paths are resolved by `lookup`. Every hold that a call returns is released as soon as it is not
//! needed, so that each operation exercises the accounting of holds. Several subjects may share one
//! volume ([`VolumeSubject::beside`]), each with its own root and slots: one for each thread.

mod walker;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use anyhow::Result;
use pext4_block::Device;
use pext4_fs::{
    CreateAttributes, DeviceNumber, Error, FileType, InodeNumber, MountOptions, SetAttributes,
    Volume,
};

use crate::content::pattern;
use crate::errno::{EBADF, EINVAL, EIO, Failure};
use crate::op::{Base, Name, NewAttributes, Op, Target};
use crate::outcome::{Answer, Facts, Listed, Outcome, Space, Subject};
use crate::tree::Tree;

pub use walker::{tree_of, walk};

/// A pext4 volume under test.
pub struct VolumeSubject {
    device: Arc<dyn Device>,
    options: MountOptions,
    volume: Option<Arc<Volume>>,
    root: InodeNumber,
    slots: BTreeMap<u8, Slot>,
}

impl fmt::Debug for VolumeSubject {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("VolumeSubject")
            .finish_non_exhaustive()
    }
}

/// The content of a slot. A slot that was filled from another slot shares the holds of that one:
/// the volume returns a hold only when a name is looked up.
#[derive(Clone, Copy)]
struct Slot {
    inode: InodeNumber,
    holds: u64,
}

/// An inode that a walk holds; dropping it releases the hold.
struct Held<'a> {
    volume: &'a Volume,
    inode: InodeNumber,
    holds: u64,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if self.holds > 0 {
            self.volume.forget(self.inode, self.holds);
        }
    }
}

impl From<NewAttributes> for CreateAttributes {
    fn from(fresh: NewAttributes) -> Self {
        Self {
            permissions: fresh.permissions,
            uid: fresh.uid,
            gid: fresh.gid,
        }
    }
}

fn facts(entry: &pext4_fs::Entry) -> Outcome {
    Ok(Answer::File(Facts::from(&entry.attributes)))
}

impl VolumeSubject {
    /// Opens the file system on a device.
    pub fn open(device: Arc<dyn Device>, options: MountOptions) -> Result<Self, Error> {
        let volume = Volume::open(Arc::clone(&device), options.clone())?;
        let volume = Some(Arc::new(volume));
        Ok(Self {
            device,
            options,
            volume,
            root: InodeNumber::ROOT,
            slots: BTreeMap::new(),
        })
    }

    /// Another subject on the same volume with the given directory as its root. The directory must
    /// keep a name. Such a subject cannot remount.
    #[must_use]
    pub fn beside(&self, root: u32) -> Self {
        Self {
            device: Arc::clone(&self.device),
            options: self.options.clone(),
            volume: self.volume.clone(),
            root: InodeNumber(root),
            slots: BTreeMap::new(),
        }
    }

    /// The volume.
    ///
    /// # Panics
    ///
    /// After a failed remount.
    #[must_use]
    pub fn volume(&self) -> &Volume {
        self.volume
            .as_deref()
            .expect("a subject is only used while its volume is open")
    }

    /// Releases the slots and closes the file system; all subjects that share it must have been
    /// dropped.
    pub fn close(mut self) -> Result<()> {
        self.close_volume()
            .map_err(|failure| anyhow::anyhow!("close: {failure}"))
    }

    /// Leaves everything as it is and never closes, like a killed process. The volume's threads
    /// continue in the background, so later writes of the device must be irrelevant.
    pub fn abandon(mut self) {
        self.slots.clear();
        std::mem::forget(self.volume.take());
    }

    fn close_volume(&mut self) -> Result<(), Failure> {
        self.release_slots();
        let volume = self.volume.take().ok_or_else(|| Failure::new(EIO))?;
        let short = volume.report().get("journal", "handles short of credits");
        assert!(
            short.is_none_or(|count| count == 0),
            "{short:?} handles needed more credits than they had asked for"
        );
        match Arc::into_inner(volume) {
            Some(volume) => Ok(volume.close()?),
            None => Err(Failure {
                errno: EINVAL,
                text: "the volume is shared".to_owned(),
            }),
        }
    }

    fn release_slots(&mut self) {
        let slots: Vec<u8> = self.slots.keys().copied().collect();
        slots.into_iter().for_each(|slot| self.release(slot));
    }

    fn start(&self, base: Base) -> Result<InodeNumber, Failure> {
        match base {
            Base::Root => Ok(self.root),
            Base::Slot(slot) => {
                let slot = self.slots.get(&slot).ok_or_else(|| Failure::new(EBADF))?;
                Ok(slot.inode)
            }
            Base::Inode(number) => Ok(InodeNumber(number)),
        }
    }

    fn walk(&self, target: &Target) -> Result<Held<'_>, Failure> {
        let volume = self.volume();
        let mut held = Held {
            volume,
            inode: self.start(target.base)?,
            holds: 0,
        };
        for name in &target.path {
            let entry = volume.lookup(held.inode, name)?;
            held = Held {
                volume,
                inode: entry.inode,
                holds: 1,
            };
        }
        Ok(held)
    }

    fn place<'a>(&self, at: &'a Target) -> Result<(Held<'_>, &'a Name), Failure> {
        let (directory, name) = at.split().ok_or_else(|| Failure::new(EINVAL))?;
        Ok((self.walk(&directory)?, name))
    }

    /// An entry that a call returned; releases its hold.
    fn entry(&self, entry: Result<pext4_fs::Entry, Error>) -> Outcome {
        let entry = entry?;
        self.volume().forget(entry.inode, 1);
        facts(&entry)
    }

    fn run_namespace(&mut self, op: &Op) -> Outcome {
        let volume = self.volume();
        match op {
            Op::Lookup(at) => {
                let (directory, name) = self.place(at)?;
                self.entry(volume.lookup(directory.inode, name))
            }
            Op::Create { at, new } => {
                let (directory, name) = self.place(at)?;
                self.entry(volume.create(directory.inode, name, &(*new).into()))
            }
            Op::MakeDirectory { at, new } => {
                let (directory, name) = self.place(at)?;
                self.entry(volume.make_directory(directory.inode, name, &(*new).into()))
            }
            Op::MakeNode {
                at,
                new,
                kind,
                device,
            } => self.make_node(at, *new, *kind, *device),
            Op::MakeSymlink { at, new, to } => {
                let (directory, name) = self.place(at)?;
                self.entry(volume.make_symlink(directory.inode, name, to, &(*new).into()))
            }
            Op::Link { of, at } => {
                let of = self.walk(of)?;
                let (directory, name) = self.place(at)?;
                self.entry(volume.link(of.inode, directory.inode, name))
            }
            Op::Unlink(at) => {
                let (directory, name) = self.place(at)?;
                done(volume.unlink(directory.inode, name))
            }
            Op::RemoveDirectory(at) => {
                let (directory, name) = self.place(at)?;
                done(volume.remove_directory(directory.inode, name))
            }
            Op::Rename { from, to, mode } => {
                let (old, old_name) = self.place(from)?;
                let (new, new_name) = self.place(to)?;
                done(volume.rename(old.inode, old_name, new.inode, new_name, *mode))
            }
            Op::List { directory, at_once } => self.list(directory, *at_once),
            _ => op.belongs_elsewhere(),
        }
    }

    fn make_node(
        &self,
        at: &Target,
        new: NewAttributes,
        kind: FileType,
        device: (u32, u32),
    ) -> Outcome {
        let (directory, name) = self.place(at)?;
        let number = DeviceNumber {
            major: device.0,
            minor: device.1,
        };
        let made = self
            .volume()
            .make_node(directory.inode, name, &new.into(), kind, number);
        self.entry(made)
    }

    fn run_slot(&mut self, op: &Op) -> Outcome {
        let (number, slot, answer) = match op {
            Op::Hold { of, slot } => {
                let mut held = self.walk(of)?;
                let holds = std::mem::take(&mut held.holds);
                let inode = held.inode;
                (*slot, Slot { inode, holds }, Answer::Done)
            }
            Op::CreateUnnamed {
                directory,
                new,
                slot,
            } => {
                let directory = self.walk(directory)?;
                let entry = self
                    .volume()
                    .create_unnamed(directory.inode, &(*new).into())?;
                let inode = entry.inode;
                let facts = Facts::from(&entry.attributes);
                (*slot, Slot { inode, holds: 1 }, Answer::File(facts))
            }
            Op::Release(slot) => {
                self.release(*slot);
                return Ok(Answer::Done);
            }
            _ => op.belongs_elsewhere(),
        };
        let before = self.slots.insert(number, slot);
        before
            .into_iter()
            .for_each(|before| self.release_slot(before));
        Ok(answer)
    }

    fn release(&mut self, slot: u8) {
        if let Some(slot) = self.slots.remove(&slot) {
            self.release_slot(slot);
        }
    }

    /// Passes a slot's holds to another slot that shares the inode, or returns them to the volume.
    fn release_slot(&mut self, gone: Slot) {
        let mut others = self.slots.values_mut();
        if let Some(heir) = others.find(|other| other.inode == gone.inode) {
            heir.holds += gone.holds;
        } else if gone.holds > 0 {
            self.volume().forget(gone.inode, gone.holds);
        }
    }

    fn list(&self, directory: &Target, at_once: u32) -> Outcome {
        let held = self.walk(directory)?;
        let mut entries = Vec::new();
        let mut cookie = 0;
        loop {
            let mut left = at_once.max(1);
            let mut last = None;
            self.volume()
                .read_directory(held.inode, cookie, &mut |entry| {
                    if left == 0 {
                        return false;
                    }
                    left -= 1;
                    last = Some(entry.next_cookie);
                    if entry.name != b"." && entry.name != b".." {
                        entries.push(Listed::from(entry));
                    }
                    true
                })?;
            match last {
                Some(next) => cookie = next,
                None => return Ok(Answer::Entries(entries)),
            }
        }
    }

    fn run_file(&mut self, op: &Op) -> Outcome {
        let volume = self.volume();
        match op {
            Op::Read { of, offset, length } => {
                let mut bytes = vec![0; *length as usize];
                let count = volume.read(self.walk(of)?.inode, *offset, &mut bytes)?;
                bytes.truncate(count);
                Ok(Answer::Bytes(bytes))
            }
            Op::Write {
                of,
                offset,
                length,
                fill,
            } => {
                let held = self.walk(of)?;
                let count = volume.write(held.inode, *offset, &pattern(*fill, *length as usize))?;
                Ok(Answer::Count(count as u64))
            }
            Op::Truncate { of, size } => self.change(
                of,
                &SetAttributes {
                    size: Some(*size),
                    ..SetAttributes::default()
                },
            ),
            Op::Allocate {
                of,
                mode,
                offset,
                length,
            } => done(volume.allocate(self.walk(of)?.inode, *mode, *offset, *length)),
            Op::SeekData { of, offset } => Ok(Answer::Offset(
                volume.seek_data(self.walk(of)?.inode, *offset)?,
            )),
            Op::SeekHole { of, offset } => Ok(Answer::Offset(
                volume.seek_hole(self.walk(of)?.inode, *offset)?,
            )),
            Op::SyncFile { of, data_only } => {
                let inode = self.walk(of)?.inode;
                done(match data_only {
                    true => volume.fdatasync(inode),
                    false => volume.fsync(inode),
                })
            }
            _ => op.belongs_elsewhere(),
        }
    }

    fn change(&self, of: &Target, change: &SetAttributes) -> Outcome {
        let held = self.walk(of)?;
        let after = self.volume().set_attributes(held.inode, change)?;
        if after.inode != held.inode {
            return Err(Failure {
                errno: EIO,
                text: format!("{} came back", after.inode),
            });
        }
        Ok(Answer::Done)
    }

    fn run_attribute(&mut self, op: &Op) -> Outcome {
        let volume = self.volume();
        let none = SetAttributes::default();
        match op {
            Op::SetMode { of, permissions } => self.change(
                of,
                &SetAttributes {
                    permissions: Some(*permissions),
                    ..none
                },
            ),
            Op::SetOwner { of, uid, gid } => self.change(
                of,
                &SetAttributes {
                    uid: Some(*uid),
                    gid: Some(*gid),
                    ..none
                },
            ),
            Op::SetTimes {
                of,
                accessed,
                modified,
            } => self.change(
                of,
                &SetAttributes {
                    accessed: *accessed,
                    modified: *modified,
                    ..none
                },
            ),
            Op::SetXattr {
                of,
                name,
                length,
                fill,
                mode,
            } => {
                let value = pattern(*fill, *length as usize);
                done(volume.set_xattr(self.walk(of)?.inode, name, &value, *mode))
            }
            Op::GetXattr { of, name } => {
                Ok(Answer::Bytes(volume.xattr(self.walk(of)?.inode, name)?))
            }
            Op::RemoveXattr { of, name } => done(volume.remove_xattr(self.walk(of)?.inode, name)),
            Op::ListXattrs(of) => Ok(Answer::Names(volume.xattr_names(self.walk(of)?.inode)?)),
            Op::ReadLink(of) => Ok(Answer::Bytes(volume.read_link(self.walk(of)?.inode)?)),
            Op::Stat(of) => {
                let attributes = volume.attributes(self.walk(of)?.inode)?;
                Ok(Answer::File(Facts::from(&attributes)))
            }
            _ => op.belongs_elsewhere(),
        }
    }

    fn statistics(&self) -> Outcome {
        let told = self.volume().statfs();
        Ok(Answer::Space(Space {
            blocks: told.blocks,
            free_blocks: told.free_blocks,
            inodes: told.inodes,
            free_inodes: told.free_inodes,
        }))
    }

    fn remount(&mut self) -> Outcome {
        self.close_volume()?;
        let volume = Volume::open(Arc::clone(&self.device), self.options.clone())?;
        self.volume = Some(Arc::new(volume));
        Ok(Answer::Done)
    }
}

impl Subject for VolumeSubject {
    /// All variants are listed here, so that none is forgotten.
    fn run(&mut self, op: &Op) -> Outcome {
        match op {
            Op::Lookup(_)
            | Op::Create { .. }
            | Op::MakeDirectory { .. }
            | Op::MakeNode { .. }
            | Op::MakeSymlink { .. }
            | Op::Link { .. }
            | Op::Unlink(_)
            | Op::RemoveDirectory(_)
            | Op::Rename { .. }
            | Op::List { .. } => self.run_namespace(op),
            Op::Hold { .. } | Op::CreateUnnamed { .. } | Op::Release(_) => self.run_slot(op),
            Op::Read { .. }
            | Op::Write { .. }
            | Op::Truncate { .. }
            | Op::Allocate { .. }
            | Op::SeekData { .. }
            | Op::SeekHole { .. }
            | Op::SyncFile { .. } => self.run_file(op),
            Op::SetMode { .. }
            | Op::SetOwner { .. }
            | Op::SetTimes { .. }
            | Op::SetXattr { .. }
            | Op::GetXattr { .. }
            | Op::RemoveXattr { .. }
            | Op::ListXattrs(_)
            | Op::ReadLink(_)
            | Op::Stat(_) => self.run_attribute(op),
            Op::Statistics => self.statistics(),
            Op::Sync => done(self.volume().sync()),
            Op::Remount => self.remount(),
        }
    }

    fn tree(&mut self) -> Result<Tree, Failure> {
        walk(self.volume(), self.root)
    }
}

impl Drop for VolumeSubject {
    fn drop(&mut self) {
        if self.volume.is_some() {
            self.release_slots();
        }
    }
}

fn done(result: Result<(), Error>) -> Outcome {
    result.map(|()| Answer::Done).map_err(Failure::from)
}
