//! An image of ours in memory, mounted by the kernel, by fuse2fs or by pext4.

use std::fmt;
use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use pext4_block::{Access, FileDevice};
use tempfile::TempDir;

use super::check::{e2fsck, tool};
use super::image::scratch;
use super::path::Home;
use super::{ImagePlan, Side, Verdict, table};
use crate::fragmentation;
use crate::results::Fragmentation;
use crate::run::{Crew, Tasks};

/// How long a server may take to answer, and to write its image home.
const PATIENCE: Duration = Duration::from_secs(120);
const GLANCE: Duration = Duration::from_millis(10);

/// Who mounts.
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
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Kernel, Self::Fuse2fs, Self::Pext4];

    /// By what it is called.
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

/// A mounted image of ours.
pub struct MountedSide {
    label: String,
    kind: Kind,
    program: PathBuf,
    plan: ImagePlan,
    commit: Duration,
    /// Words for `pext4 mount -o`.
    scaling: Option<String>,
    folder: TempDir,
    /// Seen from inside; goes before the mount.
    home: Option<Home>,
    mount: Option<Mount>,
    checked: bool,
}

/// A mount, undone when it is dropped.
struct Mount {
    directory: PathBuf,
    server: Option<Child>,
}

impl MountedSide {
    /// Makes the image and mounts it, so that what is not possible here shows before anything runs.
    ///
    /// # Errors
    /// The machine does not let us mount like that.
    pub fn new(
        kind: Kind,
        program: PathBuf,
        plan: ImagePlan,
        commit: Duration,
        scaling: Option<(String, String)>,
    ) -> Result<Self> {
        let folder = scratch()?;
        std::fs::create_dir(folder.path().join("mount"))?;
        let (label, scaling) = match scaling {
            Some((name, words)) => (format!("{kind} {name}"), Some(words)),
            None => (kind.name().to_owned(), None),
        };
        let mut side = Self {
            label,
            kind,
            program,
            plan,
            commit,
            scaling,
            folder,
            home: None,
            mount: None,
            checked: true,
        };
        side.make()?;
        Ok(side)
    }

    /// Leaves the check out.
    #[must_use]
    pub fn unchecked(mut self) -> Self {
        self.checked = false;
        self
    }

    fn image(&self) -> PathBuf {
        self.folder.path().join("image")
    }

    /// A new image, mounted.
    fn make(&mut self) -> Result<()> {
        self.plan.make_file(&self.image())?;
        let directory = self.folder.path().join("mount");
        let mut command = self.command(&directory);
        let mount = match self.kind {
            Kind::Kernel => Mount::by_the_kernel(&mut command, directory)?,
            Kind::Fuse2fs | Kind::Pext4 => Mount::by_a_server(&mut command, directory)?,
        };
        self.home = Some(Home::new(&mount.directory)?);
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
                if let Some(words) = &self.scaling {
                    command.args(["-o", &format!("scaling={}", words.replace(',', ":"))]);
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
            Some(mut mount) => mount
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

    fn settle(&mut self, tasks: &Tasks) -> Result<()> {
        self.home()?.settle(tasks)
    }

    fn examine(&mut self, _tasks: &Tasks) -> Result<Option<Fragmentation>> {
        if let Some(home) = self.home.take() {
            home.leave();
        }
        self.unmount()?;
        let device = FileDevice::open(&self.image(), Access::ReadOnly, PATIENCE)?;
        let found = fragmentation::of_image(std::sync::Arc::new(device), None)?;
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
        let _ = self.unmount();
    }
}

/// What a server said last, or what may be the matter if it said nothing.
fn why_it_ended(name: &str, status: ExitStatus, words: &mut File) -> String {
    let mut said = String::new();
    // Words that cannot be read are none.
    let _ = words
        .rewind()
        .and_then(|()| words.read_to_string(&mut said));
    match said.lines().rfind(|line| !line.trim().is_empty()) {
        Some(line) => format!("{name} ended with {status}: {line}"),
        None => format!("{name} ended with {status}; is FUSE permitted here?"),
    }
}

impl Mount {
    fn by_the_kernel(command: &mut Command, directory: PathBuf) -> Result<Self> {
        let told = command.output().context("cannot run mount")?;
        if !told.status.success() {
            let words = String::from_utf8_lossy(&told.stderr);
            bail!("{}", words.lines().next().unwrap_or("mount failed"));
        }
        Ok(Self {
            directory,
            server: None,
        })
    }

    /// Starts a server that stays in the foreground and waits until the directory is its mount.
    /// It is in a group of its own: the terminal's Ctrl-C is for us, who end it in order.
    fn by_a_server(command: &mut Command, directory: PathBuf) -> Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        let mut words = tempfile::tempfile()?;
        let server = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(words.try_clone()?)
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot run {name}"))?;
        let mut mount = Self {
            directory,
            server: Some(server),
        };
        let start = Instant::now();
        while !table::is_mounted(&mount.directory) {
            if let Some(status) = mount.ended()? {
                mount.server = None;
                bail!("{}", why_it_ended(&name, status, &mut words));
            }
            if start.elapsed() > PATIENCE {
                bail!("{name} does not mount");
            }
            std::thread::sleep(GLANCE);
        }
        Ok(mount)
    }

    fn ended(&mut self) -> Result<Option<ExitStatus>> {
        match &mut self.server {
            Some(server) => Ok(server.try_wait()?),
            None => Ok(None),
        }
    }

    /// Unmounts and waits until the server has written its image home.
    fn end(&mut self) -> Result<()> {
        if table::is_mounted(&self.directory) {
            let with_rights = tool("umount").arg(&self.directory).output()?;
            if !with_rights.status.success() {
                let told = tool("fusermount3").arg("-u").arg(&self.directory).output();
                if !told.is_ok_and(|told| told.status.success()) {
                    bail!("{}", String::from_utf8_lossy(&with_rights.stderr).trim());
                }
            }
        }
        let start = Instant::now();
        while self.server.is_some() {
            if let Some(status) = self.ended()? {
                self.server = None;
                if !status.success() {
                    bail!("its server ended with {status}");
                }
            }
            if start.elapsed() > PATIENCE {
                bail!("its server does not end");
            }
            std::thread::sleep(GLANCE);
        }
        Ok(())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = self.end();
        if let Some(server) = &mut self.server {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}
