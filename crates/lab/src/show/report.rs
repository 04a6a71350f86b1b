//! The report: figures, and tables between marks in the documents, made from saved results.
//!
//! `<!-- lab: NAME -->` begins the block of the workload NAME and `<!-- lab: end -->` ends it; the
//! report replaces what is between, and everything else is the author's. Results without a block of
//! their own go into the block `rest`. `provenance`, `summary`, `compared`, `cores` and
//! `validation` cover all workloads; `picture` in the README holds one figure. A block whose name
//! has no results, or that occurs twice, is an error.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::blocks::{END, fill, mark};
use super::curves::{drawn, figures};
use super::figure::draw;
use super::file::of_file;
use super::{markdown, overview, predictions};
use crate::published;
use crate::results::{Evidence, Results};
use crate::workloads;

/// The workload of the README's picture.
const PICTURE: &str = "fallocate2";
/// Where the figures are, below the folder of the documents.
const FIGURES: &str = "figures";

/// The documents that have blocks, below the folder of the documents; the first must exist.
pub const DOCUMENTS: [&str; 2] = ["SCALING.md", "SCALING-TABLES.md"];

/// A file that is to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Its path, relative to the folder of the documents.
    pub name: String,
    /// Its content.
    pub text: String,
}

/// All results of a folder, by the names of their files.
///
/// # Errors
///
/// A file cannot be read, or is none of ours.
pub fn load(folder: &Path) -> Result<BTreeMap<String, Results>> {
    let mut all = BTreeMap::new();
    let entries = std::fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    for entry in entries {
        let path = entry?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "json")
        {
            let name = path
                .file_stem()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            all.insert(name, Results::load(&path)?);
        }
    }
    if all.is_empty() {
        bail!(
            "{}: no results; `pext4 lab run --save {0}` keeps some",
            folder.display()
        );
    }
    Ok(all)
}

/// All results of the folders in a folder, by folder and name: `two-sockets/mdtest`. They appear in
/// the overviews only.
///
/// # Errors
///
/// As [`load`].
pub fn load_below(folder: &Path) -> Result<BTreeMap<String, Results>> {
    let mut all = BTreeMap::new();
    let entries = std::fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    for entry in entries {
        let entry = entry?;
        if entry.path().is_dir() {
            let below = entry.file_name().to_string_lossy().into_owned();
            let results = load(&entry.path())?.into_iter();
            all.extend(results.map(|(name, results)| (format!("{below}/{name}"), results)));
        }
    }
    Ok(all)
}

/// Every figure, and the documents with their blocks filled. `below` holds what [`load_below`]
/// found.
///
/// # Errors
///
/// A mark in a document is not closed, stands for nothing, or is there twice; or there are results
/// for which no document has a block.
pub fn report(
    all: &BTreeMap<String, Results>,
    below: &BTreeMap<String, Results>,
    documents: &[Page],
) -> Result<Vec<Page>> {
    let mut pages = Vec::new();
    let mut blocks = BTreeMap::new();
    let mut names: Vec<&str> = all.values().map(|results| &*results.workload).collect();
    names.sort_by_key(|name| {
        workloads::ALL
            .iter()
            .position(|workload| workload.name() == *name)
    });
    names.dedup();
    for name in &names {
        let own: Vec<(&String, &Results)> = all
            .iter()
            .filter(|(_, results)| results.workload == *name)
            .collect();
        blocks.insert((*name).to_owned(), block(name, &own, &mut pages));
    }
    let mut rest = String::new();
    for name in &names {
        if !documents.iter().any(|page| page.text.contains(&mark(name))) {
            rest.push_str(&format!("## {name}\n\n{}", blocks[*name]));
        }
    }
    let has_rest = |page: &Page| page.text.contains(&mark("rest"));
    if !rest.is_empty() && !documents.iter().any(has_rest) {
        bail!(
            "no document has a block for some results: add {} and {END}",
            mark("rest")
        );
    }
    blocks.insert("rest".to_owned(), rest);
    let overviews = [
        ("provenance", overview::provenance(&names, all, below)),
        ("summary", overview::summary(&names, all, below)),
        ("compared", overview::compared(&names, all)),
        ("cores", overview::cores(&names, below)),
        ("validation", predictions::validation(&names, all, below)),
    ];
    blocks.extend(overviews.map(|(name, text)| (name.to_owned(), text)));
    for page in documents {
        pages.push(Page {
            name: page.name.clone(),
            text: fill(&page.text, &blocks).with_context(|| page.name.clone())?,
        });
    }
    Ok(pages)
}

/// A README with its picture, if there are results for one.
///
/// # Errors
///
/// A mark in it is not closed, stands for nothing, or is there twice.
pub fn readme(all: &BTreeMap<String, Results>, document: &str) -> Result<String> {
    let own = all
        .iter()
        .filter(|(_, results)| results.workload == PICTURE);
    let own: Vec<(&String, &Results)> = own.collect();
    let run = |evidence| drawn("operations", &own, evidence);
    let Some(results) = run(Evidence::Measured) else {
        return fill(document, &BTreeMap::new());
    };
    let calibrated = run(Evidence::Virtual);
    let calibrated = calibrated.map_or_else(String::new, |results| {
        format!(", calibrated on {}", results.machine.name())
    });
    let text = format!(
        "![{PICTURE}, each task's rate and that of all together](docs/figures/{PICTURE}.svg)\n\n\
         `{PICTURE}` on {}. Filled marks are measured; hollow ones are virtual cores{calibrated}; \
         small ones without a line are what was published: [SCALING](docs/SCALING.md).\n",
        results.machine.line()
    );
    fill(document, &BTreeMap::from([("picture".to_owned(), text)]))
}

/// Files among those of the figures that nothing makes.
///
/// # Errors
///
/// The folder cannot be read.
pub fn left_over(folder: &Path, pages: &[Page]) -> Result<Vec<PathBuf>> {
    let figures = folder.join(FIGURES);
    let entries = match std::fs::read_dir(&figures) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.with_context(|| figures.display().to_string())?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.with_context(|| figures.display().to_string())?.path();
        if !pages.iter().any(|page| folder.join(&page.name) == path) {
            found.push(path);
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// The figures of one run, each with the name of its file; none if it has fewer than two points.
#[must_use]
pub fn drawings(results: &Results) -> Vec<Page> {
    let name = &results.workload;
    let own = [(name, results)];
    let parts = markdown::part_names(results);
    let of_part = |part: &String| {
        let suffix = suffix(&parts, part);
        let drawn = figures(name, part, &own).into_iter();
        let page = move |(kind, figure)| Page {
            name: format!("{name}{suffix}{kind}.svg"),
            text: draw(&figure),
        };
        drawn.map(page).collect::<Vec<_>>()
    };
    parts.iter().flat_map(of_part).collect()
}

/// What the names of a part's files have behind that of the workload.
fn suffix(parts: &[String], part: &str) -> String {
    match parts.len() {
        0 | 1 => String::new(),
        _ => format!("-{part}"),
    }
}

/// The block of a workload: its description, figures, published numbers and tables.
fn block(name: &str, own: &[(&String, &Results)], pages: &mut Vec<Page>) -> String {
    let mut text = String::new();
    if let Ok(workload) = workloads::find(name) {
        let origin = workload.origin();
        let (first, others) = origin.split_at(1);
        text.push_str(&format!(
            "One operation: {}. {}{others}.\n\n",
            workload.operation(),
            first.to_uppercase()
        ));
    }
    let parts: Vec<String> = own
        .first()
        .map(|(_, one)| markdown::part_names(one))
        .unwrap_or_default();
    for part in &parts {
        let suffix = suffix(&parts, part);
        for (kind, figure) in figures(name, part, own) {
            let file = format!("{FIGURES}/{name}{suffix}{kind}.svg");
            text.push_str(&format!("![{}]({file})\n\n", figure.title));
            pages.push(Page {
                name: file,
                text: draw(&figure),
            });
        }
        text.push_str(&markdown::published(name, part));
    }
    let remarks = published::remarks(name);
    if !remarks.is_empty() {
        text.push_str(&format!(
            "Published:\n\n```\n{}\n```\n\n",
            remarks.join("\n")
        ));
    }
    for (file, results) in own {
        text.push_str(&of_file(file, results));
    }
    text
}
