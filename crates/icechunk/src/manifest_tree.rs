//! The manifests of an array, found by the part of the grid that each covers. They are the leaves
//! of a binary tree, and each inner node has a box around its leaves. Parts do not overlap, so a
//! search visits few nodes; in a hostile snapshot with overlapping parts it visits all. This module
//! reads nothing.

use std::ops::Range;
use zarrfs_store::ObjectId;

/// A manifest with chunks of an array.
pub(super) struct ManifestExtents {
    pub id: ObjectId,
    /// The part of the grid that it covers, in each dimension; empty for the whole grid.
    pub extents: Vec<Range<u32>>,
}

/// The manifests of an array.
pub(super) struct ManifestTree {
    dimensions: usize,
    manifests: Vec<ManifestExtents>,
    /// The boxes of the inner nodes, one extent for each dimension. A node is a range of manifests;
    /// the first manifest of its second half is the number of its box, which no other node has.
    boxes: Vec<Range<u32>>,
}

/// A search for the manifests that may have chunks whose places begin with some numbers.
pub(super) struct ManifestSearch {
    begin: Vec<u32>,
    /// The nodes that have to be visited.
    nodes: Vec<Range<usize>>,
}

impl ManifestTree {
    /// Memory of a manifest in bytes, for an array of so many dimensions.
    pub const fn memory(dimensions: usize) -> usize {
        let of_extents = dimensions.saturating_mul(2 * size_of::<Range<u32>>());
        size_of::<ManifestExtents>().saturating_add(of_extents)
    }

    /// Returns the tree of manifests with no or `dimensions` extents each.
    pub fn new(manifests: Vec<ManifestExtents>, dimensions: usize) -> Self {
        let count = manifests.len();
        let mut tree = ManifestTree {
            dimensions,
            boxes: vec![0..0; count * dimensions],
            manifests,
        };
        tree.arrange(0..count);
        tree
    }

    /// Divides a node in the dimension in which its manifests lie farthest apart.
    fn arrange(&mut self, node: Range<usize>) {
        if node.len() < 2 || self.dimensions == 0 {
            return;
        }
        let middle = middle_of(&node);
        let mut widest = 0;
        let mut distance = 0;
        for dimension in 0..self.dimensions {
            let extents = self.manifests[node.clone()]
                .iter()
                .map(|named| named.extent(dimension));
            let first = extents.clone().map(|extent| extent.start).min();
            let last = extents.clone().map(|extent| extent.start).max();
            let end = extents.map(|extent| extent.end).max();
            let whole = first.unwrap_or(0)..end.unwrap_or(0);
            let last = last.unwrap_or(0);
            if last - whole.start > distance {
                widest = dimension;
                distance = last - whole.start;
            }
            self.boxes[middle * self.dimensions + dimension] = whole;
        }
        self.manifests[node.clone()]
            .select_nth_unstable_by_key(middle - node.start, |named| named.extent(widest).start);
        self.arrange(node.start..middle);
        self.arrange(middle..node.end);
    }

    pub fn len(&self) -> usize {
        self.manifests.len()
    }

    pub fn is_empty(&self) -> bool {
        self.manifests.is_empty()
    }

    /// Returns all manifests.
    pub fn iter(&self) -> impl Iterator<Item = &ManifestExtents> {
        self.manifests.iter()
    }

    /// Returns a search for the manifests that may have chunks whose places begin with `begin`.
    pub fn search(&self, begin: Vec<u32>) -> ManifestSearch {
        let root = 0..self.manifests.len();
        ManifestSearch {
            begin,
            nodes: Vec::from([root]),
        }
    }

    /// Returns the manifests that may have chunks whose places begin with `begin`.
    pub fn matching(&self, begin: &[u32]) -> impl Iterator<Item = &ManifestExtents> {
        let mut search = self.search(begin.to_vec());
        std::iter::from_fn(move || search.next_in(self))
    }

    fn may_hold(&self, node: &Range<usize>, begin: &[u32]) -> bool {
        if node.len() == 1 {
            return covers(&self.manifests[node.start].extents, begin);
        }
        let first = middle_of(node) * self.dimensions;
        covers(&self.boxes[first..first + self.dimensions], begin)
    }
}

impl ManifestSearch {
    /// Visits a node of the tree. Returns the manifest if it is one that is searched for.
    fn visit<'a>(
        &mut self,
        tree: &'a ManifestTree,
        node: Range<usize>,
    ) -> Option<&'a ManifestExtents> {
        if node.is_empty() || !tree.may_hold(&node, &self.begin) {
            return None;
        }
        if node.len() == 1 {
            return tree.manifests.get(node.start);
        }
        let middle = middle_of(&node);
        self.nodes.push(middle..node.end);
        self.nodes.push(node.start..middle);
        None
    }

    /// Returns the next manifest of the tree that the search began in.
    pub fn next_in<'a>(&mut self, tree: &'a ManifestTree) -> Option<&'a ManifestExtents> {
        while let Some(node) = self.nodes.pop() {
            if let Some(found) = self.visit(tree, node) {
                return Some(found);
            }
        }
        None
    }
}

impl ManifestExtents {
    fn extent(&self, dimension: usize) -> Range<u32> {
        self.extents.get(dimension).cloned().unwrap_or(0..u32::MAX)
    }
}

fn middle_of(node: &Range<usize>) -> usize {
    node.start + node.len() / 2
}

/// Returns whether a part of the grid has chunks whose places begin with `begin`.
fn covers(extents: &[Range<u32>], begin: &[u32]) -> bool {
    let mut dimensions = extents.iter().zip(begin);
    // no extent can end behind the last number
    dimensions.all(|(extent, place)| {
        extent.start <= *place && (*place < extent.end || extent.end == u32::MAX)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(number: u32, extents: Vec<Range<u32>>) -> ManifestExtents {
        let mut id = [0; 12];
        id[..4].copy_from_slice(&number.to_le_bytes());
        ManifestExtents {
            id: ObjectId(id),
            extents,
        }
    }

    /// Returns the numbers of the manifests that are found, and the number of visited nodes.
    fn found(tree: &ManifestTree, begin: &[u32]) -> (Vec<u32>, usize) {
        let mut search = tree.search(begin.to_vec());
        let mut numbers = Vec::new();
        let mut visited = 0;
        while let Some(node) = search.nodes.pop() {
            visited += 1;
            let found = search.visit(tree, node);
            numbers
                .extend(found.map(|named| u32::from_le_bytes(*named.id.0.first_chunk().unwrap())));
        }
        numbers.sort_unstable();
        (numbers, visited)
    }

    /// A grid of `rows` times `columns` manifests, each of 3 times 2 chunks.
    fn grid(rows: u32, columns: u32) -> ManifestTree {
        let manifests = (0..rows * columns).map(|n| {
            let row = n / columns * 3;
            let column = n % columns * 2;
            named(n, vec![row..row + 3, column..column + 2])
        });
        ManifestTree::new(manifests.collect(), 2)
    }

    #[test]
    fn the_manifests_of_each_place_are_found() {
        let tree = grid(5, 7);
        for row in 0..16 {
            for column in 0..15 {
                let number = row / 3 * 7 + column / 2;
                let expected = if row < 15 && column < 14 {
                    vec![number]
                } else {
                    vec![]
                };
                assert_eq!(found(&tree, &[row, column]).0, expected, "{row} {column}");
            }
        }
        assert_eq!(found(&tree, &[4]).0, (7..14).collect::<Vec<_>>());
        assert_eq!(found(&tree, &[]).0, (0..35).collect::<Vec<_>>());
        let overlapping = [vec![], vec![0..9, 0..9], vec![2..4, 2..4], vec![2..4, 2..4]];
        let overlapping = (0..).zip(overlapping).map(|(n, extents)| named(n, extents));
        let overlapping = ManifestTree::new(overlapping.collect(), 2);
        assert_eq!(found(&overlapping, &[3, 3]).0, [0, 1, 2, 3]);
        assert_eq!(found(&overlapping, &[u32::MAX, 3]).0, [0]);
        for dimensions in [0, 1] {
            let empty = ManifestTree::new(Vec::new(), dimensions);
            assert_eq!(found(&empty, &[]).0, [0; 0]);
        }
        let scalar = ManifestTree::new(vec![named(7, vec![]), named(8, vec![])], 0);
        assert_eq!(found(&scalar, &[]).0, [7, 8]);
    }

    /// Each doubling of the manifests adds a level to the tree.
    #[test]
    fn a_search_among_twice_as_many_manifests_visits_a_level_more() {
        for (rows, columns) in [
            (1 << 12, 1),
            (1, 1 << 12),
            (1 << 6, 1 << 6),
            (1 << 8, 1 << 4),
        ] {
            let most = |rows: u32, columns: u32| {
                let tree = grid(rows, columns);
                let places = (0..rows).map(|n| [n * 3, n * 31 % columns * 2 + 1]);
                places.map(|place| found(&tree, &place).1).max().unwrap()
            };
            let visited = most(rows, columns);
            let doubled = most(2 * rows, columns);
            assert!(visited <= 30, "{rows} {columns}: {visited}");
            assert!(
                doubled <= visited + 2,
                "{rows} {columns}: {visited}, {doubled}"
            );
        }
    }
}
