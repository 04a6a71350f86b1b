//! Copies out of an image, onto the host.
//!
//! The image may be hostile. Nothing is written outside of the copy: every file is created
//! (`O_EXCL`, `O_NOFOLLOW`) by its name in the descriptor of its directory. A tree is created as a
//! new directory that no other user may enter until the copy is complete. Names with slashes, `.`
//! and `..` are refused when they are listed. The whole copy, also that of a single file, has a
//! temporary name until it is complete.
//!
//! Modes, times (nanoseconds), holes, hard links and `user.` attributes are always kept; owners,
//! set-user-ID bits, devices and other attributes only if root copies.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pext4_block::temporary_name;
use pext4_fs::FileType;
use pext4_ondisk::acl;
use rustix::fs::{AtFlags, Gid, Mode, OFlags, RenameFlags, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use crate::change::last_name;
use crate::error::{EditError, HostContext, Result, refuse};
use crate::image_tree::{ImageFile, ImageTree};
use crate::progress::Progress;
use crate::reader::{Reader, check_depth};
use crate::source::{FileMetadata, Source};
use crate::unreadable::{OnSkipped, Unreadable};

/// How a directory of the copy is opened.
const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// The mode of a directory until the copy is complete.
const DIRECTORY_TO_FILL: Mode = Mode::RWXU;

/// How many temporary names are tried, if files with these names exist.
const MAX_ATTEMPTS: u32 = 100;

/// How to copy out.
#[derive(Clone, Debug)]
pub struct GetOptions {
    /// Keep owners, and with them set-user-ID bits and attributes of the system. Root's default.
    pub owners: bool,
    /// Leave devices out. If not, a device that cannot be created is an error.
    pub skip_devices: bool,
    /// Replace an existing file, but never a directory.
    pub force: bool,
}

impl Default for GetOptions {
    fn default() -> Self {
        Self {
            owners: rustix::process::geteuid().is_root(),
            skip_devices: false,
            force: false,
        }
    }
}

/// What was copied out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Copied {
    /// The path of the copy.
    pub path: PathBuf,
    /// The number of files of all kinds, directories included.
    pub files: u64,
    /// Bytes of data.
    pub bytes: u64,
    /// The number of devices that were left out.
    pub devices_skipped: u64,
    /// The number of extended attributes that were not copied.
    pub attributes_skipped: u64,
    /// The number of files that could not be read and were left out.
    pub unreadable_skipped: u64,
}

impl Reader {
    /// Copies a file or a tree to the host. If the destination is a directory, the copy is created
    /// in it under its own name. The destination of the image's root must be empty or missing.
    ///
    /// # Errors
    ///
    /// `AtPath` for a file that cannot be read in the image, `Host` for one that cannot be created.
    /// The copy is removed then.
    pub fn get(
        &self,
        path: impl AsRef<[u8]>,
        destination: impl AsRef<Path>,
        options: &GetOptions,
    ) -> Result<Copied> {
        self.get_with(path.as_ref(), destination.as_ref(), options, None)
    }

    /// As [`Self::get`], but skips files that cannot be read in the image, after calling
    /// `on_skipped`.
    ///
    /// # Errors
    ///
    /// The path does not exist or cannot be read itself; a file cannot be created on the host. The
    /// copy is removed then.
    pub fn get_readable(
        &self,
        path: impl AsRef<[u8]>,
        destination: impl AsRef<Path>,
        options: &GetOptions,
        on_skipped: &mut OnSkipped<'_>,
    ) -> Result<Copied> {
        self.get_with(
            path.as_ref(),
            destination.as_ref(),
            options,
            Some(on_skipped),
        )
    }

    fn get_with(
        &self,
        path: &[u8],
        destination: &Path,
        options: &GetOptions,
        on_skipped: Option<&mut OnSkipped<'_>>,
    ) -> Result<Copied> {
        let source = self.find(path)?;
        let image = ImageTree::new(self.volume());
        let is_tree = image.attributes(&source)?.file_type == FileType::Directory;
        let target = target(path, destination, is_tree)?;
        let parent = match target.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let name = target.file_name().unwrap_or_default();
        check_vacant(&target, options)?;
        let directory = open_directory(parent).with_host_file(parent, "open it")?;
        let mut extractor = Extractor {
            image,
            progress: self.progress(),
            options,
            base: directory.as_fd(),
            temporary: OsString::new(),
            has_made_top: false,
            target: &target,
            from: path,
            links: HashMap::new(),
            closed: Vec::new(),
            unreadable: Unreadable::new(on_skipped),
            copied: Copied::default(),
        };
        let done = extractor
            .extract_top(name, &source)
            .and_then(|()| extractor.close_directories())
            .and_then(|()| match extractor.has_made_top {
                true => Ok(()),
                false => refuse(path, "is a device, and devices are left out"),
            })
            .and_then(|()| {
                rename_into_place(&directory, &extractor.temporary, name, &target, options)
            });
        if let Err(error) = done {
            if extractor.has_made_top {
                let left = parent.join(&extractor.temporary);
                // If this fails, the copy stays under its temporary name.
                let _ = fs::remove_dir_all(&left).or_else(|_| fs::remove_file(&left));
            }
            return Err(error);
        }
        let (copied, unreadable_skipped) = (extractor.copied, extractor.unreadable.skipped);
        Ok(Copied {
            path: target,
            unreadable_skipped,
            ..copied
        })
    }
}

/// The path that the copy will have. A destination that ends in a slash may be missing if a
/// tree is copied, whose top is the directory there.
fn target(path: &[u8], destination: &Path, is_tree: bool) -> Result<PathBuf> {
    let name = OsStr::from_bytes(last_name(path));
    let inside = !name.is_empty() && name != "." && name != "..";
    let is_directory = destination.is_dir();
    if !is_directory && destination.as_os_str().as_bytes().ends_with(b"/") && inside {
        // Without the slash, which would have a link followed.
        let new = destination.components().as_path();
        if is_tree && new.file_name().is_some() && is_missing(new) {
            return Ok(new.to_owned());
        }
        return Err(Errno::NOTDIR).with_host_file(destination, "copy into it");
    }
    if is_directory && inside {
        return Ok(destination.join(name));
    }
    if destination.file_name().is_some() {
        return Ok(destination.to_owned());
    }
    fs::canonicalize(destination).with_host_file(destination, "find it")
}

fn is_missing(path: &Path) -> bool {
    let found = fs::symlink_metadata(path);
    found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

fn check_vacant(target: &Path, options: &GetOptions) -> Result<()> {
    let problem = match fs::symlink_metadata(target) {
        Err(_) => return Ok(()),
        Ok(there) if there.is_dir() => {
            let mut names = fs::read_dir(target).with_host_file(target, "list it")?;
            if names.next().is_none() {
                return Ok(());
            }
            "it is a directory with something in it"
        }
        // A device or a pipe, or a link to one, is not to be replaced by a file.
        Ok(_) if fs::metadata(target).is_ok_and(|there| !there.is_file() && !there.is_dir()) => {
            "it is no regular file"
        }
        Ok(_) if options.force => return Ok(()),
        Ok(_) => "it is there already; --force replaces it",
    };
    Err(io::Error::other(problem)).with_host_file(target, "copy to it")
}

fn open_directory(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
}

fn rename_into_place(
    directory: &OwnedFd,
    temporary: &OsStr,
    name: &OsStr,
    target: &Path,
    options: &GetOptions,
) -> Result<()> {
    let is_empty_directory = target.is_dir();
    let renamed = if options.force || is_empty_directory {
        rustix::fs::renameat(directory, temporary, directory, name)
    } else {
        let flags = RenameFlags::NOREPLACE;
        match rustix::fs::renameat_with(directory, temporary, directory, name, flags) {
            // The file system does not support the flag. `check_vacant` has checked the target.
            Err(Errno::INVAL | Errno::NOSYS) => {
                rustix::fs::renameat(directory, temporary, directory, name)
            }
            done => done,
        }
    };
    renamed.with_host_file(target, "put the copy here")
}

struct Extractor<'r, 'l> {
    image: ImageTree<'r>,
    progress: Arc<Progress>,
    options: &'r GetOptions,
    /// The parent directory of the copy and the copy's temporary name there, for hard links.
    base: BorrowedFd<'r>,
    temporary: OsString,
    /// Whether the file of that name is the copy. If not, it belongs to somebody else.
    has_made_top: bool,
    /// The final path of the copy, for errors, and the path in the image.
    target: &'r Path,
    from: &'r [u8],
    /// The first name of files with several names, relative to the top.
    links: HashMap<(u64, u64), PathBuf>,
    /// Directories whose modes keep their owner out, each after those in it. They get these modes
    /// at the end: until then this process must enter them for hard links, and to remove them if
    /// the copy fails.
    closed: Vec<(PathBuf, Mode)>,
    unreadable: Unreadable<'r, 'l>,
    copied: Copied,
}

impl Extractor<'_, '_> {
    /// Creates the whole copy under the first temporary name that is free. The process ID in the
    /// name does not tell two readers of one process apart.
    fn extract_top(&mut self, name: &OsStr, source: &ImageFile) -> Result<()> {
        self.progress.add_file()?;
        let base = self.base;
        for attempt in 0..MAX_ATTEMPTS {
            let mark = format!(".pext4-{}.{attempt}", std::process::id());
            let temporary = temporary_name(name, &mark);
            temporary.clone_into(&mut self.temporary);
            match self.extract(base, &temporary, source, Path::new(""), 0) {
                Err(EditError::Host { source, .. })
                    if !self.has_made_top && source.kind() == io::ErrorKind::AlreadyExists => {}
                done => return done,
            }
        }
        Err(io::Error::from(io::ErrorKind::AlreadyExists))
            .with_host_file(self.target, "make a file beside it")
    }

    /// Creates `source` as `name` in `directory`. `path` is relative to the top.
    fn extract(
        &mut self,
        directory: BorrowedFd<'_>,
        name: &OsStr,
        source: &ImageFile,
        path: &Path,
        depth: u32,
    ) -> Result<()> {
        let metadata = self.image.metadata(source)?;
        if let Some(first) = metadata.identity.and_then(|key| self.links.get(&key)) {
            let flags = AtFlags::empty();
            let old = first.file_name().unwrap_or_default();
            return self
                .open_above(first)
                .and_then(|above| rustix::fs::linkat(&above, old, directory, name, flags))
                .with_host_file(&self.host_path(source), "make its other name");
        }
        if depth > 0 {
            self.progress.add_file()?;
        }
        let made = match metadata.kind {
            FileType::Directory => {
                self.directory(directory, name, source, &metadata, path, depth)?
            }
            FileType::Regular => self.file(directory, name, source, &metadata)?,
            FileType::Symlink => {
                let target = OsStr::from_bytes(&metadata.target);
                rustix::fs::symlinkat(target, directory, name)
                    .with_host_file(&self.host_path(source), "make it")?;
                self.has_made_top = true;
                self.apply_metadata_by_name(directory, name, source, &metadata)?;
                true
            }
            _ => self.special_file(directory, name, source, &metadata)?,
        };
        self.copied.files += u64::from(made);
        if let (true, Some(key)) = (made, metadata.identity) {
            self.links.insert(key, path.to_owned());
        }
        Ok(())
    }

    /// Opens the directory of a created file, name by name: the whole path may be longer than the
    /// system accepts.
    fn open_above(&self, path: &Path) -> rustix::io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut at = rustix::fs::openat(self.base, &self.temporary, flags, Mode::empty())?;
        for name in path.parent().into_iter().flatten() {
            at = rustix::fs::openat(&at, name, flags, Mode::empty())?;
        }
        Ok(at)
    }

    /// Sets the modes of directories that keep their owner out.
    fn close_directories(&self) -> Result<()> {
        let close = |path: &Path, mode: Mode| {
            let here = match path.file_name() {
                None => rustix::fs::openat(self.base, &self.temporary, DIRECTORY, Mode::empty())?,
                Some(name) => {
                    rustix::fs::openat(self.open_above(path)?, name, DIRECTORY, Mode::empty())?
                }
            };
            set_mode(here.as_fd(), mode)
        };
        self.closed.iter().try_for_each(|(path, mode)| {
            close(path, *mode).with_host_file(&self.target.join(path), "give it its mode")
        })
    }

    fn directory(
        &mut self,
        parent: BorrowedFd<'_>,
        name: &OsStr,
        source: &ImageFile,
        metadata: &FileMetadata,
        path: &Path,
        depth: u32,
    ) -> Result<bool> {
        check_depth(depth, &source.path)?;
        rustix::fs::mkdirat(parent, name, DIRECTORY_TO_FILL)
            .with_host_file(&self.host_path(source), "make it")?;
        self.has_made_top = true;
        let here = rustix::fs::openat(parent, name, DIRECTORY, Mode::empty());
        let here = here.with_host_file(&self.host_path(source), "open it")?;
        for (name, child) in self.image.readable_children(source, &mut self.unreadable)? {
            let name = OsString::from_vec(name);
            let path = path.join(&name);
            let extracted = self.extract(here.as_fd(), &name, &child, &path, depth + 1);
            self.unreadable.or_skip(extracted)?;
        }
        let mode = self.apply_metadata(here.as_fd(), source, metadata)?;
        if !mode.contains(DIRECTORY_TO_FILL) {
            self.closed.push((path.to_owned(), mode));
        }
        Ok(true)
    }

    fn file(
        &mut self,
        parent: BorrowedFd<'_>,
        name: &OsStr,
        source: &ImageFile,
        metadata: &FileMetadata,
    ) -> Result<bool> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(parent, name, flags, Mode::RUSR | Mode::WUSR);
        let file = File::from(file.with_host_file(&self.host_path(source), "make it")?);
        let is_top = !std::mem::replace(&mut self.has_made_top, true);
        let mut bytes = 0;
        let copied = self.image.content(source, metadata, &mut |offset, piece| {
            bytes += piece.len() as u64;
            self.progress.add_bytes(piece.len())?;
            file.write_all_at(piece, offset)
                .with_host_file(&self.host_path(source), "write it")
        });
        if copied.is_err() {
            rustix::fs::unlinkat(parent, name, AtFlags::empty())
                .with_host_file(&self.host_path(source), "remove what was copied of it")?;
            self.has_made_top = !is_top;
        }
        copied?;
        self.copied.bytes += bytes;
        file.set_len(metadata.size)
            .with_host_file(&self.host_path(source), "give it its size")?;
        self.apply_metadata(file.as_fd(), source, metadata)?;
        Ok(true)
    }

    fn special_file(
        &mut self,
        parent: BorrowedFd<'_>,
        name: &OsStr,
        source: &ImageFile,
        metadata: &FileMetadata,
    ) -> Result<bool> {
        let kind = match metadata.kind {
            FileType::CharacterDevice => rustix::fs::FileType::CharacterDevice,
            FileType::BlockDevice => rustix::fs::FileType::BlockDevice,
            FileType::Fifo => rustix::fs::FileType::Fifo,
            _ => rustix::fs::FileType::Socket,
        };
        let is_device = kind.is_block_device() || kind.is_char_device();
        if is_device && self.options.skip_devices {
            self.copied.devices_skipped += 1;
            return Ok(false);
        }
        let number = rustix::fs::makedev(metadata.device.major, metadata.device.minor);
        let mode = Mode::RUSR | Mode::WUSR;
        match rustix::fs::mknodat(parent, name, kind, mode, number) {
            Err(Errno::PERM) if is_device => Err(EditError::RefusedAtPath {
                path: source.path.clone(),
                problem: "only root can make a device here; --skip-devices leaves devices out"
                    .to_owned(),
            }),
            done => done.with_host_file(&self.host_path(source), "make it"),
        }?;
        self.has_made_top = true;
        self.apply_metadata_by_name(parent, name, source, metadata)?;
        Ok(true)
    }

    /// Sets the attributes of an open file, and returns its mode; a directory stays open to the
    /// copy. The owner comes first, since a change of owner removes capabilities and set-user-ID
    /// bits. The mode comes after the extended attributes, since an ordinary user cannot set any on
    /// a file that is not writable.
    fn apply_metadata(
        &mut self,
        file: BorrowedFd<'_>,
        source: &ImageFile,
        metadata: &FileMetadata,
    ) -> Result<Mode> {
        if self.options.owners {
            let (uid, gid) = owner(metadata);
            fchown(file, Some(uid.as_raw()), Some(gid.as_raw()))
                .with_host_file(&self.host_path(source), "give it its owner")?;
        }
        let mode = self.apply_attributes(metadata, |name, value| {
            rustix::fs::fsetxattr(file, name, value, XattrFlags::empty())
        });
        let open = match metadata.kind {
            FileType::Directory => DIRECTORY_TO_FILL,
            _ => Mode::empty(),
        };
        set_mode(file, mode | open).with_host_file(&self.host_path(source), "give it its mode")?;
        rustix::fs::futimens(file, &times(metadata))
            .with_host_file(&self.host_path(source), "give it its times")?;
        Ok(mode)
    }

    /// Sets the attributes of a link or special file, whose opening would have side effects.
    fn apply_metadata_by_name(
        &mut self,
        parent: BorrowedFd<'_>,
        name: &OsStr,
        source: &ImageFile,
        metadata: &FileMetadata,
    ) -> Result<()> {
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        if self.options.owners {
            let (uid, gid) = owner(metadata);
            rustix::fs::chownat(parent, name, Some(uid), Some(gid), flags)
                .with_host_file(&self.host_path(source), "give it its owner")?;
        }
        let path = Path::new("/proc/self/fd").join(parent.as_raw_fd().to_string());
        let path = path.join(name);
        let mode = self.apply_attributes(metadata, |name, value| {
            rustix::fs::lsetxattr(&path, name, value, XattrFlags::empty())
        });
        if metadata.kind != FileType::Symlink {
            // By the C library, as for `set_mode`.
            fs::set_permissions(&path, Permissions::from_mode(mode.as_raw_mode()))
                .or_else(|_| rustix::fs::chmodat(parent, name, mode, AtFlags::empty()))
                .with_host_file(&self.host_path(source), "give it its mode")?;
        }
        rustix::fs::utimensat(parent, name, &times(metadata), flags)
            .with_host_file(&self.host_path(source), "give it its times")
    }

    /// Sets the extended attributes, and returns the mode that belongs to what was set.
    fn apply_attributes(
        &mut self,
        metadata: &FileMetadata,
        set: impl Fn(&OsStr, &[u8]) -> rustix::io::Result<()>,
    ) -> Mode {
        let mut permissions = metadata.permissions;
        for (name, value) in &metadata.xattrs {
            let is_kept = self.wanted(name, value).is_some_and(|value| {
                let done = set(OsStr::from_bytes(name), &value);
                self.copied.attributes_skipped += u64::from(done.is_err());
                done.is_ok()
            });
            if name == acl::ACCESS && !is_kept {
                permissions = without_list(permissions, value);
            }
        }
        let kept = if self.options.owners { 0o7777 } else { 0o1777 };
        Mode::from_raw_mode(u32::from(permissions & kept))
    }

    /// The attribute's value on the host; `None` if it is not copied.
    fn wanted(&mut self, name: &[u8], value: &[u8]) -> Option<Vec<u8>> {
        let is_users = name.starts_with(b"user.") || acl::is_list(name);
        if !is_users && !self.options.owners {
            self.copied.attributes_skipped += 1;
            return None;
        }
        if acl::is_list(name) {
            let list = acl::stored_to_call(value).ok();
            self.copied.attributes_skipped += u64::from(list.is_none());
            return list;
        }
        Some(value.to_vec())
    }

    /// The path of a file on the host, for errors.
    fn host_path(&self, source: &ImageFile) -> PathBuf {
        let below = source.path.strip_prefix(self.from).unwrap_or_default();
        let below = below.strip_prefix(b"/").unwrap_or(below);
        match below {
            b"" => self.target.to_owned(),
            below => self.target.join(OsStr::from_bytes(below)),
        }
    }
}

/// Permissions of a file that loses its access list. With a list, their bits for the group are the
/// list's mask: without it they would give the group what only others were given.
fn without_list(permissions: u16, list: &[u8]) -> u16 {
    let entries = acl::decode(list).unwrap_or_default();
    let groups = entries
        .iter()
        .find(|entry| entry.tag == acl::GROUP_OBJECT)
        .map_or(0, |entry| entry.permissions & 7);
    permissions & !(0o070 & !(groups << 3))
}

fn owner(metadata: &FileMetadata) -> (Uid, Gid) {
    (Uid::from_raw(metadata.uid), Gid::from_raw(metadata.gid))
}

/// As fchmod(2). `rustix` calls the system past the C library here, as for a change of owner, and
/// so past what stands in its place, like `fakeroot`.
fn set_mode(file: BorrowedFd<'_>, mode: Mode) -> io::Result<()> {
    let file = File::from(file.try_clone_to_owned()?);
    file.set_permissions(Permissions::from_mode(mode.as_raw_mode()))
}

fn times(metadata: &FileMetadata) -> Timestamps {
    let time = |time: pext4_fs::Time| Timespec {
        tv_sec: time.seconds,
        tv_nsec: time.nanoseconds.into(),
    };
    Timestamps {
        last_access: time(metadata.accessed),
        last_modification: time(metadata.modified),
    }
}

#[cfg(test)]
mod tests {
    use pext4_ondisk::acl::{self, Entry};

    use super::without_list;

    #[test]
    fn a_group_gets_what_its_own_entry_gives_where_the_list_is_lost() {
        let entry = |tag, permissions| Entry {
            tag,
            permissions,
            id: acl::NO_ID,
        };
        let list = acl::encode(&[
            entry(acl::USER_OBJECT, 6),
            Entry {
                id: 1000,
                ..entry(acl::USER, 7)
            },
            entry(acl::GROUP_OBJECT, 4),
            entry(acl::MASK, 7),
            entry(acl::OTHER, 1),
        ]);
        assert_eq!(without_list(0o4671, &list), 0o4641);
        // The mask limits the entry.
        assert_eq!(without_list(0o621, &list), 0o601);
        assert_eq!(without_list(0o671, b"no list"), 0o601);
    }
}
