//! debugfs and dumpe2fs: locations of structures from an independent decoder, and journals from an
//! independent writer.

use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result};

use super::{run, tool};

/// Runs one read-only debugfs request; returns its output.
pub fn ask(image: &Path, request: &str) -> Result<String> {
    run(tool("debugfs").args(["-R", request]).arg(image))
}

/// Runs debugfs requests that may write, one a line; returns the output.
pub fn command(image: &Path, requests: &[String]) -> Result<String> {
    let folder = crate::effort::scratch();
    let script = folder.path().join("script");
    std::fs::write(&script, requests.join("\n") + "\n").context("writing the script")?;
    run(tool("debugfs").arg("-w").arg("-f").arg(&script).arg(image))
}

/// A named run of blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// The kind of structure.
    pub what: String,
    /// Its block numbers.
    pub blocks: Range<u64>,
}

/// Blocks of one file or directory, as debugfs maps it.
pub fn blocks_of(image: &Path, file: &str) -> Result<Vec<u64>> {
    let told = ask(image, &format!("blocks {file}"))?;
    Ok(told
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect())
}

/// Blocks of the extent tree nodes of a file.
pub fn extent_nodes_of(image: &Path, file: &str) -> Result<Vec<u64>> {
    let told = ask(image, &format!("ex -n {file}"))?;
    let rows = told.lines().skip(1).filter_map(|line| {
        // Level Entries Logical Physical Length: "0/ 1   1/  2   0 -  99   1234   100".
        let words: Vec<&str> = line.split_whitespace().collect();
        words.iter().rev().nth(1)?.parse().ok()
    });
    Ok(rows.collect())
}

/// Pointer blocks of a file's block map.
pub fn pointer_blocks_of(image: &Path, file: &str) -> Result<Vec<u64>> {
    let told = ask(image, &format!("stat {file}"))?;
    // Among the blocks: "(IND):694, (DIND):951".
    let named = told.split("IND):").skip(1);
    let numbers = named.filter_map(|rest| rest.split([',', '\n']).next()?.trim().parse().ok());
    Ok(numbers.collect())
}

/// The metadata regions of all groups, as dumpe2fs reports them.
pub fn regions(image: &Path) -> Result<Vec<Region>> {
    let told = run(tool("dumpe2fs").arg(image))?;
    let groups = told.lines().skip_while(|line| !line.starts_with("Group 0"));
    Ok(groups
        .flat_map(|line| line.split(','))
        .filter_map(region)
        .collect())
}

/// Parses a region from a piece of a line such as `  Block bitmap at 66 (+65)`.
fn region(piece: &str) -> Option<Region> {
    let (what, place) = piece.trim().split_once(" at ")?;
    let numbers = place.split_whitespace().next()?;
    let (first, last) = numbers.split_once('-').unwrap_or((numbers, numbers));
    let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
    Some(Region {
        what: what.to_owned(),
        blocks: first..last + 1,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle::format::{Features, Format};

    #[test]
    fn regions_of_a_fresh_image_are_found() {
        let folder = crate::effort::scratch();
        let image = folder.path().join("image");
        Format::new(16 << 20, 1024, Features::Debian12)
            .make(&image)
            .expect("made");
        let found = regions(&image).expect("told");
        let whats: Vec<&str> = found.iter().map(|region| region.what.as_str()).collect();
        for what in [
            "Primary superblock",
            "Group descriptors",
            "Block bitmap",
            "Inode table",
        ] {
            assert!(whats.contains(&what), "{what} is not in {whats:?}");
        }
        assert_eq!(blocks_of(&image, "<2>").expect("told").len(), 1);
        let tables = found.iter().filter(|region| region.what == "Inode table");
        assert!(
            tables
                .clone()
                .all(|region| region.blocks.end - region.blocks.start > 10)
        );
    }
}
