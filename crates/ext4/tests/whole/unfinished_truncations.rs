//! Truncations that fail half way because of the device: truncated content does not reappear, and
//! blocks that are kept after the end of the file stay.

use std::sync::Arc;

use pext4_block::RamDevice;
use pext4_block::fault::{FaultDevice, Operation};
use pext4_fs::{AllocateMode, Error, InodeNumber, MountOptions, SetAttributes, Volume};

use crate::images::Image;

const ROOT: InodeNumber = InodeNumber::ROOT;

/// A volume whose `/old` has twenty extents, mapped by a block outside of its inode.
struct Case {
    image: Image,
    ram: Arc<RamDevice>,
    device: Arc<FaultDevice>,
    volume: Volume,
    old: InodeNumber,
}

impl Case {
    fn new() -> Option<Self> {
        let image = Image::make(&["-b", "1024", "-O", "^metadata_csum", "-e", "continue"])?;
        let volume = image.open();
        volume.paths().write("/old", b"").expect("a file");
        let old = volume.lookup(ROOT, b"old").expect("there").inode;
        for piece in 0..20 {
            volume
                .write(old, piece * 4096, &[7; 1024])
                .expect("a piece");
        }
        volume.close().expect("it closes");
        let ram = Arc::new(RamDevice::load(&image.path).expect("the image"));
        let device = Arc::new(FaultDevice::new(Arc::<RamDevice>::clone(&ram)));
        let volume = Volume::open(Arc::<FaultDevice>::clone(&device), MountOptions::default());
        let volume = volume.expect("a mount");
        assert_eq!(volume.lookup(ROOT, b"old").expect("there").inode, old);
        Some(Self {
            image,
            ram,
            device,
            volume,
            old,
        })
    }

    fn resize(&self, size: u64) -> pext4_fs::Result<()> {
        let change = SetAttributes {
            size: Some(size),
            ..SetAttributes::default()
        };
        self.volume.set_attributes(self.old, &change).map(|_| ())
    }

    /// Truncates it to 1000 bytes, which fails because its map cannot be read.
    fn fail_to_truncate(&self) {
        self.device.fail_nth(Operation::Read, 0);
        let failed = self.resize(1000);
        assert!(matches!(failed, Err(Error::Io(_))), "{failed:?}");
        let size = self.volume.attributes(self.old).expect("held").size;
        assert_eq!(size, 1000);
    }

    /// Checks that truncated content is not visible again.
    fn assert_truncated(&self) {
        let mut content = vec![1; 60_000];
        let read = self
            .volume
            .read(self.old, 0, &mut content)
            .expect("readable");
        assert_eq!(read, 60_000);
        assert!(content[..1000].iter().all(|&byte| byte == 7));
        assert!(content[1000..].iter().all(|&byte| byte == 0), "cut off");
    }

    fn close(self) {
        self.volume.close().expect("it closes");
        self.ram.save(&self.image.path).expect("saved");
        self.image.assert_clean();
    }
}

#[test]
fn what_a_failed_truncation_left_does_not_come_back() {
    let Some(case) = Case::new() else {
        return;
    };
    case.fail_to_truncate();
    case.resize(60_000).expect("it grows");
    case.assert_truncated();
    case.close();
}

#[test]
fn nor_in_a_file_without_a_name() {
    let Some(case) = Case::new() else {
        return;
    };
    case.volume.unlink(ROOT, b"old").expect("it has a name");
    case.fail_to_truncate();
    case.resize(60_000).expect("it grows");
    case.assert_truncated();
    case.close();
}

#[test]
fn nor_in_one_that_gets_a_name_again() {
    let Some(case) = Case::new() else {
        return;
    };
    case.volume.unlink(ROOT, b"old").expect("it has a name");
    case.fail_to_truncate();
    let _ = case
        .volume
        .link(case.old, ROOT, b"back")
        .expect("it is held");
    case.resize(60_000).expect("it grows");
    case.assert_truncated();
    case.close();
}

/// The truncated blocks are not taken for preallocated ones, which would be freed when the
/// truncation is finished.
#[test]
fn space_behind_the_end_is_kept_after_a_failed_truncation() {
    let Some(case) = Case::new() else {
        return;
    };
    case.fail_to_truncate();
    let kept = case
        .volume
        .allocate(case.old, AllocateMode::KeepSize, 8192, 16 << 10);
    kept.expect("there is room");
    case.resize(60_000).expect("it grows");
    case.assert_truncated();
    let sectors = case.volume.attributes(case.old).expect("held").sectors;
    assert!(sectors >= 2 * 17, "only {sectors} sectors are left");
    case.close();
}

/// A crash, then a map that cannot be read: the file stays an orphan, and the rest is there.
#[test]
fn a_map_that_cannot_be_read_does_not_keep_the_next_mount() {
    let Some(case) = Case::new() else {
        return;
    };
    let told = case.image.debugfs("stat old");
    let node = told.split("(ETB0):").nth(1).expect("a node");
    let digits = node.bytes().take_while(u8::is_ascii_digit).count();
    let node: u64 = node[..digits].parse().expect("a number");

    case.volume.unlink(ROOT, b"old").expect("it has a name");
    case.volume.sync().expect("the device works");
    case.ram.save(&case.image.path).expect("saved");
    let ram = RamDevice::load(&case.image.path).expect("the image");
    let faulty = Arc::new(FaultDevice::new(Arc::new(ram)));
    faulty.fail_touching(Operation::Read, node * 1024..(node + 1) * 1024);
    let volume = Volume::open(faulty, MountOptions::default()).expect("a mount");
    let notes = volume.notes().join("\n");
    assert!(notes.contains("could not be finished"), "{notes}");
    volume.paths().write("/new", b"content").expect("room");
}
