//! The label of a mounted volume.

use pext4_ondisk::superblock::{self, Superblock};

use crate::error::{Refusal, Result};
use crate::volume::Volume;

/// Longest label in bytes.
const LABEL_LENGTH: usize = 16;

impl Volume {
    /// The label, without the zeroes that pad its field.
    #[must_use]
    pub fn label(&self) -> Vec<u8> {
        let field = self
            .inodes
            .store
            .superblock(|superblock| superblock.volume_name);
        field.into_iter().take_while(|&byte| byte != 0).collect()
    }

    /// Sets the label: at most 16 bytes, none of them zero. The copies of the superblock are
    /// written at once, since users look for them by the label. After a power cut the copies may
    /// have another label than the superblock.
    ///
    /// # Errors
    ///
    /// `Refused(Invalid | ReadOnly)`, the journal's once it has stopped, `Io`.
    pub fn set_label(&self, label: &[u8]) -> Result<()> {
        if label.len() > LABEL_LENGTH || label.contains(&0) {
            return Err(Refusal::Invalid.into());
        }
        self.run(|| {
            let mut field = [0; LABEL_LENGTH];
            field[..label.len()].copy_from_slice(label);
            let mut handle = self.inodes.store.start(1)?;
            self.inodes
                .store
                .edit_superblock(&mut handle, |superblock| superblock.volume_name = field);
            drop(handle);
            self.label_copies(field)
        })
    }

    /// Writes the label to the copies of the superblock. Nothing else writes to the copies while a
    /// volume is mounted, so they are in no transaction. A copy that is damaged or belongs to
    /// another file system stays as it is.
    fn label_copies(&self, field: [u8; LABEL_LENGTH]) -> Result<()> {
        let store = &self.inodes.store;
        let uuid = store.superblock(|superblock| superblock.uuid);
        let groups = store.geometry.groups().skip(1);
        for block in groups.filter_map(|group| store.geometry.superblock_copy(group)) {
            let offset = block.get() * u64::from(store.block_size());
            let mut bytes = [0; superblock::SIZE];
            store.device.read_at(offset, &mut bytes)?;
            match Superblock::decode(&bytes) {
                Ok(mut copy) if copy.uuid == uuid => {
                    copy.volume_name = field;
                    store.device.write_at(offset, &copy.encode())?;
                }
                _ => {}
            }
        }
        Ok(())
    }
}
