//! Writing blocks to their places: those that are neighbours on the device in one vectored write.

use std::io::{self, IoSlice};

use pext4_ondisk::BlockNumber;

use crate::device::Device;
use crate::page::Page;

/// The maximum number of slices in one vectored write. Systems take 1024 in one call, so this is
/// never more than one call.
pub const MAX_SLICES: usize = 512;

/// Writes each page to its block. `pages` must be sorted by block. Does not flush.
///
/// # Errors
///
/// Those of the device; `InvalidInput` for a block that no device has.
pub fn write_pages(device: &dyn Device, pages: &[(BlockNumber, Page)]) -> io::Result<()> {
    let mut rest = pages;
    while let Some((first, page)) = rest.first() {
        let count = neighbours(rest);
        let (now, later) = rest.split_at(count);
        let slices: Vec<IoSlice<'_>> = now.iter().map(|(_, page)| IoSlice::new(page)).collect();
        let offset = first.get().checked_mul(page.len() as u64);
        let offset = offset.ok_or(io::ErrorKind::InvalidInput)?;
        device.write_vectored_at(offset, &slices)?;
        rest = later;
    }
    Ok(())
}

/// How many blocks at the start of `pages` are adjacent on the device.
fn neighbours(pages: &[(BlockNumber, Page)]) -> usize {
    let pairs = pages.windows(2).take(MAX_SLICES - 1);
    1 + pairs
        .take_while(|pair| pair[0].0.checked_add(1u32) == Some(pair[1].0))
        .count()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use super::{BlockNumber, Page, write_pages};
    use crate::{Device, RamDevice, RecordDevice};

    #[test]
    fn neighbours_go_together() {
        let device = RecordDevice::new(Arc::new(RamDevice::new(64 * 1024)));
        let pages: Vec<_> = [1u8, 2, 3, 7, 9, 10]
            .map(|block| (BlockNumber(block.into()), Page::from(vec![block; 1024])))
            .into();
        write_pages(&device, &pages).expect("a ram device works");
        let mut block = [0; 1024];
        for (number, page) in &pages {
            device
                .read_at(number.get() * 1024, &mut block)
                .expect("a ram device works");
            assert_eq!(block, **page);
        }
        assert_eq!(device.events().len(), 3, "1 to 3, 7, 9 and 10");
    }
}
