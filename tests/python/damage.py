#!/usr/bin/env python3
"""Reads a group of which one array is damaged, through the files that show the group as a whole.

    damage.py MOUNT DAMAGED      (with netCDF4 and h5py)

Every array holds ones. Each must be read as such, but for the one called DAMAGED, which must be an error.
"""
import os
import sys

import h5py
import netCDF4

mount, damaged = sys.argv[1:]


def read(reader, values):
    """Reads the arrays of an open file, each by `values`."""
    for name, array in reader.items():
        try:
            wrong = (values(array) != 1).sum()
        except (OSError, RuntimeError) as e:
            assert name == damaged, f"{name}: {e}"
        else:
            assert name != damaged, f"{name} has {wrong} other values"
            assert wrong == 0, f"{name} has {wrong} other values"


for name in ["dataset.nc", "dataset.h5"]:
    with netCDF4.Dataset(os.path.join(mount, name)) as file:
        file.set_auto_maskandscale(False)
        assert damaged in file.variables, name
        read(file.variables, lambda array: array[:])
with h5py.File(os.path.join(mount, "dataset.h5")) as file:
    read({name: array for name, array in file.items() if array.ndim == 2}, lambda array: array[:])
