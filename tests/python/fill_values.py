#!/usr/bin/env python3
"""Compares which values count as missing in files of a mount, with what the writer of the store says.

    fill_values.py make DIR             writes DIR/counts.h5, DIR/counts.json with references to it, and DIR/counts.zarr
    fill_values.py zeros MOUNT          checks that zeros are values in dataset.nc, dataset.h5 and data.vrt
    fill_values.py missing MOUNT        checks that fill values are missing values there
    fill_values.py none MOUNT           checks that they are none

With h5py, kerchunk, zarr, xarray and netCDF4. The fill value of HDF5 is 0 by default, and no missing value.
"""
import json
import os
import re
import sys

import h5py
import netCDF4
import numpy as np
import xarray
import zarr

VALUES = np.array([[0, 6, 3], [0, 9, 0]], "<i4")


def make(folder):
    path = os.path.join(folder, "counts.h5")
    with h5py.File(path, "w") as file:
        for name in ("y", "x"):
            file[name] = np.arange(VALUES.shape["yx".index(name)], dtype="f8")
            file[name].make_scale(name)
        counts = file.create_dataset("counts", data=VALUES, chunks=(1, 3))
        counts.dims[0].attach_scale(file["y"])
        counts.dims[1].attach_scale(file["x"])
        named = file.create_dataset("named", data=VALUES, fillvalue=9)
        named.attrs["_FillValue"] = np.int32(9)
    from kerchunk.hdf import SingleHdf5ToZarr

    with open(path, "rb") as file:
        references = SingleHdf5ToZarr(file, path, inline_threshold=0).translate()
    with open(os.path.join(folder, "counts.json"), "w") as file:
        json.dump(references, file)
    group = zarr.open_group(os.path.join(folder, "counts.zarr"), mode="w", zarr_format=2)
    for name in ("counts", "named"):
        array = group.create_array(name, shape=VALUES.shape, dtype="<i4", fill_value=0 if name == "counts" else 9)
        array[...] = VALUES
        array.attrs["_ARRAY_DIMENSIONS"] = ["y", "x"]
    # the reader whose rule `auto` is
    opened = xarray.open_zarr(os.path.join(folder, "counts.zarr"), consolidated=False)
    assert np.isnan(opened.counts.values).sum() == 3 and np.isnan(opened.named.values).sum() == 1


def missing_in(mount):
    """Returns for each file the number of missing values of `counts` and of `named`."""
    for file in ("dataset.nc", "dataset.h5"):
        with netCDF4.Dataset(os.path.join(mount, file)) as dataset:
            for name in ("counts", "named"):
                values = dataset[name][...]
                assert (np.ma.getdata(values) == VALUES).all()
                yield name, int(np.ma.count_masked(values))
    for name in ("counts", "named"):
        with open(os.path.join(mount, name, "data.vrt")) as file:
            fill = re.search("<NoDataValue>(.*)</NoDataValue>", file.read())
            yield name, int((VALUES == float(fill[1])).sum()) if fill else 0


def zeros(mount):
    assert list(missing_in(mount)) == [("counts", 0), ("named", 1)] * 3, list(missing_in(mount))


def missing(mount):
    assert list(missing_in(mount)) == [("counts", 3), ("named", 1)] * 3, list(missing_in(mount))


def none(mount):
    """Checks that no value is missing, since attributes name none."""
    assert list(missing_in(mount)) == [("counts", 0), ("named", 0)] * 3, list(missing_in(mount))


if __name__ == "__main__":
    {"make": make, "zeros": zeros, "missing": missing, "none": none}[sys.argv[1]](*sys.argv[2:])
