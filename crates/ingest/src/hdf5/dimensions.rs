//! The names and lengths of dimensions, by the scales of a file: as netCDF-C finds them, by its
//! `docs/file_format_specifications.md` and `libhdf5/hdf5open.c`. This module must not know types,
//! values or how a file is read.

use std::collections::HashMap;

/// The facts about the dimensions of a data set.
#[derive(Clone, Debug, Default)]
pub struct DimensionHints {
    /// The shape of the stored items.
    pub shape: Vec<u64>,
    /// Whether each dimension is unlimited.
    pub is_unlimited: Vec<bool>,
    /// The address of the data set.
    pub address: u64,
    /// The number of its group.
    pub group: usize,
    /// The name as a scale; `None` if the data set is no scale.
    pub scale: Option<String>,
    /// netCDF's number of the dimension that the scale is.
    pub id: Option<i64>,
    /// netCDF's numbers of the dimensions of the data set.
    pub ids: Vec<i64>,
    /// The addresses of the scales of each dimension; 0 without a scale.
    pub scales: Vec<u64>,
    /// The labels of h5py; an empty one without a label.
    pub labels: Vec<String>,
}

/// The dimensions of a data set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundDimensions {
    /// The names.
    pub names: Vec<String>,
    /// The shape: other data sets may have more items of an unlimited dimension.
    pub shape: Vec<u64>,
}

/// A dimension of the file.
struct FileDimension {
    name: String,
    group: usize,
    len: u64,
    is_unlimited: bool,
}

/// The dimensions of a file.
#[derive(Default)]
struct FileDimensions {
    list: Vec<FileDimension>,
    by_address: HashMap<u64, usize>,
    by_id: HashMap<i64, usize>,
}

/// Returns the dimensions of each data set, and the unlimited ones.
pub fn find(sets: &[DimensionHints]) -> (Vec<FoundDimensions>, Vec<String>) {
    let mut all = FileDimensions::default();
    for set in sets {
        all.add_scale(set);
    }
    let mut numbers: Vec<Vec<usize>> = Vec::with_capacity(sets.len());
    for set in sets {
        numbers.push(all.of_set(set));
    }
    // the unlimited ones are as long as the longest data set
    for (set, numbers) in sets.iter().zip(&numbers) {
        for (n, number) in numbers.iter().enumerate() {
            let dimension = &mut all.list[*number];
            if dimension.is_unlimited && set.is_unlimited[n] {
                dimension.len = dimension.len.max(set.shape[n]);
            }
        }
    }
    let found = sets.iter().zip(&numbers).map(|(set, numbers)| {
        let dimensions = numbers.iter().map(|number| &all.list[*number]);
        let lengths = dimensions.clone().enumerate().map(|(n, dimension)| {
            if dimension.is_unlimited && set.is_unlimited[n] {
                dimension.len
            } else {
                set.shape[n]
            }
        });
        FoundDimensions {
            shape: lengths.collect(),
            names: dimensions.map(|dimension| dimension.name.clone()).collect(),
        }
    });
    let found = found.collect();
    let unlimited = all
        .list
        .into_iter()
        .filter(|dimension| dimension.is_unlimited);
    (found, unlimited.map(|dimension| dimension.name).collect())
}

impl FileDimensions {
    fn add_scale(&mut self, set: &DimensionHints) {
        let (Some(name), Some(len)) = (&set.scale, set.shape.first()) else {
            return;
        };
        let number = self.list.len();
        self.by_address.insert(set.address, number);
        if let Some(id) = set.id {
            self.by_id.insert(id, number);
        }
        self.list.push(FileDimension {
            name: name.clone(),
            group: set.group,
            len: *len,
            is_unlimited: set.is_unlimited[0],
        });
    }

    /// Returns the numbers of the dimensions of a data set.
    fn of_set(&mut self, set: &DimensionHints) -> Vec<usize> {
        let mut numbers = Vec::with_capacity(set.shape.len());
        for n in 0..set.shape.len() {
            let by_id = set.ids.get(n).filter(|_| set.ids.len() == set.shape.len());
            let by_id = by_id.and_then(|id| self.by_id.get(id));
            let itself = set
                .scale
                .as_ref()
                .filter(|_| n == 0 && set.shape.len() == 1);
            let itself = itself.and_then(|_| self.by_address.get(&set.address));
            let by_scale = set.scales.get(n).and_then(|at| self.by_address.get(at));
            let known = by_id.or(itself).or(by_scale).copied();
            let number = known.unwrap_or_else(|| self.unnamed(set, n, &numbers));
            numbers.push(number);
        }
        numbers
    }

    /// Returns a dimension for one without a scale: its label, or one of the same length in the
    /// group that the data set does not use yet, as in netCDF-C.
    fn unnamed(&mut self, set: &DimensionHints, n: usize, used: &[usize]) -> usize {
        let label = set.labels.get(n).filter(|label| !label.is_empty());
        let fits = |(number, dimension): &(usize, &FileDimension)| {
            dimension.group == set.group
                && dimension.len == set.shape[n]
                && dimension.is_unlimited == set.is_unlimited[n]
                && !used.contains(number)
                && label.is_none_or(|label| *label == dimension.name)
        };
        if let Some((number, _)) = self.list.iter().enumerate().find(fits) {
            return number;
        }
        let number = self.list.len();
        self.list.push(FileDimension {
            name: label.map_or_else(|| format!("phony_dim_{number}"), Clone::clone),
            group: set.group,
            len: set.shape[n],
            is_unlimited: set.is_unlimited[n],
        });
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(address: u64, shape: &[u64]) -> DimensionHints {
        DimensionHints {
            shape: shape.to_vec(),
            is_unlimited: vec![false; shape.len()],
            address,
            ..DimensionHints::default()
        }
    }

    #[test]
    fn scales_name_dimensions_and_others_get_the_names_of_netcdf() {
        let x = DimensionHints {
            scale: Some("x".into()),
            id: Some(7),
            ..set(8, &[3])
        };
        let by_scale = DimensionHints {
            scales: vec![0, 8],
            ..set(16, &[5, 3])
        };
        let by_id = DimensionHints {
            ids: vec![7],
            ..set(24, &[3])
        };
        let labeled = DimensionHints {
            labels: vec!["row".into(), String::new()],
            ..set(32, &[5, 5])
        };
        let (found, unlimited) = find(&[x, by_scale, by_id, labeled, set(40, &[3, 3])]);
        let names: Vec<_> = found.iter().map(|found| found.names.join(" ")).collect();
        let expected = [
            "x",
            "phony_dim_1 x",
            "x",
            "row phony_dim_1",
            "x phony_dim_3",
        ];
        assert_eq!(names, expected);
        assert!(unlimited.is_empty());
    }

    #[test]
    fn an_unlimited_dimension_is_as_long_as_the_longest_data_set() {
        let time = DimensionHints {
            scale: Some("time".into()),
            is_unlimited: vec![true],
            ..set(8, &[1])
        };
        let long = DimensionHints {
            scales: vec![8],
            is_unlimited: vec![true],
            ..set(16, &[4])
        };
        let (found, unlimited) = find(&[time, long]);
        assert_eq!((&found[0].shape, &found[1].shape), (&vec![4], &vec![4]));
        assert_eq!(unlimited, ["time"]);
    }
}
