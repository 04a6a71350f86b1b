//! The device under an edit session. It holds back the session's writes, so that the image stays
//! unchanged until the session commits.
//!
//! Blocks that the session writes are kept in memory. Once those whose home is free in the image
//! exceed a limit, they are written there, and from then on such blocks are written through:
//! nothing refers to them, so large files take no memory. Blocks whose home is in use stay in
//! memory until the end and become one transaction of the journal. If there are too many of them,
//! the session writes all blocks to a clone ([`Staging::switch_to`]), and later writes go to the
//! clone. So it does at the latest at its end if there is no journal.
//!
//! What was written to free homes of a sparse image has taken space of the host. If the session is
//! given up, these blocks are discarded, so that the image takes no more space than before.
//!
//! `flush` does nothing: the session makes its changes durable at its end.
//!
//! Locking: one mutex, of a class that comes before the devices'. The session has one thread, and
//! the journal's committer writes home through this device.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use pext4_block::{Device, Page, write_pages};
use pext4_ondisk::BlockNumber;
use pext4_sync::{Class, Mutex};
use rangemap::RangeSet;

use crate::free::FreeMap;

/// A device that stages its writes.
pub(crate) struct Staging {
    size: u64,
    block_size: u64,
    /// The image, if its space is given back when the session is given up.
    sparse_image: Option<Arc<dyn Device>>,
    inner: Mutex<Inner>,
}

struct Inner {
    below: Arc<dyn Device>,
    free: FreeMap,
    blocks: BTreeMap<u64, StagedBlock>,
    /// How many of the blocks have a home that is in use.
    used: usize,
    /// The maximum number of free blocks kept in memory.
    max_free: usize,
    /// The blocks of the image that were written to their homes. All of them are free in it.
    written: RangeSet<u64>,
    mode: Mode,
}

/// A block that was written, in memory.
struct StagedBlock {
    page: Page,
    /// Whether its home is free in the image.
    free: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// All writes stay in memory.
    Memory,
    /// Blocks whose home is free are written there, all others stay in memory.
    WriteThrough,
    /// Everything is written to a clone.
    Clone,
    /// The session was dropped: later writes are discarded.
    Abandoned,
}

/// The blocks that a session changed.
pub(crate) struct Changes {
    /// Blocks whose home is in use and has other bytes.
    pub(crate) used: Vec<(BlockNumber, Page)>,
    /// Blocks whose home is free, all that are in memory.
    pub(crate) free: Vec<(BlockNumber, Page)>,
}

impl Staging {
    /// Stages writes to `below`. `memory` is the maximum number of bytes of free blocks that are
    /// kept in memory. Blocks that were written to `below` are discarded by [`Staging::abandon`] if
    /// it `is_sparse`; of another image they would take space that belongs to it.
    pub(crate) fn new(
        below: Arc<dyn Device>,
        free: FreeMap,
        block_size: u32,
        memory: usize,
        is_sparse: bool,
    ) -> Self {
        Self {
            size: below.size(),
            block_size: u64::from(block_size),
            sparse_image: is_sparse.then(|| Arc::clone(&below)),
            inner: Mutex::new(
                Class::Checkpoint,
                Inner {
                    below,
                    free,
                    blocks: BTreeMap::new(),
                    used: 0,
                    max_free: memory / block_size as usize,
                    written: RangeSet::new(),
                    mode: Mode::Memory,
                },
            ),
        }
    }

    /// The number of blocks in use that have been written so far.
    pub(crate) fn used(&self) -> usize {
        self.inner.lock().used
    }

    /// The number of blocks in memory.
    pub(crate) fn held(&self) -> usize {
        self.inner.lock().blocks.len()
    }

    /// Whether everything goes to a clone.
    pub(crate) fn is_on_clone(&self) -> bool {
        self.inner.lock().mode == Mode::Clone
    }

    /// Drops the staged blocks and later writes, and discards what was written to the image.
    pub(crate) fn abandon(&self) {
        let mut inner = self.inner.lock();
        inner.mode = Mode::Abandoned;
        inner.blocks.clear();
        let written = std::mem::take(&mut inner.written);
        drop(inner);
        self.give_back(&written);
    }

    /// Writes blocks, which must be sorted, to their homes, which must be free in the image.
    pub(crate) fn write_free(&self, pages: &[(BlockNumber, Page)]) -> io::Result<()> {
        self.inner.lock().write_free(pages)
    }

    /// The blocks of the image that were written so far. [`Staging::abandon`] does not
    /// discard them any more.
    pub(crate) fn take_written(&self) -> RangeSet<u64> {
        std::mem::take(&mut self.inner.lock().written)
    }

    /// Discards blocks that were written to the image, which must be free in it, if it is sparse.
    pub(crate) fn give_back(&self, written: &RangeSet<u64>) {
        let Some(image) = &self.sparse_image else {
            return;
        };
        for run in written.iter() {
            let length = (run.end - run.start) * self.block_size;
            // If this fails, the image takes more space, and its content is the same.
            let _ = image.discard(run.start * self.block_size, length);
        }
    }

    /// The staged blocks. Blocks in use that have the same bytes as the image are left out.
    pub(crate) fn changes(&self) -> io::Result<Changes> {
        let inner = self.inner.lock();
        let mut changes = Changes {
            used: Vec::new(),
            free: Vec::new(),
        };
        let mut old = vec![0; self.page_size()];
        for (&block, staged) in &inner.blocks {
            if staged.free {
                changes.free.push((BlockNumber(block), staged.page.clone()));
                continue;
            }
            inner.below.read_at(block * self.block_size, &mut old)?;
            if *old != *staged.page {
                changes.used.push((BlockNumber(block), staged.page.clone()));
            }
        }
        Ok(changes)
    }

    /// Writes the staged blocks to `clone`, a copy of the device below, and sends all later writes
    /// there.
    pub(crate) fn switch_to(&self, clone: Arc<dyn Device>) -> io::Result<()> {
        let mut inner = self.inner.lock();
        let blocks = std::mem::take(&mut inner.blocks);
        let pages: Vec<_> = blocks
            .into_iter()
            .map(|(block, staged)| (BlockNumber(block), staged.page))
            .collect();
        write_pages(&*clone, &pages)?;
        inner.below = clone;
        inner.used = 0;
        inner.mode = Mode::Clone;
        Ok(())
    }

    fn page_size(&self) -> usize {
        usize::try_from(self.block_size).expect("a block fits memory")
    }
}

impl Inner {
    /// Writes a part of a block.
    fn write_part(
        &mut self,
        block: u64,
        block_size: u64,
        within: usize,
        from: &[u8],
    ) -> io::Result<()> {
        if let Some(staged) = self.blocks.get_mut(&block) {
            staged.page.make_mut()[within..within + from.len()].copy_from_slice(from);
            return Ok(());
        }
        let free = self.free.is_free(&*self.below, block)?;
        if free && self.mode == Mode::WriteThrough {
            self.written.insert(block..block + 1);
            return self
                .below
                .write_at(block * block_size + within as u64, from);
        }
        let size = usize::try_from(block_size).expect("a block fits memory");
        let page = if from.len() == size {
            Page::from(from)
        } else {
            let mut bytes = vec![0; size];
            self.below.read_at(block * block_size, &mut bytes)?;
            bytes[within..within + from.len()].copy_from_slice(from);
            Page::from(bytes)
        };
        self.used += usize::from(!free);
        self.blocks.insert(block, StagedBlock { page, free });
        Ok(())
    }

    fn write_free(&mut self, pages: &[(BlockNumber, Page)]) -> io::Result<()> {
        // First, since a write that fails may have been made in part.
        for (block, _) in pages {
            self.written.insert(block.get()..block.get() + 1);
        }
        write_pages(&*self.below, pages)
    }

    /// Writes free blocks to their homes once there are more than `max_free`.
    fn spill(&mut self) -> io::Result<()> {
        if self.mode != Mode::Memory || self.blocks.len() - self.used <= self.max_free {
            return Ok(());
        }
        let free = |staged: &StagedBlock| staged.free;
        let pages: Vec<_> = self
            .blocks
            .iter()
            .filter(|(_, staged)| free(staged))
            .map(|(&block, staged)| (BlockNumber(block), staged.page.clone()))
            .collect();
        self.write_free(&pages)?;
        self.blocks.retain(|_, staged| !free(staged));
        self.mode = Mode::WriteThrough;
        Ok(())
    }

    /// How many of the `max` blocks from `block` on can be written through together.
    fn write_through(&mut self, block: u64, max: u64) -> io::Result<u64> {
        if self.mode != Mode::WriteThrough {
            return Ok(0);
        }
        let mut count = 0;
        while count < max
            && !self.blocks.contains_key(&(block + count))
            && self.free.is_free(&*self.below, block + count)?
        {
            count += 1;
        }
        Ok(count)
    }
}

impl Device for Staging {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let inner = self.inner.lock();
        inner.below.read_at(offset, into)?;
        let end = offset + into.len() as u64;
        let blocks = offset / self.block_size..end.div_ceil(self.block_size);
        for (&block, staged) in inner.blocks.range(blocks) {
            let start = block * self.block_size;
            let (from, to) = (start.max(offset), (start + self.block_size).min(end));
            let place = |at: u64, base: u64| usize::try_from(at - base).expect("within the range");
            into[place(from, offset)..place(to, offset)]
                .copy_from_slice(&staged.page[place(from, start)..place(to, start)]);
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        let end = offset.checked_add(from.len() as u64);
        if end.is_none_or(|end| end > self.size) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut inner = self.inner.lock();
        match inner.mode {
            Mode::Abandoned => return Ok(()),
            Mode::Clone => return inner.below.write_at(offset, from),
            Mode::Memory | Mode::WriteThrough => {}
        }
        let (mut at, mut rest) = (offset, from);
        while !rest.is_empty() {
            let (block, within) = (at / self.block_size, at % self.block_size);
            let whole = if within == 0 {
                rest.len() as u64 / self.block_size
            } else {
                0
            };
            let write_through = inner.write_through(block, whole)? * self.block_size;
            let step = if write_through > 0 {
                write_through
            } else {
                (self.block_size - within).min(rest.len() as u64)
            };
            let (now, later) = rest.split_at(usize::try_from(step).expect("part of a slice"));
            if write_through > 0 {
                let end = block + write_through / self.block_size;
                inner.written.insert(block..end);
                inner.below.write_at(at, now)?;
            } else {
                let within = usize::try_from(within).expect("below the block size");
                inner.write_part(block, self.block_size, within, now)?;
            }
            (at, rest) = (at + step, later);
        }
        inner.spill()
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn is_read_only(&self) -> bool {
        self.inner.lock().below.is_read_only()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pext4_block::{Device, RamDevice};
    use pext4_testkit::oracle::format::{Features, Format};
    use pext4_testkit::{Random, effort};

    use super::{FreeMap, Staging};

    fn content(device: &dyn Device) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(device.size()).expect("small")];
        device.read_at(0, &mut bytes).expect("memory");
        bytes
    }

    fn free_map(device: &RamDevice) -> FreeMap {
        FreeMap::open(device).expect("a sound image")
    }

    /// The first of a hundred neighbouring blocks that are free.
    fn free_run(device: &RamDevice) -> u64 {
        let mut free = free_map(device);
        let mut is_free = |block| free.is_free(device, block).expect("memory");
        let mut starts = 0..device.size() / 1024 - 100;
        let found = starts.find(|&start| (start..start + 100).all(&mut is_free));
        found.expect("it is nearly empty")
    }

    /// Reads return what was written, and only free blocks of the device below change, if any.
    fn run(seed: u64, memory: usize) {
        let mut random = Random::new(seed);
        let format = Format::new(4 << 20, 1024, Features::Debian12);
        let below = Arc::new(format.device().expect("mke2fs is there"));
        let original = content(&*below);
        let lower: Arc<dyn Device> = Arc::<RamDevice>::clone(&below);
        let staging = Staging::new(lower, free_map(&below), 1024, memory, false);
        let mut model = original.clone();
        for step in 0..300u32 {
            let length = random.index(6000);
            let start = random.index(model.len() - length);
            let bytes: Vec<u8> = vec![u8::try_from(step % 250 + 1).expect("small"); length];
            staging.write_at(start as u64, &bytes).expect("memory");
            model[start..start + length].copy_from_slice(&bytes);
            if step % 20 == 0 {
                let (start, end) = (random.index(4000), 5000 + random.index(100_000));
                let mut seen = vec![0; end - start];
                staging.read_at(start as u64, &mut seen).expect("memory");
                assert!(seen == model[start..end], "seed {seed}, {start}..{end}");
            }
            if step == 250 && seed % 2 == 1 {
                let clone = Arc::new(below.fork());
                staging.switch_to(clone).expect("memory");
            }
        }
        assert!(content(&staging) == model, "seed {seed}");
        let mut free = free_map(&below);
        let now = content(&*below);
        let mut changed = 0;
        for (block, (old, new)) in (0..).zip(original.chunks(1024).zip(now.chunks(1024))) {
            if old != new {
                changed += 1;
                let is_free = free.is_free(&*below, block).expect("memory");
                assert!(is_free, "seed {seed}: block {block} is in use");
            }
        }
        assert_eq!(changed > 0, memory == 0, "seed {seed}");
        let used = staging.changes().expect("memory").used;
        let mut is_used = |block| !free.is_free(&*below, block).expect("memory");
        assert!(
            used.iter().all(|(block, _)| is_used(block.get())),
            "seed {seed}"
        );
        assert_eq!(staging.is_on_clone(), seed % 2 == 1);
    }

    #[test]
    fn what_was_written_is_read_and_the_image_keeps_what_it_uses() {
        for seed in effort::seeds(6) {
            run(seed, usize::MAX);
            run(seed, 0);
        }
    }

    #[test]
    fn nothing_is_written_after_it_was_given_up() {
        let format = Format::new(4 << 20, 1024, Features::Debian12);
        let below = Arc::new(format.device().expect("mke2fs is there"));
        let original = content(&*below);
        let lower: Arc<dyn Device> = Arc::<RamDevice>::clone(&below);
        let staging = Staging::new(lower, free_map(&below), 1024, 0, true);
        staging.abandon();
        staging
            .write_at(3 << 20, &[1; 5000])
            .expect("it goes nowhere");
        assert!(content(&*below) == original);
        assert!(staging.write_at(staging.size() - 1, &[0; 2]).is_err());
    }

    /// Whole blocks and parts of blocks, which a sparse image loses again and another one keeps.
    #[test]
    fn what_was_written_to_a_sparse_image_is_discarded() {
        for (is_sparse, is_kept) in [(true, false), (false, true)] {
            let format = Format::new(4 << 20, 1024, Features::Debian12);
            let below = Arc::new(format.device().expect("mke2fs is there"));
            let original = content(&*below);
            let lower: Arc<dyn Device> = Arc::<RamDevice>::clone(&below);
            let staging = Staging::new(lower, free_map(&below), 1024, 0, is_sparse);
            let start = free_run(&below) * 1024;
            for (offset, length) in [(0, 5000), (0, 10), (9000, 70_000)] {
                let bytes = vec![1; length];
                staging.write_at(start + offset, &bytes).expect("memory");
            }
            assert!(content(&*below) != original, "they are not kept in memory");
            staging.abandon();
            assert_eq!(content(&*below) != original, is_kept);
        }
    }

    #[test]
    fn what_may_be_referred_to_is_not_discarded() {
        let format = Format::new(4 << 20, 1024, Features::Debian12);
        let below = Arc::new(format.device().expect("mke2fs is there"));
        let lower: Arc<dyn Device> = Arc::<RamDevice>::clone(&below);
        let staging = Staging::new(lower, free_map(&below), 1024, 0, true);
        let start = free_run(&below);
        let bytes = [1; 5000];
        staging.write_at(start * 1024, &bytes).expect("memory");
        let written = staging.take_written();
        let committed = content(&*below);
        staging.abandon();
        assert!(content(&*below) == committed);
        let run = start..start + 5;
        assert!(written.iter().eq([&run]), "{written:?}");
    }
}
