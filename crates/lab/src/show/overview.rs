//! The tables at the head of `docs/SCALING.md`: which results are kept, what they say beside the
//! targets and beside other file systems.
//!
//! They are made from the same files as the tables of single workloads, so the two cannot differ.

use std::collections::{BTreeMap, BTreeSet};

use super::markdown::{part_names, part_of, table};
use super::number::{share, thousands};
use crate::results::{Evidence, Results};

/// Results by the names of their files, without `.json`.
pub(super) type Kept = BTreeMap<String, Results>;

/// The folder of what was run on a machine with sixteen processors, beside its `NAME.json`.
pub(super) const SIXTEEN: &str = "sixteen-processors";
/// The number of tasks at which the targets apply.
const TARGET_TASKS: u32 = 96;
/// The share of one task's rate that each task should keep at [`TARGET_TASKS`] with `full`.
const TARGETS: [(&str, f64); 5] = [
    ("fallocate2", 0.80),
    ("stress-orphan", 0.80),
    ("mdtest", 0.80),
    ("mdtest-shared", 0.50),
    ("xattr-share", 0.80),
];

/// One row for each workload: its files with the date and the commit of each, then the machines.
pub(super) fn provenance(names: &[&str], all: &Kept, below: &Kept) -> String {
    let kinds = [Evidence::Measured, Evidence::Virtual];
    let mut rows = vec![vec!["workload".to_owned()]];
    rows[0].extend(kinds.map(|kind| kind.name().to_owned()));
    let mut machines = BTreeSet::new();
    for name in names {
        let mut row = vec![(*name).to_owned()];
        for kind in kinds {
            let files = all.iter().chain(below);
            let files = files.filter(|(_, one)| one.workload == *name && one.evidence == kind);
            let files = files.map(|(file, results)| {
                let machine = &results.machine;
                machines.insert(machine.name());
                let (date, commit) = (&machine.date, &machine.commit);
                format!("[{file}](results/{file}.json) {date} {commit}")
            });
            row.push(files.collect::<Vec<_>>().join("<br>"));
        }
        rows.push(row);
    }
    let machines: Vec<String> = machines.into_iter().collect();
    format!("{}\nMachines: {}.\n", table(&rows), machines.join("; "))
}

/// One row for each part of a workload and each named setting.
pub(super) fn summary(names: &[&str], all: &Kept, below: &Kept) -> String {
    let head = [
        "workload",
        "setting",
        "measured, 1 task",
        "16 tasks",
        "each of 16",
        "virtual, each of 16",
        "of 96",
        "of 96, two sockets",
        "target",
        "met",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for name in names {
        let Some(measured) = all.get(*name) else {
            continue;
        };
        let one_socket = all.get(&format!("{name}-virtual"));
        let two_sockets = below.get(&format!("two-sockets/{name}"));
        for part in part_names(measured) {
            for setting in ["base", "seeds", "full"] {
                let total = |tasks| {
                    let rate = rate(measured, setting, &part, tasks);
                    rate.map_or_else(none, |rate| thousands(rate / 1e3))
                };
                let kept = |results: Option<&Results>, tasks| {
                    results.and_then(|results| share_of_one(results, setting, &part, tasks))
                };
                let shown = |kept: Option<f64>| kept.map_or_else(none, share);
                let (one, two) = (
                    kept(one_socket, TARGET_TASKS),
                    kept(two_sockets, TARGET_TASKS),
                );
                let target = TARGETS.iter().find(|(workload, _)| workload == name);
                let target = target
                    .map(|(_, target)| *target)
                    .filter(|_| setting == "full");
                rows.push(vec![
                    title(name, &part),
                    setting.to_owned(),
                    total(1),
                    total(16),
                    shown(kept(Some(measured), 16)),
                    shown(kept(one_socket, 16)),
                    shown(one),
                    shown(two),
                    target.map_or_else(String::new, share),
                    target.map_or_else(String::new, |target| is_met(target, one, two)),
                ]);
            }
        }
    }
    table(&rows)
}

fn is_met(target: f64, one_socket: Option<f64>, two_sockets: Option<f64>) -> String {
    let met = [one_socket, two_sockets].map(|kept| kept.map(|kept| kept >= target));
    let text = match met {
        // One machine is enough to miss it.
        [Some(false), _] | [_, Some(false)] => "no",
        [Some(true), Some(true)] => "yes",
        _ => "not known",
    };
    text.to_owned()
}

/// The library and a mount beside the kernel's ext4 and fuse2fs, as multiples of their rates in the
/// same run.
pub(super) fn compared(names: &[&str], all: &Kept) -> String {
    let head = [
        "workload",
        "library / kernel, 1 task",
        "2 tasks",
        "mount / kernel, 1 task",
        "2 tasks",
        "mount / fuse2fs, 1 task",
        "2 tasks",
    ];
    let pairs = [
        ("library full", "kernel"),
        ("pext4 full", "kernel"),
        ("pext4 full", "fuse2fs"),
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for name in names {
        let Some(results) = all.get(&format!("{name}-compared")) else {
            continue;
        };
        for part in part_names(results) {
            let mut row = vec![title(name, &part)];
            for (ours, theirs) in pairs {
                row.extend([1, 2].map(|tasks| {
                    let rates = rate(results, ours, &part, tasks);
                    let rates = rates.zip(rate(results, theirs, &part, tasks));
                    rates.map_or_else(none, |(ours, theirs)| format!("{:.2}", ours / theirs))
                }));
            }
            rows.push(row);
        }
    }
    table(&rows)
}

/// The same on a machine with sixteen processors, in thousands of operations a second.
pub(super) fn cores(names: &[&str], below: &Kept) -> String {
    const TASKS: u32 = 16;
    let sides = [
        ("kernel", "kernel"),
        ("library full", "library"),
        ("pext4 full", "mount"),
    ];
    let mut head = vec!["workload".to_owned()];
    for (_, side) in sides {
        head.extend([format!("{side}, 1 task"), format!("{TASKS} tasks")]);
    }
    head.push("a volume a task".to_owned());
    head.push("library / kernel".to_owned());
    let mut rows = vec![head];
    for name in names {
        let Some(results) = below.get(&format!("{SIXTEEN}/{name}")) else {
            continue;
        };
        for part in part_names(results) {
            let of = |side, tasks| rate(results, side, &part, tasks);
            let shown = |rate: Option<f64>| rate.map_or_else(none, |rate| thousands(rate / 1e3));
            let mut row = vec![title(name, &part)];
            for (side, _) in sides {
                row.extend([1, TASKS].map(|tasks| shown(of(side, tasks))));
            }
            row.push(shown(of("a volume a task, full", TASKS)));
            let both = of("library full", TASKS).zip(of("kernel", TASKS));
            row.push(both.map_or_else(none, |(ours, theirs)| format!("{:.1}", ours / theirs)));
            rows.push(row);
        }
    }
    table(&rows)
}

fn rate(results: &Results, label: &str, part: &str, tasks: u32) -> Option<f64> {
    let series = results.series.iter().find(|series| series.label == label)?;
    let point = series.points.iter().find(|point| point.tasks == tasks)?;
    Some(part_of(series, point, part)?.rate)
}

fn share_of_one(results: &Results, label: &str, part: &str, tasks: u32) -> Option<f64> {
    let alone = rate(results, label, part, 1)?;
    Some(rate(results, label, part, tasks)? / f64::from(tasks) / alone)
}

pub(super) fn title(name: &str, part: &str) -> String {
    if part == "operations" {
        name.to_owned()
    } else {
        format!("{name}, {part}")
    }
}

pub(super) fn none() -> String {
    "-".to_owned()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{Kept, compared, cores, summary};
    use crate::results::samples::{point, results, series};

    fn kept(name: &str, label: &str, rates: &[(u32, f64)]) -> Kept {
        let points = rates.iter().map(|&(tasks, rate)| point(tasks, rate));
        let curve = series(label, "library", Some(label), points.collect());
        BTreeMap::from([(name.to_owned(), results(vec![curve]))])
    }

    #[test]
    fn a_target_is_met_on_every_machine_or_not() {
        let mut all = kept("xattr-share", "full", &[(1, 2e6), (16, 16e6)]);
        let one_socket = [(1, 1.0), (96, 90.0)];
        all.extend(kept("xattr-share-virtual", "full", &one_socket));
        let row = |below: &Kept| {
            let table = summary(&["xattr-share", "mdtest"], &all, below);
            table.lines().last().unwrap().to_owned()
        };
        let start = "| xattr-share | full | 2,000 | 16,000 | 50 % | - | 94 % |";
        assert_eq!(row(&Kept::new()), format!("{start} - | 80 % | not known |"));
        for (rate, shown, met) in [(72.0, "75", "no"), (86.4, "90", "yes")] {
            let rates = [(1, 1.0), (96, rate)];
            let two = kept("two-sockets/xattr-share", "full", &rates);
            assert_eq!(row(&two), format!("{start} {shown} % | 80 % | {met} |"));
        }
    }

    #[test]
    fn what_was_not_compared_has_no_row() {
        assert_eq!(compared(&["mdtest"], &Kept::new()).lines().count(), 2);
        assert_eq!(cores(&["mdtest"], &Kept::new()).lines().count(), 2);
    }
}
