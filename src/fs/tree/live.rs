//! The nodes that the kernel knows: it names them by inode number until it forgets them. A file or
//! directory that is renamed keeps its number, as open files expect, and so does one that is
//! removed, until its last open file is closed. Whatever takes such a path meanwhile gets another
//! number. The kernel forgets names only when it is short of memory itself, so this module also
//! selects names that the kernel should be asked to forget. It knows nothing of the store.

use super::node::inode;
use super::{Node, ROOT_INODE, node_text};
use lru::LruCache;
use std::collections::{HashMap, HashSet};
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;
use zarrfs_base::memory::lock;
use zarrfs_outlive::{Journal, Record, RecordId};
use zarrfs_store::Key;

/// The kind of the records of nodes in the journal. The numbers are the lookups, and the generation
/// with the bit [`IS_LOST`]; the text is the inode number and the text of the node.
pub const NODE_RECORD: u32 = 1;

/// The bit of a node that was removed.
const IS_LOST: u64 = 1 << 32;

/// Bytes of nodes above which the kernel is asked to forget some: about 100,000 names of usual
/// length. They count in the 24 MiB that remain of the 64 MiB promised in docs/operations.md,
/// without the 40 MiB budget of `util::memory`.
const LIMIT: usize = 20 << 20;

/// Bytes by which the nodes must have grown before the kernel is asked again.
const STEP: usize = LIMIT / 16;

/// Bytes that a node takes beside its path: its entry in the map and its memory in the allocator
/// (measured: 170).
const NODE_BYTES: usize = 180;

/// Maximum number of names under which directories stay in snapshots.
const MAX_SETTLED: NonZeroUsize = NonZeroUsize::new(1024).unwrap();

/// Nodes by inode number.
#[derive(Default)]
pub struct LiveNodes {
    /// Protects the maps alone.
    known: Mutex<KnownNodes>,
    /// Whether the kernel should be asked to forget names.
    is_crowded: AtomicBool,
}

struct KnownNodes {
    nodes: HashMap<u64, Live>,
    /// Numbers that differ from [`Node::inode`]: those of renamed nodes, and of nodes at a path
    /// whose number was taken. The key is the path, and whether it is that of a directory.
    numbers: HashMap<(bool, Key), u64>,
    /// Directories by the names under which they stay in a snapshot.
    settled: LruCache<Key, u64>,
    /// Bytes that the nodes take.
    bytes: usize,
    /// Bytes at which the kernel is asked to forget names.
    threshold: usize,
    /// Number of uses of nodes so far.
    clock: u64,
    /// The generation of the node that the kernel has got to know last.
    generation: u32,
    /// Where nodes are recorded, so that they outlive the daemon.
    journal: Option<Arc<Journal>>,
}

struct Live {
    /// `None` once the node was removed.
    node: Option<Arc<Node>>,
    /// The node, once it was removed.
    lost: Option<Arc<Node>>,
    /// A number that no other node of this inode number has, also in other mounts: a file handle
    /// that a program has kept is not one of a file that has got the number since.
    generation: u32,
    /// Lookups minus those that the kernel has forgotten.
    lookups: u64,
    /// The clock's value when a request last named the node.
    used: u64,
    /// Whether it is opened although its branch has another snapshot.
    left: LeftSnapshot,
    /// The record of the node in the journal.
    record: Option<RecordId>,
}

/// What becomes of the opening of a file whose branch has moved.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LeftSnapshot {
    Unknown,
    /// It fails until the kernel has looked up the file again.
    Refused,
    Opened,
}

impl Default for KnownNodes {
    fn default() -> Self {
        let (nodes, numbers) = Default::default();
        KnownNodes {
            nodes,
            numbers,
            settled: LruCache::new(MAX_SETTLED),
            bytes: 0,
            threshold: LIMIT,
            clock: 0,
            // another number than that of an earlier mount
            generation: SystemTime::UNIX_EPOCH
                .elapsed()
                .map_or(0, |since| since.as_micros() as u32),
            journal: None,
        }
    }
}

impl LiveNodes {
    /// Records nodes in `journal` from now on, and takes over those that a daemon has left there.
    pub(super) fn outlive(&self, journal: &Arc<Journal>, left: &[Record]) {
        let known = &mut *lock(&self.known);
        known.journal = Some(journal.clone());
        for record in left.iter().filter(|record| record.kind == NODE_RECORD) {
            known.take_over(record);
        }
        known.threshold = known.threshold.max(known.bytes + STEP);
    }

    /// Returns the inode numbers of all nodes.
    pub fn numbers(&self) -> Vec<u64> {
        lock(&self.known).nodes.keys().copied().collect()
    }

    /// Returns the node of an inode number, or `None` if it was removed or the kernel has forgotten
    /// it.
    pub(super) fn get(&self, inode: u64) -> Option<Arc<Node>> {
        let mut known = lock(&self.known);
        known.clock += 1;
        let now = known.clock;
        let live = known.nodes.get_mut(&inode)?;
        live.used = now;
        live.node.clone()
    }

    /// Returns the number that `node` has, or would get at a lookup.
    pub(super) fn number(&self, node: &Node) -> u64 {
        lock(&self.known).number(node)
    }

    /// Returns the generation of a node that the kernel knows by an inode number; 0 for any other.
    pub fn generation(&self, inode: u64) -> u32 {
        let known = lock(&self.known);
        known.nodes.get(&inode).map_or(0, |live| live.generation)
    }

    /// Counts a lookup of `node`, and returns the inode number by which the kernel names it from
    /// now on.
    ///
    /// Invariant: an answer that counts a lookup has the number that this function has returned,
    /// never an earlier one. In between, the kernel may forget a removed file of the same path,
    /// whose number is free then.
    pub fn remember(&self, node: Node) -> u64 {
        let known = &mut *lock(&self.known);
        let number = known.number(&node);
        if number != node.inode() {
            known.numbers.insert(place(&node), number);
        }
        known.clock += 1;
        let now = known.clock;
        let live = known.nodes.entry(number).or_insert_with(|| {
            known.generation = known.generation.wrapping_add(1);
            Live {
                node: None,
                lost: None,
                generation: known.generation,
                lookups: 0,
                used: now,
                left: LeftSnapshot::Unknown,
                record: None,
            }
        });
        if live.left == LeftSnapshot::Refused {
            live.left = LeftSnapshot::Opened;
        }
        live.lookups += 1;
        live.used = now;
        // the same path may have become something else
        if live.node.as_deref() != Some(&node) {
            let size = bytes_of(&node);
            let old = live.node.replace(Arc::new(node)).or(live.lost.take());
            known.bytes += size;
            known.bytes -= old.map_or(0, |old| bytes_of(&old));
            known.record(number);
        } else if let (Some(journal), Some(record)) = (&known.journal, live.record) {
            journal
                .number(record, 0)
                .store(live.lookups, Ordering::Release);
        }
        if known.bytes > known.threshold {
            known.threshold = known.bytes + STEP;
            self.is_crowded.store(true, Ordering::Relaxed);
        }
        number
    }

    /// Records the name under which the directory with an inode number stays in a snapshot.
    pub(super) fn settled(&self, name: Key, inode: u64) {
        lock(&self.known).settled.put(name, inode);
    }

    /// Returns whether the opening of a file fails whose branch has moved.
    pub(super) fn refuses(&self, inode: u64) -> bool {
        match lock(&self.known).nodes.get_mut(&inode) {
            Some(live) if live.left != LeftSnapshot::Opened => {
                live.left = LeftSnapshot::Refused;
                true
            }
            _ => false,
        }
    }

    /// Returns the node that an inode number had until it was removed.
    pub fn lost(&self, inode: u64) -> Option<Arc<Node>> {
        lock(&self.known).nodes.get(&inode)?.lost.clone()
    }

    /// Returns whether the kernel knows an inode number.
    pub fn knows(&self, inode: u64) -> bool {
        lock(&self.known).nodes.contains_key(&inode)
    }

    /// Subtracts `count` lookups of an inode number.
    pub fn forget(&self, inode: u64, count: u64) {
        let mut known = lock(&self.known);
        let known = &mut *known;
        let Some(live) = known.nodes.get_mut(&inode) else {
            return;
        };
        live.lookups = live.lookups.saturating_sub(count);
        if live.lookups > 0 {
            if let (Some(journal), Some(record)) = (&known.journal, live.record) {
                journal
                    .number(record, 0)
                    .store(live.lookups, Ordering::Release);
            }
            return;
        }
        known.remove(inode);
        let Some(live) = known.nodes.remove(&inode) else {
            return;
        };
        if let Some(lost) = live.lost {
            known.bytes -= bytes_of(&lost);
        }
        if let (Some(journal), Some(record)) = (&known.journal, live.record) {
            journal.remove(record);
        }
        known.threshold = known.threshold.min(LIMIT.max(known.bytes + STEP));
    }

    /// Returns whether the kernel should be asked to forget names. Returns `true` once each time
    /// this becomes so.
    pub fn take_crowded(&self) -> bool {
        self.is_crowded.load(Ordering::Relaxed) && self.is_crowded.swap(false, Ordering::Relaxed)
    }

    /// Returns a quarter of all names, those that no request has used for longest, by the number of
    /// their directory. Names in `kept` stay. A directory is returned only if there are too few
    /// files, since it may be the working directory of a process, and only if the kernel knows no
    /// name in it.
    pub fn least_used(&self, kept: &HashSet<u64>) -> HashMap<u64, Vec<String>> {
        let mut known = lock(&self.known);
        let wanted = known.nodes.len() / 4;
        let mut chosen = known.least_used(wanted, |number, node| {
            !node.is_directory() && !kept.contains(&number)
        });
        if chosen.len() < wanted {
            let nodes = known.nodes.values().filter_map(|live| live.node.as_ref());
            let parents: HashSet<Key> = nodes.map(|node| node.path().parent()).collect();
            chosen.extend(known.least_used(wanted - chosen.len(), |number, node| {
                let is_free = number != ROOT_INODE && !kept.contains(&number);
                node.is_directory() && is_free && !parents.contains(&node.path())
            }));
        }
        known.clock += 1;
        let now = known.clock;
        let mut names: HashMap<u64, Vec<String>> = HashMap::new();
        for number in chosen {
            let Some(Live {
                node: Some(node),
                used,
                ..
            }) = known.nodes.get_mut(&number)
            else {
                continue;
            };
            // the kernel may refuse to forget this name: the next call returns others first
            *used = now;
            let path = node.path();
            let directory = known.number(&Node::Directory(path.parent()));
            names
                .entry(directory)
                .or_default()
                .push(path.name().to_string());
        }
        names
    }

    /// Records that `node` and everything below it were removed.
    pub(super) fn removed(&self, node: &Node) {
        let mut known = lock(&self.known);
        for number in known.at_and_below(node) {
            known.remove(number);
        }
    }

    /// Records that another node shows the content of the file `node` now. The kernel uses the
    /// number of `node` for the other node until it looks up that node.
    pub(super) fn became_another(&self, node: &Node) {
        let known = &mut *lock(&self.known);
        for number in known.at_and_below(node) {
            known.remove(number);
            let live = known.nodes.get_mut(&number);
            if let Some(lost) = live.and_then(|live| live.lost.take()) {
                known.bytes -= bytes_of(&lost);
            }
            known.record(number);
        }
    }

    /// Records that `node` was renamed to `to`, with everything below it, in place of the nodes
    /// there.
    pub(super) fn renamed(&self, node: &Node, to: &Node) {
        let mut known = lock(&self.known);
        let moved = known.at_and_below(node);
        for number in known.at_and_below(to) {
            known.remove(number);
        }
        for number in moved {
            let Some(live) = known.nodes.get_mut(&number) else {
                continue;
            };
            let Some(old) = live.node.take() else {
                continue;
            };
            let new = if node.is_directory() {
                old.rebased(&node.path(), &to.path())
            } else {
                to.clone()
            };
            let at = place(&new);
            let size = bytes_of(&new);
            live.node = Some(Arc::new(new));
            known.bytes = known.bytes + size - bytes_of(&old);
            known.numbers.remove(&place(&old));
            known.numbers.insert(at, number);
            known.record(number);
        }
    }

    /// Returns the number of nodes.
    pub fn len(&self) -> usize {
        lock(&self.known).nodes.len()
    }
}

impl KnownNodes {
    fn number(&self, node: &Node) -> u64 {
        let own = node.inode();
        let at = place(node);
        if let Some(number) = self.settled.peek(&at.1)
            && at.0
        {
            return *number;
        }
        if let Some(number) = self.numbers.get(&at) {
            return *number;
        }
        let others = (1u64..).map(|n| inode(at.0, &format!("{}\0{n}", at.1.as_str())));
        let free = std::iter::once(own).chain(others).find(|number| {
            self.nodes.get(number).is_none_or(|live| {
                let there = live.node.as_deref();
                there.is_some_and(|there| place(there) == at)
            })
        });
        free.unwrap_or(own)
    }

    /// Returns the numbers of `node` and, if it is a directory, of everything known below it.
    fn at_and_below(&self, node: &Node) -> Vec<u64> {
        if !node.is_directory() {
            let number = self.number(node);
            return self
                .nodes
                .contains_key(&number)
                .then_some(number)
                .into_iter()
                .collect();
        }
        let path = node.path();
        let inside = self.nodes.iter().filter(|(_, live)| {
            let node = live.node.as_ref();
            node.is_some_and(|node| node.path().relative_to(&path).is_some())
        });
        inside.map(|(number, _)| *number).collect()
    }

    fn remove(&mut self, number: u64) {
        if let Some(live) = self.nodes.get_mut(&number)
            && let Some(node) = live.node.take()
        {
            self.numbers.remove(&place(&node));
            live.lost = Some(node);
            self.record(number);
        }
    }

    /// Writes the node of an inode number, which has changed, to the journal.
    fn record(&mut self, number: u64) {
        let (Some(journal), Some(live)) = (&self.journal, self.nodes.get_mut(&number)) else {
            return;
        };
        let is_lost = live.node.is_none() && live.lost.is_some();
        let node = live.node.as_deref().or(live.lost.as_deref());
        let mut text = number.to_le_bytes().to_vec();
        text.extend(
            node.map(node_text::to_text)
                .unwrap_or_default()
                .into_bytes(),
        );
        let generation = u64::from(live.generation) | if is_lost { IS_LOST } else { 0 };
        let numbers = [live.lookups, generation];
        live.record = match live.record {
            Some(record) => journal.replace(record, numbers, &text).or(live.record),
            None => journal.add(NODE_RECORD, numbers, &text),
        };
    }

    /// Takes over a node that a daemon has left.
    fn take_over(&mut self, record: &Record) {
        let Some((number, text)) = record.text.split_first_chunk() else {
            return;
        };
        let number = u64::from_le_bytes(*number);
        let [lookups, generation] = record.numbers;
        let node = str::from_utf8(text).ok().and_then(node_text::from_text);
        let node = node.map(Arc::new);
        self.bytes += node.as_deref().map_or(0, bytes_of);
        self.generation = self.generation.max(generation as u32);
        let mut live = Live {
            node: None,
            lost: None,
            generation: generation as u32,
            lookups,
            used: 0,
            left: LeftSnapshot::Unknown,
            record: Some(record.id),
        };
        if generation & IS_LOST != 0 {
            live.lost = node;
        } else {
            if let Some(node) = node.as_ref().filter(|node| node.inode() != number) {
                self.numbers.insert(place(node), number);
            }
            live.node = node;
        }
        self.nodes.insert(number, live);
    }

    /// Returns the numbers of at most `most` of the nodes that `filter` accepts, the least recently
    /// used.
    fn least_used(&self, most: usize, filter: impl Fn(u64, &Node) -> bool) -> Vec<u64> {
        let nodes = self
            .nodes
            .iter()
            .filter(|(number, live)| live.node.as_ref().is_some_and(|n| filter(**number, n)));
        let mut ages: Vec<(u64, u64)> = nodes.map(|(number, live)| (live.used, *number)).collect();
        if most < ages.len() {
            ages.select_nth_unstable(most);
        }
        ages.into_iter()
            .take(most)
            .map(|(_, number)| number)
            .collect()
    }
}

/// Returns the bytes that a live node takes.
fn bytes_of(node: &Node) -> usize {
    NODE_BYTES + node.path().as_str().len()
}

fn place(node: &Node) -> (bool, Key) {
    (node.is_directory(), node.path())
}

#[cfg(test)]
mod tests;
