//! A directory of a file system that was mounted by others.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};

use super::table;
use super::{Side, Verdict};
use crate::fill::make_ready;
use crate::fragmentation;
use crate::leftovers;
use crate::results::Fragmentation;
use crate::run::{Crew, Tasks};
use crate::target::{MountedPath, Target};

/// A folder of the lab in a directory; dropping it removes the folder.
pub struct Home {
    /// Its path.
    pub path: PathBuf,
    target: Arc<MountedPath>,
    removing: bool,
}

impl Home {
    /// Creates it.
    ///
    /// # Errors
    ///
    /// If the directory does not exist or is not writable.
    pub fn new(directory: &Path) -> Result<Self> {
        let path = directory.join(Self::name());
        std::fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        match MountedPath::open(&path) {
            Ok(target) => Ok(Self {
                path,
                target: Arc::new(target),
                removing: true,
            }),
            Err(error) => {
                let _ = std::fs::remove_dir(&path);
                Err(error)
            }
        }
    }

    /// Its name.
    #[must_use]
    pub fn name() -> String {
        format!("pext4-lab-{}", std::process::id())
    }

    /// Starts tasks in it, as processes.
    ///
    /// # Errors
    ///
    /// If there is no room, or the processes cannot start.
    pub fn crew(&self, program: &Path, tasks: &Tasks) -> Result<Crew> {
        make_ready(&*self.target, tasks.workload, &tasks.plan)
            .with_context(|| self.path.display().to_string())?;
        Crew::of_processes(program, &self.path, tasks)
    }

    /// Removes what the tasks shared, and waits until everything is durable.
    ///
    /// # Errors
    ///
    /// Errors of the file system.
    pub fn clean_up(&self, tasks: &Tasks) -> Result<()> {
        tasks.workload.clean(&*self.target)?;
        self.target.sync_all()
    }

    /// Keeps everything in place.
    pub fn leave(mut self) {
        self.removing = false;
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if !self.removing {
            return;
        }
        // After a failure, files may be left. Those that cannot be removed keep the directory,
        // whose error is the one to report.
        let _ = crate::target::empty(&*self.target, self.target.root());
        if let Err(error) = std::fs::remove_dir(&self.path) {
            leftovers::note(self.path.display(), &error);
        }
    }
}

/// A directory of any file system.
pub struct PathSide {
    label: String,
    program: PathBuf,
    home: Option<Home>,
}

impl fmt::Debug for PathSide {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("PathSide")
            .field("label", &self.label)
            .finish_non_exhaustive()
    }
}

impl PathSide {
    /// A side in this directory; `program` runs the tasks.
    ///
    /// # Errors
    ///
    /// If the directory does not exist or is not writable.
    pub fn new(directory: &Path, program: PathBuf) -> Result<Self> {
        let directory = directory
            .canonicalize()
            .with_context(|| directory.display().to_string())?;
        let label = table::type_of(&directory).unwrap_or_else(|| "path".to_owned());
        let home = Some(Home::new(&directory)?);
        Ok(Self {
            label,
            program,
            home,
        })
    }

    fn home(&self) -> Result<&Home> {
        self.home.as_ref().context("it is closed")
    }
}

impl Side for PathSide {
    fn label(&self) -> String {
        self.label.clone()
    }

    fn crew(&mut self, tasks: &Tasks) -> Result<Crew> {
        self.home()?.crew(&self.program, tasks)
    }

    fn clean_up(&mut self, tasks: &Tasks) -> Result<()> {
        self.home()?.clean_up(tasks)
    }

    fn examine(&mut self, tasks: &Tasks) -> Result<Option<Fragmentation>> {
        let home = self.home()?;
        home.target.sync_all()?;
        let found = fragmentation::by_filefrag(&home.path)?;
        home.clean_up(tasks)?;
        Ok(found)
    }

    fn close(&mut self) -> Result<Verdict> {
        self.home = None;
        Ok(Verdict::Unchecked(
            "a path is not ours to unmount".to_owned(),
        ))
    }
}
