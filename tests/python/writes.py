#!/usr/bin/env python3
"""Writes the same hierarchy with zarr-python and xarray to a mount and to a plain directory, and compares both.

    writes.py MOUNT STORE DIRECT COMPRESSOR      (with zarr 2.18 or 3)

STORE is mounted at MOUNT, with COMPRESSOR for new arrays; DIRECT is created. Every array and attribute must be equal in
MOUNT, STORE and DIRECT, and deleted ones must be missing. Prints the number of nodes; exit code 1 after a difference.
"""
import json
import logging
import os
import shutil
import sys
import warnings

import numpy as np
import xarray as xr
import zarr

warnings.simplefilter("ignore")
logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # zarr 3 leaves failed tasks behind
ZARR3 = int(zarr.__version__.split(".")[0]) >= 3


def create(group, name, shape, chunks, dtype, fill=0, order="C", **more):
    """Creates an array without a compressor, which the mount may add."""
    if ZARR3:
        more.pop("object_codec", None)
        return group.create_array(name, shape=shape, chunks=chunks, dtype=dtype, fill_value=fill, order=order,
                                  compressors=None, **more)
    return group.create(name, shape=shape, chunks=chunks, dtype=dtype, fill_value=fill, order=order,
                        compressor=None, **more)


def open_group(path, mode):
    if ZARR3:
        return zarr.open_group(path, mode=mode, zarr_format=2)
    return zarr.open_group(zarr.DirectoryStore(path), mode=mode)


def delete(group, name):
    del group[name]


def arrays(root):
    """Writes slices and attributes, resizes, appends, deletes and overwrites."""
    random = np.random.default_rng(1)
    group = open_group(root, "a")
    group.attrs["title"] = "écrit"
    group.attrs.update({"list": [1, 2.5, None], "nested": {"a": True}})

    for order in "CF":
        for dtype, fill in (("<f4", float("nan")), (">i2", -7), ("|u1", 0), ("<M8[s]", 0), ("|S3", b"")):
            if ZARR3 and dtype in ("<M8[s]", "|S3"):
                continue
            name = f"a_{order}_{dtype.strip('<>|').replace('[', '').replace(']', '')}"
            a = create(group, name, (10, 7), (4, 3), dtype, fill, order)
            values = random.integers(0, 100, (10, 7)).astype("i8").astype(dtype)
            a[2:9, 1:6] = values[2:9, 1:6]
            a[0, :] = values[0, :]
            a.attrs["order"] = order
            a[5, 5] = values[1, 1]

    a = group["a_C_f4"]
    # zarr-python deletes chunks outside the shape, keeps the part of a chunk outside of it, and shows that again
    a.resize((13, 6))
    a[11:13] = 3
    for shape in [(8, 9), (7, 2), (12, 8), (5, 9), (1, 1), (10, 7)]:
        a.resize(shape)
    b = group["a_F_i2"]
    b.append(np.full((5, 7), 9, dtype=">i2"))
    b.append(np.full((15, 2), 4, dtype=">i2"), axis=1)

    scalar = create(group, "scalar", (), (), "<f8", 1.5)
    scalar[...] = 42.0
    create(group, "empty", (0, 4), (1, 4), "<i4")
    create(group, "untouched", (100, 100), (10, 10), "<i4", 5)

    for name in ("gone", "again"):
        create(group, name, (6,), (2,), "<i4")[:] = 1
    delete(group, "gone")
    create(group, "again", (4, 4), (2, 2), "|i1", overwrite=True)[1, 1] = 8

    nested = {"chunk_key_encoding": {"name": "v2", "separator": "/"}} if ZARR3 else {"dimension_separator": "/"}
    a = create(group, "nested", (6, 5, 4), (3, 2, 4), "<i2", 1, **nested)
    a[1:5, 1:4] = random.integers(0, 100, (4, 3, 4))
    a.append(np.full((2, 5, 4), 3, dtype="<i2"))

    below = group.require_group("deep/er")
    create(below, "x", (4,), (2,), "<i8")[:] = range(4)
    below.attrs["level"] = 2
    group.require_group("to_delete/below").attrs["x"] = 1
    delete(group, "to_delete")
    if not ZARR3:
        group.move("deep/er/x", "deep/moved")
        words = group.create("words", shape=(5,), chunks=(2,), dtype=object, compressor=None,
                             object_codec=__import__("numcodecs").VLenUTF8())
        words[:] = np.array(["a", "bc", "déf", "", "ghij"], dtype=object)
        words[1] = "changed"
        zarr.consolidate_metadata(zarr.DirectoryStore(root))
        group.attrs["after"] = "consolidated"


def dataset(start, days):
    time = np.arange(start, start + days)
    t = np.sin(np.arange(days * 6 * 5).reshape(days, 6, 5) + start).astype("f4")
    return xr.Dataset(
        {"t": (("time", "lat", "lon"), t, {"units": "K"})},
        coords={"time": time, "lat": np.linspace(-90, 90, 6), "lon": np.linspace(0, 288, 5)},
        attrs={"title": "made"},
    )


def datasets(root):
    """Writes a dataset, overwrites it, appends to it, and writes a part of it."""
    path = os.path.join(root, "data.zarr")
    version = {"zarr_format": 2} if ZARR3 else {}
    plain = {name: {"compressors" if ZARR3 else "compressor": None} for name in ("t", "time", "lat", "lon")}
    for _ in range(2):
        first = dataset(0, 5)
        first.to_zarr(path, mode="w", consolidated=True, encoding={**plain, "t": {**plain["t"], "chunks": (2, 4, 5)}}, **version)
    dataset(5, 4).to_zarr(path, append_dim="time", consolidated=True, **version)
    part = dataset(100, 2).drop_vars(["lat", "lon", "time"])
    part.to_zarr(path, region={"time": slice(4, 6), "lat": slice(0, 6), "lon": slice(0, 5)}, **version)


def plain(root):
    """Writes a plain key through a map."""
    path = os.path.join(root, "plain.bin")
    a = np.memmap(path, dtype="<i4", mode="w+", shape=(5000,))
    a[:] = range(5000)
    a.flush()
    b = np.memmap(path, dtype="<i4", mode="r+")
    b[4000] = -1
    del a, b
    found = np.fromfile(path, dtype="<i4")
    if found[4000] != -1 or found[4999] != 4999 or found.size != 5000:
        sys.exit("a plain key written through a map has other bytes")


def nodes(path):
    """Returns the attributes, shape, dtype, fill value and bytes of every node, by path."""
    found = {}
    for folder, names, files in os.walk(path):
        names.sort()
        where = os.path.relpath(folder, path)
        attributes = json.load(open(os.path.join(folder, ".zattrs"))) if ".zattrs" in files else {}
        if ".zarray" in files:
            names.clear()
            if ZARR3:
                a = zarr.open_array(folder, mode="r", zarr_format=2)
            else:
                a = zarr.open_array(zarr.DirectoryStore(path), path="" if where == "." else where, mode="r")
            values = a[...]
            content = values.tolist() if a.dtype.hasobject else np.asarray(values).tobytes()
            meta = json.load(open(os.path.join(folder, ".zarray")))
            found[where] = (attributes, a.shape, a.chunks, meta["dtype"], str(meta["fill_value"]), meta["order"], content)
        elif ".zgroup" in files:
            found[where] = attributes
    return found


def compare(what, a, b):
    for path in sorted(set(a) | set(b)):
        if a.get(path) != b.get(path):
            short = [str(x.get(path))[:300] for x in (a, b)]
            sys.exit(f"{what}: {path}: {short[0]}\n  directly: {short[1]}")


def main(mount, store, direct, compressor):
    root = open_group(direct, "w")
    for write in (arrays, datasets):
        for place in (mount, direct):
            write(place)
    wanted = nodes(direct)
    compare("through the mount", nodes(mount), wanted)
    compare("in the store", nodes(store), wanted)
    for path in wanted:
        document = os.path.join(store, path, ".zarray")
        if os.path.exists(document):
            stored = (json.load(open(document))["compressor"] or {"id": "none"})["id"]
            if stored != compressor.split(":")[0]:
                sys.exit(f"{path}: stored with {stored}")
    if not ZARR3:
        for place in (mount, store):
            group = zarr.open_consolidated(zarr.DirectoryStore(place))
            assert group.attrs["after"] == "consolidated" and "again" in group, dict(group.attrs)
    with xr.open_zarr(os.path.join(mount, "data.zarr")) as a, xr.open_zarr(os.path.join(direct, "data.zarr")) as b:
        xr.testing.assert_identical(a.load(), b.load())
        assert a.sizes["time"] == 9
    print(f"zarr {zarr.__version__}: {len(wanted)} groups and arrays are the same in the mount, the store (compressor {compressor}) and a directory")
    plain(mount)
    shutil.rmtree(os.path.join(mount, "data.zarr"))
    for name in sorted(os.listdir(mount)):
        path = os.path.join(mount, name)
        shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)
    left = [os.path.join(folder, name) for folder, names, files in os.walk(store) for name in names + files]
    if left:
        sys.exit(f"left behind: {left}")


main(*sys.argv[1:])
