#!/usr/bin/env python3
"""Prints the SHA-256 of the flat bytes of each array, as zarr-python reads them from the store.

    flat.py ARRAY...      (with zarr 2.18; ARRAY is the directory of an array)
"""
import hashlib
import sys

import numpy as np
import zarr


def flat(path):
    """Returns the bytes in C order and the dtype's byte order. Missing chunks without a fill value are zeros."""
    array = zarr.open_array(zarr.DirectoryStore(path), mode="r")
    out = np.zeros(array.shape, array.dtype)
    if out.size:
        array.get_basic_selection(..., out=out)
    return out.tobytes()


for path in sys.argv[1:]:
    print(hashlib.sha256(flat(path)).hexdigest())
