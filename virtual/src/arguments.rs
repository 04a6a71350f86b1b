//! Looks before the first measurement at what would otherwise fail after it, or never end: the
//! workload, and the file for the results.

use std::io;
use std::path::Path;

use anyhow::{Context, Result, bail};
use pext4_lab::workloads::{self, CONTROL, Workload};
use rustix::fs::{Access, access};

/// Finds a workload that virtual cores can run.
///
/// # Errors
///
/// There is none of this name, or it has no step at which another core could go on.
pub fn workload(name: &str) -> Result<&'static dyn Workload> {
    if name.eq_ignore_ascii_case(CONTROL.name()) {
        bail!(
            "`{}` does not run on virtual cores: it takes no lock and shares no memory, and a core \
             that does neither never lets another one go on",
            CONTROL.name()
        );
    }
    let others = workloads::ALL.iter().copied();
    let others: Vec<_> = others
        .filter(|workload| workload.name() != CONTROL.name())
        .collect();
    workloads::find_among(&others, name)
}

/// Whether `--json` can write this file.
///
/// # Errors
///
/// It cannot: a folder is there, or the file or the folder around it cannot be written or does not
/// exist.
pub fn can_be_written(file: &Path) -> Result<()> {
    let named = |path: &Path| format!("--json: {}", path.display());
    if file.is_dir() {
        bail!("{}: a folder is there", named(file));
    }
    let around = file
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    let folder = around.unwrap_or(Path::new("."));
    let written = if file.exists() { file } else { folder };
    if written == folder && !folder.is_dir() {
        bail!("{}: there is no such folder", named(folder));
    }
    let found = access(written, Access::WRITE_OK).map_err(io::Error::from);
    found.with_context(|| named(written))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{can_be_written, workload};

    #[test]
    fn a_workload_that_never_lets_others_go_on_is_refused_and_not_listed() {
        let told = |name| workload(name).err().map(|error| error.to_string());
        assert_eq!(told("fallocate2"), None);
        let refused = told("Control").unwrap();
        assert!(
            refused.contains("`control` does not run on virtual cores"),
            "{refused}"
        );
        let listed = told("nothing").unwrap();
        assert!(
            listed.contains("fallocate2") && !listed.contains("control"),
            "{listed}"
        );
    }

    #[test]
    fn results_have_somewhere_to_go_before_they_are_made() {
        let told = |file: &Path| can_be_written(file).err().map(|error| error.to_string());
        let folder = std::env::temp_dir();
        assert_eq!(told(&folder.join("pext4-virtual-no-such-file")), None);
        assert_eq!(told(Path::new("a-file-here")), None);
        let nowhere = told(Path::new("/nonexistent/x.json")).unwrap();
        assert_eq!(nowhere, "--json: /nonexistent: there is no such folder");
        let there = told(&folder).unwrap();
        assert!(there.ends_with("a folder is there"), "{there}");
    }
}
