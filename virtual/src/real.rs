//! Measures real threads with ordinary locks, for the comparison that `pext4-virtual --validate`
//! prints: `pext4-real WORKLOAD SCALING TASKS COMMIT-MS GROUPS JOURNAL-BLOCKS CACHE-MIB FILES
//! VALUES MILLISECONDS FILLED SEED`. Prints the result as JSON.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pext4_fs::options::Scaling;
use pext4_lab::workloads::{Plan, find};
use pext4_sync::meter;
use pext4_virtual::measure::measure;
use pext4_virtual::setup::{NoObserver, Setup};

fn main() -> Result<()> {
    ensure!(!meter::is_built_in(), "build it without default features");
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [workload, scaling, numbers @ .., seed] = words.as_slice() else {
        anyhow::bail!("see the head of the source");
    };
    let numbers: Vec<u32> = numbers
        .iter()
        .map(|word| word.parse().with_context(|| word.clone()))
        .collect::<Result<_>>()?;
    let [
        tasks,
        commit,
        groups,
        journal_blocks,
        cache_mib,
        files,
        values,
        milliseconds,
        filled,
    ] = numbers[..]
    else {
        anyhow::bail!("see the head of the source");
    };
    let window = Duration::from_millis(u64::from(milliseconds));
    let setup = Setup {
        workload: find(workload)?,
        plan: Plan {
            tasks,
            seed: seed.parse().with_context(|| seed.clone())?,
            files,
            values,
            fill: (filled > 0).then_some(filled),
            ..Plan::default()
        },
        scaling: Scaling::parse(scaling)?,
        groups,
        journal_blocks,
        cache_mib,
        commit_interval: Duration::from_millis(u64::from(commit)),
        warm_up: window / 4,
        window,
        longest: window,
        in_turn: false,
        imitated: false,
    };
    let measured = measure(&setup, NoObserver)?;
    println!("{}", serde_json::to_string(&measured.counted)?);
    Ok(())
}
