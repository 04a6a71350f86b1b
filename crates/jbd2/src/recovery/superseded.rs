//! The versions of blocks in the log that later transactions write again. A replay needs none of
//! them, so damage to them is harmless here. Linux verifies them nevertheless, and refuses the log.

use pext4_block::Device;
use pext4_ondisk::BlockNumber;

use super::LogReader;
use super::replay::Replay;

impl Replay {
    /// The homes of the superseded versions that cannot be read or whose checksums are wrong, in
    /// the order of the log. Empty if the log has no checksums of blocks. A replay does not read
    /// these versions; this does, all of them.
    #[must_use]
    pub fn damaged_superseded(&self, device: &dyn Device) -> Vec<BlockNumber> {
        let log = LogReader {
            device,
            area: &self.area,
            format: self.format,
            ring: self.ring,
        };
        if !log.format.is_summed() {
            return Vec::new();
        }
        let is_sound = |bytes: Vec<u8>, tid, sum| log.format.data_checksum(tid, &bytes) == sum;
        self.superseded
            .iter()
            .filter(|block| {
                let bytes = log.read_block(block.at);
                !bytes.is_ok_and(|bytes| is_sound(bytes, block.tid, block.checksum))
            })
            .map(|block| block.home)
            .collect()
    }
}
