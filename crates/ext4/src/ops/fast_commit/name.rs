//! Names in fast commits.

use std::sync::Arc;

use pext4_ondisk::InodeNumber;
use pext4_ondisk::inode::{InodeFlags, inline};
use pext4_ondisk::journal::fast_commit::NamedInode;

use super::{Application, contradiction};
use crate::dir;
use crate::error::{Error, Result};
use crate::inode::{Inode, Reach};
use crate::ops::{DIRECTORY_CREDITS, INODE_CREDITS, check_new_name, lock_exclusive};

impl Application<'_> {
    /// Gives a new inode its first name. It counts that name already.
    pub(super) fn create(&mut self, named: &NamedInode, inode: &Arc<Inode>) -> Result<()> {
        let Some(directory) = self.with_room_for(named)? else {
            return Ok(());
        };
        if inode.is_directory() {
            if self.volume.check_room_for_subdirectory(&directory).is_err() {
                let problem = "makes a directory where no more are counted";
                return Err(contradiction(problem, directory.number()).into());
            }
            let Some(is_inline) = self.unnamed_directories.remove(&inode.number()) else {
                return Err(second_name(inode));
            };
            self.begin_directory(&directory, inode, is_inline)?;
        }
        self.insert(&directory, &named.name, inode)?;
        if inode.is_directory() {
            let mut handle = self.volume.inodes.store.start(INODE_CREDITS)?;
            self.volume.add_subdirectory(&mut handle, &directory);
        }
        Ok(())
    }

    /// Gives an inode one more name.
    pub(super) fn link(&mut self, named: &NamedInode, inode: &Arc<Inode>) -> Result<()> {
        if inode.is_directory() {
            return Err(second_name(inode));
        }
        let Some(directory) = self.with_room_for(named)? else {
            return Ok(());
        };
        self.insert(&directory, &named.name, inode)?;
        let mut handle = self.volume.inodes.store.start(INODE_CREDITS)?;
        inode.edit(&mut handle, Reach::Attributes, |state| {
            state.slot.links = state.slot.links.saturating_add(1);
        });
        drop(handle);
        self.note_links(inode);
        Ok(())
    }

    /// Removes a name, if it is of that inode.
    pub(super) fn unlink(&mut self, named: &NamedInode) -> Result<()> {
        let Some(directory) = self.directory_of(named)? else {
            return Ok(());
        };
        let names = self.volume.names(&directory);
        match dir::find(&names, &named.name)? {
            Some(found) if found.inode == named.inode => {
                self.remove(&directory, &named.name, named.inode)
            }
            _ => Ok(()),
        }
    }

    /// The directory of a name that is to be made; `None` if it is there already, or the directory
    /// is not any more. A name of something else is removed.
    fn with_room_for(&mut self, named: &NamedInode) -> Result<Option<Arc<Inode>>> {
        if check_new_name(&named.name).is_err() {
            let problem = "makes a name that ext4 cannot hold";
            return Err(contradiction(problem, named.parent).into());
        }
        let Some(directory) = self.directory_of(named)? else {
            return Ok(None);
        };
        match dir::find(&self.volume.names(&directory), &named.name)? {
            Some(found) if found.inode == named.inode => return Ok(None),
            Some(found) => self.remove(&directory, &named.name, found.inode)?,
            None => {}
        }
        Ok(Some(directory))
    }

    /// The directory of a name that is to be searched for; `None` if it is not in use.
    fn directory_of(&mut self, named: &NamedInode) -> Result<Option<Arc<Inode>>> {
        let number = named.parent;
        let inode = self.in_use(number)?;
        let inode = inode.filter(|inode| inode.is_directory() && inode.links() > 0);
        let Some(inode) = inode else { return Ok(None) };
        if self.unnamed_directories.contains_key(&number) {
            let problem = "has names in a directory that has none itself";
            return Err(contradiction(problem, number).into());
        }
        self.count_search(&inode, &named.name)?;
        Ok(Some(inode))
    }

    /// Counts one search of a directory, for a name or for room for it.
    fn count_search(&mut self, directory: &Arc<Inode>, name: &[u8]) -> Result<()> {
        let blocks = dir::search_length(&self.volume.names(directory), name)?;
        let bytes = u64::from(blocks) * u64::from(self.volume.inodes.store.block_size());
        let left = self.searches_left.checked_sub(bytes);
        self.searches_left = left.ok_or_else(|| {
            Error::unsupported(
                "fast commits of so many names in directories without an index; `e2fsck` replays \
                 them",
            )
        })?;
        Ok(())
    }

    /// Gives a new directory its first content.
    fn begin_directory(&self, parent: &Inode, inode: &Arc<Inode>, is_inline: bool) -> Result<()> {
        let volume = self.volume;
        let _names = lock_exclusive(inode)?;
        let mut handle = volume
            .inodes
            .store
            .start(DIRECTORY_CREDITS + INODE_CREDITS)?;
        if is_inline {
            let format = volume.directories.plain().format;
            let content = inline::empty_directory(parent.number(), format);
            let fits = inode.edit(&mut handle, Reach::Data, |state| {
                let slot = &mut state.slot;
                let is_mapped = slot.has_extents();
                slot.flags.remove(InodeFlags::EXTENTS);
                let fits = slot.set_inline_content(&content).is_ok();
                slot.flags.set(InodeFlags::EXTENTS, is_mapped && !fits);
                slot.size = if fits { content.len() as u64 } else { 0 };
                fits
            });
            if fits {
                return Ok(());
            }
        }
        dir::init(
            &mut volume.names_to_change(inode, &mut handle),
            parent.number(),
        )
    }

    fn insert(&mut self, directory: &Arc<Inode>, name: &[u8], inode: &Inode) -> Result<()> {
        self.count_search(directory, name)?;
        let _names = lock_exclusive(directory)?;
        let mut handle = self.volume.inodes.store.start(DIRECTORY_CREDITS)?;
        self.volume.insert_name(&mut handle, directory, name, inode)
    }

    /// Removes a name and what it leaves without one.
    fn remove(&mut self, directory: &Arc<Inode>, name: &[u8], number: InodeNumber) -> Result<()> {
        self.count_search(directory, name)?;
        let volume = self.volume;
        let inode = self.in_use(number)?;
        let is_directory = inode.as_ref().is_some_and(|inode| inode.is_directory());
        if let Some(inode) = inode.as_ref().filter(|_| is_directory)
            && !dir::is_empty(&volume.names(inode))?
        {
            let problem = "removes a directory that has names";
            return Err(contradiction(problem, number).into());
        }
        {
            let _names = lock_exclusive(directory)?;
            let mut handle = volume.inodes.store.start(DIRECTORY_CREDITS)?;
            volume.remove_name(&mut handle, directory, name)?;
            if is_directory {
                volume.drop_subdirectory(&mut handle, directory);
            }
        }
        match inode {
            Some(inode) => self.drop_link(&inode),
            None => Ok(()),
        }
    }

    /// Counts one link less, and ends an inode that has none.
    fn drop_link(&mut self, inode: &Arc<Inode>) -> Result<()> {
        let mut handle = self.volume.inodes.store.start(INODE_CREDITS)?;
        let links = inode.edit(&mut handle, Reach::Attributes, |state| {
            let links = state.slot.links.saturating_sub(1);
            state.slot.links = if inode.is_directory() { 0 } else { links };
            state.slot.links
        });
        drop(handle);
        match links {
            0 => self.end(inode),
            _ => Ok(()),
        }
    }
}

/// A directory that is to be in two places. One that is renamed makes Linux write a full commit.
fn second_name(directory: &Inode) -> Error {
    let problem = "gives a directory another name";
    contradiction(problem, directory.number()).into()
}

#[cfg(test)]
mod tests {
    use pext4_ondisk::InodeNumber;
    use pext4_ondisk::journal::fast_commit::NamedInode;

    use super::Application;
    use crate::groups::testing::image;
    use crate::{CreateAttributes, MountOptions, Volume};

    #[test]
    fn the_searches_of_a_replay_are_bounded() {
        // What is searched counts, in however many blocks.
        for (features, block_size, has_index) in [
            ("^dir_index", "1024", false),
            ("^dir_index", "4096", false),
            ("dir_index", "1024", true),
        ] {
            let Some(device) = image(&["-O", features, "-b", block_size], "16M") else {
                return;
            };
            let volume = Volume::open(device, MountOptions::default()).expect("a mount");
            let mut inode = InodeNumber::ROOT;
            for number in 0..500 {
                let name = format!("name-{number}");
                let new = CreateAttributes::default();
                let made = volume.create(InodeNumber::ROOT, name.as_bytes(), &new);
                inode = made.expect("room").inode;
            }
            let mut application = Application::on(&volume);
            application.searches_left = 100 << 10;
            let mut unlink = |number: u32| {
                application.unlink(&NamedInode {
                    parent: InodeNumber::ROOT,
                    inode,
                    name: format!("absent-{number}").into_bytes().into(),
                })
            };
            // The directory has more than 5 KiB.
            let done = (0..20).try_for_each(&mut unlink);
            assert_eq!(done.is_ok(), has_index, "{done:?}");
        }
    }
}
