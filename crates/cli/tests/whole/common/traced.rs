//! Commands under strace(1): which system calls they make in which order, and what is left of them
//! if they are killed at one of these calls.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// Calls that write to an image, make something durable or give it its name.
pub const STEPS: [&str; 8] = [
    "pwrite64",
    "pwritev",
    "pwritev2",
    "fsync",
    "fdatasync",
    "rename",
    "renameat",
    "renameat2",
];
/// Calls that change the content of a file.
const WRITES: [&str; 8] = [
    "write",
    "pwrite64",
    "writev",
    "pwritev",
    "pwritev2",
    "copy_file_range",
    "ftruncate",
    "fallocate",
];

/// A system call that has succeeded.
#[derive(Debug)]
pub struct Call {
    /// Its name, arguments and result; descriptors are followed by the path of their file.
    text: String,
    /// The lines of the record at which it began and ended.
    start: usize,
    end: usize,
}

impl Call {
    fn is(&self, names: &[&str]) -> bool {
        let name = self.text.split('(').next();
        name.is_some_and(|name| names.contains(&name))
    }

    fn is_sync(&self) -> bool {
        self.is(&["fsync", "fdatasync"])
    }
}

/// Whether commands can be traced; says so loudly if not.
pub fn can_trace() -> bool {
    let trial = Command::new("strace")
        .args(["-f", "-qq", "-o", "/dev/null", "true"])
        .stdin(Stdio::null())
        .output();
    let problem = match trial {
        Ok(output) if output.status.success() => return true,
        Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
        Err(error) => error.to_string(),
    };
    eprintln!("SKIPPED: strace traces nothing here: {problem}");
    false
}

/// The same command under strace with these options.
fn traced(command: &Command, options: &[&str]) -> Command {
    let mut strace = Command::new("strace");
    strace.args(["-f", "-qq", "-s", "0", "-e", "signal=none"]);
    strace.args(options).stdin(Stdio::null());
    strace.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => strace.env(name, value),
            None => strace.env_remove(name),
        };
    }
    strace
}

/// The command, which is killed at the `number`th call of this name in one of its threads, before
/// the call is made. strace passes over calls with a question mark that the machine does not have.
pub fn killed_at(command: &Command, call: &str, number: usize) -> Command {
    let trace = format!("trace=?{call}");
    let inject = format!("inject=?{call}:signal=SIGKILL:when={number}");
    traced(command, &["-o", "/dev/null", "-e", &trace, "-e", &inject])
}

/// Runs a command, which must succeed, and returns those of its calls that have succeeded.
pub fn calls(command: &Command) -> Vec<Call> {
    let log = tempfile::NamedTempFile::new().expect("a temporary file");
    let path = log.path().to_str().expect("text");
    let trace = format!("trace=?{},?{}", STEPS.join(",?"), WRITES.join(",?"));
    super::succeed(&mut traced(command, &["-y", "-o", path, "-e", &trace]));
    parse(&fs::read_to_string(&log).expect("it is text"))
}

/// A call during which another thread calls is on two lines.
fn parse(log: &str) -> Vec<Call> {
    let mut begun = HashMap::new();
    let mut calls = Vec::new();
    for (end, line) in log.lines().enumerate() {
        let (thread, text) = line.split_once(' ').expect("a thread and its call");
        let text = text.trim_start();
        if let Some(first) = text.strip_suffix("<unfinished ...>") {
            begun.insert(thread, (end, first));
            continue;
        }
        let rest = text.strip_prefix("<... ");
        let (start, text) = match rest.and_then(|rest| rest.split_once(" resumed>")) {
            Some((_, rest)) => {
                let (start, first) = begun.remove(thread).expect("it has begun");
                (start, format!("{first}{rest}"))
            }
            None => (end, text.to_owned()),
        };
        if text.contains(" = ") && !text.contains(" = -1 ") {
            calls.push(Call { text, start, end });
        }
    }
    calls
}

/// Checks that a file got the name of the image when all that was written to it was durable, and
/// that its folder was made durable after that. Nothing but the new file is written in the folder.
pub fn check_order(calls: &[Call], image: &Path) {
    let folder = image.parent().expect("it lies in a folder");
    let folder = folder.canonicalize().expect("it is there");
    let named = format!("\"{}\"", image.display());
    let is_in_folder = |call: &Call| call.text.contains(&format!("<{}/", folder.display()));
    let renames: Vec<_> = calls
        .iter()
        .filter(|call| call.text.starts_with("rename") && call.text.contains(&named))
        .collect();
    let [rename] = renames[..] else {
        panic!("one file is named like the image: {renames:?}");
    };
    let writes = calls.iter().filter(|call| call.is(&WRITES));
    let written = writes
        .filter(|call| is_in_folder(call))
        .map(|call| call.end);
    let written = written.max().expect("the image was written");
    let is_synced = |call: &&Call| call.is_sync() && call.start > written;
    let mut synced = calls.iter().filter(is_synced);
    assert!(
        synced.any(|call| is_in_folder(call) && call.end < rename.start),
        "the image is durable before it has its name: {calls:#?}"
    );
    let of_folder = format!("<{}>", folder.display());
    let is_folder = |call: &Call| call.is_sync() && call.text.contains(&of_folder);
    assert!(
        calls
            .iter()
            .any(|call| is_folder(call) && call.start > rename.end),
        "the name is durable: {calls:#?}"
    );
}
