//! The library in this process, on a device in memory, a slow one, or an image.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use pext4_block::{Device, FileDevice, Latency, RamDevice, SlowDevice};
use pext4_fs::statistics::Report;
use pext4_fs::{MountOptions, Volume};

use super::check::{e2fsck, e2fsck_of_memory};
use super::{ImagePlan, Side, Verdict};
use crate::fill::make_ready;
use crate::fragmentation;
use crate::leftovers;
use crate::results::Fragmentation;
use crate::run::{Crew, Interrupt, Tasks};
use crate::target::{HOME, Library, Target};

/// The latency of the slow device: an SSD with a gigabyte a second.
pub const SLOW: Latency = Latency {
    read: Duration::from_micros(80),
    write: Duration::from_micros(20),
    flush: Duration::from_micros(500),
    mebibyte: Duration::from_micros(1000),
};

/// The device of the volume.
#[derive(Clone)]
enum Bytes {
    /// Memory.
    Memory {
        device: Arc<RamDevice>,
        /// How it was made, and is made anew.
        plan: ImagePlan,
        /// The delays of calls, if there are any.
        latency: Option<Latency>,
    },
    /// An image in a file, which sides share, and which whoever made it removes.
    Image {
        device: Arc<FileDevice>,
        path: PathBuf,
    },
}

/// A volume in this process.
pub struct LibrarySide {
    label: String,
    bytes: Bytes,
    options: MountOptions,
    open: Option<Arc<Library>>,
    /// The counters of the volume that was closed last.
    last: Option<Report>,
    checked: bool,
}

impl fmt::Debug for LibrarySide {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("LibrarySide")
            .field("label", &self.label)
            .finish_non_exhaustive()
    }
}

impl LibrarySide {
    /// A volume on a device in memory, whose calls take `latency` longer.
    ///
    /// # Errors
    ///
    /// If the file system cannot be created, or the run is interrupted.
    pub fn in_memory(
        label: String,
        plan: ImagePlan,
        options: MountOptions,
        latency: Option<Latency>,
        interrupt: &Interrupt,
    ) -> Result<Self> {
        let device = Arc::new(RamDevice::new(plan.size));
        plan.make(&*device, interrupt)?;
        let bytes = Bytes::Memory {
            device,
            plan,
            latency,
        };
        Ok(Self {
            label,
            bytes,
            options,
            open: None,
            last: None,
            checked: true,
        })
    }

    /// A volume on an existing image, which other sides may share.
    #[must_use]
    pub fn on_image(
        label: String,
        device: Arc<FileDevice>,
        path: PathBuf,
        options: MountOptions,
    ) -> Self {
        let bytes = Bytes::Image { device, path };
        Self {
            label,
            bytes,
            options,
            open: None,
            last: None,
            checked: true,
        }
    }

    /// Skips the check at the end.
    #[must_use]
    pub fn unchecked(mut self) -> Self {
        self.checked = false;
        self
    }

    fn device(&self) -> Arc<dyn Device> {
        match &self.bytes {
            Bytes::Memory {
                device, latency, ..
            } => {
                let memory = Arc::clone(device) as Arc<dyn Device>;
                match latency {
                    Some(latency) => Arc::new(SlowDevice::new(memory, *latency)),
                    None => memory,
                }
            }
            Bytes::Image { device, .. } => Arc::clone(device) as Arc<dyn Device>,
        }
    }

    fn opened(&mut self) -> Result<Arc<Library>> {
        if let Some(open) = &self.open {
            return Ok(Arc::clone(open));
        }
        let volume = Volume::open(self.device(), self.options.clone());
        let volume = match &self.bytes {
            Bytes::Memory { .. } => volume?,
            Bytes::Image { path, .. } => volume.with_context(|| path.display().to_string())?,
        };
        let library = Arc::new(Library::new(volume)?);
        self.open = Some(Arc::clone(&library));
        Ok(library)
    }

    /// Opens the volume unless it is open, and creates what the tasks share.
    pub(super) fn prepared(&mut self, tasks: &Tasks) -> Result<Arc<dyn Target>> {
        let library = self.opened()?;
        make_ready(&*library, tasks.workload, &tasks.plan)?;
        Ok(library)
    }

    /// Closes the volume, if it is open, by one of the ways that a library has.
    fn shut(&mut self, close: fn(Library) -> Result<()>) -> Result<()> {
        let Some(open) = self.open.take() else {
            return Ok(());
        };
        let library = Arc::into_inner(open).context("a task still holds the volume")?;
        self.last = Some(library.volume().report());
        close(library)
    }

    fn judged(&self) -> Result<Verdict> {
        if !self.checked {
            return Ok(Verdict::Unchecked("by request".to_owned()));
        }
        match &self.bytes {
            Bytes::Memory { device, .. } => e2fsck_of_memory(device),
            Bytes::Image { path, .. } => e2fsck(path),
        }
    }
}

impl Side for LibrarySide {
    fn label(&self) -> String {
        self.label.clone()
    }

    fn crew(&mut self, tasks: &Tasks) -> Result<Crew> {
        let target = self.prepared(tasks)?;
        Crew::of_threads(&[target], tasks)
    }

    fn clean_up(&mut self, tasks: &Tasks) -> Result<()> {
        let library = self.opened()?;
        tasks.workload.clean(&*library)?;
        library.volume().sync()?;
        // Otherwise a device in memory soon takes as much of it as it is large.
        if let Bytes::Memory { device, .. } = &self.bytes
            && tasks.workload.needs(&tasks.plan).moves_content
        {
            library.volume().trim(0, device.size(), 0)?;
        }
        drop(library);
        // Another side may need the image.
        if matches!(self.bytes, Bytes::Image { .. }) {
            self.shut(Library::remove_and_close)?;
        }
        Ok(())
    }

    fn examine(&mut self, tasks: &Tasks) -> Result<Option<Fragmentation>> {
        self.shut(Library::close)?;
        let found = fragmentation::of_image(self.device(), Some(HOME))?;
        if matches!(self.bytes, Bytes::Memory { .. }) {
            self.judged()?;
        }
        if let Bytes::Memory { device, plan, .. } = &mut self.bytes {
            let new = RamDevice::new(device.size());
            plan.make(&new, &tasks.interrupt)?;
            *device = Arc::new(new);
        } else {
            let volume = Volume::open(self.device(), self.options.clone())?;
            self.open = Some(Arc::new(Library::reopen(volume)?));
            self.clean_up(tasks)?;
        }
        Ok(Some(found))
    }

    fn report(&self) -> Option<Report> {
        let open = self.open.as_ref();
        open.map(|open| open.volume().report())
            .or_else(|| self.last.clone())
    }

    fn close(&mut self) -> Result<Verdict> {
        self.shut(Library::remove_and_close)?;
        self.judged()
    }
}

impl Drop for LibrarySide {
    fn drop(&mut self) {
        // After a failure, the user's image gets its old content back if possible.
        let shut = self.shut(Library::remove_and_close);
        if let (Err(error), Bytes::Image { path, .. }) = (shut, &self.bytes) {
            leftovers::note_why(format_args!("files in {}", path.display()), error);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use pext4_block::Device;
    use pext4_fs::MountOptions;
    use pext4_sync::topology;

    use super::{Bytes, LibrarySide};
    use crate::run::{Interrupt, Tasks};
    use crate::sides::{ImagePlan, Side, Storage};
    use crate::workloads::{Plan, find};

    #[test]
    fn memory_of_content_that_was_replaced_is_given_back() {
        // Blocks with content are set aside for the small files of a shard: on another processor
        // there would be others.
        let _pinned = topology::pin(0);
        let workload = find("aim7-mix").expect("it exists");
        let plan = Plan {
            users: 4,
            ..Plan::default()
        };
        let storage = Storage {
            size: Some(64 << 20),
            ..Storage::default()
        };
        let image = ImagePlan::new(workload, &plan, &storage).expect("it fits");
        // A commit meanwhile would let blocks with content be set aside for small files to come.
        let options = MountOptions {
            commit_interval: Duration::from_secs(3600),
            ..MountOptions::default()
        };
        let interrupt = Interrupt::default();
        let side = LibrarySide::in_memory("full".to_owned(), image, options, None, &interrupt);
        let mut side = side.expect("it can be made");
        let tasks = Tasks {
            workload,
            plan,
            pinned: false,
            interrupt,
        };
        let target = side.prepared(&tasks).expect("it opens");
        let task = workload.task(&*target, &tasks.plan, 0);
        let mut task = task.expect("there is room");
        for _ in 0..2000 {
            task.step(&*target).expect("it works");
        }
        task.finish(&*target).expect("it works");
        drop(target);
        side.clean_up(&tasks).expect("it works");
        let Bytes::Memory { device, .. } = &side.bytes else {
            panic!("it is in memory");
        };
        let mut left = 0;
        let mut block = [0; 4096];
        for at in (0..device.size()).step_by(block.len()) {
            device.read_at(at, &mut block).expect("it is there");
            left += usize::from(block == [7; 4096] || block == [3; 4096]);
        }
        assert_eq!(left, 0, "blocks of users' files");
        side.close().expect("it is sound");
    }
}
