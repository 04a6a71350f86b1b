//! What the report says of a point and of the machine.

use pext4_lab::results::{Part, Point, Theory};
use pext4_sync::virtual_cores::Waiting;
use pext4_virtual::run::Outcome;
use pext4_virtual::setup::Counted;
use pext4_virtual::theory::{Analysis, Station};

/// The lists that a point's notes contain only if they are wanted.
#[derive(Clone, Copy, Debug)]
pub struct Lists {
    /// What is busiest.
    pub stations: bool,
    /// Where cores work longest.
    pub stretches: bool,
}

/// A point of a curve, with these lists among its notes.
pub fn as_point(tasks: u32, outcome: &Outcome, lists: Lists) -> Point {
    let Outcome {
        counted, analysis, ..
    } = outcome;
    let parts = counted.parts.iter().map(|part| Part {
        name: part.name.clone(),
        rates: vec![part.rate],
        rate: part.rate,
        spread: None,
        fairness: part.fairness,
        cpu: f64::from(tasks) * 1e9 / part.rate,
        whole_cpu: None,
        instructions: None,
        locks: Vec::new(),
    });
    let mut notes = vec![summary(counted, analysis)];
    notes.extend(waits_for_the_log(counted));
    notes.extend(analysis.in_turn().map(|locks| locks.describe()));
    if lists.stations {
        notes.extend(stations(analysis));
    }
    if lists.stretches {
        notes.extend(stretches(analysis));
    }
    Point {
        parts: parts.collect(),
        saturation: analysis.limit(),
        theory: Some(Theory {
            of_bound: analysis.rate / analysis.bound(),
            of_mean_value: analysis.rate / analysis.mean_value(),
        }),
        is_whole: Some(counted.is_whole()),
        notes,
        ..Point::of(tasks)
    }
}

/// Where an operation's time goes, and what the journal did.
fn summary(counted: &Counted, analysis: &Analysis) -> String {
    let lacking = if counted.is_whole() {
        ""
    } else {
        "; the window does NOT hold three commits, a wrap of the log and a checkpoint: give a \
         longer one"
    };
    format!(
        "{:.3} of the bound, {:.3} of mean value analysis; waiting {:.0} of {:.0} ns, working \
         {:.0}, lines under way {:.0}; {} commits of {} blocks, {} of the log, {} checkpoints in {:.0} \
         ms; {:.1} % of the stretches' time never measured{lacking}",
        analysis.rate / analysis.bound(),
        analysis.rate / analysis.mean_value(),
        analysis.waiting,
        analysis.response(),
        analysis.working,
        analysis.transferring,
        counted.commits,
        counted.logged / counted.commits.max(1),
        if counted.wrapped { "a wrap" } else { "NO wrap" },
        counted.checkpoints,
        counted.elapsed.as_secs_f64() * 1e3,
        analysis.unknown * 100.0,
    )
}

fn waits_for_the_log(counted: &Counted) -> Option<String> {
    let (credits, log) = (counted.credit_waits, counted.log_waits);
    (credits + log > 0).then(|| {
        format!(
            "{credits} handles waited for credits of the next transaction, {log} commits for room \
             in the log"
        )
    })
}

/// What is busiest, what is waited for longest, and what travels most.
fn stations(analysis: &Analysis) -> Vec<String> {
    let stations = analysis.stations.iter().take(12);
    let stations = stations.map(Station::describe);
    let in_all = |what: String, time: &f64| format!("{what}: {time:.1} ns an operation in all");
    let waits = analysis.waits.iter().take(8);
    let waits = waits.map(|(what, time)| in_all(format!("waiting for {what}"), time));
    let others = analysis.waits_by_place.iter().take(12);
    let others = others.map(|(place, time)| in_all(format!("waiting at {place}"), time));
    let transfers = analysis.transfers.iter().take(12);
    let transfers = transfers.map(|(place, time)| in_all(place.clone(), time));
    stations
        .chain(waits)
        .chain(others)
        .chain(transfers)
        .collect()
}

/// Where cores work longest.
fn stretches(analysis: &Analysis) -> impl Iterator<Item = String> {
    let longest = analysis.work.iter().take(40);
    longest.map(|(place, times, time)| {
        format!("working from {place}, {times:.3} times an operation: {time:.1} ns an operation")
    })
}

/// The costs of waiting on a machine.
pub fn describe_waiting(waiting: &Waiting) -> String {
    format!(
        "a woken thread runs after {:.1} us; the call costs the waker {:.1} us; making one: {:.1} \
         us more; who finds a lock held looks for {:.1} us before it sleeps; all measured on this \
         machine",
        waiting.wake as f64 / 1e6,
        waiting.call as f64 / 1e6,
        waiting.start as f64 / 1e6,
        waiting.spin_time() as f64 / 1e6,
    )
}
