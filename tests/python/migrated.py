"""Compares v1 stores that `zarrfs migrate` has converted to v2 with their original values, and with zarr's own
migration.

    migrated.py MATRIX COPY      (with zarr 2.18)
"""
import hashlib
import json
import os
import shutil
import sys
import tempfile
import warnings

import numpy as np
import zarr
from zarr.storage import DirectoryStore, migrate_1to2

warnings.simplefilter("ignore")


def load(path):
    with open(path) as f:
        return json.load(f)


def theirs(source):
    with tempfile.TemporaryDirectory() as folder:
        copy = os.path.join(folder, "copy")
        shutil.copytree(source, copy)
        migrate_1to2(DirectoryStore(copy))
        return load(f"{copy}/.zarray"), load(f"{copy}/.zattrs")


def compare(matrix, copy, entry):
    path = os.path.join(copy, entry["store"])
    names = os.listdir(path)
    assert "meta" not in names and "attrs" not in names, f"{path}: {names}"
    z = zarr.open_array(path, mode="r")
    if "fill_assumed" in entry:
        z._fill_value = np.zeros((), z.dtype)[()]  # without one, zarr reads uninitialized memory
    digest = hashlib.sha256(z[...].tobytes()).hexdigest()
    assert digest == entry["sha256"], f"{path}: other data"
    document, attributes = theirs(os.path.join(matrix, entry["store"]))
    ours = load(f"{path}/.zarray")
    assert load(f"{path}/.zattrs") == attributes, path
    # zarr keeps the order that the v1 document states, and then reads other data
    settled = {"order": ours["order"], "dimension_separator": ".", "compressor": ours["compressor"]}
    assert ours == document | settled, f"{path}: {ours}, zarr makes {document}"
    both = ours["compressor"], document["compressor"]
    assert both[0] == both[1] or both[0].items() <= both[1].items(), f"{path}: {both}"


def main():
    matrix, copy = sys.argv[1:]
    entries = [e for e in load(f"{matrix}/oracle.json")["arrays"] if e["store"].startswith("v1/")]
    for entry in entries:
        compare(matrix, copy, entry)
    print(f"{len(entries)} stores")


main()
