//! An image that is read without being mounted: nothing is written to it, and its journal is
//! replayed in memory.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use pext4_block::{Access, FileDevice};
use pext4_fs::{Attributes, Entry, FileType, InodeNumber, MountOptions, Volume};

use crate::names;

/// Symbolic links followed on one path before it is taken for a loop, as Linux does.
const MOST_LINKS: u32 = 40;
/// How long to wait for a mount that is just closing.
const PATIENCE: Duration = Duration::from_secs(5);

/// An opened image.
pub struct Reader {
    /// Its volume.
    pub volume: Volume,
}

impl Reader {
    /// Opens an image.
    ///
    /// # Errors
    /// It is in use, no ext4, or damaged.
    pub fn open(image: &Path) -> Result<Self> {
        let device = FileDevice::open(image, Access::ReadOnly, PATIENCE)?;
        let options = MountOptions {
            read_only: true,
            ..MountOptions::default()
        };
        let volume =
            Volume::open(Arc::new(device), options).with_context(|| image.display().to_string())?;
        Ok(Self { volume })
    }

    /// Finds what a path of the image leads to and calls `with` with it. A link at the end is
    /// followed if `follow`.
    ///
    /// # Errors
    /// There is no such path; or what `with` says.
    pub fn with<R>(
        &self,
        path: &OsStr,
        follow: bool,
        with: impl FnOnce(&Attributes) -> Result<R>,
    ) -> Result<R> {
        let entry = self
            .find(path.as_bytes(), follow)
            .with_context(|| names::show(path.as_bytes()))?;
        let done = with(&entry.attributes);
        self.forget(&entry);
        done
    }

    /// Calls `with` with the attributes behind one name of a directory.
    ///
    /// # Errors
    /// There is no such name; or what `with` says.
    pub fn with_child<R>(
        &self,
        directory: InodeNumber,
        name: &[u8],
        with: impl FnOnce(&Attributes) -> Result<R>,
    ) -> Result<R> {
        let entry = self.volume.lookup(directory, name)?;
        let done = with(&entry.attributes);
        self.forget(&entry);
        done
    }

    /// The names in a directory without `.` and `..`, sorted.
    ///
    /// # Errors
    /// The volume's.
    pub fn names(&self, directory: InodeNumber) -> Result<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        self.volume.read_directory(directory, 0, &mut |entry| {
            if !matches!(entry.name, b"." | b"..") {
                names.push(entry.name.to_vec());
            }
            true
        })?;
        names.sort_unstable();
        Ok(names)
    }

    /// The target of a link, or nothing for what is none.
    ///
    /// # Errors
    /// The volume's.
    pub fn target(&self, attributes: &Attributes) -> Result<Option<Vec<u8>>> {
        if attributes.file_type != FileType::Symlink {
            return Ok(None);
        }
        Ok(Some(self.volume.read_link(attributes.inode)?))
    }

    fn forget(&self, entry: &Entry) {
        self.volume.forget(entry.inode, 1);
    }

    /// Walks a path from the root. Links put their target in front of what is left.
    fn find(&self, path: &[u8], follow: bool) -> Result<Entry> {
        let mut here = self.volume.lookup(InodeNumber::ROOT, b".")?;
        let mut left = parts(path);
        let mut links = 0;
        while let Some(name) = left.pop() {
            let next = self.volume.lookup(here.inode, &name);
            let is_link = next
                .as_ref()
                .is_ok_and(|next| next.attributes.file_type == FileType::Symlink);
            if is_link && (follow || !left.is_empty()) {
                let next = next.expect("it was just found to be a link");
                let target = self.volume.read_link(next.inode);
                self.forget(&next);
                links += 1;
                if links > MOST_LINKS {
                    self.forget(&here);
                    bail!("more than {MOST_LINKS} symbolic links on the way; they may form a loop");
                }
                let target = target.inspect_err(|_| self.forget(&here))?;
                if target.starts_with(b"/") {
                    self.forget(&here);
                    here = self.volume.lookup(InodeNumber::ROOT, b".")?;
                }
                left.extend(parts(&target));
            } else {
                self.forget(&here);
                here = next?;
            }
        }
        Ok(here)
    }
}

/// The names of a path, the first last.
fn parts(path: &[u8]) -> Vec<Vec<u8>> {
    let names = path.split(|&byte| byte == b'/').rev();
    names
        .filter(|name| !name.is_empty() && *name != b".")
        .map(<[u8]>::to_vec)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::parts;

    #[test]
    fn a_path_is_taken_apart_from_its_end() {
        assert_eq!(
            parts(b"/usr//share/./doc/"),
            [&b"doc"[..], b"share", b"usr"]
        );
        assert_eq!(parts(b"a/../b"), [&b"b"[..], b"..", b"a"]);
        assert!(parts(b"/").is_empty());
        assert!(parts(b"").is_empty());
    }
}
