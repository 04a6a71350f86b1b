//! The table of an ablation: what a side does with all mechanisms, and what of it is left with one
//! of them off.
//!
//! Every rate has its spread in brackets: a share that differs from 100 % by less than the spreads
//! says nothing.

use super::markdown::part_of;
use super::number::{nanoseconds, share, tasks, thousands};
use crate::results::{Part, Results, Series};

/// The rows for a part, with their head; only for results of an ablation. Each side begins with its
/// rates with all mechanisms on. The others are shares of those.
#[must_use]
pub fn ablation(results: &Results, part: &str) -> Option<Vec<Vec<String>>> {
    let ablated = ablated(results);
    let (first, _) = ablated.first()?;
    let mut head = vec![format!("{part}, without")];
    head.extend(first.points.iter().map(|point| tasks(point.tasks)));
    head.push(format!("{} of one task", results.evidence.cost()));
    let mut rows = vec![head];
    let mut last: Option<&Series> = None;
    for (full, series) in ablated {
        if last.is_none_or(|last| !std::ptr::eq(last, full)) {
            rows.push(all_on(full, part));
            last = Some(full);
        }
        rows.push(one_off(full, series, part));
    }
    Some(rows)
}

/// Whether results are those of an ablation.
#[must_use]
pub fn is_ablation(results: &Results) -> bool {
    !ablated(results).is_empty()
}

/// The series with one mechanism off, each paired with the one of the same side with all mechanisms
/// on.
fn ablated(results: &Results) -> Vec<(&Series, &Series)> {
    let all_on = |side: &str| {
        let mut all = results.series.iter();
        all.find(|series| series.side == side && series.scaling.as_deref() == Some("full"))
    };
    let ablated = results.series.iter().filter_map(|series| {
        let scaling = series.scaling.as_deref()?;
        let full = all_on(&series.side)?;
        scaling.starts_with('-').then_some((full, series))
    });
    ablated.collect()
}

/// The rates with all mechanisms on, and the cost of one task's operation.
fn all_on(full: &Series, part: &str) -> Vec<String> {
    let mut row = vec![format!("nothing: {}", full.label)];
    let mut alone = none();
    for point in &full.points {
        let found = part_of(full, point, part);
        row.push(found.map_or_else(none, |part| with_spread(thousands(part.rate), part)));
        if let Some(part) = found.filter(|_| point.tasks == 1) {
            alone = nanoseconds(part.cpu);
        }
    }
    row.push(alone);
    row
}

/// The rates at each number of tasks divided by those of `full`, and the same for the cost of one
/// task's operation.
fn one_off(full: &Series, series: &Series, part: &str) -> Vec<String> {
    let mut row = vec![series.label.trim_start_matches('-').to_owned()];
    let mut alone = none();
    for all in &full.points {
        let same = series.points.iter().find(|point| point.tasks == all.tasks);
        let without = same.and_then(|point| part_of(series, point, part));
        let Some((all_on, one_off)) = part_of(full, all, part).zip(without) else {
            row.push(none());
            continue;
        };
        row.push(with_spread(share(one_off.rate / all_on.rate), one_off));
        if all.tasks == 1 {
            alone = share(one_off.cpu / all_on.cpu);
        }
    }
    row.push(alone);
    row
}

fn with_spread(value: String, part: &Part) -> String {
    match part.spread {
        Some(spread) => format!("{value} ({})", share(spread)),
        None => value,
    }
}

fn none() -> String {
    "-".to_owned()
}

#[cfg(test)]
mod tests {
    use super::super::print_ablation;
    use super::{Series, ablation};
    use crate::results::samples::{self, point, results};

    fn series(label: &str, side: &str, scaling: Option<&str>, rate: f64) -> Series {
        samples::series(label, side, scaling, vec![point(1, rate)])
    }

    #[test]
    fn every_side_of_an_ablation_has_its_own_base() {
        let results = results(vec![
            series("kernel", "kernel", None, 1000.0),
            series("library full", "library", Some("full"), 400.0),
            series("library -try-lock", "library", Some("-try-lock"), 200.0),
            series("pext4 full", "pext4", Some("full"), 40.0),
            series("pext4 -try-lock", "pext4", Some("-try-lock"), 30.0),
            series("control", "control", None, 9.0),
        ]);
        let head = ["operations, without", "1 task", "CPU/op of one task"];
        let rows = [
            head,
            ["nothing: library full", "400", "2500.0 us"],
            ["library -try-lock", "50 %", "200 %"],
            ["nothing: pext4 full", "40", "25.0 ms"],
            ["pext4 -try-lock", "75 %", "133 %"],
        ];
        let rows = rows.map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(ablation(&results, "operations"), Some(rows.to_vec()));
        let told = print_ablation(&results);
        let words: Vec<&str> = told.split_whitespace().collect();
        let words = words.join(" ");
        let wanted = "nothing: pext4 full 40 25.0 ms pext4 -try-lock 75 % 133 %";
        assert!(words.ends_with(wanted), "{told}");
    }

    #[test]
    fn what_is_compared_had_as_many_tasks() {
        let all = |points| samples::series("full", "library", Some("full"), points);
        let off = |points| samples::series("-frees", "library", Some("-frees"), points);
        let results = results(vec![
            all(vec![point(1, 400.0), point(2, 600.0)]),
            off(vec![point(2, 300.0)]),
        ]);
        let told = ablation(&results, "operations").unwrap();
        assert_eq!(told.last().unwrap()[..], ["frees", "-", "50 %", "-"]);
    }

    #[test]
    fn settings_side_by_side_are_no_ablation() {
        let results = results(vec![
            series("full", "library", Some("full"), 400.0),
            series("base", "library", Some("base"), 200.0),
        ]);
        assert_eq!(ablation(&results, "operations"), None);
        assert_eq!(print_ablation(&results), "");
    }

    #[test]
    fn a_share_stands_beside_its_spread() {
        let mut all = vec![
            series("full", "library", Some("full"), 400.0),
            series("-frees", "library", Some("-frees"), 200.0),
        ];
        for (series, spread) in all.iter_mut().zip([0.02, 0.3]) {
            series.points[0].parts[0].spread = Some(spread);
        }
        let told = ablation(&results(all), "operations").unwrap();
        assert_eq!(told[1][1], "400 (2.0 %)");
        assert_eq!(told[2][1], "50 % (30 %)");
    }
}
