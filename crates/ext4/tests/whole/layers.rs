//! The direction of this crate's modules: each imports only from those before it.
//!
//! The order is that of `docs/ARCHITECTURE.md`, "The strata". A module that imports from a later
//! layer cannot be read, tested or reasoned about without that layer. Tests may import anything.

use std::fs;
use std::path::{Path, PathBuf};

/// The layers from the bottom up; modules of one layer do not import each other, except in the
/// first two layers, each of which is one unit in several files.
const LAYERS: [&[&str]; 9] = [
    &["error", "options", "statistics", "types"],
    &["seal", "store", "multi_mount", "mbcache"],
    &["groups"],
    &["mballoc", "ialloc", "orphan"],
    &["inode"],
    &["dir", "xattr", "quota"],
    &["volume"],
    &["ops"],
    &["mount", "path"],
];
/// Layers whose modules may import each other.
const TOGETHER: usize = 2;

fn layer(module: &str) -> Option<usize> {
    LAYERS.iter().position(|modules| modules.contains(&module))
}

/// The source files below a folder, tests left out.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("the sources are there") {
        let path = entry.expect("readable").path();
        let name = path
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if ["tests", "testing"].contains(&name.as_str()) {
            continue;
        }
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The code of a file, without comments and without the tests at its end.
fn code(text: &str) -> String {
    let lines = text
        .lines()
        .map(|line| line.split("//").next().unwrap_or_default());
    let mut code: Vec<&str> = lines.collect();
    let is_test = |pair: &[&str]| {
        let attribute = pair[0].trim_start();
        attribute.starts_with("#[cfg(")
            && attribute.contains("test")
            && pair[1].trim_start().starts_with("mod ")
            && pair[1].trim_end().ends_with('{')
    };
    if let Some(start) = code.windows(2).position(is_test) {
        code.truncate(start);
    }
    code.join("\n")
}

/// The first names after a path prefix: one name, or those in braces.
fn names_behind(rest: &str) -> Vec<String> {
    let is_name = |letter: char| letter.is_alphanumeric() || letter == '_';
    if let Some(inside) = rest.strip_prefix('{') {
        let mut names = vec![String::new()];
        let mut depth = 1;
        let mut in_path = false;
        for letter in inside.chars() {
            match letter {
                '{' => depth += 1,
                '}' if depth == 1 => break,
                '}' => depth -= 1,
                ',' if depth == 1 => {
                    names.push(String::new());
                    in_path = false;
                }
                ':' if depth == 1 => in_path = true,
                _ if depth == 1 && !in_path && is_name(letter) => {
                    names
                        .last_mut()
                        .expect("one stands at the start")
                        .push(letter);
                }
                _ => {}
            }
        }
        names.retain(|name| !name.is_empty());
        return names;
    }
    vec![rest.chars().take_while(|&letter| is_name(letter)).collect()]
}

/// Modules of the crate's root that a file of a module `depth` levels down names.
fn named_modules(code: &str, depth: usize) -> Vec<String> {
    let mut named = Vec::new();
    let to_root = "super::".repeat(depth);
    for prefix in ["crate::", to_root.as_str()] {
        for (at, _) in code.match_indices(prefix) {
            let before = code[..at].chars().next_back();
            let part_of_more = before
                .is_some_and(|letter| letter.is_alphanumeric() || letter == ':' || letter == '_');
            let goes_on_up = prefix == to_root && code[at + prefix.len()..].starts_with("super::");
            if !(part_of_more || goes_on_up) {
                named.extend(names_behind(&code[at + prefix.len()..]));
            }
        }
    }
    named
}

/// The module that a name at the crate's root belongs to.
fn home(name: &str) -> Option<&str> {
    match name {
        "Volume" => Some("volume"),
        "Error" | "Refusal" | "Result" => Some("error"),
        "MountOptions" => Some("options"),
        _ if name.starts_with(|letter: char| letter.is_ascii_uppercase()) => Some("types"),
        _ if layer(name).is_some() => Some(name),
        _ => None,
    }
}

/// What is wrong with one file's imports.
fn complaints(path: &Path, root: &Path) -> Vec<String> {
    let inside = path.strip_prefix(root).expect("below the root");
    let parts: Vec<String> = inside
        .components()
        .map(|part| part.as_os_str().to_string_lossy().replace(".rs", ""))
        .collect();
    let Some(module) = parts.first().filter(|first| *first != "lib") else {
        return Vec::new();
    };
    let Some(own) = layer(module) else {
        return vec![format!("{}: `{module}` is in no layer", inside.display())];
    };
    let text = fs::read_to_string(path).expect("readable");
    let named = named_modules(&code(&text), parts.len());
    let bad = named.iter().filter(|name| match home(name) {
        Some(home) if home == module => false,
        Some(home) => {
            let other = layer(home).expect("homes are modules");
            other > own || (other == own && own >= TOGETHER)
        }
        None => !name.is_empty(),
    });
    bad.map(|name| format!("{}: `{module}` imports `{name}`", inside.display()))
        .collect()
}

#[test]
fn modules_import_leftwards_only() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&root, &mut files);
    assert!(files.len() > 5, "the sources were found");
    let all: Vec<String> = files
        .iter()
        .flat_map(|path| complaints(path, &root))
        .collect();
    assert!(all.is_empty(), "\n{}", all.join("\n"));
}

#[test]
fn imports_are_recognised() {
    let text = "use crate::store::Store;\nuse crate::{dir, error::{A, B}, Volume};\n\
                fn f() { super::super::groups::g(); super::own(); crate::ops::x() } // crate::mount\n\
                #[cfg(test)]\nmod tests {\n use crate::path; }\n";
    let mut named = named_modules(&code(text), 2);
    named.sort();
    assert_eq!(named, ["Volume", "dir", "error", "groups", "ops", "store"]);
}
