//! Passes the source's commit to the program, which stores it with its results.

use std::path::Path;
use std::process::Command;

fn main() {
    let commit = git(&["rev-parse", "--short=12", "HEAD"]);
    let is_changed = git(&["status", "--porcelain", "--untracked-files=no"])
        .is_some_and(|changes| !changes.is_empty());
    let mark = if is_changed { "+" } else { "" };
    let commit = commit.map_or_else(|| "unknown".to_owned(), |commit| format!("{commit}{mark}"));
    println!("cargo::rustc-env=PEXT4_COMMIT={commit}");
    for place in ["HEAD", "logs/HEAD", "index"] {
        let path = git(&["rev-parse", "--path-format=absolute", "--git-path", place]);
        if let Some(path) = path.filter(|path| Path::new(path).exists()) {
            println!("cargo::rerun-if-changed={path}");
        }
    }
}

fn git(arguments: &[&str]) -> Option<String> {
    let told = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(told.stdout).ok()?;
    told.status.success().then(|| text.trim().to_owned())
}
