//! The tables of one file of results, in Markdown, with what is to be said of the run.

use super::ablation::{ablation, is_ablation};
use super::markdown;
use crate::results::{Evidence, Results, Series};

/// One file's tables.
pub(super) fn of_file(file: &str, results: &Results) -> String {
    let (evidence, overhead) = match results.evidence {
        Evidence::Measured => (
            "**Measured**",
            format!(" An empty step takes {:.1} ns.", results.overhead),
        ),
        // Nothing drives the steps there.
        Evidence::Virtual => ("**Virtual cores**", String::new()),
    };
    let settings: Vec<String> = results
        .settings
        .iter()
        .map(|(name, value)| format!("{name} {value}"))
        .collect();
    let mut text = format!(
        "{evidence} ([{file}.json](results/{file}.json)): {}; {}.{overhead}\n\n",
        results.machine.line(),
        settings.join(", ")
    );
    for part in markdown::part_names(results) {
        let table = match ablation(results, &part) {
            Some(rows) => markdown::table(&rows),
            None => markdown::points(results, &part),
        };
        text.push_str(&format!("{table}\n"));
    }
    if is_ablation(results) {
        text.push_str("In brackets the spread of the repetitions.\n\n");
    }
    if let Some(table) = markdown::fragmentation(results) {
        text.push_str(&format!("Layout of the files afterwards:\n\n{table}\n"));
    }
    let mut checks: Vec<&str> = results
        .series
        .iter()
        .filter(|series| series.side != "control")
        .map(|series| &*series.check)
        .collect();
    checks.sort_unstable();
    checks.dedup();
    checks.retain(|check| !check.is_empty());
    if !checks.is_empty() {
        text.push_str(&format!("Afterwards: {}.\n\n", checks.join("; ")));
    }
    text.push_str(&notes(results));
    text
}

/// The notes of a run, and the points whose window lacked something.
fn notes(results: &Results) -> String {
    // Those with lines of their own are tables for a terminal.
    let notes = results.notes.iter().filter(|note| !note.contains('\n'));
    let mut lines: Vec<String> = notes.map(|note| format!("- {note}")).collect();
    let short: Vec<String> = results.series.iter().filter_map(short_windows).collect();
    if !short.is_empty() {
        lines.push(format!(
            "- windows without three commits, a wrap of the log and a checkpoint: {}",
            short.join("; ")
        ));
    }
    if lines.is_empty() {
        return String::new();
    }
    format!("{}\n\n", lines.join("\n"))
}

/// `full at 64, 96`
fn short_windows(series: &Series) -> Option<String> {
    let points = series.points.iter();
    let short = points.filter(|point| point.is_whole == Some(false));
    let short: Vec<String> = short.map(|point| point.tasks.to_string()).collect();
    (!short.is_empty()).then(|| format!("{} at {}", series.label, short.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::{notes, of_file};
    use crate::results::Evidence;
    use crate::results::samples::{point, results, series};

    #[test]
    fn only_measured_steps_are_driven() {
        let mut results = results(Vec::new());
        assert!(of_file("a", &results).contains("An empty step takes"));
        results.evidence = Evidence::Virtual;
        assert!(!of_file("a", &results).contains("empty step"));
    }

    #[test]
    fn windows_that_lacked_something_are_named() {
        let points = |whole: [bool; 3]| {
            let points = [1, 4, 96].into_iter().zip(whole).map(|(tasks, whole)| {
                let mut point = point(tasks, 1.0);
                point.is_whole = Some(whole);
                point.notes.push("waiting 0 of 9 ns".to_owned());
                point
            });
            points.collect()
        };
        let mut all = results(vec![
            series("base", "library", None, points([true; 3])),
            series("full,-frees", "library", None, points([false, true, false])),
            series("seeds", "library", None, points([true, false, true])),
        ]);
        all.notes = ["machine here: 40 ns", "a table\nof two lines"]
            .map(str::to_owned)
            .to_vec();
        let expected = "- machine here: 40 ns\n\
             - windows without three commits, a wrap of the log and a checkpoint: full,-frees at \
             1, 96; seeds at 4\n\n";
        assert_eq!(notes(&all), expected);
        assert_eq!(notes(&results(Vec::new())), "");
    }
}
