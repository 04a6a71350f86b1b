//! Directories of the host that are read: names are asked for in a directory that is open, never by a whole path.
//!
//! So a path may be longer than the system takes, and a directory that is moved away or gives way to a
//! symbolic link meanwhile leads nowhere else. A tree may be deeper than a process may have files open: of
//! the directories on the way to where the reading is, the latest stay open. One that was closed is opened
//! again from the nearest one above it that is open, name by name, and must be the one that it was.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use rustix::fs::{CWD, Mode, OFlags};

/// Directories that are open at a time.
const MAX_OPEN: usize = 128;

/// How a directory is opened.
const FLAGS: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// A directory, open or not.
pub(super) struct Folder {
    /// The directory it lies in; none has the one that the reading begins with.
    above: Option<Rc<Folder>>,
    name: Box<OsStr>,
    /// Device and number.
    identity: (u64, u64),
    open: RefCell<Option<Rc<OwnedFd>>>,
}

/// Which directories are open, the latest last.
#[derive(Default)]
pub(super) struct Opened(RefCell<VecDeque<Rc<Folder>>>);

impl Opened {
    /// Opens the directory of this name in another one, or at this path where there is none above.
    pub(super) fn enter(&self, above: Option<&Rc<Folder>>, name: &OsStr) -> io::Result<Rc<Folder>> {
        let open = self.open(above, name)?;
        let folder = Rc::new(Folder {
            above: above.cloned(),
            name: name.into(),
            identity: identity(&open)?,
            open: RefCell::new(Some(open)),
        });
        self.note(&folder);
        Ok(folder)
    }

    /// The open directory, opened again if need be.
    pub(super) fn at(&self, folder: &Rc<Folder>) -> io::Result<Rc<OwnedFd>> {
        if let Some(open) = &*folder.open.borrow() {
            return Ok(Rc::clone(open));
        }
        let open = self.open(folder.above.as_ref(), &folder.name)?;
        if identity(&open)? != folder.identity {
            return Err(io::Error::other(
                "a directory on the way to it is another one by now",
            ));
        }
        *folder.open.borrow_mut() = Some(Rc::clone(&open));
        self.note(folder);
        Ok(open)
    }

    fn open(&self, above: Option<&Rc<Folder>>, name: &OsStr) -> io::Result<Rc<OwnedFd>> {
        let above = above.map(|above| self.at(above)).transpose()?;
        let open = rustix::fs::openat(base(above.as_deref()), name, FLAGS, Mode::empty())?;
        Ok(Rc::new(open))
    }

    /// Closes those that were opened longest ago, so that no more are open than may be.
    fn note(&self, folder: &Rc<Folder>) {
        let mut latest = self.0.borrow_mut();
        latest.push_back(Rc::clone(folder));
        while latest.len() > MAX_OPEN {
            let oldest = latest.pop_front();
            oldest.map(|oldest| oldest.open.take());
        }
    }
}

/// Where names without a directory above begin.
pub(super) fn base(open: Option<&OwnedFd>) -> BorrowedFd<'_> {
    open.map_or(CWD, AsFd::as_fd)
}

fn identity(open: &OwnedFd) -> io::Result<(u64, u64)> {
    let stat = rustix::fs::fstat(open)?;
    Ok((stat.st_dev, stat.st_ino))
}
