//! A snapshot of a whole tree, which every walker produces, so that any two can be compared.
//!
//! Paths are names joined by `/`; the root's is empty. Two trees that different implementations
//! read from the same image must be equal in everything, including inode numbers, space and
//! nanoseconds; times of last access may be left out.

use std::collections::{BTreeMap, BTreeSet};

use pext4_fs::FileType;

use crate::content::Content;
use crate::op::Name;
use crate::op::text::escape;
use crate::outcome::Facts;

/// Most differences that a comparison reports.
const MAX_TOLD: usize = 20;

/// One file of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The result of `stat`.
    pub facts: Facts,
    /// Bytes of a regular file.
    pub content: Option<Content>,
    /// Target of a symbolic link.
    pub link: Option<Vec<u8>>,
    /// Extended attributes.
    pub xattrs: BTreeMap<Name, Vec<u8>>,
}

/// All files of a tree by path.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Tree {
    /// The files.
    pub items: BTreeMap<Vec<u8>, Item>,
}

/// A path in printable form.
#[must_use]
pub fn show(path: &[u8]) -> String {
    let names = path
        .split(|&byte| byte == b'/')
        .filter(|name| !name.is_empty());
    let names: Vec<String> = names.map(escape).collect();
    format!("/{}", names.join("/"))
}

/// The path of a name in a directory.
#[must_use]
pub fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    if directory.is_empty() {
        name.to_vec()
    } else {
        [directory, b"/", name].concat()
    }
}

impl Tree {
    /// Describes where two trees of the same image differ; empty if they are equal.
    #[must_use]
    pub fn differences(&self, other: &Self, with_access: bool) -> Vec<String> {
        let paths: BTreeSet<&Vec<u8>> = self.items.keys().chain(other.items.keys()).collect();
        let mut told = Vec::new();
        for path in paths {
            let found = match (self.items.get(path), other.items.get(path)) {
                (Some(one), Some(two)) => item_differences(one, two, with_access),
                (Some(_), None) => vec!["only in the first".to_owned()],
                (None, _) => vec!["only in the second".to_owned()],
            };
            told.extend(
                found
                    .into_iter()
                    .map(|text| format!("{}: {text}", show(path))),
            );
            if told.len() >= MAX_TOLD {
                break;
            }
        }
        told
    }

    /// The part of the tree below a directory, which becomes its root.
    #[must_use]
    pub fn below(&self, directory: &[u8]) -> Self {
        let strip = |path: &[u8]| match directory {
            b"" => Some(path.to_vec()),
            _ if path == directory => Some(Vec::new()),
            _ => path
                .strip_prefix(directory)?
                .strip_prefix(b"/")
                .map(<[u8]>::to_vec),
        };
        let items = self
            .items
            .iter()
            .filter_map(|(path, item)| Some((strip(path)?, item.clone())));
        Self {
            items: items.collect(),
        }
    }

    /// The tree without some directories and what is below them.
    #[must_use]
    pub fn without(&self, directories: &[&[u8]]) -> Self {
        let is_left_out = |path: &[u8]| {
            directories.iter().any(|&directory| {
                let below = path.strip_prefix(directory);
                below.is_some_and(|below| below.is_empty() || below[0] == b'/')
            })
        };
        let items = self.items.iter().filter(|(path, _)| !is_left_out(path));
        Self {
            items: items
                .map(|(path, item)| (path.clone(), item.clone()))
                .collect(),
        }
    }

    /// The tree as text, one line for each file.
    #[must_use]
    pub fn tell(&self) -> String {
        let lines = self.items.iter().map(|(path, item)| {
            let facts = &item.facts;
            let (inode, links, size) = (facts.inode, facts.links, facts.size);
            format!(
                "  {}: {:?} inode {inode}, {links} links, {size} bytes",
                show(path),
                facts.kind
            )
        });
        lines.collect::<Vec<_>>().join("\n")
    }

    /// Panics with all differences between two walks of the same image.
    ///
    /// # Panics
    ///
    /// If there are any.
    pub fn assert_same(&self, other: &Self, context: &str) {
        let found = self.differences(other, false);
        assert!(found.is_empty(), "{context}:\n  {}", found.join("\n  "));
    }
}

fn item_differences(one: &Item, two: &Item, with_access: bool) -> Vec<String> {
    let mut told = Vec::new();
    let mut first = one.facts;
    if !with_access {
        first.accessed = two.facts.accessed;
    }
    if first != two.facts {
        told.push(format!("{first:?} against {:?}", two.facts));
    }
    if one.link != two.link {
        told.push(format!("target {:?} against {:?}", one.link, two.link));
    }
    if one.xattrs != two.xattrs {
        told.push(xattr_difference(&one.xattrs, &two.xattrs));
    }
    match (&one.content, &two.content) {
        (Some(mine), Some(theirs)) => told.extend(mine.difference(theirs)),
        (None, None) => {}
        _ => told.push("only one of them has content".to_owned()),
    }
    told
}

/// Describes which extended attributes differ.
#[must_use]
pub fn xattr_difference(one: &BTreeMap<Name, Vec<u8>>, two: &BTreeMap<Name, Vec<u8>>) -> String {
    let names: BTreeSet<&Name> = one.keys().chain(two.keys()).collect();
    let differing = names
        .into_iter()
        .filter(|&name| one.get(name) != two.get(name));
    let sizes =
        |value: Option<&Vec<u8>>| value.map_or("none".to_owned(), |value| value.len().to_string());
    let told = differing.map(|name| {
        format!(
            "{} ({} against {} bytes)",
            escape(name),
            sizes(one.get(name)),
            sizes(two.get(name))
        )
    });
    format!("xattrs {}", told.collect::<Vec<_>>().join(", "))
}

/// Whether files of this kind have content to read.
#[must_use]
pub fn has_content(kind: FileType) -> bool {
    kind == FileType::Regular
}
