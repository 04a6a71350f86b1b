//! New inodes: number, owner, mode, times, an empty map, and inherited access control lists.

use std::sync::Arc;

use pext4_jbd2::Handle;
use pext4_ondisk::acl::{ACCESS, DEFAULT};
use pext4_ondisk::directory::{PERMISSIONS, SET_GROUP_ID};
use pext4_ondisk::extent;
use pext4_ondisk::feature::Incompat;
use pext4_ondisk::inode::{BLOCK_AREA, Inode as Slot, InodeFlags, inline};
use pext4_sync::atomic::Ordering;
use pext4_sync::time;

use super::projects;
use super::ready_lists::ReadyLists;
use crate::error::Refusal::AttributesFull;
use crate::error::Result;
use crate::ialloc::Placement;
use crate::inode::{Inode, Reach};
use crate::store::now;
use crate::types::{Acls, CreateAttributes, DeviceNumber, FileType, InodeNumber, SetXattrMode};
use crate::volume::Volume;
use crate::xattr;

/// Targets of symbolic links with fewer bytes than this are stored in the inode.
pub(super) const FAST_SYMLINK_END: usize = BLOCK_AREA;

/// The properties of an inode to be created.
pub(super) struct NewInode<'a> {
    pub kind: FileType,
    pub new: &'a CreateAttributes,
    pub device: DeviceNumber,
    pub target: &'a [u8],
    pub acls: Acls<'a>,
}

impl<'a> NewInode<'a> {
    pub fn new(kind: FileType, new: &'a CreateAttributes) -> Self {
        Self {
            kind,
            new,
            device: DeviceNumber::default(),
            target: &[],
            acls: Acls::default(),
        }
    }

    /// The access control lists as extended attributes: name and value.
    pub fn acl_attributes(&self) -> impl Iterator<Item = (&'static [u8], &'a [u8])> {
        let acls = [(ACCESS, self.acls.access), (DEFAULT, self.acls.default)];
        acls.into_iter()
            .filter_map(|(name, list)| Some((name, list?)))
    }

    /// Metadata blocks that setting the lists may dirty.
    pub fn acl_credits(&self) -> u32 {
        self.acl_attributes().map(|_| xattr::CREDITS).sum()
    }

    /// `inherits_bit`: whether a new directory gets the set-group-id bit of its directory.
    fn permissions(&self, inherits_bit: bool) -> u16 {
        let own = self.new.permissions & PERMISSIONS;
        if inherits_bit && self.kind == FileType::Directory {
            own | SET_GROUP_ID
        } else {
            own
        }
    }

    /// Whether the inode starts with an empty extent tree.
    fn is_mapped(&self) -> bool {
        match self.kind {
            FileType::Regular | FileType::Directory => true,
            FileType::Symlink => self.target.len() >= FAST_SYMLINK_END,
            _ => false,
        }
    }
}

impl Volume {
    /// Allocates a number and puts a new inode, held once and with its access control lists, into
    /// the table. If these have no room, nothing is left of it.
    pub(super) fn create_inode(
        &self,
        handle: &mut Handle<'_>,
        directory: &Inode,
        new_inode: &NewInode<'_>,
        ready: &ReadyLists,
    ) -> Result<Arc<Inode>> {
        let is_top = directory.number() == InodeNumber::ROOT
            || directory.flags().contains(InodeFlags::TOPDIR);
        let placement = match new_inode.kind {
            FileType::Directory if is_top => Placement::TopDirectory,
            FileType::Directory => Placement::Directory,
            _ => Placement::File,
        };
        let number = self
            .inodes
            .groups
            .allocate_inode(handle, directory.number(), placement)?;
        let slot = self.first_slot(directory, new_inode, number);
        let inode = self
            .inodes
            .insert_new(handle, number, slot, new_inode.kind)?;
        if let Err(error) = self.set_acls(handle, &inode, new_inode, ready) {
            self.discard_new_inode(handle, &inode)?;
            return Err(error);
        }
        Ok(inode)
    }

    /// As [`Volume::create_inode`], for a regular file without a name, which a crash frees.
    pub(super) fn create_unnamed_inode(
        &self,
        handle: &mut Handle<'_>,
        parent: &Inode,
        new: &CreateAttributes,
    ) -> Result<Arc<Inode>> {
        let new_inode = NewInode::new(FileType::Regular, new);
        let inode = self.create_inode(handle, parent, &new_inode, &ReadyLists::default())?;
        inode.edit(handle, Reach::Data, |state| state.slot.links = 0);
        // The chain of orphans begins with the newest, so this changes no other inode.
        self.inodes.add_orphan(handle, &inode)?;
        Ok(inode)
    }

    fn set_acls(
        &self,
        handle: &mut Handle<'_>,
        inode: &Arc<Inode>,
        new_inode: &NewInode<'_>,
        ready: &ReadyLists,
    ) -> Result<()> {
        for (name, list) in new_inode.acl_attributes() {
            let before = handle.changes();
            let mode = SetXattrMode::Create;
            let set = match ready.value_of(name) {
                Some(value) => self
                    .refer_to_value(handle, inode, name, value, mode)
                    // A value that has ended meanwhile is one that is not ready.
                    .and_then(|is_set| is_set.then_some(()).ok_or(AttributesFull.into())),
                None => xattr::set(&self.inodes, handle, inode, name, list, mode),
            };
            self.stop_if_half_done(handle, before, set)?;
        }
        Ok(())
    }

    /// Gives the owners of a new inode in this directory entries in the quota files. The caller
    /// holds the directory's lock, so these do not change, and has no handle.
    pub(super) fn prepare_owners_of_new(
        &self,
        directory: &Inode,
        new: &CreateAttributes,
    ) -> Result<()> {
        if self.quotas.is_none() {
            return Ok(());
        }
        let (parent_mode, parent_gid) = directory.mode_and_group();
        let gid = self.group_of_new(parent_mode, parent_gid, new);
        self.prepare_owners([new.uid, gid, projects::of_new_inode(directory)])
    }

    /// Gives a user, a group and a project entries in the quota files, before an inode gets them as
    /// its owners. The caller has no handle.
    pub(super) fn prepare_owners(&self, owners: [u32; 3]) -> Result<()> {
        match &self.quotas {
            Some(quotas) => quotas.prepare(&self.inodes, owners),
            None => Ok(()),
        }
    }

    /// As [`Volume::prepare_owners`], for an inode that exists: finds out too what its owners are
    /// charged for. The caller holds the inode's lock.
    pub(super) fn prepare_owners_of(&self, inode: &Inode, owners: [u32; 3]) -> Result<()> {
        if self.quotas.is_none() {
            return Ok(());
        }
        let values = xattr::value_count(&self.inodes, inode)?;
        inode.note(|state| state.know_values(values));
        self.prepare_owners(owners)
    }

    fn group_of_new(&self, parent_mode: u16, parent_gid: u32, new: &CreateAttributes) -> u32 {
        let inherits = parent_mode & SET_GROUP_ID != 0 || self.inodes.store.inherits_group;
        if inherits { parent_gid } else { new.gid }
    }

    fn first_slot(&self, directory: &Inode, new_inode: &NewInode<'_>, number: InodeNumber) -> Slot {
        let store = &self.inodes.store;
        let (parent_mode, parent_gid) = directory.mode_and_group();
        // As in Linux, no bit is inherited where every inode gets its directory's group anyway.
        let inherits_bit = parent_mode & SET_GROUP_ID != 0 && !store.inherits_group;
        let time = now();
        let mut slot = Slot::new(store.geometry.inode_size, self.new_inode_extra_size);
        slot.mode = new_inode.kind.to_mode() | new_inode.permissions(inherits_bit);
        slot.uid = new_inode.new.uid;
        slot.gid = self.group_of_new(parent_mode, parent_gid, new_inode.new);
        slot.links = if new_inode.kind == FileType::Directory {
            2
        } else {
            1
        };
        slot.generation = self.next_generation(number);
        slot.accessed = time;
        slot.modified = time;
        slot.changed = time;
        if let Some(created) = &mut slot.created {
            *created = time;
        }
        slot.flags = directory.flags() & inherited_flags(new_inode.kind);
        if !self.directories.folds() {
            slot.flags.remove(InodeFlags::CASEFOLD);
        }
        slot.project = projects::of_new_inode(directory);
        if self.begins_inline && begin_inline(&mut slot, new_inode, directory.number(), self) {
            return slot;
        }
        if new_inode.is_mapped() && store.features.has_incompat(Incompat::EXTENTS) {
            slot.flags |= InodeFlags::EXTENTS;
            slot.block = extent::empty_root();
        }
        if matches!(
            new_inode.kind,
            FileType::CharacterDevice | FileType::BlockDevice
        ) {
            slot.set_device(new_inode.device.major, new_inode.device.minor);
        }
        slot
    }

    /// A generation that almost certainly differs from the one that this number had last.
    fn next_generation(&self, number: InodeNumber) -> u32 {
        if let Some(next) = &self.counted_generation {
            return next.fetch_add(1, Ordering::Relaxed);
        }
        // The clock that stamps files ticks too slowly to distinguish two uses of one number.
        let running = time::now();
        let mut mixed = self.generation_seed
            ^ (u64::from(number.get()) << 32)
            ^ u64::from(running.subsec_nanos())
            ^ running.as_secs().rotate_left(20);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        u32::try_from((mixed ^ (mixed >> 31)) & 0xFFFF_FFFF).expect("masked to 32 bits")
    }
}

/// Puts the content of a new file or directory into its slot, if there is room; returns whether it
/// did. Symbolic links are excluded, as on Linux: e2fsck 1.47 does not see the attribute block of a
/// link whose target is stored there.
fn begin_inline(
    slot: &mut Slot,
    new_inode: &NewInode<'_>,
    parent: InodeNumber,
    volume: &Volume,
) -> bool {
    let content = match new_inode.kind {
        FileType::Regular => Vec::new(),
        FileType::Directory => {
            inline::empty_directory(parent, volume.directories.plain().format).to_vec()
        }
        _ => return false,
    };
    let fits = slot.set_inline_content(&content).is_ok();
    if fits {
        slot.size = content.len() as u64;
    }
    fits
}

/// Flags that a new inode of this kind inherits from its directory.
fn inherited_flags(kind: FileType) -> InodeFlags {
    let all = InodeFlags::SECRM
        | InodeFlags::UNRM
        | InodeFlags::COMPR
        | InodeFlags::NOTAIL
        | InodeFlags::SYNC
        | InodeFlags::NODUMP
        | InodeFlags::NOATIME
        | InodeFlags::DAX;
    match kind {
        FileType::Directory => {
            all | InodeFlags::DIRSYNC | InodeFlags::PROJINHERIT | InodeFlags::CASEFOLD
        }
        FileType::Regular => all,
        _ => InodeFlags::NODUMP | InodeFlags::NOATIME,
    }
}
