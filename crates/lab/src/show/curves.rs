//! The figures of a workload: curves from its results, beside what was published.

use std::cmp::Reverse;

use super::ablation::is_ablation;
use super::caption::caption;
use super::figure::{Curve, Figure, Rate, Sort};
use super::markdown;
use crate::published::{self, Unit};
use crate::results::{Evidence, Results, Series};

/// The settings in one figure, the same with groups searched one after another in a second, other
/// file systems in a third.
///
/// A figure has one run of each kind of evidence: what another run found, on another machine or
/// with other parameters, is no part of its curves. The tables have all runs.
pub(super) fn figures(
    name: &str,
    part: &str,
    own: &[(&String, &Results)],
) -> Vec<(&'static str, Figure)> {
    let title = if part == "operations" {
        name.to_owned()
    } else {
        format!("{name}, {part}")
    };
    let unit = published::of(name, part).map(|curve| curve.unit).next();
    let is_relative = unit == Some(Unit::Seconds);
    let figure = |subject: Subject| {
        let drawn = Drawn::of(part, own, subject);
        drawn.has_lines().then(|| {
            let (title, published) = (subject.title(&title), subject.published(name, part));
            let is_relative = is_relative && subject != Subject::FileSystems;
            (subject.tag(), drawn.figure(title, is_relative, published))
        })
    };
    Subject::ALL.into_iter().filter_map(figure).collect()
}

/// What a figure shows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Subject {
    /// The named settings.
    Settings,
    /// The same with `mb_optimize_scan` off.
    LinearScan,
    /// Other file systems.
    FileSystems,
}

impl Subject {
    const ALL: [Self; 3] = [Self::Settings, Self::LinearScan, Self::FileSystems];

    /// What is added to the name of the figure's file.
    fn tag(self) -> &'static str {
        match self {
            Self::Settings => "",
            Self::LinearScan => "-linear",
            Self::FileSystems => "-compared",
        }
    }

    fn title(self, workload: &str) -> String {
        match self {
            Self::Settings => workload.to_owned(),
            Self::LinearScan => {
                format!("{workload}: groups one after another (mb_optimize_scan=0)")
            }
            Self::FileSystems => format!("{workload}: other file systems"),
        }
    }

    /// The published curves that belong to it.
    fn published(self, name: &str, part: &str) -> Vec<Curve> {
        match self {
            Self::Settings => published_curves(name, part, |label| !label.contains(LINEAR)),
            // Of its `base` the first publication does not tell which scan it used.
            Self::LinearScan => published_curves(name, part, |label| !label.contains(INDEXED)),
            Self::FileSystems => Vec::new(),
        }
    }

    /// The look of a series; none if it has no place in the figure.
    fn look(self, series: &Series) -> Option<usize> {
        match self {
            Self::Settings => look_of_setting(series.scaling.as_deref()?),
            Self::LinearScan => {
                look_of_setting(series.scaling.as_deref()?.strip_suffix(INDEX_OFF)?)
            }
            Self::FileSystems => Some(look_of_side(series)),
        }
    }
}

/// What settings end with in which groups are searched one after another.
const INDEX_OFF: &str = ",mb_optimize_scan=0";
/// What the labels of published curves have that were measured so.
const LINEAR: &str = "linear scan";
/// What the labels of the others have, where both were measured.
const INDEXED: &str = "mb_optimize_scan";

/// The run of a kind of evidence that the figure of the settings draws.
pub(super) fn drawn<'a>(
    part: &str,
    own: &[(&String, &'a Results)],
    evidence: Evidence,
) -> Option<&'a Results> {
    let drawn = Drawn::of(part, own, Subject::Settings);
    let runs = drawn.measured.into_iter().chain(drawn.predicted);
    let mut runs = runs.filter(|run| run.results.evidence == evidence);
    runs.next().map(|run| run.results)
}

/// A run with its curves.
struct Run<'a> {
    results: &'a Results,
    curves: Vec<Curve>,
}

/// The runs of a figure.
struct Drawn<'a> {
    measured: Option<Run<'a>>,
    /// On virtual cores.
    predicted: Option<Run<'a>>,
}

impl<'a> Drawn<'a> {
    /// Of each kind of evidence the run with the most points, the first of several.
    fn of(part: &str, own: &[(&String, &'a Results)], subject: Subject) -> Self {
        let run = |evidence: Evidence| {
            let runs = own
                .iter()
                .map(|(_, results)| *results)
                .filter(|results| results.evidence == evidence)
                // Its `full` is the reference of its own table; the figure has one already.
                .filter(|results| !is_ablation(results))
                .filter(|results| compares(results) == (subject == Subject::FileSystems));
            let runs = runs.map(|results| Run {
                results,
                curves: curves_of(results, part, subject),
            });
            runs.filter(|run| !run.curves.is_empty())
                .min_by_key(|run| Reverse(run.points()))
        };
        Self {
            measured: run(Evidence::Measured),
            predicted: run(Evidence::Virtual),
        }
    }

    fn has_lines(&self) -> bool {
        let runs = self.measured.iter().chain(&self.predicted);
        let mut curves = runs.flat_map(|run| &run.curves);
        curves.any(|curve| curve.points.len() > 1)
    }

    fn figure(self, title: String, is_relative: bool, published: Vec<Curve>) -> Figure {
        let results = |run: &Option<Run<'a>>| run.as_ref().map(|run| run.results);
        let (measured, predicted) = (results(&self.measured), results(&self.predicted));
        let runs = self.measured.into_iter().chain(self.predicted);
        let mut curves: Vec<Curve> = runs.flat_map(|run| run.curves).collect();
        if is_relative {
            curves.iter_mut().for_each(relate);
        }
        curves.extend(published);
        Figure {
            title,
            notes: caption(measured, predicted),
            unit: "operations/s".to_owned(),
            is_relative,
            processors: measured.map(|results| results.machine.processors),
            curves,
        }
    }
}

impl Run<'_> {
    fn points(&self) -> usize {
        self.curves.iter().map(|curve| curve.points.len()).sum()
    }
}

/// Whether file systems are compared, and not settings alone.
fn compares(results: &Results) -> bool {
    let mut series = results.series.iter();
    series.any(|series| series.side != "library" && !series.is_control())
}

/// The curves of a run that belong into a figure.
fn curves_of(results: &Results, part: &str, subject: Subject) -> Vec<Curve> {
    let series = results.series.iter().filter(|series| !series.is_control());
    series
        .filter_map(|series| curve(results, series, part, subject.look(series)?))
        .collect()
}

/// The look of the named settings.
fn look_of_setting(name: &str) -> Option<usize> {
    match name {
        "base" => Some(0),
        "seeds" => Some(1),
        "full" => Some(2),
        _ => None,
    }
}

fn look_of_side(series: &Series) -> usize {
    match &*series.side {
        "kernel" => 3,
        "fuse2fs" => 4,
        "pext4" => 5,
        _ => series
            .scaling
            .as_deref()
            .and_then(look_of_setting)
            .unwrap_or(6),
    }
}

fn curve(results: &Results, series: &Series, part: &str, look: usize) -> Option<Curve> {
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
    let name = series.label.clone();
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

/// What was published of it. Curves before and after the same change on the same machine have one
/// shape.
fn published_curves(name: &str, part: &str, is_shown: impl Fn(&str) -> bool) -> Vec<Curve> {
    let all = published::of(name, part).filter(|curve| is_shown(curve.label));
    let all: Vec<&published::Curve> = all.collect();
    let mut curves = Vec::new();
    let mut first = 0;
    for same in all.chunk_by(|one, two| one.source == two.source && one.machine == two.machine) {
        let mut next = [first, first];
        for published in same {
            let next = &mut next[usize::from(published.is_before)];
            curves.push(published_curve(published, *next));
            *next += 1;
        }
        first = next[0].max(next[1]);
    }
    curves
}

fn published_curve(published: &published::Curve, look: usize) -> Curve {
    let points = published.points.iter().filter_map(|(tasks, value)| {
        let rate = match published.unit {
            Unit::PerTask => value * f64::from(*tasks),
            Unit::Total => *value,
            Unit::Seconds => published.share(*tasks)? * f64::from(*tasks),
        };
        let (tasks, range) = (*tasks, None);
        Some(Rate { tasks, rate, range })
    });
    Curve {
        name: format!("{}, {}", published.label, published.machine),
        look,
        sort: if published.is_before {
            Sort::PublishedBefore
        } else {
            Sort::PublishedAfter
        },
        points: points.collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{Sort, curve, figures, published_curves, relate};
    use crate::published::CURVES;
    use crate::results::samples::{point, results, series};
    use crate::results::{Evidence, Results};

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

    /// A run of `full` on a machine with so many processors, with so many points.
    fn run_on(processors: u32, side: &str, points: u32) -> Results {
        let points = (1..=points).map(|tasks| point(tasks, 100.0)).collect();
        let mut results = results(vec![series(side, side, Some("full"), points)]);
        results.machine.processors = processors;
        results
    }

    #[test]
    fn a_figure_draws_one_run_of_a_kind_and_names_its_machine() {
        let mut predicted = run_on(3, "library", 5);
        predicted.evidence = Evidence::Virtual;
        let runs = [
            ("a-200g", run_on(2, "library", 1)),
            ("b", run_on(16, "library", 4)),
            ("c", run_on(8, "library", 4)),
            ("d-compared", run_on(4, "kernel", 2)),
            ("e-virtual", predicted),
        ]
        .map(|(name, results)| (name.to_owned(), results));
        let own: Vec<(&String, &Results)> = runs.iter().map(|(name, run)| (name, run)).collect();
        let drawn = figures("falloc-append", "operations", &own);
        let kinds: Vec<&str> = drawn.iter().map(|(kind, _)| *kind).collect();
        assert_eq!(kinds, ["", "-compared"]);
        let (settings, compared) = (&drawn[0].1, &drawn[1].1);
        let points: Vec<usize> = settings
            .curves
            .iter()
            .map(|curve| curve.points.len())
            .collect();
        assert_eq!(points, [4, 5]);
        assert_eq!(settings.processors, Some(16));
        assert!(settings.notes[0].starts_with("measured on 16 processors"));
        assert!(settings.notes[1].starts_with("virtual cores calibrated on 3 processors"));
        assert_eq!(compared.curves.len(), 1);
        assert_eq!(compared.processors, Some(4));
        assert!(compared.notes[0].starts_with("measured on 4 processors"));
        assert_eq!(compared.notes.len(), 1);
    }

    #[test]
    fn groups_searched_one_after_another_have_a_figure_of_their_own() {
        let mut runs = [run_on(3, "library", 3), run_on(3, "library", 3)];
        for run in &mut runs {
            run.evidence = Evidence::Virtual;
        }
        runs[1].series[0].scaling = Some("seeds,mb_optimize_scan=0".to_owned());
        let name = "fallocate2".to_owned();
        let own: Vec<(&String, &Results)> = runs.iter().map(|run| (&name, run)).collect();
        let drawn = figures("fallocate2", "operations", &own);
        let kinds: Vec<&str> = drawn.iter().map(|(kind, _)| *kind).collect();
        assert_eq!(kinds, ["", "-linear"]);
        let published = |figure: usize, text: &str| {
            let mut curves = drawn[figure].1.curves.iter();
            curves.any(|curve| curve.sort == Sort::PublishedAfter && curve.name.contains(text))
        };
        for (figure, own, other) in [(0, "mb_optimize_scan", "linear"), (1, "linear", "mb_opt")] {
            assert!(
                published(figure, own) && !published(figure, other),
                "{figure}"
            );
        }
        assert_eq!(drawn[1].1.curves[0].look, 1, "as `seeds` elsewhere");
    }

    #[test]
    fn no_two_published_curves_of_a_figure_look_the_same() {
        for curve in CURVES {
            let part = curve.part.unwrap_or("operations");
            let mut seen = BTreeSet::new();
            for drawn in published_curves(curve.workload, part, |_| true) {
                // There are six shapes.
                let is_before = drawn.sort == Sort::PublishedBefore;
                assert!(seen.insert((drawn.look % 6, is_before)), "{}", drawn.name);
            }
        }
    }

    #[test]
    fn a_curve_goes_from_few_tasks_to_many() {
        let results = of_one(&[(8, 20.0), (1, 10.0), (2, 15.0)]);
        let mut curve = curve(&results, &results.series[0], "operations", 0).unwrap();
        relate(&mut curve);
        let found = curve.points.iter().map(|point| (point.tasks, point.rate));
        let found: Vec<(u32, f64)> = found.collect();
        assert_eq!(found, [(1, 1.0), (2, 1.5), (8, 2.0)]);
        assert_eq!(curve.points[2].range, Some((2.0, 4.0)));
    }

    #[test]
    fn nothing_is_a_multiple_of_no_rate() {
        let results = of_one(&[(1, 0.0), (2, 15.0)]);
        let mut curve = curve(&results, &results.series[0], "operations", 0).unwrap();
        relate(&mut curve);
        assert!(curve.points.is_empty());
    }
}
