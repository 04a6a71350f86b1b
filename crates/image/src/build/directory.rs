//! Adds what a scan finds in a host directory to the tree.
//!
//! Over earlier sources, a directory whose name is a symbolic link of one of them to a directory is
//! merged with that one, and the link stays; everything in it *lands* there. Where links lead
//! depends on what was added before, and a scan finds names in any order. So the entries of such a
//! source wait until all are known, and are added in the order of their paths. Two of them that
//! land at one path, and are not both directories, are an error, since one would be lost. If no
//! earlier source has a symbolic link, every entry lands at its own path, and none waits.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pext4_ondisk::directory::name_problem;

use super::attributes::{RawAttribute, apply_mode, check_total_size, to_stored};
use super::error::{Error, Result};
use super::lookup::directory_behind_link;
use super::rules::Rules;
use super::scan::{Batch, LinkKey, ScannedEntry};
use super::tree::{Id, Metadata, NONE, ROOT, Tree};

/// Adds the entries of a host directory to the tree.
pub(super) struct DirectoryWriter<'a> {
    tree: &'a mut Tree,
    rules: &'a Rules,
    /// The path of the source.
    path: &'a Path,
    number: u16,
    /// Whether an earlier source has a symbolic link, which may lead entries elsewhere.
    has_earlier_links: bool,
    /// The node of each directory, by the number that the scan gave it; [`NONE`] if it is left out.
    directories: Vec<Id>,
    /// The paths in the source of directories that landed elsewhere, by the same number.
    own_paths: HashMap<u32, Arc<Path>>,
    links: HashMap<LinkKey, Id>,
    /// The batches of each directory. Where there is no link to follow, none wait.
    waiting: HashMap<u32, Vec<Batch>>,
    /// The directories to which links led, and the paths that did.
    followed: Vec<(Id, PathBuf)>,
}

impl<'a> DirectoryWriter<'a> {
    /// A writer for the source with this number. Unless it is the first, the tree's index must
    /// exist.
    pub fn new(tree: &'a mut Tree, rules: &'a Rules, path: &'a Path, number: u16) -> Self {
        Self {
            has_earlier_links: tree.has_symlinks,
            tree,
            rules,
            path,
            number,
            directories: vec![ROOT],
            own_paths: HashMap::new(),
            links: HashMap::new(),
            waiting: HashMap::new(),
            followed: Vec::new(),
        }
    }

    /// Sets the metadata of the root.
    pub fn add_root(&mut self, mut root: ScannedEntry) -> Result<()> {
        let mut metadata = root.metadata;
        metadata.source = self.number;
        let is_changed = self.rules.apply(|| vec![Vec::new()], &mut metadata);
        let mode = is_changed.then_some(metadata.mode);
        metadata.attributes = intern_attributes(self.tree, root.take_extras().attributes, mode)
            .map_err(|problem| Error::unsound(self.path, problem))?;
        self.tree.set_root(&metadata);
        Ok(())
    }

    /// Adds some names of one directory, or keeps them until [`Self::finish`].
    pub fn add_batch(&mut self, mut batch: Batch) -> Result<()> {
        if self.has_earlier_links {
            self.waiting.entry(batch.directory).or_default().push(batch);
            return Ok(());
        }
        let directory = batch.directory;
        for place in 0..batch.found.len() {
            let (name, found) = batch.take(place);
            self.add_entry(directory, name, found)?;
        }
        Ok(())
    }

    /// Adds the entries that were kept.
    pub fn finish(mut self) -> Result<()> {
        let mut rest = vec![0];
        while let Some(directory) = rest.pop() {
            let mut batches = self.waiting.remove(&directory).unwrap_or_default();
            let entries = sorted(&batches);
            let below: Vec<u32> = entries
                .iter()
                .filter_map(|&(batch, place)| batches[batch].found[place].directory)
                .collect();
            for (batch, place) in entries {
                let (name, found) = batches[batch].take(place);
                self.add_entry(directory, name, found)?;
            }
            let is_there = |&number: &u32| self.node_of(number) != NONE;
            rest.extend(below.into_iter().rev().filter(is_there));
        }
        self.check_followed()
    }

    /// Fails if a directory to which a link led was replaced afterwards, and with it what had
    /// landed there.
    fn check_followed(&self) -> Result<()> {
        match self.followed.iter().find(|(id, _)| self.tree.is_gone(*id)) {
            None => Ok(()),
            Some((id, path)) => Err(Error::unsound(
                self.path.join(path),
                format!(
                    "a symbolic link of an earlier source leads it to {}, which this source replaces \
                     by something that is no directory: leave out one of the two",
                    self.tree.shown_path(*id).display()
                ),
            )),
        }
    }

    fn node_of(&self, directory: u32) -> Id {
        let place = directory as usize;
        self.directories.get(place).copied().unwrap_or(NONE)
    }

    fn add_entry(&mut self, directory: u32, name: &[u8], mut found: ScannedEntry) -> Result<()> {
        let extras = found.take_extras();
        let parent = self.node_of(directory);
        let folder = self.own_paths.get(&directory).cloned();
        let behind_link = match found.directory {
            Some(_) if self.has_earlier_links => {
                directory_behind_link(self.tree, parent, name, self.number)
            }
            _ => None,
        };
        let landing = Landing {
            parent,
            behind_link,
            own_path: match (&folder, behind_link) {
                (Some(folder), _) => Some(folder.join(OsStr::from_bytes(name))),
                (None, Some(_)) => Some(self.tree.path(parent).join(OsStr::from_bytes(name))),
                (None, None) => None,
            },
        };
        if let Some(problem) = name_problem(name) {
            return Err(self.unsound(&landing, name, problem));
        }
        if self.is_left_out(&landing, name, found.metadata.is_directory()) {
            return Ok(());
        }
        let mut metadata = found.metadata;
        metadata.source = self.number;
        let original_time = (metadata.seconds, metadata.nanoseconds);
        let paths = || {
            let place = bytes(self.place(&landing, name));
            std::iter::once(place)
                .chain(landing.own_path.clone().map(bytes))
                .collect()
        };
        let mode = self
            .rules
            .apply(paths, &mut metadata)
            .then_some(metadata.mode);
        metadata.attributes = intern_attributes(self.tree, extras.attributes, mode)
            .map_err(|problem| self.unsound(&landing, name, problem))?;
        if let Some(target) = &extras.target {
            metadata.content = u64::from(self.tree.store_text(target)?);
        }
        let id = self.put(&landing, name, &metadata)?;
        if let Some(number) = found.directory {
            self.note_directory(number, id, landing);
        } else if let Some(folder) = folder.filter(|_| self.tree.node(id).is_regular()) {
            self.tree.source_directories.insert(id, folder);
        }
        if self.tree.node(id).is_regular()
            && original_time != (metadata.seconds, metadata.nanoseconds)
        {
            self.tree.original_times.insert(id, original_time);
        }
        if let Some(segments) = extras.segments {
            self.tree.segments.insert(id, segments);
        }
        if let Some(key) = extras.link {
            let first = *self.links.entry(key).or_insert(id);
            if first != id {
                self.tree.node_mut(id).link = first;
            }
        }
        Ok(())
    }

    /// Whether the rules exclude the path at which an entry landed. The scan has asked about its
    /// path in the source.
    fn is_left_out(&self, landing: &Landing, name: &[u8], is_directory: bool) -> bool {
        let place = || bytes(self.place(landing, name));
        landing.own_path.is_some()
            && self.rules.needs_paths()
            && super::archive::is_left_out(self.rules, &place(), is_directory)
    }

    /// Adds an entry, or merges a directory with an existing one. Of several directories of this
    /// source that are merged, the one whose own path is that in the image gives the attributes,
    /// else the first.
    fn put(&mut self, landing: &Landing, name: &[u8], metadata: &Metadata) -> Result<Id> {
        if self.number == 0 {
            return self.tree.add(landing.parent, name, metadata);
        }
        let old = landing
            .behind_link
            .or_else(|| self.tree.child(landing.parent, name));
        let Some(old) = old else {
            return self.tree.add(landing.parent, name, metadata);
        };
        let is_own = self.tree.node(old).source == self.number;
        let are_directories = self.tree.node(old).is_directory() && metadata.is_directory();
        if is_own && !are_directories {
            let place = self.tree.shown_path(old);
            let problem = format!(
                "it and something else of this source both land at {}, since an earlier source has a \
                 symbolic link on the way: leave out one of the two",
                place.display()
            );
            return Err(self.unsound(landing, name, problem));
        }
        if is_own && landing.own_path.is_some() {
            return Ok(old);
        }
        match landing.behind_link {
            Some(id) => {
                self.tree.set_metadata(id, metadata);
                Ok(id)
            }
            None => self.tree.put(landing.parent, name, metadata),
        }
    }

    fn note_directory(&mut self, number: u32, id: Id, landing: Landing) {
        let place = number as usize;
        if place >= self.directories.len() {
            self.directories.resize(place + 1, NONE);
        }
        self.directories[place] = id;
        if let Some(path) = landing.own_path {
            if landing.behind_link.is_some() {
                self.followed.push((id, path.clone()));
            }
            self.own_paths.insert(number, Arc::from(path));
        }
    }

    /// The path of an entry in the image.
    fn place(&self, landing: &Landing, name: &[u8]) -> PathBuf {
        match landing.behind_link {
            Some(id) => self.tree.path(id),
            None => self.tree.path(landing.parent).join(OsStr::from_bytes(name)),
        }
    }

    fn unsound(&self, landing: &Landing, name: &[u8], problem: String) -> Error {
        let path = match &landing.own_path {
            Some(path) => path.clone(),
            None => self.place(landing, name),
        };
        Error::unsound(self.path.join(path), problem)
    }
}

/// The places of all entries of these batches, in the order of their names. The entries are not
/// moved: a directory may have millions.
fn sorted(batches: &[Batch]) -> Vec<(usize, usize)> {
    let places = |(number, batch): (usize, &Batch)| {
        let count = batch.found.len();
        (0..count).map(move |place| (number, place))
    };
    let mut entries: Vec<(usize, usize)> = batches.iter().enumerate().flat_map(places).collect();
    entries.sort_unstable_by_key(|&(batch, place)| batches[batch].name(place));
    entries
}

/// Where an entry lands.
struct Landing {
    parent: Id,
    /// The directory with which it is merged, if its name is a symbolic link of an earlier source.
    behind_link: Option<Id>,
    /// Its path in the source, if a link led it or a directory above it elsewhere.
    own_path: Option<PathBuf>,
}

fn bytes(path: PathBuf) -> Vec<u8> {
    path.into_os_string().into_encoded_bytes()
}

/// Adds attributes of a file of the host to the sets and returns the number of their set. `mode` is
/// the new mode if the rules changed it.
fn intern_attributes(
    tree: &mut Tree,
    attributes: Vec<RawAttribute>,
    mode: Option<u16>,
) -> std::result::Result<u32, String> {
    let stored = attributes
        .iter()
        .map(|(name, value)| to_stored(name, value));
    let mut stored = stored.collect::<std::result::Result<Vec<_>, _>>()?;
    if let Some(mode) = mode {
        apply_mode(&mut stored, mode);
    }
    check_total_size(&stored)?;
    Ok(tree.sets.intern(stored))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::scan::{Batch, ScannedEntry};
    use super::DirectoryWriter;
    use crate::build::rules::Rules;
    use crate::build::tree::{Metadata, ROOT, Tree};

    fn metadata(mode: u16) -> Metadata {
        Metadata {
            mode,
            ..Metadata::default()
        }
    }

    #[test]
    fn names_wait_only_where_an_earlier_link_may_lead_them() {
        for (mode, waits) in [(0o100_644, false), (0o120_777, true)] {
            let mut tree = Tree::new(&metadata(0o040_755));
            tree.add(ROOT, b"earlier", &metadata(mode)).unwrap();
            tree.make_index();
            let rules = Rules::default();
            let mut writer = DirectoryWriter::new(&mut tree, &rules, Path::new("source"), 1);
            let found = ScannedEntry {
                metadata: metadata(0o100_600),
                ..ScannedEntry::default()
            };
            let mut batch = Batch::default();
            batch.push(b"name", found);
            writer.add_batch(batch).unwrap();
            assert_eq!(!writer.waiting.is_empty(), waits);
            writer.finish().unwrap();
            assert!(tree.child(ROOT, b"name").is_some());
        }
    }
}
