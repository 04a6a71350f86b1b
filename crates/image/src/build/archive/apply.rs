//! Applies the records of an archive to the tree.
//!
//! A directory that an archive does not name is created with the first entry below it, and gets the
//! latest time of the entries in it. Symbolic links in the path of an entry are followed inside the
//! image: `..` stops at its root. So is one at its end if an earlier source made it, it leads to a
//! directory, and the entry is one: the two are merged. (One of the same archive is replaced, as by
//! GNU tar.) Rules for paths are matched with both paths of such an entry: that in the archive and
//! that at which it *lands*. In the layers of a container image the names `.wh.NAME` and
//! `.wh..wh..opq` hide files of lower layers, and a directory replaces a symbolic link.
//!
//! A mark may stand behind the entries to which it matters. So an entry of a layer *waits* until
//! all marks are known if its path leads through a symbolic link of a lower layer, or a file of one
//! is in its way: the layer may hide either. What follows it waits too, so that the order stays. A
//! mark whose path leads through such a link waits for the others, and for the entries if one of
//! them takes the place of the link.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::os::unix::ffi::OsStrExt;

use pext4_ondisk::shown::Shown;
use pext4_tar::marks::{Mark, mark};

use super::super::attributes::apply_mode;
use super::super::error::{Error, Result};
use super::super::lookup::{self, Destination, Obstacle, find, locate, split};
use super::super::rules::Rules;
use super::super::tree::{Id, Metadata, ROOT, Tree};
use super::Record;

/// Adds the entries of one archive to a tree.
pub(in crate::build) struct ArchiveWriter<'a> {
    pub archive: &'a std::path::Path,
    pub rules: &'a Rules,
    /// Its source number.
    pub number: u16,
    /// Whether the archive is a layer of a container image.
    is_layer: bool,
    /// Maximum number of names that the archive may add.
    max_names: Option<u64>,
    names: u64,
    /// The number of entries that were applied.
    entries: u64,
    /// The number of directories that only the targets of symbolic links named.
    linked: u64,
    /// Opaque directories.
    opaque: Vec<Id>,
    /// The directory of the previous entry: the next one is mostly in the same.
    last_directory: Option<(Vec<u8>, Id)>,
    /// Implicit directories: those that contain entries but have no entry of their own (yet), with
    /// the latest time of these entries. Directories that existed before are recorded only for a
    /// container's layer.
    implicit: HashMap<Id, (i64, u32)>,
    /// Entries of a layer that wait for its marks, in their order. For a hard link with the file to
    /// which it led when it was read, since a mark may hide that.
    waiting: Vec<(Record, Option<Id>)>,
    /// Marks that wait for others, which may hide what their paths lead through.
    waiting_marks: Vec<Record>,
}

/// How many directories an archive may add that only the targets of its symbolic links name: so
/// many in any case, and so many more for each of its entries. A target names two thousand at most,
/// but hard links to the link may lie in any number of directories.
const MIN_LINKED: u64 = 4096;
const LINKED_PER_ENTRY: u64 = 16;

/// The time of an implicit directory that contains no entry directly.
const NO_TIME: (i64, u32) = (i64::MIN, 0);

impl<'a> ArchiveWriter<'a> {
    pub fn new(
        archive: &'a std::path::Path,
        rules: &'a Rules,
        number: u16,
        max_names: Option<u64>,
    ) -> Self {
        Self {
            archive,
            rules,
            number,
            is_layer: false,
            max_names,
            names: 0,
            entries: 0,
            linked: 0,
            opaque: Vec::new(),
            last_directory: None,
            implicit: HashMap::new(),
            waiting: Vec::new(),
            waiting_marks: Vec::new(),
        }
    }

    /// Marks the archive as a layer of a container image.
    pub fn container_layer(mut self) -> Self {
        self.is_layer = true;
        self
    }

    /// Counts a name against the limit. Implicit directories count too.
    fn count(&mut self, path: &[u8]) -> Result<()> {
        self.names += 1;
        if self
            .max_names
            .is_some_and(|max_names| self.names > max_names)
        {
            let problem = "more entries and directories than the image may have inodes";
            return Err(Error::unsound(
                self.archive,
                format!("{}: {problem}", Shown(path)),
            ));
        }
        Ok(())
    }

    /// Counts the directories that an entry adds although its own path does not name them.
    fn count_linked(
        &mut self,
        path: &[u8],
        folder: &[u8],
        destination: &Destination,
    ) -> Result<()> {
        if destination.missing.is_empty() {
            return Ok(());
        }
        let own = lookup::names(folder).count();
        self.linked += destination.missing.len().saturating_sub(own) as u64;
        if self.linked <= MIN_LINKED + self.entries * LINKED_PER_ENTRY {
            return Ok(());
        }
        let problem = "its symbolic links lead to directories that are not there, and these are too \
                       many for the number of entries";
        let problem = format!("{}: {problem}", Shown(path));
        Err(Error::unsound(self.archive, problem))
    }

    /// Applies one record to the tree, unless the rules exclude the path at which it lands.
    pub fn apply(&mut self, tree: &mut Tree, record: Record) -> Result<()> {
        if self.is_layer {
            let is_mark = mark(&record.path).is_some();
            let is_earlier = self.leads_through_earlier(tree, &record);
            if is_mark && is_earlier {
                self.waiting_marks.push(record);
                return Ok(());
            }
            let does_more_wait = !self.waiting_marks.is_empty() || !self.waiting.is_empty();
            if !is_mark && (is_earlier || does_more_wait) {
                let target = record.link.as_ref().and_then(|link| find(tree, link));
                self.waiting.push((record, target));
                return Ok(());
            }
        }
        self.apply_now(tree, record, None)
    }

    /// Whether the path of a record, or of the file to which it is a hard link, leads through what
    /// is no directory and not of this layer.
    fn leads_through_earlier(&self, tree: &Tree, record: &Record) -> bool {
        [Some(&record.path), record.link.as_ref()]
            .into_iter()
            .flatten()
            .filter_map(|path| split(path))
            .any(|(folder, _)| {
                let last = self.last_directory.as_ref();
                last.is_none_or(|(last, _)| last != folder)
                    && lookup::leads_through(tree, folder, |id| self.is_earlier(tree, id))
            })
    }

    fn is_earlier(&self, tree: &Tree, id: Id) -> bool {
        tree.node(id).source < self.number
    }

    /// The symbolic links of lower layers that entries which wait will replace.
    fn links_to_replace(&self, tree: &Tree) -> HashSet<Id> {
        let there = self.waiting.iter();
        let there = there.filter_map(|(record, _)| find(tree, &record.path));
        there
            .filter(|&id| tree.node(tree.owner(id)).is_symlink() && self.is_earlier(tree, id))
            .collect()
    }

    /// Applies what has waited for the marks of the layer.
    fn apply_waiting(&mut self, tree: &mut Tree) -> Result<()> {
        if self.waiting.is_empty() && self.waiting_marks.is_empty() {
            return Ok(());
        }
        self.apply_marks(tree);
        let depth = |record: &Record| record.path.iter().filter(|&&byte| byte == b'/').count();
        let mut marks = std::mem::take(&mut self.waiting_marks);
        // A mark above hides the links through which those below would lead.
        marks.sort_by_key(depth);
        let replaced = match marks.is_empty() {
            true => HashSet::new(),
            false => self.links_to_replace(tree),
        };
        let (mut last_depth, mut later) = (0, Vec::new());
        for record in marks {
            if depth(&record) > last_depth && !self.opaque.is_empty() {
                self.apply_marks(tree);
            }
            last_depth = depth(&record);
            // The layer may have a directory there, and below a file there is nothing to hide.
            let is_later = split(&record.path).is_some_and(|(folder, _)| {
                let is_replaced = |id| replaced.contains(&id);
                is_blocked(tree, folder) || lookup::leads_through(tree, folder, is_replaced)
            });
            match is_later {
                true => later.push((record, None)),
                false => self.apply_now(tree, record, None)?,
            }
        }
        self.apply_marks(tree);
        let waiting = std::mem::take(&mut self.waiting).into_iter();
        waiting
            .chain(later)
            .try_for_each(|(record, target)| self.apply_now(tree, record, target))
    }

    /// Applies a record. A hard link leads to `target` if nothing has its name.
    fn apply_now(&mut self, tree: &mut Tree, mut record: Record, target: Option<Id>) -> Result<()> {
        record.metadata.source = self.number;
        self.entries += 1;
        let path = std::mem::take(&mut record.path);
        let Some((folder, name)) = split(&path) else {
            self.apply_rules(&mut record, || vec![Vec::new()]);
            self.count(&path)?;
            record.metadata.attributes = tree.sets.intern(record.attributes);
            tree.set_root(&record.metadata);
            return Ok(());
        };
        let mark = self.is_layer.then(|| mark(&path)).flatten();
        if mark == Some(Mark::Below) {
            return Ok(());
        }
        let destination = self.destination(tree, folder, &path)?;
        let behind_link = self.directory_behind_link(tree, &record, &destination, name);
        let landing = match behind_link {
            Some(id) => self.rules.needs_paths().then(|| bytes_of(tree, id)),
            None => self.landing_path(tree, &destination, name),
        };
        let landing = landing.filter(|landing| *landing != path);
        if landing
            .as_ref()
            .is_some_and(|landing| self.is_left_out(landing, record.metadata.is_directory()))
        {
            return Ok(());
        }
        // A hard link has the attributes of its file, which its own path does not change.
        if record.link.is_none() {
            self.apply_rules(&mut record, || {
                landing.into_iter().chain([path.clone()]).collect()
            });
        }
        self.count(&path)?;
        self.count_linked(&path, folder, &destination)?;
        let parent = self.enter(tree, folder, destination)?;
        self.note_time(parent, &record.metadata);
        if let Some(mark) = mark {
            self.hide(tree, parent, mark);
            return Ok(());
        }
        if let Some(link) = &record.link {
            let target = self.link_target(tree, &path, link, target)?;
            return self.link(tree, parent, name, target);
        }
        record.metadata.attributes = tree.sets.intern(std::mem::take(&mut record.attributes));
        if let Some(target) = &record.target {
            record.metadata.size = target.len() as u64;
            record.metadata.content = u64::from(tree.store_text(target)?);
        }
        let id = match behind_link {
            Some(id) => {
                tree.set_metadata(id, &record.metadata);
                id
            }
            None => self.put(tree, parent, name, &record.metadata)?,
        };
        if tree.node(id).is_directory() {
            self.implicit.remove(&id);
        }
        if let Some(segments) = record.segments {
            tree.segments.insert(id, segments);
        }
        Ok(())
    }

    /// The directory to which a symbolic link of an earlier source leads, if it has the name of the
    /// record and this is a directory too. A layer replaces the link.
    fn directory_behind_link(
        &self,
        tree: &Tree,
        record: &Record,
        destination: &Destination,
        name: &[u8],
    ) -> Option<Id> {
        if !record.metadata.is_directory() || self.is_layer || !destination.missing.is_empty() {
            return None;
        }
        lookup::directory_behind_link(tree, destination.at, name, self.number)
    }

    /// The file to which a hard link leads.
    fn link_target(
        &self,
        tree: &Tree,
        path: &[u8],
        link: &[u8],
        earlier: Option<Id>,
    ) -> Result<Id> {
        let unsound =
            |problem: &str| Error::unsound(self.archive, format!("{}: {problem}", Shown(path)));
        let target = find(tree, link).or(earlier).ok_or_else(|| {
            // The content was skipped together with the excluded name.
            match self.is_target_left_out(tree, link) {
                true => unsound(&format!(
                    "it is a hard link to {}, which is left out: leave out both or neither",
                    Shown(link)
                )),
                false => unsound("it is a hard link to what is not there (yet)"),
            }
        })?;
        let target = tree.owner(target);
        if tree.node(target).is_directory() {
            return Err(unsound("it is a hard link to a directory"));
        }
        Ok(target)
    }

    fn apply_rules(&self, record: &mut Record, paths: impl FnOnce() -> Vec<Vec<u8>>) {
        if self.rules.apply(paths, &mut record.metadata) {
            apply_mode(&mut record.attributes, record.metadata.mode);
        }
    }

    /// Adds a name to a directory, and replaces an existing one.
    fn put(&mut self, tree: &mut Tree, parent: Id, name: &[u8], metadata: &Metadata) -> Result<Id> {
        let old = tree.child(parent, name);
        let id = tree.put(parent, name, metadata)?;
        // The path to the cached directory may lead through the name that was replaced.
        if old.is_some_and(|old| old != id) {
            self.last_directory = None;
        }
        Ok(id)
    }

    fn link(&mut self, tree: &mut Tree, parent: Id, name: &[u8], target: Id) -> Result<()> {
        if tree.child(parent, name) == Some(target) {
            return Ok(());
        }
        let node = *tree.node(target);
        let metadata = Metadata {
            mode: node.mode,
            uid: node.uid,
            gid: node.gid,
            size: node.size,
            seconds: node.seconds,
            nanoseconds: node.nanoseconds,
            content: node.content,
            attributes: node.attributes,
            source: self.number,
        };
        let id = self.put(tree, parent, name, &metadata)?;
        tree.node_mut(id).link = target;
        Ok(())
    }

    /// Hides what a mark in the directory `parent` hides.
    fn hide(&mut self, tree: &mut Tree, parent: Id, mark: Mark<'_>) {
        self.last_directory = None;
        let hidden = match mark {
            Mark::Opaque => {
                self.opaque.push(parent);
                return;
            }
            Mark::Whiteout(name) => tree.child(parent, name),
            Mark::Reserved | Mark::Below => None,
        };
        if let Some(hidden) = hidden {
            if tree.node(hidden).source >= self.number {
                self.opaque.push(hidden);
            } else if self.implicit.contains_key(&hidden) {
                // The entries of this layer stay, in a directory of its own.
                self.reset_directory(tree, hidden);
                self.opaque.push(hidden);
            } else {
                tree.remove(hidden);
            }
        }
    }

    /// Applies the marks of the layer, and what has waited for them.
    pub fn finish(mut self, tree: &mut Tree) -> Result<()> {
        self.apply_waiting(tree)?;
        self.apply_marks(tree);
        self.set_implicit_times(tree);
        Ok(())
    }

    /// Removes what the opaque directories so far hide.
    fn apply_marks(&mut self, tree: &mut Tree) {
        self.last_directory = None;
        self.reset_hidden_directories(tree);
        tree.remove_below(&self.opaque, self.number);
        self.opaque.clear();
    }

    /// Resets directories of earlier layers that are hidden but contain entries of this one.
    fn reset_hidden_directories(&self, tree: &mut Tree) {
        if self.opaque.is_empty() {
            return;
        }
        let opaque: HashSet<Id> = self.opaque.iter().copied().collect();
        for &id in self.implicit.keys() {
            let mut at = id;
            while at != ROOT && !opaque.contains(&tree.node(at).parent) {
                at = tree.node(at).parent;
            }
            if at != ROOT && tree.node(id).source < self.number {
                self.reset_directory(tree, id);
            }
        }
    }

    /// Gives a directory the metadata of an implicit directory.
    fn reset_directory(&self, tree: &mut Tree, id: Id) {
        let mut metadata = self.implicit_directory();
        self.rules.apply(|| vec![bytes_of(tree, id)], &mut metadata);
        tree.set_metadata(id, &metadata);
    }

    fn implicit_directory(&self) -> Metadata {
        Metadata {
            mode: 0o040_755,
            source: self.number,
            ..Metadata::default()
        }
    }

    fn note_time(&mut self, directory: Id, of: &Metadata) {
        if let Some(time) = self.implicit.get_mut(&directory) {
            *time = (*time).max((of.seconds, of.nanoseconds));
        }
    }

    /// Gives implicit directories the latest time of their contents, independent of the order of
    /// entries.
    fn set_implicit_times(&self, tree: &mut Tree) {
        let directories = self.implicit.iter();
        let mut directories: Vec<(Id, (i64, u32))> = directories
            .map(|(&id, &time)| (id, time))
            .filter(|&(id, _)| tree.node(id).source == self.number)
            .collect();
        // Parents have lower numbers, so each is visited after everything below it.
        directories.sort_unstable_by_key(|&(id, _)| std::cmp::Reverse(id));
        let mut times: HashMap<Id, (i64, u32)> = directories.iter().copied().collect();
        for (id, _) in directories {
            let time = times[&id];
            if let Some(above) = times.get_mut(&tree.node(id).parent) {
                *above = (*above).max(time);
            }
            let mut metadata = self.implicit_directory();
            (metadata.seconds, metadata.nanoseconds) = time;
            self.rules.apply(|| vec![bytes_of(tree, id)], &mut metadata);
            let node = tree.node_mut(id);
            (node.seconds, node.nanoseconds) = (metadata.seconds, metadata.nanoseconds);
        }
    }

    /// The directory to which an entry's path leads. Creates nothing.
    fn destination(&self, tree: &Tree, folder: &[u8], path: &[u8]) -> Result<Destination> {
        if let Some((last, id)) = &self.last_directory
            && last == folder
        {
            return Ok(Destination {
                at: *id,
                missing: Vec::new(),
            });
        }
        locate(tree, folder).map_err(|obstacle| {
            let problem = format!("{}: {}: {obstacle}", Shown(path), Shown(folder));
            Error::unsound(self.archive, problem)
        })
    }

    /// The path at which an entry lands, as rules match it; `None` if no rule needs paths.
    fn landing_path(&self, tree: &Tree, destination: &Destination, name: &[u8]) -> Option<Vec<u8>> {
        if !self.rules.needs_paths() {
            return None;
        }
        let mut landing = bytes_of(tree, destination.at);
        let missing = destination.missing.iter().map(Vec::as_slice);
        for name in missing.chain([name]) {
            if !landing.is_empty() {
                landing.push(b'/');
            }
            landing.extend_from_slice(name);
        }
        Some(landing)
    }

    /// Whether the rules exclude an entry by the path at which it lands.
    fn is_left_out(&self, landing: &[u8], is_directory: bool) -> bool {
        match self.is_layer {
            true => super::is_hidden_left_out(self.rules, landing, is_directory),
            false => super::is_left_out(self.rules, landing, is_directory),
        }
    }

    /// Whether the rules exclude the target of a hard link, by its path in the archive or by that
    /// at which it landed.
    fn is_target_left_out(&self, tree: &Tree, path: &[u8]) -> bool {
        let landing = split(path).and_then(|(folder, name)| {
            let destination = locate(tree, folder).ok()?;
            self.landing_path(tree, &destination, name)
        });
        super::is_left_out(self.rules, path, false)
            || landing.is_some_and(|landing| super::is_left_out(self.rules, &landing, false))
    }

    /// Creates what is missing of the directory of an entry.
    fn enter(&mut self, tree: &mut Tree, folder: &[u8], destination: Destination) -> Result<Id> {
        let Destination { mut at, missing } = destination;
        let is_last = |(_, last): &(_, Id)| *last == at && missing.is_empty();
        if self.last_directory.as_ref().is_some_and(is_last) {
            return Ok(at);
        }
        if self.is_layer {
            self.note_directories(tree, at);
        }
        for name in &missing {
            at = self.make(tree, at, name)?;
        }
        self.last_directory = Some((folder.to_vec(), at));
        Ok(at)
    }

    /// Records that directories of lower layers, down to this one, contain an entry of this layer.
    fn note_directories(&mut self, tree: &Tree, directory: Id) {
        let mut at = directory;
        while at != ROOT {
            if tree.node(at).source < self.number {
                self.implicit.entry(at).or_insert(NO_TIME);
            }
            at = tree.node(at).parent;
        }
    }

    /// Creates an implicit directory.
    fn make(&mut self, tree: &mut Tree, parent: Id, name: &[u8]) -> Result<Id> {
        let metadata = self.implicit_directory();
        let id = tree.put(parent, name, &metadata)?;
        self.reset_directory(tree, id);
        self.implicit.insert(id, NO_TIME);
        self.count(name)?;
        Ok(id)
    }
}

/// The path of the file to which an entry of a layer refers: for a whiteout, the file that it
/// hides; for other marks, their directory.
pub(super) fn hidden_path(path: &[u8]) -> Cow<'_, [u8]> {
    let (folder, _) = split(path).unwrap_or_default();
    match mark(path) {
        None | Some(Mark::Below) => Cow::Borrowed(path),
        Some(Mark::Opaque | Mark::Reserved) => Cow::Borrowed(folder),
        Some(Mark::Whiteout(hidden)) if folder.is_empty() => Cow::Borrowed(hidden),
        Some(Mark::Whiteout(hidden)) => Cow::Owned([folder, hidden].join(&b'/')),
    }
}

/// Whether an entry of a layer is a mark that hides what a directory holds.
pub(super) fn hides_directory(path: &[u8]) -> bool {
    matches!(mark(path), Some(Mark::Opaque | Mark::Reserved))
}

/// Whether a file is in the way of a directory's path.
fn is_blocked(tree: &Tree, folder: &[u8]) -> bool {
    matches!(locate(tree, folder), Err(Obstacle::NoDirectory))
}

/// The path of a node, as path rules match it.
fn bytes_of(tree: &Tree, id: Id) -> Vec<u8> {
    tree.path(id).as_os_str().as_bytes().to_vec()
}
