//! The free space of each group of a mounted volume, a line each.
//!
//! The mount gives lists of groups, each as long as an attribute may be. Groups of which the mount
//! has no bitmap in memory stay so.

use std::io::{self, Write};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use pext4_fuse::report::groups_from;
use serde::Deserialize;

use super::read;
use crate::output;

/// The head of the table.
const HEAD: &str = "   group     free    runs   first  largest  runs of 2^0, 2^1, ... blocks";

/// A group, as the mount reports it.
#[derive(Deserialize)]
struct Group {
    group: u32,
    inodes_corrupt: bool,
    free_blocks: u64,
    #[serde(flatten)]
    blocks: Blocks,
}

#[derive(Deserialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
enum Blocks {
    Loaded(Runs),
    NotLoaded,
    Corrupt,
}

#[derive(Deserialize)]
struct Runs {
    free_runs: u32,
    first_free: Option<u64>,
    largest_order: Option<u32>,
    runs_by_order: Vec<u32>,
}

/// Prints all groups of the mount that has `directory`.
///
/// # Errors
///
/// The directory is not on a mount of pext4.
pub fn print(directory: &Path, as_json: bool) -> Result<()> {
    let mut output = output::buffered();
    write!(
        output,
        "{}",
        if as_json { "{\"block_groups\":[" } else { HEAD }
    )?;
    let mut next = 0;
    loop {
        let list = read(directory, &groups_from(next))?;
        let groups = parse(&list, next)?;
        if groups.is_empty() {
            break;
        }
        if as_json {
            let separator = if next > 0 { "," } else { "" };
            write!(output, "{separator}{}", list.trim_matches(['[', ']']))?;
        }
        for group in &groups {
            next = group.group + 1;
            if !as_json {
                write_line(&mut output, group)?;
            }
        }
    }
    writeln!(output, "{}", if as_json { "]}" } else { "" })?;
    Ok(output.flush()?)
}

/// The groups of a list that must begin with this one and miss none, so that no file's own
/// attribute makes an endless table.
fn parse(list: &str, first: u32) -> Result<Vec<Group>> {
    let groups: Vec<Group> = serde_json::from_str(list).context("this is no list of groups")?;
    let is_in_order = groups
        .iter()
        .zip(first..)
        .all(|(group, number)| group.group == number);
    ensure!(is_in_order, "its list of groups has gaps");
    Ok(groups)
}

/// Writes a group as a line.
fn write_line(output: &mut impl Write, group: &Group) -> io::Result<()> {
    let (number, free) = (group.group, group.free_blocks);
    write!(output, "\n{number:>8} {free:>8}")?;
    match &group.blocks {
        Blocks::Loaded(runs) => write_runs(output, runs)?,
        Blocks::NotLoaded => write!(output, " {:>7} {:>7} {:>8}  not loaded", "-", "-", "-")?,
        Blocks::Corrupt => write!(output, " {:>7} {:>7} {:>8}  corrupt", "-", "-", "-")?,
    }
    if group.inodes_corrupt {
        write!(output, "  inode bitmap corrupt")?;
    }
    Ok(())
}

fn write_runs(output: &mut impl Write, runs: &Runs) -> io::Result<()> {
    let or_none = |number: Option<String>| number.unwrap_or_else(|| "-".to_owned());
    let first = or_none(runs.first_free.map(|first| first.to_string()));
    let largest = or_none(runs.largest_order.map(|order| format!("2^{order}")));
    let count = runs.free_runs;
    write!(output, " {count:>7} {first:>7} {largest:>8}  [")?;
    for count in &runs.runs_by_order {
        write!(output, " {count:<5}")?;
    }
    write!(output, "]")
}
