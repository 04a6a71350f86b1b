//! The blocks of a document: texts between marks, which the report replaces.
//!
//! `<!-- lab: NAME -->` begins a block and `<!-- lab: end -->` ends it.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail};

/// The start of every mark, also of the end's.
const BEGIN: &str = "<!-- lab: ";
/// The mark at the end of every block.
pub const END: &str = "<!-- lab: end -->";

/// The mark at the start of a block.
pub fn mark(name: &str) -> String {
    format!("<!-- lab: {name} -->")
}

/// Puts texts between the marks that have their names.
///
/// # Errors
///
/// A mark is not closed, has no text, or occurs twice.
pub fn fill(document: &str, blocks: &BTreeMap<String, String>) -> Result<String> {
    let mut text = document.to_owned();
    for (name, block) in blocks {
        let mark = mark(name);
        let Some(start) = text.find(&mark) else {
            continue;
        };
        let start = start + mark.len();
        let end = text[start..]
            .find(END)
            .filter(|end| !text[start..start + end].contains(BEGIN))
            .with_context(|| format!("{mark} is not closed"))?;
        text.replace_range(start..start + end, &format!("\n{}\n", block.trim_end()));
    }
    check_marks(document, blocks)?;
    Ok(text)
}

/// Refuses a block whose name has no text, and the second block of a name.
fn check_marks(document: &str, blocks: &BTreeMap<String, String>) -> Result<()> {
    let mut seen = BTreeSet::new();
    let marks = document.match_indices(BEGIN).filter_map(|(place, _)| {
        let rest = &document[place..];
        rest.find("-->").map(|end| &rest[..end + "-->".len()])
    });
    for found in marks.filter(|found| *found != END) {
        if !blocks.keys().any(|name| mark(name) == found) {
            bail!("{found}: there are no results of that name; remove the block");
        }
        if !seen.insert(found) {
            bail!("{found} is there twice");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::fill;

    #[test]
    fn a_block_that_is_not_closed_takes_nothing_of_what_follows() {
        let blocks = BTreeMap::from([("a".to_owned(), "new".to_owned())]);
        let closed = "<!-- lab: a -->\nold\n<!-- lab: end -->\nwords\n";
        let filled = "<!-- lab: a -->\nnew\n<!-- lab: end -->\nwords\n";
        assert_eq!(fill(closed, &blocks).unwrap(), filled);
        let open = "<!-- lab: a -->\nwords\n<!-- lab: b -->\n<!-- lab: end -->\n";
        let told = fill(open, &blocks).unwrap_err().to_string();
        assert_eq!(told, "<!-- lab: a --> is not closed");
    }

    #[test]
    fn blocks_of_nothing_and_second_blocks_are_refused() {
        let blocks = BTreeMap::from([("a".to_owned(), "new".to_owned())]);
        let block = |name: &str| format!("<!-- lab: {name} -->\nold\n<!-- lab: end -->\n");
        let told = fill(&(block("a") + &block("gone")), &blocks)
            .unwrap_err()
            .to_string();
        assert!(
            told.starts_with("<!-- lab: gone -->: there are no results"),
            "{told}"
        );
        let told = fill(&block("a").repeat(2), &blocks)
            .unwrap_err()
            .to_string();
        assert_eq!(told, "<!-- lab: a --> is there twice");
    }
}
