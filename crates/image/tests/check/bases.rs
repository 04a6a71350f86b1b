//! The images that the corruption tests modify.

use std::sync::OnceLock;

use pext4_ondisk::inode::InodeFlags;
use pext4_ondisk::xattr::{self, Attribute};

use super::image::{Image, make, make_from};

/// The image that a corruption modifies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// The default features and the orphan file.
    Plain,
    /// Its larger directories have indexes.
    Indexed,
    /// A directory has an index of two levels.
    Deep,
    NoSums,
    NoJournal,
    Clusters,
    Values,
    Inline,
    Quota,
    Mmp,
    /// Descriptors are located in the groups they describe (`meta_bg`).
    MetaGroups,
    /// No descriptor blocks are reserved, but the resize inode exists.
    NoneReserved,
    /// Its journal must be replayed.
    Dirty,
    /// A directory is encrypted, as it looks without the key ([`encrypt`]).
    Encrypted,
    /// `/dir` folds case, and its names must be UTF-8.
    Strict,
    /// `/dir` and `/many` fold case, and the latter has an index of folded names.
    Folded,
}

/// The image, made once.
pub fn base(base: Base) -> Option<Image> {
    const COUNT: usize = 16;
    static MADE: [OnceLock<Option<Image>>; COUNT] = [const { OnceLock::new() }; COUNT];
    MADE[base as usize].get_or_init(|| make_base(base)).clone()
}

fn make_base(base: Base) -> Option<Image> {
    let options = match base {
        Base::Plain | Base::Indexed | Base::Dirty => "-O orphan_file,metadata_csum_seed",
        Base::Deep => return make_deep(),
        Base::NoSums => "-O ^metadata_csum",
        Base::NoJournal => "-O ^has_journal",
        Base::Clusters => "-O bigalloc -C 16384",
        Base::Values => "-O ea_inode",
        Base::Inline => "-O inline_data",
        Base::Quota => "-O quota,project -E quotatype=usrquota:grpquota:prjquota",
        Base::Mmp => "-O mmp",
        Base::MetaGroups => "-O meta_bg,^resize_inode",
        Base::NoneReserved => "-b 4096",
        Base::Encrypted => "-O encrypt,casefold",
        Base::Strict => "-O casefold -E encoding_flags=strict",
        Base::Folded => "-O casefold",
    };
    let size = match base {
        Base::Clusters => 64 << 20,
        Base::NoneReserved => 8 << 20,
        _ => 16 << 20,
    };
    let mut words = vec!["-b", "1024", "-N", "2048"];
    words.extend(options.split(' '));
    let mut image = make(size, &words)?;
    image.debugfs(&["mknod pipe p"]);
    match base {
        Base::Indexed => image.e2fsck_repairs(&["-fyD"]),
        Base::Quota => share_out(&mut image),
        Base::Values => {
            set_value(&mut image);
            image.e2fsck_repairs(&["-fy"]);
        }
        Base::Dirty => {
            write_journal(&mut image, "jo -c -v 3");
        }
        Base::Encrypted => encrypt(&mut image),
        Base::Strict => {
            let directory = image.find("/dir");
            image.edit_inode(directory, |inode| inode.flags |= InodeFlags::CASEFOLD);
        }
        Base::Folded => {
            for path in ["/dir", "/many"] {
                let directory = image.find(path);
                image.edit_inode(directory, |inode| inode.flags |= InodeFlags::CASEFOLD);
            }
            image.e2fsck_repairs(&["-fyD"]);
        }
        _ => {}
    }
    Some(image)
}

/// Gives files to several owners, and lets e2fsck create the quota files.
pub fn share_out(image: &mut Image) {
    for (path, owner) in [("small", 300), ("sparse", 1000), ("dir/inner", 66_000)] {
        let requests = ["uid", "gid", "projid"].map(|field| format!("sif {path} {field} {owner}"));
        for request in requests {
            // Not every image has projects.
            image.debugfs(&[&request]);
        }
    }
    image.e2fsck_repairs(&["-fy"]);
}

fn make_deep() -> Option<Image> {
    let scratch = tempfile::tempdir().expect("a temporary folder");
    let many = scratch.path().join("many");
    std::fs::create_dir(&many).expect("a folder");
    for number in 0..2200 {
        let name = format!("{number:04}-{}", "n".repeat(110));
        std::fs::write(many.join(name), b"").expect("a file");
    }
    let options = ["-b", "1024", "-N", "4096"];
    let mut image = make_from(16 << 20, &options, Some(scratch.path()))?;
    image.e2fsck_repairs(&["-fyD"]);
    Some(image)
}

/// Gives a file an attribute value larger than a block.
pub fn set_value(image: &mut Image) {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), vec![b'x'; 3000]).expect("a value");
    let request = format!("ea_set -f {} small user.huge", file.path().display());
    image.debugfs(&[&request]);
}

/// The encrypted directory; its entries are named after it.
pub const VAULT: &str = "/ciphertext-vault";
/// An encryption context of version 2 without its nonce.
pub const POLICY: [u8; 24] = *b"\x02\x01\x04\x03\0\0\0\0name of some key";

/// Gives an inode an encryption context and the flag.
pub fn set_context(image: &mut Image, path: &str, context: &[u8]) {
    let number = image.find(path);
    image.edit_inode(number, |inode| {
        inode.flags |= InodeFlags::ENCRYPT;
        let attributes = [Attribute::new(9, b"c", context)];
        xattr::encode_inode_area(&attributes, &mut inode.tail).expect("there is room");
    });
}

/// Creates an encrypted directory with a file, a directory, both kinds of symbolic links and a
/// pipe, encrypted as far as their types support it.
pub fn encrypt(image: &mut Image) {
    let inside = |what: &str| format!("{VAULT}/ciphertext-{what}");
    let (file, folder, pipe) = (inside("a-file"), inside("folder"), inside("a-pipe"));
    let (fast, slow) = (inside("fast-link"), inside("slow-link"));
    let name = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
    image.debugfs(&[
        &format!("mkdir {VAULT}"),
        &format!("write /dev/null {}", name(&file)),
        &format!("ln {} {file}", name(&file)),
        &format!("unlink {}", name(&file)),
        &format!("mkdir {folder}"),
        &format!("symlink {fast} {}", "f".repeat(18)),
        &format!("symlink {slow} {}", "s".repeat(98)),
        &format!("mknod {} p", name(&pipe)),
        &format!("ln {} {pipe}", name(&pipe)),
        &format!("unlink {}", name(&pipe)),
    ]);
    for (nonce, path) in [VAULT, &file, &folder, &fast, &slow]
        .into_iter()
        .enumerate()
    {
        let nonce = [u8::try_from(nonce).expect("a few"); 16];
        set_context(image, path, &[&POLICY[..], &nonce].concat());
    }
    let fast = image.find(&fast);
    image.edit_inode(fast, |inode| inode.block[..2].copy_from_slice(&[16, 0]));
    let slow = image.find(&slow);
    let block = image.blocks(slow)[0];
    image.block(block)[..2].copy_from_slice(&[96, 0]);
}

/// Lets debugfs write a transaction that changes nothing. Returns its block.
pub fn write_journal(image: &mut Image, open: &str) -> u64 {
    write_transactions(image, open, 1)
}

/// Lets debugfs write so many transactions of the same block, which change nothing. Returns the
/// block.
pub fn write_transactions(image: &mut Image, open: &str, count: usize) -> u64 {
    let directory = image.find("/dir");
    let block = image.blocks(directory)[0];
    let scratch = tempfile::tempdir().expect("a temporary folder");
    let (data, script) = (scratch.path().join("data"), scratch.path().join("script"));
    std::fs::write(&data, &*image.block(block)).expect("a file");
    let write = format!("jw -b {block} {}\n", data.display()).repeat(count);
    let text = format!("{open}\n{write}jc\n");
    std::fs::write(&script, text).expect("a file");
    let path = scratch.path().join("image");
    std::fs::write(&path, &image.bytes).expect("a file");
    let mut command = super::image::tool("debugfs");
    command.arg("-w").arg("-f").arg(&script).arg(&path);
    let output = command.output().expect("debugfs is beside mke2fs");
    assert!(output.status.success());
    image.bytes = std::fs::read(&path).expect("the image");
    block
}
