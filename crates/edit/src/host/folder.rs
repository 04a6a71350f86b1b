//! Directories of the host that are read. Names are looked up in an open directory, never by a
//! whole path.
//!
//! So a path may be longer than the system's limit, and if a directory is moved or replaced by a
//! symbolic link meanwhile, no other directory is read in its place. A tree may be deeper than the
//! number of files that a process may have open: only the directories that were opened last stay
//! open. A closed one is opened again from its nearest open ancestor, name by name, and must be the
//! same directory.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use rustix::fs::{CWD, Mode, OFlags};

/// Maximum number of directories that are open at a time.
const MAX_OPEN: usize = 128;

/// How a directory is opened.
const FLAGS: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// A directory, open or not.
pub(super) struct Folder {
    /// Its parent; `None` for the root of the tree.
    parent: Option<Rc<Folder>>,
    name: Box<OsStr>,
    /// Device and number.
    identity: (u64, u64),
    open: RefCell<Option<Rc<OwnedFd>>>,
}

/// The open directories, the one that was opened last at the end.
#[derive(Default)]
pub(super) struct Opened(RefCell<VecDeque<Rc<Folder>>>);

impl Opened {
    /// Opens the directory with this name in its parent; without a parent, `name` is a path.
    pub(super) fn enter(
        &self,
        parent: Option<&Rc<Folder>>,
        name: &OsStr,
    ) -> io::Result<Rc<Folder>> {
        let open = self.open(parent, name)?;
        let folder = Rc::new(Folder {
            parent: parent.cloned(),
            name: name.into(),
            identity: identity(&open)?,
            open: RefCell::new(Some(open)),
        });
        self.note(&folder);
        Ok(folder)
    }

    /// The open directory, which is opened again if it was closed.
    pub(super) fn at(&self, folder: &Rc<Folder>) -> io::Result<Rc<OwnedFd>> {
        if let Some(open) = &*folder.open.borrow() {
            return Ok(Rc::clone(open));
        }
        let open = self.open(folder.parent.as_ref(), &folder.name)?;
        if identity(&open)? != folder.identity {
            return Err(io::Error::other(
                "a directory on its path was replaced by another one",
            ));
        }
        *folder.open.borrow_mut() = Some(Rc::clone(&open));
        self.note(folder);
        Ok(open)
    }

    fn open(&self, parent: Option<&Rc<Folder>>, name: &OsStr) -> io::Result<Rc<OwnedFd>> {
        let parent = parent.map(|parent| self.at(parent)).transpose()?;
        let open = rustix::fs::openat(base(parent.as_deref()), name, FLAGS, Mode::empty())?;
        Ok(Rc::new(open))
    }

    /// Records an opened directory, and closes the ones that were opened longest ago while too many
    /// are open.
    fn note(&self, folder: &Rc<Folder>) {
        let mut latest = self.0.borrow_mut();
        latest.push_back(Rc::clone(folder));
        while latest.len() > MAX_OPEN {
            let oldest = latest.pop_front();
            oldest.map(|oldest| oldest.open.take());
        }
    }
}

/// The directory in which names are looked up: the open one, or the working directory.
pub(super) fn base(open: Option<&OwnedFd>) -> BorrowedFd<'_> {
    open.map_or(CWD, AsFd::as_fd)
}

fn identity(open: &OwnedFd) -> io::Result<(u64, u64)> {
    let stat = rustix::fs::fstat(open)?;
    Ok((stat.st_dev, stat.st_ino))
}
