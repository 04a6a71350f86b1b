//! Checks that rustfmt and clippy do not make: lengths, forbidden words, files without a contract,
//! names in the documents that no source has.
//!
//! It relies on rustfmt's layout: a function ends at the first `}` with the indentation of its `fn`
//! line. Tests (files in `tests`, modules called `tests` or `testing`, and everything after
//! `#[cfg(test)]`) may be long and may unwrap.

mod documents;

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Most lines of a function.
const LONGEST_FUNCTION: usize = 70;
/// Most lines of a file.
const LONGEST_FILE: usize = 800;
/// Most columns of a line; rustfmt leaves long words alone.
const LONGEST_LINE: usize = 120;
/// Most columns of a comment, which rustfmt does not fill.
const LONGEST_COMMENT: usize = 100;
/// Headings of comments; rustdoc shows them in any layout, and the sources have one.
const HEADINGS: [&str; 5] = [
    "# Errors",
    "# Panics",
    "# Safety",
    "# Example",
    "# Examples",
];
/// Folders with sources.
const FOLDERS: [&str; 4] = ["crates", "xtask", "fuzz", "virtual"];

/// Words that no source may contain. They are spelled in halves so that this file may.
fn words() -> [String; 6] {
    let halves = [
        ("TO", "DO"),
        ("FIX", "ME"),
        ("todo", "!("),
        ("unimplemented", "!("),
        ("dbg", "!("),
        ("#[ign", "ore"),
    ];
    halves.map(|(one, two)| format!("{one}{two}"))
}

/// All complaints about the sources below a workspace's folder, and about its documents.
pub fn complaints(workspace: &Path) -> Result<Vec<String>> {
    let mut files = Vec::new();
    for folder in FOLDERS
        .iter()
        .map(|folder| workspace.join(folder))
        .filter(|folder| folder.is_dir())
    {
        sources(&folder, &mut files)?;
    }
    files.sort();
    let mut found = Vec::new();
    let mut names = HashSet::new();
    for file in files {
        let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        let shown = file
            .strip_prefix(workspace)
            .unwrap_or(&file)
            .display()
            .to_string();
        found.extend(in_file(&text, is_test_file(&file)).map(|text| format!("{shown}:{text}")));
        names.extend(documents::words(&text).map(str::to_owned));
        // A module is named by its file.
        names.extend(
            file.file_stem()
                .map(|stem| stem.to_string_lossy().into_owned()),
        );
    }
    found.extend(documents::complaints(workspace, &names)?);
    Ok(found)
}

fn sources(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() {
            // Cargo marks the folders of what it builds.
            if !path.join("CACHEDIR.TAG").exists() {
                sources(&path, files)?;
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

fn is_test_file(path: &Path) -> bool {
    let names = path
        .components()
        .map(|part| part.as_os_str().to_string_lossy().into_owned());
    names
        .into_iter()
        .any(|name| ["tests", "tests.rs", "testing.rs"].contains(&name.as_str()))
}

/// Complaints about one file, each starting with its line.
fn in_file(text: &str, is_test: bool) -> impl Iterator<Item = String> {
    let lines: Vec<&str> = text.lines().collect();
    let tests = if is_test { 0 } else { first_test_line(&lines) };
    let mut found = Vec::new();
    if !is_test && !text.starts_with("//!") {
        found.push("1: the file does not begin with its contract (`//!`)".to_owned());
    }
    if lines.len() > LONGEST_FILE {
        found.push(format!("{}: more than {LONGEST_FILE} lines", lines.len()));
    }
    for (index, line) in lines.iter().enumerate() {
        let shipped = index < tests;
        found.extend(in_line(line, shipped).map(|text| format!("{}: {text}", index + 1)));
    }
    found.extend(dense_headings(&lines));
    found.extend(long_functions(&lines[..tests]));
    if !is_test {
        found.extend(code_behind_tests(&lines, tests));
    }
    found.into_iter()
}

/// The line at which the tests of a file start: the first test attribute that a module follows.
fn first_test_line(lines: &[&str]) -> usize {
    let is_start = |pair: &[&str]| {
        let attribute = pair[0].starts_with("#[cfg(") && pair[0].contains("test");
        attribute && without_visibility(pair[1]).starts_with("mod ") && pair[1].ends_with('{')
    };
    lines.windows(2).position(is_start).unwrap_or(lines.len())
}

/// Items behind the tests of a file, which would not be taken for shipped code here. The content of
/// a module is indented.
fn code_behind_tests(lines: &[&str], tests: usize) -> Option<String> {
    let mut outside = lines.iter().enumerate().skip(tests);
    let (index, _) = outside.find(|(_, line)| {
        let belongs = line.starts_with(' ')
            || ["", "}"].contains(*line)
            || ["#[", "//"].iter().any(|start| line.starts_with(start))
            || without_visibility(line).starts_with("mod ");
        !belongs
    })?;
    Some(format!("{}: code behind the tests", index + 1))
}

fn in_line(line: &str, shipped: bool) -> impl Iterator<Item = String> {
    let mut found = Vec::new();
    if !line.is_ascii() {
        found.push("not ASCII".to_owned());
    }
    let most = match line.trim_start().starts_with("//") {
        true => LONGEST_COMMENT,
        false => LONGEST_LINE,
    };
    if line.chars().count() > most {
        found.push(format!("more than {most} columns"));
    }
    if line.ends_with(' ') || line.contains('\t') {
        found.push("a tab, or a space at the end".to_owned());
    }
    found.extend(
        words()
            .iter()
            .filter(|word| line.contains(*word))
            .map(|word| format!("`{word}`")),
    );
    if shipped && line.contains(&[".unwrap", "()"].concat()) {
        found.push("a bare unwrap; say why it cannot fail with `expect`".to_owned());
    }
    found.into_iter()
}

/// Headings without an empty line of comment before or after them.
fn dense_headings<'a>(lines: &'a [&str]) -> impl Iterator<Item = String> + 'a {
    let comment = |line: &'a str| {
        let line = line.trim_start();
        line.strip_prefix("///").or(line.strip_prefix("//!"))
    };
    let is_dense = move |at: usize| {
        let is_text = |at| comment(at).is_some_and(|text: &str| !text.is_empty());
        let before = at.checked_sub(1).and_then(|before| lines.get(before));
        let after = lines.get(at + 1);
        before.is_some_and(|line| is_text(line)) || after.is_some_and(|line| is_text(line))
    };
    let headings = (0..lines.len()).filter(move |&at| {
        let text = comment(lines[at]).map(str::trim_start);
        text.is_some_and(|text| HEADINGS.contains(&text))
    });
    headings
        .filter(move |&at| is_dense(at))
        .map(|at| format!("{}: a heading without empty lines around it", at + 1))
}

fn long_functions(lines: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let code = line.trim_start();
        let Some(name) = function_name(code) else {
            continue;
        };
        let closing = format!("{}}}", &line[..line.len() - code.len()]);
        let end = lines[start..]
            .iter()
            .position(|line| *line == closing || line.ends_with(';'));
        let Some(length) = end.map(|end| end + 1) else {
            continue;
        };
        let ends_in_brace = lines[start + length - 1] == closing;
        let length = if ends_in_brace {
            length
        } else {
            body_length(&lines[start..], &closing)
        };
        if length > LONGEST_FUNCTION {
            found.push(format!("{}: `{name}` has {length} lines", start + 1));
        }
    }
    found
}

/// Lines up to the closing brace, or one for a declaration without a body.
fn body_length(lines: &[&str], closing: &str) -> usize {
    let head_end = lines
        .iter()
        .position(|line| line.ends_with('{') || line.ends_with(';'));
    match head_end {
        Some(end) if lines[end].ends_with('{') => lines
            .iter()
            .position(|line| line == &closing)
            .map_or(1, |end| end + 1),
        _ => 1,
    }
}

fn function_name(code: &str) -> Option<&str> {
    let mut rest = without_visibility(code);
    for prefix in ["const ", "async ", "unsafe "] {
        rest = rest.strip_prefix(prefix).unwrap_or(rest);
    }
    let name = rest.strip_prefix("fn ")?;
    name.split(['(', '<']).next()
}

/// An item without `pub`, `pub(crate)` or `pub(in ...)` before it.
fn without_visibility(code: &str) -> &str {
    let scoped = code.strip_prefix("pub(");
    let item = scoped.and_then(|scope| scope.split_once(") "));
    let item = item.map(|(_, item)| item);
    item.or_else(|| code.strip_prefix("pub ")).unwrap_or(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shipped_code_behind_the_tests_is_found() {
        let tests = "//! A contract.\n\n#[cfg(test)]\nmod tests {\n    fn f() {}\n}\n";
        let models = "\n#[cfg(all(test, loom))]\nmod models {\n    fn f() {}\n}\n";
        assert!(told(&format!("{tests}{models}")).is_empty());
        let behind = format!("{tests}\nfn late() {{}}\n{models}");
        assert_eq!(told(&behind), ["8: code behind the tests"]);
    }

    fn told(text: &str) -> Vec<String> {
        in_file(text, false).collect()
    }

    #[test]
    fn long_functions_are_found() {
        let body = "    call();\n".repeat(LONGEST_FUNCTION);
        let long = format!("//! A contract.\n\npub fn long(\n    one: u32,\n) {{\n{body}}}\n");
        assert_eq!(
            told(&long),
            [format!("3: `long` has {} lines", LONGEST_FUNCTION + 4)]
        );
        for visibility in [
            "",
            "pub(crate) ",
            "pub(in crate::build) ",
            "pub const unsafe ",
        ] {
            let long = format!("//! A contract.\n\n{visibility}fn long() {{\n{body}}}\n");
            assert_eq!(told(&long).len(), 1, "{visibility}");
        }
        let declared = format!("//! A contract.\n\nfn short();\n{body}");
        assert!(told(&declared).is_empty());
    }

    #[test]
    fn dense_headings_are_found() {
        let text = |before: &str, after: &str| {
            format!(
                "//! A contract.\n\n/// Reads.{before}\n    /// # Errors{after}\n    /// `Io`.\n"
            )
        };
        let (dense, loose) = ("", "\n    ///");
        assert!(told(&text(loose, loose)).is_empty());
        for (before, after) in [(dense, loose), (loose, dense)] {
            let line = if before.is_empty() { 4 } else { 5 };
            let told = told(&text(before, after));
            assert_eq!(
                told,
                [format!("{line}: a heading without empty lines around it")]
            );
        }
        assert!(told("//! # Errors in the field\n//! They are many.\n").is_empty());
    }

    #[test]
    fn words_are_found() {
        let word = ["TO", "DO"].concat();
        assert_eq!(
            told(&format!("//! A contract.\n// {word}: later\n")),
            [format!("2: `{word}`")]
        );
        let unwrap = [".unwrap", "()"].concat();
        for visibility in ["", "pub(crate) ", "pub(super) "] {
            let both = format!(
                "//! A contract.\nlet a = b{unwrap};\n\
                 #[cfg(test)]\n{visibility}mod tests {{\n    let a = b{unwrap};\n}}\n"
            );
            assert_eq!(told(&both).len(), 1, "{visibility}");
        }
        assert_eq!(told("fn f() {}\n").len(), 1);
    }
}
