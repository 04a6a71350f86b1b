//! Directory trees of the host as a source.
//!
//! No symbolic link is followed, not even one that replaces a directory on the path while the tree
//! is read: such a path fails. If a file changes while it is read, the edit fails with an error
//! that names it.

mod folder;

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use pext4_fs::{DeviceNumber, FileType, Time};
use pext4_ondisk::acl;
use rustix::fs::{AtFlags, Mode, OFlags, RawDir, SeekFrom};
use rustix::io::Errno;

use crate::error::{EditError, On, Result};
use crate::source::{Facts, Sink, Source};
use folder::{Folder, Opened, base};

/// Maximum number of bytes read at once.
const PIECE: usize = 1 << 20;
/// Size of the buffer for entries of a directory, in bytes.
const LISTING: usize = 64 << 10;
/// Maximum length of a list of names, and of a value, of extended attributes in Linux, in bytes.
const MAX_ATTRIBUTE_BYTES: usize = 1 << 16;
/// The namespaces of extended attributes that ext4 stores.
const NAMESPACES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];

/// The host's file system.
pub(crate) struct Host {
    /// Whether to read extended attributes.
    xattrs: bool,
    opened: Opened,
}

/// A file of the host.
pub(crate) struct HostFile {
    /// Its parent directory; `None` for the root of a tree.
    parent: Option<Rc<Folder>>,
    /// Its name in the parent; for the root, the path.
    name: OsString,
    /// The path, for errors.
    path: PathBuf,
}

impl Host {
    pub(crate) fn new(xattrs: bool) -> Self {
        Self {
            xattrs,
            opened: Opened::default(),
        }
    }

    /// The root of a tree.
    pub(crate) fn root(path: &Path) -> HostFile {
        HostFile {
            parent: None,
            name: path.into(),
            path: path.to_owned(),
        }
    }

    /// The open parent directory of a file; `None` for the root of a tree, whose path is relative
    /// to the working directory.
    fn parent(&self, file: &HostFile) -> io::Result<Option<Rc<OwnedFd>>> {
        file.parent
            .as_ref()
            .map(|parent| self.opened.at(parent))
            .transpose()
    }
}

impl Source for Host {
    type Node = HostFile;

    fn facts(&self, file: &HostFile) -> Result<Facts> {
        let path = &file.path;
        let parent = self.parent(file).on(path, "look at it")?;
        let directory = base(parent.as_deref());
        let stat = rustix::fs::statat(directory, &file.name, AtFlags::SYMLINK_NOFOLLOW)
            .on(path, "look at it")?;
        let kind = kind_of(stat.st_mode).ok_or_else(|| EditError::Host {
            path: path.clone(),
            action: "take it",
            source: io::Error::other("ext4 has no such kind of file"),
        })?;
        let target = match kind {
            FileType::Symlink => rustix::fs::readlinkat(directory, &file.name, Vec::new())
                .on(path, "read the link")?
                .into_bytes(),
            _ => Vec::new(),
        };
        let xattrs = if self.xattrs {
            xattrs(&path_through(parent.as_deref(), file), path)?
        } else {
            Vec::new()
        };
        let many = stat.st_nlink > 1 && kind != FileType::Directory;
        Ok(Facts {
            kind,
            permissions: u16::try_from(stat.st_mode & 0o7777).expect("twelve bits"),
            uid: stat.st_uid,
            gid: stat.st_gid,
            accessed: time(stat.st_atime, stat.st_atime_nsec),
            modified: time(stat.st_mtime, stat.st_mtime_nsec),
            size: u64::try_from(stat.st_size).unwrap_or(0),
            device: device_of(kind, stat.st_rdev),
            target,
            xattrs,
            identity: many.then_some((stat.st_dev, stat.st_ino)),
        })
    }

    fn children(&self, file: &HostFile) -> Result<Vec<(Vec<u8>, HostFile)>> {
        let path = &file.path;
        let entered = self.opened.enter(file.parent.as_ref(), &file.name);
        let folder = entered.on(path, "open it")?;
        let open = self.opened.at(&folder).on(path, "open it")?;
        let mut listing = vec![MaybeUninit::uninit(); LISTING];
        let mut entries = RawDir::new(&*open, &mut listing);
        let mut children = Vec::new();
        while let Some(entry) = entries.next() {
            let entry = entry.on(path, "list it")?;
            let name = entry.file_name().to_bytes();
            if !matches!(name, b"." | b"..") {
                children.push((name.to_vec(), folder_child(&folder, path, name)));
            }
        }
        children.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        Ok(children)
    }

    fn content(&self, file: &HostFile, facts: &Facts, sink: Sink<'_>) -> Result<()> {
        let path = &file.path;
        let parent = self.parent(file).on(path, "open it")?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let open = rustix::fs::openat(base(parent.as_deref()), &file.name, flags, Mode::empty());
        let file = File::from(open.on(path, "open it")?);
        let before = file.metadata().on(path, "look at it")?;
        let modified = time(before.mtime(), before.mtime_nsec());
        let is_same = before.len() == facts.size && modified == facts.modified;
        if !before.is_file() || !is_same {
            return Err(changed(path));
        }
        let mut piece = vec![0; PIECE];
        let mut at = 0;
        while let Some((start, end)) = next_data(&file, at, before.len()).on(path, "read it")? {
            at = start;
            while at < end {
                let length = usize::try_from(end - at).map_or(PIECE, |left| left.min(PIECE));
                let read = file.read_at(&mut piece[..length], at).on(path, "read it")?;
                if read == 0 {
                    return Err(changed(path));
                }
                sink(at, &piece[..read])?;
                at += read as u64;
            }
        }
        let after = file.metadata().on(path, "look at it")?;
        let stamp = |stat: &Metadata| (stat.len(), stat.mtime(), stat.mtime_nsec());
        if stamp(&before) == stamp(&after) {
            Ok(())
        } else {
            Err(changed(path))
        }
    }
}

fn changed(path: &Path) -> EditError {
    EditError::Host {
        path: path.to_owned(),
        action: "copy it",
        source: io::Error::other("it changed while it was read"),
    }
}

/// The start and end of the next run of data at or after `at`; `None` if there is none.
fn next_data(file: &File, at: u64, size: u64) -> io::Result<Option<(u64, u64)>> {
    if at >= size {
        return Ok(None);
    }
    let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(None),
        // The host's file system does not report holes: everything is data.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(Some((at, size))),
        Err(errno) => return Err(errno.into()),
    };
    let end = rustix::fs::seek(file, SeekFrom::Hole(start)).unwrap_or(size);
    Ok((start < size).then_some((start, end.min(size))))
}

fn kind_of(mode: u32) -> Option<FileType> {
    use rustix::fs::FileType as Host;
    Some(match Host::from_raw_mode(mode) {
        Host::RegularFile => FileType::Regular,
        Host::Directory => FileType::Directory,
        Host::Symlink => FileType::Symlink,
        Host::CharacterDevice => FileType::CharacterDevice,
        Host::BlockDevice => FileType::BlockDevice,
        Host::Fifo => FileType::Fifo,
        Host::Socket => FileType::Socket,
        Host::Unknown => return None,
    })
}

fn folder_child(folder: &Rc<Folder>, path: &Path, name: &[u8]) -> HostFile {
    let name = OsStr::from_bytes(name);
    HostFile {
        parent: Some(Rc::clone(folder)),
        name: name.to_owned(),
        path: path.join(name),
    }
}

/// A path for system calls that take no open directory: through the open parent in `/proc`, or, if
/// `/proc` is not mounted, the whole path.
fn path_through(parent: Option<&OwnedFd>, file: &HostFile) -> PathBuf {
    let open = parent.map(|parent| PathBuf::from(format!("/proc/self/fd/{}", parent.as_raw_fd())));
    match open.filter(|open| open.exists()) {
        Some(open) => open.join(&file.name),
        None => file.path.clone(),
    }
}

fn device_of(kind: FileType, number: u64) -> DeviceNumber {
    match kind {
        FileType::CharacterDevice | FileType::BlockDevice => DeviceNumber {
            major: rustix::fs::major(number),
            minor: rustix::fs::minor(number),
        },
        _ => DeviceNumber::default(),
    }
}

fn time(seconds: i64, nanoseconds: impl TryInto<u32>) -> Time {
    Time {
        seconds,
        nanoseconds: nanoseconds.try_into().unwrap_or(0),
    }
}

/// The extended attributes of the file at `real` that ext4 can store, sorted by name; `path` is for
/// errors.
fn xattrs(real: &Path, path: &Path) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut list = vec![0; MAX_ATTRIBUTE_BYTES];
    let length = match rustix::fs::llistxattr(real, list.as_mut_slice()) {
        Ok(length) => length,
        Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
        Err(errno) => return Err(errno).on(path, "list its extended attributes"),
    };
    let names = list[..length].split(|&byte| byte == 0);
    let mut found = Vec::new();
    for name in names.filter(|name| is_stored(name)) {
        let mut value = vec![0; MAX_ATTRIBUTE_BYTES];
        let key = OsStr::from_bytes(name);
        let length = rustix::fs::lgetxattr(real, key, value.as_mut_slice())
            .on(path, "read its extended attributes")?;
        value.truncate(length);
        if acl::is_list(name) {
            value = acl::call_to_stored(&value).map_err(|_| EditError::Host {
                path: path.to_owned(),
                action: "understand its access control list",
                source: io::ErrorKind::InvalidData.into(),
            })?;
        }
        found.push((name.to_vec(), value));
    }
    found.sort_unstable();
    Ok(found)
}

fn is_stored(name: &[u8]) -> bool {
    acl::is_list(name) || NAMESPACES.iter().any(|space| name.starts_with(space))
}

/// The last name of a path of the host. `.` and `..` are resolved first.
pub(crate) fn name_of(path: &Path) -> Result<Vec<u8>> {
    if let Some(name) = path.file_name() {
        return Ok(name.as_bytes().to_vec());
    }
    let whole = fs::canonicalize(path).on(path, "find it")?;
    let name = whole.file_name().map(OsString::from).unwrap_or_default();
    Ok(name.into_vec())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::{Host, Source};

    #[test]
    fn a_file_that_grows_or_shrinks_before_it_is_opened_is_an_error() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("file");
        let host = Host::new(false);
        let file = Host::root(&path);
        for later in [&b"longer than before"[..], b"less"] {
            fs::write(&path, b"as it was").expect("it is ours");
            let facts = host.facts(&file).expect("it is there");
            let read = || host.content(&file, &facts, &mut |_, _| Ok(()));
            read().expect("it is as it was");
            fs::write(&path, later).expect("it is ours");
            let error = read().expect_err("it has changed").to_string();
            assert!(error.contains("it changed while it was read"), "{error}");
        }
    }

    /// Names, contents and attributes are never read from the target of the link.
    #[test]
    fn a_link_that_replaces_a_directory_is_not_followed() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let at = |name: &str| folder.path().join(name);
        for (directory, content) in [("tree/sub", &b"ours"[..]), ("secret", b"not to be seen")] {
            fs::create_dir_all(at(directory)).expect("a fresh place");
            fs::write(at(directory).join("file"), content).expect("a fresh place");
        }
        let host = Host::new(true);
        let (_, sub) = host
            .children(&Host::root(&at("tree")))
            .expect("there")
            .remove(0);
        let (_, file) = host.children(&sub).expect("there").remove(0);
        fs::rename(at("tree/sub"), at("tree/moved")).expect("ours");
        symlink(at("secret"), at("tree/sub")).expect("ours");
        let mut read = Vec::new();
        let facts = host.facts(&file).expect("its directory is open");
        let take = &mut |_, piece: &[u8]| {
            read.extend_from_slice(piece);
            Ok(())
        };
        host.content(&file, &facts, take)
            .expect("it is there still");
        assert_eq!(read, b"ours");
        let error = host.children(&sub).err().expect("a link is no directory");
        assert!(
            error.to_string().contains("tree/sub: cannot open it"),
            "{error}"
        );
    }
}
