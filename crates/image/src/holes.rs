//! How much of an image there is beside its holes.
//!
//! An image can claim any size: a file of a few MiB can be 16 TiB long. So what bounds the walk of
//! structures that may lead to the same blocks again and again is not the number of all blocks, but
//! of those that hold something.

use pext4_block::Device;

/// The number of blocks in holes that may be read nevertheless. A part of the image that was lost
/// may be one, with directories in it.
const MAX_IN_HOLES: u64 = 1 << 16;

/// How many of the first `count` blocks of a device may be read if each is read once: those with
/// data, and some in holes. All if the device does not know its holes, or if `is_cancelled` says
/// that the answer does not matter.
pub(crate) fn blocks_to_read(
    device: &dyn Device,
    block_size: u32,
    count: u64,
    is_cancelled: &dyn Fn() -> bool,
) -> u64 {
    let size = u64::from(block_size);
    let Some(end) = count.checked_mul(size) else {
        return count;
    };
    let (mut with_data, mut at) = (0, 0);
    while at < count {
        if is_cancelled() {
            return count;
        }
        match device.next_data(at * size, end) {
            Ok(Some(data)) => {
                let first = (data.start / size).max(at);
                let behind = data.end.div_ceil(size).max(first + 1);
                with_data += behind - first;
                at = behind;
            }
            Ok(None) => break,
            // The read tells what is wrong.
            Err(_) => return count,
        }
    }
    with_data + count.saturating_sub(with_data).min(MAX_IN_HOLES)
}

#[cfg(test)]
mod tests {
    use pext4_block::{Device, RamDevice};

    use super::{MAX_IN_HOLES, blocks_to_read};

    #[test]
    fn blocks_with_data_count_and_some_in_holes() {
        const BLOCKS: u64 = 1 << 32;
        let device = RamDevice::new(BLOCKS << 12);
        let count = |count| blocks_to_read(&device, 4096, count, &|| false);
        assert_eq!(count(BLOCKS), MAX_IN_HOLES);
        assert_eq!(count(100), 100);
        // A device in memory has pieces of sixteen blocks.
        for block in [5, 15, 1 << 20, BLOCKS - 1] {
            device.write_at(block << 12, b"data").expect("it fits");
        }
        assert_eq!(count(BLOCKS), 3 * 16 + MAX_IN_HOLES);
        assert_eq!(count(100), 100);
        assert_eq!(blocks_to_read(&device, 4096, BLOCKS, &|| true), BLOCKS);
        // Where it is not known, all is data.
        let unknown = pext4_block::OverlayDevice::new(std::sync::Arc::new(device));
        assert_eq!(blocks_to_read(&unknown, 4096, BLOCKS, &|| false), BLOCKS);
    }
}
