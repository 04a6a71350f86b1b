//! `pext4 lab report`: tables and figures from results, and the documents that have them.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

use crate::common::{fail, pext4, succeed};

/// The tables and figures of this project's own documents.
#[test]
fn the_documents_have_what_the_results_say() {
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    succeed(pext4(["lab", "report", "--check"]).current_dir(project));
}

#[test]
fn a_report_is_made_and_checked() {
    let folder = TempDir::new().unwrap();
    let documents = folder.path().join("docs");
    let results = documents.join("results");
    fs::create_dir_all(&results).unwrap();
    let drawn = folder.path().join("drawn");
    let mut saved = pext4([
        "lab",
        "run",
        "fallocate2",
        "--tasks",
        "1,2",
        "--repeat",
        "1",
    ]);
    saved.args(["--steps", "300", "--save"]).arg(&results);
    succeed(saved.arg("--svg").arg(&drawn));
    let drawn = fs::read_to_string(drawn.join("fallocate2.svg")).unwrap();
    assert!(drawn.starts_with("<svg") && drawn.contains("full (measured)"));
    let scaling = documents.join("SCALING.md");
    let before = "Before.\n\n<!-- lab: fallocate2 -->old<!-- lab: end -->\n\nAfter.\n";
    fs::write(&scaling, before).unwrap();
    let tables = documents.join("SCALING-TABLES.md");
    fs::write(&tables, "<!-- lab: summary -->old<!-- lab: end -->\n").unwrap();
    let report = |more: &[&str]| {
        let mut command = pext4(["lab", "report", "--readme", "/nonexistent"]);
        command.arg(&documents).args(more);
        command
    };
    fail(&mut report(&["--check"]), 1);
    succeed(&mut report(&[]));
    let text = fs::read_to_string(&scaling).unwrap();
    assert!(
        text.starts_with("Before.") && text.ends_with("After.\n"),
        "{text}"
    );
    assert!(
        text.contains("**Measured**") && !text.contains("old"),
        "{text}"
    );
    let table = fs::read_to_string(tables).unwrap();
    assert!(table.contains("\n| fallocate2 | full | "), "{table}");
    let figure = fs::read_to_string(documents.join("figures/fallocate2.svg")).unwrap();
    assert!(figure.contains("full (measured)") && figure.contains("published"));
    succeed(&mut report(&["--check"]));
    // Nothing passes that is not as it would be made.
    let figure = documents.join("figures/fallocate2.svg");
    let drawn = fs::read_to_string(&figure).unwrap();
    fs::write(&figure, "another").unwrap();
    assert!(fail(&mut report(&["--check"]), 1).contains("fallocate2.svg: not as"));
    fs::write(&figure, drawn).unwrap();
    let gone = documents.join("figures/mdtest.svg");
    fs::write(&gone, "of results that are gone").unwrap();
    let told = fail(&mut report(&["--check"]), 1);
    assert!(
        told.contains("mdtest.svg: no results make this figure"),
        "{told}"
    );
    succeed(&mut report(&[]));
    assert!(gone.exists(), "it is not ours to remove");
    fs::remove_file(gone).unwrap();
    let readme = folder.path().join("README.md");
    let check_readme = || {
        let mut command = pext4(["lab", "report", "--check", "--readme"]);
        command.arg(&readme).arg(&documents);
        fail(&mut command, 1)
    };
    fs::write(&readme, "<!-- lab: picture -->old<!-- lab: end -->\n").unwrap();
    assert!(check_readme().contains("README.md: not as"));
    for stale in ["<!-- lab: mdtest -->old<!-- lab: end -->\n", before] {
        fs::write(&scaling, text.clone() + stale).unwrap();
        let told = fail(&mut report(&["--check"]), 1);
        assert!(told.contains("SCALING.md: <!-- lab: "), "{told}");
    }
}
