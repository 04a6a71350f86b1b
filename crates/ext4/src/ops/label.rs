//! The volume's name, while it is mounted.

use super::INODE_CREDITS;
use crate::error::{Refusal, Result};
use crate::volume::Volume;

/// Longest label in bytes.
const LABEL_LENGTH: usize = 16;

impl Volume {
    /// The label, without the zeroes that fill its field.
    #[must_use]
    pub fn label(&self) -> Vec<u8> {
        let field = self
            .inodes
            .store
            .superblock(|superblock| superblock.volume_name);
        field.into_iter().take_while(|&byte| byte != 0).collect()
    }

    /// Gives the volume another label, of at most 16 bytes, none of them zero. Copies of the
    /// superblock keep the old one.
    ///
    /// # Errors
    ///
    /// `Refused(Invalid | ReadOnly)`, the journal's once it has stopped.
    pub fn set_label(&self, label: &[u8]) -> Result<()> {
        if label.len() > LABEL_LENGTH || label.contains(&0) {
            return Err(Refusal::Invalid.into());
        }
        self.run(|| {
            let mut field = [0; LABEL_LENGTH];
            field[..label.len()].copy_from_slice(label);
            let mut handle = self.inodes.store.start(INODE_CREDITS)?;
            self.inodes
                .store
                .edit_superblock(&mut handle, |superblock| superblock.volume_name = field);
            Ok(())
        })
    }
}
