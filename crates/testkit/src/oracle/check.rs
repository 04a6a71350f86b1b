//! e2fsck, which checks every image that the tests leave.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, bail};

use super::{debugfs, output, text, tool};

/// Runs `e2fsck -fn`; every complaint about the image is an error with e2fsck's output.
pub fn e2fsck(image: &Path) -> Result<()> {
    let told = output(tool("e2fsck").arg("-fn").arg(image))?;
    let words = text(&told);
    match told.status.code() {
        Some(0) if complaints(&words).is_empty() => Ok(()),
        code => bail!("e2fsck -fn ended with {code:?}:\n{words}"),
    }
}

/// What `e2fsck -fn` asks and answers itself, each question with the line before it, which often
/// states the problem. It asks about totals, and about what it looks at before its first pass, and
/// does not report this in its exit status. That a tree could be shorter is no complaint.
#[must_use]
pub fn complaints(words: &str) -> Vec<String> {
    let lines: Vec<&str> = [""].into_iter().chain(words.lines()).collect();
    let is_complaint = |line: &str| line.contains("? no") && !line.contains("Optimize? no");
    let asked = lines.windows(2).filter(|pair| is_complaint(pair[1]));
    asked.map(|pair| pair.join(" ").trim().to_owned()).collect()
}

/// Repairs an image with e2fsck, after which e2fsck must find nothing. If the superblock has an
/// error recorded, e2fsck trusts no orphans and recounts everything.
pub fn repair(image: &Path) -> Result<String> {
    let told = output(tool("e2fsck").arg("-fy").arg(image))?;
    let words = text(&told);
    if !matches!(told.status.code(), Some(0 | 1)) {
        bail!("e2fsck -fy ended with {}:\n{words}", told.status);
    }
    e2fsck(image).context("after its own repair")?;
    Ok(words)
}

/// Replays the journal and clears orphans with e2fsck; fails if e2fsck repairs anything else.
pub fn recover(image: &Path) -> Result<()> {
    let words = repair(image)?;
    let mut mended = repairs(&words);
    if words.contains("Clearing orphaned inode") {
        let mut values = BTreeSet::new();
        mended.retain(|repair| match value_without_name(image, repair) {
            Some(number) => {
                values.insert(number.to_owned());
                false
            }
            None => true,
        });
        // Nor did it drop what they count in the usage of their owner.
        mended.retain(|repair| values.is_empty() || !is_of_quota(repair));
        for number in values {
            remove_found(image, &number)?;
        }
    }
    if !mended.is_empty() {
        bail!(
            "e2fsck found more to mend than a journal:\n  {}\n{words}",
            mended.join("\n  ")
        );
    }
    Ok(())
}

/// Further repairs that e2fsck makes on every image after a power cut, also the kernel's: the
/// totals in the superblock, which are not journalled at each change, and entries left in the
/// orphan file.
const BELONGS_TO_RECOVERY: [&str; 4] = [
    "Free blocks count wrong (",
    "Free inodes count wrong (",
    "Feature orphan_present is set but orphan file is clean.",
    "Orphan file (inode ",
];

/// Whether a repair is of the usage in a quota file.
fn is_of_quota(repair: &str) -> bool {
    let question = repair.rsplit_once("Update quota info for quota type ");
    question.is_some_and(|(_, rest)| rest.ends_with("? yes"))
}

/// The inode without a name that a repair reports, if it holds an attribute value (`ea_inode`,
/// detected by its flag). e2fsck 1.47 clears an orphan without dropping the references of its
/// attributes, and then finds such inodes.
fn value_without_name<'a>(image: &Path, repair: &'a str) -> Option<&'a str> {
    const VALUE: u32 = 0x20_0000;
    if !repair.starts_with("Unattached inode ") && !repair.contains(" ref count is 2, ") {
        return None;
    }
    let mut words = repair.split_whitespace();
    words.find(|word| word.eq_ignore_ascii_case("inode"))?;
    let number = words.next()?;
    let told = debugfs::ask(image, &format!("stat <{number}>")).ok()?;
    let (_, flags) = told.split_once("Flags: 0x")?;
    let flags = u32::from_str_radix(flags.split_whitespace().next()?, 16).ok()?;
    (flags & VALUE != 0).then_some(number)
}

/// Removes what e2fsck moved into `lost+found`, which no file system would allow there.
fn remove_found(image: &Path, number: &str) -> Result<()> {
    debugfs::command(image, &[format!("rm \"/lost+found/#{number}\"")])?;
    e2fsck(image).context("after removing the value of an attribute")
}

/// The repairs that e2fsck reports: its questions with their subjects. The other parts of recovery
/// (the journal, orphans) ask no questions.
fn repairs(words: &str) -> Vec<String> {
    let lines: Vec<&str> = words.lines().filter(|line| !line.is_empty()).collect();
    let mut found = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let about = if index == 0 { "" } else { lines[index - 1] };
        let is_question = line.contains("? yes");
        let is_expected = BELONGS_TO_RECOVERY
            .iter()
            .any(|start| about.starts_with(start));
        if (is_question && !is_expected) || line.contains("FIXED") || line.contains("IGNORED") {
            found.push(format!("{about} {line}"));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle::format::{Features, Format};

    #[test]
    fn questions_without_a_status_are_complaints() {
        let words = "Resize inode not valid.  Recreate? no\n\nPass 1: Checking inodes\n\
                     Inode 26 extent tree (at level 1) could be shorter.  Optimize? no\n\n\
                     Free inodes count wrong (1, counted=2).\nFix? no\n";
        let told = complaints(words);
        assert_eq!(told[0], "Resize inode not valid.  Recreate? no");
        assert_eq!(told[1], "Free inodes count wrong (1, counted=2). Fix? no");
        assert_eq!(told.len(), 2);
        let folder = crate::effort::scratch();
        let image = folder.path().join("image");
        let format = Format::new(8 << 20, 1024, Features::Debian12);
        format.make(&image).expect("made");
        debugfs::command(&image, &["set_super_value free_inodes_count 9".to_owned()])
            .expect("debugfs");
        let told = output(tool("e2fsck").arg("-fn").arg(&image)).expect("e2fsck");
        assert_eq!(told.status.code(), Some(0), "{}", text(&told));
        assert!(e2fsck(&image).is_err());
    }

    #[test]
    fn repairs_of_quota_files_are_told_from_others() {
        let words = "Orphan file (inode 13) block 7 is not clean.\nClear? yes\n\n\
                     Update quota info for quota type 0? yes\n\n\
                     Update quota info for quota type 1? yes\n\n\
                     Unattached inode 523\nConnect to /lost+found? yes\n";
        let mended = repairs(words);
        let are_of_quota: Vec<bool> = mended.iter().map(|repair| is_of_quota(repair)).collect();
        assert_eq!(are_of_quota, [true, true, false], "{mended:?}");
    }

    #[test]
    fn a_fresh_image_is_clean_and_a_spoilt_one_is_not() {
        let folder = crate::effort::scratch();
        let image = folder.path().join("image");
        Format::new(8 << 20, 1024, Features::Debian12)
            .make(&image)
            .expect("made");
        e2fsck(&image).expect("clean");
        recover(&image).expect("nothing to recover");
        let mut bytes = std::fs::read(&image).expect("readable");
        let descriptor_flags = 2 * 1024 + 12;
        bytes[descriptor_flags] ^= 0xff;
        std::fs::write(&image, &bytes).expect("writable");
        assert!(e2fsck(&image).is_err());
        assert!(recover(&image).is_err());
    }
}
