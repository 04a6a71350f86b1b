//! Names: create, remove, rename.

use std::collections::BTreeMap;
use std::sync::Arc;

use pext4_fs::RenameMode;

use super::{Body, Expected, File, KnownTime, LONGEST_NAME, Model, Node, Refusals, Verdict};
use crate::errno::{
    EEXIST, EINVAL, EISDIR, EMLINK, ENAMETOOLONG, ENOENT, ENOTDIR, ENOTEMPTY, EPERM, ESTALE,
};
use crate::op::{Name, NewAttributes, Op, Target};
use crate::outcome::SET_GROUP_ID;

/// Most names of an inode, and most subdirectories that a directory's link count can hold.
pub const MAX_LINKS: u32 = 65_000;
/// Longest target that a system call accepts.
const LONGEST_TARGET: usize = 4095;

impl Model {
    pub(super) fn apply_namespace(&mut self, op: &Op, number: Option<u32>) -> Verdict {
        match op {
            Op::Create { at, new } => self.make(at, *new, self.empty_file(), number),
            Op::MakeDirectory { at, new } => {
                let body = Body::Directory {
                    entries: BTreeMap::new(),
                    parent: 0,
                };
                self.make(at, *new, body, number)
            }
            Op::MakeNode {
                at,
                new,
                kind,
                device,
            } => self.make(at, *new, Body::Special(*kind, *device), number),
            Op::MakeSymlink { at, new, to } => {
                let new = NewAttributes {
                    permissions: 0o777,
                    ..*new
                };
                let body = Body::Symlink(to.clone());
                self.check_symlink(at, to)?;
                self.make(at, new, body, number)
            }
            Op::Link { of, at } => self.link(of, at),
            Op::Unlink(at) => self.unlink(at),
            Op::RemoveDirectory(at) => self.remove_directory(at),
            Op::Rename { from, to, mode } => self.rename(from, to, *mode),
            Op::CreateUnnamed {
                directory,
                new,
                slot,
            } => self.create_unnamed(directory, *new, *slot, number),
            _ => unreachable!("apply sends only these"),
        }
    }

    /// The directory and name of a new entry; fails if the name exists.
    fn new_place<'a>(&self, at: &'a Target) -> Result<(u32, &'a Name), Refusals> {
        let (directory, name) = self.place(at)?;
        if name.len() > LONGEST_NAME {
            return Err(ENAMETOOLONG.into());
        }
        let node = self.existing(directory);
        if node.links == 0 {
            return Err([ENOENT, ESTALE].into());
        }
        match node
            .entries()
            .is_some_and(|entries| entries.contains_key(name))
        {
            true => Err(EEXIST.into()),
            false => Ok((directory, name)),
        }
    }

    fn check_symlink(&self, at: &Target, to: &[u8]) -> Result<(), Refusals> {
        let longest = LONGEST_TARGET.min(self.block_size as usize - 1);
        let refusal = match to.len() {
            0 => [ENOENT, EINVAL],
            length if length > longest => [ENAMETOOLONG, ENAMETOOLONG],
            _ => return Ok(()),
        };
        let mut refusals: Refusals = refusal.into();
        if let Err(others) = self.new_place(at) {
            refusals.0.extend(others.0);
        }
        Err(refusals)
    }

    fn make(
        &mut self,
        at: &Target,
        new: NewAttributes,
        body: Body,
        number: Option<u32>,
    ) -> Verdict {
        let (directory, name) = self.new_place(at)?;
        let inode = self.insert(directory, new, body, number)?;
        self.add_entry(directory, name, inode);
        Ok(Expected::File(inode))
    }

    /// Inserts a new inode that has its link count but no name yet.
    fn insert(
        &mut self,
        directory: u32,
        new: NewAttributes,
        mut body: Body,
        number: Option<u32>,
    ) -> Result<u32, Refusals> {
        let inode = self.new_number(number)?;
        let group = self.inherited_group(directory);
        let mut permissions = new.permissions;
        if let Body::Directory { parent, .. } = &mut body {
            *parent = directory;
            permissions |= group.map_or(0, |_| SET_GROUP_ID);
        }
        let links = if matches!(body, Body::Directory { .. }) {
            2
        } else {
            1
        };
        let node = Node {
            body,
            permissions,
            uid: new.uid,
            gid: group.unwrap_or(new.gid),
            links,
            overflowed: false,
            xattrs: BTreeMap::new(),
            accessed: KnownTime::Recent,
            modified: KnownTime::Recent,
            touched: self.step,
            sized: self.step,
        };
        self.nodes.insert(inode, Arc::new(node));
        Ok(inode)
    }

    /// The subject's inode number if it is possible, otherwise one of the model's own.
    fn new_number(&mut self, number: Option<u32>) -> Result<u32, Refusals> {
        match number {
            Some(number)
                if self
                    .node(number)
                    .is_some_and(|node| node.links > 0 || !self.keeps_unnamed) =>
            {
                Err(Refusals(Vec::new()))
            }
            Some(number) => Ok(number),
            None => {
                self.next += 1;
                Ok(self.next)
            }
        }
    }

    fn add_entry(&mut self, directory: u32, name: &[u8], inode: u32) {
        let is_directory = self.existing(inode).is_directory();
        let node = self.change(directory);
        node.modified = KnownTime::Recent;
        if let Body::Directory { entries, .. } = &mut node.body {
            entries.insert(name.to_vec(), inode);
        }
        if is_directory {
            node.links += 1;
            node.overflowed |= node.links >= MAX_LINKS;
        }
    }

    fn remove_entry(&mut self, directory: u32, name: &[u8], inode: u32) {
        let is_directory = self.existing(inode).is_directory();
        let node = self.change(directory);
        node.modified = KnownTime::Recent;
        if let Body::Directory { entries, .. } = &mut node.body {
            entries.remove(name);
        }
        if is_directory {
            node.links -= 1;
        }
    }

    /// Removes one link of an inode; deletes the inode with the last one.
    fn drop_link(&mut self, inode: u32) {
        let node = self.change(inode);
        node.links = if node.is_directory() {
            0
        } else {
            node.links - 1
        };
        self.reap(inode);
    }

    fn empty_file(&self) -> Body {
        Body::Regular(File {
            has_block_map: !self.has_extents,
            ..File::default()
        })
    }

    fn create_unnamed(
        &mut self,
        directory: &Target,
        new: NewAttributes,
        slot: u8,
        number: Option<u32>,
    ) -> Verdict {
        let directory = self.resolve(directory)?;
        let node = self.existing(directory);
        if !node.is_directory() {
            return Err(ENOTDIR.into());
        }
        if node.links == 0 {
            return Err([ENOENT, ESTALE, EPERM].into());
        }
        let inode = self.insert(directory, new, self.empty_file(), number)?;
        self.change(inode).links = 0;
        self.release(slot);
        self.slots.insert(slot, inode);
        Ok(Expected::File(inode))
    }

    fn link(&mut self, of: &Target, at: &Target) -> Verdict {
        let inode = self.resolve(of)?;
        let is_directory = self.existing(inode).is_directory();
        let (directory, name) = match self.new_place(at) {
            Ok(place) => place,
            Err(mut refusals) => {
                refusals.0.extend(is_directory.then_some(EPERM));
                return Err(refusals);
            }
        };
        if is_directory {
            return Err(EPERM.into());
        }
        if self.existing(inode).links >= MAX_LINKS {
            return Err(EMLINK.into());
        }
        self.change(inode).links += 1;
        self.add_entry(directory, name, inode);
        Ok(Expected::File(inode))
    }

    fn unlink(&mut self, at: &Target) -> Verdict {
        let (directory, name) = self.place(at)?;
        let inode = self.entry(directory, name)?;
        if self.existing(inode).is_directory() {
            return Err([EISDIR, EPERM].into());
        }
        self.remove_entry(directory, name, inode);
        self.drop_link(inode);
        Ok(Expected::Done)
    }

    fn remove_directory(&mut self, at: &Target) -> Verdict {
        let (directory, name) = self.place(at)?;
        let inode = self.entry(directory, name)?;
        match self.existing(inode).entries() {
            None => return Err(ENOTDIR.into()),
            Some(entries) if !entries.is_empty() => return Err(ENOTEMPTY.into()),
            Some(_) => {}
        }
        self.remove_entry(directory, name, inode);
        self.drop_link(inode);
        Ok(Expected::Done)
    }

    fn rename(&mut self, from: &Target, to: &Target, mode: RenameMode) -> Verdict {
        let source = self
            .place(from)
            .and_then(|place| Ok((place, self.entry(place.0, place.1)?)));
        let target = self.place(to).and_then(|place| {
            let name = place.1.len();
            if name > LONGEST_NAME {
                Err(ENAMETOOLONG.into())
            } else {
                Ok(place)
            }
        });
        let (((old_directory, old_name), moved), (new_directory, new_name)) = match (source, target)
        {
            (Ok(source), Ok(target)) => (source, target),
            (Err(mut refusals), other) => {
                refusals
                    .0
                    .extend(other.err().into_iter().flat_map(|more| more.0));
                return Err(refusals);
            }
            (Ok(_), Err(refusals)) => return Err(refusals),
        };
        let replaced = self
            .existing(new_directory)
            .entries()
            .and_then(|names| names.get(new_name));
        let replaced = replaced.copied();
        self.check_rename(moved, old_directory, new_directory, replaced, mode)?;
        if replaced == Some(moved) {
            return Ok(Expected::Done);
        }
        match (mode, replaced) {
            (RenameMode::Exchange, Some(other)) => {
                self.remove_entry(old_directory, old_name, moved);
                self.remove_entry(new_directory, new_name, other);
                self.arrive(new_directory, new_name, moved);
                self.arrive(old_directory, old_name, other);
            }
            (_, replaced) => {
                self.remove_entry(old_directory, old_name, moved);
                if let Some(victim) = replaced {
                    self.remove_entry(new_directory, new_name, victim);
                    self.drop_link(victim);
                }
                self.arrive(new_directory, new_name, moved);
            }
        }
        Ok(Expected::Done)
    }

    fn arrive(&mut self, directory: u32, name: &[u8], inode: u32) {
        self.add_entry(directory, name, inode);
        if let Body::Directory { parent, .. } = &mut self.change(inode).body {
            *parent = directory;
        }
    }

    /// All reasons to refuse a rename; each of them is correct.
    fn check_rename(
        &self,
        moved: u32,
        old_directory: u32,
        new_directory: u32,
        replaced: Option<u32>,
        mode: RenameMode,
    ) -> Result<(), Refusals> {
        let mut reasons = Vec::new();
        if self.existing(new_directory).links == 0 {
            reasons.extend([ENOENT, ESTALE]);
        }
        if self.is_within(new_directory, moved) {
            reasons.push(EINVAL);
        }
        let exchange = mode == RenameMode::Exchange;
        if replaced.is_some_and(|victim| self.is_within(old_directory, victim)) {
            reasons.push(if exchange { EINVAL } else { ENOTEMPTY });
        }
        match (mode, replaced) {
            (RenameMode::NoReplace, Some(_)) => reasons.push(EEXIST),
            (RenameMode::Exchange, None) => reasons.push(ENOENT),
            (RenameMode::Replace, Some(victim)) if victim != moved => {
                self.check_replace(moved, victim, &mut reasons);
            }
            _ => {}
        }
        if reasons.is_empty() {
            Ok(())
        } else {
            Err(Refusals(reasons))
        }
    }

    fn check_replace(&self, moved: u32, victim: u32, reasons: &mut Vec<i32>) {
        let (moved, victim) = (self.existing(moved), self.existing(victim));
        match (moved.is_directory(), victim.entries()) {
            (true, None) => reasons.push(ENOTDIR),
            (false, Some(_)) => reasons.push(EISDIR),
            (true, Some(entries)) if !entries.is_empty() => reasons.push(ENOTEMPTY),
            _ => {}
        }
    }

    /// Whether `inode` is `ancestor` or is below it.
    fn is_within(&self, mut inode: u32, ancestor: u32) -> bool {
        loop {
            if inode == ancestor {
                return true;
            }
            match self.node(inode).map(|node| &node.body) {
                Some(Body::Directory { parent, .. }) if *parent != inode => inode = *parent,
                _ => return false,
            }
        }
    }
}
