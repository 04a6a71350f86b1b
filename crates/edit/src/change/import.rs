//! Copies into the image: from the host, from a stream, from an image.

use std::collections::HashSet;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use pext4_block::loops;
use pext4_fs::{FileType, InodeNumber};

use super::paths::ParentAndName;
use super::{CopyFile, Put, WriteFile, fill, last_name};
use crate::error::{EditError, HostContext, ImageContext, Result, Shown, refuse};
use crate::host::{self, HostTree};
use crate::image_tree::{ImageFile, ImageTree};
use crate::reader::{Reader, mounted_by_kernel};
use crate::session::EditSession;
use crate::source::{PIECE, Source};
use crate::tree_writer::{ContentWriter, Overrides, TreeWriter, find};

impl EditSession {
    /// Writes a stream to a file, and replaces an existing one.
    ///
    /// # Errors
    ///
    /// The stream's, as `Host` errors of `-`; the image's.
    pub fn write_from(
        &mut self,
        path: &[u8],
        stream: &mut dyn Read,
        overrides: Overrides,
    ) -> Result<()> {
        self.change(|session| session.write_stream(path, stream, overrides))
    }

    fn write_stream(&self, path: &[u8], stream: &mut dyn Read, overrides: Overrides) -> Result<()> {
        let entry = self.parent_and_name_of_file(path)?;
        let mut metadata = self.default_metadata(FileType::Regular, overrides);
        let parent = entry.parent.inode();
        let held = self.create(&mut metadata, overrides, parent, &entry.name, &entry.path)?;
        let mut content_writer = ContentWriter::new(self, held.inode(), &entry.path);
        let mut piece = vec![0; PIECE];
        let mut at = 0;
        loop {
            let length = fill(stream, &mut piece).with_host_file("-".as_ref(), "read it")?;
            content_writer.write(at, &piece[..length])?;
            at += length as u64;
            if length < PIECE {
                break;
            }
        }
        content_writer.finish(at)?;
        TreeWriter::new(self, overrides).apply_metadata(&metadata, held.inode(), &entry.path)
    }

    pub(super) fn put(&mut self, change: &Put) -> Result<()> {
        let from = &change.from;
        let is_edited = |device, inode| self.is_edited_file(device, inode);
        let source = HostTree::new(change.xattrs, &is_edited);
        let name = || Ok(last_name(from.as_os_str().as_bytes()).to_vec());
        let is_directory = || host::is_directory(from);
        let entry = self.destination(&change.to, change.no_target_directory, name, is_directory)?;
        let top = HostTree::top(from);
        let kind = source.metadata(&top)?.kind;
        self.check_replaceable(
            &entry,
            kind,
            &Shown(from.as_os_str().as_bytes()).to_string(),
        )?;
        self.write_tree(&source, &top, &entry, change.overrides)?;
        drop(entry);
        for path in source.into_left_out() {
            let path = Shown(path.as_os_str().as_bytes());
            self.note(format!(
                "{path} was left out: it is the image that is being edited"
            ));
        }
        Ok(())
    }

    pub(super) fn write(&self, change: &WriteFile) -> Result<()> {
        self.write_stream(
            &change.path,
            &mut change.content.as_slice(),
            change.overrides,
        )
    }

    pub(super) fn copy(&mut self, change: &CopyFile) -> Result<()> {
        if let Some(image) = &change.image {
            return self.copy_between(image, change);
        }
        let from = &change.from;
        let name = || Ok(last_name(from).to_vec());
        let is_directory = || Ok(self.resolve_link(from)?.kind() == FileType::Directory);
        let entry = self.destination(&change.to, change.no_target_directory, name, is_directory)?;
        self.copy_within(from, &entry, change.recursive)
    }

    pub(super) fn write_tree<S: Source>(
        &self,
        source: &S,
        node: &S::Node,
        entry: &ParentAndName<'_>,
        overrides: Overrides,
    ) -> Result<()> {
        let mut writer = self.writer(overrides);
        let (parent, name) = (entry.parent.inode(), &entry.name);
        writer.write_tree(source, node, parent, name, &entry.path)?;
        self.keep_written(writer);
        self.note_put(entry)
    }

    pub(super) fn copy_within(
        &self,
        from: &[u8],
        entry: &ParentAndName<'_>,
        recursive: bool,
    ) -> Result<()> {
        let found = self.resolve_link(from)?;
        check_kind(found.kind(), from, recursive)?;
        if found.kind() == FileType::Directory {
            self.check_outside(found.inode(), entry.parent.inode(), from)?;
        }
        if let Some((there, _)) = self.at(entry)? {
            if there == found.inode() {
                return refuse(&entry.path, "source and destination are the same file");
            }
            let within = match found.kind() {
                // Its path may end in `.`, which is no name.
                FileType::Directory => found.inode(),
                _ => self.parent_and_name(from)?.parent.inode(),
            };
            if self.is_in(within, there, from)? {
                // What is copied would replace what is still to be copied.
                return refuse(
                    &entry.path,
                    "a directory cannot be copied over one that holds it",
                );
            }
        }
        self.check_replaceable(entry, found.kind(), &Shown(from).to_string())?;
        self.check_link_leads_on(from, found.kind(), entry)?;
        let file = ImageFile::top(found.inode(), from);
        self.write_tree(
            &ImageTree::new(self.volume()),
            &file,
            entry,
            Overrides::default(),
        )
    }

    fn copy_between(&mut self, image: &Path, change: &CopyFile) -> Result<()> {
        if self.is_of(image, change.image_offset) {
            // This session holds the image's lock, so opening it would wait for the session itself.
            return Err(EditError::Refused(format!(
                "{}: it is the image that is being edited; without `--from` files are copied within it",
                image.display()
            )));
        }
        if self.is_beside(image) {
            return Err(EditError::Refused(format!(
                "{}: another part of it is being edited, which takes all of it; copy out of it \
                 first, with `pext4 get`",
                image.display()
            )));
        }
        let reader = Reader::open_at(image, change.image_offset)?;
        self.note_kernel_mount(image, change.image_offset);
        let from = &change.from;
        let file = reader.find(from)?;
        let source = reader.tree();
        let kind = source.attributes(&file)?.file_type;
        check_kind(kind, from, change.recursive).in_image(reader.file())?;
        let name = || Ok(last_name(from).to_vec());
        let is_directory = || Ok(kind == FileType::Directory);
        let entry = self.destination(&change.to, change.no_target_directory, name, is_directory)?;
        self.check_replaceable(&entry, kind, &Shown(from).to_string())?;
        self.write_tree(&source, &file, &entry, Overrides::default())
    }

    /// Notes that what the kernel has not written yet is not in an image that is copied from.
    fn note_kernel_mount(&mut self, image: &Path, offset: u64) {
        let Some(directory) = loops::written_by_kernel(image, offset) else {
            return;
        };
        let note = format!(
            "{}: {}",
            Shown(image.as_os_str().as_bytes()),
            mounted_by_kernel(&directory)
        );
        // Once, from whatever number of changes.
        if !self.notes().contains(&note) {
            self.note(note);
        }
    }

    /// Refuses to copy a directory into itself.
    pub(super) fn check_outside(
        &self,
        tree: InodeNumber,
        into: InodeNumber,
        path: &[u8],
    ) -> Result<()> {
        match self.is_in(into, tree, path)? {
            true => refuse(path, "a directory cannot be copied into itself"),
            false => Ok(()),
        }
    }

    /// Whether a directory is another one, or below it.
    fn is_in(&self, mut directory: InodeNumber, tree: InodeNumber, path: &[u8]) -> Result<bool> {
        let mut seen = HashSet::new();
        while directory != tree && directory != InodeNumber::ROOT && seen.insert(directory) {
            let up = find(self.volume(), directory, b"..", path)?;
            directory = up.map_or(InodeNumber::ROOT, |up| up.inode());
        }
        Ok(directory == tree)
    }
}

fn check_kind(kind: FileType, path: &[u8], recursive: bool) -> Result<()> {
    if kind == FileType::Directory && !recursive {
        return refuse(path, "is a directory; -r copies it");
    }
    Ok(())
}
