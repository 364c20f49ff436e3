//! The names that h5py and netCDF-4 give to parts of HDF5 files, for crates that read such files.
//! This module must not know how a file is made.

pub use crate::hdf5::{COMPLEX, NO_VARIABLE, OWN_ATTRIBUTES};
