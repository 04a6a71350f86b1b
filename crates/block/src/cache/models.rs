//! Models of all interleavings of a few threads that use one block.

use std::io;
use std::sync::Arc;
// The device is not part of the model: each of its calls is a single step.
use std::sync::atomic::{AtomicU64, Ordering};

use pext4_ondisk::{BlockNumber, Tid};
use pext4_sync::{model, thread};

use super::Cache;
use crate::device::Device;

const BLOCK: u32 = 8;
const FIRST: BlockNumber = BlockNumber(1);
const SECOND: BlockNumber = BlockNumber(2);

/// A device full of ones whose first `failing` reads fail.
struct Ones {
    reads: AtomicU64,
    failing: u64,
}

impl Device for Ones {
    fn size(&self) -> u64 {
        1024
    }

    fn read_at(&self, _offset: u64, into: &mut [u8]) -> io::Result<()> {
        if self.reads.fetch_add(1, Ordering::SeqCst) < self.failing {
            return Err(io::Error::other("it fails as planned"));
        }
        into.fill(1);
        Ok(())
    }

    fn write_at(&self, _offset: u64, _from: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}

/// A cache with room for one block.
fn cache(failing: u64) -> (Arc<Ones>, Arc<Cache>) {
    let device = Arc::new(Ones {
        reads: AtomicU64::new(0),
        failing,
    });
    let cache = Cache::new(device.clone(), BLOCK, u64::from(BLOCK));
    (device, Arc::new(cache))
}

/// Runs `body` in another thread of the model.
fn beside<T: Send + 'static>(
    cache: &Arc<Cache>,
    body: impl FnOnce(&Cache) -> T + Send + 'static,
) -> impl FnOnce() -> T {
    let cache = Arc::clone(cache);
    let thread = thread::spawn("beside", move || body(&cache));
    move || thread.join().expect("it does not panic")
}

#[test]
fn two_getters_share_a_buffer_and_a_read() {
    model(|| {
        let (device, cache) = cache(0);
        let other = beside(&cache, |cache| cache.get(FIRST).expect("it can be read"));
        let buffer = cache.get(FIRST).expect("it can be read");
        assert_eq!(
            buffer.page()[0],
            1,
            "a buffer is not given out before its bytes are there"
        );
        assert!(Arc::ptr_eq(&buffer, &other()));
        assert_eq!(device.reads.load(Ordering::SeqCst), 1);
    });
}

#[test]
fn a_failed_read_fails_its_reader_alone() {
    model(|| {
        let (device, cache) = cache(1);
        let other = beside(&cache, |cache| cache.get(FIRST).is_ok());
        let own = cache.get(FIRST).is_ok();
        assert!(
            own != other(),
            "one read fails and the other getter tries again"
        );
        assert_eq!(device.reads.load(Ordering::SeqCst), 2);
        assert!(cache.peek(FIRST).is_some());
    });
}

#[test]
fn a_new_block_wins_over_a_failing_read() {
    model(|| {
        let (_, cache) = cache(1);
        let other = beside(&cache, |cache| drop(cache.get(FIRST)));
        let buffer = cache.get_zeroed(FIRST);
        other();
        assert_eq!(buffer.page()[0], 0);
        assert!(Arc::ptr_eq(
            &buffer,
            &cache.peek(FIRST).expect("it stays in memory")
        ));
    });
}

#[test]
fn a_change_outlives_the_eviction_of_its_neighbours() {
    model(|| {
        let (_, cache) = cache(0);
        let other = beside(&cache, |cache| drop(cache.get(SECOND)));
        let buffer = cache.get(FIRST).expect("it can be read");
        let mut state = buffer.write();
        state.dirty_in = Some(Tid(1));
        state.page_mut().make_mut()[0] = 5;
        drop(state);
        drop(buffer);
        drop(cache.get(SECOND));
        other();
        assert_eq!(cache.get(FIRST).expect("it can be read").page()[0], 5);
    });
}

/// The block is discarded since its last use has ended, and its next one begins.
#[test]
fn a_use_that_begins_beside_a_discard_has_the_buffer_of_the_cache() {
    model(|| {
        let (_, cache) = cache(0);
        drop(cache.get_zeroed(FIRST));
        let other = beside(&cache, |cache| cache.discard(FIRST));
        loop {
            let buffer = cache.get_zeroed(FIRST);
            let mut state = buffer.write();
            if !buffer.is_discarded() {
                state.dirty_in = Some(Tid(1));
                break;
            }
        }
        other();
        let buffer = cache.peek(FIRST).expect("it is dirty");
        assert_eq!(buffer.read().dirty_in, Some(Tid(1)));
    });
}

/// A block that has been changed has a stale checksum: a thread that read the block before it was
/// checked must not check it afterwards.
#[test]
fn what_was_checked_and_changed_is_not_checked_again() {
    model(|| {
        let (_, cache) = cache(0);
        let other = beside(&cache, |cache| {
            let buffer = cache.get(FIRST).expect("it can be read");
            buffer.verify(|page| (page[0] == 1).then_some(()).ok_or("changed"))
        });
        let buffer = cache.get(FIRST).expect("it can be read");
        let checked = buffer.verify(|page| (page[0] == 1).then_some(()).ok_or("changed"));
        checked.expect("nobody else changes it");
        buffer.write().page_mut().make_mut()[0] = 2;
        other().expect("it was sound when it was checked");
    });
}
