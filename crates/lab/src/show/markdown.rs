//! Results as Markdown tables.

use super::number::{nanoseconds, share, thousands};
use crate::published::{self, Curve, Unit};
use crate::results::{Part, Point, Results, Series, Theory};

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
    let any = |is: fn(&Point) -> bool| {
        let mut points = results.series.iter().flat_map(|series| &series.points);
        points.any(is)
    };
    let saturates = any(|point| point.saturation.is_some());
    let has_theory = any(|point| point.theory.is_some());
    let mut head = vec![
        part,
        "tasks",
        "total/s",
        "per task/s",
        "of one",
        "spread",
        "slowest/fastest",
        results.evidence.cost(),
        "with others",
    ];
    if has_theory {
        head.extend(["of the bound", "of mean value analysis"]);
    }
    if saturates {
        head.push(saturates_first(results));
    }
    let mut rows = vec![head.into_iter().map(str::to_owned).collect()];
    for series in &results.series {
        let alone = rate_alone(series, part);
        for point in &series.points {
            if let Some(found) = part_of(series, point, part) {
                let mut row = vec![series.label.clone(), point.tasks.to_string()];
                row.extend(rates(found, point.tasks, alone));
                row.push(found.whole_cpu.map_or_else(|| "-".to_owned(), nanoseconds));
                if has_theory {
                    row.extend(theory(point));
                }
                if saturates {
                    row.push(point.saturation.clone().unwrap_or_default());
                }
                rows.push(row);
            }
        }
    }
    table(&rows)
}

/// The simulated rate of all parts together, as a share of what theory says.
fn theory(point: &Point) -> [String; 2] {
    let shown = |share: fn(&Theory) -> f64| {
        let theory = point.theory.as_ref();
        theory.map_or_else(|| "-".to_owned(), |theory| format!("{:.2}", share(theory)))
    };
    [
        shown(|theory| theory.of_bound),
        shown(|theory| theory.of_mean_value),
    ]
}

/// The head of the column of stations. Their usage is known for a whole window, not for its parts.
fn saturates_first(results: &Results) -> &'static str {
    match part_names(results).len() {
        0 | 1 => "saturates first",
        _ => "saturates first, all parts together",
    }
}

/// The rates of a part, and what is told with them: in all, for each task, as a share of one task's
/// rate, the spread, the fairness, and the processor time of an operation.
pub(super) fn rates(part: &Part, tasks: u32, alone: Option<f64>) -> [String; 6] {
    let each = part.rate / f64::from(tasks);
    let none = || "-".to_owned();
    [
        thousands(part.rate),
        thousands(each),
        alone.map_or_else(none, |alone| share(each / alone)),
        part.spread.map_or_else(none, share),
        format!("{:.2}", part.fairness),
        nanoseconds(part.cpu),
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
        "score",
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
                format!("{:.0}", found.score()),
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

#[cfg(test)]
mod tests {
    use super::points;
    use crate::results::samples::{self, point, results};

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
}
