//! The long runs: the tests of the whole with more seeds, fuzzing, and the model checker.

use std::process::{Command, Stdio};

use anyhow::{Result, bail};

use crate::{built, cargo, execute, workspace};

/// Fuzz targets, as `fuzz/Cargo.toml` names them.
const FUZZ_TARGETS: [&str; 4] = ["ondisk", "recovery", "image", "check"];

/// Runs modules of the whole-system tests with more effort.
fn whole(modules: &[&str], effort: u64) -> Result<()> {
    execute(&mut whole_command(modules, effort))
}

fn whole_command(modules: &[&str], effort: u64) -> Command {
    let arguments = [
        "test",
        "--release",
        "-p",
        "pext4-testkit",
        "--test",
        "whole",
        "--",
    ];
    let mut command = cargo(&arguments);
    command
        .args(modules)
        .env("PEXT4_TEST_EFFORT", effort.to_string());
    command
}

/// Power cuts, failing devices, unlinked open files.
pub fn crash(effort: u64) -> Result<()> {
    whole(&["crash::", "faults::", "orphans::"], effort)
}

/// Random operations: one thread and many, full volumes, corrupt images, the kernel; and the
/// checker compared with e2fsck.
pub fn soak(effort: u64) -> Result<()> {
    whole(
        &["single::", "threads::", "full::", "hostile::", "kernel_"],
        effort,
    )?;
    let arguments = [
        "test",
        "--release",
        "-p",
        "pext4-image",
        "--test",
        "check",
        "beside::",
    ];
    execute(cargo(&arguments).env("PEXT4_TEST_EFFORT", effort.to_string()))
}

/// Settings of the scaling mechanisms that together have every value of every switch, one a line; a
/// test beside the file checks that.
const SETTINGS: &str = include_str!("../../crates/ext4/tests/settings.txt");

/// Random operations, many threads and power cuts in every setting of the scaling mechanisms.
pub fn settings(effort: u64) -> Result<()> {
    for setting in SETTINGS.lines() {
        eprintln!("setting {setting}");
        let modules = [
            "single::",
            "threads::",
            "full::",
            "crash::",
            "faults::",
            "orphans::",
        ];
        let mut command = whole_command(&modules, effort);
        execute(command.env("PEXT4_TEST_SCALING", setting))?;
    }
    Ok(())
}

/// Coverage-guided fuzzing of one target, or of each in turn.
pub fn fuzz(target: Option<&str>, seconds: u64) -> Result<()> {
    let probe = Command::new("cargo")
        .args(["+nightly", "fuzz", "--version"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    if !probe.is_ok_and(|status| status.success()) {
        bail!(
            "fuzzing wants the nightly toolchain and cargo-fuzz:\n  \
             rustup toolchain install nightly\n  cargo install cargo-fuzz"
        );
    }
    let targets: Vec<&str> = FUZZ_TARGETS
        .into_iter()
        .filter(|name| target.is_none_or(|wanted| wanted == *name))
        .collect();
    if targets.is_empty() {
        bail!("the targets are: {}", FUZZ_TARGETS.join(", "));
    }
    for target in targets {
        let limit = format!("-max_total_time={seconds}");
        let arguments = [
            "+nightly",
            "fuzz",
            "run",
            target,
            "--",
            &limit,
            "-max_len=65536",
        ];
        let mut command = Command::new("cargo");
        execute(command.args(arguments).current_dir(workspace()))?;
    }
    Ok(())
}

/// All interleavings of the small concurrent components.
pub fn loom() -> Result<()> {
    execute(modelled(&["test", "--release"]).args(["--", "models::"]))
}

/// Whether the models compile, which no other build contains.
pub fn check_models() -> Result<()> {
    execute(&mut modelled(&["check", "--profile", "test"]))
}

/// Cargo, on the libraries that have models, built for the model checker.
fn modelled(arguments: &[&str]) -> Command {
    let mut command = cargo(arguments);
    command.arg("--lib");
    for package in ["pext4-sync", "pext4-block", "pext4-jbd2", "pext4-fs"] {
        command.args(["-p", package]);
    }
    command
        .env("RUSTFLAGS", "--cfg loom")
        .env("CARGO_TARGET_DIR", "target/loom");
    command
}

/// The engine's tests under ThreadSanitizer: the unit tests, and those of the settings.
pub fn thread_sanitizer() -> Result<()> {
    let mut units = sanitized();
    units.arg("--lib");
    for package in ["pext4-sync", "pext4-block", "pext4-jbd2", "pext4-fs"] {
        units.args(["-p", package]);
    }
    execute(&mut units)?;
    execute(sanitized().args(["-p", "pext4-fs", "--test", "whole", "scaling::"]))
}

/// `cargo test`, built for ThreadSanitizer. The standard library is rebuilt with it, since
/// otherwise each `Arc` would be reported. Requires nightly with `rust-src`.
fn sanitized() -> Command {
    const TARGET: &str = "x86_64-unknown-linux-gnu";
    let mut command = Command::new("cargo");
    command
        .args(["+nightly", "test", "-Zbuild-std", "--target", TARGET])
        .env("RUSTFLAGS", "-Zsanitizer=thread")
        .env("CARGO_TARGET_DIR", "target/tsan")
        .current_dir(workspace());
    command
}

/// Runs a workload on virtual cores. Builds two programs: one whose locks and atomics run in
/// virtual time, and one with the ordinary ones, which measures real threads for calibration and
/// comparison.
pub fn virtual_cores(options: &[&str]) -> Result<()> {
    let folder = workspace().join("virtual");
    let build = |arguments: &[&str]| {
        let mut command = cargo(&["build", "--release"]);
        command.args(arguments).current_dir(&folder);
        execute(&mut command)
    };
    build(&["--bin", "pext4-virtual"])?;
    let real = ["--bin", "pext4-real", "--no-default-features"];
    build(&[&real[..], &["--target-dir", "target/real"]].concat())?;
    let mut command = Command::new(built(&folder, "pext4-virtual"));
    command.args(options);
    command.env("PEXT4_REAL", folder.join("target/real/release/pext4-real"));
    execute(&mut command)
}

/// The virtual cores' tests against results computed by hand.
pub fn virtual_test() -> Result<()> {
    let arguments = ["test", "-p", "pext4-sync", "--features", "virtual"];
    execute(&mut cargo(&arguments))?;
    let mut theory = cargo(&["test"]);
    execute(theory.current_dir(workspace().join("virtual")))
}
