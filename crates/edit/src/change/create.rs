//! New files that are not copies. As on a mount they inherit the default list of their directory.

use pext4_fs::{Acls, FileType, InodeNumber};
use pext4_ondisk::acl::{self, Acl};

use crate::acls;
use crate::error::{FsContext, Result, refuse};
use crate::session::EditSession;
use crate::source::FileMetadata;
use crate::tree_writer::{HeldInode, Overrides, TreeWriter};

/// The mode that programs ask for by default. A default list restricts it in place of the umask.
const ASKED: u16 = 0o666;
const ASKED_OF_DIRECTORY: u16 = 0o777;

impl EditSession {
    /// Creates a file. If it inherits a list, its permissions become what the list allows, and are
    /// returned in `metadata`. Permissions of `overrides` are kept, as by `mkdir -m`, and the list
    /// is adapted to them.
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
        let acls = Acls {
            access: access.as_deref(),
            default: default.as_deref(),
        };
        let held = writer.make_with_acls(metadata, &acls, parent, name, path)?;
        self.with_group(held, metadata, overrides, path)
    }

    /// Stores the group of a new file in `metadata`. It is that of its directory if the directory
    /// has the set-group-ID bit.
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
        let Some(value) = acls::stored(self.volume(), directory, acl::DEFAULT, path)? else {
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
