//! The tables at the head of `docs/SCALING.md`: which results are kept, what they say beside the
//! targets, beside other file systems, and how well the virtual cores predict real threads.
//!
//! They are made from the same files as the tables of single workloads, so the two cannot differ.

use std::collections::{BTreeMap, BTreeSet};

use super::markdown::{part_names, part_of, table};
use super::number::{share, thousands};
use crate::results::{Evidence, MAX_ERROR, Results};

/// Results by the names of their files, without `.json`.
type Kept = BTreeMap<String, Results>;

/// The folder of what was run on a machine with sixteen processors, beside its `NAME.json`.
const SIXTEEN: &str = "sixteen-processors";
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

/// Errors of predictions, in percent of what real threads measured, bold beyond [`MAX_ERROR`]: on
/// the machine of all settings, then on that with sixteen processors.
pub(super) fn validation(names: &[&str], all: &Kept, below: &Kept) -> String {
    let settings = [1, 2].map(|threads| ["base", "seeds", "full"].map(|name| (name, threads)));
    let threads = [1, 2, 4, 8, 16].map(|threads| ("full", threads));
    let two = errors(names, settings.as_flattened(), |name| {
        all.get(&format!("{name}-virtual"))
    });
    let sixteen = errors(names, &threads, |name| {
        below.get(&format!("{SIXTEEN}/{name}-virtual"))
    });
    format!("On two processors:\n\n{two}\nOn sixteen:\n\n{sixteen}")
}

/// The errors of the results that `find` returns: a row for each part of a workload, a column for
/// each setting and number of threads.
fn errors<'a>(
    names: &[&str],
    columns: &[(&str, u32)],
    find: impl Fn(&str) -> Option<&'a Results>,
) -> String {
    let mut head = vec!["workload".to_owned()];
    head.extend(columns.iter().map(|(setting, threads)| {
        let plural = if *threads == 1 { "" } else { "s" };
        format!("{setting}, {threads} thread{plural}")
    }));
    let mut rows = vec![head];
    let (mut count, mut beyond) = (0, 0);
    for name in names {
        let Some(results) = find(name) else {
            continue;
        };
        for part in part_names(results) {
            let mut row = vec![title(name, &part)];
            for (setting, threads) in columns {
                let error = error_of(results, setting, *threads, &part);
                count += usize::from(error.is_some());
                let is_beyond = error.is_some_and(|error| error.abs() > MAX_ERROR * 100.0);
                beyond += usize::from(is_beyond);
                row.push(match error {
                    Some(error) if is_beyond => format!("**{error:+.1} %**"),
                    Some(error) => format!("{error:+.1} %"),
                    None => none(),
                });
            }
            rows.push(row);
        }
    }
    let table = table(&rows);
    let most = MAX_ERROR * 100.0;
    format!("{table}\nOf {count} predictions {beyond} are off by more than {most:.0} %.\n")
}

/// The error of a prediction in percent, if it was compared with real threads.
fn error_of(results: &Results, setting: &str, threads: u32, part: &str) -> Option<f64> {
    let mut all = results.validation.iter();
    let found =
        all.find(|one| one.setting == setting && one.threads == threads && one.part == part);
    found.map(|one| one.error() * 100.0)
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

fn title(name: &str, part: &str) -> String {
    if part == "operations" {
        name.to_owned()
    } else {
        format!("{name}, {part}")
    }
}

fn none() -> String {
    "-".to_owned()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{Kept, compared, cores, summary, validation};
    use crate::results::Validation;
    use crate::results::samples::{point, results, series};

    fn kept(name: &str, label: &str, rates: &[(u32, f64)]) -> Kept {
        let points = rates.iter().map(|&(tasks, rate)| point(tasks, rate));
        let curve = series(label, "library", Some(label), points.collect());
        BTreeMap::from([(name.to_owned(), results(vec![curve]))])
    }

    /// Results in which predictions of these settings and threads are off by so much.
    fn compared_with(name: &str, errors: &[(&str, u32, f64)]) -> Kept {
        let mut kept = kept(name, "full", &[(1, 1.0)]);
        let validation = errors.iter().map(|&(setting, threads, error)| Validation {
            setting: setting.to_owned(),
            threads,
            part: "operations".to_owned(),
            predicted: 1000.0 + 10.0 * error,
            measured: 1000.0,
            least: 900.0,
            most: 1100.0,
            runs: 5,
        });
        for results in kept.values_mut() {
            results.validation = validation.clone().collect();
        }
        kept
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
    fn errors_of_predictions_are_counted() {
        let errors = [("base", 1, -1.2), ("full", 2, 33.1)];
        let all = compared_with("mdtest-virtual", &errors);
        let told = validation(&["mdtest"], &all, &Kept::new());
        assert!(
            told.contains("| mdtest | -1.2 % | - | - | - | - | **+33.1 %** |"),
            "{told}"
        );
        assert!(
            told.contains("Of 2 predictions 1 are off by more than 20 %.\n"),
            "{told}"
        );
        let name = "sixteen-processors/mdtest-virtual";
        let below = compared_with(name, &[("full", 16, 12.5)]);
        let told = validation(&["mdtest"], &Kept::new(), &below);
        assert!(
            told.contains("| mdtest | - | - | - | - | +12.5 % |"),
            "{told}"
        );
    }

    #[test]
    fn what_was_not_compared_has_no_row() {
        assert_eq!(compared(&["mdtest"], &Kept::new()).lines().count(), 2);
        assert_eq!(cores(&["mdtest"], &Kept::new()).lines().count(), 2);
    }
}
