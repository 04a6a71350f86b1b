//! Attributes of existing files: permissions, owners, times, extended attributes.

use pext4_fs::{Attributes, FileType, Refusal, SetAttributes, SetTime, SetXattrMode};
use pext4_ondisk::directory::{SET_GROUP_ID, SET_USER_ID};
use pext4_ondisk::inode::InodeFlags;
use pext4_ondisk::{acl, xattr};

use super::{RemoveXattr, SetFlags, SetMode, SetOwner, SetXattr, Touch};
use crate::acls;
use crate::error::{EditError, FsContext, Result, Shown, of_attribute, refuse};
use crate::image_tree::{Children, ImageFile, ImageTree};
use crate::session::EditSession;
use crate::source::Source;
use crate::tree_writer::{HeldInode, Overrides};

/// The permissions of a file after a change of owner, as of chown(2), also by root: the set-user-ID
/// bit is removed, and the set-group-ID bit if the group may execute the file. `None` if they do
/// not change.
fn without_set_id_bits(attributes: &Attributes) -> Option<u16> {
    let mode = attributes.permissions();
    let gone = match mode & 0o010 {
        0 => SET_USER_ID,
        _ => SET_USER_ID | SET_GROUP_ID,
    };
    let is_directory = attributes.file_type == FileType::Directory;
    (!is_directory && mode & gone != 0).then_some(mode & !gone)
}

impl EditSession {
    pub(super) fn set_mode(&self, change: &SetMode) -> Result<()> {
        let SetMode {
            path,
            mode,
            recursive,
        } = change;
        let found = self.resolve(path)?;
        self.each(&found, path, *recursive, &mut |file, attributes| {
            if attributes.file_type == FileType::Symlink {
                return Ok(());
            }
            let is_directory = attributes.file_type == FileType::Directory;
            let permissions = mode.apply(attributes.permissions(), is_directory);
            let change = SetAttributes {
                permissions: Some(permissions),
                ..SetAttributes::default()
            };
            self.set_attributes(file, &change)?;
            acls::adapt_to_mode(self.volume(), file.inode, permissions, &file.path())
        })
    }

    pub(super) fn set_flags(&self, change: &SetFlags) -> Result<()> {
        let SetFlags {
            path,
            flags,
            recursive,
        } = change;
        let found = self.resolve(path)?;
        self.each(&found, path, *recursive, &mut |file, attributes| {
            let is_directory = attributes.file_type == FileType::Directory;
            // Others have hardly any flags, as for `chattr -R`.
            if *recursive && !is_directory && attributes.file_type != FileType::Regular {
                return Ok(());
            }
            let present = InodeFlags::from_bits_retain(attributes.flags);
            let visible = present.intersection(InodeFlags::USER_VISIBLE);
            let change = SetAttributes {
                flags: Some(flags.apply(visible, is_directory).bits()),
                ..SetAttributes::default()
            };
            self.set_attributes(file, &change)
        })
    }

    pub(super) fn set_owner(&self, owner: &SetOwner) -> Result<()> {
        let path = &owner.path;
        let found = if owner.no_follow || owner.recursive {
            self.resolve_link(path)?
        } else {
            self.resolve(path)?
        };
        self.each(&found, path, owner.recursive, &mut |file, attributes| {
            let change = SetAttributes {
                uid: owner.uid,
                gid: owner.gid,
                permissions: without_set_id_bits(attributes),
                ..SetAttributes::default()
            };
            self.remove_capabilities(file, attributes)?;
            self.set_attributes(file, &change)
        })
    }

    /// Removes the capabilities of a file, which a change of owner must not preserve.
    fn remove_capabilities(&self, file: &ImageFile, attributes: &Attributes) -> Result<()> {
        if attributes.file_type != FileType::Regular {
            return Ok(());
        }
        match self
            .volume()
            .remove_xattr(file.inode, b"security.capability")
        {
            Err(error) if error.is(Refusal::NoAttribute) => Ok(()),
            removed => removed.with_file(file),
        }
    }

    pub(super) fn set_attributes(&self, file: &ImageFile, change: &SetAttributes) -> Result<()> {
        let done = self.volume().set_attributes(file.inode, change);
        done.with_file(file)?;
        self.step_file()
    }

    pub(super) fn set_xattr(&self, change: &SetXattr) -> Result<()> {
        let SetXattr { path, name, value } = change;
        let found = self.resolve(path)?;
        check_attribute(name, path)?;
        let volume = self.volume();
        if acl::is_list(name) {
            acls::set(volume, found.inode(), name, value, path)?;
        } else {
            let set = volume.set_xattr(found.inode(), name, value, SetXattrMode::Any);
            of_attribute(set, volume, path)?;
        }
        self.step_file()
    }

    pub(super) fn remove_xattr(&self, change: &RemoveXattr) -> Result<()> {
        let RemoveXattr { path, name } = change;
        let found = self.resolve(path)?;
        check_attribute(name, path)?;
        let removed = self.volume().remove_xattr(found.inode(), name);
        removed.with_path(path)?;
        self.step_file()
    }

    pub(super) fn touch(&self, change: &Touch) -> Result<()> {
        let path = &change.path;
        let time = change.time.map_or(SetTime::Now, SetTime::To);
        let (found, is_new) = match self.resolve(path) {
            Ok(found) => (found, false),
            Err(error) if is_missing(&error) && change.no_create => return Ok(()),
            // A path that ends in a slash must lead to a directory, so no file is created.
            Err(error) if is_missing(&error) && !path.ends_with(b"/") => {
                let end = self.end_of_links(path)?;
                let entry = self.parent_and_name_of_file(&end)?;
                let overrides = Overrides::default();
                let mut metadata = self.default_metadata(FileType::Regular, overrides);
                let (parent, name) = (entry.parent.inode(), &entry.name);
                let made = self.create(&mut metadata, overrides, parent, name, &end)?;
                (made, true)
            }
            Err(error) => return Err(error),
        };
        let change = SetAttributes {
            accessed: Some(time),
            modified: Some(time),
            ..SetAttributes::default()
        };
        let set = self.volume().set_attributes(found.inode(), &change);
        set.with_path(path)?;
        match is_new {
            // It was counted when it was made.
            true => Ok(()),
            false => self.step_file(),
        }
    }

    /// Calls `with` for a file and, if `below`, for everything below it.
    pub(super) fn each(
        &self,
        top: &HeldInode<'_>,
        path: &[u8],
        below: bool,
        with: &mut dyn FnMut(&ImageFile, &Attributes) -> Result<()>,
    ) -> Result<()> {
        let image = ImageTree::new(self.volume());
        let mut call = |file: &ImageFile| -> Result<Option<Children>> {
            let attributes = image.attributes(file)?;
            with(file, &attributes)?;
            let is_entered = below && attributes.file_type == FileType::Directory;
            is_entered.then(|| image.children(file)).transpose()
        };
        // Directories on the way from the top, and what is still to be changed of each.
        let mut open = Vec::from_iter(call(&ImageFile::top(top.inode(), path))?);
        while let Some(children) = open.last_mut() {
            match children.next() {
                Some((_, file)) => open.extend(call(&file)?),
                None => drop(open.pop()),
            }
        }
        Ok(())
    }
}

/// Refuses the name of an attribute that has no index in the format, or that ext4 uses internally.
fn check_attribute(name: &[u8], path: &[u8]) -> Result<()> {
    check_attribute_name(name).or_else(|problem| refuse(path, problem))
}

/// Whether an attribute may have this name, in any image.
///
/// # Errors
///
/// The name has no index in the format, or ext4 uses it internally.
pub fn check_attribute_name(name: &[u8]) -> std::result::Result<(), String> {
    if name.len() > xattr::MAX_NAME {
        return Err(format!(
            "an attribute's name has at most {} bytes",
            xattr::MAX_NAME
        ));
    }
    if name.contains(&0) {
        return Err(format!(
            "an attribute cannot be called `{}`: a name holds no NUL byte",
            Shown(name)
        ));
    }
    if xattr::split_name(name).is_some_and(|(index, _)| xattr::is_visible(index)) {
        return Ok(());
    }
    Err(format!(
        "an attribute cannot be called `{}`: its name begins with user., trusted. or security., and goes \
         on, or is system.posix_acl_access or system.posix_acl_default",
        Shown(name)
    ))
}

fn is_missing(error: &EditError) -> bool {
    match error {
        EditError::AtPath { source, .. } => source.is(Refusal::NotFound),
        _ => false,
    }
}
