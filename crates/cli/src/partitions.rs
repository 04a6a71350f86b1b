//! Recognises a disk with partitions where an ext4 file system was expected, so that the error can
//! say how to reach one of them.

use std::io;
use std::path::Path;

use anyhow::{Result, bail};
use pext4_block::Device;
use pext4_ondisk::superblock::{self, Superblock};

/// Where the superblock begins.
const SUPERBLOCK: usize = superblock::OFFSET as usize;
/// The bytes of the first sector.
const SECTOR: usize = 512;
/// Where the first sector has the table of primary partitions, and the length of an entry.
const TABLE: usize = 446;
const ENTRY: usize = 16;

/// Fails if a device has a partition table and no ext4 superblock. Also a disk with a GUID
/// partition table has the old one in its first sector.
///
/// # Errors
///
/// The device is such a disk. One that cannot be read is no error here.
pub fn refuse_disk(device: &dyn Device, image: &Path) -> Result<()> {
    refuse_disk_of(image, |offset, into| device.read_at(offset, into))
}

/// As [`refuse_disk`], for a command that takes no offset: it changes the size of a file, which a
/// part of a disk cannot follow.
///
/// # Errors
///
/// As [`refuse_disk`].
pub fn refuse_whole_disk(device: &dyn Device, image: &Path) -> Result<()> {
    if is_disk(|offset, into| device.read_at(offset, into)) {
        let image = image.display();
        bail!(
            "{image}: it is a disk with partitions, not an ext4 file system; resize works on a whole \
             image or on the block device of a partition: `losetup --find --show -o BYTES \
             --sizelimit BYTES {image}` makes one, and `fdisk -l {image}` shows where it begins and \
             how long it is, in sectors of 512 bytes"
        );
    }
    Ok(())
}

/// As [`refuse_disk`], with the bytes of the device from `read`, which fills a buffer from an
/// offset.
///
/// # Errors
///
/// As [`refuse_disk`].
pub fn refuse_disk_of(image: &Path, read: impl Fn(u64, &mut [u8]) -> io::Result<()>) -> Result<()> {
    if is_disk(read) {
        let image = image.display();
        bail!(
            "{image}: it is a disk with partitions, not an ext4 file system; `fdisk -l {image}` shows \
             where they begin, in sectors of 512 bytes: mount one with `-o offset=BYTES`, and give other \
             commands `--offset BYTES`"
        );
    }
    Ok(())
}

fn is_disk(read: impl Fn(u64, &mut [u8]) -> io::Result<()>) -> bool {
    let mut start = [0; SUPERBLOCK + superblock::SIZE];
    if read(0, &mut start).is_err() {
        // Opening the file system tells what is wrong.
        return false;
    }
    let bytes = start[SUPERBLOCK..].first_chunk().expect("it is as long");
    let is_ext4 = Superblock::magic_of(bytes) == superblock::MAGIC;
    is_partition_table(&start[..SECTOR]) && !is_ext4
}

/// Whether the first sector of a disk has a table of primary partitions, one at least.
fn is_partition_table(sector: &[u8]) -> bool {
    let entries = sector[TABLE..SECTOR - 2].chunks_exact(ENTRY);
    // The first byte of an entry tells whether it is booted, the fifth its kind, 0 if it is free.
    sector.ends_with(&[0x55, 0xAA])
        && entries.clone().all(|entry| entry[0] & 0x7F == 0)
        && entries.clone().any(|entry| entry[4] != 0)
}

#[cfg(test)]
mod tests {
    use super::{SECTOR, TABLE, is_partition_table};

    #[test]
    fn a_boot_sector_alone_is_no_partition_table() {
        let mut sector = [0; SECTOR];
        sector[SECTOR - 2..].copy_from_slice(&[0x55, 0xAA]);
        assert!(!is_partition_table(&sector), "no partition");
        sector[TABLE + 4] = 0x83;
        assert!(is_partition_table(&sector));
        sector[TABLE] = 0x80;
        assert!(is_partition_table(&sector), "one that is booted");
        sector[TABLE] = b'M';
        assert!(!is_partition_table(&sector), "code or text");
        sector[TABLE] = 0;
        sector[SECTOR - 1] = 0;
        assert!(!is_partition_table(&sector), "no signature");
    }
}
