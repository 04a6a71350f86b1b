//! What `full` costs one thread, in instructions: every workload of the lab with `base` and with
//! `full`, counted by callgrind, which no other program disturbs.
//!
//! A run of N steps also makes and mounts an image. The difference of two runs, divided by that of
//! their steps, is what one step takes. Counts differ by up to 1 % from run to run, with the seeds
//! of hash tables.

use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::{built, cargo, execute, is_installed, workspace};

/// Steps of the two runs of a workload.
const STEPS: [u64; 2] = [4_000, 12_000];
/// The most that `full` may take, as a multiple of what `base` takes.
const TARGET: f64 = 1.03;

/// Counts the named workloads, or all of them if none is named. Fails if `full` takes more than the
/// target with any.
pub fn run(workloads: &[&str]) -> Result<()> {
    ensure!(
        is_installed("valgrind"),
        "`valgrind` is missing: on Debian, apt-get install valgrind"
    );
    let example = ["build", "--release", "-p", "pext4-lab"];
    execute(cargo(&example).args(["--example", "operations"]))?;
    let all = output(&mut operations(&["list"]))?;
    let workloads = match workloads {
        [] => all.lines().collect(),
        named => named.to_vec(),
    };
    println!("instructions a step, one thread, counted by callgrind");
    println!("{:<24}{:>10}{:>10}{:>8}", "", "base", "full", "ratio");
    let mut beyond = Vec::new();
    for workload in workloads {
        let [base, full] = ["base", "full"].map(|setting| of_a_step(workload, setting));
        let (base, full) = (base?, full?);
        let ratio = full as f64 / base.max(1) as f64;
        println!("{workload:<24}{base:>10}{full:>10}{ratio:>8.3}");
        if ratio > TARGET {
            beyond.push(workload);
        }
    }
    if !beyond.is_empty() {
        bail!("more than {TARGET} times base: {}", beyond.join(", "));
    }
    Ok(())
}

/// Instructions of one step of a workload.
fn of_a_step(workload: &str, setting: &str) -> Result<u64> {
    let [fewer, more] = STEPS.map(|steps| counted(workload, steps, setting));
    Ok(more?.saturating_sub(fewer?) / (STEPS[1] - STEPS[0]))
}

/// Instructions of a whole run.
fn counted(workload: &str, steps: u64, setting: &str) -> Result<u64> {
    let run = operations(&[workload, &steps.to_string(), setting]);
    let mut valgrind = Command::new("valgrind");
    valgrind
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(run.get_program())
        .args(run.get_args());
    let ended = valgrind.output().context("valgrind")?;
    let text = String::from_utf8_lossy(&ended.stderr);
    ensure!(ended.status.success(), "{workload}, {setting}: {text}");
    collected(&text).with_context(|| format!("{workload}, {setting}: {text}"))
}

/// The count that callgrind tells at its end.
fn collected(text: &str) -> Option<u64> {
    let mut lines = text.lines();
    let count = lines.find_map(|line| line.split_once("Collected :"))?.1;
    count.trim().parse().ok()
}

fn operations(arguments: &[&str]) -> Command {
    let mut command = Command::new(built(workspace(), "examples/operations"));
    command.args(arguments);
    command
}

fn output(command: &mut Command) -> Result<String> {
    let ended = command.output().with_context(|| format!("{command:?}"))?;
    ensure!(
        ended.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&ended.stderr)
    );
    Ok(String::from_utf8(ended.stdout)?)
}

#[cfg(test)]
mod tests {
    use super::collected;

    #[test]
    fn the_count_of_a_run_is_found() {
        let text = "==7== \n==7== Events    : Ir\n==7== Collected : 206102522\n==7== \n";
        assert_eq!(collected(text), Some(206_102_522));
        assert_eq!(collected("valgrind: no such file"), None);
    }
}
