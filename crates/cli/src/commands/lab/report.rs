//! `pext4 lab report`: makes the documents' figures and tables from stored results.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use pext4_lab::show::{self, Page};

use crate::output::{print, print_error};

/// The advice on a figure whose results are gone.
const LEFT_OVER: &str = "no results make this figure: remove it";

/// Make the tables and figures of docs/SCALING.md and SCALING-TABLES.md and the README's picture
#[derive(Args)]
pub struct Arguments {
    /// The folder of the documents; results are below it, in results/
    #[arg(default_value = "docs")]
    documents: PathBuf,
    /// The README, whose picture is made too if it is there
    #[arg(long, default_value = "README.md")]
    readme: PathBuf,
    /// Write nothing; fail if something is not as it would be made
    #[arg(long)]
    check: bool,
}

/// Runs the command.
///
/// # Errors
///
/// There are no results, or a document cannot be read or written; with `--check`, a document is out
/// of date.
pub fn run(arguments: &Arguments) -> Result<()> {
    let folder = &arguments.documents;
    let all = show::load(&folder.join("results"))?;
    let below = show::load_below(&folder.join("results"))?;
    let mut documents = Vec::new();
    for (index, name) in show::DOCUMENTS.iter().enumerate() {
        let path = folder.join(name);
        if index == 0 || path.exists() {
            let (name, text) = ((*name).to_owned(), read(&path)?);
            documents.push(Page { name, text });
        }
    }
    let name = || folder.display().to_string();
    let made = show::report(&all, &below, &documents).with_context(name)?;
    let left_over = show::left_over(folder, &made)?;
    let mut pages: Vec<(PathBuf, String)> = made
        .into_iter()
        .map(|Page { name, text }| (folder.join(name), text))
        .collect();
    if arguments.readme.exists() {
        let text = show::readme(&all, &read(&arguments.readme)?);
        let text = text.with_context(|| arguments.readme.display().to_string())?;
        pages.push((arguments.readme.clone(), text));
    }
    let changed: Vec<&(PathBuf, String)> = pages
        .iter()
        .filter(|(path, text)| std::fs::read_to_string(path).ok().as_ref() != Some(text))
        .collect();
    if arguments.check {
        return match (changed.first(), left_over.first()) {
            (Some((path, _)), _) => bail!("{}: not as `pext4 lab report` makes it", path.display()),
            (None, Some(path)) => bail!("{}: {LEFT_OVER}", path.display()),
            (None, None) => Ok(()),
        };
    }
    for (path, text) in &changed {
        write(path, text)?;
        print(path.display())?;
    }
    for path in left_over {
        print_error(format_args!("pext4: {}: {LEFT_OVER}", path.display()));
    }
    Ok(())
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| path.display().to_string())
}

fn write(path: &Path, text: &str) -> Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    std::fs::write(path, text).with_context(|| path.display().to_string())
}
