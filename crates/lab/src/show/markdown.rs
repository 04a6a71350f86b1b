//! Results as Markdown tables.

use super::number::{nanoseconds, share, thousands};
use crate::published::{self, Curve, Unit};
use crate::results::{Part, Point, Results, Series};

/// A table; the first row is the header.
#[must_use]
pub fn table(rows: &[Vec<String>]) -> String {
    let line = |row: &Vec<String>| format!("| {} |\n", row.join(" | "));
    let mut text = String::new();
    for (index, row) in rows.iter().enumerate() {
        text.push_str(&line(row));
        if index == 0 {
            let rule = (0..row.len()).map(|column| if column == 0 { "---" } else { "--:" });
            text.push_str(&line(&rule.map(str::to_owned).collect()));
        }
    }
    text
}

/// The part of a point by its name; a control has one part for all names.
#[must_use]
pub fn part_of<'a>(series: &Series, point: &'a Point, name: &str) -> Option<&'a Part> {
    if series.side == "control" {
        return point.parts.first();
    }
    point.parts.iter().find(|part| part.name == name)
}

/// The rate of one task alone; `None` if one task was not run: a share needs the rate of one.
pub(super) fn rate_alone(series: &Series, part: &str) -> Option<f64> {
    let point = series.points.iter().find(|point| point.tasks == 1)?;
    Some(part_of(series, point, part)?.rate)
}

/// Names of the workload's parts, as the results have them.
#[must_use]
pub fn part_names(results: &Results) -> Vec<String> {
    let series = results
        .series
        .iter()
        .find(|series| series.side != "control");
    let point = series.and_then(|series| series.points.first());
    let names = point.map(|point| point.parts.iter().map(|part| part.name.clone()).collect());
    names.unwrap_or_default()
}

/// A table with one row for each point.
#[must_use]
pub fn points(results: &Results, part: &str) -> String {
    let saturates = results
        .series
        .iter()
        .flat_map(|series| &series.points)
        .any(|point| point.saturation.is_some());
    let mut head = vec![
        part,
        "tasks",
        "total/s",
        "per task/s",
        "of one",
        "spread",
        "slowest/fastest",
        "CPU/op",
        "with others",
    ];
    if saturates {
        head.push("saturates first");
    }
    let mut rows = vec![head.into_iter().map(str::to_owned).collect()];
    for series in &results.series {
        let alone = rate_alone(series, part);
        for point in &series.points {
            if let Some(found) = part_of(series, point, part) {
                let mut row = vec![series.label.clone(), point.tasks.to_string()];
                row.extend(cells(found, point.tasks, alone));
                if saturates {
                    row.push(point.saturation.clone().unwrap_or_default());
                }
                rows.push(row);
            }
        }
    }
    table(&rows)
}

fn cells(part: &Part, tasks: u32, alone: Option<f64>) -> [String; 7] {
    let each = part.rate / f64::from(tasks);
    let none = || "-".to_owned();
    [
        thousands(part.rate),
        thousands(each),
        alone.map_or_else(none, |alone| share(each / alone)),
        share(part.spread),
        format!("{:.2}", part.fairness),
        nanoseconds(part.cpu),
        part.whole_cpu.map_or_else(none, nanoseconds),
    ]
}

/// The layout of the files, where it was examined.
#[must_use]
pub fn fragmentation(results: &Results) -> Option<String> {
    let kibibytes = |bytes: u64| format!("{} KiB", bytes / 1024);
    let none = || "-".to_owned();
    let head = [
        "",
        "tasks",
        "extents a file",
        "average extent",
        "free extents",
        "average free",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for series in &results.series {
        for point in &series.points {
            let Some(found) = &point.fragmentation else {
                continue;
            };
            rows.push(vec![
                series.label.clone(),
                point.tasks.to_string(),
                format!("{:.1}", found.extents_per_file()),
                kibibytes(found.average_extent),
                found
                    .free_extents
                    .map_or_else(none, |count| count.to_string()),
                found.average_free_extent.map_or_else(none, kibibytes),
            ]);
        }
    }
    (rows.len() > 1).then(|| table(&rows))
}

/// The published curves of a part; curves of one machine and source share a table.
#[must_use]
pub fn published(workload: &str, part: &str) -> String {
    let curves: Vec<&Curve> = published::of(workload, part).collect();
    let mut text = String::new();
    for chunk in curves.chunk_by(|one, two| one.source == two.source && one.machine == two.machine)
    {
        let first = chunk[0];
        let what = format!(
            "Published: {}, {}, {}",
            first.source,
            first.machine,
            first.unit.name()
        );
        let mut head = vec![part.to_owned()];
        head.extend(first.points.iter().map(|(tasks, _)| tasks.to_string()));
        let mut rows = vec![head];
        for curve in chunk {
            let mut row = vec![curve.label.to_owned()];
            row.extend(curve.points.iter().map(|(tasks, at)| {
                let value = match curve.unit {
                    Unit::Seconds => format!("{at:.2}"),
                    _ => thousands(*at),
                };
                match curve.share(*tasks) {
                    Some(of_one) if *tasks > 1 => format!("{value} ({})", share(of_one)),
                    _ => value,
                }
            }));
            rows.push(row);
        }
        text.push_str(&format!(
            "{what}; in brackets each task's share of one alone.\n\n"
        ));
        text.push_str(&table(&rows));
        text.push('\n');
    }
    text
}

/// The series with one mechanism off, each paired with the one of the same side with all mechanisms
/// on.
pub(super) fn ablated(results: &Results) -> Vec<(&Series, &Series)> {
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

/// Rates with one mechanism off, divided by those of the same side with all on, and the CPU time of
/// one task; only for results of an ablation.
#[must_use]
pub fn ablation(results: &Results, part: &str) -> Option<String> {
    let ablated = ablated(results);
    let (full, _) = ablated.first()?;
    let mut head = vec![format!("{part}, without")];
    head.extend(tasks_across(full));
    head.push("CPU/op of one task".to_owned());
    let mut rows = vec![head];
    for (full, series) in ablated {
        let mut row = vec![series.label.trim_start_matches('-').to_owned()];
        row.extend(shares(full, series, part));
        rows.push(row);
    }
    Some(table(&rows))
}

/// The header of [`shares`] without the last column.
pub(super) fn tasks_across(full: &Series) -> impl Iterator<Item = String> {
    full.points
        .iter()
        .map(|point| format!("{} tasks", point.tasks))
}

/// The rates at each number of tasks divided by those of `full`, and the CPU time of one task.
pub(super) fn shares(full: &Series, series: &Series, part: &str) -> Vec<String> {
    let mut shares = Vec::new();
    let mut alone = "-".to_owned();
    for all in &full.points {
        let same = series.points.iter().find(|point| point.tasks == all.tasks);
        let without = same.and_then(|point| part_of(series, point, part));
        let Some((all_on, one_off)) = part_of(full, all, part).zip(without) else {
            shares.push("-".to_owned());
            continue;
        };
        shares.push(share(one_off.rate / all_on.rate));
        if all.tasks == 1 {
            alone = share(one_off.cpu / all_on.cpu);
        }
    }
    shares.push(alone);
    shares
}

#[cfg(test)]
mod tests {
    use super::super::print_ablation;
    use super::{Series, ablation, points, table};
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
        let head = ["operations, without", "1 tasks", "CPU/op of one task"];
        let rows = [
            head,
            ["library -try-lock", "50 %", "200 %"],
            ["pext4 -try-lock", "75 %", "133 %"],
        ];
        let rows = rows.map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(ablation(&results, "operations"), Some(table(&rows)));
        let told = print_ablation(&results);
        let words: Vec<&str> = told.split_whitespace().collect();
        let words = words.join(" ");
        let wanted = "library -try-lock 50 % 200 % pext4 -try-lock 75 % 133 %";
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
        assert!(told.ends_with("| frees | - | 50 % | - |\n"), "{told}");
    }

    #[test]
    fn a_share_of_one_task_is_of_one_task_alone() {
        let of = |tasks: [u32; 2]| {
            let points = tasks.map(|tasks| point(tasks, 150.0 - f64::from(tasks)));
            results(vec![samples::series(
                "full",
                "library",
                None,
                points.to_vec(),
            )])
        };
        let share = |tasks| {
            let told = points(&of(tasks), "operations");
            let row = told
                .lines()
                .find(|line| line.starts_with("| full | 2 |"))
                .unwrap();
            row.split(" | ").nth(4).unwrap().to_owned()
        };
        assert_eq!(share([2, 1]), "50 %");
        assert_eq!(share([2, 4]), "-");
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
}
