//! Directories of the host that are read or filled. Files are opened by name in an open directory,
//! never by a whole path.
//!
//! So a path may be longer than the system accepts, and a directory that is moved away or replaced
//! by a symbolic link meanwhile leads nowhere else. A tree may be deeper than a process may have
//! files open: only the [`MAX_OPEN`] most recently opened directories stay open. A closed one is
//! opened again from its nearest open ancestor, name by name, and must have the same device and
//! inode number as before.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use rustix::fs::{CWD, Mode, OFlags};

/// The maximum number of directories that are open at a time.
pub(crate) const MAX_OPEN: usize = 128;

/// The flags by which a directory is opened.
const FLAGS: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// A directory, open or not.
pub(crate) struct HostDirectory {
    /// Its parent; `None` for the top of the tree.
    parent: Option<Rc<HostDirectory>>,
    name: Box<OsStr>,
    /// Device and inode number.
    identity: (u64, u64),
    open: RefCell<Option<Rc<OwnedFd>>>,
}

/// The open directories.
#[derive(Default)]
pub(crate) struct OpenDirectories {
    /// Where the name of a top is looked up; `None` for the working directory.
    base: Option<Rc<OwnedFd>>,
    /// The most recently opened one last.
    latest: RefCell<VecDeque<Rc<HostDirectory>>>,
}

impl OpenDirectories {
    /// Those of trees whose tops are in this directory.
    pub(crate) fn below(base: Rc<OwnedFd>) -> Self {
        Self {
            base: Some(base),
            ..Self::default()
        }
    }

    /// Opens the directory of this name in `parent`, or at this path if it is a top.
    pub(crate) fn enter(
        &self,
        parent: Option<&Rc<HostDirectory>>,
        name: &OsStr,
    ) -> io::Result<Rc<HostDirectory>> {
        let open = self.open(parent, name)?;
        let directory = Rc::new(HostDirectory {
            parent: parent.cloned(),
            name: name.into(),
            identity: identity(&open)?,
            open: RefCell::new(Some(open)),
        });
        self.add(&directory);
        Ok(directory)
    }

    /// The descriptor of a directory, which is opened again if it was closed.
    pub(crate) fn descriptor(&self, directory: &Rc<HostDirectory>) -> io::Result<Rc<OwnedFd>> {
        if let Some(open) = &*directory.open.borrow() {
            return Ok(Rc::clone(open));
        }
        let open = self.open(directory.parent.as_ref(), &directory.name)?;
        if identity(&open)? != directory.identity {
            return Err(io::Error::other(
                "a directory on the way to it is another one by now",
            ));
        }
        *directory.open.borrow_mut() = Some(Rc::clone(&open));
        self.add(directory);
        Ok(open)
    }

    fn open(&self, parent: Option<&Rc<HostDirectory>>, name: &OsStr) -> io::Result<Rc<OwnedFd>> {
        let parent = match parent {
            Some(parent) => Some(self.descriptor(parent)?),
            None => self.base.clone(),
        };
        let open = rustix::fs::openat(base(parent.as_deref()), name, FLAGS, Mode::empty())?;
        Ok(Rc::new(open))
    }

    /// Adds a directory that was opened. Closes the least recently opened ones if more than
    /// [`MAX_OPEN`] are open.
    fn add(&self, directory: &Rc<HostDirectory>) {
        let mut latest = self.latest.borrow_mut();
        latest.push_back(Rc::clone(directory));
        while latest.len() > MAX_OPEN {
            let oldest = latest.pop_front();
            oldest.map(|oldest| oldest.open.take());
        }
    }
}

/// The directory to pass to a system call: the open one, or the working directory.
pub(crate) fn base(open: Option<&OwnedFd>) -> BorrowedFd<'_> {
    open.map_or(CWD, AsFd::as_fd)
}

fn identity(open: &OwnedFd) -> io::Result<(u64, u64)> {
    let stat = rustix::fs::fstat(open)?;
    Ok((stat.st_dev, stat.st_ino))
}
