//! # Room card: names
//!
//! Purpose:    directories, and what a crash may leave of their changes.
//! Owns:       [`Names`], [`NameOp`].
//! Interface:  all of it.
//! Invariants: a name means one node; a change survives whole or not at all. No change
//!             happens without those it needs: no rename of a file that was never created, no
//!             create under a name that is still taken.
//! Never:      bytes.
//! Tests:      `tests/promises/disk.rs`.
//! Start at:   [`Names::apply`].

use std::collections::{BTreeMap, BTreeSet};

/// A file or directory, by number; never used twice.
pub(crate) type NodeId = u64;

/// The data directory.
pub(crate) const ROOT: NodeId = 0;

/// One change of a directory.
#[derive(Clone, Debug)]
pub(crate) enum NameOp {
    /// A file or directory came to be.
    Link { dir: NodeId, name: String, node: NodeId },
    /// The file or directory was removed; a directory only goes when it is empty.
    Unlink { dir: NodeId, name: String, node: NodeId },
    /// The file or directory was renamed, in place of whatever had the new name.
    Move { from: (NodeId, String), to: (NodeId, String), node: NodeId },
}

impl NameOp {
    fn touches(&self, of: NodeId) -> bool {
        match self {
            Self::Link { dir, .. } | Self::Unlink { dir, .. } => *dir == of,
            Self::Move { from, to, .. } => from.0 == of || to.0 == of,
        }
    }

    pub(crate) fn node(&self) -> NodeId {
        match self {
            Self::Link { node, .. } | Self::Unlink { node, .. } | Self::Move { node, .. } => *node,
        }
    }
}

/// A tree of directories.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names {
    dirs: BTreeMap<NodeId, BTreeMap<String, NodeId>>,
}

impl Names {
    pub(crate) fn add_dir(&mut self, node: NodeId) {
        self.dirs.entry(node).or_default();
    }

    pub(crate) fn is_dir(&self, node: NodeId) -> bool {
        self.dirs.contains_key(&node)
    }

    pub(crate) fn entries(&self, dir: NodeId) -> Option<&BTreeMap<String, NodeId>> {
        self.dirs.get(&dir)
    }

    /// Returns the directory that a path's last part is in, and that part.
    pub(crate) fn parent<'a>(&self, path: &'a str) -> Option<(NodeId, &'a str)> {
        match path.rsplit_once('/') {
            Some((dir, name)) => Some((self.find(dir).filter(|dir| self.is_dir(*dir))?, name)),
            None => Some((ROOT, path)),
        }
    }

    /// Returns the node that a path names.
    pub(crate) fn find(&self, path: &str) -> Option<NodeId> {
        let parts = path.split('/').filter(|part| !part.is_empty());
        parts.into_iter().try_fold(ROOT, |dir, part| self.dirs.get(&dir)?.get(part).copied())
    }

    /// Makes a change, if it can be made here.
    pub(crate) fn apply(&mut self, op: &NameOp) {
        match op {
            NameOp::Link { dir, name, node } => {
                self.dirs.entry(*dir).or_default().entry(name.clone()).or_insert(*node);
            }
            NameOp::Unlink { dir, name, node } => {
                let empty = self.dirs.get(node).is_none_or(BTreeMap::is_empty);
                let entries = self.dirs.entry(*dir).or_default();
                if empty && entries.get(name) == Some(node) {
                    entries.remove(name);
                }
            }
            NameOp::Move { from, to, node } => {
                let source = self.dirs.entry(from.0).or_default();
                if source.get(&from.1) == Some(node) {
                    source.remove(&from.1);
                    self.dirs.entry(to.0).or_default().insert(to.1.clone(), *node);
                }
            }
        }
    }

    /// Makes those of `pending` durable that `dir` needs, and drops them from the list. These are its own, earlier
    /// ones of the same nodes, and those in directories that were removed from it.
    pub(crate) fn sync(&mut self, dir: NodeId, pending: &mut Vec<NameOp>) {
        let mut dirs = BTreeSet::from([dir]);
        let mut nodes = BTreeSet::new();
        loop {
            let before = (dirs.len(), nodes.len());
            for op in pending.iter() {
                if dirs.iter().any(|dir| op.touches(*dir)) {
                    nodes.insert(op.node());
                    if matches!(op, NameOp::Unlink { node, .. } if self.is_dir(*node)) {
                        dirs.insert(op.node());
                    }
                }
            }
            if before == (dirs.len(), nodes.len()) {
                break;
            }
        }
        let (now, later): (Vec<_>, Vec<_>) = pending
            .drain(..)
            .partition(|op| nodes.contains(&op.node()) || dirs.iter().any(|dir| op.touches(*dir)));
        *pending = later;
        for op in &now {
            self.apply(op);
        }
    }

    /// Returns all that can be reached, as (path, node), directories included, in order.
    pub(crate) fn walk(&self) -> Vec<(String, NodeId)> {
        let mut found = Vec::new();
        let mut stack = vec![(String::new(), ROOT)];
        while let Some((path, dir)) = stack.pop() {
            for (name, node) in self.dirs.get(&dir).into_iter().flatten() {
                let child = if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
                if self.is_dir(*node) {
                    stack.push((child.clone(), *node));
                }
                found.push((child, *node));
            }
        }
        found.sort();
        found
    }

    /// Forgets directories that cannot be reached.
    pub(crate) fn prune(&mut self) {
        let reached: BTreeSet<NodeId> = self.walk().into_iter().map(|(_, node)| node).collect();
        self.dirs.retain(|node, _| *node == ROOT || reached.contains(node));
    }
}
