//! All interleavings of a search with threads that free a block or change it.
//!
//! Each scenario runs over each kind of table. The assertion about the block itself is in
//! `testing`: no thread takes a reference to a block that is not in use.

use std::sync::Arc;

use pext4_block::{Buffer, Cache, CountedApart, RamDevice};
use pext4_ondisk::xattr::{Attribute, Block, Content, MAX_REFERENCES};
use pext4_ondisk::{BlockNumber, Tid};
use pext4_sync::{thread, topology};

use super::testing::{Disk, SETTINGS, content, tiny};
use super::{Counting, OwnCounts};

/// Runs a scenario over every table, starting with one block that one inode uses.
fn every_table(scenario: impl Fn(&Arc<Disk>) + Copy + Send + Sync + 'static) {
    for setting in SETTINGS {
        pext4_sync::model(move || {
            let disk = Arc::new(Disk::new(tiny(setting), 2));
            disk.make(0, &content(1));
            scenario(&disk);
        });
    }
}

/// Runs `body` in another thread of the model.
fn beside<T: Send + 'static>(
    disk: &Arc<Disk>,
    body: impl FnOnce(&Disk) -> T + Send + 'static,
) -> impl FnOnce() -> T {
    let disk = Arc::clone(disk);
    let thread = thread::spawn("beside", move || {
        let _pin = topology::pin(1);
        body(&disk)
    });
    move || thread.join().expect("it does not panic")
}

#[test]
fn a_finder_and_the_last_owner_agree_whether_the_block_lives() {
    every_table(|disk| {
        let owner = beside(disk, |disk| disk.leave(0));
        let shared = disk.share(&content(1));
        let freed = owner();
        let state = disk.state(0);
        assert_eq!(shared.is_some(), !freed);
        assert_eq!(state.in_use, !freed);
        assert_eq!(state.references(), 1);
        // No entry of a free block is left.
        assert_eq!(disk.share(&content(1)).is_some(), !freed);
    });
}

#[test]
fn a_reader_does_not_make_a_freed_block_known() {
    every_table(|disk| {
        let owner = beside(disk, |disk| {
            disk.read(0);
            disk.leave(0)
        });
        let shared = disk.share(&content(1));
        assert_eq!(shared.is_some(), !owner());
        assert_eq!(disk.share(&content(1)).is_some(), shared.is_some());
    });
}

#[test]
fn a_block_changed_in_place_is_not_found_by_what_it_was() {
    every_table(|disk| {
        let owner = beside(disk, |disk| disk.change(0, &content(2)));
        let shared = disk.share(&content(1));
        let changed = owner();
        let state = disk.state(0);
        assert!(
            !(changed && shared.is_some()),
            "one of them had to give way"
        );
        let expected = if changed { content(2) } else { content(1) };
        assert!(expected.is_in(&state.bytes));
        assert_eq!(state.references(), 1 + u32::from(shared.is_some()));
        assert_eq!(disk.share(&content(2)).is_some(), changed);
    });
}

#[test]
fn a_new_life_is_not_taken_for_the_old_one() {
    every_table(|disk| {
        let owner = beside(disk, |disk| {
            let freed = disk.leave(0);
            if freed {
                disk.make(0, &content(2));
            }
            freed
        });
        let shared = disk.share(&content(1));
        let freed = owner();
        assert_eq!(shared.is_some(), !freed);
        assert_eq!(disk.state(0).references(), 1);
        assert_eq!(disk.share(&content(2)).is_some(), freed);
    });
}

#[test]
fn the_last_reference_is_given_once_and_a_place_that_comes_free_is_seen() {
    every_table(|disk| {
        disk.set_references(0, MAX_REFERENCES - 1);
        let other = beside(disk, |disk| disk.share(&content(1)));
        let own = disk.share(&content(1));
        let other = other();
        assert!(own.is_some() != other.is_some(), "there was room for one");
        assert_eq!(disk.state(0).references(), MAX_REFERENCES);
        let leaver = beside(disk, |disk| disk.leave(0));
        let found = disk.share(&content(1));
        assert!(!leaver());
        let left = disk.state(0).references();
        assert_eq!(left, MAX_REFERENCES - u32::from(found.is_none()));
        // Neither mark has overwritten the other.
        assert_eq!(disk.share(&content(1)).is_some(), found.is_none());
    });
}

fn wanted() -> Content {
    let block = Block {
        references: 1,
        attributes: vec![Attribute::new(1, b"a", b"value")],
    };
    block.content(4096).expect("it fits")
}

fn begin(counts: &OwnCounts, buffer: &Arc<Buffer>) {
    let number = counts.begin(buffer);
    let tid = Tid(1);
    let mut state = buffer.write();
    wanted().put_into(state.page_mut().make_mut());
    state.counted_apart = Some(CountedApart { tid, number });
}

#[test]
fn what_cores_counted_for_themselves_adds_up() {
    pext4_sync::model(|| {
        let cache = Cache::new(Arc::new(RamDevice::new(1 << 16)), 4096, 1 << 16);
        let buffer = cache.get_zeroed(BlockNumber(3));
        let counts = Arc::new(OwnCounts::new(Counting::WhereMet));
        begin(&counts, &buffer);
        let use_it = |counts: &OwnCounts| {
            if !counts.take(buffer.block(), &wanted()) {
                let state = buffer.write();
                assert_eq!(counts.meet_taking(&buffer, &state, &wanted()), 0);
            }
            assert!(counts.met(buffer.block()).is_some(), "this core has");
        };
        let other = {
            let (counts, buffer) = (Arc::clone(&counts), Arc::clone(&buffer));
            thread::spawn("other", move || {
                let _pin = topology::pin(1);
                let state = buffer.write();
                counts.meet_leaving(&buffer, &state);
            })
        };
        let _pin = topology::pin(0);
        use_it(&counts);
        use_it(&counts);
        other.join().expect("it does not panic");
        let sums = counts.take_all(2);
        assert_eq!(sums.len(), 1);
        assert_eq!(sums[0].change, 1);
        assert!(!counts.any() && counts.take_all(2).is_empty());
        assert!(counts.met(buffer.block()).is_none());
        // The next transaction starts without notes of this one.
        begin(&counts, &buffer);
        use_it(&counts);
        assert_eq!(counts.take_all(2)[0].change, 1);
    });
}

#[test]
fn threads_of_one_core_take_and_leave_a_block_that_it_has_met() {
    pext4_sync::model(|| {
        let cache = Cache::new(Arc::new(RamDevice::new(1 << 16)), 4096, 1 << 16);
        let buffer = cache.get_zeroed(BlockNumber(3));
        let counts = Arc::new(OwnCounts::new(Counting::WhereMet));
        let _pin = topology::pin(0);
        begin(&counts, &buffer);
        counts.meet_leaving(&buffer, &buffer.write());
        let other = {
            let (counts, buffer) = (Arc::clone(&counts), Arc::clone(&buffer));
            thread::spawn("other", move || {
                let _pin = topology::pin(0);
                // Its core has met it, but another thread may hold the notes, and those of another
                // core do not have it.
                if let Some(met) = counts.met(buffer.block()) {
                    met.leave();
                } else {
                    counts.meet_leaving(&buffer, &buffer.write());
                }
            })
        };
        if !counts.take(buffer.block(), &wanted()) {
            assert_eq!(counts.meet_taking(&buffer, &buffer.write(), &wanted()), 0);
        }
        other.join().expect("it does not panic");
        assert_eq!(counts.take_all(1)[0].change, -1);
    });
}
