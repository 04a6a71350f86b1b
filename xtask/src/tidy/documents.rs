//! Checks that the documents name only what the sources have: an identifier in backticks that has
//! an underscore or a path (`Groups::report`) must consist of words of some source. A name that was
//! changed in the sources alone is found so, unless another thing has the old name.
//!
//! Names of other programs are allowed where the documents explain them: in the first column of the
//! glossary, and those in [`FOREIGN`].
//!
//! The example in the README must be the file that it claims to be.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// Names of Linux, of its on-disk format and of a benchmark.
const FOREIGN: [&str; 6] = [
    "FS_IOC_FIEMAP",
    "HUGE_FILE_FL",
    "bg_itable_unused",
    "fs_mark",
    "name_to_handle_at",
    "rec_len",
];
/// The document whose tables begin with names of Linux.
const GLOSSARY: &str = "GLOSSARY.md";

/// The words of a source: what an identifier may consist of.
pub fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|letter: char| !is_part_of_word(letter))
}

fn is_part_of_word(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || letter == '_'
}

/// Complaints about the documents of a workspace whose sources have these words.
pub fn complaints(workspace: &Path, known: &HashSet<String>) -> Result<Vec<String>> {
    let folder = workspace.join("docs");
    let mut found = Vec::new();
    for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "md") {
            continue;
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let of_file = in_document(&text, name == GLOSSARY, known);
        found.extend(of_file.map(|text| format!("docs/{name}:{text}")));
    }
    let readme = fs::read_to_string(workspace.join("README.md")).context("README.md")?;
    let read = |path: &str| fs::read_to_string(workspace.join(path)).unwrap_or_default();
    found.extend(in_readme(&readme, read));
    found.sort();
    Ok(found)
}

/// The complaint about the README's example, if it is not the source that is named before it,
/// without the comment at its head.
fn in_readme(readme: &str, read: impl Fn(&str) -> String) -> Option<String> {
    let (before, after) = readme.split_once("```rust\n")?;
    let (shown, _) = after.split_once("```")?;
    let path = before.rsplit('`').find(|quoted| quoted.ends_with(".rs"))?;
    let source = read(path);
    let lines = source.lines().skip_while(|line| line.starts_with("//!"));
    let code: Vec<&str> = lines.skip_while(|line| line.is_empty()).collect();
    let is_same = shown.lines().eq(code);
    (!is_same).then(|| format!("README.md: the example is not `{path}`"))
}

/// Complaints about one document, each starting with its line.
fn in_document(
    text: &str,
    is_glossary: bool,
    known: &HashSet<String>,
) -> impl Iterator<Item = String> {
    let is_unknown = |name: &&str| {
        let mut words = words(name).filter(|word| !word.is_empty());
        !FOREIGN.contains(name) && words.any(|word| !known.contains(word))
    };
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = match is_glossary {
            true => ours_in_glossary(line),
            false => line,
        };
        // What is in backticks is every second part.
        let quoted = line.split('`').skip(1).step_by(2);
        let unknown = quoted.filter(|name| is_name(name)).filter(is_unknown);
        found.extend(unknown.map(|name| format!("{}: no source has `{name}`", index + 1)));
    }
    found.into_iter()
}

/// A row of the glossary without its first column.
fn ours_in_glossary(line: &str) -> &str {
    match line.strip_prefix("| ").and_then(|row| row.split_once(" |")) {
        Some((_, rest)) => rest,
        None => line,
    }
}

/// Whether this can only be a name of Rust: an identifier with an underscore, or a path of them, or
/// a call of either without arguments.
fn is_name(quoted: &str) -> bool {
    let name = quoted.strip_suffix("()").unwrap_or(quoted);
    let is_identifier = |part: &str| {
        part.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
            && part.chars().all(is_part_of_word)
    };
    (name.contains('_') || name.contains("::")) && name.split("::").all(is_identifier)
}

#[cfg(test)]
mod tests {
    use super::{in_document, in_readme, words};

    #[test]
    fn an_example_that_differs_from_its_file_is_found() {
        let readme = "This is `a/b.rs`; run `it`:\n\n```rust\nfn main() {\n}\n```\nMore `words`.\n";
        let source = "//! A contract.\n\nfn main() {\n}\n";
        let told = |source: &str| {
            in_readme(readme, |path| match path {
                "a/b.rs" => source.to_owned(),
                _ => String::new(),
            })
        };
        assert_eq!(told(source), None);
        let expected = "README.md: the example is not `a/b.rs`";
        assert_eq!(
            told(&source.replace('}', "    run();\n}")).as_deref(),
            Some(expected)
        );
        assert_eq!(told("").as_deref(), Some(expected));
    }

    #[test]
    fn names_that_no_source_has_are_found() {
        let source = "impl Groups { fn report(&self) {} fn old_name(&self) {} }";
        let known = words(source).map(str::to_owned).collect();
        let told = |text: &str, is_glossary| -> Vec<String> {
            in_document(text, is_glossary, &known).collect()
        };
        let known_ones = "`Groups::report`, `old_name`, `old_name()`, `word`, `mke2fs -O a_b`";
        assert!(told(known_ones, false).is_empty());
        let line = "a line\n`Groups::told` and `new_name`, by `rec_len`";
        let expected = [
            "2: no source has `Groups::told`",
            "2: no source has `new_name`",
        ];
        assert_eq!(told(line, false), expected);
        let row = "| `j_tail` | `Tail::new_name` |";
        assert_eq!(told(row, true), ["1: no source has `Tail::new_name`"]);
        assert_eq!(told(row, false).len(), 2);
    }
}
