//! The results of a run, as they are shown and as they are stored in a file.
//!
//! Reports are made from the files (`docs/results/*.json`). Both kinds of evidence with numbers,
//! measured and virtual, have this form; no file mixes them.

mod machine;
mod older;
mod virtual_cores;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use pext4_sync::meter::Tallies;
use serde::{Deserialize, Serialize};

use crate::run::PartCount;

pub use machine::{Machine, available_memory};
pub use virtual_cores::{MAX_ERROR, Theory, Validation};

/// Version of the file format.
pub const FORMAT: u32 = 1;

/// How the numbers were obtained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Evidence {
    /// By the clock, on real processors.
    Measured,
    /// By the clocks of virtual cores.
    Virtual,
}

impl Evidence {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::Virtual => "virtual",
        }
    }

    /// The name of the time that an operation costs its task ([`Part::cpu`]).
    #[must_use]
    pub fn cost(self) -> &'static str {
        match self {
            Self::Measured => "CPU/op",
            Self::Virtual => "time/op",
        }
    }
}

/// The results of one run of one workload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// Version of the file format.
    pub format: u32,
    /// Kind of evidence.
    pub evidence: Evidence,
    /// Name of the workload.
    pub workload: String,
    /// The machine, the date and the commit.
    pub machine: Machine,
    /// The settings of the run: names and values, as text.
    pub settings: Vec<(String, String)>,
    /// Nanoseconds that the lab itself needs for an empty step; not subtracted from any number.
    pub overhead: f64,
    /// One curve for each side and setting.
    pub series: Vec<Series>,
    /// Further remarks for the reader.
    #[serde(default)]
    pub notes: Vec<String>,
    /// Predictions that were compared with real threads.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub validation: Vec<Validation>,
}

/// A curve.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Its name.
    pub label: String,
    /// What ran: `library`, `kernel`, `fuse2fs`, `pext4`, a type of file system, or a control
    /// (`control` enters no file system, `apart` is the library with one volume for each task).
    pub side: String,
    /// The setting of the scaling mechanisms, where there is one: its name as given.
    pub scaling: Option<String>,
    /// One point for each number of tasks.
    pub points: Vec<Point>,
    /// The result of the check of the image afterwards.
    pub check: String,
}

impl Series {
    /// Whether it is a control, which shows only the cost of other tasks on this machine.
    #[must_use]
    pub fn is_control(&self) -> bool {
        matches!(&*self.side, "control" | "apart")
    }
}

/// The results at one number of tasks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Number of tasks.
    pub tasks: u32,
    /// One result for each part of the workload.
    pub parts: Vec<Part>,
    /// The layout of the files afterwards, where it was examined: medians over the repetitions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fragmentation: Option<Fragmentation>,
    /// The resource that saturates first, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saturation: Option<String>,
    /// What queueing theory says, where the demands are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub theory: Option<Theory>,
    /// Whether the window held three commits, a wrap of the log and a checkpoint, where it should.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is_whole: Option<bool>,
    /// Details, which only a terminal shows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

impl Point {
    /// A point of which nothing is known yet.
    #[must_use]
    pub fn of(tasks: u32) -> Self {
        Self {
            tasks,
            parts: Vec::new(),
            fragmentation: None,
            saturation: None,
            theory: None,
            is_whole: None,
            notes: Vec::new(),
        }
    }
}

/// The result of one part, over all repetitions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// Its name.
    pub name: String,
    /// Operations a second of all tasks together, one value for each repetition.
    pub rates: Vec<f64>,
    /// The median of `rates`.
    pub rate: f64,
    /// Largest minus smallest rate, divided by the median; unknown with a single repetition.
    pub spread: Option<f64>,
    /// The slowest task's rate divided by the fastest's, 0 to 1; the median.
    pub fairness: f64,
    /// CPU time of the tasks in nanoseconds an operation; the median. Virtual cores report all of a
    /// task's time here, also that in which it waits.
    pub cpu: f64,
    /// CPU time including all other threads (in process) or the whole machine (on a path).
    pub whole_cpu: Option<f64>,
    /// Instructions an operation in user mode, where they are counted.
    pub instructions: Option<f64>,
    /// The cost of locks an operation, by class, in a build with meters: means over all
    /// repetitions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub locks: Vec<LockCost>,
}

/// The cost of the locks of one class; all numbers are per operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LockCost {
    /// The class.
    pub class: String,
    /// Acquisitions.
    pub acquisitions: f64,
    /// Acquisitions that found the lock held and waited.
    pub contended: f64,
    /// Failed try-locks.
    pub failures: f64,
    /// Nanoseconds of waiting.
    pub waited: f64,
    /// Nanoseconds for which locks were held.
    pub held: f64,
}

/// The layout of files and free space, as e4defrag, filefrag and e2freefrag count it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fragmentation {
    /// Examined files.
    pub files: u64,
    /// Extents of all files; two that are adjacent on disk and in the file are one.
    pub extents: u64,
    /// Average bytes of an extent.
    pub average_extent: u64,
    /// Runs of free blocks, where they were counted.
    pub free_extents: Option<u64>,
    /// Average bytes of a run of free blocks.
    pub average_free_extent: Option<u64>,
}

impl Fragmentation {
    /// The median of each number over the repetitions; `None` without repetitions. A number that is
    /// missing in one repetition is missing in the result.
    #[must_use]
    pub fn median(repetitions: &[Self]) -> Option<Self> {
        let all = |take: fn(&Self) -> u64| median_count(repetitions.iter().map(take).collect());
        let some = |take: fn(&Self) -> Option<u64>| {
            let found: Option<Vec<u64>> = repetitions.iter().map(take).collect();
            found.map(median_count)
        };
        (!repetitions.is_empty()).then(|| Self {
            files: all(|found| found.files),
            extents: all(|found| found.extents),
            average_extent: all(|found| found.average_extent),
            free_extents: some(|found| found.free_extents),
            average_free_extent: some(|found| found.average_free_extent),
        })
    }

    /// Average number of extents of a file.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "an average needs no 53 bits")]
    pub fn extents_per_file(&self) -> f64 {
        self.extents as f64 / self.files.max(1) as f64
    }

    /// The fragmentation score that `e4defrag -c` gives, from 0 to 100: with `p` percent of the
    /// blocks beginning an extent that is not the first of its file, `8 p` up to 10 %, and
    /// `80 + p / 5` beyond (found by trying e4defrag 1.47.0). Blocks are taken for 4 KiB large, as
    /// in all images of the lab, and every file for one that has blocks.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a score needs no 53 bits")]
    pub fn score(&self) -> f64 {
        let bytes = self.average_extent.saturating_mul(self.extents);
        let blocks = (bytes as f64 / 4096.0).max(1.0);
        let percent = 100.0 * self.extents.saturating_sub(self.files) as f64 / blocks;
        if percent <= 10.0 {
            8.0 * percent
        } else {
            (80.0 + percent / 5.0).min(100.0)
        }
    }
}

impl Part {
    /// Combines the repetitions, at least one.
    #[must_use]
    pub fn of(name: &str, counts: &[PartCount]) -> Self {
        let all = |take: fn(&PartCount) -> f64| counts.iter().map(take).collect();
        let some = |take: fn(&PartCount) -> Option<f64>| {
            let found: Option<Vec<f64>> = counts.iter().map(take).collect();
            found.map(|values| median(&values))
        };
        let rates: Vec<f64> = all(|count| count.rate);
        let rate = median(&rates);
        let largest = rates.iter().copied().fold(0.0, f64::max);
        let smallest = rates.iter().copied().fold(f64::INFINITY, f64::min);
        Self {
            name: name.to_owned(),
            rate,
            spread: (rates.len() > 1 && rate > 0.0).then(|| (largest - smallest) / rate),
            rates,
            fairness: median(&all(|count| count.fairness)),
            cpu: median(&all(|count| count.cpu)),
            whole_cpu: some(|count| count.whole_cpu),
            instructions: some(|count| count.instructions),
            locks: locks(counts),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a mean needs no 53 bits")]
fn locks(counts: &[PartCount]) -> Vec<LockCost> {
    let operations: u64 = counts.iter().map(|count| count.operations).sum();
    let each = |amount: u64| amount as f64 / operations.max(1) as f64;
    let time = |time: Duration| time.as_nanos() as f64 / operations.max(1) as f64;
    let sum = counts
        .iter()
        .fold(Tallies::default(), |sum, count| sum.plus(&count.locks));
    let costs = sum.used().map(|(class, tally)| LockCost {
        class: format!("{class:?}"),
        acquisitions: each(tally.acquisitions),
        contended: each(tally.contended),
        failures: each(tally.failures),
        waited: time(tally.waited),
        held: time(tally.held),
    });
    costs.collect()
}

/// The middle value, or the mean of the two middle values.
#[must_use]
pub fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        odd if odd % 2 == 1 => values[odd / 2],
        even => f64::midpoint(values[even / 2 - 1], values[even / 2]),
    }
}

/// The same for integers, rounded down.
fn median_count(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    match values.len() {
        0 => 0,
        odd if odd % 2 == 1 => values[odd / 2],
        even => u64::midpoint(values[even / 2 - 1], values[even / 2]),
    }
}

impl Results {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// If it cannot be read or has another format.
    pub fn load(path: &Path) -> Result<Self> {
        let name = || path.display().to_string();
        let text = std::fs::read_to_string(path).with_context(name)?;
        let mut results: Self = serde_json::from_str(&text).with_context(name)?;
        if results.format != FORMAT {
            let (name, format) = (name(), results.format);
            bail!("{name}: its format is version {format}; this program reads version {FORMAT}");
        }
        older::convert(&mut results);
        Ok(results)
    }

    /// Writes a file.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub fn save(&self, path: &Path) -> Result<()> {
        let mut text = serde_json::to_string_pretty(self)?;
        text.push('\n');
        std::fs::write(path, text).with_context(|| path.display().to_string())
    }
}

/// Results for tests, of one part with one repetition.
#[cfg(test)]
pub(crate) mod samples {
    use super::{Evidence, FORMAT, Machine, Part, Point, Results, Series};

    pub(crate) fn point(tasks: u32, rate: f64) -> Point {
        let part = Part {
            name: "operations".to_owned(),
            rates: vec![rate],
            rate,
            spread: None,
            fairness: 1.0,
            cpu: 1e9 / rate,
            whole_cpu: None,
            instructions: None,
            locks: Vec::new(),
        };
        Point {
            parts: vec![part],
            ..Point::of(tasks)
        }
    }

    pub(crate) fn series(
        label: &str,
        side: &str,
        scaling: Option<&str>,
        points: Vec<Point>,
    ) -> Series {
        Series {
            label: label.to_owned(),
            side: side.to_owned(),
            scaling: scaling.map(str::to_owned),
            points,
            check: String::new(),
        }
    }

    pub(crate) fn results(series: Vec<Series>) -> Results {
        Results {
            format: FORMAT,
            evidence: Evidence::Measured,
            workload: "fallocate2".to_owned(),
            machine: Machine::here(),
            settings: Vec::new(),
            overhead: 0.0,
            series,
            notes: Vec::new(),
            validation: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::samples;
    use super::{FORMAT, Fragmentation, Part, PartCount, Path, Results, Tallies, median};

    /// Results stored before a setting was recorded do not name it.
    #[test]
    fn results_that_are_kept_are_read() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/results");
        let mut read = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path
                .extension()
                .is_some_and(|extension| extension == "json")
            {
                let results = Results::load(&path).unwrap();
                assert!(!results.settings.is_empty(), "{}", path.display());
                read += 1;
            }
        }
        assert!(read > 0, "there are none");
    }

    /// What e4defrag said of directories with so many blocks, extents and files. The last two are
    /// published (block allocation v3), of one file of many.
    #[test]
    fn a_layout_has_the_score_that_e4defrag_gives_it() {
        let told = [
            (2, 2, 1, 90),
            (10, 10, 1, 98),
            (100, 90, 1, 98),
            (200, 47, 1, 85),
            (400, 26, 1, 50),
            (800, 13, 1, 12),
            (1600, 3, 1, 1),
            (200_000, 6, 1, 0),
            (1242, 56, 4, 33),
            (1 << 18, 261_967, 1, 100),
            (1 << 18, 588, 1, 2),
        ];
        for (blocks, extents, files, score) in told {
            let layout = Fragmentation {
                files,
                extents,
                average_extent: blocks * 4096 / extents,
                free_extents: None,
                average_free_extent: None,
            };
            let found = layout.score();
            assert_eq!(format!("{found:.0}"), score.to_string(), "{layout:?}");
        }
    }

    #[test]
    fn results_of_another_version_say_which() {
        let results = Results {
            format: FORMAT + 1,
            ..samples::results(Vec::new())
        };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("later.json");
        results.save(&path).unwrap();
        let told = Results::load(&path).unwrap_err().to_string();
        let (later, here) = (FORMAT + 1, FORMAT);
        let expected = format!("its format is version {later}; this program reads version {here}");
        assert!(told.ends_with(&expected), "{told}");
    }

    #[test]
    fn medians() {
        assert!((median(&[3.0, 1.0, 2.0]) - 2.0).abs() < 1e-12);
        assert!((median(&[4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < 1e-12);
        assert!(median(&[]).abs() < 1e-12);
    }

    #[test]
    fn how_files_lie_is_a_median_as_well() {
        let found = |extents, average_extent, free_extents| Fragmentation {
            files: 2,
            extents,
            average_extent,
            free_extents,
            average_free_extent: Some(7),
        };
        let three = [
            found(40, 1, Some(3)),
            found(90, 2, Some(9)),
            found(10, 8, Some(4)),
        ];
        let median = Fragmentation::median(&three);
        assert_eq!(median, Some(found(40, 2, Some(4))));
        assert_eq!(
            Fragmentation::median(&three[..2]),
            Some(found(65, 1, Some(6)))
        );
        let unknown = [found(4, 1, Some(3)), found(4, 1, None)];
        assert_eq!(Fragmentation::median(&unknown), Some(found(4, 1, None)));
        assert_eq!(Fragmentation::median(&[]), None);
    }

    #[test]
    fn repetitions_become_median_and_spread() {
        let count = |rate, fairness, instructions| PartCount {
            rate,
            fairness,
            cpu: 100.0,
            whole_cpu: None,
            instructions,
            operations: 1,
            locks: Tallies::default(),
        };
        let counts = [
            count(90.0, 0.9, Some(10.0)),
            count(100.0, 0.5, Some(12.0)),
            count(120.0, 1.0, None),
        ];
        let part = Part::of("creation", &counts);
        assert!((part.rate - 100.0).abs() < 1e-9);
        assert!((part.spread.unwrap() - 0.3).abs() < 1e-9);
        assert!((part.fairness - 0.9).abs() < 1e-9);
        assert_eq!(part.instructions, None, "one repetition did not count them");
        assert_eq!(Part::of("creation", &counts[..1]).spread, None);
    }
}
