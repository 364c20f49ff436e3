#!/usr/bin/env python3
"""Reads arrays of a Zarr v3 store with three libraries, and compares them with the expected values.

    rewritten.py STORE ORIGINAL EXPECTED      (with the packages of scripts/requirements/zarr3.txt)

Each array of STORE has the items of the same array of ORIGINAL in reverse order. EXPECTED is a folder with the flat
bytes of each array, in a file with the name of the array. Prints the number of arrays that each library read. A library
need not read an array whose original it cannot read: the array has a type or codec that the library lacks, or decodes
contrary to the specification. Exit code 1 after a difference, or if a library reads fewer than 20 arrays.
"""
import collections
import json
import os
import sys
import warnings

import numpy as np
import tensorstore
import zarr
from chains import ordered

LEAST = 20


def byte_order(codecs):
    for codec in codecs:
        configuration = codec.get("configuration", {}) if isinstance(codec, dict) else {}
        if "endian" in configuration:
            return configuration["endian"]
        if "codecs" in configuration:
            return byte_order(configuration["codecs"])
    return "little"


def by_zarr_python(path):
    return zarr.open_array(path, mode="r")


def by_zarrs(path):
    with zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}):
        # an array keeps the pipeline with which it was opened
        return zarr.open_array(path, mode="r")


def by_tensorstore(path):
    return tensorstore.open({"driver": "zarr3", "kvstore": {"driver": "file", "path": path}}, open=True).result()


def flat(library, path, endian):
    """Returns the items that a library reads, and their bytes in C order."""
    array = LIBRARIES[library](path)
    x = array.read().result() if library == "TensorStore" else array[...]
    # NumPy would remove the trailing zeros of a single text item
    x = np.asarray(x) if library == "TensorStore" else np.asarray(x, array.dtype)
    # types of ml_dtypes have no byte order that NumPy can change
    if x.dtype.kind == "V" and not x.dtype.fields:
        x = x.view(f"u{x.dtype.itemsize}" if x.dtype.itemsize in (1, 2) else x.dtype)
    return ordered(x, endian), x.dtype.itemsize


def reversed_items(data, itemsize):
    return b"".join(data[i : i + itemsize] for i in range(len(data) - itemsize, -1, -itemsize))


def reads_original(library, path, endian, expected):
    try:
        return reversed_items(*flat(library, path, endian)) == expected
    except Exception:  # libraries raise various errors for types and codecs that they lack
        return False


LIBRARIES = {"zarr-python": by_zarr_python, "zarrs": by_zarrs, "TensorStore": by_tensorstore}


def main():
    warnings.simplefilter("ignore")
    store, original, folder = sys.argv[1:]
    read, wrong = collections.Counter(), []
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(store, name, "zarr.json")) as f:
            endian = byte_order(json.load(f)["codecs"])
        with open(os.path.join(folder, name), "rb") as f:
            expected = f.read()
        for library in LIBRARIES:
            if not reads_original(library, os.path.join(original, name), endian, expected):
                continue
            read[library] += 1
            try:
                if flat(library, os.path.join(store, name), endian)[0] != expected:
                    wrong.append(f"{name}: {library}: other values")
            except Exception as e:
                wrong.append(f"{name}: {library}: {type(e).__name__}: {str(e)[:300]}")
    print("rewritten v3 arrays, read by", ", ".join(f"{library}: {read[library]}" for library in LIBRARIES))
    if wrong or min(read[library] for library in LIBRARIES) < LEAST:
        sys.exit("\n".join(wrong) or "too few arrays were read")


if __name__ == "__main__":
    main()
