//! The dimensions of the file. Dimensions of several arrays with the same name and length become
//! one. This module knows neither attributes nor data.

use super::classic::ClassicDimension;
use crate::group::names::{UniqueNames, legal, with_suffix};
use crate::group::{DimensionIdentity, identities};
use std::collections::HashMap;

/// The dimensions while they are collected.
pub struct Dimensions<'a> {
    list: Vec<ClassicDimension>,
    /// The number of each dimension. Only the first dimension of a variable can be the record
    /// dimension; where the same name stands for another one, that is a dimension of its own.
    numbers: HashMap<(DimensionIdentity, bool), usize>,
    names: UniqueNames,
    variables: &'a UniqueNames,
}

impl<'a> Dimensions<'a> {
    /// Returns an empty list. Invented names avoid the names of `variables`, which would become
    /// coordinates.
    pub fn new(variables: &'a UniqueNames) -> Self {
        Dimensions {
            list: Vec::new(),
            numbers: HashMap::new(),
            names: UniqueNames::default(),
            variables,
        }
    }

    /// Returns the indices of an array's dimensions, given by names and nonzero lengths. If
    /// `is_record` is set, the first one is the record dimension, which may have length 0.
    pub fn numbers<'d>(
        &mut self,
        dimensions: impl Iterator<Item = (Option<&'d str>, u64)>,
        is_record: bool,
    ) -> Vec<usize> {
        identities(dimensions)
            .enumerate()
            .map(|(place, identity)| self.number(identity, is_record && place == 0))
            .collect()
    }

    fn number(&mut self, identity: DimensionIdentity, is_record: bool) -> usize {
        let identity = (identity, is_record);
        if let Some(&number) = self.numbers.get(&identity) {
            return number;
        }
        let name = self.free_name(&identity.0);
        self.list.push(ClassicDimension {
            name,
            len: identity.0.len,
            is_record,
        });
        self.numbers.insert(identity, self.list.len() - 1);
        self.list.len() - 1
    }

    /// Returns a unique name: the dimension's own if it is free, else with the length appended.
    /// Unnamed dimensions are named after their length.
    fn free_name(&mut self, identity: &DimensionIdentity) -> String {
        let len = identity.len.to_string();
        let own = identity.name.as_deref().unwrap_or("dim");
        if identity.name.is_some() && !self.names.has(&legal(own)) {
            return self.names.give(own);
        }
        let name = with_suffix(&legal(own), &len);
        loop {
            let free = self.names.give(&name);
            if !self.variables.has(&free) {
                return free;
            }
        }
    }

    /// Returns all dimensions, in the order of their indices.
    pub fn into_list(self) -> Vec<ClassicDimension> {
        self.list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(arrays: &[&[(Option<&str>, u64)]], variables: &[&str]) -> Vec<String> {
        let mut taken = UniqueNames::default();
        for name in variables {
            taken.give(name);
        }
        let mut dimensions = Dimensions::new(&taken);
        let numbers: Vec<Vec<usize>> = arrays
            .iter()
            .map(|array| dimensions.numbers(array.iter().copied(), false))
            .collect();
        let list = dimensions.into_list();
        let name = |array: Vec<usize>| {
            array
                .iter()
                .map(|&n| list[n].name.as_str())
                .collect::<Vec<_>>()
                .join(" ")
        };
        numbers.into_iter().map(name).collect()
    }

    #[test]
    fn the_same_name_and_length_are_one_dimension() {
        let x = Some("x");
        let y = Some("y");
        assert_eq!(
            names(&[&[(y, 3), (x, 4)], &[(x, 4)], &[(y, 3), (y, 3)]], &["x"]),
            ["y x", "x", "y y"]
        );
        assert_eq!(
            names(&[&[(x, 4)], &[(x, 5)], &[(x, 5), (x, 4)]], &[]),
            ["x", "x_5", "x_5 x"]
        );
        // a name that another dimension already has
        assert_eq!(
            names(&[&[(x, 4)], &[(Some("x_5"), 6)], &[(x, 5)]], &[]),
            ["x", "x_5", "x_5_2"]
        );
        assert_eq!(names(&[&[(x, 4)], &[(x, 5)]], &["x_5"]), ["x", "x_5_2"]);
        assert_eq!(
            names(&[&[(Some("a/b"), 4)], &[(Some("a_b"), 4)]], &[]),
            ["a_b", "a_b_4"]
        );
    }

    #[test]
    fn dimensions_without_a_name_are_named_after_their_length() {
        let three = (None, 3);
        assert_eq!(
            names(&[&[three, (None, 4)], &[three, three, (Some("z"), 3)]], &[]),
            ["dim_3 dim_4", "dim_3 dim_3_2 z"]
        );
        assert_eq!(names(&[&[three]], &["dim_3"]), ["dim_3_2"]);
    }
}
