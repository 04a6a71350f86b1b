//! The report: figures, and tables between marks in the documents, made from saved results.
//!
//! `<!-- lab: NAME -->` begins the block of the workload NAME and `<!-- lab: end -->` ends it; the
//! report replaces what is between, and everything else is the author's. Results without a block of
//! their own go into the block `rest`. `provenance`, `summary`, `compared`, `cores` and
//! `validation` cover all workloads; `picture` in the README holds one figure. A block whose name
//! has no results, or that occurs twice, is an error.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::blocks::{END, fill, mark};
use super::figure::{Curve, Figure, Rate, Sort, draw};
use super::{markdown, overview};
use crate::published::{self, Unit};
use crate::results::{Evidence, Results, Series};
use crate::workloads;

/// The workload of the README's picture.
const PICTURE: &str = "fallocate2";
/// Where the figures are, below the folder of the documents.
const FIGURES: &str = "figures";

/// The documents that have blocks, below the folder of the documents; the first must exist.
pub const DOCUMENTS: [&str; 2] = ["SCALING.md", "SCALING-TABLES.md"];

/// A file that is to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Its path, relative to the folder of the documents.
    pub name: String,
    /// Its content.
    pub text: String,
}

/// All results of a folder, by the names of their files.
///
/// # Errors
///
/// A file cannot be read, or is none of ours.
pub fn load(folder: &Path) -> Result<BTreeMap<String, Results>> {
    let mut all = BTreeMap::new();
    let entries = std::fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    for entry in entries {
        let path = entry?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "json")
        {
            let name = path
                .file_stem()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            all.insert(name, Results::load(&path)?);
        }
    }
    if all.is_empty() {
        bail!(
            "{}: no results; `pext4 lab run --save {0}` keeps some",
            folder.display()
        );
    }
    Ok(all)
}

/// All results of the folders in a folder, by folder and name: `two-sockets/mdtest`. They appear in
/// the overviews only.
///
/// # Errors
///
/// As [`load`].
pub fn load_below(folder: &Path) -> Result<BTreeMap<String, Results>> {
    let mut all = BTreeMap::new();
    let entries = std::fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    for entry in entries {
        let entry = entry?;
        if entry.path().is_dir() {
            let below = entry.file_name().to_string_lossy().into_owned();
            let results = load(&entry.path())?.into_iter();
            all.extend(results.map(|(name, results)| (format!("{below}/{name}"), results)));
        }
    }
    Ok(all)
}

/// Every figure, and the documents with their blocks filled. `below` holds what [`load_below`]
/// found.
///
/// # Errors
///
/// A mark in a document is not closed, stands for nothing, or is there twice; or there are results
/// for which no document has a block.
pub fn report(
    all: &BTreeMap<String, Results>,
    below: &BTreeMap<String, Results>,
    documents: &[Page],
) -> Result<Vec<Page>> {
    let mut pages = Vec::new();
    let mut blocks = BTreeMap::new();
    let mut names: Vec<&str> = all.values().map(|results| &*results.workload).collect();
    names.sort_by_key(|name| {
        workloads::ALL
            .iter()
            .position(|workload| workload.name() == *name)
    });
    names.dedup();
    for name in &names {
        let own: Vec<(&String, &Results)> = all
            .iter()
            .filter(|(_, results)| results.workload == *name)
            .collect();
        blocks.insert((*name).to_owned(), block(name, &own, &mut pages));
    }
    let mut rest = String::new();
    for name in &names {
        if !documents.iter().any(|page| page.text.contains(&mark(name))) {
            rest.push_str(&format!("## {name}\n\n{}", blocks[*name]));
        }
    }
    let has_rest = |page: &Page| page.text.contains(&mark("rest"));
    if !rest.is_empty() && !documents.iter().any(has_rest) {
        bail!(
            "no document has a block for some results: add {} and {END}",
            mark("rest")
        );
    }
    blocks.insert("rest".to_owned(), rest);
    let overviews = [
        ("provenance", overview::provenance(&names, all, below)),
        ("summary", overview::summary(&names, all, below)),
        ("compared", overview::compared(&names, all)),
        ("cores", overview::cores(&names, below)),
        ("validation", overview::validation(&names, all, below)),
    ];
    blocks.extend(overviews.map(|(name, text)| (name.to_owned(), text)));
    for page in documents {
        pages.push(Page {
            name: page.name.clone(),
            text: fill(&page.text, &blocks).with_context(|| page.name.clone())?,
        });
    }
    Ok(pages)
}

/// A README with its picture, if there are results for one.
///
/// # Errors
///
/// A mark in it is not closed, stands for nothing, or is there twice.
pub fn readme(all: &BTreeMap<String, Results>, document: &str) -> Result<String> {
    let Some(results) = all.values().find(|results| results.workload == PICTURE) else {
        return fill(document, &BTreeMap::new());
    };
    let own = |results: &&Results| results.workload == PICTURE;
    let mut calibrated = all.values().filter(own);
    let calibrated = calibrated.find(|results| results.evidence == Evidence::Virtual);
    let calibrated = calibrated.map_or_else(String::new, |results| {
        format!(", calibrated on {}", results.machine.name())
    });
    let text = format!(
        "![{PICTURE}, each task's rate and that of all together](docs/figures/{PICTURE}.svg)\n\n\
         `{PICTURE}` on {}. Filled marks are measured; hollow ones are virtual cores{calibrated}; \
         dots are what was published: [SCALING](docs/SCALING.md).\n",
        results.machine.line()
    );
    fill(document, &BTreeMap::from([("picture".to_owned(), text)]))
}

/// Files among those of the figures that nothing makes.
///
/// # Errors
///
/// The folder cannot be read.
pub fn left_over(folder: &Path, pages: &[Page]) -> Result<Vec<PathBuf>> {
    let figures = folder.join(FIGURES);
    let entries = match std::fs::read_dir(&figures) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.with_context(|| figures.display().to_string())?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.with_context(|| figures.display().to_string())?.path();
        if !pages.iter().any(|page| folder.join(&page.name) == path) {
            found.push(path);
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// The block of a workload: its description, figures, published numbers and tables.
fn block(name: &str, own: &[(&String, &Results)], pages: &mut Vec<Page>) -> String {
    let mut text = String::new();
    if let Ok(workload) = workloads::find(name) {
        text.push_str(&format!(
            "One operation: {}. After {}.\n\n",
            workload.operation(),
            workload.source()
        ));
    }
    let parts: Vec<String> = own
        .first()
        .map(|(_, one)| markdown::part_names(one))
        .unwrap_or_default();
    for part in &parts {
        let suffix = if parts.len() > 1 {
            format!("-{part}")
        } else {
            String::new()
        };
        for (kind, figure) in figures(name, part, own) {
            let file = format!("{FIGURES}/{name}{suffix}{kind}.svg");
            text.push_str(&format!("![{}]({file})\n\n", figure.title));
            pages.push(Page {
                name: file,
                text: draw(&figure),
            });
        }
        text.push_str(&markdown::published(name, part));
    }
    let remarks = published::remarks(name);
    if !remarks.is_empty() {
        text.push_str(&format!(
            "Published:\n\n```\n{}\n```\n\n",
            remarks.join("\n")
        ));
    }
    for (file, results) in own {
        text.push_str(&of_file(file, results));
    }
    text
}

/// One file's tables.
fn of_file(file: &str, results: &Results) -> String {
    let evidence = match results.evidence {
        Evidence::Measured => "**Measured**",
        Evidence::Virtual => "**Virtual cores**",
    };
    let settings: Vec<String> = results
        .settings
        .iter()
        .map(|(name, value)| format!("{name} {value}"))
        .collect();
    let mut text = format!(
        "{evidence} ([{file}.json](results/{file}.json)): {}; {}. An empty step takes {:.1} ns.\n\n",
        results.machine.line(),
        settings.join(", "),
        results.overhead
    );
    for part in markdown::part_names(results) {
        let table =
            markdown::ablation(results, &part).unwrap_or_else(|| markdown::points(results, &part));
        text.push_str(&format!("{table}\n"));
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
    text.push_str(&notes(&results.notes));
    text
}

/// The notes of a run. Of the notes about single points, only incomplete windows are listed.
fn notes(notes: &[String]) -> String {
    let mut lines = Vec::new();
    let mut short: Vec<(&str, Vec<&str>)> = Vec::new();
    // Those with lines of their own are tables for a terminal.
    for note in notes.iter().filter(|note| !note.contains('\n')) {
        let Some((label, tasks, said)) = of_point(note) else {
            lines.push(format!("- {note}"));
            continue;
        };
        if said.contains("does NOT hold") {
            match short.last_mut() {
                Some((last, points)) if *last == label => points.push(tasks),
                _ => short.push((label, vec![tasks])),
            }
        }
    }
    let short = short.iter();
    let short: Vec<String> = short
        .map(|(label, points)| format!("{label} at {}", points.join(", ")))
        .collect();
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

/// A note `SETTING, NUMBER tasks: ...` in its pieces.
fn of_point(note: &str) -> Option<(&str, &str, &str)> {
    let (point, said) = note.split_once(" tasks: ")?;
    let (label, tasks) = point.rsplit_once(", ")?;
    tasks.parse::<u32>().ok()?;
    Some((label, tasks, said))
}

/// The settings in one figure, other file systems in another.
fn figures(name: &str, part: &str, own: &[(&String, &Results)]) -> Vec<(&'static str, Figure)> {
    let mut settings = Vec::new();
    let mut compared = Vec::new();
    for (_, results) in own {
        // Its `full` is the reference of its own table; the figure has one already.
        if markdown::ablation(results, part).is_some() {
            continue;
        }
        let is_comparison = results
            .series
            .iter()
            .any(|series| series.side != "library" && !series.is_control());
        for series in &results.series {
            let of_setting = !is_comparison && look_of_setting(series).is_some();
            let into = if of_setting {
                &mut settings
            } else {
                &mut compared
            };
            if of_setting || (is_comparison && !series.is_control()) {
                into.extend(curve(results, series, part));
            }
        }
    }
    let mut figures = Vec::new();
    let title = if part == "operations" {
        name.to_owned()
    } else {
        format!("{name}, {part}")
    };
    if has_lines(&settings) {
        let unit = published::of(name, part).map(|curve| curve.unit).next();
        let is_relative = unit == Some(Unit::Seconds);
        if is_relative {
            settings.iter_mut().for_each(relate);
        }
        settings.extend(published_curves(name, part));
        figures.push(("", figure(title.clone(), own, is_relative, settings)));
    }
    if has_lines(&compared) {
        let title = format!("{title}: other file systems");
        figures.push(("-compared", figure(title, own, false, compared)));
    }
    figures
}

fn has_lines(curves: &[Curve]) -> bool {
    curves.iter().any(|curve| curve.points.len() > 1)
}

fn figure(
    title: String,
    own: &[(&String, &Results)],
    is_relative: bool,
    curves: Vec<Curve>,
) -> Figure {
    let measured = own
        .iter()
        .find(|(_, results)| results.evidence == Evidence::Measured);
    let processors = measured.map(|(_, results)| results.machine.processors);
    let note = own
        .first()
        .map(|(_, results)| results.machine.line())
        .unwrap_or_default();
    Figure {
        title,
        note,
        unit: "operations/s".to_owned(),
        is_relative,
        processors,
        curves,
    }
}

/// The look of the named settings; others have no place in their figure.
fn look_of_setting(series: &Series) -> Option<usize> {
    match series.scaling.as_deref()? {
        "base" => Some(0),
        "seeds" => Some(1),
        "full" => Some(2),
        _ => None,
    }
}

fn look(series: &Series) -> usize {
    match &*series.side {
        "kernel" => 3,
        "fuse2fs" => 4,
        "pext4" => 5,
        _ => look_of_setting(series).unwrap_or(6),
    }
}

fn curve(results: &Results, series: &Series, part: &str) -> Option<Curve> {
    let points = series.points.iter().filter_map(|point| {
        let part = markdown::part_of(series, point, part)?;
        let least = part.rates.iter().copied().fold(f64::INFINITY, f64::min);
        let most = part.rates.iter().copied().fold(0.0, f64::max);
        Some(Rate {
            tasks: point.tasks,
            rate: part.rate,
            range: (part.rates.len() > 1).then_some((least, most)),
        })
    });
    let mut points: Vec<_> = points.collect();
    // The line goes from few tasks to many, in whatever order they were measured.
    points.sort_by_key(|point| point.tasks);
    let sort = match results.evidence {
        Evidence::Measured => Sort::Measured,
        Evidence::Virtual => Sort::Virtual,
    };
    let (name, look) = (series.label.clone(), look(series));
    (!points.is_empty()).then_some(Curve {
        name,
        look,
        sort,
        points,
    })
}

/// Turns rates into multiples of the rate of one task.
fn relate(curve: &mut Curve) {
    let Some(alone) = curve
        .points
        .iter()
        .find(|point| point.tasks == 1)
        .map(|point| point.rate)
        .filter(|rate| *rate > 0.0)
    else {
        curve.points.clear();
        return;
    };
    for point in &mut curve.points {
        point.rate /= alone;
        let range = point
            .range
            .map(|(least, most)| (least / alone, most / alone));
        point.range = range;
    }
}

fn published_curves(name: &str, part: &str) -> Vec<Curve> {
    let curves = published::of(name, part).map(|published| {
        let points = published.points.iter().filter_map(|(tasks, value)| {
            let rate = match published.unit {
                Unit::PerTask => value * f64::from(*tasks),
                Unit::Total => *value,
                Unit::Seconds => published.share(*tasks)? * f64::from(*tasks),
            };
            let (tasks, range) = (*tasks, None);
            Some(Rate { tasks, rate, range })
        });
        let points = points.collect();
        let (name, sort) = if published.is_before {
            ("before the change", Sort::PublishedBefore)
        } else {
            ("after the change", Sort::PublishedAfter)
        };
        let (name, look) = (name.to_owned(), usize::from(!published.is_before));
        Curve {
            name,
            look,
            sort,
            points,
        }
    });
    curves.collect()
}

#[cfg(test)]
mod tests {
    use super::{curve, notes, relate};
    use crate::results::Results;
    use crate::results::samples::{point, results, series};

    fn of_one(rates: &[(u32, f64)]) -> Results {
        let points = rates.iter().map(|&(tasks, rate)| {
            let mut point = point(tasks, rate);
            point.parts[0].rates = vec![rate, 2.0 * rate];
            point
        });
        results(vec![series(
            "full",
            "library",
            Some("full"),
            points.collect(),
        )])
    }

    #[test]
    fn a_curve_goes_from_few_tasks_to_many() {
        let results = of_one(&[(8, 20.0), (1, 10.0), (2, 15.0)]);
        let mut curve = curve(&results, &results.series[0], "operations").unwrap();
        relate(&mut curve);
        let found = curve.points.iter().map(|point| (point.tasks, point.rate));
        let found: Vec<(u32, f64)> = found.collect();
        assert_eq!(found, [(1, 1.0), (2, 1.5), (8, 2.0)]);
        assert_eq!(curve.points[2].range, Some((2.0, 4.0)));
    }

    #[test]
    fn nothing_is_a_multiple_of_no_rate() {
        let results = of_one(&[(1, 0.0), (2, 15.0)]);
        let mut curve = curve(&results, &results.series[0], "operations").unwrap();
        relate(&mut curve);
        assert!(curve.points.is_empty());
    }

    #[test]
    fn notes_of_points_are_told_where_a_window_lacked_something() {
        let lacks = "the window does NOT hold three commits, a wrap of the log and a checkpoint";
        let all = [
            "machine here: 40 ns".to_owned(),
            "full,-frees, 1 tasks: 1.000 of the bound".to_owned(),
            format!("full,-frees, 1 tasks: {lacks}"),
            format!("full,-frees, 96 tasks: {lacks}; give a longer one"),
            "seeds, 4 tasks: 1.000 of the bound".to_owned(),
            format!("seeds, 4 tasks: {lacks}"),
            "full, 96 tasks, other costs of a transfer: 50 %: 1.03-fold".to_owned(),
        ];
        let expected = "- machine here: 40 ns\n\
             - full, 96 tasks, other costs of a transfer: 50 %: 1.03-fold\n\
             - windows without three commits, a wrap of the log and a checkpoint: full,-frees at 1, 96; \
             seeds at 4\n\n";
        assert_eq!(notes(&all), expected);
        assert_eq!(notes(&[]), "");
    }
}
