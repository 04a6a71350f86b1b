//! What options say of the format of an image. A value that no image can have is an error of the
//! command line.

use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::os::unix::ffi::OsStrExt;

use pext4_image::mkfs::MIN_BYTES_PER_INODE;
use pext4_ondisk::feature::Feature;
use pext4_ondisk::superblock::LABEL_BYTES;

use crate::failure::Misuse;
use crate::size;

/// The most threads that a build or a check starts.
const MAX_THREADS: usize = 1024;

/// The bytes in a block.
///
/// # Errors
///
/// No image has such blocks.
pub fn block_size(text: &str) -> Result<u32, String> {
    let bytes = size::parse(text)?;
    let possible = u32::try_from(bytes)
        .ok()
        .filter(|bytes| bytes.is_power_of_two() && (1024..=65536).contains(bytes));
    possible.ok_or_else(|| {
        "1024, 2048 or 4096 bytes are possible, or a larger power of two up to 65536".to_owned()
    })
}

/// The number of inodes.
///
/// # Errors
///
/// No image counts so many.
pub fn inodes(text: &str) -> Result<u64, String> {
    let count = text.parse::<u32>();
    count
        .map(u64::from)
        .map_err(|_| format!("a number is possible, up to {}", u32::MAX))
}

/// The bytes for which there is an inode.
///
/// # Errors
///
/// They are fewer than any image can have for one.
pub fn bytes_per_inode(text: &str) -> Result<u64, String> {
    let bytes = size::parse(text)?;
    let possible = (bytes >= MIN_BYTES_PER_INODE).then_some(bytes);
    possible.ok_or_else(|| format!("at least {MIN_BYTES_PER_INODE} bytes are possible"))
}

/// The number of threads.
///
/// # Errors
///
/// No command starts so many.
pub fn threads(text: &str) -> Result<NonZeroUsize, String> {
    let count = text.parse::<NonZeroUsize>().ok();
    let possible = count.filter(|count| count.get() <= MAX_THREADS);
    possible.ok_or_else(|| format!("a number is possible, from 1 to {MAX_THREADS}"))
}

/// The bytes in an inode.
///
/// # Errors
///
/// No image has such inodes.
pub fn inode_size(text: &str) -> Result<u16, String> {
    let bytes = text.parse::<u16>().ok();
    let possible = bytes.filter(|bytes| bytes.is_power_of_two() && *bytes >= 128);
    possible.ok_or_else(|| "a power of two from 128 to the bytes in a block is possible".to_owned())
}

/// A label.
///
/// # Errors
///
/// It is too long.
pub fn label(text: &str) -> Result<String, String> {
    label_of_bytes(text.into()).map(|_| text.to_owned())
}

/// As [`label`], for one that need not be text.
///
/// # Errors
///
/// As [`label`].
pub fn label_of_bytes(label: OsString) -> Result<OsString, String> {
    match label.as_bytes().len() {
        0..=LABEL_BYTES => Ok(label),
        length => Err(format!(
            "a label has at most {LABEL_BYTES} bytes, and this one has {length}"
        )),
    }
}

/// The percent of the blocks that are kept for root.
///
/// # Errors
///
/// It is no number, or more than can be kept.
pub fn reserved_percent(text: &str) -> Result<f64, String> {
    let percent = text.parse().ok();
    let possible = percent.filter(|percent| (0.0..=50.0).contains(percent));
    possible.ok_or_else(|| "0 to 50 percent can be kept for root".to_owned())
}

/// The blocks of a journal of so many bytes.
///
/// # Errors
///
/// They are more than a journal can have.
pub fn journal_blocks(bytes: u64, block_size: u32) -> Result<u32, Misuse> {
    let blocks = u32::try_from(bytes / u64::from(block_size));
    blocks.map_err(|_| Misuse("--journal-size: it is too large".to_owned()))
}

/// A feature to turn on, or off with `^` before it, or `none`.
///
/// # Errors
///
/// There is no such feature.
pub fn feature(text: &str) -> Result<String, String> {
    let name = text.trim();
    let is_known = matches!(name, "" | "none")
        || Feature::parse(name.strip_prefix('^').unwrap_or(name)).is_some();
    match is_known {
        true => Ok(text.to_owned()),
        false => Err("there is no such feature".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::{
        block_size, bytes_per_inode, feature, inode_size, inodes, journal_blocks, label,
        reserved_percent,
    };

    #[test]
    fn what_an_image_can_have_is_accepted_and_nothing_else() {
        assert_eq!(block_size("1K"), Ok(1024));
        assert_eq!(block_size("65536"), Ok(65536));
        for text in ["512", "1000", "128K", "64T", "", "0"] {
            assert!(block_size(text).is_err(), "{text}");
        }
        assert_eq!(inodes("4294967295"), Ok(u64::from(u32::MAX)));
        for text in ["4294967296", "-1", "many", ""] {
            assert!(inodes(text).is_err(), "{text}");
        }
        assert_eq!(bytes_per_inode("1K"), Ok(1024));
        for text in ["1023", "1", "0", "-1024"] {
            assert!(bytes_per_inode(text).is_err(), "{text}");
        }
        assert_eq!(inode_size("128"), Ok(128));
        for text in ["64", "100", "0", "65536", "-1"] {
            assert!(inode_size(text).is_err(), "{text}");
        }
        assert!(label("sixteen bytes ok").is_ok() && label("").is_ok());
        assert!(label("seventeen bytes !").is_err());
        assert_eq!(reserved_percent("2.5"), Ok(2.5));
        for text in ["51", "-1", "NaN", "inf", "ten"] {
            assert!(reserved_percent(text).is_err(), "{text}");
        }
        assert_eq!(journal_blocks((1 << 20) + 1, 4096).ok(), Some(256));
        assert!(journal_blocks(1 << 44, 4096).is_err());
        for text in ["none", "^has_journal", " quota", ""] {
            assert_eq!(feature(text).as_deref(), Ok(text));
        }
        for text in ["foo", "^foo", "^none"] {
            assert!(feature(text).is_err(), "{text}");
        }
    }
}
