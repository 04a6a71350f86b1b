//! Creates the sides of an experiment from the user's request.

mod competitor;
mod memory;
mod setting;

use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use pext4_block::{Access, FileDevice};
use pext4_fs::MountOptions;

use crate::experiment::Entrant;
use crate::leftovers;
use crate::run::Interrupt;
use crate::sides::{
    ApartSide, ControlSide, ImagePlan, Kind, LibrarySide, MountedSide, PathSide, Pext4Options,
    SLOW, Side, Storage,
};
use crate::workloads::{Plan, Workload};

pub use competitor::Competitor;
pub use setting::{Setting, ablation, settings};

/// How long to wait for another process to close the image.
const IMAGE_WAIT: Duration = Duration::from_secs(2);

/// The device of the library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// Memory.
    Ram,
    /// Memory, with the delays of a disk.
    Slow,
    /// An image; if the file does not exist, it is created for the run and removed afterwards.
    Image(PathBuf),
}

impl DeviceKind {
    /// Parses `ram`, `slow`, or a path.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        match text {
            "ram" => Self::Ram,
            "slow" => Self::Slow,
            path => Self::Image(PathBuf::from(path)),
        }
    }
}

/// The part of the user's request that determines the sides.
pub struct Request {
    /// The workload that every task runs.
    pub workload: &'static dyn Workload,
    /// The plan with the largest number of tasks of the run.
    pub plan: Plan,
    /// The device of the library.
    pub device: DeviceKind,
    /// In place of the device: a directory.
    pub path: Option<PathBuf>,
    /// In place of the device: competitors.
    pub compare: Vec<Competitor>,
    /// Settings of the library and of `pext4 mount`.
    pub settings: Vec<Setting>,
    /// The parameters of new images.
    pub storage: Storage,
    /// Longest time between commits.
    pub commit: Duration,
    /// Bytes of the metadata cache of the library and of `pext4 mount`.
    pub cache: u64,
    /// Whether a control runs too.
    pub control: bool,
    /// Whether images are checked at the end.
    pub checked: bool,
    /// The program that runs tasks on a path, with the arguments `lab worker`.
    pub program: PathBuf,
    /// Interrupts the making of images and the waits for servers.
    pub interrupt: Interrupt,
}

impl fmt::Debug for Request {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Request")
            .field("plan", &self.plan)
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

/// The sides, and notes about those that are not possible.
pub struct Field {
    /// In the order of the tables.
    pub entrants: Vec<Entrant>,
    /// One line for each competitor that was left out.
    pub notes: Vec<String>,
    /// Removed when the run is over.
    pub image: Option<TemporaryImage>,
}

impl fmt::Debug for Field {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Field")
            .field("notes", &self.notes)
            .finish_non_exhaustive()
    }
}

/// An image that was created for the run; dropping it removes the file.
#[derive(Debug)]
pub struct TemporaryImage(PathBuf);

impl TemporaryImage {
    /// Creates an empty file; fails if the name exists, even as a dangling link.
    fn new(path: &Path) -> Result<Self> {
        File::create_new(path).with_context(|| path.display().to_string())?;
        Ok(Self(path.to_owned()))
    }
}

impl Drop for TemporaryImage {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.0) {
            leftovers::note(self.0.display(), &error);
        }
    }
}

impl Request {
    /// Prepares the sides.
    ///
    /// # Errors
    ///
    /// If a requested side is not possible, or the images do not fit into memory.
    pub fn field(&self) -> Result<Field> {
        let mut field = Field {
            entrants: Vec::new(),
            notes: self.inode_size_warning().into_iter().collect(),
            image: None,
        };
        self.check_memory()?;
        if let Some(path) = &self.path {
            field.entrants.push(self.on_path(path)?);
        } else if self.compare.is_empty() {
            self.in_process(&mut field)?;
        } else {
            self.competitors(&mut field)?;
        }
        if self.control {
            let side = Box::new(ControlSide::new()?);
            let (kind, scaling) = ("control".to_owned(), None);
            field.entrants.push(Entrant {
                side,
                kind,
                scaling,
            });
        }
        Ok(field)
    }

    /// Whether the run creates its images and does not use an existing one.
    fn makes_images(&self) -> bool {
        match (&self.path, &self.device) {
            (Some(_), _) => false,
            (None, DeviceKind::Image(path)) => !path.exists(),
            (None, _) => true,
        }
    }

    /// Bytes in an inode of the images that the run creates, if it creates some; valid before it
    /// does.
    ///
    /// # Errors
    ///
    /// If such images cannot be created.
    pub fn inode_size(&self) -> Result<Option<u16>> {
        if !self.makes_images() {
            return Ok(None);
        }
        Ok(Some(self.image_plan()?.inode_size))
    }

    /// Bytes of pext4's metadata cache, if pext4 runs here.
    #[must_use]
    pub fn pext4_cache(&self) -> Option<u64> {
        let runs = self.path.is_none()
            && (self.compare.is_empty() || self.compare.iter().any(|one| one.is_pext4()));
        runs.then_some(self.cache)
    }

    /// A note if the workload measures attribute blocks but the inodes may have room for the
    /// attributes.
    fn inode_size_warning(&self) -> Option<String> {
        let makes_images = self.makes_images();
        let is_small = self.storage.inode_size.is_none_or(|size| size <= 128);
        let matters = self.workload.needs(&self.plan).small_inodes;
        let name = self.workload.name();
        match (matters, makes_images) {
            (false, _) => None,
            (true, true) if is_small => None,
            (true, true) => Some(format!(
                "{name}: inodes of more than 128 bytes have room for its attributes, and nothing is \
                 shared then"
            )),
            // Nothing on the path tells how large its inodes are.
            (true, false) => Some(format!(
                "{name}: if inodes there have more than 128 bytes, they have room for its \
                 attributes, and nothing is shared"
            )),
        }
    }

    fn on_path(&self, path: &Path) -> Result<Entrant> {
        let side = PathSide::new(path, self.program.clone())?;
        let kind = side.label();
        Ok(Entrant {
            side: Box::new(side),
            kind,
            scaling: None,
        })
    }

    fn in_process(&self, field: &mut Field) -> Result<()> {
        match &self.device {
            DeviceKind::Ram | DeviceKind::Slow => {
                for setting in &self.settings {
                    field
                        .entrants
                        .push(self.library(setting, setting.name.clone())?);
                }
                Ok(())
            }
            DeviceKind::Image(path) => self.on_image(path, field),
        }
    }

    fn options(&self, setting: &Setting) -> MountOptions {
        MountOptions {
            commit_interval: self.commit,
            cache_size: self.cache,
            scaling: setting.scaling,
            ..MountOptions::default()
        }
    }

    fn image_plan(&self) -> Result<ImagePlan> {
        ImagePlan::new(self.workload, &self.plan, &self.storage)
    }

    fn library(&self, setting: &Setting, label: String) -> Result<Entrant> {
        let side = self.in_memory(setting, label)?;
        Ok(entrant(side, "library", setting))
    }

    /// The library with a volume for each of the largest number of tasks.
    fn apart(&self, setting: &Setting) -> Result<Entrant> {
        let label = format!("a volume a task, {}", setting.name);
        let volumes = (0..self.plan.tasks).map(|_| self.in_memory(setting, label.clone()));
        let volumes: Result<Vec<_>> = volumes.collect();
        let side = ApartSide::new(label.clone(), volumes?);
        Ok(entrant(side, "apart", setting))
    }

    fn in_memory(&self, setting: &Setting, label: String) -> Result<LibrarySide> {
        let (plan, options) = (self.image_plan()?, self.options(setting));
        let latency = (self.device == DeviceKind::Slow).then_some(SLOW);
        let mut side = LibrarySide::in_memory(label, plan, options, latency, &self.interrupt)?;
        if !self.checked {
            side = side.unchecked();
        }
        Ok(side)
    }

    /// Adds the settings, which take turns on one image.
    fn on_image(&self, path: &Path, field: &mut Field) -> Result<()> {
        let plan = self.image_plan()?;
        if !path.exists() {
            field.image = Some(TemporaryImage::new(path)?);
            plan.make_file(path, &self.interrupt)?;
            field.notes.push(format!(
                "{}: made for this run, and removed",
                path.display()
            ));
        }
        let device = Arc::new(FileDevice::open(path, Access::ReadWrite, IMAGE_WAIT)?);
        for setting in &self.settings {
            let mut side = LibrarySide::on_image(
                setting.name.clone(),
                Arc::clone(&device),
                path.to_owned(),
                self.options(setting),
            );
            if !self.checked {
                side = side.unchecked();
            }
            field.entrants.push(entrant(side, "library", setting));
        }
        Ok(())
    }

    /// Adds the competitors that this machine can mount; it is an error if none is left.
    fn competitors(&self, field: &mut Field) -> Result<()> {
        for competitor in &self.compare {
            match competitor {
                Competitor::Library => {
                    for setting in &self.settings {
                        let label = format!("library {}", setting.name);
                        field.entrants.push(self.library(setting, label)?);
                    }
                }
                Competitor::Apart => {
                    for setting in &self.settings {
                        field.entrants.push(self.apart(setting)?);
                    }
                }
                Competitor::Mounted(kind) => self.mounted(*kind, field)?,
            }
        }
        if field.entrants.is_empty() {
            bail!("nothing is left to compare: {}", field.notes.join("; "));
        }
        Ok(())
    }

    fn mounted(&self, kind: Kind, field: &mut Field) -> Result<()> {
        if kind != Kind::Pext4 {
            return self.mounted_with(kind, None, field);
        }
        let mut settings = self.settings.iter();
        settings.try_for_each(|setting| self.mounted_with(kind, Some(setting), field))
    }

    fn mounted_with(&self, kind: Kind, setting: Option<&Setting>, field: &mut Field) -> Result<()> {
        let (program, plan) = (self.program.clone(), self.image_plan()?);
        let ours = setting.map(|setting| Pext4Options {
            name: setting.name.clone(),
            scaling: setting.words(),
            cache: self.cache,
        });
        let interrupt = self.interrupt.clone();
        match MountedSide::new(kind, program, plan, self.commit, ours, interrupt) {
            Ok(side) => field.entrants.push(self.checked(kind, side, setting)),
            Err(error) => {
                // An interruption is no reason to continue without this competitor.
                self.interrupt.check()?;
                field.notes.push(format!("{kind}: left out: {error:#}"));
            }
        }
        Ok(())
    }

    fn checked(&self, kind: Kind, side: MountedSide, setting: Option<&Setting>) -> Entrant {
        let side = if self.checked { side } else { side.unchecked() };
        Entrant {
            side: Box::new(side),
            kind: kind.name().to_owned(),
            scaling: setting.map(|setting| setting.name.clone()),
        }
    }
}

fn entrant(side: impl Side + 'static, kind: &str, setting: &Setting) -> Entrant {
    Entrant {
        side: Box::new(side),
        kind: kind.to_owned(),
        scaling: Some(setting.name.clone()),
    }
}
