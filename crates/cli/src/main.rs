//! The `pext4` command: mounts, makes, reads and edits ext4 images.
//!
//! Each command has a file: parse, call the library, print the result. The exit status is 0 after
//! success, 1 after an error, 2 if the command line was invalid; `check` has the statuses of
//! e2fsck, and a call by `mount(8)` those of `mount(8)` (`helper`). Errors have the form "pext4:
//! what: why; what may help". Results go to standard output, errors and notes to standard error.
//! There is `unsafe` code in `interrupt::handler`, for a call that no library has.

#![deny(unsafe_code)]
// `println!` and `eprintln!` panic if the pipe is closed: see `output`.
#![warn(clippy::print_stdout, clippy::print_stderr)]

mod columns;
mod commands;
mod count;
mod device;
mod editing;
mod failure;
mod format;
mod helper;
mod input;
mod interrupt;
mod log;
mod mode;
mod moment;
mod names;
mod other_formats;
mod output;
mod owner;
mod partitions;
mod program;
mod progress;
mod script;
mod size;
mod superblock;
mod uuid_text;
mod viewer;

use std::env;
use std::io;
use std::process::ExitCode;
use std::sync::Arc;

use clap::error::ContextKind;
use clap::{Parser, Subcommand};
use signal_hook::consts::SIGXFSZ;

use commands::{
    build, cat, chattr, check, chmod, chown, cp, edit, export, get, info, lab, ln, ls, mkdir, mkfs,
    mknod, mount, mv, put, quota, resize, rm, setxattr, stat, stats, touch, tree, tune, umount,
};
use editing::Single;

/// ext4 in user space: mount, make and read ext4 images, without root and without a kernel driver.
#[derive(Parser)]
#[command(
    name = "pext4",
    version,
    propagate_version = true,
    max_term_width = 100
)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Mount(mount::Arguments),
    Umount(umount::Arguments),
    Stats(stats::Arguments),
    Mkfs(mkfs::Arguments),
    Build(Box<build::Arguments>),
    Resize(resize::Arguments),
    Check(check::Arguments),
    Info(info::Arguments),
    Ls(ls::Arguments),
    Cat(cat::Arguments),
    Stat(stat::Arguments),
    Tree(tree::Arguments),
    Quota(quota::Arguments),
    Get(get::Arguments),
    Export(export::Arguments),
    Edit(edit::Arguments),
    /// Put a file or a tree of the host into an image
    Put(Single<put::Arguments>),
    /// Remove files of an image
    Rm(Single<rm::Arguments>),
    /// Move a file within an image
    Mv(Single<mv::Arguments>),
    /// Make directories in an image
    Mkdir(Single<mkdir::Arguments>),
    /// Make a link in an image
    Ln(Single<ln::Arguments>),
    /// Make a device, a fifo or a socket in an image
    Mknod(Single<mknod::Arguments>),
    /// Change permissions in an image
    Chmod(Single<chmod::Arguments>),
    /// Change flags of files in an image (immutable, append-only, ...)
    Chattr(Single<chattr::Arguments>),
    /// Change owners in an image
    Chown(Single<chown::Arguments>),
    /// Set times of files in an image, or make them, empty
    Touch(Single<touch::Arguments>),
    /// Set or remove an extended attribute in an image
    Setxattr(Single<setxattr::Arguments>),
    /// Copy files within an image, or from another one
    Cp(Single<cp::Arguments>),
    /// Set label, UUID, reserved blocks and reaction to errors of an image
    Tune(Single<tune::Arguments>),
    Lab(lab::Arguments),
}

fn main() -> ExitCode {
    if let Err(error) = outlive_file_limits() {
        output::print_error(format_args!(
            "pext4: cannot prepare for limits of file sizes: {error}"
        ));
    }
    let words: Vec<_> = env::args_os().collect();
    if let Some(status) = helper::run(&words) {
        return status;
    }
    let done = match parsed().command {
        Command::Mount(arguments) => mount::run(&arguments),
        Command::Umount(arguments) => umount::run(&arguments),
        Command::Mkfs(arguments) => mkfs::run(&arguments),
        Command::Resize(arguments) => resize::run(&arguments),
        Command::Build(arguments) => build::run(&arguments),
        Command::Check(arguments) => check::run(&arguments),
        Command::Info(arguments) => info::run(&arguments),
        Command::Ls(arguments) => ls::run(&arguments),
        Command::Cat(arguments) => cat::run(&arguments),
        Command::Lab(arguments) => lab::run(&arguments),
        Command::Stat(arguments) => stat::run(&arguments),
        Command::Stats(arguments) => stats::run(&arguments),
        Command::Tree(arguments) => tree::run(&arguments),
        Command::Quota(arguments) => quota::run(&arguments),
        Command::Get(arguments) => get::run(&arguments),
        Command::Export(arguments) => export::run(&arguments),
        Command::Edit(arguments) => edit::run(&arguments),
        Command::Put(one) => one.run(),
        Command::Rm(one) => one.run(),
        Command::Mv(one) => one.run(),
        Command::Mkdir(one) => one.run(),
        Command::Ln(one) => one.run(),
        Command::Mknod(one) => one.run(),
        Command::Chmod(one) => one.run(),
        Command::Chattr(one) => one.run(),
        Command::Chown(one) => one.run(),
        Command::Touch(one) => one.run(),
        Command::Setxattr(one) => one.run(),
        Command::Cp(one) => one.run(),
        Command::Tune(one) => one.run(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failure::report(&error),
    }
}

/// Makes a write beyond the limit of file sizes (`ulimit -f`) an error like that of a full disk. By
/// default its signal ends the process, without a message that names the file, and without removing
/// an incomplete file.
fn outlive_file_limits() -> io::Result<()> {
    signal_hook::flag::register(SIGXFSZ, Arc::default()).map(drop)
}

/// Parses the command line. An invalid one of `check` ends with e2fsck's status for that.
fn parsed() -> CommandLine {
    CommandLine::try_parse().unwrap_or_else(|mut error| {
        // It suggests `-- OPTION`, which makes no sense for an option that is not known.
        error.remove(ContextKind::Suggested);
        let is_check = env::args_os().nth(1).is_some_and(|name| name == "check");
        if is_check && error.use_stderr() {
            // If standard error is closed, the message is lost.
            let _ = error.print();
            std::process::exit(check::USAGE.into());
        }
        error.exit()
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::CommandLine;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        CommandLine::command().debug_assert();
    }

    /// The options of a command, in all spellings that its help shows.
    fn options(command: &clap::Command) -> BTreeSet<String> {
        let mut options = BTreeSet::new();
        for option in command.get_arguments().filter(|one| !one.is_positional()) {
            let short = option.get_short_and_visible_aliases().unwrap_or_default();
            options.extend(short.iter().map(|letter| format!("-{letter}")));
            let long = option.get_long_and_visible_aliases().unwrap_or_default();
            options.extend(long.iter().map(|word| format!("--{word}")));
        }
        options
    }

    /// The options in the row of a table that begins with `first`.
    fn stated(document: &str, first: &str) -> BTreeSet<String> {
        let start = format!("| {first} |");
        let row = document.lines().find(|line| line.starts_with(&start));
        let row = row.unwrap_or_else(|| panic!("there is no row {start}"));
        let cell = row
            .trim_end_matches(" |")
            .rsplit(" | ")
            .next()
            .expect("a cell");
        let quoted = cell.split('`').skip(1).step_by(2);
        quoted
            .filter_map(|option| option.split(' ').next().map(str::to_owned))
            .collect()
    }

    #[test]
    fn the_document_of_edits_lists_every_option() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/EDIT.md");
        let document = std::fs::read_to_string(path).expect("the document of edits");
        let of_all = stated(&document, "all");
        let of_changes = stated(&document, "all but `get` and `export`");
        let command_line = CommandLine::command();
        for command in command_line.get_subcommands() {
            let (name, options) = (command.get_name(), options(command));
            let copies_out = ["get", "export"].contains(&name);
            if !copies_out && !options.contains("--by") {
                continue;
            }
            let mut expected = stated(&document, &format!("`{name}`"));
            expected.extend(of_all.iter().cloned());
            if !copies_out {
                expected.extend(of_changes.iter().cloned());
            }
            assert_eq!(options, expected, "{name}");
        }
    }
}
