//! What is refused before a run begins.

use std::collections::BTreeSet;

use anyhow::{Result, anyhow};
use pext4_lab::setup::DeviceKind;

use super::{Arguments, MAX_TASKS, competitors};
use crate::failure::{Misuse, check_cache_size, check_meter};
use crate::partitions::refuse_disk_at;

pub(super) fn misuse(error: impl Into<anyhow::Error>) -> anyhow::Error {
    Misuse(format!("{:#}", error.into())).into()
}

/// Refuses what cannot be measured, before anything is.
///
/// # Errors
///
/// An argument is invalid; the message names it.
pub(super) fn check(arguments: &Arguments) -> Result<()> {
    let tasks = &arguments.tasks;
    if tasks.iter().any(|&tasks| tasks == 0 || tasks > MAX_TASKS) {
        return Err(misuse(anyhow!("--tasks: from 1 to {MAX_TASKS}")));
    }
    let mut seen = BTreeSet::new();
    if let Some(twice) = arguments.workloads.iter().find(|name| !seen.insert(*name)) {
        return Err(misuse(anyhow!("{twice} is there twice")));
    }
    let mut seen = BTreeSet::new();
    if let Some(twice) = tasks.iter().find(|&&tasks| !seen.insert(tasks)) {
        return Err(misuse(anyhow!("--tasks: {twice} is there twice")));
    }
    if arguments.seconds.is_some_and(|seconds| seconds <= 0.0) {
        return Err(misuse(anyhow!("--seconds: more than 0 are needed")));
    }
    arguments.cache_size.map_or(Ok(()), check_cache_size)?;
    check_meter(arguments.meter)?;
    check_device(arguments)?;
    check_what_is_compared(arguments)
}

/// Refuses a name that is probably a mistyped `ram` or `slow`, and options for a new image if the
/// image exists.
fn check_device(arguments: &Arguments) -> Result<()> {
    let DeviceKind::Image(image) = DeviceKind::parse(&arguments.device) else {
        return Ok(());
    };
    let name = &arguments.device;
    // A symbolic link is somebody's even if it leads nowhere.
    let is_meant = name.contains('/') || image.exists() || image.is_symlink();
    if !is_meant {
        return Err(misuse(anyhow!(
            "--device: there are ram and slow, and no image `{name}` is here; `./{name}` makes one"
        )));
    }
    let of_new_ones = [
        ("--size", arguments.size.is_some()),
        ("--inode-size", arguments.inode_size.is_some()),
        ("--journal", arguments.journal.is_some()),
    ];
    refuse_disk_at(&image, 0)?;
    match of_new_ones.into_iter().find(|(_, is_given)| *is_given) {
        Some((option, _)) if image.exists() => Err(misuse(anyhow!(
            "{option}: {} is there already and stays as it is; name an image that is to be made",
            image.display()
        ))),
        _ => Ok(()),
    }
}

/// Refuses a competitor that is there twice, and options of pext4 if no pext4 is measured.
fn check_what_is_compared(arguments: &Arguments) -> Result<()> {
    let compared = competitors(arguments)?;
    let mut seen = BTreeSet::new();
    if let Some(twice) = compared.iter().find(|one| !seen.insert(one.name())) {
        let twice = twice.name();
        return Err(misuse(anyhow!("--compare: {twice} is there twice")));
    }
    if compared.is_empty() || compared.iter().any(|one| one.is_pext4()) {
        return Ok(());
    }
    let of_ours = [
        ("--scaling", arguments.scaling.is_some()),
        ("--ablate", arguments.ablate),
        ("--cache-size", arguments.cache_size.is_some()),
    ];
    match of_ours.into_iter().find(|(_, is_given)| *is_given) {
        Some((option, _)) => Err(misuse(anyhow!(
            "{option}: only pext4 has that; compare pext4, library or apart as well"
        ))),
        None => Ok(()),
    }
}
