//! Results on a terminal: tables, the published numbers next to them, and a small plot.

use std::fmt::Write;

use super::ablation::ablation;
use super::markdown::{part_names, part_of, rate_alone, rates};
use super::number::{nanoseconds, share, tasks, thousands};
use super::plot::{self, MARKS};
use super::table::align;
use crate::published::{self, Curve, Unit};
use crate::results::{Evidence, Fragmentation, Part, Results, Series};
use crate::workloads;

/// The length of a line from which on a legend has a line for each curve.
const LINE: usize = 100;

/// The results of a run as text.
#[must_use]
pub fn print(results: &Results) -> String {
    let mut text = head(results);
    let parts: Vec<String> = part_names(results);
    for part in &parts {
        let title = if parts.len() > 1 {
            format!("\n{part}\n")
        } else {
            "\n".to_owned()
        };
        text.push_str(&title);
        text.push_str(&align(&rows(results, part)));
        text.push_str(&locks(results, part));
        text.push_str(&published_beside(results, part));
        text.push_str(&drawn(results, part));
    }
    text.push_str(&fragmentation(results));
    let remarks = published::remarks(&results.workload);
    if !remarks.is_empty() {
        writeln!(text, "\nPublished\n  {}", remarks.join("\n  ")).expect("a string has room");
    }
    text.push_str(&foot(results));
    text
}

fn head(results: &Results) -> String {
    let mut text = String::new();
    match workloads::find(&results.workload) {
        Ok(workload) => writeln!(
            text,
            "{}: {}\n{}",
            workload.name(),
            workload.operation(),
            workload.origin()
        ),
        Err(_) => writeln!(text, "{}", results.workload),
    }
    .expect("a string has room");
    let how = match results.evidence {
        Evidence::Measured => "measured on",
        Evidence::Virtual => "VIRTUAL cores, computed on",
    };
    writeln!(text, "{how} {}", results.machine.line()).expect("a string has room");
    text
}

/// One row for each point, curve after curve.
fn rows(results: &Results, part: &str) -> Vec<Vec<String>> {
    let has_whole = columns(results, part).any(|part| part.whole_cpu.is_some());
    let has_instructions = columns(results, part).any(|part| part.instructions.is_some());
    let mut head = vec![
        "",
        "tasks",
        "total/s",
        "per task/s",
        "of one",
        "spread",
        "slowest/fastest",
        results.evidence.cost(),
    ];
    if has_whole {
        head.push("with others");
    }
    if has_instructions {
        head.push("instructions");
    }
    let mut rows = vec![head.into_iter().map(str::to_owned).collect()];
    for series in &results.series {
        for (index, point) in series.points.iter().enumerate() {
            let Some(part) = part_of(series, point, part) else {
                continue;
            };
            let name = if index == 0 {
                series.label.clone()
            } else {
                String::new()
            };
            let mut row = vec![name, point.tasks.to_string()];
            row.extend(rates(part, point.tasks, rate_alone(series, &part.name)));
            if has_whole {
                row.push(part.whole_cpu.map_or_else(|| "-".to_owned(), nanoseconds));
            }
            if has_instructions {
                row.push(part.instructions.map_or_else(|| "-".to_owned(), thousands));
            }
            rows.push(row);
        }
    }
    rows
}

fn columns<'a>(results: &'a Results, part: &'a str) -> impl Iterator<Item = &'a Part> {
    let points = results
        .series
        .iter()
        .flat_map(|series| series.points.iter().map(move |point| (series, point)));
    points.filter_map(move |(series, point)| part_of(series, point, part))
}

/// The cost of locks an operation, where a meter ran.
fn locks(results: &Results, part: &str) -> String {
    let head = [
        "locks",
        "tasks",
        "class",
        "taken",
        "contended",
        "tries failed",
        "waited",
        "held",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for series in &results.series {
        for point in &series.points {
            let found = part_of(series, point, part).map(|part| &part.locks[..]);
            for cost in found.unwrap_or_default() {
                rows.push(vec![
                    series.label.clone(),
                    point.tasks.to_string(),
                    cost.class.clone(),
                    format!("{:.3}", cost.acquisitions),
                    format!("{:.4}", cost.contended),
                    format!("{:.4}", cost.failures),
                    nanoseconds(cost.waited),
                    nanoseconds(cost.held),
                ]);
            }
        }
    }
    if rows.len() == 1 {
        return String::new();
    }
    format!("\nper operation, by the meter\n{}", align(&rows))
}

/// The published curves, with one column for each number of tasks.
fn published_beside(results: &Results, part: &str) -> String {
    let curves: Vec<&Curve> = published::of(&results.workload, part).collect();
    let mut text = String::new();
    let mut source = "";
    for chunk in curves.chunk_by(|one, two| one.source == two.source && one.machine == two.machine)
    {
        let first = chunk[0];
        if first.source != source {
            source = first.source;
            writeln!(text, "\nPublished: {source}, {}", first.unit.name())
                .expect("a string has room");
        }
        let mut head = vec![first.machine.to_owned()];
        head.extend(first.points.iter().map(|(tasks, _)| tasks.to_string()));
        let mut rows = vec![head];
        for curve in chunk {
            rows.extend(published_rows(curve));
        }
        for line in align(&rows).lines() {
            writeln!(text, "  {line}").expect("a string has room");
        }
    }
    text
}

fn published_rows(curve: &Curve) -> Vec<Vec<String>> {
    let value = |value: f64| match curve.unit {
        Unit::Seconds => format!("{value:.2}"),
        _ => thousands(value),
    };
    let mut row = vec![curve.label.to_owned()];
    row.extend(curve.points.iter().map(|(_, at)| value(*at)));
    let mut rows = vec![row];
    let shares: Option<Vec<String>> = curve
        .points
        .iter()
        .map(|(tasks, _)| curve.share(*tasks).map(share))
        .collect();
    if let Some(shares) = shares {
        let mut row = vec!["  of one".to_owned()];
        row.extend(shares);
        rows.push(row);
    }
    rows
}

/// A plot of the rate of each task over the number of tasks.
fn drawn(results: &Results, part: &str) -> String {
    let series = results.series.iter().filter(|series| !series.is_control());
    let curves: Vec<plot::Curve> = series
        .zip(MARKS.iter().cycle())
        .map(|(series, &mark)| {
            let points = series.points.iter().filter_map(|point| {
                let part = part_of(series, point, part)?;
                Some((f64::from(point.tasks), part.rate / f64::from(point.tasks)))
            });
            let (name, points) = (series.label.clone(), points.collect());
            plot::Curve { name, mark, points }
        })
        .collect();
    if curves.iter().all(|curve| curve.points.len() < 2) {
        return String::new();
    }
    let legend: Vec<String> = curves
        .iter()
        .map(|curve| format!("{} {}", curve.mark, curve.name))
        .collect();
    let evidence = results.evidence.name();
    let head = format!("per task/s, {evidence}, log scales:");
    let in_one_line = format!("{head}  {}", legend.join("   "));
    let head = match in_one_line.len() <= LINE {
        true => in_one_line,
        false => format!("{head}\n  {}", legend.join("\n  ")),
    };
    format!("\n{head}\n{}", plot::plot(&curves))
}

fn fragmentation(results: &Results) -> String {
    let mut rows = Vec::new();
    for series in &results.series {
        for point in &series.points {
            if let Some(found) = &point.fragmentation {
                rows.push(fragmentation_row(series, point.tasks, found));
            }
        }
    }
    if rows.is_empty() {
        return String::new();
    }
    let head = [
        "",
        "tasks",
        "extents/file",
        "average extent",
        "score",
        "free extents",
        "average free",
    ];
    rows.insert(0, head.map(str::to_owned).to_vec());
    format!("\nLayout of the files afterwards\n{}", align(&rows))
}

fn fragmentation_row(series: &Series, tasks: u32, found: &Fragmentation) -> Vec<String> {
    let kibibytes = |bytes: u64| format!("{} KiB", bytes / 1024);
    vec![
        series.label.clone(),
        tasks.to_string(),
        format!("{:.1}", found.extents_per_file()),
        kibibytes(found.average_extent),
        format!("{:.0}", found.score()),
        found
            .free_extents
            .map_or_else(|| "-".to_owned(), |count| count.to_string()),
        found
            .average_free_extent
            .map_or_else(|| "-".to_owned(), kibibytes),
    ]
}

fn foot(results: &Results) -> String {
    let mut text = String::from("\n");
    let settings: Vec<String> = results
        .settings
        .iter()
        .map(|(name, value)| format!("{name} {value}"))
        .collect();
    writeln!(text, "{}", settings.join(", ")).expect("a string has room");
    // Nothing drives the steps of virtual cores.
    if results.evidence == Evidence::Measured {
        writeln!(
            text,
            "driving an empty step takes {:.1} ns, contained in every number",
            results.overhead
        )
        .expect("a string has room");
    }
    let is_judged = |series: &&Series| series.side != "control" && !series.check.is_empty();
    for series in results.series.iter().filter(is_judged) {
        writeln!(text, "{}: {}", series.label, series.check).expect("a string has room");
    }
    for note in &results.notes {
        writeln!(text, "{note}").expect("a string has room");
    }
    for series in &results.series {
        for point in &series.points {
            for note in point.notes.iter().chain(&point.saturation) {
                writeln!(text, "{}, {}: {note}", series.label, tasks(point.tasks))
                    .expect("a string has room");
            }
        }
    }
    text
}

/// Every mechanism off in turn, compared with all on: ratios of the rates at each number of tasks,
/// each side compared with itself.
#[must_use]
pub fn print_ablation(results: &Results) -> String {
    let mut text = String::new();
    for part in part_names(results) {
        if let Some(rows) = ablation(results, &part) {
            text.push_str(
                "\nRates with one mechanism off, as a share of full's (in brackets the spread)\n",
            );
            text.push_str(&align(&rows));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::print;
    use crate::results::Evidence;
    use crate::results::samples::{point, results, series};

    /// The words of the table row that begins with these words.
    fn row<'a>(text: &'a str, words: &[&str]) -> Vec<&'a str> {
        let mut rows = text
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>());
        let row = rows.find(|row| row.starts_with(words));
        row.expect("there is such a row")
    }

    #[test]
    fn nothing_is_said_of_what_was_not_done() {
        let mut results = results(vec![series(
            "base",
            "library",
            Some("base"),
            vec![point(1, 5.0)],
        )]);
        results.series[0].check = "e2fsck -fn found nothing".to_owned();
        let text = print(&results);
        assert!(text.contains("an empty step takes 0.0 ns"), "{text}");
        assert!(text.contains("\nbase: e2fsck"), "{text}");
        results.evidence = Evidence::Virtual;
        results.series[0].check.clear();
        let text = print(&results);
        assert!(!text.contains("empty step"), "{text}");
        assert!(!text.contains("base:"), "{text}");
    }

    #[test]
    fn a_share_of_one_task_is_of_one_task_alone() {
        let mut with_one = vec![point(2, 150.0), point(1, 100.0)];
        for point in &mut with_one {
            point.parts[0].name = "creation".to_owned();
            let mut removal = point.parts[0].clone();
            removal.name = "removal".to_owned();
            removal.rate *= 10.0 / f64::from(point.tasks);
            point.parts.push(removal);
        }
        let mut results = results(vec![
            series("with", "library", Some("full"), with_one),
            series(
                "never",
                "pext4",
                Some("full"),
                vec![point(2, 150.0), point(4, 100.0)],
            ),
        ]);
        for point in &mut results.series[1].points {
            point.parts[0].name = "creation".to_owned();
        }
        let text = print(&results);
        let (creation, removal) = text.split_once("\nremoval\n").expect("two parts");
        assert_eq!(row(creation, &["with", "2"])[4..6], ["75", "%"], "{text}");
        // Of a single repetition there is no spread.
        assert_eq!(
            row(removal, &["with", "2"])[4..7],
            ["38", "%", "-"],
            "{text}"
        );
        // Neither the smallest number of tasks of its own nor one task of another series.
        assert_eq!(row(creation, &["never", "2"])[4], "-", "{text}");
    }
}
