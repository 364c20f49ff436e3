"""Compares the fill values and attributes of arrays with the expected ones.

    fills.py EXPECTED

EXPECTED is the file of a JSON object. Its keys are the paths of the arrays. Its values are objects: `item`, the bytes
of the fill value in hex or null, and `attributes`, a JSON text as Python reads it.
"""
import json
import sys
import warnings

import numpy as np
import zarr

warnings.simplefilter("ignore")

with open(sys.argv[1]) as f:
    expected = json.load(f)
for path, wanted in expected.items():
    z = zarr.open_array(path, mode="r")
    if wanted["item"] is None:
        assert z.fill_value is None, f"{path}: {z.fill_value!r}"
    else:
        item = np.frombuffer(bytes.fromhex(wanted["item"]), dtype=z.dtype)[0]
        read = np.asarray(z[...])
        assert all(repr(value) == repr(item) for value in read.flat), f"{path}: {read}, not {item!r}"
    # NaN is not equal to itself
    ours, theirs = json.dumps(dict(z.attrs)), json.dumps(json.loads(wanted["attributes"]))
    assert ours == theirs, f"{path}: {ours}, not {theirs}"
print(f"zarr {zarr.__version__}: {len(expected)} arrays")
