"""Reads and writes arrays of Zarr v3 that `zarrfs create` has created.

    created3.py STORE EXPECTED

EXPECTED is a JSON object: the path of each array, and an object with its dtype and its flat bytes in hex. Afterwards
the items of each array are in reversed order.
"""
import json
import sys
import warnings

import numpy as np
import zarr

warnings.simplefilter("ignore")


def main():
    store, expected = sys.argv[1], json.loads(sys.argv[2])
    root = zarr.open_group(store, mode="r+", zarr_format=3)
    for name, wanted in expected.items():
        z = root[name]
        data = np.frombuffer(bytes.fromhex(wanted["raw"]), wanted["dtype"]).reshape(z.shape)
        assert z.metadata.dimension_names == ("y", "x") and z.chunks == (4, 3), name
        assert dict(z.attrs) == {"units": "K"}, name
        assert z.dtype.newbyteorder("=") == data.dtype.newbyteorder("="), f"{name}: {z.dtype}"
        assert np.array_equal(z[...], data), name
        z[...] = data[::-1, ::-1]
        assert np.array_equal(root[name][...], data[::-1, ::-1]), name
    print(f"zarr {zarr.__version__}: {len(expected)} arrays")


main()
