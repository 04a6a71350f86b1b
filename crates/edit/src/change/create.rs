//! Files that are made of nothing: as on a mount they inherit from their directory's default list.

use pext4_fs::{AccessLists, FileType, InodeNumber};
use pext4_ondisk::acl::{self, Acl};

use crate::error::{FsContext, Result, refuse};
use crate::lists;
use crate::session::EditSession;
use crate::source::FileMetadata;
use crate::tree_writer::{HeldInode, Overrides, TreeWriter};

/// The mode that programs ask for where nothing is said. A default list takes from it what else the umask
/// would.
const ASKED: u16 = 0o666;
const ASKED_OF_DIRECTORY: u16 = 0o777;

impl EditSession {
    /// Makes a file; where it inherits, its permissions become what the list allows. Those that are asked
    /// for by `overrides` are kept, as by `mkdir -m`, and the list follows them.
    pub(super) fn create(
        &self,
        metadata: &mut FileMetadata,
        overrides: Overrides,
        parent: InodeNumber,
        name: &[u8],
        path: &[u8],
    ) -> Result<HeldInode<'_>> {
        let writer = TreeWriter::new(self, overrides);
        let Some(default) = self.default_list(parent, path)? else {
            let held = writer.make(metadata, parent, name, path)?;
            return self.with_group(held, metadata, overrides, path);
        };
        let is_directory = metadata.kind == FileType::Directory;
        let inherited = match overrides.permissions {
            Some(permissions) => default.inherit_exactly(permissions),
            None if is_directory => default.inherit(ASKED_OF_DIRECTORY),
            None => default.inherit(ASKED),
        };
        metadata.permissions = inherited.permissions;
        let access = inherited.access.map(|list| list.to_disk());
        let default = is_directory.then(|| default.to_disk());
        let lists = AccessLists {
            access: access.as_deref(),
            default: default.as_deref(),
        };
        let held = writer.make_with_lists(metadata, &lists, parent, name, path)?;
        self.with_group(held, metadata, overrides, path)
    }

    /// Notes the group that a new file has: its directory's, where that has a set-group-ID bit.
    fn with_group<'s>(
        &'s self,
        held: HeldInode<'s>,
        metadata: &mut FileMetadata,
        overrides: Overrides,
        path: &[u8],
    ) -> Result<HeldInode<'s>> {
        if overrides.gid.is_none() {
            metadata.gid = self.volume().attributes(held.inode()).with_path(path)?.gid;
        }
        Ok(held)
    }

    /// The list that new files in a directory inherit.
    fn default_list(&self, directory: InodeNumber, path: &[u8]) -> Result<Option<Acl>> {
        let Some(value) = lists::stored(self.volume(), directory, acl::DEFAULT, path)? else {
            return Ok(None);
        };
        match Acl::from_disk(&value) {
            Some(list) => Ok(Some(list)),
            None => refuse(
                path,
                "the default access control list of its directory is none",
            ),
        }
    }
}
