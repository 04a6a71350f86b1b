//! Support for the tests of groups and allocators: an image of mke2fs in memory, with a store and a
//! journal without a log.

use std::path::Path;
use std::process::Command;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use pext4_block::{Cache, Device, RamDevice, Stamp};
use pext4_jbd2::{Capture, Client, Config, Handle, Journal, JournalError, JournalWidth};
use pext4_ondisk::bitmap;
use pext4_ondisk::geometry::Geometry;
use pext4_ondisk::group_descriptor::{GroupDescriptor, GroupFlags};
use pext4_ondisk::superblock::Superblock;
use pext4_ondisk::{BlockNumber, GroupNumber, Tid};

use super::Groups;
use crate::error::Result;
use crate::options::{MountOptions, Scaling};
use crate::store::Store;

/// A store, its groups, and the device below.
pub struct Ground {
    pub store: Arc<Store>,
    pub groups: Arc<Groups>,
    pub device: Arc<RamDevice>,
}

/// The journal's client: notifies the groups of commits.
struct Listener(OnceLock<Weak<Groups>>);

impl Client for Listener {
    fn capture_parts(&self, _: u64, _: Tid, _: &mut Vec<Capture>) {}

    fn seal(&self, _: BlockNumber, _: Stamp, _: &mut [u8]) {}

    fn committed(&self, tid: Tid) {
        if let Some(groups) = self.0.get().and_then(Weak::upgrade) {
            groups.committed(tid);
        }
    }

    fn aborted(&self, _: &JournalError) {}
}

/// An image made by mke2fs; `None`, with a message, if mke2fs is missing.
pub fn image(arguments: &[&str], size: &str) -> Option<Arc<RamDevice>> {
    let folder = tempfile::tempdir().expect("a place for temporary files");
    let path = folder.path().join("image");
    let made = Command::new("mke2fs")
        .args(["-q", "-F", "-t", "ext4"])
        .args(arguments)
        .arg(&path)
        .arg(size)
        .output();
    let Ok(output) = made else {
        eprintln!("SKIPPED: no mke2fs here (package e2fsprogs)");
        return None;
    };
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Some(Arc::new(RamDevice::load(&path).expect("mke2fs made it")))
}

/// Settings that together cover every value of every switch.
const SETTINGS: &str = include_str!("../../tests/settings.txt");

/// Each of [`SETTINGS`].
pub fn settings() -> impl Iterator<Item = Scaling> {
    let lines = SETTINGS.lines();
    lines.map(|line| Scaling::parse(line).expect("a setting"))
}

impl Ground {
    /// A volume with an image of its own in this setting; see [`image`].
    pub fn set(arguments: &[&str], size: &str, scaling: Scaling) -> Option<Self> {
        println!("setting {scaling}");
        let options = MountOptions {
            scaling,
            ..MountOptions::default()
        };
        let ground = Self::open(image(arguments, size)?, options);
        Some(ground.expect("a fresh image is sound"))
    }

    /// A volume with an image of its own; see [`image`].
    pub fn make(arguments: &[&str], size: &str) -> Option<Self> {
        let ground = Self::open(image(arguments, size)?, MountOptions::default());
        Some(ground.expect("a fresh image is sound"))
    }

    pub fn open(device: Arc<RamDevice>, options: MountOptions) -> Result<Self> {
        let mut bytes = [0; 1024];
        device.read_at(1024, &mut bytes)?;
        let superblock = Superblock::decode(&bytes)?;
        let geometry = Geometry::of(&superblock)?;
        let below: Arc<dyn Device> = Arc::clone(&device) as Arc<dyn Device>;
        let cache = Arc::new(Cache::new(
            Arc::clone(&below),
            geometry.block_size,
            options.cache_size,
        ));
        let store = Store::new(
            Arc::clone(&below),
            Arc::clone(&cache),
            geometry,
            superblock,
            options,
        );
        let store = Arc::new(store);
        let groups = Groups::open(Arc::clone(&store))?;
        let listener = Arc::new(Listener(OnceLock::new()));
        let _ = listener.0.set(Arc::downgrade(&groups));
        let client = listener as Arc<dyn Client>;
        let commit_interval = Duration::from_secs(3600);
        let config = Config {
            cache,
            device: below,
            log: None,
            client,
            commit_interval,
            width: JournalWidth::default(),
        };
        store.attach_journal(Journal::open(config)?);
        Ok(Self {
            store,
            groups,
            device,
        })
    }

    pub fn handle(&self) -> Handle<'_> {
        self.store.start(64).expect("the journal runs")
    }

    pub fn commit(&self) {
        self.store
            .journal()
            .commit_running()
            .expect("the device takes writes");
    }

    /// The groups on the device, after checking every checksum and count.
    pub fn on_disk(&self) -> Vec<OnDisk> {
        self.store
            .geometry
            .groups()
            .map(|group| self.group_on_disk(group))
            .collect()
    }

    fn group_on_disk(&self, group: GroupNumber) -> OnDisk {
        let geometry = &self.store.geometry;
        let (block, offset) = geometry.descriptor_location(group);
        let start = offset as usize;
        let bytes = &self.block(block)[start..start + usize::from(geometry.descriptor_size)];
        let descriptor = GroupDescriptor::decode(bytes, geometry, group).expect("a good checksum");
        descriptor.check(geometry, group).expect("counts in range");
        let blocks = self.block(descriptor.block_bitmap);
        let inodes = self.block(descriptor.inode_bitmap);
        if !descriptor.flags.contains(GroupFlags::BLOCK_UNINIT) {
            let bits = geometry.clusters_in(group);
            assert!(bitmap::has_padding(&blocks, bits));
            assert_eq!(
                bitmap::count_zeros(&blocks, 0..bits),
                descriptor.free_clusters,
                "{group:?}"
            );
            self.check_sum(
                descriptor.block_bitmap_checksum,
                &blocks,
                geometry.clusters_per_group,
            );
        }
        if !descriptor.flags.contains(GroupFlags::INODE_UNINIT) {
            let bits = geometry.inodes_per_group;
            assert!(bitmap::has_padding(&inodes, bits));
            assert_eq!(
                bitmap::count_zeros(&inodes, 0..bits),
                descriptor.free_inodes,
                "{group:?}"
            );
            self.check_sum(descriptor.inode_bitmap_checksum, &inodes, bits);
        }
        OnDisk { descriptor, blocks }
    }

    fn check_sum(&self, stored: u32, bitmap: &[u8], bits: u32) {
        if let Some(seed) = self.store.geometry.checksum_seed() {
            let made = bitmap::block_bitmap_checksum(seed, bitmap, bits);
            assert!(GroupDescriptor::matches(stored, made, &self.store.geometry));
        }
    }

    pub fn block(&self, block: BlockNumber) -> Vec<u8> {
        let size = self.store.block_size();
        let mut bytes = vec![0; size as usize];
        self.device
            .read_at(block.get() * u64::from(size), &mut bytes)
            .expect("inside the device");
        bytes
    }

    /// The problems that e2fsck reports; empty if there are none.
    pub fn complaints_of_e2fsck(&self) -> String {
        let folder = tempfile::tempdir().expect("a place for temporary files");
        let path = folder.path().join("image");
        self.device.save(&path).expect("there is room");
        check(&path)
    }
}

fn check(path: &Path) -> String {
    match Command::new("e2fsck").arg("-fn").arg(path).output() {
        Ok(output) if output.status.success() => String::new(),
        Ok(output) => String::from_utf8_lossy(&output.stdout).into_owned(),
        Err(_) => {
            eprintln!("SKIPPED: no e2fsck here (package e2fsprogs)");
            String::new()
        }
    }
}

/// One group on the device.
pub struct OnDisk {
    pub descriptor: GroupDescriptor,
    pub blocks: Vec<u8>,
}
