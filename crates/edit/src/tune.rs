//! Changes of the superblock: label, UUID, the blocks kept for root, the reaction to errors.
//!
//! They are made on the staged image when the volume is closed, since a volume keeps the superblock
//! to itself, and reach the image with all other changes of the session. The copies of the
//! superblock get them too: users and e2fsck look for these by label and UUID.
//!
//! Most checksums of a file system begin with its UUID. With `metadata_csum` they begin with a seed
//! that is made of it, and `metadata_csum_seed` stores the old seed beside a new UUID, so that no
//! other block changes. With `uninit_bg` the group descriptors are written anew.

use pext4_block::Device;
use pext4_ondisk::checksum::{Checksums, INITIAL, crc32c};
use pext4_ondisk::feature::{Compat, Incompat};
use pext4_ondisk::geometry::Geometry;
use pext4_ondisk::group_descriptor::GroupDescriptor;
use pext4_ondisk::superblock::{self, ErrorPolicy, LABEL_BYTES, Superblock};
use pext4_ondisk::{BlockNumber, GroupNumber};

use crate::error::{EditError, Result};
use crate::free::read_superblock;
use crate::session::EditSession;

/// The maximum share of the blocks that can be kept for root, as of tune2fs.
const MAX_RESERVED_PERCENT: f64 = 50.0;

/// What is noted of a new UUID that needs a stored seed.
const NEW_FEATURE: &str = "with its new UUID the image gets the feature `metadata_csum_seed`, which \
                           boot loaders such as GRUB 2.06 do not read (`tune2fs -U` writes all \
                           checksums anew instead)";

/// What is to be different in the superblock; `None` stays as it is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tuning {
    /// The label: at most 16 bytes, none of them zero.
    pub label: Option<Vec<u8>>,
    /// The UUID.
    pub uuid: Option<[u8; 16]>,
    /// The share of the blocks that are kept for root, from 0 to 50 percent.
    pub reserved_percent: Option<f64>,
    /// The reaction to errors; not [`ErrorPolicy::Unknown`].
    pub errors: Option<ErrorPolicy>,
}

impl EditSession {
    /// Changes the superblock. The changes show when the session is committed, not on its volume;
    /// of several calls the last one counts for each value.
    ///
    /// # Errors
    ///
    /// `Refused`: a value cannot be, or the image cannot get another UUID, whose reason the text
    /// names.
    pub fn tune(&mut self, tuning: &Tuning) -> Result<()> {
        self.change(|session| {
            session.check_tuning(tuning)?;
            session.add_tuning(tuning);
            session.note_new_feature(tuning);
            Ok(())
        })
    }

    /// Notes that a new UUID turns on a feature.
    fn note_new_feature(&mut self, tuning: &Tuning) {
        let before = self.superblock_before();
        let is_new = tuning.uuid.is_some_and(|uuid| uuid != before.uuid);
        if is_new && needs_seed(before) && !self.notes().iter().any(|note| note == NEW_FEATURE) {
            self.note(NEW_FEATURE.to_owned());
        }
    }

    fn check_tuning(&self, tuning: &Tuning) -> Result<()> {
        if let Some(label) = &tuning.label
            && (label.len() > LABEL_BYTES || label.contains(&0))
        {
            let problem = format!("a label has at most {LABEL_BYTES} bytes, none of them NUL");
            return Err(EditError::Refused(problem));
        }
        if let Some(percent) = tuning.reserved_percent
            && !(0.0..=MAX_RESERVED_PERCENT).contains(&percent)
        {
            return Err(EditError::Refused(format!(
                "{percent} percent cannot be kept for root: 0 to {MAX_RESERVED_PERCENT} can"
            )));
        }
        if let Some(ErrorPolicy::Unknown(number)) = tuning.errors {
            let problem = format!("no reaction to errors has the number {number}");
            return Err(EditError::Refused(problem));
        }
        if tuning.uuid.is_some()
            && let Some(feature) = feature_against_new_uuid(self.superblock_before())
        {
            let problem =
                format!("it cannot get another UUID: its feature `{feature}` uses the old one");
            return Err(self.refused(&problem));
        }
        Ok(())
    }
}

impl Tuning {
    /// This, and for what it leaves as it is `before`.
    pub(crate) fn or(&self, before: &Self) -> Self {
        Self {
            label: self.label.clone().or_else(|| before.label.clone()),
            uuid: self.uuid.or(before.uuid),
            reserved_percent: self.reserved_percent.or(before.reserved_percent),
            errors: self.errors.or(before.errors),
        }
    }

    /// Changes the superblock on a device, its copies, and what has checksums by the UUID.
    ///
    /// # Errors
    ///
    /// `Corrupt`, `Io`.
    pub(crate) fn apply(&self, device: &dyn Device) -> pext4_fs::Result<()> {
        let old = read_superblock(device)?;
        let mut new = old.clone();
        self.change(&mut new);
        if new == old {
            return Ok(());
        }
        let (before, after) = (Geometry::of(&old)?, Geometry::of(&new)?);
        device.write_at(superblock::OFFSET, &new.encode())?;
        let groups = before.groups().skip(1);
        for block in groups.filter_map(|group| before.superblock_copy(group)) {
            let offset = block.get() * u64::from(before.block_size);
            let mut bytes = [0; superblock::SIZE];
            device.read_at(offset, &mut bytes)?;
            // A damaged copy stays as it is, as one of another file system does.
            if let Ok(mut copy) = Superblock::decode(&bytes)
                && copy.uuid == old.uuid
            {
                self.change(&mut copy);
                device.write_at(offset, &copy.encode())?;
            }
        }
        if matches!(before.checksums, Checksums::DescriptorsOnly { .. })
            && before.checksums != after.checksums
        {
            for index in 0..before.descriptor_blocks {
                let primary = before.descriptor_block(index);
                sign(device, primary, index, &before, &after)?;
                for copy in before.descriptor_block_copies(index) {
                    sign(device, copy, index, &before, &after)?;
                }
            }
        }
        Ok(())
    }

    fn change(&self, superblock: &mut Superblock) {
        if let Some(label) = &self.label {
            superblock.volume_name = [0; LABEL_BYTES];
            superblock.volume_name[..label.len()].copy_from_slice(label);
        }
        if let Some(percent) = self.reserved_percent {
            let blocks = superblock.blocks_count;
            superblock.reserved_blocks = superblock::reserved_blocks(blocks, percent);
        }
        if let Some(errors) = self.errors {
            superblock.errors = errors;
        }
        let Some(uuid) = self.uuid.filter(|&uuid| uuid != superblock.uuid) else {
            return;
        };
        if needs_seed(superblock) {
            superblock.checksum_seed = crc32c(INITIAL, &superblock.uuid);
            superblock.features.incompat |= Incompat::CSUM_SEED;
        }
        superblock.uuid = uuid;
    }
}

/// Whether the checksums need a stored seed once the UUID is another one.
fn needs_seed(superblock: &Superblock) -> bool {
    let is_seeded = superblock.features.has_incompat(Incompat::CSUM_SEED);
    Checksums::of(superblock).seed().is_some() && !is_seeded
}

/// The feature that forbids another UUID.
fn feature_against_new_uuid(superblock: &Superblock) -> Option<&'static str> {
    let features = &superblock.features;
    let is_seeded = features.has_incompat(Incompat::CSUM_SEED);
    if features.has_compat(Compat::STABLE_INODES) {
        return Some("stable_inodes");
    }
    // Without `metadata_csum` there may be no stored seed, but the values have hashes by it.
    let has_seed = is_seeded || Checksums::of(superblock).seed().is_some();
    (features.has_incompat(Incompat::EA_INODE) && !has_seed).then_some("ea_inode")
}

/// Gives the descriptors of one block their checksums by the new UUID. Those without a checksum by
/// the old one stay as they are: only copies can have such.
fn sign(
    device: &dyn Device,
    block: BlockNumber,
    index: u32,
    before: &Geometry,
    after: &Geometry,
) -> pext4_fs::Result<()> {
    let offset = block.get() * u64::from(before.block_size);
    let mut bytes = vec![0; before.block_size as usize];
    device.read_at(offset, &mut bytes)?;
    let first = index * before.descriptors_per_block;
    let slots = bytes.chunks_exact_mut(usize::from(before.descriptor_size));
    for (number, slot) in (first..before.group_count).zip(slots) {
        let group = GroupNumber(number);
        if let Ok(descriptor) = GroupDescriptor::decode(slot, before, group) {
            descriptor.encode(slot, after, group);
        }
    }
    Ok(device.write_at(offset, &bytes)?)
}
