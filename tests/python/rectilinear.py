#!/usr/bin/env python3
"""Writes and reads arrays whose chunks or shards differ in length, with a zarr-python from 3.3 on (Python 3.12).

    rectilinear.py make STORE DIGESTS    creates a store, and a file with the SHA-256 of each array's values in C order
    rectilinear.py check STORE DIGESTS   compares the values in a store with the file

tests/data/rectilinear.zarr and tests/data/rectilinear.json were made by zarr-python 3.4.2. The values come from NumPy.
"""
import hashlib
import json
import os
import sys

import numpy as np
import zarr
from zarr.codecs import BytesCodec, GzipCodec, TransposeCodec

zarr.config.set({"array.rectilinear_chunks": True})

# name: arguments of create_array
ARRAYS = {
    "line": dict(shape=(10,), chunks=[[2, 3, 5]], dtype="int16"),
    "uniform": dict(shape=(6,), chunks=[[2, 2, 2]], dtype="uint8", compressors=None),
    "plane": dict(shape=(10, 6), chunks=[[3, 3, 4], [4, 2]], dtype="float32", fill_value=-1.5),
    "mixed": dict(shape=(7, 9, 4), chunks=[[2, 4, 1], [5, 4], [2, 2]], dtype="int32", compressors=[GzipCodec(level=5)]),
    "big": dict(shape=(9, 5), chunks=[[1, 8], [2, 3]], dtype="int64", serializer=BytesCodec(endian="big")),
    "transposed": dict(shape=(5, 8), chunks=[[2, 3], [1, 7]], dtype="uint16", filters=[TransposeCodec(order=(1, 0))]),
    "dots": dict(shape=(6, 6), chunks=[[1, 5], [2, 4]], dtype="float64",
                 chunk_key_encoding={"name": "v2", "separator": "."}),
    "sharded": dict(shape=(12, 8), chunks=(2, 2), shards=[[4, 8], [2, 6]], dtype="int32"),
    "sharded_line": dict(shape=(18,), chunks=(3,), shards=[[3, 6, 9]], dtype="uint8", compressors=None, fill_value=7),
}


def values(name):
    shape, dtype = ARRAYS[name]["shape"], ARRAYS[name]["dtype"]
    made = np.arange(np.prod(shape), dtype="int64").reshape(shape) * 7 % 251
    return made.astype(dtype)


def grown(name):
    """Returns the values of `line` or `plane` after an append."""
    more = np.full((4,) + ARRAYS[name]["shape"][1:], 99, dtype=ARRAYS[name]["dtype"])
    return np.concatenate([values(name), more])


def digest(name, array):
    """Returns the SHA-256 of the values in their stored byte order."""
    order = ">" if name == "big" else "<"
    return hashlib.sha256(np.ascontiguousarray(array).astype(array.dtype.newbyteorder(order)).tobytes()).hexdigest()


def make(store, digests):
    group = zarr.open_group(store, mode="w", zarr_format=3)
    wanted = {}
    for name, more in ARRAYS.items():
        group.create_array(name, **more)[...] = values(name)
        wanted[name] = digest(name, values(name))
    # some chunks of this array stay uninitialized
    group.create_array("sparse", **ARRAYS["plane"])[3:6, 0:4] = 2
    sparse = np.full((10, 6), -1.5, dtype="float32")
    sparse[3:6, 0:4] = 2
    wanted["sparse"] = digest("sparse", sparse)
    for name in ("line", "plane"):
        array = group.create_array("grown_" + name, **ARRAYS[name])
        array[...] = values(name)
        array.append(grown(name)[-4:])
        wanted["grown_" + name] = digest(name, grown(name))
    with open(digests, "w") as file:
        json.dump(wanted, file, indent=1, sort_keys=True)
        file.write("\n")


def check(store, digests):
    group = zarr.open_group(store, mode="r", zarr_format=3, use_consolidated=False)
    wanted = json.load(open(digests))
    for name, expected in wanted.items():
        if digest(name, group[name][...]) != expected:
            sys.exit(f"{name}: other values: {group[name][...]}")
    print(f"zarr {zarr.__version__}: {len(wanted)} arrays have the values of NumPy")


{"make": make, "check": check}[sys.argv[1]](*sys.argv[2:])
