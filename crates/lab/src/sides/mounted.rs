//! A new image in memory, mounted by the kernel, by fuse2fs or by pext4.

mod mount;

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use pext4_block::{Access, FileDevice};
use tempfile::TempDir;

use super::check::{e2fsck, tool};
use super::image::scratch;
use super::path::Home;
use super::{ImagePlan, Side, Verdict};
use crate::fragmentation;
use crate::leftovers;
use crate::results::Fragmentation;
use crate::run::{Crew, Interrupt, Tasks};
use mount::{Mount, SERVER_TIMEOUT};

/// The implementation that mounts the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The kernel's ext4 on a loop device.
    Kernel,
    /// fuse2fs of e2fsprogs.
    Fuse2fs,
    /// `pext4 mount`.
    Pext4,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Kernel, Self::Fuse2fs, Self::Pext4];

    /// Its name on the command line and in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Fuse2fs => "fuse2fs",
            Self::Pext4 => "pext4",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// Options that only `pext4 mount` has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pext4Options {
    /// The name of the setting in tables.
    pub name: String,
    /// The value of `-o scaling=`.
    pub scaling: String,
    /// Bytes of its metadata cache.
    pub cache: u64,
}

/// A mounted image.
pub struct MountedSide {
    label: String,
    kind: Kind,
    program: PathBuf,
    plan: ImagePlan,
    commit: Duration,
    /// The options of a mount by pext4; `None` for other kinds.
    ours: Option<Pext4Options>,
    folder: TempDir,
    /// The directory of the tasks inside the mount; dropped before the mount.
    home: Option<Home>,
    mount: Option<Mount>,
    checked: bool,
    interrupt: Interrupt,
}

impl fmt::Debug for MountedSide {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("MountedSide")
            .field("label", &self.label)
            .finish_non_exhaustive()
    }
}

impl MountedSide {
    /// Creates the image and mounts it, so that an impossible side fails before anything runs.
    ///
    /// # Errors
    ///
    /// If the machine does not permit the mount, or the run is interrupted.
    pub fn new(
        kind: Kind,
        program: PathBuf,
        plan: ImagePlan,
        commit: Duration,
        ours: Option<Pext4Options>,
        interrupt: Interrupt,
    ) -> Result<Self> {
        let folder = scratch()?;
        std::fs::create_dir(folder.path().join("mount"))?;
        let label = match &ours {
            Some(ours) => format!("{kind} {}", ours.name),
            None => kind.name().to_owned(),
        };
        let mut side = Self {
            label,
            kind,
            program,
            plan,
            commit,
            ours,
            folder,
            home: None,
            mount: None,
            checked: true,
            interrupt,
        };
        side.make()?;
        Ok(side)
    }

    /// Skips the check at the end.
    #[must_use]
    pub fn unchecked(mut self) -> Self {
        self.checked = false;
        self
    }

    fn image(&self) -> PathBuf {
        self.folder.path().join("image")
    }

    /// Creates and mounts a new image; fails after an interruption.
    fn make(&mut self) -> Result<()> {
        self.interrupt.check()?;
        self.plan.make_file(&self.image(), &self.interrupt)?;
        let directory = self.folder.path().join("mount");
        let mut command = self.command(&directory);
        let interrupt = self.interrupt.clone();
        let mount = match self.kind {
            Kind::Kernel => Mount::with_command(&mut command, directory, interrupt)?,
            Kind::Fuse2fs | Kind::Pext4 => Mount::with_server(&mut command, directory, interrupt)?,
        };
        self.home = Some(Home::new(mount.directory())?);
        self.mount = Some(mount);
        Ok(())
    }

    fn command(&self, directory: &Path) -> Command {
        let commit = self.commit.as_secs().max(1);
        let mut command = match self.kind {
            Kind::Kernel => {
                let mut command = tool("mount");
                command.args(["-t", "ext4", "-o", &format!("loop,commit={commit}")]);
                command
            }
            Kind::Fuse2fs => {
                let mut command = tool("fuse2fs");
                command.args(["-f", "-o", "fakeroot"]);
                command
            }
            Kind::Pext4 => {
                let mut command = Command::new(&self.program);
                command.args(["mount", "-f", "-o", &format!("commit={commit}")]);
                if let Some(ours) = &self.ours {
                    command.args(["-o", &format!("scaling={}", ours.scaling)]);
                    command.args(["--cache-size", &ours.cache.to_string()]);
                }
                command
            }
        };
        command.arg(self.image()).arg(directory);
        command
    }

    fn unmount(&mut self) -> Result<()> {
        self.home = None;
        match self.mount.take() {
            Some(mount) => mount
                .end()
                .with_context(|| format!("unmounting {}", self.kind)),
            None => Ok(()),
        }
    }

    fn judged(&self) -> Result<Verdict> {
        if self.checked {
            e2fsck(&self.image())
        } else {
            Ok(Verdict::Unchecked("by request".to_owned()))
        }
    }

    fn home(&self) -> Result<&Home> {
        self.home.as_ref().context("it is not mounted")
    }
}

impl Side for MountedSide {
    fn label(&self) -> String {
        self.label.clone()
    }

    fn crew(&mut self, tasks: &Tasks) -> Result<Crew> {
        self.home()?.crew(&self.program, tasks)
    }

    fn clean_up(&mut self, tasks: &Tasks) -> Result<()> {
        self.home()?.clean_up(tasks)
    }

    fn examine(&mut self, _tasks: &Tasks) -> Result<Option<Fragmentation>> {
        if let Some(home) = self.home.take() {
            home.leave();
        }
        self.unmount()?;
        let device = FileDevice::open(self.image(), Access::ReadOnly, SERVER_TIMEOUT)?;
        let found = fragmentation::of_image(Arc::new(device), Some(&Home::name()))?;
        self.judged()?;
        std::fs::remove_file(self.image())?;
        self.make()?;
        Ok(Some(found))
    }

    fn close(&mut self) -> Result<Verdict> {
        self.unmount()?;
        self.judged()
    }
}

impl Drop for MountedSide {
    fn drop(&mut self) {
        // If the side was not closed, the content of the image is not needed. The mount is dropped
        // before the folder that contains it.
        if let Some(home) = self.home.take() {
            home.leave();
        }
        self.mount = None;
        // The folder would remove itself, without a word if it cannot.
        if let Err(error) = std::fs::remove_dir_all(self.folder.path()) {
            leftovers::note(self.folder.path().display(), &error);
        }
    }
}
