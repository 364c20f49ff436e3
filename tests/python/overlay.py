#!/usr/bin/env python3
"""Makes stores, changes them through a mount and prints what is in them, with zarr-python 3.

    overlay.py make STORE          creates a store with arrays of Zarr v2 and, in STORE.v3, of v3 with shards
    overlay.py change GROUP        changes chunks and attributes, deletes an array and creates others
    overlay.py print GROUP...      prints for each group the names, attributes and SHA-256 of all arrays as a line of JSON
"""
import hashlib
import json
import logging
import sys
import warnings

import numpy as np
import zarr

warnings.simplefilter("ignore")
logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # zarr 3 leaves failed tasks behind


def values(shape, seed):
    return np.random.default_rng(seed).integers(0, 1000, shape).astype("int32")


def make(path):
    for path, version in (path, 2), (path + ".v3", 3):
        root = zarr.open_group(path, mode="w", zarr_format=version, attributes={"title": "made"})
        more = dict(shards=(16, 16)) if version == 3 else {}
        for name in "changed", "deleted", "kept", "replaced":
            array = root.create_array(name, shape=(40, 30), chunks=(8, 8), dtype="int32", fill_value=-1, **more)
            array[:33] = values((33, 30), 1)
            array.attrs["units"] = "m"
        zarr.consolidate_metadata(path)


def change(path):
    root = zarr.open_group(path, mode="r+", use_consolidated=False)
    changed = root["changed"]
    changed[3:20, 5:11] = values((17, 6), 2)
    changed[36:] = 7
    changed.attrs["units"] = "cm"
    root.attrs["title"] = "changed"
    del root["deleted"]
    # shards are written by the mount
    version = root.metadata.zarr_format
    del root["replaced"]
    for name in "replaced", "new":
        more = dict(compressors=None, chunks=(5,), dtype="int16", fill_value=3)
        array = root.create_array(name, shape=(17,), **more)
        array[:12] = np.arange(12)
        array.attrs["made in"] = version
    root.create_group("group").attrs["x"] = [1, 2]


def shown(path):
    root = zarr.open_group(path, mode="r", use_consolidated=False)
    found = {"": dict(root.attrs)}
    for name in "changed", "deleted", "kept", "replaced", "new", "group":
        if name in root:
            node = root[name]
            bytes_of = hashlib.sha256(node[...].tobytes()).hexdigest() if isinstance(node, zarr.Array) else None
            found[name] = [dict(node.attrs), getattr(node, "shape", None), bytes_of]
    print(json.dumps(found, sort_keys=True))


{"make": make, "change": change, "print": lambda *paths: [shown(path) for path in paths]}[sys.argv[1]](*sys.argv[2:])
