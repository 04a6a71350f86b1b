//! Operations that should commute share nothing: the structural evidence, on one core.
//!
//! Two sides, pinned to different shards, run operations that are independent, or meet only in one
//! directory. Every lock instance and every line with an atomic that an operation touches is
//! recorded (`pext4_sync::trace`). Two operations that commute must not share one that either of
//! them changes, except for the [`exceptions`], each with its reason. An exception that no longer
//! occurs fails the test as well, unless it depends on chance.
//!
//! Every operation runs many times. A lock or line that is shared only once in many rounds (a shard
//! fetches another chunk of credits, a hint is renewed) is no hand-over per operation; only what is
//! shared in at least [`OFTEN`] of [`ROUNDS`] rounds counts. `docs/VIRTUAL.md` says what a trace
//! does not see.

mod exceptions;
mod operations;
mod side;

use std::collections::{BTreeMap, BTreeSet};

use pext4_sync::fresh_memory::FreshMemory;
use pext4_sync::topology;
use pext4_sync::trace::{Kind, Trace};

use exceptions::{EXCEPTIONS, Exception};
use operations::{COMMON, Operation, PRIVATE};
use side::{Maps, Worker, common, volume};

/// The sides run one after the other: what one of them frees must not become an object of the
/// other.
#[global_allocator]
static MEMORY: FreshMemory = FreshMemory;

/// Simulates the number of shards of a machine with this many processors: with few shards,
/// unrelated hashed items would share one by accident.
const PROCESSORS: usize = 256;
const ROUNDS: usize = 12;
const OFTEN: usize = 4;

/// The shared locks and lines with their source locations, and the number of rounds.
type Found = BTreeMap<(Kind, String), usize>;

/// The file of a source location, without the folders that differ between machines.
fn file(site: &std::panic::Location<'_>) -> String {
    let path = site.file();
    let names: Vec<&str> = path.rsplitn(4, '/').collect();
    let last: Vec<&str> = names.into_iter().take(3).rev().collect();
    format!("{}:{}", last.join("/"), site.line())
}

fn shared(first: &[Trace], second: &[Trace]) -> Found {
    let mut found = Found::new();
    for (one, other) in first.iter().zip(second) {
        let common = one.common(other).into_iter();
        let places: BTreeSet<(Kind, String)> = common
            .map(|shared| {
                let (mut one, mut other) = (file(shared.first), file(shared.second));
                if one > other {
                    std::mem::swap(&mut one, &mut other);
                }
                let places = if one == other {
                    one
                } else {
                    format!("{one} and {other}")
                };
                (shared.kind, places)
            })
            .collect();
        for place in places {
            *found.entry(place).or_default() += 1;
        }
    }
    found.retain(|_, times| *times >= OFTEN);
    found
}

fn check(first: &str, second: &str, found: &Found, used: &mut BTreeSet<usize>) -> Vec<String> {
    let fits = |exception: &Exception, kind: Kind, place: &str| {
        let [one, other] = exception.operations;
        let names = (one.contains(&first) && other.contains(&second))
            || (other.contains(&first) && one.contains(&second));
        names && exception.kind == kind && place.contains(exception.place)
    };
    let mut wrong = Vec::new();
    for ((kind, place), times) in found {
        let exceptions = EXCEPTIONS.iter().enumerate();
        let fitting: Vec<usize> = exceptions
            .filter(|(_, exception)| fits(exception, *kind, place))
            .map(|(number, _)| number)
            .collect();
        if fitting.is_empty() {
            wrong.push(format!(
                "`{first}` and `{second}` share {kind:?} in {times} of {ROUNDS} rounds, at {place}"
            ));
        }
        used.extend(fitting);
    }
    wrong
}

/// The pairs that share something without an exception, and what they share. Each side creates
/// `moved` directories before its own, which changes its inode numbers and blocks.
fn shared_things(maps: Maps, moved: usize) -> BTreeMap<String, String> {
    let volume = volume(maps);
    let common = common(&volume);
    let [left, right] = [0, 1].map(|number| Worker::start(&volume, common, number, moved));
    let all = |operations: &'static [Operation]| -> Vec<(&str, Vec<Trace>, Vec<Trace>)> {
        let each = operations.iter().filter(|operation| {
            // A block map has no unwritten blocks.
            maps == Maps::Extents || operation.name != "allocate"
        });
        each.map(|operation| {
            let first = left.traces(operation);
            (operation.name, first, right.traces(operation))
        })
        .collect()
    };
    let private = all(PRIVATE);
    let common = all(COMMON);
    let mut used = BTreeSet::new();
    let mut wrong = Vec::new();
    for (first, traces, _) in private.iter().chain(&common) {
        for (second, _, others) in &private {
            wrong.extend(check(first, second, &shared(traces, others), &mut used));
        }
    }
    for (first, traces, _) in &common {
        for (second, _, others) in &common {
            wrong.extend(check(first, second, &shared(traces, others), &mut used));
        }
    }
    for (number, exception) in EXCEPTIONS.iter().enumerate() {
        if exception.always && !used.contains(&number) {
            let operations = exception.operations;
            wrong.push(format!(
                "exception {number} ({operations:?}) does not occur any more"
            ));
        }
    }
    let short = |line: &String| line.split(" in ").next().unwrap_or_default().to_owned();
    wrong.into_iter().map(|line| (short(&line), line)).collect()
}

#[test]
fn the_documents_count_the_operations() {
    let text = include_str!("../../../../docs/SCALING.md");
    let words: Vec<&str> = text.split_whitespace().collect();
    let text = words.join(" ");
    let (private, common) = (PRIVATE.len(), COMMON.len());
    for counted in [
        format!("Of {private} operations on a task's own files"),
        format!("Of {common} operations in one directory"),
    ] {
        assert!(
            text.contains(&counted),
            "docs/SCALING.md does not say `{counted}`"
        );
    }
}

#[test]
fn what_commutes_shares_nothing() {
    nothing_is_shared(Maps::Extents);
}

#[test]
fn what_commutes_shares_nothing_where_files_have_block_maps() {
    nothing_is_shared(Maps::Pointers);
}

fn nothing_is_shared(maps: Maps) {
    topology::imitate(PROCESSORS);
    let mut wrong = shared_things(maps, 0);
    // By chance, two blocks may belong to one shard of the cache; they then share it in every
    // round, but not in every run with different block numbers. Operations that touch many blocks
    // were seen to meet three times in a row, in 2 of some 1,500 runs.
    for moved in [3, 7, 13, 29] {
        if !wrong.is_empty() {
            let again = shared_things(maps, moved);
            wrong.retain(|thing, _| again.contains_key(thing));
        }
    }
    let lines: Vec<String> = wrong.into_values().collect();
    assert!(
        lines.is_empty(),
        "{} things are shared:\n{}",
        lines.len(),
        lines.join("\n")
    );
}
