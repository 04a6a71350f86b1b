//! The layout of files and free space on an image, counted as e4defrag, filefrag and e2freefrag do:
//! pieces that are adjacent both in the file and on the disk are one extent, and a run of free
//! blocks continues across group boundaries.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use pext4_block::Device;
use pext4_fs::{FileType, InodeNumber, MappedRange, MountOptions, Volume};
use pext4_ondisk::bitmap;
use pext4_ondisk::geometry::Geometry;
use pext4_ondisk::group_descriptor::GroupDescriptor;
use pext4_ondisk::superblock::{self, Superblock};
use pext4_ondisk::{BlockNumber, GroupNumber};

use crate::fill;
use crate::results::Fragmentation;
use crate::sides::tool;

/// Extents of a file that one request returns at most.
const BATCH: usize = 4096;

/// Examines an unmounted image; its journal may need replay. Counts all files, or those in the
/// directory `below` of the root, which a workload created: files that filled the image before it
/// are left out.
///
/// # Errors
///
/// If the image cannot be read.
pub fn of_image(device: Arc<dyn Device>, below: Option<&str>) -> Result<Fragmentation> {
    let mut found = Files::default();
    let options = MountOptions {
        read_only: true,
        ..MountOptions::default()
    };
    let volume = Volume::open(Arc::clone(&device), options)?;
    match below {
        None => found.walk(&volume, InodeNumber::ROOT, None)?,
        Some(name) => {
            let directory = volume.lookup(InodeNumber::ROOT, name.as_bytes())?.inode;
            found.walk(&volume, directory, Some(fill::DIRECTORY))?;
            volume.forget(directory, 1);
        }
    }
    volume.close()?;
    let (free, cluster_size) = free_runs(&*device)?;
    Ok(Fragmentation {
        free_extents: Some(free.runs),
        average_free_extent: Some(free.clusters * cluster_size / free.runs.max(1)),
        ..found.sum()
    })
}

#[derive(Default)]
struct Files {
    files: u64,
    extents: u64,
    bytes: u64,
}

impl Files {
    /// Counts the files below a directory, except those below its entry `left_out`.
    fn walk(
        &mut self,
        volume: &Volume,
        directory: InodeNumber,
        left_out: Option<&str>,
    ) -> Result<()> {
        let mut entries = Vec::new();
        volume.read_directory(directory, 0, &mut |entry| {
            let is_left_out = left_out.is_some_and(|name| name.as_bytes() == entry.name);
            if !is_left_out && !matches!(entry.name, b"." | b"..") {
                entries.push((entry.inode, entry.name.to_vec()));
            }
            true
        })?;
        for (_, name) in entries {
            let entry = volume.lookup(directory, &name)?;
            match entry.attributes.file_type {
                FileType::Directory => self.walk(volume, entry.inode, None)?,
                FileType::Regular => self.file(volume, entry.inode)?,
                _ => {}
            }
            volume.forget(entry.inode, 1);
        }
        Ok(())
    }

    fn file(&mut self, volume: &Volume, inode: InodeNumber) -> Result<()> {
        let (mut offset, mut last) = (0, None);
        self.files += 1;
        loop {
            let batch = volume.extents(inode, offset, BATCH)?;
            for range in &batch {
                self.extents += u64::from(!last.is_some_and(|last| continues(&last, range)));
                self.bytes += range.length;
                last = Some(*range);
            }
            match batch.last() {
                Some(range) if batch.len() == BATCH => offset = range.logical + range.length,
                _ => return Ok(()),
            }
        }
    }

    fn sum(&self) -> Fragmentation {
        Fragmentation {
            files: self.files,
            extents: self.extents,
            average_extent: self.bytes / self.extents.max(1),
            free_extents: None,
            average_free_extent: None,
        }
    }
}

fn continues(last: &MappedRange, next: &MappedRange) -> bool {
    last.logical + last.length == next.logical && last.physical + last.length == next.physical
}

/// Runs of free clusters.
#[derive(Debug, Default, PartialEq, Eq)]
struct FreeRuns {
    runs: u64,
    clusters: u64,
}

/// The free runs of an image, and the bytes of a cluster.
fn free_runs(device: &dyn Device) -> Result<(FreeRuns, u64)> {
    let mut bytes = [0; superblock::SIZE];
    device.read_at(superblock::OFFSET, &mut bytes)?;
    let geometry = Geometry::of(&Superblock::decode(&bytes)?)?;
    let descriptors: Result<Vec<GroupDescriptor>> = geometry
        .groups()
        .map(|group| descriptor(device, &geometry, group))
        .collect();
    let descriptors = descriptors?;
    let metadata = metadata_by_group(&geometry, &descriptors);
    let mut free = FreeRuns::default();
    let mut goes_on = false;
    for ((group, descriptor), metadata) in geometry.groups().zip(&descriptors).zip(&metadata) {
        let used = used_clusters(device, &geometry, group, descriptor, metadata)?;
        free.add(&used, geometry.clusters_in(group), &mut goes_on);
    }
    Ok((free, geometry.cluster_size().into()))
}

impl FreeRuns {
    /// Counts the runs of one group; `goes_on` is whether the last cluster before it was free.
    fn add(&mut self, used: &[u8], end: u32, goes_on: &mut bool) {
        let mut at = 0;
        while let Some(start) = bitmap::next_zero(used, at, end) {
            let stop = bitmap::next_one(used, start, end).unwrap_or(end);
            self.runs += u64::from(start > 0 || !*goes_on);
            self.clusters += u64::from(stop - start);
            at = stop;
        }
        *goes_on = end > 0 && !bitmap::test(used, end - 1);
    }
}

/// For each group, the clusters of all bitmaps and tables in it, of whichever group.
fn metadata_by_group(geometry: &Geometry, descriptors: &[GroupDescriptor]) -> Vec<Vec<u32>> {
    let mut clusters = vec![Vec::new(); descriptors.len()];
    let mut note = |block: BlockNumber| {
        let place = geometry
            .group_of(block)
            .zip(geometry.cluster_in_group(block));
        if let Some((group, cluster)) = place {
            clusters[group.get() as usize].push(cluster);
        }
    };
    for descriptor in descriptors {
        note(descriptor.block_bitmap);
        note(descriptor.inode_bitmap);
        for index in 0..geometry.inode_table_blocks {
            let block = descriptor.inode_table.checked_add(index);
            block.into_iter().for_each(&mut note);
        }
    }
    clusters
}

fn block_at(device: &dyn Device, geometry: &Geometry, block: BlockNumber) -> Result<Vec<u8>> {
    let mut bytes = vec![0; geometry.block_size as usize];
    let offset = block.get().checked_mul(u64::from(geometry.block_size));
    device.read_at(offset.context("a block far outside")?, &mut bytes)?;
    Ok(bytes)
}

fn descriptor(
    device: &dyn Device,
    geometry: &Geometry,
    group: GroupNumber,
) -> Result<GroupDescriptor> {
    let (block, offset) = geometry.descriptor_location(group);
    let bytes = block_at(device, geometry, block)?;
    let offset = offset as usize;
    let slot = bytes
        .get(offset..offset + usize::from(geometry.descriptor_size))
        .context("a descriptor outside its block")?;
    Ok(GroupDescriptor::decode(slot, geometry, group)?)
}

/// A group's block bitmap; if it was never written, made from the locations of all metadata.
fn used_clusters(
    device: &dyn Device,
    geometry: &Geometry,
    group: GroupNumber,
    descriptor: &GroupDescriptor,
    metadata: &[u32],
) -> Result<Vec<u8>> {
    if !descriptor.flags.has_no_block_bitmap(geometry.checksums) {
        return block_at(device, geometry, descriptor.block_bitmap);
    }
    let mut used = vec![0; geometry.block_size as usize];
    let copies = geometry.superblock_overhead(group);
    bitmap::set_range(&mut used, 0..copies.div_ceil(geometry.blocks_per_cluster));
    for &cluster in metadata {
        bitmap::set(&mut used, cluster);
    }
    Ok(used)
}

/// Counts the files of a directory by filefrag; `None` if filefrag is missing or not supported
/// there.
///
/// # Errors
///
/// If the directory cannot be read.
pub fn by_filefrag(directory: &Path) -> Result<Option<Fragmentation>> {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        paths.push(entry?.path());
    }
    let Ok(told) = tool("filefrag").arg("-e").args(&paths).output() else {
        return Ok(None);
    };
    if !told.status.success() {
        return Ok(None);
    }
    let mut found = Files::default();
    for line in String::from_utf8_lossy(&told.stdout).lines() {
        if let Some(extents) = parse_extents(line) {
            found.files += 1;
            found.extents += extents;
        }
    }
    for path in &paths {
        let blocks = std::os::unix::fs::MetadataExt::blocks(&path.metadata()?);
        found.bytes += blocks * 512;
    }
    if found.files == 0 {
        bail!("filefrag said nothing about {}", directory.display());
    }
    // Of a file system that tells no extents (FUSE) it says that there are none.
    let is_told = found.extents > 0 || found.bytes == 0;
    Ok(is_told.then(|| found.sum()))
}

/// The number in `name: 12 extents found`; for block maps filefrag appends the perfect number.
fn parse_extents(line: &str) -> Option<u64> {
    let (_, told) = line.rsplit_once(": ")?;
    let told = told.split_once(',').map_or(told, |(told, _)| told);
    let number = told
        .strip_suffix(" extents found")
        .or(told.strip_suffix(" extent found"))?;
    number.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pext4_block::{Device, RamDevice};
    use pext4_fs::{AllocateMode, CreateAttributes, InodeNumber, MountOptions, Volume};
    use pext4_image::mkfs;
    use pext4_ondisk::GroupNumber;
    use pext4_ondisk::geometry::Geometry;
    use pext4_ondisk::group_descriptor::GroupFlags;
    use pext4_ondisk::superblock::{self, Superblock};

    use super::{descriptor, free_runs, of_image, parse_extents};
    use crate::sides::tool;

    #[test]
    fn filefrags_words() {
        assert_eq!(parse_extents("/a/b: 1 extent found"), Some(1));
        assert_eq!(parse_extents("/a: b: 17 extents found"), Some(17));
        let of_block_map = "/a: 5 extents found, perfection would be 2 extents";
        assert_eq!(parse_extents(of_block_map), Some(5));
        assert_eq!(parse_extents("Filesystem type is: ef53"), None);
    }

    /// Two files that grow in turns, on a file system of several groups; e2freefrag has the same
    /// counts.
    #[test]
    fn we_count_as_e2freefrag_does() {
        let device = Arc::new(RamDevice::new(1 << 30));
        mkfs::mkfs(&*device, &mkfs::Options::default()).unwrap();
        let volume = Volume::open(device.clone(), MountOptions::default()).unwrap();
        let root = InodeNumber::ROOT;
        let files = [b"one", b"two"].map(|name| {
            volume
                .create(root, name, &CreateAttributes::default())
                .unwrap()
        });
        for piece in 0..64_u64 {
            for file in &files {
                let offset = piece * (1 << 20);
                let mode = AllocateMode::Extend;
                volume.allocate(file.inode, mode, offset, 1 << 16).unwrap();
            }
        }
        for file in files {
            volume.forget(file.inode, 1);
        }
        volume.close().unwrap();
        let found = of_image(device.clone(), None).unwrap();
        assert_eq!(found.files, 2);
        assert!(found.extents >= 128, "holes divide: {found:?}");
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image");
        device.save(&image).unwrap();
        let told = tool("e2freefrag")
            .arg(&image)
            .output()
            .expect("e2freefrag is installed");
        let told = String::from_utf8_lossy(&told.stdout).into_owned();
        let number = |start: &str| {
            let line = told
                .lines()
                .find(|line| line.starts_with(start))
                .expect("told");
            let word = line[start.len()..]
                .split_whitespace()
                .next()
                .expect("a number");
            word.parse::<u64>().expect("a number")
        };
        assert_eq!(
            found.free_extents,
            Some(number("Num. free extent:")),
            "{told}"
        );
        // e2freefrag rounds down to blocks of 4 KiB.
        let average = found.average_free_extent.unwrap() / 1024;
        assert!(
            average - number("Avg. free extent:") < 4,
            "{average}: {told}"
        );
    }

    /// e2freefrag 1.47.0 takes the bits of such an image for blocks.
    #[test]
    fn clusters_of_several_blocks_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image");
        let mut mke2fs = tool("mke2fs");
        mke2fs.args(["-q", "-F", "-t", "ext4", "-b", "1024", "-C", "16384"]);
        mke2fs.args(["-O", "bigalloc,^flex_bg"]);
        let made = mke2fs.arg(&image).arg("1G").status();
        assert!(made.expect("mke2fs is installed").success());
        let device = RamDevice::load(&image).unwrap();
        let mut bytes = [0; superblock::SIZE];
        device.read_at(superblock::OFFSET, &mut bytes).unwrap();
        let told = Superblock::decode(&bytes).unwrap().free_blocks;
        let (found, cluster_size) = free_runs(&device).unwrap();
        assert_eq!(found.clusters * cluster_size, told * 1024);
        assert!(found.runs > 2, "{found:?}");
    }

    /// A bitmap without the mark's checksum is there, whatever the mark says.
    #[test]
    fn a_stale_mark_hides_no_bitmap() {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image");
        let mut mke2fs = tool("mke2fs");
        mke2fs.args(["-q", "-F", "-t", "ext2", "-b", "1024"]);
        let made = mke2fs.arg(&image).arg("16M").status();
        assert!(made.expect("mke2fs is installed").success());
        let device = RamDevice::load(&image).unwrap();
        let found = free_runs(&device).unwrap();
        let mut bytes = [0; superblock::SIZE];
        device.read_at(superblock::OFFSET, &mut bytes).unwrap();
        let geometry = Geometry::of(&Superblock::decode(&bytes).unwrap()).unwrap();
        assert!(!geometry.checksums.protects_descriptors());
        // The root directory is in this group.
        let group = GroupNumber(0);
        let mut marked = descriptor(&device, &geometry, group).unwrap();
        marked.flags |= GroupFlags::BLOCK_UNINIT;
        let mut slot = vec![0; usize::from(geometry.descriptor_size)];
        marked.encode(&mut slot, &geometry, group);
        let (block, offset) = geometry.descriptor_location(group);
        let at = block.get() * u64::from(geometry.block_size) + u64::from(offset);
        device.write_at(at, &slot).unwrap();
        assert_eq!(free_runs(&device).unwrap(), found);
    }
}
