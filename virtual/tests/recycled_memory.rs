//! Files whose locks have one memory one after another, each held while its holder waits for the
//! lock of a group: the group is the limit, and what each file has for itself is none.

#![cfg(feature = "cores")]

use std::sync::Arc;
use std::time::Duration;

use pext4_sync::virtual_cores::{LineAllocator, Model, Stretches, Usage};
use pext4_sync::virtual_cores::{close_window, move_to, open_window, run};
use pext4_sync::{CachePadded, Class, Mutex, thread};
use pext4_virtual::theory::Analysis;

#[global_allocator]
static MEMORY: LineAllocator = LineAllocator;

const CORES: u32 = 8;
/// Files that each core makes one after another.
const FILES: u32 = 200;

fn spend(nanoseconds: u64) {
    thread::sleep(Duration::from_nanos(nanoseconds));
}

/// One core: makes files, in memory that others have just freed, and allocates under the lock of
/// the group.
fn make_files(number: u32, group: &Mutex<u64>) {
    move_to(number as usize);
    spend(1 + 300 * u64::from(number));
    for _ in 0..FILES {
        let file = Box::new(Mutex::new(Class::Preallocation, 0_u64));
        let mut own = file.lock();
        spend(200);
        let mut shared = group.lock();
        spend(400);
        *shared += 1;
        drop(shared);
        *own += 1;
        drop(own);
        drop(file);
        spend(50);
    }
}

fn usage() -> Usage {
    // All time is slept.
    let stretches = Arc::new(Stretches::constant(0));
    run(
        Model::uniform(CORES as usize, 50_000),
        &stretches,
        1,
        || {
            let group = Arc::new(CachePadded::new(Mutex::new(Class::Group, 0_u64)));
            open_window();
            let threads = (0..CORES).map(|number| {
                let group = Arc::clone(&group);
                thread::spawn("task", move || make_files(number, &group))
            });
            for thread in threads.collect::<Vec<_>>() {
                thread.join().expect("it does not panic");
            }
            close_window()
        },
    )
}

#[test]
fn the_limit_is_what_is_waited_for() {
    let analysis = Analysis::of(&usage(), u64::from(CORES * FILES), CORES);
    let limit = analysis.limit().expect("the group was waited for");
    assert!(limit.starts_with("a Group lock of 8 cores"), "{limit}");
    let mut stations = analysis.stations.iter();
    let shared = stations.find(|station| station.name.contains("Preallocation"));
    assert!(shared.is_none(), "no file was shared: {shared:?}");
}
