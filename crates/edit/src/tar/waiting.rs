//! What waits for the marks of a layer.
//!
//! A mark may stand behind the entries to which it matters. So an entry waits until all marks are
//! known if its path leads through a symbolic link of the image, or a file of the image is in its
//! way: the layer may hide either. What follows it waits too, so that the order stays. The content
//! of a file goes to one without a name meanwhile, and the file to which a hard link leads is held,
//! since a mark may hide it. A mark waits for the others if its own path leads through such a link,
//! and for the entries if one of them takes the place of the link.
//!
//! What waits is in memory, and an archive may go on forever, so it is bounded.

use std::collections::HashSet;

use pext4_fs::{CreateAttributes, InodeNumber};
use pext4_tar::marks::{Mark, mark};
use pext4_tar::{Entry, Kind, Malformed, checked};

use super::apply::{Content, Unpacker, bad_attribute};
use super::read::Archive;
use super::way::Way;
use crate::change::last_name;
use crate::error::{EditError, FsContext, Result};
use crate::tree_writer::HeldInode;

/// The most memory, in bytes, of the entries and marks that wait: enough for some million entries
/// with usual names.
const MAX_WAITING_BYTES: usize = 1 << 30;

/// The marks and entries that wait.
#[derive(Default)]
pub(super) struct Waiting<'s> {
    /// The paths of marks in the archive.
    marks: Vec<Vec<u8>>,
    entries: Vec<WaitingEntry<'s>>,
    /// The approximate memory of both in bytes.
    held: usize,
}

impl Waiting<'_> {
    /// Adds to the memory that is held. `name` is that of the entry or mark, for errors.
    fn hold(&mut self, bytes: usize, name: &[u8]) -> Result<()> {
        self.held = self.held.saturating_add(bytes);
        if self.held <= MAX_WAITING_BYTES {
            return Ok(());
        }
        let problem = format!(
            "what waits for the layer's whiteouts, since it leads through links of the image, takes \
             more than {} MiB of memory; `pext4 build` puts layers together without the image",
            MAX_WAITING_BYTES >> 20
        );
        Err(EditError::Tar(Malformed::new(name, problem)))
    }
}

struct WaitingEntry<'s> {
    entry: Entry,
    /// Its path in the image.
    path: Vec<u8>,
    /// The file with its content, or that to which it is a hard link.
    kept: Option<HeldInode<'s>>,
}

impl<'s> Unpacker<'s> {
    /// Whether an entry of a layer has to wait.
    pub(super) fn must_wait(&self, entry: &Entry, path: &[u8]) -> Result<bool> {
        let waiting = &self.waiting;
        let does_more_wait = !waiting.marks.is_empty() || !waiting.entries.is_empty();
        if does_more_wait || self.leads_through_image(path)? {
            return Ok(true);
        }
        if entry.kind != Kind::HardLink {
            return Ok(false);
        }
        // A target that is not sound is refused when the link is made.
        match checked::hard_link(entry, true) {
            Ok(target) => self.leads_through_image(&self.path_of(&target)),
            Err(_) => Ok(false),
        }
    }

    fn leads_through_image(&self, path: &[u8]) -> Result<bool> {
        let layer = self.layer.as_ref();
        layer.map_or(Ok(false), |layer| {
            layer.leads_through_image(self.session, path, self.into.len())
        })
    }

    /// Lets an entry wait, and keeps its content.
    pub(super) fn wait(
        &mut self,
        archive: &mut Archive<'_>,
        entry: &Entry,
        path: &[u8],
    ) -> Result<()> {
        self.attributes(entry)
            .map_err(|problem| bad_attribute(entry, &problem))?;
        let overhead = size_of::<WaitingEntry<'_>>();
        let memory = overhead + entry.memory() + path.len();
        self.waiting.hold(memory, &entry.name)?;
        let kept = match entry.kind {
            Kind::File => Some(self.keep(archive, entry, path)?),
            // If it is not there yet, another one that waits may make it.
            Kind::HardLink => self.link_target(entry).ok(),
            _ => None,
        };
        let mut entry = entry.clone();
        entry.segments = None;
        self.waiting.entries.push(WaitingEntry {
            entry,
            path: path.to_vec(),
            kept,
        });
        Ok(())
    }

    /// Writes the content of an entry into a file without a name.
    fn keep(
        &mut self,
        archive: &mut Archive<'_>,
        entry: &Entry,
        path: &[u8],
    ) -> Result<HeldInode<'s>> {
        let volume = self.session.volume();
        let new = CreateAttributes {
            permissions: 0o600,
            uid: 0,
            gid: 0,
        };
        let made = volume.create_unnamed(InodeNumber::ROOT, &new);
        let held = HeldInode::of(volume, made.with_path(path)?);
        self.write_content(archive, entry, held.inode(), path)?;
        Ok(held)
    }

    /// Hides what a mark hides, at once or later.
    pub(super) fn take_mark(&mut self, mark: Mark<'_>, inside: &[u8]) -> Result<()> {
        let path = self.path_of(inside);
        if mark == Mark::Below {
            return Ok(());
        }
        if self.leads_through_image(&path)? {
            self.waiting
                .hold(size_of::<Vec<u8>>() + inside.len(), inside)?;
            self.waiting.marks.push(inside.to_vec());
            return Ok(());
        }
        self.apply_mark(mark, &path)
    }

    /// Applies what has waited, when all marks are known.
    pub(super) fn apply_waiting(&mut self) -> Result<()> {
        let mut waiting = std::mem::take(&mut self.waiting);
        // A mark above hides the links through which those below would lead.
        let depth = |path: &Vec<u8>| path.iter().filter(|&&byte| byte == b'/').count();
        waiting.marks.sort_by_key(depth);
        let mut replaced = HashSet::new();
        if !waiting.marks.is_empty() {
            for WaitingEntry { path, .. } in &waiting.entries {
                replaced.extend(Way::link_at(self.session, path)?);
            }
        }
        let mut later = Vec::new();
        for inside in waiting.marks {
            let path = self.path_of(&inside);
            let directory = &path[..path.len() - last_name(&path).len()];
            // The layer may have a directory there, and below a file there is nothing to hide.
            match Way::is_blocked(self.session, directory)?
                || Way::leads_through(self.session, directory, &replaced)?
            {
                true => later.push(inside),
                false => self.apply_waiting_mark(&inside)?,
            }
        }
        for WaitingEntry { entry, path, kept } in waiting.entries {
            let made = self.make(&entry, &path, Content::Kept(kept));
            made.map_err(|error| error.of_entry(&entry.name))?;
        }
        later
            .iter()
            .try_for_each(|inside| self.apply_waiting_mark(inside))
    }

    fn apply_waiting_mark(&mut self, inside: &[u8]) -> Result<()> {
        let Some(mark) = mark(inside) else {
            return Ok(());
        };
        let applied = self.apply_mark(mark, &self.path_of(inside));
        applied.map_err(|error| error.of_entry(inside))
    }
}

#[cfg(test)]
mod tests {
    use super::{MAX_WAITING_BYTES, Waiting};

    #[test]
    fn what_waits_is_bounded() {
        let mut waiting = Waiting::default();
        waiting.hold(MAX_WAITING_BYTES, b"a").expect("it just fits");
        let told = waiting.hold(1, b"dir/b").expect_err("one byte too much");
        let told = told.to_string();
        assert!(
            told.contains("dir/b: ") && told.contains("1024 MiB"),
            "{told}"
        );
    }
}
