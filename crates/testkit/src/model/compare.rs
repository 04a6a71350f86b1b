//! Compares the whole model with the whole tree that a walker found.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Body, KnownTime, Model, Node};
use crate::content::Ranges;
use crate::op::Name;
use crate::tree::{Item, Tree, join, show, xattr_difference};

/// Most differences that a comparison reports.
const MAX_TOLD: usize = 20;

impl Model {
    /// All paths and their inodes; the path of the root is empty.
    #[must_use]
    pub fn paths(&self) -> BTreeMap<Vec<u8>, u32> {
        let mut paths = BTreeMap::from([(Vec::new(), self.root)]);
        let mut todo = vec![(Vec::new(), self.root)];
        while let Some((path, inode)) = todo.pop() {
            for (name, &child) in self
                .node(inode)
                .and_then(Node::entries)
                .into_iter()
                .flatten()
            {
                let path = join(&path, name);
                if self.existing(child).is_directory() {
                    todo.push((path.clone(), child));
                }
                paths.insert(path, child);
            }
        }
        paths
    }

    /// Describes where a tree differs from the model; empty if they agree.
    #[must_use]
    pub fn differences(&self, tree: &Tree) -> Vec<String> {
        self.compare(tree, &mut |node, item| match (&node.body, &item.content) {
            (Body::Regular(file), Some(content)) => file.content.difference(content),
            (Body::Regular(_), None) => Some("no content".to_owned()),
            _ => None,
        })
    }

    /// The same, with the comparison of contents left to `content`.
    pub fn compare(
        &self,
        tree: &Tree,
        content: &mut dyn FnMut(&Node, &Item) -> Option<String>,
    ) -> Vec<String> {
        let paths = self.paths();
        let mut told = Vec::new();
        for (path, &inode) in &paths {
            match tree.items.get(path) {
                None => told.push(format!("{}: missing", show(path))),
                Some(item) => {
                    let found = self.compare_item(inode, item, content);
                    told.extend(
                        found
                            .into_iter()
                            .map(|text| format!("{}: {text}", show(path))),
                    );
                }
            }
            if told.len() >= MAX_TOLD {
                return told;
            }
        }
        let extra = tree.items.keys().filter(|path| !paths.contains_key(*path));
        told.extend(
            extra
                .take(MAX_TOLD)
                .map(|path| format!("{}: too many", show(path))),
        );
        told
    }

    /// This model with one file between its present state and that in `after`: its size is given,
    /// its blocks are the old ones, the new ones, or between. `None` if the size fits neither.
    #[must_use]
    pub fn between(&self, after: &Self, inode: u32, size: u64) -> Option<Self> {
        let old = self.node(inode)?.file()?;
        let new = after.node(inode)?.file()?;
        let (one, two) = (old.content.size(), new.content.size());
        if size < one.min(two) || size > one.max(two) {
            return None;
        }
        let mut model = self.clone();
        let node = Arc::make_mut(model.nodes.get_mut(&inode)?);
        node.modified = KnownTime::Unknown;
        if let Body::Regular(file) = &mut node.body {
            file.content.resize(size);
            file.required = Ranges::default();
            file.possible.join(&new.possible);
        }
        Some(model)
    }

    fn compare_item(
        &self,
        inode: u32,
        item: &Item,
        content: &mut dyn FnMut(&Node, &Item) -> Option<String>,
    ) -> Vec<String> {
        let node = self.existing(inode);
        let mut told = Vec::from_iter(self.judge_facts(inode, &item.facts).err());
        if let Body::Symlink(to) = &node.body
            && item.link.as_ref() != Some(to)
        {
            told.push(format!("it points to {:?}, not {to:?}", item.link));
        }
        let xattrs: BTreeMap<Name, Vec<u8>> = node
            .xattrs
            .iter()
            .map(|(name, value)| (name.clone(), value.to_vec()))
            .collect();
        if xattrs != item.xattrs {
            told.push(xattr_difference(&xattrs, &item.xattrs));
        }
        told.extend(content(node, item));
        told
    }
}
