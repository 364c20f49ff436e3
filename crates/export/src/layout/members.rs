//! The arrays that the files of a rule show: all arrays of a group, or some with the coordinates,
//! bounds and grid mappings that they refer to (CF conventions). This module knows no names of
//! files.

use crate::describe::axis_names;
use crate::reader::{ArrayNode, HierarchyNode, HierarchyReader};
use std::collections::{BTreeMap, BTreeSet};
use zarrfs_base::error::{Error, Result};
use zarrfs_base::json::{self, Object};
use zarrfs_base::key::Key;
use zarrfs_base::memory::{self, Grant};

/// The attributes that name other arrays.
const REFERENCES: [&str; 7] = [
    "coordinates",
    "bounds",
    "climatology",
    "grid_mapping",
    "ancillary_variables",
    "cell_measures",
    "formula_terms",
];

/// Estimated memory of an array in bytes.
const MEMBER: usize = 1 << 10;

/// The arrays of a group that files may show.
#[derive(Debug, Default)]
pub struct LayoutMembers {
    group: Key,
    /// The arrays that the rule names; empty if it names the group.
    targets: Vec<Key>,
    arrays: BTreeMap<Key, LayoutMember>,
    _memory: Grant,
}

/// An array.
#[derive(Debug)]
struct LayoutMember {
    dimensions: Vec<Option<String>>,
    shape: Vec<u64>,
    has_objects: bool,
    /// The arrays that it refers to, and its coordinates.
    references: Vec<Key>,
}

impl LayoutMember {
    fn new(hierarchy: &dyn HierarchyReader, array: &ArrayNode, attributes: &Object) -> Self {
        let dimensions = axis_names(hierarchy, array, attributes, &mut Vec::new());
        let group = array.key.parent();
        let texts = REFERENCES.iter().filter_map(|name| attributes.get(*name));
        let words = texts.filter_map(json::text).flat_map(str::split_whitespace);
        let words = words.map(|word| word.trim_end_matches(':'));
        let named = words.chain(dimensions.iter().flatten().map(String::as_str));
        let references: BTreeSet<Key> = named.filter_map(|name| group.child(name).ok()).collect();
        LayoutMember {
            references: references
                .into_iter()
                .filter(|key| *key != array.key)
                .collect(),
            shape: array.metadata.shape.clone(),
            has_objects: array.metadata.has_objects(),
            dimensions,
        }
    }

    /// Returns whether the items between cuts along these dimensions lie side by side.
    fn is_contiguous(&self, cuts: &[(&str, bool)]) -> bool {
        let cut = |name: &Option<String>| {
            let name = name.as_deref();
            cuts.iter().find(|(dimension, _)| name == Some(*dimension))
        };
        let Some(last) = self.dimensions.iter().rposition(|name| cut(name).is_some()) else {
            return true;
        };
        let mut before = self.dimensions.iter().zip(&self.shape).take(last);
        before.all(|(name, len)| *len == 1 || cut(name).is_some_and(|(_, is_single)| *is_single))
    }
}

impl LayoutMembers {
    /// Finds the arrays of the group or of the arrays at `targets`.
    ///
    /// # Errors
    ///
    /// There is no such group or array, or the arrays have several groups. An error of the store.
    pub fn find(hierarchy: &dyn HierarchyReader, targets: &[Key]) -> Result<Self> {
        let mut members = LayoutMembers::default();
        for target in targets {
            let group = match hierarchy.find(target)? {
                Some(HierarchyNode::Group) if targets.len() == 1 => target.clone(),
                Some(HierarchyNode::Array(_)) if !target.is_root() => target.parent(),
                Some(HierarchyNode::Damaged(e)) => return Err(e),
                Some(HierarchyNode::Array(_)) => {
                    let why = "the store is one array without coordinates; name a group";
                    return Err(Error::invalid(why));
                }
                _ => {
                    let why = format!("there is no group or array {target}");
                    return Err(Error::invalid(why));
                }
            };
            if *target != group {
                members.targets.push(target.clone());
            }
            if targets.first() == Some(target) {
                members.group = group;
            } else if members.group != group || members.targets.is_empty() {
                return Err(Error::invalid("the arrays are not in one group"));
            }
        }
        let mut missing = members.targets.clone();
        if missing.is_empty() {
            missing = hierarchy.children(&members.group)?.0;
        }
        let mut asked = BTreeSet::new();
        while let Some(key) = missing.pop() {
            if !asked.insert(key.clone()) {
                continue;
            }
            // names that stand for no array, and arrays that cannot be read
            let Ok(Some(array)) = hierarchy.find_array(&key) else {
                continue;
            };
            let attributes = hierarchy.attributes(&key)?;
            let grant = memory::take(MEMBER)?;
            members._memory = std::mem::take(&mut members._memory).and(grant);
            let member = LayoutMember::new(hierarchy, &array, &attributes);
            missing.extend(member.references.iter().cloned());
            members.arrays.insert(key, member);
        }
        Ok(members)
    }

    /// Returns the group of the arrays.
    pub fn group(&self) -> &Key {
        &self.group
    }

    /// Returns the group and its arrays.
    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        std::iter::once(&self.group).chain(self.arrays.keys())
    }

    /// Returns the arrays that have all of these dimensions, and that no other array refers to: the
    /// items of `{var}`.
    pub fn variables(&self, dimensions: &[&str]) -> Vec<Key> {
        let all = self.arrays.values();
        let referred: BTreeSet<&Key> = all.flat_map(|member| &member.references).collect();
        let is_shown = |key: &Key, member: &LayoutMember| {
            let has = |name: &&str| member.dimensions.iter().flatten().any(|own| own == name);
            let is_coordinate = member.dimensions.iter().flatten().eq([key.name()]);
            let is_named = self.targets.contains(key);
            let is_data = self.targets.is_empty() && !referred.contains(key) && !is_coordinate;
            (is_named || is_data) && dimensions.iter().all(has)
        };
        let shown = self
            .arrays
            .iter()
            .filter(|(key, member)| is_shown(key, member));
        shown.map(|(key, _)| key.clone()).collect()
    }

    /// Returns the arrays of the file of `variable`, which is an array or the group; `None` for
    /// all of the group.
    pub fn shown(&self, variable: &Key) -> Option<BTreeSet<Key>> {
        let mut missing = match variable {
            group if *group == self.group => self.targets.clone(),
            array => vec![array.clone()],
        };
        if missing.is_empty() {
            return None;
        }
        let mut shown = BTreeSet::new();
        while let Some(key) = missing.pop() {
            if let Some(member) = self.arrays.get(&key)
                && shown.insert(key)
            {
                missing.extend(member.references.iter().cloned());
            }
        }
        Some(shown)
    }

    /// Returns the one array of a file.
    pub fn single(&self, variable: &Key) -> Key {
        match self.targets.first() {
            Some(target) if *variable == self.group => target.clone(),
            _ => variable.clone(),
        }
    }

    /// Checks that files hold one array.
    ///
    /// # Errors
    ///
    /// The rule names a group or several arrays.
    pub fn check_single(&self) -> Result<()> {
        match self.targets.len() {
            1 => Ok(()),
            _ => Err(Error::invalid(
                "such a file holds one array: name it behind the =, or give {var}",
            )),
        }
    }

    /// Returns the least length of a dimension, and the array that has it; `None` if no array has
    /// the dimension. Arrays differ while a program makes them longer, one after another.
    pub fn length(&self, dimension: &str) -> Option<(u64, &Key)> {
        let lengths = self.arrays.iter().filter_map(|(key, member)| {
            let names = member.dimensions.iter().map(Option::as_deref);
            let mut pairs = names.zip(&member.shape);
            let (_, len) = pairs.find(|(name, _)| *name == Some(dimension))?;
            Some((*len, key))
        });
        lengths.min()
    }

    /// Checks that the files show ranges of the flat bytes of each array. `cuts` are the dimensions
    /// that are cut, and whether each part of them is a single item.
    ///
    /// # Errors
    ///
    /// An array has a dimension that is cut behind one that is not.
    pub fn check_cuts(&self, cuts: &[(&str, bool)]) -> Result<()> {
        for (key, member) in &self.arrays {
            if !member.is_contiguous(cuts) {
                let names = member.dimensions.iter();
                let names = names.map(|name| name.as_deref().unwrap_or("?"));
                let names: Vec<&str> = names.collect();
                let why = format!(
                    "{key} has the dimensions {}: a cut is along the first ones",
                    names.join(", ")
                );
                return Err(Error::invalid(why));
            }
        }
        Ok(())
    }

    /// Returns whether an array with one of these dimensions has strings of any length.
    pub fn has_strings(&self, dimensions: &[&str]) -> bool {
        let mut strings = self.arrays.values().filter(|member| member.has_objects);
        strings.any(|member| {
            let mut names = member.dimensions.iter().flatten();
            names.any(|name| dimensions.contains(&name.as_str()))
        })
    }
}
