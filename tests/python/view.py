#!/usr/bin/env python3
"""Compares a mount with its store. zarr-python opens both; the mount is an uncompressed Zarr v2 store.

    view.py MOUNT STORE      (with zarr 2.18 or 3; with xarray, datasets are compared too)

Every array must have the same shape, chunks, dtype, fill value, attributes and bytes. Prints what it compared; exit
code 1 after a difference.
"""
import collections
import json
import logging
import os
import sys
import warnings

import numpy as np
import zarr

warnings.simplefilter("ignore")
logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # zarr 3 leaves failed tasks behind
ZARR3 = int(zarr.__version__.split(".")[0]) >= 3
counts, faults = collections.Counter(), []


def open_node(store, path):
    if ZARR3:
        # a group without .zgroup cannot be opened, arrays below it can
        return zarr.open(os.path.join(store, path), mode="r", zarr_format=2)
    return zarr.open(zarr.DirectoryStore(store), path=path, mode="r")


def nodes(store):
    """Yields the path and kind of each group and array. They are found by their files, since a group may lack
    .zgroup."""
    for folder, names, files in os.walk(store):
        path = os.path.relpath(folder, store)
        path = "" if path == "." else path
        if ".zarray" in files:
            names.clear()
            yield path, "array"
        elif ".zgroup" in files:
            yield path, "group"


def fault(path, what):
    faults.append(path)
    print(f"{path or '/'}: {what}")


def bits(array):
    """Returns the flat bytes, which are equal for equal values including NaN."""
    out = np.zeros(array.shape, array.dtype)
    if out.size:
        # missing chunks stay zero if there is no fill value
        if ZARR3:
            out[...] = array[...]
        else:
            array.get_basic_selection(..., out=out)
    return out.tobytes()


def fill_bits(array):
    value = array.fill_value
    return None if value is None or array.dtype.hasobject else np.array(value, array.dtype).tobytes()


def same_object(a, b):
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.array_equal(a, b)
    return a == b or a != a and b != b


def compare_array(path, shown, stored):
    for name in ("shape", "chunks", "dtype", "order"):
        a, b = getattr(shown, name), getattr(stored, name)
        if a != b:
            fault(path, f"{name} {a} in the mount, {b} in the store")
    if fill_bits(shown) != fill_bits(stored):
        fault(path, f"fill_value {shown.fill_value!r} in the mount, {stored.fill_value!r} in the store")
    compressors = shown.compressors if ZARR3 else [shown.compressor] if shown.compressor else []
    if compressors:
        fault(path, f"the mount says it is compressed: {compressors}")
    if shown.shape != stored.shape or shown.dtype != stored.dtype:
        return
    if shown.dtype.hasobject:
        a, b = np.asarray(shown[...], object).ravel(), np.asarray(stored[...], object).ravel()
        equal = all(map(same_object, a, b))
        counts["object arrays"] += 1
    else:
        equal = bits(shown) == bits(stored)
        counts["arrays"] += 1
        counts["bytes"] += int(stored.size) * stored.dtype.itemsize
    if not equal:
        fault(path, "values differ")


def compare_node(mount, store, path, kind):
    try:
        stored = open_node(store, path)
        if kind == "array":
            stored[...]
    except Exception:  # this zarr cannot read the array, so there is nothing to compare with
        counts[f"{kind}s that zarr {zarr.__version__} cannot read"] += 1
        return
    try:
        shown = open_node(mount, path)
        a, b = dict(shown.attrs), dict(stored.attrs)
        if repr(a) != repr(b) and a != b:  # repr: NaN is not equal to itself
            fault(path, f"attributes {a} in the mount, {b} in the store")
        if kind == "array":
            compare_array(path, shown, stored)
        else:
            counts["groups"] += 1
    except Exception as e:
        fault(path, f"{type(e).__name__}: {e}")


def is_dataset(store, path):
    """Returns whether an array of this group names its dimensions, as xarray does."""
    for name in os.listdir(os.path.join(store, path)):
        folder = os.path.join(store, path, name)
        try:
            with open(os.path.join(folder, ".zattrs")) as f:
                if "_ARRAY_DIMENSIONS" in json.load(f) and os.path.exists(os.path.join(folder, ".zarray")):
                    return True
        except (OSError, ValueError):
            pass
    return False


def compare_dataset(mount, store, path):
    import xarray
    options = {"group": path or None, "chunks": None, "consolidated": False}
    if ZARR3:
        options["zarr_format"] = 2
    try:
        stored = xarray.open_zarr(store, **options).load()
    except Exception:
        return
    try:
        if xarray.open_zarr(mount, **options).identical(stored):
            counts["xarray datasets"] += 1
        else:
            fault(path, "the xarray datasets are not identical")
    except Exception as e:
        fault(path, f"xarray: {type(e).__name__}: {e}")


def main():
    mount, store = sys.argv[1:]
    shown, stored = dict(nodes(mount)), dict(nodes(store))
    for path in sorted(shown.keys() ^ stored.keys()):
        if shown.get(path, stored.get(path)) == "array":
            fault(path, "is in the mount only" if path in shown else "is not in the mount")
    for path in sorted(shown.keys() & stored.keys()):
        compare_node(mount, store, path, stored[path])
    try:
        import xarray  # noqa: F401
    except ImportError:
        counts["no xarray"] = 1
    else:
        for path, kind in sorted(stored.items()):
            if kind == "group" and is_dataset(store, path):
                compare_dataset(mount, store, path)
    print(f"zarr {zarr.__version__}:", ", ".join(f"{n} {what}" for what, n in counts.items()) or "nothing to compare")
    if faults:
        sys.exit(f"{len(faults)} differences")
    if not counts["arrays"] + counts["object arrays"]:
        sys.exit("no array compared")


if __name__ == "__main__":
    main()
