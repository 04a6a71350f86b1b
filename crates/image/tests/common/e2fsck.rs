//! What e2fsck reports. `pext4_testkit` has the same, but depends on this crate.

/// What `e2fsck -fn` asks and answers itself, each question with the line before it, which often
/// states the problem. It asks about totals, and about what it looks at before its first pass, and
/// does not report this in its exit status. That a tree could be shorter is no complaint.
pub fn complaints(words: &str) -> Vec<String> {
    let lines: Vec<&str> = [""].into_iter().chain(words.lines()).collect();
    let is_complaint = |line: &str| line.contains("? no") && !line.contains("Optimize? no");
    let asked = lines.windows(2).filter(|pair| is_complaint(pair[1]));
    asked.map(|pair| pair.join(" ").trim().to_owned()).collect()
}
