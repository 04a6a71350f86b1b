use std::time::Duration;

use pext4_sync::Class;
use pext4_sync::virtual_cores::{LineUsage, LockUsage, Usage};

use super::{Analysis, Station, mean_value};

/// The usage of a window of a millisecond.
fn window(locks: Vec<LockUsage>, lines: Vec<LineUsage>) -> Usage {
    Usage {
        elapsed: Duration::from_millis(1),
        locks,
        lines,
        freed_lines: Vec::new(),
        other_waits: Vec::new(),
        lock_waits: Vec::new(),
        steps: 1,
        work: Vec::new(),
        unknown_steps: 0,
        stretches: Duration::from_millis(1),
        unknown_stretches: Duration::ZERO,
    }
}

#[test]
fn what_a_task_has_nearly_to_itself_is_no_station() {
    let lock = |lead, cores| LockUsage {
        class: Class::Leaf,
        acquisitions: 10,
        contended: 0,
        failures: 0,
        waited: Duration::ZERO,
        held: Duration::from_micros(100),
        elsewhere: Duration::ZERO,
        lead: Duration::from_micros(lead),
        read: Duration::ZERO,
        hand_over: Duration::ZERO,
        cores,
    };
    let line = |site: &str, cores| LineUsage {
        class: None,
        site: site.into(),
        transfers: 10,
        served: Duration::from_micros(10),
        awaited: Duration::from_micros(10),
        waited: Duration::ZERO,
        cores,
    };
    let locks = vec![lock(90, 2), lock(10, 8), lock(100, 1)];
    let lines = vec![
        line("crates/a.rs:1", 2),
        line("crates/a.rs:1", 3),
        line("src/barrier.rs:50", 9),
    ];
    let usage = window(locks, lines);
    let names = |tasks| {
        let analysis = Analysis::of(&usage, 10, tasks);
        let stations = analysis.stations.into_iter();
        stations.map(|station| station.name).collect::<Vec<_>>()
    };
    let shared = [
        "a Leaf lock of 8 cores, taken 1.000 times an operation",
        "the line at crates/a.rs:1, 3 cores",
    ];
    assert_eq!(names(8), shared);
    assert_eq!(names(2).len(), 3, "between two tasks two cores are all");
    assert_eq!(names(1), shared, "a task alone shares with nobody");
}

fn analysis(tasks: u32, alone: f64, utilisation: f64) -> Analysis {
    Analysis {
        tasks,
        rate: 1e6,
        alone,
        waiting: 0.0,
        stations: vec![Station {
            name: "a lock".to_owned(),
            lock: Some(Class::Leaf),
            demand: 100.0,
            utilisation,
            occupied: utilisation,
            waited: 1.0,
        }],
        transfers: Vec::new(),
        waits: Vec::new(),
        waits_by_place: Vec::new(),
        work: Vec::new(),
        working: 0.0,
        transferring: 0.0,
        unknown: 0.0,
    }
}

#[test]
fn a_limit_is_ahead_or_behind_but_not_both() {
    for (tasks, busy, limit) in [
        (1, 0.10, "busy 0.10) would be at 30 tasks"),
        (96, 0.52, "busy 0.52) limits from 30 tasks on"),
        (96, 0.99, "busy 0.99) is saturated from 30 tasks on"),
    ] {
        let told = analysis(tasks, 3000.0, busy).limit().unwrap();
        assert_eq!(told, format!("a lock (100.0 ns an operation, {limit}"));
    }
}

/// Two locks that all tasks use one after the other, each for half of the time.
#[test]
fn locks_that_are_busy_in_turn_are_one_station() {
    let mut both = analysis(96, 3000.0, 0.5);
    both.stations[0].demand = 500.0;
    both.stations.push(both.stations[0].clone());
    // 96 tasks wait for one server of 1 us.
    both.rate = 1e6;
    let told = both.in_turn().expect("theory expects twice the rate");
    let said = "1.000 of mean value analysis if the 2 Leaf locks that are waited for were one \
                station (1000.0 ns an operation, busy 1.00 in all)";
    assert_eq!(told.describe(), said);

    both.rate = 1.3e6;
    let told = both.in_turn().expect("both are busy at times");
    assert!(told.describe().starts_with("1.300 of"));
    both.rate = 1.9e6;
    assert!(both.in_turn().is_none(), "as theory expects");
    both.rate = 0.5e6;
    assert!(both.in_turn().is_none(), "it does not explain that");
    both.rate = 1e6;
    both.stations[1].lock = Some(Class::Group);
    assert!(both.in_turn().is_none(), "locks of two classes");
}

#[test]
fn a_station_that_nobody_waited_for_is_not_said_to_be_the_limit() {
    let mut both = analysis(96, 3000.0, 0.99);
    both.stations[0].waited = 0.0;
    assert_eq!(both.limit(), None);
    both.stations.push(Station {
        name: "another".to_owned(),
        lock: None,
        demand: 30.0,
        utilisation: 0.30,
        occupied: 0.75,
        waited: 2.0,
    });
    let said = "another (30.0 ns an operation, busy 0.30, held 0.75 with waiting for others) \
                would be at 100 tasks";
    assert_eq!(both.limit().unwrap(), said);
    let listed: Vec<_> = both.stations.iter().map(Station::describe).collect();
    assert_eq!(
        listed,
        [
            "a lock: 100.0 ns an operation, busy 0.99; nobody waited for it",
            "another: 30.0 ns an operation, busy 0.30, held 0.75 with waiting for others; \
             waited for 2.0 ns",
        ]
    );
}

#[test]
fn a_lock_that_is_handed_over_is_busy_and_not_while_its_holder_waits_elsewhere() {
    let lock = LockUsage {
        class: Class::Leaf,
        acquisitions: 10,
        contended: 10,
        failures: 0,
        waited: Duration::from_micros(500),
        held: Duration::from_micros(600),
        elsewhere: Duration::from_micros(200),
        lead: Duration::ZERO,
        read: Duration::ZERO,
        hand_over: Duration::from_micros(300),
        cores: 8,
    };
    let usage = window(vec![lock], Vec::new());
    let analysis = Analysis::of(&usage, 10, 2);
    assert!((analysis.stations[0].demand - 70_000.0).abs() < 1e-6);
    assert!((analysis.stations[0].utilisation - 0.7).abs() < 1e-9);
    assert!((analysis.stations[0].occupied - 0.9).abs() < 1e-9);
    // 200 us an operation, 50 of them waiting, of which 30 are the lock's.
    assert!((analysis.alone - 180_000.0).abs() < 1e-6);
}

/// The machine repairman with exponential times, solved by its balance equations.
fn repairman(customers: u32, think: f64, service: f64) -> f64 {
    let mut weights = vec![1.0];
    for waiting in 0..customers {
        let last = weights[waiting as usize];
        weights.push(last * f64::from(customers - waiting) * service / think);
    }
    let sum: f64 = weights.iter().sum();
    (1.0 - weights[0] / sum) / service
}

#[test]
fn mean_value_analysis_is_exact_for_one_server() {
    for customers in [1, 2, 5, 20, 100] {
        let rate = mean_value(customers, 900.0, &[100.0]);
        let exact = repairman(customers, 900.0, 100.0);
        assert!(
            (rate / exact - 1.0).abs() < 1e-9,
            "{customers}: {rate} {exact}"
        );
    }
}

#[test]
fn without_servers_everybody_thinks() {
    assert!((mean_value(7, 100.0, &[]) - 0.07).abs() < 1e-12);
}
