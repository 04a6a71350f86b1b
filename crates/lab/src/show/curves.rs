//! The figures of a workload: curves from its results, beside what was published.

use super::ablation::is_ablation;
use super::figure::{Curve, Figure, Rate, Sort};
use super::markdown;
use crate::published::{self, Unit};
use crate::results::{Evidence, Results, Series};

/// The settings in one figure, other file systems in another.
pub(super) fn figures(
    name: &str,
    part: &str,
    own: &[(&String, &Results)],
) -> Vec<(&'static str, Figure)> {
    let mut settings = Vec::new();
    let mut compared = Vec::new();
    for (_, results) in own {
        // Its `full` is the reference of its own table; the figure has one already.
        if is_ablation(results) {
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
    use super::{curve, relate};
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
}
