#!/usr/bin/env python3
"""Reads and writes stores of Zarr v3 with zarr-python 3, xarray and TensorStore.

    zarr3.py make STORE                            creates a store with one array of each kind
    zarr3.py read MOUNT STORE                      compares the mount of a store with the store
    zarr3.py write MOUNT STORE DIRECT COMPRESSOR   writes the same hierarchy to a mount and to a new directory

STORE is mounted at MOUNT, with COMPRESSOR for new arrays. After `write`, every array and attribute must be equal in
MOUNT, STORE and DIRECT, and deleted ones must be missing. Prints the number of nodes; exit code 1 after a difference.
"""
import json
import logging
import os
import shutil
import sys
import warnings

import numpy as np
import tensorstore
import xarray as xr
import zarr
from zarr.codecs import BloscCodec, BytesCodec, GzipCodec, TransposeCodec, ZstdCodec

warnings.simplefilter("ignore")
logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # zarr 3 leaves failed tasks behind
V2_KEYS = {"name": "v2", "separator": "."}
BLOSC = BloscCodec(cname="lz4", clevel=5, shuffle="bitshuffle", typesize=4)

# name: arguments of create_array for an array of 10 x 7 in chunks of 4 x 3
ARRAYS = {
    "zstd": dict(dtype="float32", fill_value=float("nan")),
    "plain": dict(dtype="int16", fill_value=-7, compressors=None),
    "big": dict(dtype="int32", fill_value=3, compressors=None, serializer=BytesCodec(endian="big")),
    "blosc": dict(dtype="uint32", compressors=[BLOSC]),
    "gzip_dots": dict(dtype="float64", fill_value=float("-inf"), compressors=[GzipCodec(level=3)],
                      chunk_key_encoding={"name": "default", "separator": "."}),
    "transposed": dict(dtype="int64", filters=[TransposeCodec(order=(1, 0))], compressors=[ZstdCodec(level=2, checksum=True)]),
    "crc": dict(dtype="bool", compressors=[zarr.codecs.Crc32cCodec()]),
    "plain_dots": dict(dtype="complex64", compressors=None, chunk_key_encoding={"name": "default", "separator": "."}),
    "v2_keys": dict(dtype="uint8", fill_value=9, compressors=None, chunk_key_encoding=V2_KEYS),
    "v2_levels": dict(dtype="float16", compressors=None, chunk_key_encoding={"name": "v2", "separator": "/"}),
    "times": dict(dtype="datetime64[s]"),
    "letters": dict(dtype="U5", fill_value="ab"),
}
# arrays that are stored with the compressor of the mount
PLAIN = ["plain", "big", "plain_dots", "v2_keys", "v2_levels", "scalar_plain"]


def values_of(dtype, shape, seed=1):
    values = np.random.default_rng(seed).integers(0, 100, shape)
    return values.astype("int64").astype(dtype)


def fill(array):
    """Writes parts of an array, so that some chunks stay uninitialized and others are written more than once."""
    values = values_of(array.dtype, array.shape)
    array[2:9, 1:6] = values[2:9, 1:6]
    array[0, :] = values[0, :]
    array[5, 5] = values[1, 1]


def words(group):
    text = group.create_array("words", shape=(5,), chunks=(2,), dtype=str)
    text[:] = np.array(["a", "bc", "déf", "", "ghij"], dtype=object)
    text[1] = "changed"
    text.append(np.array(["more"], dtype=object))


def create(group):
    """Creates one array of each kind."""
    for name, more in ARRAYS.items():
        fill(group.create_array(name, shape=(10, 7), chunks=(4, 3), dimension_names=["y", None], **more))
    words(group)
    group.create_array("scalar", shape=(), chunks=(), dtype="float64", fill_value=1.5)[...] = 42.0
    group.create_array("scalar_plain", shape=(), chunks=(), dtype="float64", compressors=None)[...] = 43.0
    group.create_array("empty", shape=(0, 4), chunks=(1, 4), dtype="int32")
    group.create_array("untouched", shape=(100, 100), chunks=(10, 10), dtype="int32", fill_value=5)
    group.create_array("deep", shape=(5, 4, 6), chunks=(2, 3, 6), dtype="int8")[1:4] = values_of("int8", (3, 4, 6))


def change(group):
    """Resizes, appends, deletes, overwrites, and sets attributes."""
    group.attrs["title"] = "écrit"
    group.attrs.update({"list": [1, 2.5, None], "nested": {"a": True}})
    for name in ("zstd", "plain", "v2_keys"):
        array = group[name]
        array.attrs["name"] = name
        # shrink only at chunk borders: zarr-python keeps the part of a chunk outside the shape and shows it again
        array.resize((12, 6))
        array[9:12] = 3
        array.resize((8, 9))
        array.resize((10, 7))
    for name in ("blosc", "big", "transposed", "gzip_dots", "plain_dots", "v2_levels"):
        group[name].append(np.full((5, 7), 9, dtype=group[name].dtype))
        group[name].append(np.full((15, 2), 4, dtype=group[name].dtype), axis=1)
    group["scalar"].attrs.update({"units": "K", "scale": 0.5})
    for name in ("gone", "again"):
        group.create_array(name, shape=(6,), chunks=(2,), dtype="int32")[:] = 1
    del group["gone"]
    group.create_array("again", shape=(4, 4), chunks=(2, 2), dtype="int8", overwrite=True)[1, 1] = 8
    below = group.require_group("a/b")
    below.create_array("x", shape=(4,), chunks=(2,), dtype="int64")[:] = range(4)
    below.attrs["level"] = 2
    group.require_group("to_delete/below").attrs["x"] = 1
    del group["to_delete"]


def arrays(root):
    group = zarr.open_group(root, mode="a", zarr_format=3)
    create(group)
    change(group)
    zarr.consolidate_metadata(root, zarr_format=3)
    # the mount must add later changes to the consolidated metadata
    group = zarr.open_group(root, mode="a", zarr_format=3, use_consolidated=False)
    group["a/b"].attrs["after"] = "consolidated"


def dataset(start, days):
    t = np.sin(np.arange(days * 6 * 5).reshape(days, 6, 5) + start).astype("f4")
    return xr.Dataset(
        {"t": (("time", "lat", "lon"), t, {"units": "K"})},
        coords={"time": np.arange(start, start + days), "lat": np.linspace(-90, 90, 6), "lon": np.linspace(0, 288, 5)},
        attrs={"title": "made"},
    )


def datasets(root):
    """Writes a dataset, overwrites it, appends to it, and writes a part of it."""
    path = os.path.join(root, "data.zarr")
    for _ in range(2):
        dataset(0, 5).to_zarr(path, mode="w", zarr_format=3, consolidated=True, encoding={"t": {"chunks": (2, 4, 5)}})
    dataset(5, 4).to_zarr(path, append_dim="time", consolidated=True)
    part = dataset(100, 2).drop_vars(["lat", "lon", "time"])
    part.to_zarr(path, region={"time": slice(4, 6), "lat": slice(0, 6), "lon": slice(0, 5)})
    path = os.path.join(root, "sharded.zarr")
    encoding = {"t": {"chunks": (1, 3, 5), "shards": (2, 6, 5)}}
    dataset(0, 4).to_zarr(path, mode="w", zarr_format=3, consolidated=True, encoding=encoding)
    dataset(4, 4).to_zarr(path, append_dim="time", consolidated=True)


def tensorstores(root):
    """Writes with TensorStore, which creates and resizes arrays in another way than zarr-python."""
    for name, codecs in (("zstd", ["zstd"]), ("bare", [])):
        spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": os.path.join(root, "ts_" + name)}, "metadata": {
            "shape": [10, 6], "data_type": "int32", "fill_value": -1,
            "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}] + [{"name": c} for c in codecs],
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4, 6]}}}}
        array = tensorstore.open(spec, create=True).result()
        array[1:9, 2:5] = values_of("int32", (8, 3))
        # open anew: the handle refuses the document of the mount, which differs from the one that it wrote
        array = tensorstore.open({"driver": "zarr3", "kvstore": spec["kvstore"]}, open=True).result()
        array = array.resize(exclusive_max=[14, 6]).result()
        array[13] = np.arange(6, dtype="int32")


def nodes(root):
    """Returns the attributes, shape, dtype, fill value, dimension names and values of every node, by path."""
    found = {}
    for folder, names, files in os.walk(root):
        names.sort()
        if "zarr.json" not in files:
            continue
        document = json.load(open(os.path.join(folder, "zarr.json")))
        where = os.path.relpath(folder, root)
        if document["node_type"] == "array":
            names.clear()
            array = zarr.open_array(folder, mode="r", zarr_format=3)
            values = np.asarray(array[...])
            content = values.tolist() if values.dtype.kind in "TO" else values.tobytes()
            found[where] = (dict(array.attrs), array.shape, array.chunks, str(array.dtype), str(document["fill_value"]),
                            document.get("dimension_names"), document["data_type"], content)
        else:
            found[where] = dict(zarr.open_group(folder, mode="r", zarr_format=3, use_consolidated=False).attrs)
    return found


def compare(what, a, b):
    for path in sorted(set(a) | set(b)):
        if a.get(path) != b.get(path):
            short = [str(x.get(path))[:300] for x in (a, b)]
            sys.exit(f"{what}: {path}: {short[0]}\n  directly: {short[1]}")


def codecs_of(folder):
    return [codec["name"] for codec in json.load(open(os.path.join(folder, "zarr.json")))["codecs"]]


def check_codecs(store, direct, compressor):
    """Checks that arrays have the codecs with which they were created, and the compressor if that was only `bytes`."""
    for path in nodes(direct):
        if "codecs" not in json.load(open(os.path.join(direct, path, "zarr.json"))):
            continue
        wanted, found = codecs_of(os.path.join(direct, path)), codecs_of(os.path.join(store, path))
        if wanted == ["bytes"] and compressor != "none":
            wanted = ["bytes", compressor.split(":")[0]]
        if wanted != found:
            sys.exit(f"{path}: stored with {found}, not {wanted}")


def consolidated(root):
    """Returns the entries of the consolidated metadata, without members that depend on how chunks are stored."""
    document = json.load(open(os.path.join(root, "zarr.json")))
    kept = ("node_type", "shape", "data_type", "attributes", "fill_value")
    entries = document["consolidated_metadata"]["metadata"]
    return {path: {name: str(entry.get(name)) for name in kept} for path, entry in entries.items()}


def write(mount, store, direct, compressor):
    zarr.open_group(direct, mode="w", zarr_format=3)
    for step in (arrays, datasets, tensorstores):
        for place in (mount, direct):
            step(place)
    wanted = nodes(direct)
    compare("in the store", nodes(store), wanted)
    compare("through the mount", nodes(mount), wanted)
    check_codecs(store, direct, compressor)
    found, stale = consolidated(store), consolidated(direct)
    if stale.keys() - found.keys():
        sys.exit(f"consolidated metadata lack {stale.keys() - found.keys()}")
    if "consolidated" not in found["a/b"]["attributes"]:
        sys.exit(f"consolidated metadata are stale: {found['a/b']}")
    compare("consolidated data", consolidated(os.path.join(store, "data.zarr")), consolidated(os.path.join(direct, "data.zarr")))
    for place in (mount, store):
        with xr.open_zarr(os.path.join(place, "data.zarr")) as a, xr.open_zarr(os.path.join(direct, "data.zarr")) as b:
            xr.testing.assert_identical(a.load(), b.load())
            assert a.sizes["time"] == 9
        with xr.open_zarr(os.path.join(place, "sharded.zarr")) as a, xr.open_zarr(os.path.join(direct, "sharded.zarr")) as b:
            xr.testing.assert_identical(a.load(), b.load())
            assert a.sizes["time"] == 8
    print(f"zarr {zarr.__version__}: {len(wanted)} groups and arrays are the same in the mount, the store (compressor {compressor}) and a directory")
    for data in "data.zarr", "sharded.zarr":
        shutil.rmtree(os.path.join(mount, data))
    for name in sorted(os.listdir(mount)):
        path = os.path.join(mount, name)
        shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)
    left = [os.path.join(folder, name) for folder, names, files in os.walk(store) for name in names + files]
    if left:
        sys.exit(f"left behind: {left}")


def make(store):
    zarr.open_group(store, mode="w", zarr_format=3)
    arrays(store)
    datasets(store)
    tensorstores(store)


def read_tensorstore(path):
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": path}}
    return tensorstore.open(spec, open=True, read=True).result().read().result()


def read(mount, store):
    wanted = nodes(store)
    compare("in the mount", nodes(mount), wanted)
    count = 0
    for path, node in wanted.items():
        folder = os.path.join(mount, path)
        if isinstance(node, dict) or node[-2] == "string":
            continue
        flat = np.fromfile(os.path.join(folder, "data.raw"), dtype="u1").tobytes()
        codecs = json.load(open(os.path.join(folder, "zarr.json")))["codecs"]
        if [codec["name"] for codec in codecs] != ["bytes"]:
            sys.exit(f"{path}: the mount shows the codecs {codecs}")
        if isinstance(node[-2], dict):
            continue  # TensorStore has neither times nor texts of fixed length
        if codecs[0].get("configuration", {}).get("endian") != "big" and flat != node[-1]:
            sys.exit(f"{path}: data.raw has other bytes")
        if read_tensorstore(folder).tobytes() != node[-1]:
            sys.exit(f"{path}: TensorStore reads other values from the mount")
        count += 1
    groups = [zarr.open_consolidated(place, zarr_format=3) for place in (mount, store)]
    found, stored = ({path: node for path, node in group.members(max_depth=None)} for group in groups)
    if stored.keys() - found.keys():
        sys.exit(f"the consolidated metadata of the mount lack {stored.keys() - found.keys()}")
    for path, node in found.items():
        if isinstance(node, zarr.Array):
            direct = zarr.open_array(os.path.join(store, path), mode="r", zarr_format=3)
            np.testing.assert_array_equal(node[...], direct[...], path)
    for data in "data.zarr", "sharded.zarr":
        with xr.open_zarr(os.path.join(mount, data), consolidated=True) as a, xr.open_zarr(os.path.join(store, data)) as b:
            xr.testing.assert_identical(a.load(), b.load())
    print(f"zarr {zarr.__version__}: {len(wanted)} groups and arrays are the same in the mount; TensorStore reads {count}")


{"make": make, "read": read, "write": write}[sys.argv[1]](*sys.argv[2:])
