//! Replays operations that once failed, or that are worth keeping as examples.

use pext4_testkit::campaign::replay_file;
use pext4_testkit::effort::corpus;

#[test]
fn kept_operations_still_pass() {
    let mut files: Vec<_> = std::fs::read_dir(corpus())
        .expect("the folder is part of the repository")
        .map(|entry| entry.expect("readable").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "ops"))
        .collect();
    files.sort();
    assert!(!files.is_empty());
    for file in files {
        replay_file(&file).unwrap_or_else(|error| panic!("{error:#}"));
    }
}
