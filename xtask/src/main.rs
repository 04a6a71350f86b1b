//! Development tasks of the pext4 workspace: `cargo xtask COMMAND`.
//!
//! `test` runs what the README promises; continuous integration runs it too. The campaigns
//! (`crash`, `soak`, `settings`, `fuzz`, `loom`, `tsan`) run the same tests with more effort; each
//! prints the seed of every failure. `suites` runs those of other people.

mod bench;
mod campaigns;
mod instructions;
mod suites;
mod tidy;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail};

const HELP: &str = "\
Chores of the pext4 workspace.

  cargo xtask test              installs or names missing tools, then runs all tests
  cargo xtask lint              formatting, clippy, documentation, packages, tidy
  cargo xtask tidy              what rustfmt and clippy do not see
  cargo xtask crash [EFFORT]    power cuts and failing devices, EFFORT (10) times the default
  cargo xtask soak [EFFORT]     random operations against model and kernel, likewise
  cargo xtask settings [EFFORT] crashes and random operations in every setting of the mechanisms
                                that keep cores apart, EFFORT (1) times the default
  cargo xtask fuzz [TARGET [SECONDS]]
                                coverage-guided (60 s each; 600 s for a single one); wants nightly
                                and cargo-fuzz
  cargo xtask loom              exhaustive interleavings of the lock-free pieces
  cargo xtask tsan              the engine's tests, watched by ThreadSanitizer; wants nightly with
                                rust-src
  cargo xtask suites [SEEDS]    other people's tests, on mounts of five formats; fsx with SEEDS (3)
                                seeds; wants root, pjdfstest and fsx
  cargo xtask bench build       images of the same trees by pext4 and by other tools
  cargo xtask instructions [WORKLOAD...]
                                what a step of a workload takes with base and with full, of all
                                workloads without names; wants valgrind
  cargo xtask virtual WORKLOAD [OPTIONS]
                                a workload's curve on virtual cores; --help lists the options
  cargo xtask virtual-test      the virtual cores themselves, where the answer is known
";

/// The workspace's folder.
fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask lies in the workspace")
}

/// A program that Cargo has built for release, in `folder`, that of a workspace.
fn built(folder: &Path, program: &str) -> PathBuf {
    let stated = std::env::var_os("CARGO_TARGET_DIR");
    target_folder(folder, stated).join("release").join(program)
}

/// Where Cargo, called in a workspace's folder, puts what it builds. `stated` is the value of
/// `CARGO_TARGET_DIR`, which Cargo takes from there if it is relative.
fn target_folder(folder: &Path, stated: Option<OsString>) -> PathBuf {
    folder.join(stated.unwrap_or_else(|| "target".into()))
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
        ["settings"] => campaigns::settings(1),
        ["settings", effort] => campaigns::settings(number(effort)?),
        ["fuzz"] => campaigns::fuzz(None, 60),
        ["fuzz", target] => campaigns::fuzz(Some(target), 600),
        ["fuzz", target, seconds] => campaigns::fuzz(Some(target), number(seconds)?),
        ["loom"] => campaigns::loom(),
        ["tsan"] => campaigns::thread_sanitizer(),
        ["suites"] => suites::run(3),
        ["suites", seeds] => suites::run(number(seeds)?),
        ["bench", rest @ ..] => bench::run(rest),
        ["instructions", workloads @ ..] => instructions::run(workloads),
        ["virtual", options @ ..] => campaigns::virtual_cores(options),
        ["virtual-test"] => campaigns::virtual_test(),
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

/// Runs a command that must succeed; it inherits standard output and error.
fn execute(command: &mut Command) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("starting {command:?}"))?;
    if !status.success() {
        bail!("{command:?} ended with {status}");
    }
    Ok(())
}

/// Tools that the tests use: without a required one (`true`) the tests fail; without another, some
/// skip themselves and say so.
const TOOLS: [(&str, &str, bool); 8] = [
    ("mke2fs", "e2fsprogs", true),
    ("e2fsck", "e2fsprogs", true),
    ("debugfs", "e2fsprogs", true),
    ("dumpe2fs", "e2fsprogs", true),
    ("fusermount3", "fuse3", false),
    ("getfattr", "attr", false),
    ("getfacl", "acl", false),
    ("strace", "strace", false),
];

fn is_installed(tool: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    let folders = path.split(':').chain(["/usr/sbin", "/sbin", "/usr/bin"]);
    folders
        .into_iter()
        .any(|folder| Path::new(folder).join(tool).is_file())
}

/// Packages of missing tools, each with whether the tests fail without it.
fn missing() -> Vec<(&'static str, bool)> {
    let absent = TOOLS.iter().filter(|(tool, _, _)| !is_installed(tool));
    let mut packages: Vec<(&str, bool)> = absent
        .map(|&(_, package, required)| (package, required))
        .collect();
    packages.dedup();
    packages
}

/// Installs the missing packages where possible: as root on a system with apt.
fn install(packages: &[(&str, bool)]) {
    let names: Vec<&str> = packages.iter().map(|&(package, _)| package).collect();
    if names.is_empty() || !is_installed("apt-get") || !is_root() {
        return;
    }
    eprintln!("installing {}", names.join(" "));
    // The caller names what could not be installed.
    let _ = Command::new("apt-get").args(["-qq", "update"]).status();
    let _ = Command::new("apt-get")
        .args(["-qq", "-y", "install"])
        .args(names)
        .status();
}

fn is_root() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().any(|line| {
        line.strip_prefix("Uid:")
            .is_some_and(|ids| ids.split_whitespace().next() == Some("0"))
    })
}

/// Tests that only other builds contain: virtual cores, and which operations commute.
const BUILT_OTHERWISE: &[&[&str]] = &[
    &["-p", "pext4-sync", "--features", "virtual"],
    // For the whole workspace, so that libraries are not rebuilt with other features.
    &[
        "--workspace",
        "--features",
        "pext4-lab/meter",
        "--test",
        "commutes",
    ],
];

fn test() -> Result<()> {
    install(&missing());
    let missing = missing();
    for (package, required) in &missing {
        let without = if *required {
            "the tests want it"
        } else {
            "without it some tests skip themselves"
        };
        eprintln!("the package {package} is not installed: {without}");
    }
    let required: Vec<&str> = missing
        .iter()
        .filter(|(_, required)| *required)
        .map(|&(package, _)| package)
        .collect();
    if !required.is_empty() {
        bail!("on Debian: apt-get install {}", required.join(" "));
    }
    execute(&mut heeding_interrupts(&cargo(&["test", "--workspace"])))?;
    for arguments in BUILT_OTHERWISE {
        execute(heeding_interrupts(&cargo(&["test"])).args(*arguments))?;
    }
    campaigns::check_models()
}

/// The same command, with the signals of Ctrl-C and Ctrl-\ in effect. A shell has its background
/// jobs ignore them, and the tests of what they do would wait for ever.
fn heeding_interrupts(command: &Command) -> Command {
    let mut through = Command::new("env");
    through
        .arg("--default-signal=INT,QUIT")
        .arg(command.get_program())
        .args(command.get_args())
        .current_dir(workspace());
    through
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
    // The command with its meters, which no test builds.
    let metered = ["clippy", "-p", "pext4", "--features", "meter"];
    execute(cargo(&metered).args(["--", "-D", "warnings"]))?;
    // The library alone, as others depend on it.
    let library = ["clippy", "-p", "pext4", "--no-default-features"];
    execute(cargo(&library).args(["--", "-D", "warnings"]))?;
    // `cargo doc` passes by a program that has the name of its library. The library's pages, which
    // are made next, take the place of these, which have private items anyway.
    check_private_docs(&["rustdoc", "-p", "pext4", "--bin", "pext4"])?;
    let mut doc = cargo(&["doc", "--workspace", "--no-deps"]);
    execute(doc.env("RUSTDOCFLAGS", "-D warnings"))?;
    check_private_docs(&[
        "doc",
        "--workspace",
        "--no-deps",
        "--document-private-items",
    ])?;
    // Whether the packages can be published: each depends on published ones only.
    let package = ["package", "--workspace", "--no-verify", "--offline"];
    let mut package = cargo(&package);
    package.args(["--exclude", "pext4-testkit", "--exclude", "xtask"]);
    execute(package.args(["--allow-dirty", "--quiet"]))?;
    check_tidy()
}

/// Words in brackets that are no links: they name the guard of a field.
const GUARDS: [&str; 4] = ["atomic", "group", "immutable", "list"];

/// Fails if rustdoc, called by this command of cargo, warns of a comment on a private item: mostly
/// of a link that leads nowhere.
fn check_private_docs(command: &[&str]) -> Result<()> {
    let mut doc = cargo(command);
    doc.args(["--message-format", "short"]);
    let output = doc.stderr(Stdio::piped()).output()?;
    let text = String::from_utf8_lossy(&output.stderr);
    let found: Vec<&str> = wrong_docs(&text).collect();
    if !output.status.success() {
        bail!("{text}{doc:?} ended with {}", output.status);
    }
    if !found.is_empty() {
        bail!(
            "{}\n{} complaints by {doc:?}",
            found.join("\n"),
            found.len()
        );
    }
    Ok(())
}

/// The lines of rustdoc's short messages that warn of something other than a guard.
fn wrong_docs(text: &str) -> impl Iterator<Item = &str> {
    let is_guard = |line: &str| {
        let link = line.split_once("unresolved link to `");
        let link = link.and_then(|(_, rest)| rest.split_once('`'));
        link.is_some_and(|(link, _)| GUARDS.contains(&link))
    };
    // The sum of a crate's warnings has no place in a source.
    let is_warning = |line: &str| line.contains(".rs:") && line.contains(": warning: ");
    text.lines()
        .filter(move |line| is_warning(line) && !is_guard(line))
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
    fn programs_are_found_where_cargo_puts_them() {
        let folder = Path::new("/source");
        let found = |stated: Option<&str>| target_folder(folder, stated.map(OsString::from));
        assert_eq!(found(None), Path::new("/source/target"));
        assert_eq!(found(Some("other")), Path::new("/source/other"));
        assert_eq!(found(Some("/fast/target")), Path::new("/fast/target"));
    }

    #[test]
    fn a_link_that_leads_nowhere_is_told_and_a_guard_is_not() {
        let text = " Documenting pext4-fs v0.1.0\n\
             crates/a.rs:1:2: warning: unresolved link to `atomic`: no item named `atomic` in scope\n\
             crates/a.rs:3:4: warning: unresolved link to `Atomics`: no item named `Atomics` in scope\n\
             crates/b.rs:5:6: warning: `name` is both a function and a module\n\
             warning: `pext4-fs` (lib doc) generated 3 warnings\n";
        let told: Vec<&str> = wrong_docs(text).collect();
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told[0].contains("Atomics") && told[1].contains("both"));
    }

    #[test]
    fn the_workspace_is_tidy() {
        let found = tidy::complaints(workspace()).expect("readable");
        assert!(found.is_empty(), "\n{}", found.join("\n"));
    }
}
