//! Trees of the host as a [`Source`].
//!
//! No symbolic link is followed, even if a directory of the tree is replaced by one meanwhile. A
//! file that changes while it is read is an error that names it. The image that is being edited is
//! left out of trees: it changes while it is read, and would grow into itself.

pub(crate) mod directory;

use std::cell::RefCell;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use pext4_block::next_data;
use pext4_fs::{DeviceNumber, FileType, Time};
use pext4_ondisk::acl;
use rustix::fs::{AtFlags, Mode, OFlags, RawDir, RawDirEntry};
use rustix::io::Errno;

use crate::error::{EditError, HostContext, Result, Shown};
use crate::source::{FileMetadata, PIECE, Sink, Source};
use directory::{HostDirectory, OpenDirectories, base};

/// Bytes of a directory read at a time.
const LISTING: usize = 64 << 10;
/// Linux's maximum length of an extended attribute's value, and of the list of names.
const MAX_ATTRIBUTE_BYTES: usize = 1 << 16;
/// The attribute namespaces that ext4 has, besides the access control lists.
const NAMESPACES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];

/// The host's files.
pub(crate) struct HostTree<'e> {
    /// Whether extended attributes are copied.
    xattrs: bool,
    /// Whether the file with this device and inode number is the one that is being edited.
    is_edited: &'e dyn Fn(u64, u64) -> bool,
    /// The paths that were left out.
    left_out: RefCell<Vec<PathBuf>>,
    opened: OpenDirectories,
}

/// A file of the host.
pub(crate) struct HostFile {
    /// Its directory; `None` for the top of a tree.
    parent: Option<Rc<HostDirectory>>,
    /// Its name in the directory; for the top the whole path.
    name: OsString,
    /// The path, for errors.
    path: PathBuf,
}

impl<'e> HostTree<'e> {
    pub(crate) fn new(xattrs: bool, is_edited: &'e dyn Fn(u64, u64) -> bool) -> Self {
        Self {
            xattrs,
            is_edited,
            left_out: RefCell::default(),
            opened: OpenDirectories::default(),
        }
    }

    /// The top of a tree.
    pub(crate) fn top(path: &Path) -> HostFile {
        HostFile {
            parent: None,
            name: path.into(),
            path: path.to_owned(),
        }
    }

    /// The paths that were left out of the trees read so far.
    pub(crate) fn into_left_out(self) -> Vec<PathBuf> {
        self.left_out.into_inner()
    }

    /// Whether a name in an open directory is that of the file that is being edited.
    fn is_name_of_edited(&self, directory: &OwnedFd, entry: &RawDirEntry<'_>) -> bool {
        use rustix::fs::FileType::{RegularFile, Unknown};
        if !matches!(entry.file_type(), RegularFile | Unknown) {
            return false;
        }
        let stat = rustix::fs::statat(directory, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW);
        // A name that has vanished is an error once it is read.
        stat.is_ok_and(|stat| (self.is_edited)(stat.st_dev, stat.st_ino))
    }

    /// The open directory of a file; `None` for the top, whose path is relative to the working
    /// directory.
    fn parent(&self, file: &HostFile) -> io::Result<Option<Rc<OwnedFd>>> {
        file.parent
            .as_ref()
            .map(|parent| self.opened.descriptor(parent))
            .transpose()
    }
}

impl Source for HostTree<'_> {
    type Node = HostFile;
    type Children = std::vec::IntoIter<(Vec<u8>, HostFile)>;

    fn metadata(&self, file: &HostFile) -> Result<FileMetadata> {
        let path = &file.path;
        let parent = self.parent(file).with_host_file(path, "look at it")?;
        let directory = base(parent.as_deref());
        let stat = rustix::fs::statat(directory, &file.name, AtFlags::SYMLINK_NOFOLLOW)
            .with_host_file(path, "look at it")?;
        let kind = kind_of(stat.st_mode).ok_or_else(|| EditError::Host {
            path: path.clone(),
            action: "take it",
            source: io::Error::other("it is of no kind that ext4 knows"),
        })?;
        if kind == FileType::Regular && (self.is_edited)(stat.st_dev, stat.st_ino) {
            return Err(EditError::Refused(format!(
                "{}: it is the image that is being edited, which cannot be put into itself",
                Shown(path.as_os_str().as_bytes())
            )));
        }
        let target = match kind {
            FileType::Symlink => rustix::fs::readlinkat(directory, &file.name, Vec::new())
                .with_host_file(path, "read the link")?
                .into_bytes(),
            _ => Vec::new(),
        };
        let xattrs = if self.xattrs {
            xattrs(&reach(parent.as_deref(), file), path)?
        } else {
            Vec::new()
        };
        let many = stat.st_nlink > 1 && kind != FileType::Directory;
        Ok(FileMetadata {
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
            flags: None,
            identity: many.then_some((stat.st_dev, stat.st_ino)),
        })
    }

    fn children(&self, file: &HostFile) -> Result<Self::Children> {
        let path = &file.path;
        let entered = self.opened.enter(file.parent.as_ref(), &file.name);
        let directory = entered.with_host_file(path, "open it")?;
        let open = self
            .opened
            .descriptor(&directory)
            .with_host_file(path, "open it")?;
        let mut listing = vec![MaybeUninit::uninit(); LISTING];
        let mut entries = RawDir::new(&*open, &mut listing);
        let mut children = Vec::new();
        while let Some(entry) = entries.next() {
            let entry = entry.with_host_file(path, "list it")?;
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            let child = child(&directory, path, name);
            if self.is_name_of_edited(&open, &entry) {
                self.left_out.borrow_mut().push(child.path);
            } else {
                children.push((name.to_vec(), child));
            }
        }
        children.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        Ok(children.into_iter())
    }

    fn content(&self, file: &HostFile, metadata: &FileMetadata, sink: Sink<'_>) -> Result<()> {
        let path = &file.path;
        let parent = self.parent(file).with_host_file(path, "open it")?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let open = rustix::fs::openat(base(parent.as_deref()), &file.name, flags, Mode::empty());
        let file = File::from(open.with_host_file(path, "open it")?);
        let before = file.metadata().with_host_file(path, "look at it")?;
        if before.is_file() && before.len() == 0 && metadata.size == 0 {
            check_empty(&file, path)?;
        }
        let modified = time(before.mtime(), before.mtime_nsec());
        let is_same = before.len() == metadata.size && modified == metadata.modified;
        if !before.is_file() || !is_same {
            return Err(changed(path));
        }
        let mut piece = vec![0; PIECE];
        let mut at = 0;
        while let Some(data) = next_data(&file, at, before.len()).with_host_file(path, "read it")? {
            at = data.start;
            while at < data.end {
                let length = usize::try_from(data.end - at).map_or(PIECE, |left| left.min(PIECE));
                let read = file
                    .read_at(&mut piece[..length], at)
                    .with_host_file(path, "read it")?;
                if read == 0 {
                    return Err(changed(path));
                }
                sink(at, &piece[..read])?;
                at += read as u64;
            }
        }
        let after = file.metadata().with_host_file(path, "look at it")?;
        let stamp = |stat: &Metadata| (stat.len(), stat.mtime(), stat.mtime_nsec());
        if stamp(&before) == stamp(&after) {
            Ok(())
        } else {
            Err(changed(path))
        }
    }
}

/// Refuses a file that claims to be empty and is not: the kernel makes its content as it is read.
fn check_empty(file: &File, path: &Path) -> Result<()> {
    let read = file.read_at(&mut [0], 0).with_host_file(path, "read it")?;
    if read == 0 {
        return Ok(());
    }
    let problem = "it says that it is empty and is not, as files of /proc and /sys do; \
                   `pext4 put IMAGE - /path <FILE` stores what it gives";
    Err(EditError::Host {
        path: path.to_owned(),
        action: "copy it",
        source: io::Error::other(problem),
    })
}

fn changed(path: &Path) -> EditError {
    EditError::Host {
        path: path.to_owned(),
        action: "copy it",
        source: io::Error::other("it changed while it was read"),
    }
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

fn child(directory: &Rc<HostDirectory>, path: &Path, name: &[u8]) -> HostFile {
    let name = OsStr::from_bytes(name);
    HostFile {
        parent: Some(Rc::clone(directory)),
        name: name.to_owned(),
        path: path.join(name),
    }
}

/// A path for system calls that take no directory: through the open directory in `/proc`, or the
/// file's whole path if `/proc` does not show it.
fn reach(parent: Option<&OwnedFd>, file: &HostFile) -> PathBuf {
    let through =
        parent.map(|parent| PathBuf::from(format!("/proc/self/fd/{}", parent.as_raw_fd())));
    match through.filter(|through| through.exists()) {
        Some(through) => through.join(&file.name),
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

/// The attributes of a file that ext4 can hold, sorted by name; `path` is for errors.
fn xattrs(reach: &Path, path: &Path) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut list = vec![0; MAX_ATTRIBUTE_BYTES];
    let length = match rustix::fs::llistxattr(reach, list.as_mut_slice()) {
        Ok(length) => length,
        Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
        Err(errno) => return Err(errno).with_host_file(path, "list its extended attributes"),
    };
    let names = list[..length].split(|&byte| byte == 0);
    let mut found = Vec::new();
    for name in names.filter(|name| is_ours(name)) {
        let mut value = vec![0; MAX_ATTRIBUTE_BYTES];
        let key = OsStr::from_bytes(name);
        let length = rustix::fs::lgetxattr(reach, key, value.as_mut_slice())
            .with_host_file(path, "read its extended attributes")?;
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

fn is_ours(name: &[u8]) -> bool {
    acl::is_list(name) || NAMESPACES.iter().any(|space| name.starts_with(space))
}

/// Whether a directory is at a path of the host. A link to one is none: links are copied as links.
pub(crate) fn is_directory(path: &Path) -> Result<bool> {
    let metadata = fs::symlink_metadata(path).with_host_file(path, "look at it")?;
    Ok(metadata.is_dir())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use rustix::fs::XattrFlags;

    use super::directory::MAX_OPEN;
    use super::{HostFile, HostTree, Source};

    /// The first child of a directory.
    fn only_child(host: &HostTree<'_>, directory: &HostFile) -> HostFile {
        let children = host.children(directory).expect("there");
        children.map(|(_, child)| child).next().expect("a child")
    }

    #[test]
    fn a_file_that_grows_or_shrinks_before_it_is_opened_is_told() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("file");
        let host = HostTree::new(false, &|_, _| false);
        let file = HostTree::top(&path);
        for later in [&b"longer than before"[..], b"less"] {
            fs::write(&path, b"as it was").expect("it is ours");
            let metadata = host.metadata(&file).expect("it is there");
            let read = || host.content(&file, &metadata, &mut |_, _| Ok(()));
            read().expect("it is as it was");
            fs::write(&path, later).expect("it is ours");
            let told = read().expect_err("it is another one").to_string();
            assert!(told.contains("it changed while it was read"), "{told}");
        }
    }

    /// Names, contents and attributes are read in the directory that was opened, not where the link
    /// leads.
    #[test]
    fn a_directory_that_gives_way_to_a_link_leads_nowhere_else() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let at = |name: &str| folder.path().join(name);
        for (directory, content) in [("tree/sub", &b"ours"[..]), ("secret", b"not to be seen")] {
            fs::create_dir_all(at(directory)).expect("a fresh place");
            fs::write(at(directory).join("file"), content).expect("a fresh place");
        }
        let (secret, value) = (at("secret/file"), b"not to be seen");
        if rustix::fs::setxattr(&secret, "user.secret", value, XattrFlags::empty()).is_err() {
            eprintln!("SKIPPED: no attributes can be set here");
        }
        let host = HostTree::new(true, &|_, _| false);
        let sub = only_child(&host, &HostTree::top(&at("tree")));
        let file = only_child(&host, &sub);
        fs::rename(at("tree/sub"), at("tree/moved")).expect("ours");
        symlink(at("secret"), at("tree/sub")).expect("ours");
        let mut read = Vec::new();
        let metadata = host.metadata(&file).expect("its directory is open");
        assert!(metadata.xattrs.is_empty(), "{:?}", metadata.xattrs);
        let take = &mut |_, piece: &[u8]| {
            read.extend_from_slice(piece);
            Ok(())
        };
        host.content(&file, &metadata, take)
            .expect("it is there still");
        assert_eq!(read, b"ours");
        let told = host.children(&sub).err().expect("a link is no directory");
        assert!(
            told.to_string().contains("tree/sub: cannot open it"),
            "{told}"
        );
    }

    /// A directory that was closed meanwhile, as others were opened, is opened again only if it is
    /// the same one.
    #[test]
    fn a_directory_that_another_one_has_replaced_is_not_entered() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let at = |name: &str| folder.path().join(name);
        for name in ["tree/sub", "another"] {
            fs::create_dir_all(at(name)).expect("a fresh place");
            fs::write(at(name).join("file"), name).expect("a fresh place");
        }
        let host = HostTree::new(false, &|_, _| false);
        let top = HostTree::top(&at("tree"));
        let sub = only_child(&host, &top);
        let file = only_child(&host, &sub);
        let open_others = || (0..MAX_OPEN).for_each(|_| drop(host.children(&top).expect("there")));
        open_others();
        assert_eq!(host.metadata(&file).expect("it is there").size, 8);
        open_others();
        fs::rename(at("tree/sub"), at("tree/moved")).expect("ours");
        fs::rename(at("another"), at("tree/sub")).expect("ours");
        let told = host.metadata(&file).expect_err("it is another directory");
        assert!(told.to_string().contains("is another one by now"), "{told}");
    }
}
