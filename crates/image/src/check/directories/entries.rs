//! One name: what it may lead to, and what its target learns of it.

use pext4_ondisk::InodeNumber;
use pext4_ondisk::directory::FileType;
use pext4_sync::atomic::Ordering;

use super::super::catalogue::Kind;
use super::super::encryption;
use super::super::inodes::{InodeState, Known};
use super::{DirectorySubject, NO_PARENT};

/// The directory in the root to which a repair attaches lost inodes.
const LOST_FOUND: &[u8] = b"lost+found";

impl DirectorySubject<'_> {
    /// Checks the target of `.`.
    pub(in super::super) fn dot(&self, target: InodeNumber, block: Option<u64>) {
        if target != self.number() {
            self.report(Kind::DirectoryDot, block, || {
                format!("'.' leads to inode {target}")
            });
        }
    }

    /// Records the target of `..`. Pass 3 checks it, when all names are known.
    pub(in super::super) fn dot_dot(&self, target: InodeNumber) {
        if target.get() == 0 {
            self.report(Kind::DirectoryDotDot, None, || {
                "it leads nowhere".to_owned()
            });
        }
        self.tree.dot_dots[self.place].store(target.get(), Ordering::Relaxed);
    }

    /// Checks the target of a name other than `.` and `..`.
    pub(in super::super) fn entry(
        &self,
        name: &[u8],
        target: InodeNumber,
        file_type: Option<FileType>,
        block: Option<u64>,
    ) {
        let shown = || name.escape_ascii().to_string();
        let Some(state) = self.target(target, block, &shown) else {
            return;
        };
        self.tree.inodes.link(target);
        let volume = &self.tree.examination.volume;
        let stored = file_type.map_or(0, FileType::to_entry);
        // An entry may have no file type.
        if volume.format.has_file_types && stored != 0 && stored != state.kind() {
            let (stored, is) = (name_of(file_type), name_of(self.tree.kind_of(target)));
            self.report(Kind::EntryFileType, block, || {
                format!("'{}', inode {target}: {stored}, it is {is}", shown())
            });
        }
        encryption::check_target(self, target, self.tree.kind_of(target), block, &shown);
        let child = if state.is_directory() {
            self.tree.directories.find(target)
        } else {
            None
        };
        if self.number() == InodeNumber::ROOT && name == LOST_FOUND {
            self.check_lost_found(child, target);
        }
        if let Some(child) = child {
            self.adopt(child, target);
        }
    }

    fn check_lost_found(&self, child: Option<usize>, target: InodeNumber) {
        let is_plain = child.is_some_and(|child| {
            let directory = &self.tree.directories.list[child];
            !directory.is_encrypted && !directory.is_inline
        });
        if !is_plain {
            self.report(Kind::LostFound, None, || format!("inode {target}"));
        }
    }

    /// The state of a name's target, if the name may lead there.
    fn target(
        &self,
        target: InodeNumber,
        block: Option<u64>,
        shown: &dyn Fn() -> String,
    ) -> Option<InodeState> {
        let examination = self.tree.examination;
        let geometry = &examination.volume.geometry;
        let is_absent = target.get() > geometry.inodes_count;
        if is_absent || target < geometry.first_inode || examination.hidden.contains(&target) {
            self.report(Kind::EntryInode, block, || {
                let why = if is_absent {
                    "no such"
                } else {
                    "not for names"
                };
                format!("'{}', inode {target}: {why}", shown())
            });
            return None;
        }
        match self.tree.inodes.state(target) {
            Known::Lost => None,
            Known::Absent | Known::Uninitialised => {
                self.report(Kind::EntryUninitialised, block, || {
                    format!("'{}', inode {target}", shown())
                });
                None
            }
            Known::State(state) if !state.is_used() => {
                self.report(Kind::EntryUnused, block, || {
                    format!("'{}', inode {target}", shown())
                });
                None
            }
            Known::State(state) if state.holds_value() => {
                self.report(Kind::EntryInode, block, || {
                    format!("'{}', inode {target}: holds an attribute", shown())
                });
                None
            }
            Known::State(state) => Some(state),
        }
    }

    /// Records the name of a directory. Of two names, the one in the later directory of the list is
    /// reported, without what only the thread that met it knows.
    pub(super) fn adopt(&self, child: usize, target: InodeNumber) {
        let own = u32::try_from(self.place).unwrap_or(NO_PARENT);
        let other = self.tree.parents[child].fetch_min(own, Ordering::Relaxed);
        if other != NO_PARENT {
            let later = self.tree.subject(own.max(other) as usize);
            later.report(Kind::DirectoryLinkedTwice, None, || {
                format!("a name leads to directory inode {target}, which has another")
            });
        }
    }
}

fn name_of(kind: Option<FileType>) -> &'static str {
    match kind {
        Some(FileType::Regular) => "a file",
        Some(FileType::Directory) => "a directory",
        Some(FileType::Symlink) => "a symbolic link",
        Some(FileType::CharacterDevice) => "a character device",
        Some(FileType::BlockDevice) => "a block device",
        Some(FileType::Fifo) => "a pipe",
        Some(FileType::Socket) => "a socket",
        None => "of no known kind",
    }
}
