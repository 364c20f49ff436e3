//! What HDF5 files of h5py and netCDF-4 hold beside the values of arrays, for crates that read such
//! files.

pub use crate::hdf5::{COMPLEX, NO_VARIABLE, OWN_ATTRIBUTES};
