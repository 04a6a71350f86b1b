//! The tables of `docs/SCALING.md` that say how well the virtual cores predict real threads.

use super::markdown::{part_names, table};
use super::overview::{Kept, SIXTEEN, none, title};
use crate::results::{MAX_ERROR, Results};
use crate::workloads;

/// The folder of the runs with few tasks that compare every workload with real threads, each in its
/// `NAME.json`.
const EVERY: &str = "validated";

/// Errors of predictions, in percent of what real threads measured, bold beyond [`MAX_ERROR`]: on
/// the machine of all settings, on that with sixteen processors, then of all workloads.
pub(super) fn validation(names: &[&str], all: &Kept, below: &Kept) -> String {
    let settings = [1, 2].map(|threads| ["base", "seeds", "full"].map(|name| (name, threads)));
    let threads = [1, 2, 4, 8, 16].map(|threads| ("full", threads));
    let two = errors(names, settings.as_flattened(), |name| {
        all.get(&format!("{name}-virtual"))
    });
    let sixteen = errors(names, &threads, |name| {
        below.get(&format!("{SIXTEEN}/{name}-virtual"))
    });
    let every: Vec<&str> = workloads::ALL.iter().map(|one| one.name()).collect();
    let every = errors(&every, &threads[..2], |name| {
        below.get(&format!("{EVERY}/{name}"))
    });
    format!(
        "On two processors:\n\n{two}\nOn sixteen:\n\n{sixteen}\n\
         Every workload, on two processors:\n\n{every}"
    )
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{Kept, validation};
    use crate::results::Validation;
    use crate::results::samples::{point, results, series};

    /// Results in which predictions of these settings and threads are off by so much.
    fn compared_with(name: &str, errors: &[(&str, u32, f64)]) -> Kept {
        let points = vec![point(1, 1.0)];
        let mut kept = results(vec![series("full", "library", Some("full"), points)]);
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
        kept.validation = validation.collect();
        BTreeMap::from([(name.to_owned(), kept)])
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
    fn workloads_without_a_curve_are_told_too() {
        let below = compared_with("validated/DWOM", &[("full", 2, -3.4)]);
        let told = validation(&["mdtest"], &Kept::new(), &below);
        assert!(told.contains("| DWOM | - | -3.4 % |"), "{told}");
    }
}
