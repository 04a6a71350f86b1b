//! How much a run tries, the location of its files, and a limit for hanging runs.
//!
//! `PEXT4_TEST_EFFORT` multiplies the number of seeds and samples (1 by default, as in `cargo
//! test`; `cargo xtask crash`, `soak` and `fuzz` set more). `PEXT4_SEED` runs a single seed
//! instead, the one that a failure printed. Each seed also selects a setting of the scaling
//! mechanisms ([`setting`]), unless `PEXT4_TEST_SCALING` names one for all seeds (`cargo xtask
//! settings`).

use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use pext4_fs::options::Scaling;
use tempfile::TempDir;

/// The factor of this run's effort relative to the default.
#[must_use]
pub fn effort() -> u64 {
    number("PEXT4_TEST_EFFORT").unwrap_or(1).max(1)
}

/// The only seed to run, if one was given.
#[must_use]
pub fn chosen_seed() -> Option<u64> {
    number("PEXT4_SEED")
}

fn number(variable: &str) -> Option<u64> {
    let value = std::env::var(variable).ok()?;
    Some(
        value
            .parse()
            .unwrap_or_else(|_| panic!("{variable}={value} is no number")),
    )
}

/// The seeds of a campaign: `count` at the default effort.
#[must_use]
pub fn seeds(count: u64) -> Vec<u64> {
    match chosen_seed() {
        Some(seed) => vec![seed],
        None => (1..=count * effort()).collect(),
    }
}

/// Settings that together have every value of every switch, one a line; a test beside the file
/// checks that.
const SETTINGS: &str = include_str!("../../ext4/tests/settings.txt");

/// The number of seeds, from 1 on, that together select every setting.
#[must_use]
pub fn settings() -> u64 {
    SETTINGS.lines().count() as u64
}

/// The setting of the scaling mechanisms that a seed selects.
///
/// # Panics
///
/// If `PEXT4_TEST_SCALING` is no setting.
#[must_use]
pub fn setting(seed: u64) -> Scaling {
    let turn = usize::try_from(seed.wrapping_sub(1) % settings()).unwrap_or(0);
    let selected = SETTINGS.lines().nth(turn).expect("one of them");
    let named = std::env::var("PEXT4_TEST_SCALING").ok();
    let text = named.as_deref().unwrap_or(selected);
    Scaling::parse(text).unwrap_or_else(|error| panic!("PEXT4_TEST_SCALING={text}: {error}"))
}

/// A temporary directory for images, in memory if the machine has such a file system; dropping it
/// removes it.
///
/// # Panics
///
/// If no directory can be created.
#[must_use]
pub fn scratch() -> TempDir {
    let shared_memory = Path::new("/dev/shm");
    let mut builder = tempfile::Builder::new();
    builder.prefix("pext4-test-");
    let made = match shared_memory.is_dir() {
        true => builder
            .tempdir_in(shared_memory)
            .or_else(|_| builder.tempdir()),
        false => builder.tempdir(),
    };
    made.expect("a directory for temporary files can be made")
}

/// The folder for reports of failures: `target/testkit` of the workspace.
#[must_use]
pub fn failures() -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/testkit");
    let _ = std::fs::create_dir_all(&folder);
    folder
}

/// The folder of saved operations, part of the repository.
#[must_use]
pub fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

/// Runs `work` on a thread of its own and panics if it has not finished within `limit`: there is no
/// other way to detect a hang. A panic of `work` continues in the caller.
///
/// # Panics
///
/// If the work panics or does not finish.
pub fn within<T: Send + 'static>(
    limit: Duration,
    what: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    let (sender, receiver) = mpsc::channel();
    let worker = std::thread::spawn(move || {
        let result = work();
        let _ = sender.send(());
        result
    });
    if let Err(mpsc::RecvTimeoutError::Timeout) = receiver.recv_timeout(limit) {
        panic!("no end within {limit:?}: {what}");
    }
    match worker.join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_ends_gives_its_result() {
        assert_eq!(within(Duration::from_secs(60), "a sum", || 1 + 1), 2);
    }

    #[test]
    #[should_panic(expected = "no end within")]
    fn work_that_hangs_is_told() {
        within(Duration::from_millis(20), "a sleep", || {
            std::thread::sleep(Duration::from_secs(5))
        });
    }
}
