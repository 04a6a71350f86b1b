//! Files that are made of nothing: as on a mount they inherit from their directory's default list.

use pext4_fs::{AccessLists, FileType, InodeNumber};
use pext4_ondisk::acl::{self, Acl};

use crate::error::{At, Result, refuse};
use crate::lists;
use crate::plant::{Holding, Overrides, Planter};
use crate::session::EditSession;
use crate::source::Facts;

/// The mode that programs ask for where nothing is said. A default list takes from it what else the umask
/// would.
const ASKED: u16 = 0o666;
const ASKED_OF_DIRECTORY: u16 = 0o777;

impl EditSession {
    /// Makes a file; where it inherits, its permissions become what the list allows. Those that are asked
    /// for by `overrides` are kept, as by `mkdir -m`, and the list follows them.
    pub(super) fn make_anew(
        &self,
        facts: &mut Facts,
        overrides: Overrides,
        parent: InodeNumber,
        name: &[u8],
        path: &[u8],
    ) -> Result<Holding<'_>> {
        let planter = Planter::new(self, overrides);
        let Some(default) = self.default_list(parent, path)? else {
            let held = planter.make(facts, parent, name, path)?;
            return self.born(held, facts, overrides, path);
        };
        let is_directory = facts.kind == FileType::Directory;
        let inherited = match overrides.permissions {
            Some(permissions) => default.inherit_exactly(permissions),
            None if is_directory => default.inherit(ASKED_OF_DIRECTORY),
            None => default.inherit(ASKED),
        };
        facts.permissions = inherited.permissions;
        let access = inherited.access.map(|list| list.to_disk());
        let default = is_directory.then(|| default.to_disk());
        let lists = AccessLists {
            access: access.as_deref(),
            default: default.as_deref(),
        };
        let held = planter.make_with_lists(facts, &lists, parent, name, path)?;
        self.born(held, facts, overrides, path)
    }

    /// Notes the group that a new file has: its directory's, where that has a set-group-ID bit.
    fn born<'s>(
        &'s self,
        held: Holding<'s>,
        facts: &mut Facts,
        overrides: Overrides,
        path: &[u8],
    ) -> Result<Holding<'s>> {
        if overrides.gid.is_none() {
            facts.gid = self.volume().attributes(held.inode()).at(path)?.gid;
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
