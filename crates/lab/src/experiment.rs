//! An experiment: every point of every side, each measured several times.
//!
//! Machines are noisy, so only numbers of one run are compared, and a repetition measures all sides
//! before the next repetition begins: a disturbance affects all sides, and ratios hold. Each
//! repetition begins with another side, so that none is always first. The first failure ends the
//! experiment; a failed run prints no numbers.

use std::collections::BTreeSet;
use std::fmt;
use std::num::NonZero;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::results::{Evidence, FORMAT, Fragmentation, Machine, Part, Point, Results, Series};
use crate::run::{self, Counted, Disturbance, Interrupt, TaskFiles, Tasks, Window, measure};
use crate::show;
use crate::sides::{ControlSide, Side};
use crate::workloads::{EMPTY, Pace, Plan, Workload};

/// Number of empty steps that are run to measure the lab's own cost. A number, not a time, in which
/// a thread on a busy machine may not run at all.
const EMPTY_STEPS: u64 = 1 << 23;

/// The shortest window, unless another is asked for.
pub const MIN_WINDOW: Duration = Duration::from_millis(300);
/// Time in a window for each task of a processor: a few time slices of slow schedulers.
const TURN: Duration = Duration::from_millis(30);

/// The parameters of an experiment.
#[derive(Clone)]
pub struct Experiment {
    /// The workload that every task runs.
    pub workload: &'static dyn Workload,
    /// Numbers of tasks.
    pub tasks: Vec<u32>,
    /// The other parameters; its number of tasks is not used.
    pub plan: Plan,
    /// Files of all tasks together, in place of the plan's files per task: every point has the same
    /// total.
    pub files_in_all: Option<u32>,
    /// Time before each window.
    pub warm_up: Duration,
    /// The counted window; by default [`MIN_WINDOW`], and more where many tasks share a
    /// processor, so that each is scheduled several times in it.
    pub counted: Option<Duration>,
    /// In place of a window: the number of steps of every task, or all its steps if the workload
    /// runs once.
    pub steps: Option<u64>,
    /// Measurements of each point.
    pub repeat: u32,
    /// Whether each task is pinned to one processor.
    pub pinned: bool,
    /// Whether the counters of volumes in this process are among the notes.
    pub counters: bool,
    /// Stops the experiment early.
    pub interrupt: Interrupt,
    /// Other settings, for the report.
    pub settings: Vec<(String, String)>,
}

impl fmt::Debug for Experiment {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut experiment = formatter.debug_struct("Experiment");
        experiment.field("workload", &self.workload.name());
        experiment.field("tasks", &self.tasks);
        experiment.field("settings", &self.settings);
        experiment.finish_non_exhaustive()
    }
}

/// A side with the name of its curve.
pub struct Entrant {
    /// The side.
    pub side: Box<dyn Side>,
    /// `library`, `kernel`, ...
    pub kind: String,
    /// The setting's name, where there is one.
    pub scaling: Option<String>,
}

impl fmt::Debug for Entrant {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Entrant")
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}

/// The progress of a run.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// Measurements that are finished.
    pub done: usize,
    /// All measurements.
    pub all: usize,
    /// The side that is measured now.
    pub side: &'a str,
    /// Its number of tasks.
    pub tasks: u32,
}

/// The kinds of all sides of a run, for whoever loses some numbers by the failure of another side.
struct Sides(BTreeSet<String>);

impl Sides {
    fn of(entrants: &[Entrant]) -> Self {
        let kinds = entrants.iter().map(|entrant| entrant.kind.clone());
        Self(kinds.filter(|kind| kind != "control").collect())
    }

    /// The advice for an error of one of several kinds, in brackets.
    fn without(&self, kind: &str) -> String {
        match self.0.contains(kind) && self.0.len() > 1 {
            true => format!(" (a --compare without {kind} may work)"),
            false => String::new(),
        }
    }

    /// The same for an error that may be due to the number of tasks.
    fn with_less(&self, kind: &str, tasks: u32) -> String {
        match self.without(kind) {
            advice if advice.is_empty() || tasks == 1 => advice,
            _ => format!(" (fewer --tasks, or a --compare without {kind}, may work)"),
        }
    }
}

/// The measurements of one side so far.
struct Collected {
    points: Vec<Point>,
    counts: Vec<Counted>,
    /// The examined layout, one for each repetition.
    fragmentation: Vec<Fragmentation>,
    /// What others had during each measurement, with its number of tasks.
    disturbances: Vec<(u32, Disturbance)>,
}

impl Experiment {
    /// Measures everything, closes the sides and checks them.
    ///
    /// # Errors
    ///
    /// The first failure, or the interruption.
    pub fn run(
        &self,
        entrants: &mut [Entrant],
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<Results> {
        let overhead = self.overhead()?;
        let collected = self.measure_all(entrants, progress)?;
        let sides = Sides::of(entrants);
        let mut series = Vec::new();
        let (mut notes, mut disturbances) = (Vec::new(), Vec::new());
        for (entrant, collected) in entrants.iter_mut().zip(collected) {
            self.interrupt.check()?;
            let label = entrant.side.label();
            if let Some(report) = self.counters.then(|| entrant.side.report()).flatten() {
                notes.push(format!("{label}: counters of the volume\n{report}"));
            }
            let named = collected.disturbances.into_iter();
            disturbances.extend(named.map(|(tasks, found)| (label.clone(), tasks, found)));
            let verdict = entrant.side.close();
            let verdict =
                verdict.with_context(|| format!("{label}{}", sides.without(&entrant.kind)))?;
            series.push(Series {
                label,
                side: entrant.kind.clone(),
                scaling: entrant.scaling.clone(),
                points: collected.points,
                check: verdict.to_string(),
            });
        }
        notes.extend(run::disturbances(&disturbances));
        // An interruption during the last check also discards the numbers.
        self.interrupt.check()?;
        Ok(Results {
            format: FORMAT,
            evidence: Evidence::Measured,
            workload: self.workload.name().to_owned(),
            machine: Machine::here(),
            settings: self.settings.clone(),
            overhead,
            series,
            notes,
            validation: Vec::new(),
        })
    }

    fn measure_all(
        &self,
        entrants: &mut [Entrant],
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<Vec<Collected>> {
        let all = self.tasks.len() * self.repeat as usize * entrants.len();
        let mut done = 0;
        let sides = Sides::of(entrants);
        let mut collected: Vec<Collected> = entrants.iter().map(|_| Collected::new()).collect();
        for &tasks in &self.tasks {
            for repetition in 0..self.repeat as usize {
                for turn in 0..entrants.len() {
                    // Whatever comes first or last in a repetition is each side in turn.
                    let index = (repetition + turn) % entrants.len();
                    let (entrant, collected) = (&mut entrants[index], &mut collected[index]);
                    let side = entrant.side.label();
                    progress(Progress {
                        done,
                        all,
                        side: &side,
                        tasks,
                    });
                    self.measure_one(&mut *entrant.side, tasks, collected)
                        .with_context(|| {
                            let advice = sides.with_less(&entrant.kind, tasks);
                            format!("{side}, {}{advice}", show::tasks(tasks))
                        })?;
                    done += 1;
                }
            }
            for (entrant, collected) in entrants.iter().zip(&mut collected) {
                let workload = entrant.side.workload().unwrap_or(self.workload);
                collected.end_point(tasks, workload);
            }
        }
        Ok(collected)
    }

    fn measure_one(
        &self,
        side: &mut dyn Side,
        tasks: u32,
        collected: &mut Collected,
    ) -> Result<()> {
        self.interrupt.check()?;
        let tasks = self.tasks_of(tasks);
        let workload = side.workload().unwrap_or(self.workload);
        let mut crew = side.crew(&tasks)?;
        let counted = measure(&mut crew, workload, &self.window(tasks.plan.tasks))?;
        let is_examined = workload.pace() == Pace::Once;
        crew.finish(match is_examined {
            true => TaskFiles::Keep,
            false => TaskFiles::Remove,
        })?;
        if is_examined {
            collected.fragmentation.extend(side.examine(&tasks)?);
        } else {
            side.clean_up(&tasks)?;
        }
        let tasks = tasks.plan.tasks;
        collected.disturbances.push((tasks, counted.disturbance));
        collected.counts.push(counted);
        Ok(())
    }

    fn window(&self, tasks: u32) -> Window {
        let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
        let processors = u32::try_from(processors).unwrap_or(u32::MAX);
        let turns = TURN * tasks.div_ceil(processors);
        Window {
            warm_up: self.warm_up,
            counted: self.counted.unwrap_or(turns.max(MIN_WINDOW)),
            steps: self.steps,
        }
    }

    fn tasks_of(&self, tasks: u32) -> Tasks {
        Tasks {
            workload: self.workload,
            plan: Plan {
                tasks,
                files: self
                    .files_in_all
                    .map_or(self.plan.files, |files| files.div_ceil(tasks)),
                ..self.plan.clone()
            },
            pinned: self.pinned,
            interrupt: self.interrupt.clone(),
        }
    }

    /// Nanoseconds of a processor's time for an empty step.
    fn overhead(&self) -> Result<f64> {
        let mut side = ControlSide::of(EMPTY)?;
        let mut crew = side.crew(&self.tasks_of(1))?;
        let window = Window {
            warm_up: Duration::ZERO,
            counted: Duration::ZERO,
            steps: Some(EMPTY_STEPS),
        };
        let counted = measure(&mut crew, EMPTY, &window)?;
        crew.finish(TaskFiles::Remove)?;
        Ok(counted.parts[0].cpu)
    }
}

impl Collected {
    fn new() -> Self {
        Self {
            points: Vec::new(),
            counts: Vec::new(),
            fragmentation: Vec::new(),
            disturbances: Vec::new(),
        }
    }

    /// Called when all repetitions of a point are measured.
    fn end_point(&mut self, tasks: u32, workload: &dyn Workload) {
        let counts = std::mem::take(&mut self.counts);
        let examined = std::mem::take(&mut self.fragmentation);
        let parts = workload.parts().iter().enumerate().map(|(index, name)| {
            let of_part: Vec<_> = counts
                .iter()
                .map(|count| count.parts[index].clone())
                .collect();
            Part::of(name, &of_part)
        });
        self.points.push(Point {
            parts: parts.collect(),
            fragmentation: Fragmentation::median(&examined),
            ..Point::of(tasks)
        });
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::{Arc, Mutex};

    use anyhow::bail;

    use super::{
        Duration, Entrant, Experiment, Fragmentation, Interrupt, Pace, Plan, Result, Side, Tasks,
        Workload,
    };
    use crate::run::Crew;
    use crate::sides::Verdict;
    use crate::target::{MountedPath, Target};
    use crate::workloads::{About, Needs, Step, Task};

    /// A workload that runs once, with one step.
    struct Single;

    impl Workload for Single {
        fn about(&self) -> &About {
            &About {
                name: "single",
                source: "a test",
                operation: "nothing",
            }
        }

        fn pace(&self) -> Pace {
            Pace::Once
        }

        fn needs(&self, _plan: &Plan) -> Needs {
            Needs::default()
        }

        fn task(&self, _target: &dyn Target, _plan: &Plan, _number: u32) -> Result<Box<dyn Task>> {
            Ok(Box::new(Self))
        }
    }

    impl Task for Single {
        fn step(&mut self, _target: &dyn Target) -> Result<Step> {
            Ok(Step::one(true))
        }

        fn finish(self: Box<Self>, _target: &dyn Target) -> Result<()> {
            Ok(())
        }
    }

    /// A side that reports these layouts one after another and interrupts the run when it is
    /// closed.
    struct Told(Vec<u64>, Interrupt);

    impl Side for Told {
        fn label(&self) -> String {
            "told".to_owned()
        }

        fn crew(&mut self, tasks: &Tasks) -> Result<Crew> {
            let target: Arc<dyn Target> = Arc::new(MountedPath::open(Path::new("/"))?);
            Crew::of_threads(&[target], tasks)
        }

        fn clean_up(&mut self, _tasks: &Tasks) -> Result<()> {
            Ok(())
        }

        fn examine(&mut self, _tasks: &Tasks) -> Result<Option<Fragmentation>> {
            Ok(self.0.pop().map(|extents| Fragmentation {
                files: 1,
                extents,
                average_extent: 0,
                free_extents: None,
                average_free_extent: None,
            }))
        }

        fn close(&mut self) -> Result<Verdict> {
            self.1.ask();
            Ok(Verdict::Clean)
        }
    }

    fn told(repeat: u32) -> (Experiment, [Entrant; 1]) {
        let experiment = Experiment {
            workload: &Single,
            tasks: vec![1, 2],
            plan: Plan::default(),
            files_in_all: None,
            warm_up: Duration::ZERO,
            counted: None,
            steps: None,
            repeat,
            pinned: false,
            counters: false,
            interrupt: Interrupt::default(),
            settings: Vec::new(),
        };
        let found = vec![6, 4, 9, 30, 10, 20];
        let entrant = Entrant {
            side: Box::new(Told(found, experiment.interrupt.clone())),
            kind: "told".to_owned(),
            scaling: None,
        };
        (experiment, [entrant])
    }

    #[test]
    fn what_is_examined_counts_in_every_repetition() {
        let (experiment, mut entrants) = told(3);
        let collected = experiment.measure_all(&mut entrants, &mut |_| {}).unwrap();
        let points = collected[0].points.iter();
        let found = points.map(|point| point.fragmentation.unwrap().extents);
        assert_eq!(found.collect::<Vec<u64>>(), [20, 6]);
    }

    /// A side that writes its name down whenever it is measured.
    struct Named(&'static str, Arc<Mutex<String>>);

    impl Side for Named {
        fn label(&self) -> String {
            self.0.to_owned()
        }

        fn crew(&mut self, tasks: &Tasks) -> Result<Crew> {
            self.1.lock().unwrap().push_str(self.0);
            let target: Arc<dyn Target> = Arc::new(MountedPath::open(Path::new("/"))?);
            Crew::of_threads(&[target], tasks)
        }

        fn clean_up(&mut self, _tasks: &Tasks) -> Result<()> {
            Ok(())
        }

        fn examine(&mut self, _tasks: &Tasks) -> Result<Option<Fragmentation>> {
            Ok(None)
        }

        fn close(&mut self) -> Result<Verdict> {
            Ok(Verdict::Clean)
        }
    }

    #[test]
    fn each_side_is_first_and_last_in_turn() {
        let (experiment, _) = told(4);
        let order = Arc::default();
        let mut entrants = ["a", "b", "c"].map(|name| Entrant {
            side: Box::new(Named(name, Arc::clone(&order))),
            kind: name.to_owned(),
            scaling: None,
        });
        let collected = experiment.measure_all(&mut entrants, &mut |_| {}).unwrap();
        assert_eq!(order.lock().unwrap().as_str(), "abcbcacababc".repeat(2));
        let rates = |at: usize| collected[at].points[0].parts[0].rates.len();
        assert_eq!([rates(0), rates(1), rates(2)], [4; 3]);
    }

    /// A side that cannot start.
    struct Failing;

    impl Side for Failing {
        fn label(&self) -> String {
            "fuse2fs".to_owned()
        }

        fn crew(&mut self, _tasks: &Tasks) -> Result<Crew> {
            bail!("a file is gone")
        }

        fn clean_up(&mut self, _tasks: &Tasks) -> Result<()> {
            Ok(())
        }

        fn examine(&mut self, _tasks: &Tasks) -> Result<Option<Fragmentation>> {
            Ok(None)
        }

        fn close(&mut self) -> Result<Verdict> {
            Ok(Verdict::Clean)
        }
    }

    #[test]
    fn a_side_that_fails_is_named_with_what_may_still_work() {
        let (mut experiment, [other]) = told(1);
        let failing = || Entrant {
            side: Box::new(Failing),
            kind: "fuse2fs".to_owned(),
            scaling: None,
        };
        let fails = |experiment: &Experiment, entrants: &mut [Entrant]| {
            let told = experiment.measure_all(entrants, &mut |_| {});
            format!("{:#}", told.err().expect("it fails"))
        };
        let mut both = [failing(), other];
        experiment.tasks = vec![4];
        let expected = "fuse2fs, 4 tasks (fewer --tasks, or a --compare without fuse2fs, may \
                        work): a file is gone";
        assert_eq!(fails(&experiment, &mut both), expected);
        experiment.tasks = vec![1];
        let expected = "fuse2fs, 1 task (a --compare without fuse2fs may work): a file is gone";
        assert_eq!(fails(&experiment, &mut both), expected);
        let alone = fails(&experiment, &mut [failing()]);
        assert_eq!(alone, "fuse2fs, 1 task: a file is gone");
    }

    #[test]
    fn whoever_is_interrupted_while_a_side_is_closed_has_no_results() {
        let (experiment, mut entrants) = told(1);
        let told = experiment.run(&mut entrants, &mut |_| {});
        let told = told.expect_err("it was interrupted").to_string();
        assert!(told.contains("interrupted"), "{told}");
    }
}
