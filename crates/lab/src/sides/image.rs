//! The images that a run creates: size, location and format.

use std::io;
use std::path::Path;

use anyhow::{Context, Result, bail};
use pext4_block::{Device, FileDevice};
use pext4_image::mkfs::{Design, Options};
use tempfile::TempDir;

use crate::run::Interrupt;
use crate::show::{size as shown, tasks};
use crate::workloads::{Needs, Plan, Workload};

const MEBIBYTE: u64 = 1 << 20;
/// Bytes of a block group with blocks of 4 KiB.
const GROUP: u64 = 128 << 20;
/// Groups per task, so that tasks can allocate in groups of their own.
const GROUPS_PER_TASK: u64 = 4;
/// The smallest image that is created unless the user gives a size.
const LEAST: u64 = 8 << 30;
/// The largest image: the descriptors of its groups with 4 KiB blocks then fill the first group.
const MOST: u64 = 256 << 40;
/// Bytes that an empty image has written for each group: a bitmap, and the descriptor with its
/// copies, up to 32 in a large image.
const STRUCTURES_OF_GROUP: u64 = 4096 + 32 * 64;
/// The smallest journal, 1024 blocks.
const MIN_JOURNAL: u64 = 4 << 20;
/// Bytes of the image for each inode unless more inodes are needed; the default of mke2fs.
const BYTES_PER_INODE: u64 = 16 << 10;

/// The parameters of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImagePlan {
    /// Size in bytes.
    pub size: u64,
    /// Number of inodes, if the default is too small.
    pub inodes: Option<u64>,
    /// Bytes in an inode.
    pub inode_size: u16,
    /// Bytes of the journal, if not the default.
    pub journal: Option<u64>,
}

/// The user's wishes for an image; `None` selects a default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Storage {
    /// Size in bytes.
    pub size: Option<u64>,
    /// Bytes in an inode.
    pub inode_size: Option<u16>,
    /// Bytes of the journal.
    pub journal: Option<u64>,
}

impl ImagePlan {
    /// An image with enough room for the workload with the largest number of tasks of a run; all
    /// sides and points of that run use the same one.
    ///
    /// # Errors
    ///
    /// If the given size is too small or too large, or no size is large enough.
    pub fn new(workload: &dyn Workload, plan: &Plan, storage: &Storage) -> Result<Self> {
        let needs = workload.needs(plan);
        let Some(needed) = least_size(&needs).filter(|needed| *needed <= MOST) else {
            bail!(
                "no image is large enough: {} with {} needs too much; choose fewer tasks, or less \
                 a task",
                workload.name(),
                tasks(plan.tasks)
            );
        };
        if let Some(bytes) = storage.journal
            && bytes < MIN_JOURNAL
        {
            let bytes = shown(bytes);
            bail!("a journal of {bytes} is too small; choose a --journal of at least 4M");
        }
        let usual = (u64::from(plan.tasks) * GROUPS_PER_TASK * GROUP)
            .max(LEAST)
            .max(needed.checked_next_multiple_of(GROUP).unwrap_or(needed));
        let size = storage.size.unwrap_or(usual);
        if size > MOST {
            let size = shown(size);
            bail!("an image of {size} is too large; choose a smaller --size");
        }
        if size < needed {
            bail!(
                "an image of {} is too small: {} with {} needs {}; choose a larger --size, fewer \
                 tasks, or less a task",
                shown(size),
                workload.name(),
                tasks(plan.tasks),
                // Rounded up: an image of the size that is shown is large enough.
                shown(needed.next_multiple_of(MEBIBYTE))
            );
        }
        let small = if needs.small_inodes { 128 } else { 256 };
        let wanted = needs.inodes + needs.inodes / 4 + 1024;
        Ok(Self {
            size,
            inodes: (wanted > size / BYTES_PER_INODE).then_some(wanted),
            inode_size: storage.inode_size.unwrap_or(small),
            journal: storage.journal,
        })
    }

    /// Bytes that the image takes, sparse and with nothing on it; those that do not grow with it,
    /// such as the journal's, are left out.
    #[must_use]
    pub fn structures(&self) -> u64 {
        self.size.div_ceil(GROUP) * STRUCTURES_OF_GROUP
    }

    /// Creates the file system on a device of zeroes.
    ///
    /// # Errors
    ///
    /// If mkfs refuses the parameters, the device fails, or the run is interrupted.
    pub fn make(&self, device: &dyn Device, interrupt: &Interrupt) -> Result<()> {
        let journal_blocks = self
            .journal
            .map(|bytes| u32::try_from(bytes / 4096).context("the journal is too large"))
            .transpose()?;
        let options = Options {
            block_size: Some(4096),
            inodes: self.inodes,
            inode_size: self.inode_size,
            reserved_percent: 0.0,
            journal_blocks,
            // Directories have the same hashes in every run.
            hash_seed: Some([1, 2, 3, 4]),
            root_owner: caller(),
            ..Options::default()
        };
        let is_stopped = || interrupt.check().is_err();
        let made = Design::new(device.size(), &options)
            // Minutes, if the image is huge.
            .and_then(|design| design.write_zeroed(device, &is_stopped));
        interrupt.check()?;
        made.context("making the image")?;
        Ok(())
    }

    /// Creates the file system in a new file.
    ///
    /// # Errors
    ///
    /// As [`make`](Self::make).
    pub fn make_file(&self, path: &Path, interrupt: &Interrupt) -> Result<()> {
        let device = FileDevice::create(path, self.size)?;
        self.make(&device, interrupt)?;
        Ok(device.flush()?)
    }
}

/// Bytes for the content, the file system's metadata and a reserve; `None` if the number overflows.
fn least_size(needs: &Needs) -> Option<u64> {
    let content = needs.bytes.checked_add(needs.bytes / 8)?;
    let inodes = needs.inodes.checked_mul(512)?;
    content.checked_add(inodes)?.checked_add(32 << 20)
}

fn caller() -> (u32, u32) {
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    (user.as_raw(), group.as_raw())
}

/// A temporary folder, in memory if the system has such a file system; dropping it removes it.
///
/// # Errors
///
/// If it cannot be created.
pub fn scratch() -> Result<TempDir> {
    let folder = folder_in(Path::new("/dev/shm")).or_else(|_| folder_in(&std::env::temp_dir()));
    folder.context("cannot make a temporary folder")
}

/// A temporary folder whose path has no symbolic links, as in the system's table of mounts.
fn folder_in(place: &Path) -> io::Result<TempDir> {
    tempfile::Builder::new()
        .prefix("pext4-lab-")
        .tempdir_in(place.canonicalize()?)
}

#[cfg(test)]
mod tests {
    use pext4_block::RamDevice;

    use super::{GROUP, ImagePlan, Storage, folder_in};
    use crate::run::Interrupt;
    use crate::workloads::{Plan, find};

    fn plan(tasks: u32) -> Plan {
        Plan {
            tasks,
            ..Plan::default()
        }
    }

    #[test]
    fn there_are_four_groups_a_task() {
        let workload = find("fallocate2").unwrap();
        let made = ImagePlan::new(workload, &plan(96), &Storage::default()).unwrap();
        assert_eq!(made.size, 96 * 4 * GROUP);
    }

    #[test]
    fn what_is_too_small_is_refused_with_advice() {
        let storage = Storage {
            size: Some(1 << 20),
            ..Storage::default()
        };
        let told = ImagePlan::new(find("mdtest").unwrap(), &plan(4), &storage).unwrap_err();
        let start = "an image of 1 MiB is too small: mdtest with 4 tasks needs 35 MiB; choose";
        assert!(told.to_string().starts_with(start), "{told}");
        assert!(told.to_string().contains("--size"), "{told}");
    }

    #[test]
    fn what_no_image_holds_is_refused() {
        for file_size in [u64::MAX, u64::MAX - u64::MAX / 9, 15 << 60, 20 << 50] {
            let huge = Plan {
                file_size,
                ..Plan::default()
            };
            let workload = find("falloc-append").unwrap();
            let told = ImagePlan::new(workload, &huge, &Storage::default()).unwrap_err();
            assert!(told.to_string().contains("less a task"), "{told}");
        }
        let storage = Storage {
            size: Some(20 << 50),
            ..Storage::default()
        };
        let told = ImagePlan::new(find("mdtest").unwrap(), &plan(1), &storage).unwrap_err();
        assert!(told.to_string().contains("--size"), "{told}");
    }

    #[test]
    fn a_journal_of_no_blocks_is_refused() {
        for journal in [0, 4095, (4 << 20) - 1] {
            let storage = Storage {
                journal: Some(journal),
                ..Storage::default()
            };
            let told = ImagePlan::new(find("mdtest").unwrap(), &plan(1), &storage).unwrap_err();
            assert!(told.to_string().contains("--journal"), "{told}");
        }
    }

    fn of_size(size: u64) -> ImagePlan {
        let storage = Storage {
            size: Some(size),
            ..Storage::default()
        };
        ImagePlan::new(find("fallocate2").unwrap(), &plan(1), &storage).unwrap()
    }

    #[test]
    fn an_interruption_is_heard_while_an_image_is_made() {
        let interrupt = Interrupt::default();
        interrupt.ask();
        let device = RamDevice::new(1 << 30);
        let told = of_size(1 << 30).make(&device, &interrupt).unwrap_err();
        assert_eq!(format!("{told:#}"), "interrupted");
        let folder = tempfile::tempdir().unwrap();
        let told = of_size(1 << 30).make_file(&folder.path().join("image"), &interrupt);
        assert!(told.is_err());
    }

    #[test]
    #[expect(clippy::cast_precision_loss, reason = "a ratio needs no 53 bits")]
    fn what_an_empty_image_takes_is_known_before() {
        let used = |size| {
            let device = RamDevice::new(size);
            let made = of_size(size).make(&device, &Interrupt::default());
            made.unwrap();
            device.used()
        };
        // What does not grow with the image is in both.
        let (small, large) = (of_size(512 << 30), of_size(1 << 40));
        let grown = used(large.size) - used(small.size);
        let share = grown as f64 / (large.structures() - small.structures()) as f64;
        assert!((0.8..1.25).contains(&share), "{share}");
    }

    #[test]
    fn a_folder_has_no_links_in_its_path() {
        let place = tempfile::tempdir().unwrap();
        let link = place.path().join("link");
        let behind = place.path().join("behind");
        std::fs::create_dir(&behind).unwrap();
        std::os::unix::fs::symlink(&behind, &link).unwrap();
        let folder = folder_in(&link).unwrap();
        assert!(folder.path().starts_with(behind.canonicalize().unwrap()));
    }

    #[test]
    fn many_files_get_more_inodes() {
        let many = Plan {
            tasks: 48,
            files: 30_000,
            ..Plan::default()
        };
        let made = ImagePlan::new(find("mdtest").unwrap(), &many, &Storage::default()).unwrap();
        let inodes = made.inodes.unwrap_or(made.size / (16 << 10));
        assert!(inodes >= 48 * 30_001, "{inodes}");
    }
}
