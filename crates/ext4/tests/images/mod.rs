//! Images made by mke2fs and checked by e2fsck, for the tests beside this folder.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use pext4_block::{Access, FileDevice, RamDevice};
use pext4_fs::{InodeNumber, MountOptions, Volume};
use pext4_ondisk::inode::{Inode as Slot, InodeFlags};
use pext4_ondisk::xattr::{self, Attribute};

/// A child process that another test is just starting holds the image's lock until its exec:
/// opening waits that long.
const PATIENCE: Duration = Duration::from_secs(10);

/// An image in a file of its own.
pub struct Image {
    _folder: tempfile::TempDir,
    /// The file.
    pub path: PathBuf,
}

impl Image {
    /// A fresh image of 64 MiB, or `None`, with a message, if mke2fs is missing.
    pub fn make(arguments: &[&str]) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("image");
        let mut command = Command::new("mke2fs");
        command
            .args(["-q", "-F", "-t", "ext4"])
            .args(arguments)
            .arg(&path)
            .arg("64M");
        let Ok(made) = command.output() else {
            eprintln!("SKIPPED: mke2fs is not installed (package e2fsprogs)");
            return None;
        };
        assert!(made.status.success(), "{command:?}: {}", text(&made));
        Some(Self {
            _folder: folder,
            path,
        })
    }

    /// An image with the file `/file`, which debugfs has changed by these requests, in this order.
    #[allow(dead_code, reason = "not every test asks")]
    pub fn with_file(arguments: &[&str], content: &[u8], requests: &[&str]) -> Option<Self> {
        let image = Self::make(arguments)?;
        let source = image.path.with_file_name("content");
        std::fs::write(&source, content).expect("a temporary file");
        image.debugfs_write(&format!("write {} file", source.display()));
        for request in requests {
            image.debugfs_write(request);
        }
        Some(image)
    }

    /// A copy of the image in memory, mounted.
    #[allow(dead_code, reason = "not every test asks")]
    pub fn load(&self) -> (Arc<RamDevice>, Volume) {
        let device = Arc::new(RamDevice::load(&self.path).expect("the image"));
        let volume = Volume::open(Arc::<RamDevice>::clone(&device), MountOptions::default());
        (device, volume.expect("a mount"))
    }

    /// The image, mounted.
    #[allow(dead_code, reason = "not every test asks")]
    pub fn open(&self) -> Volume {
        self.open_with(MountOptions::default())
    }

    /// The image, mounted with these options.
    #[allow(dead_code, reason = "not every test asks")]
    pub fn open_with(&self, options: MountOptions) -> Volume {
        let device = FileDevice::open(&self.path, Access::ReadWrite, PATIENCE);
        let device = Arc::new(device.expect("the image"));
        Volume::open(device, options).expect("a mount")
    }

    /// Changes the image's bytes.
    #[allow(dead_code, reason = "not every test asks")]
    pub fn change(&self, change: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = std::fs::read(&self.path).expect("the image");
        change(&mut bytes);
        std::fs::write(&self.path, bytes).expect("the image");
    }

    /// Encrypts an inode as far as one sees without the key: the flag, and the attribute that holds
    /// policy and nonce. Inodes must have no checksums and no other attributes.
    #[allow(dead_code, reason = "not every test asks")]
    pub fn encrypt(&self, path: &str) {
        let (block, offset) = self.place_of_inode(path);
        self.change(|bytes| {
            let block_size = 1024 << u32::from(bytes[1024 + 24]);
            let inode_size = usize::from(u16::from_le_bytes([bytes[1024 + 88], bytes[1024 + 89]]));
            let slot = &mut bytes[block * block_size + offset..][..inode_size];
            let number = InodeNumber(1);
            let mut inode = Slot::decode(slot, number, None).expect("debugfs made it");
            inode.flags |= InodeFlags::ENCRYPT;
            let context = [&b"\x02\x01\x04\x03\0\0\0\0name of some key"[..], &[7; 16]].concat();
            let attributes = [Attribute::new(9, b"c", &context)];
            xattr::encode_inode_area(&attributes, &mut inode.tail).expect("there is room");
            inode.encode(slot, number, None);
        });
    }

    /// The block and the offset in it of an inode's slot.
    fn place_of_inode(&self, path: &str) -> (usize, usize) {
        let told = self.debugfs(&format!("imap {path}"));
        let number = |before: &str, radix| {
            let rest = told.split(before).nth(1).expect("debugfs knows the path");
            let digits: String = rest.chars().take_while(char::is_ascii_hexdigit).collect();
            usize::from_str_radix(&digits, radix).expect("a number")
        };
        (number("located at block ", 10), number("offset 0x", 16))
    }

    /// Has debugfs write blocks to the journal: each number with its bytes.
    #[allow(dead_code, reason = "not every test asks")]
    pub fn write_to_journal(&self, blocks: &[(u64, &[u8])]) {
        let folder = self.path.parent().expect("a folder");
        let mut lines = String::from("jo\n");
        for (number, bytes) in blocks {
            let file = folder.join(format!("block-{number}"));
            std::fs::write(&file, bytes).expect("a temporary file");
            lines += &format!("jw -b {number} {}\n", file.display());
        }
        let script = folder.join("script");
        std::fs::write(&script, lines + "jc\n").expect("a temporary file");
        let mut debugfs = Command::new("debugfs");
        debugfs.arg("-w").arg("-f").arg(&script).arg(&self.path);
        let output = debugfs.output().expect("e2fsprogs is there");
        assert!(output.status.success(), "{output:?}");
    }

    /// Its first 4 KiB, with the superblock.
    pub fn first_block(&self) -> Vec<u8> {
        std::fs::read(&self.path).expect("the image")[..4096].to_vec()
    }

    /// Fails unless e2fsck reports nothing, and no mount has noted errors.
    #[allow(dead_code, reason = "not every test asks")]
    pub fn assert_clean(&self) {
        let output = run(Command::new("e2fsck").arg("-fn").arg(&self.path));
        assert_eq!(output.status.code(), Some(0), "{}", text(&output));
        let state = self.first_block()[1024 + 0x3A];
        assert_eq!(state & 2, 0, "errors were noted: {}", text(&output));
    }

    /// Has e2fsck make all indexes of directories anew.
    #[allow(dead_code, reason = "not every test asks")]
    pub fn rebuild_indexes(&self) {
        let output = run(Command::new("e2fsck").arg("-fyD").arg(&self.path));
        assert!(
            matches!(output.status.code(), Some(0 | 1)),
            "{}",
            text(&output)
        );
    }

    /// The output of debugfs for a request; with `-w` it may write.
    #[allow(dead_code, reason = "not every test asks")]
    pub fn debugfs(&self, request: &str) -> String {
        text(&run(debugfs(&self.path).args(["-R", request])))
    }

    /// Changes the image with debugfs.
    #[allow(dead_code, reason = "not every test asks")]
    pub fn debugfs_write(&self, request: &str) {
        let output = run(debugfs(&self.path).args(["-w", "-R", request]));
        let told = String::from_utf8_lossy(&output.stderr);
        // Its version; errors do not change its exit status.
        assert_eq!(told.lines().count(), 1, "{request}: {told}");
    }
}

fn debugfs(path: &Path) -> Command {
    let mut command = Command::new("sh");
    command
        .args([
            "-c",
            "image=$1; shift; exec debugfs \"$@\" \"$image\"",
            "sh",
        ])
        .arg(path);
    command
}

fn run(command: &mut Command) -> Output {
    command
        .output()
        .expect("e2fsprogs is there, for mke2fs was")
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// The inode that a path leads to.
#[allow(dead_code, reason = "not every test asks")]
pub fn inode(volume: &Volume, path: &str) -> InodeNumber {
    volume.paths().resolve_link(path).expect(path).inode()
}

/// Fails if `operation` does not return within a minute.
#[allow(dead_code, reason = "not every test asks")]
pub fn comes_back<R: Send + 'static>(operation: impl FnOnce() -> R + Send + 'static) -> R {
    let (answer, wait) = mpsc::channel();
    std::thread::spawn(move || answer.send(operation()));
    wait.recv_timeout(Duration::from_secs(60))
        .expect("it comes back")
}
