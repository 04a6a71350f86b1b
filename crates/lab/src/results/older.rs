//! Reads what older programs wrote: facts that have fields now stood in the notes, as prose.
//!
//! This is the only place that reads prose, and the prose is that of files that exist; whatever a
//! program writes from now on has fields. A note that is not understood stays a note.

use super::{Evidence, Point, Results, Theory, Validation};

/// Moves facts from notes to fields. Newer files stay as they are.
pub(super) fn convert(results: &mut Results) {
    let points = results.series.iter_mut();
    for point in points.flat_map(|series| &mut series.points) {
        for part in &mut point.parts {
            // Where nothing was repeated, they had 0.
            part.spread = part.spread.filter(|_| part.rates.len() > 1);
        }
        if let Some(limit) = point
            .saturation
            .as_deref()
            .and_then(|said| limit(said, point))
        {
            point.saturation = Some(limit);
        }
    }
    if results.evidence == Evidence::Virtual && results.validation.is_empty() {
        convert_notes(results);
    }
}

/// `NAME (...) would be at 3 tasks`, where there were more, in today's words.
fn limit(said: &str, point: &Point) -> Option<String> {
    let (station, tasks) = said.strip_suffix(" tasks")?.split_once(" would be at ")?;
    let limit: u32 = tasks.parse().ok()?;
    (limit <= point.tasks).then(|| format!("{station} limits from {limit} tasks on"))
}

fn convert_notes(results: &mut Results) {
    let notes = std::mem::take(&mut results.notes);
    for note in notes {
        results.validation.extend(validation(&note));
        let of_point = of_point(&note);
        let point = of_point.and_then(|(label, tasks, _)| point_of(results, label, tasks));
        let (Some((_, _, said)), Some(point)) = (of_point, point) else {
            results.notes.push(today(note));
            continue;
        };
        if let Some(theory) = theory(said) {
            point.theory = Some(theory);
            point.is_whole = Some(true);
        }
        if said.starts_with("the window does NOT hold") {
            point.is_whole = Some(false);
        } else {
            point.notes.push(said.to_owned());
        }
    }
}

/// A note `SETTING, NUMBER tasks: ...` in its pieces.
fn of_point(note: &str) -> Option<(&str, u32, &str)> {
    let (point, said) = note.split_once(" tasks: ")?;
    let (label, tasks) = point.rsplit_once(", ")?;
    Some((label, tasks.parse().ok()?, said))
}

fn point_of<'a>(results: &'a mut Results, label: &str, tasks: u32) -> Option<&'a mut Point> {
    let mut series = results.series.iter_mut();
    let series = series.find(|series| series.label == label)?;
    series.points.iter_mut().find(|point| point.tasks == tasks)
}

/// `0.903 of the bound, 0.926 of mean value analysis; ...`
fn theory(said: &str) -> Option<Theory> {
    let (of_bound, said) = said.split_once(" of the bound, ")?;
    let (of_mean_value, _) = said.split_once(" of mean value analysis")?;
    Some(Theory {
        of_bound: of_bound.parse().ok()?,
        of_mean_value: of_mean_value.parse().ok()?,
    })
}

/// `validation, SETTING, N real threads, PART: predicted P, measured M a second (L to M in N runs),
/// ...`
fn validation(note: &str) -> Option<Validation> {
    let (who, said) = note
        .strip_prefix("validation, ")?
        .split_once(": predicted ")?;
    let (who, part) = who.split_once(" real threads, ")?;
    let (setting, threads) = who.rsplit_once(", ")?;
    let (predicted, said) = said.split_once(", measured ")?;
    let (measured, said) = said.split_once(" a second (")?;
    let (least, said) = said.split_once(" to ")?;
    let (most, said) = said.split_once(" in ")?;
    let (runs, _) = said.split_once(" runs)")?;
    Some(Validation {
        setting: setting.to_owned(),
        threads: threads.parse().ok()?,
        part: part.to_owned(),
        predicted: predicted.parse().ok()?,
        measured: measured.parse().ok()?,
        least: least.parse().ok()?,
        most: most.parse().ok()?,
        runs: runs.parse().ok()?,
    })
}

/// A note that stays one. What wakes a thread is not a part of the time until that thread runs.
fn today(note: String) -> String {
    let words = || {
        let (wake, rest) = note
            .strip_prefix("waking a thread: ")?
            .split_once(" us, of which ")?;
        let (call, rest) = rest.split_once(" for the one that wakes it")?;
        Some(format!(
            "a woken thread runs after {wake} us; the call costs the waker {call} us{rest}"
        ))
    };
    words().unwrap_or(note)
}

#[cfg(test)]
mod tests {
    use super::super::samples::{point, results, series};
    use super::{Evidence, Results, Theory, convert};

    fn older(notes: &[&str]) -> Results {
        let points = vec![point(1, 100.0), point(96, 4000.0)];
        let mut older = results(vec![series("full,-frees", "library", None, points)]);
        older.evidence = Evidence::Virtual;
        older.notes = notes.iter().map(|note| (*note).to_owned()).collect();
        older
    }

    #[test]
    fn what_notes_said_of_points_is_in_fields() {
        let lacks = "the window does NOT hold three commits, a wrap of the log and a checkpoint";
        let mut read = older(&[
            "machine here: 40 ns",
            "full,-frees, 1 tasks: 1.000 of the bound, 0.998 of mean value analysis; waiting 0",
            "full,-frees, 96 tasks: 0.936 of the bound, 0.970 of mean value analysis; waiting 3",
            &format!("full,-frees, 96 tasks: {lacks}; give a longer one"),
            "full,-frees, 96 tasks, other costs: half a transfer: operations 1.03-fold;",
            "seeds, 4 tasks: what is of no point stays",
        ]);
        convert(&mut read);
        let [one, many] = &read.series[0].points[..] else {
            panic!("there are two points");
        };
        let theory = Theory {
            of_bound: 0.936,
            of_mean_value: 0.97,
        };
        assert_eq!((many.theory, many.is_whole), (Some(theory), Some(false)));
        assert_eq!((one.is_whole, one.notes.len()), (Some(true), 1));
        let left = [
            "machine here: 40 ns",
            "full,-frees, 96 tasks, other costs: half a transfer: operations 1.03-fold;",
            "seeds, 4 tasks: what is of no point stays",
        ];
        assert_eq!(read.notes, left);
        let again = read.clone();
        convert(&mut read);
        assert_eq!(read, again);
    }

    #[test]
    fn validations_say_the_same_as_their_notes() {
        let notes = [
            "validation, base, 1 real threads, removal: predicted 805071, measured 775321 a second \
             (715288 to 787707 in 5 runs), +3.8 %",
            "validation, full,-frees, 2 real threads, operations: predicted 470161, measured \
             589534 a second (573390 to 607553 in 5 runs), -20.2 %: NOT within 20 %",
        ];
        let mut read = older(&notes);
        convert(&mut read);
        let told: Vec<String> = read.validation.iter().map(ToString::to_string).collect();
        assert_eq!(told, notes);
        assert_eq!(read.notes, notes, "for people they stay");
    }

    #[test]
    fn stations_and_wake_ups_are_told_in_todays_words() {
        let mut read = older(&[
            "waking a thread: 2.6 us, of which 4.0 for the one that wakes it; making one: 9 us",
        ]);
        let said = "a Group lock (2.1 ns an operation, busy 0.52) would be at 3 tasks";
        for point in &mut read.series[0].points {
            point.saturation = Some(said.to_owned());
        }
        convert(&mut read);
        let told = "a woken thread runs after 2.6 us; the call costs the waker 4.0 us; making one: \
                    9 us";
        assert_eq!(read.notes, [told]);
        let said_now = |index: usize| read.series[0].points[index].saturation.clone().unwrap();
        assert_eq!(said_now(0), said);
        let limits = "a Group lock (2.1 ns an operation, busy 0.52) limits from 3 tasks on";
        assert_eq!(said_now(1), limits);
    }
}
