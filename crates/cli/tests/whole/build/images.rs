//! A place to build in, and images read back by the other commands.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use pext4_testkit::oracle::check::e2fsck;
use serde_json::Value;
use tempfile::TempDir;

use crate::common::{has, pext4, succeed};

/// A folder for sources and one in which there is nothing but the image.
pub struct Workshop {
    pub folder: TempDir,
    pub image: PathBuf,
}

impl Workshop {
    pub fn new() -> Self {
        let folder = TempDir::new().expect("a temporary folder");
        let out = folder.path().join("out");
        fs::create_dir(&out).expect("it is new");
        Self {
            image: out.join("image"),
            folder,
        }
    }

    /// A file among the sources, with the folders on its way.
    pub fn write(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.folder.path().join(name);
        fs::create_dir_all(path.parent().expect("it lies in the folder")).expect("it is ours");
        fs::write(&path, content).expect("it is ours");
        path
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// `pext4 build IMAGE` with what follows.
    pub fn build<I: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = I>) -> Command {
        let mut command = pext4(["build"]);
        command.arg(&self.image).args(words);
        command.env_remove("SOURCE_DATE_EPOCH");
        command
    }

    /// Checks that there is neither an image nor anything beside it.
    pub fn is_bare(&self) {
        let out = self.image.parent().expect("it lies in a folder");
        let left: Vec<_> = fs::read_dir(out)
            .expect("it is ours")
            .map(|entry| entry.expect("it is ours").path())
            .collect();
        assert!(left.is_empty(), "left behind: {left:?}");
    }

    /// Checks that e2fsck and the built-in checker find nothing.
    pub fn check(&self) {
        if has("e2fsck") {
            e2fsck(&self.image).expect("e2fsck finds nothing");
        }
        succeed(pext4(["check", "-q"]).arg(&self.image));
    }

    pub fn cat(&self, path: &str) -> String {
        succeed(pext4(["cat"]).arg(&self.image).arg(path))
    }

    pub fn stat(&self, path: &str) -> Value {
        json(pext4(["stat", "--json"]).arg(&self.image).arg(path))
    }

    /// The names in a directory, without the one that every image has.
    pub fn names(&self, path: &str) -> Vec<String> {
        let files = json(pext4(["ls", "--json"]).arg(&self.image).arg(path));
        let files = files.as_array().expect("a list");
        let names = files.iter().map(|file| text(&file["name"]));
        names.filter(|name| name != "lost+found").collect()
    }
}

/// The JSON output of a command.
pub fn json(command: &mut Command) -> Value {
    serde_json::from_str(&succeed(command)).expect("JSON")
}

pub fn text(value: &Value) -> String {
    value.as_str().expect("a text").to_owned()
}

/// The single line of a command's error.
pub fn complaint(output: &Output) -> String {
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert_eq!(told.lines().count(), 1, "{told}");
    assert!(told.starts_with("pext4: "), "{told}");
    assert!(output.stdout.is_empty(), "nothing was built");
    told
}

/// The complaint begins with the path that it is about.
pub fn names(told: &str, path: &Path) {
    let start = format!("pext4: {}: ", path.display());
    assert!(told.starts_with(&start), "{start} does not begin: {told}");
}
