//! Stores the results of runs (`--save`) and their figures (`--svg`), in files that were found to
//! be possible before the first run began: what took minutes to measure has somewhere to go.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use pext4_lab::results::Results;
use pext4_lab::show;
use pext4_lab::workloads::Workload;
use rustix::fs::{Access, access};

use super::Arguments;
use super::check::misuse;
use crate::output::print_error;

/// Makes the folder, and looks whether the results of these workloads can be stored in it.
///
/// # Errors
///
/// They cannot: the folder is a file or read-only, or the tag is no part of a file's name.
pub(super) fn prepare(arguments: &Arguments, workloads: &[&dyn Workload]) -> Result<()> {
    if let Some(folder) = &arguments.svg {
        make_folder("--svg", folder)?;
    }
    let Some(folder) = &arguments.save else {
        return Ok(());
    };
    if let Some(tag) = arguments.tag.as_ref().filter(|tag| tag.contains('/')) {
        return Err(misuse(anyhow!(
            "--tag: `{tag}` is for a file's name, which has no `/`; --save names the folder"
        )));
    }
    make_folder("--save", folder)?;
    for workload in workloads {
        let file = file(arguments, folder, workload.name());
        if file.is_dir() {
            bail!("{}: a folder is there", named("--save", &file));
        }
        if file.exists() {
            is_writable("--save", &file)?;
        }
    }
    Ok(())
}

/// Stores the results of one run, if that was requested.
///
/// # Errors
///
/// The file cannot be written.
pub(super) fn store(arguments: &Arguments, results: &Results) -> Result<()> {
    // One is stored even if the other cannot be.
    let saved = match &arguments.save {
        Some(folder) => results.save(&file(arguments, folder, &results.workload)),
        None => Ok(()),
    };
    let drawn = match &arguments.svg {
        Some(folder) => draw(folder, results),
        None => Ok(()),
    };
    saved.and(drawn)
}

/// Draws the curves of one run.
fn draw(folder: &Path, results: &Results) -> Result<()> {
    let pages = show::drawings(results);
    if pages.is_empty() {
        print_error(format_args!(
            "pext4: {}: --svg draws nothing: neither one number of tasks nor an ablation is a curve",
            results.workload
        ));
    }
    for page in pages {
        let path = folder.join(&page.name);
        let written = std::fs::write(&path, &page.text);
        written.with_context(|| named("--svg", &path))?;
    }
    Ok(())
}

fn make_folder(option: &str, folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| named(option, folder))?;
    is_writable(option, folder)
}

fn is_writable(option: &str, path: &Path) -> Result<()> {
    let found = access(path, Access::WRITE_OK).map_err(io::Error::from);
    found.with_context(|| named(option, path))
}

fn named(option: &str, path: &Path) -> String {
    format!("{option}: {}", path.display())
}

fn file(arguments: &Arguments, folder: &Path, workload: &str) -> PathBuf {
    let tag = arguments.tag.as_ref();
    let tag = tag.map(|tag| format!("-{tag}")).unwrap_or_default();
    folder.join(format!("{workload}{tag}.json"))
}
