"""Opens arrays that `zarrfs create` has created with zarr 2.18 or zarr 3, and compares them with zarr.create.

    created.py STORE EXPECTED

EXPECTED is a JSON object: the path of each array, and the arguments of zarr.create for an equal array. With zarr 2.18
the documents are compared with those that zarr writes, and each array is written and read.
"""
import json
import os
import sys
import tempfile
import warnings

import numcodecs
import numpy as np
import zarr

warnings.simplefilter("ignore")


def codec(config):
    return config and numcodecs.get_codec(dict(config))


def compare_documents(path, wanted):
    wanted = dict(wanted, compressor=codec(wanted["compressor"]), filters=[codec(f) for f in wanted["filters"] or []] or None)
    if isinstance(wanted["dtype"], list):
        wanted["dtype"] = [tuple(field) for field in wanted["dtype"]]
    with tempfile.TemporaryDirectory() as folder:
        zarr.create(store=folder, **wanted)
        with open(f"{folder}/.zarray") as f:
            theirs = json.load(f)
    with open(f"{path}/.zarray") as f:
        ours = json.load(f)
    # zarr leaves out the separator ".", and the latest version of numcodecs adds parameters
    ours["compressor"] = ours["compressor"] and codec(ours["compressor"]).get_config()
    assert {"dimension_separator": "."} | theirs == ours, f"{path}: {ours}, zarr makes {theirs}"


def main():
    store, expected = sys.argv[1], json.loads(sys.argv[2])
    for name, wanted in expected.items():
        path = os.path.join(store, name)
        z = zarr.open_array(path, mode="r+")
        assert z.shape == tuple(wanted["shape"]) and z.chunks == tuple(wanted["chunks"]), path
        if zarr.__version__.startswith("2."):
            compare_documents(path, wanted)
            data = np.arange(z.size).astype(z.dtype).reshape(z.shape) if z.dtype.kind in "biuf" else z[...]
            z[...] = data
            assert np.array_equal(zarr.open_array(path, mode="r")[...], data), path
        else:
            assert z.metadata.zarr_format == 2, path
            z[...]
    print(f"zarr {zarr.__version__}: {len(expected)} arrays")


main()
