//! From what a person asks for to the sides of an experiment.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use pext4_block::{Access, FileDevice};
use pext4_fs::MountOptions;
use pext4_fs::options::{SWITCHES, Scaling};

use crate::experiment::Entrant;
use crate::run::Interrupt;
use crate::sides::{
    ApartSide, ControlSide, ImagePlan, Kind, LibrarySide, MountedSide, Ours, PathSide, Side,
    Storage,
};
use crate::workloads::{Plan, Workload};

/// How long an image may be in use by somebody else.
const IMAGE_WAIT: Duration = Duration::from_secs(2);

/// What the library works on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// Memory.
    Ram,
    /// Memory, with the delays of a disk.
    Slow,
    /// An image; made for the run and removed after it if there is none.
    Image(PathBuf),
}

impl DeviceKind {
    /// Reads `ram`, `slow`, or a path.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        match text {
            "ram" => Self::Ram,
            "slow" => Self::Slow,
            path => Self::Image(PathBuf::from(path)),
        }
    }
}

/// A competitor of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Competitor {
    /// A mount.
    Mounted(Kind),
    /// The library in this process, on a device in memory.
    Library,
    /// The same with a volume for every task: a control.
    Apart,
}

impl Competitor {
    /// Reads a name.
    ///
    /// # Errors
    /// There is none such; the text lists what there is.
    pub fn parse(text: &str) -> Result<Self> {
        if text == "library" {
            return Ok(Self::Library);
        }
        if text == "apart" {
            return Ok(Self::Apart);
        }
        let kind = Kind::ALL.iter().find(|kind| kind.name() == text);
        let kind = kind.with_context(|| {
            format!(
                "there is no competitor `{text}`; there are kernel, fuse2fs, pext4, library, apart"
            )
        })?;
        Ok(Self::Mounted(*kind))
    }

    /// By what it is called.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Mounted(kind) => kind.name(),
            Self::Library => "library",
            Self::Apart => "apart",
        }
    }

    /// Whether it is pext4, which has settings and a cache that can be chosen.
    #[must_use]
    pub fn is_ours(self) -> bool {
        !matches!(self, Self::Mounted(Kind::Kernel | Kind::Fuse2fs))
    }
}

/// A setting of the mechanisms and what it is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// As it was given.
    pub name: String,
    /// What it means.
    pub scaling: Scaling,
}

impl Setting {
    /// What it means, for `-o scaling=` of a mount. A name may not say what it changes, as in an ablation.
    #[must_use]
    pub fn words(&self) -> String {
        self.scaling.to_string().replace(',', ":")
    }
}

/// Reads a list of settings: `base,seeds,full` are three, `full,-try-lock` is one. A word that
/// names a setting begins one, any other changes the one before it.
///
/// # Errors
/// A word is not understood; the text lists what there is.
pub fn settings(text: &str) -> Result<Vec<Setting>> {
    let mut groups: Vec<String> = Vec::new();
    for word in text
        .split(',')
        .map(str::trim)
        .filter(|word| !word.is_empty())
    {
        match groups.last_mut() {
            Some(last) if Scaling::named(word).is_none() => {
                last.push(',');
                last.push_str(word);
            }
            _ => groups.push(word.to_owned()),
        }
    }
    if groups.is_empty() {
        groups.push("full".to_owned());
    }
    let parsed = groups.into_iter().map(|name| {
        let scaling = Scaling::parse(&name)?;
        Ok(Setting { name, scaling })
    });
    parsed.collect()
}

/// `full`, and `full` without each mechanism in turn. A mechanism whose value in `full` is that in
/// `base` is left out: there is nothing to take away.
///
/// # Errors
/// None that settings which exist can give.
pub fn ablation() -> Result<Vec<Setting>> {
    let mut all = settings("full")?;
    for switch in &SWITCHES {
        let name = format!("-{}", switch.name);
        let scaling = Scaling::parse(&format!("full,{name}"))?;
        if scaling != Scaling::FULL {
            all.push(Setting { name, scaling });
        }
    }
    Ok(all)
}

/// Everything that decides on sides.
pub struct Request {
    /// What tasks do.
    pub workload: &'static dyn Workload,
    /// With the most tasks of the run.
    pub plan: Plan,
    /// What the library works on.
    pub device: DeviceKind,
    /// A directory, instead.
    pub path: Option<PathBuf>,
    /// Competitors, instead.
    pub compare: Vec<Competitor>,
    /// Settings of the library, and of `pext4 mount`.
    pub settings: Vec<Setting>,
    /// What images are made like.
    pub storage: Storage,
    /// Longest time between commits.
    pub commit: Duration,
    /// Bytes of metadata that the library and `pext4 mount` keep in memory.
    pub cache: u64,
    /// Whether a control stands beside.
    pub control: bool,
    /// Whether images are checked at the end.
    pub checked: bool,
    /// What tasks on a path are started from, with `lab worker`.
    pub program: PathBuf,
    /// Ends the waiting for servers.
    pub interrupt: Interrupt,
}

/// The sides, and what to say about those that could not be.
pub struct Field {
    /// In the order of the tables.
    pub entrants: Vec<Entrant>,
    /// A line for each that was left out.
    pub notes: Vec<String>,
    /// Goes when the run is over.
    pub image: Option<OwnImage>,
}

/// An image that was made for the run.
pub struct OwnImage(PathBuf);

impl OwnImage {
    /// An empty file; nothing else may have the name, not even a link that leads nowhere.
    fn new(path: &Path) -> Result<Self> {
        File::create_new(path).with_context(|| path.display().to_string())?;
        Ok(Self(path.to_owned()))
    }
}

impl Drop for OwnImage {
    fn drop(&mut self) {
        // Somebody may have been faster.
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Request {
    /// Makes the sides ready.
    ///
    /// # Errors
    /// One that was asked for cannot be.
    pub fn field(&self) -> Result<Field> {
        let mut field = Field {
            entrants: Vec::new(),
            notes: self.doubt_about_inodes().into_iter().collect(),
            image: None,
        };
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

    /// Whether the run makes its images, and does not find one.
    fn makes_images(&self) -> bool {
        match (&self.path, &self.device) {
            (Some(_), _) => false,
            (None, DeviceKind::Image(path)) => !path.exists(),
            (None, _) => true,
        }
    }

    /// Bytes in an inode of the images that the run makes, if it makes some; asked for before it does.
    ///
    /// # Errors
    /// They cannot be like that.
    pub fn inode_size(&self) -> Result<Option<u16>> {
        if !self.makes_images() {
            return Ok(None);
        }
        Ok(Some(self.image_plan()?.inode_size))
    }

    /// Bytes of metadata that pext4 keeps in memory, if it runs here.
    #[must_use]
    pub fn cache_of_ours(&self) -> Option<u64> {
        let runs = self.path.is_none()
            && (self.compare.is_empty() || self.compare.iter().any(|one| one.is_ours()));
        runs.then_some(self.cache)
    }

    /// What to say where the workload is about blocks of attributes and inodes may have room for them.
    fn doubt_about_inodes(&self) -> Option<String> {
        let is_ours = self.makes_images();
        let is_small = self.storage.inode_size.is_none_or(|size| size <= 128);
        let matters = self.workload.needs(&self.plan).small_inodes;
        (matters && !(is_ours && is_small)).then(|| {
            format!(
                "{}: inodes of more than 128 bytes have room for its attributes, and nothing is shared then",
                self.workload.name()
            )
        })
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

    /// The library with a volume for each of the most tasks.
    fn apart(&self, setting: &Setting) -> Result<Entrant> {
        let label = format!("a volume a task, {}", setting.name);
        let volumes = (0..self.plan.tasks).map(|_| self.in_memory(setting, label.clone()));
        let volumes: Result<Vec<_>> = volumes.collect();
        let side = ApartSide::new(label.clone(), volumes?);
        Ok(entrant(side, "apart", setting))
    }

    fn in_memory(&self, setting: &Setting, label: String) -> Result<LibrarySide> {
        let (plan, options) = (self.image_plan()?, self.options(setting));
        let slow = self.device == DeviceKind::Slow;
        let mut side = LibrarySide::in_memory(label, plan, options, slow)?;
        if !self.checked {
            side = side.unchecked();
        }
        Ok(side)
    }

    /// All settings take turns on one image.
    fn on_image(&self, path: &Path, field: &mut Field) -> Result<()> {
        let plan = self.image_plan()?;
        if !path.exists() {
            field.image = Some(OwnImage::new(path)?);
            plan.make_file(path)?;
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
                plan.clone(),
                self.options(setting),
            );
            if !self.checked {
                side = side.unchecked();
            }
            field.entrants.push(entrant(side, "library", setting));
        }
        Ok(())
    }

    /// Those that this machine lets us mount; it is an error if none is left.
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
        let ours = setting.map(|setting| Ours {
            name: setting.name.clone(),
            scaling: setting.words(),
            cache: self.cache,
        });
        let interrupt = self.interrupt.clone();
        match MountedSide::new(kind, program, plan, self.commit, ours, interrupt) {
            Ok(side) => field.entrants.push(self.checked(kind, side, setting)),
            Err(error) => {
                // That somebody wants to stop is no reason to go on without this one.
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

#[cfg(test)]
mod tests {
    use super::{Competitor, Scaling, ablation, settings};

    fn names(text: &str) -> Vec<String> {
        settings(text)
            .unwrap()
            .into_iter()
            .map(|setting| setting.name)
            .collect()
    }

    #[test]
    fn a_named_word_begins_a_setting_and_others_change_it() {
        assert_eq!(names("base,seeds,full"), ["base", "seeds", "full"]);
        assert_eq!(names("full,-try-lock"), ["full,-try-lock"]);
        assert_eq!(
            names("base, full,-try-lock,seeds"),
            ["base", "full,-try-lock", "seeds"]
        );
        assert_eq!(names(""), ["full"]);
        let without = &settings("full,-try-lock").unwrap()[0];
        assert_eq!(without.scaling.busy_groups, Scaling::BASE.busy_groups);
    }

    #[test]
    fn what_is_unknown_lists_what_there_is() {
        let told = settings("full,-fast-lock").unwrap_err().to_string();
        assert!(
            told.contains("try-lock") && told.contains("seeds"),
            "{told}"
        );
        let told = Competitor::parse("xfs").unwrap_err().to_string();
        assert!(told.contains("fuse2fs"), "{told}");
    }

    #[test]
    fn an_ablation_takes_every_mechanism_away_once() {
        let all = ablation().unwrap();
        assert_eq!(all[0].scaling, Scaling::FULL);
        assert!(all.len() > 8);
        for setting in &all[1..] {
            assert_ne!(setting.scaling, Scaling::FULL, "{}", setting.name);
        }
    }

    #[test]
    fn a_mount_runs_with_what_the_library_runs_with() {
        let mut all = ablation().unwrap();
        all.extend(settings("base,seeds,full,base,+try-lock").unwrap());
        for setting in all {
            let words = setting.words();
            assert!(
                words.starts_with(|first: char| first.is_alphabetic()),
                "{words}"
            );
            assert_eq!(Scaling::parse(&words).unwrap(), setting.scaling, "{words}");
            assert!(!words.contains(','), "-o divides there: {words}");
        }
    }
}
