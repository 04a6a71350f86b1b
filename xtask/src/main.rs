//! Chores of the pext4 workspace: `cargo xtask COMMAND`.
//!
//! `test` is what the README promises and continuous integration runs. The campaigns (`crash`,
//! `soak`, `fuzz`, `loom`) are the same tests with more patience; each prints the seed of what it
//! finds.

mod campaigns;
mod tidy;

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

const HELP: &str = "\
Chores of the pext4 workspace.

  cargo xtask test              names missing tools, then runs all tests
  cargo xtask lint              formatting, clippy, and tidy
  cargo xtask tidy              what rustfmt and clippy do not see
  cargo xtask crash [EFFORT]    power cuts and failing devices, EFFORT (10) times the default
  cargo xtask soak [EFFORT]     random operations against model and kernel, likewise
  cargo xtask fuzz [TARGET [SECONDS]]
                                coverage-guided; wants nightly and cargo-fuzz
  cargo xtask loom              exhaustive interleavings of the lock-free pieces
";

/// The workspace's folder.
fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask lies in the workspace")
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match run(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(words: &[&str]) -> Result<()> {
    match words {
        ["test"] => test(),
        ["lint"] => lint(),
        ["tidy"] => check_tidy(),
        ["crash"] => campaigns::crash(10),
        ["crash", effort] => campaigns::crash(number(effort)?),
        ["soak"] => campaigns::soak(10),
        ["soak", effort] => campaigns::soak(number(effort)?),
        ["fuzz"] => campaigns::fuzz(None, 60),
        ["fuzz", target] => campaigns::fuzz(Some(target), 600),
        ["fuzz", target, seconds] => campaigns::fuzz(Some(target), number(seconds)?),
        ["loom"] => campaigns::loom(),
        [] | ["help" | "--help" | "-h"] => {
            print!("{HELP}");
            Ok(())
        }
        other => bail!("unknown command `{}`\n\n{HELP}", other.join(" ")),
    }
}

fn number(word: &str) -> Result<u64> {
    word.parse()
        .with_context(|| format!("`{word}` is no number"))
}

/// Cargo, in the workspace's folder.
fn cargo(arguments: &[&str]) -> Command {
    let program = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let mut command = Command::new(program);
    command.args(arguments).current_dir(workspace());
    command
}

/// Runs a command that must succeed, its output going where ours goes.
fn execute(command: &mut Command) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("starting {command:?}"))?;
    if !status.success() {
        bail!("{command:?} ended with {status}");
    }
    Ok(())
}

/// The tools that the tests ask: without the first ones they fail, without the others some skip
/// themselves and say so.
const TOOLS: [(&str, &str, bool); 5] = [
    ("mke2fs", "e2fsprogs", true),
    ("e2fsck", "e2fsprogs", true),
    ("debugfs", "e2fsprogs", true),
    ("dumpe2fs", "e2fsprogs", true),
    ("fusermount3", "fuse3", false),
];

fn is_installed(tool: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    let folders = path.split(':').chain(["/usr/sbin", "/sbin"]);
    folders
        .into_iter()
        .any(|folder| Path::new(folder).join(tool).is_file())
}

fn test() -> Result<()> {
    let mut missing: Vec<&str> = Vec::new();
    for (tool, package, required) in TOOLS {
        if is_installed(tool) {
            continue;
        }
        eprintln!("{tool} is not installed (package {package})");
        if required && !missing.contains(&package) {
            missing.push(package);
        }
    }
    if !missing.is_empty() {
        bail!(
            "the tests want them; on Debian: apt-get install {}",
            missing.join(" ")
        );
    }
    execute(&mut cargo(&["test", "--workspace"]))
}

fn lint() -> Result<()> {
    execute(&mut cargo(&["fmt", "--all", "--check"]))?;
    let clippy = [
        "clippy",
        "--workspace",
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ];
    execute(&mut cargo(&clippy))?;
    check_tidy()
}

fn check_tidy() -> Result<()> {
    let found = tidy::complaints(workspace())?;
    if found.is_empty() {
        return Ok(());
    }
    bail!("{}\n{} complaints", found.join("\n"), found.len());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_understood() {
        assert!(run(&["help"]).is_ok());
        assert!(run(&["no", "such", "command"]).is_err());
        assert!(run(&["crash", "many"]).is_err());
    }

    #[test]
    fn the_workspace_is_tidy() {
        let found = tidy::complaints(workspace()).expect("readable");
        assert!(found.is_empty(), "\n{}", found.join("\n"));
    }
}
