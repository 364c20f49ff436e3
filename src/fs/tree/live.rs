//! The nodes that the kernel knows: it names them by inode number until it forgets them. A file or directory that is
//! renamed keeps its number, as open files expect, and so does one that is removed, until nobody has it open any more.
//! What comes to such a path meanwhile gets another number. It knows nothing of the store.

use super::{Node, inode};
use crate::store::Key;
use crate::util::memory::lock;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// Nodes by inode number.
#[derive(Default)]
pub struct LiveNodes {
    /// Protects the maps alone.
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    nodes: HashMap<u64, Live>,
    /// Numbers that are not what [`Node::inode`] says: of what was renamed, and of what came to a path whose number was
    /// not free. By path, and whether it is a directory's.
    numbers: HashMap<(bool, Key), u64>,
}

struct Live {
    /// None once it was removed.
    node: Option<Arc<Node>>,
    /// Lookups that the kernel has not taken back.
    lookups: u64,
}

impl LiveNodes {
    /// The node of an inode number; None if it was removed, or the kernel has forgotten it.
    pub fn get(&self, inode: u64) -> Option<Arc<Node>> {
        lock(&self.known).nodes.get(&inode).and_then(|live| live.node.clone())
    }

    /// The number that `node` has, or would get.
    pub fn number(&self, node: &Node) -> u64 {
        lock(&self.known).number(node)
    }

    /// Counts a lookup of `node`. The number it has.
    pub fn remember(&self, node: Node) -> u64 {
        let mut known = lock(&self.known);
        let number = known.number(&node);
        if number != node.inode() {
            known.numbers.insert(place(&node), number);
        }
        let live = known.nodes.entry(number).or_insert(Live { node: None, lookups: 0 });
        live.lookups += 1;
        // the same path may have become something else
        if live.node.as_deref() != Some(&node) {
            live.node = Some(Arc::new(node));
        }
        number
    }

    /// Takes back `count` lookups.
    pub fn forget(&self, inode: u64, count: u64) {
        let mut known = lock(&self.known);
        let Some(live) = known.nodes.get_mut(&inode) else { return };
        live.lookups = live.lookups.saturating_sub(count);
        if live.lookups == 0
            && let Some(Live { node: Some(node), .. }) = known.nodes.remove(&inode)
        {
            known.numbers.remove(&place(&node));
        }
    }

    /// `node` was removed, and what was below it.
    pub fn removed(&self, node: &Node) {
        let mut known = lock(&self.known);
        for number in known.at_and_below(node) {
            known.remove(number);
        }
    }

    /// `node` now is `to`, in place of what was there, and what was below it is below that.
    pub fn renamed(&self, node: &Node, to: &Node) {
        let mut known = lock(&self.known);
        let moved = known.at_and_below(node);
        for number in known.at_and_below(to) {
            known.remove(number);
        }
        for number in moved {
            let Some(live) = known.nodes.get_mut(&number) else { continue };
            let Some(old) = live.node.take() else { continue };
            let new = if node.is_directory() { old.rebased(&node.path(), &to.path()) } else { to.clone() };
            let at = place(&new);
            live.node = Some(Arc::new(new));
            known.numbers.remove(&place(&old));
            known.numbers.insert(at, number);
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        lock(&self.known).nodes.len()
    }
}

impl Known {
    fn number(&self, node: &Node) -> u64 {
        let (home, at) = (node.inode(), place(node));
        if let Some(number) = self.numbers.get(&at) {
            return *number;
        }
        let is_free = |number: &u64| match self.nodes.get(number) {
            None => true,
            Some(live) => live.node.as_deref().is_some_and(|there| place(there) == at),
        };
        let others = (1u64..).map(|n| inode(at.0, &format!("{}\0{n}", at.1.as_str())));
        std::iter::once(home).chain(others).find(is_free).unwrap_or(home)
    }

    /// The numbers of `node` and, if it is a directory, of everything known below it.
    fn at_and_below(&self, node: &Node) -> Vec<u64> {
        if !node.is_directory() {
            let number = self.number(node);
            return self.nodes.contains_key(&number).then_some(number).into_iter().collect();
        }
        let path = node.path();
        let inside = |live: &Live| live.node.as_ref().is_some_and(|n| n.path().relative_to(&path).is_some());
        self.nodes.iter().filter(|(_, live)| inside(live)).map(|(number, _)| *number).collect()
    }

    fn remove(&mut self, number: u64) {
        if let Some(node) = self.nodes.get_mut(&number).and_then(|live| live.node.take()) {
            self.numbers.remove(&place(&node));
        }
    }
}

fn place(node: &Node) -> (bool, Key) {
    (node.is_directory(), node.path())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(path: &str) -> Node {
        Node::Value(Key::normalize(path).unwrap())
    }

    fn directory(path: &str) -> Node {
        Node::Directory(Key::normalize(path).unwrap())
    }

    #[test]
    fn what_is_renamed_keeps_its_number_and_what_comes_after_it_gets_another() {
        let live = LiveNodes::default();
        let (new, old) = (live.remember(value("index.lock")), live.remember(value("index")));
        live.renamed(&value("index.lock"), &value("index"));
        assert_eq!((live.get(new).as_deref(), live.get(old)), (Some(&value("index")), None));
        assert_eq!(live.number(&value("index")), new);
        let next = live.remember(value("index.lock"));
        assert!(next != new && next != old);
        assert_eq!(live.get(next).as_deref(), Some(&value("index.lock")));
        live.renamed(&value("index.lock"), &value("index"));
        assert_eq!((live.get(next).as_deref(), live.get(new)), (Some(&value("index")), None));
        // once the kernel has forgotten all, numbers are as in every mount
        for number in [new, old, next] {
            live.forget(number, 1);
        }
        assert_eq!(live.len(), 0);
        assert_eq!(live.number(&value("index")), value("index").inode());
        assert_eq!(live.number(&value("index.lock")), value("index.lock").inode());
    }

    #[test]
    fn what_is_removed_is_known_by_its_number_no_more() {
        let live = LiveNodes::default();
        let first = live.remember(value("a"));
        assert_eq!(live.remember(value("a")), first);
        live.removed(&value("a"));
        assert_eq!(live.get(first), None);
        let second = live.remember(value("a"));
        assert_ne!(second, first);
        live.forget(first, 2);
        assert_eq!(live.number(&value("a")), second, "its number stays as long as it is known");
        live.forget(second, 1);
        assert_eq!(live.remember(value("a")), first);
    }

    #[test]
    fn what_lies_below_a_directory_goes_with_it() {
        let live = LiveNodes::default();
        let flat = |path: &str| Node::Flat(Key::normalize(path).unwrap());
        let [a, x, aa] = [directory("g/a"), flat("g/a"), value("g/aa")].map(|n| live.remember(n));
        live.renamed(&directory("g/a"), &directory("b"));
        assert_eq!(live.get(a).as_deref(), Some(&directory("b")));
        assert_eq!(live.get(x).as_deref(), Some(&flat("b")));
        assert_eq!(live.get(aa).as_deref(), Some(&value("g/aa")));
        assert_eq!(live.number(&flat("b")), x);
        assert_ne!(live.number(&directory("g/a")), a);
        live.removed(&directory("b"));
        assert_eq!((live.get(a), live.get(x)), (None, None));
    }

    #[test]
    fn a_path_that_became_something_else_keeps_its_number() {
        let live = LiveNodes::default();
        let chunk = Node::Chunk(Key::root(), "0".into());
        let number = live.remember(value("0"));
        assert_eq!(live.remember(chunk.clone()), number);
        assert_eq!(live.get(number), Some(Arc::new(chunk)));
    }
}
