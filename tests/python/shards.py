#!/usr/bin/env python3
"""Writes arrays in shards through a mount, with zarr-python 3, TensorStore and system calls, and reads them.

    shards.py make STORE             creates the arrays of a store
    shards.py write MOUNT EXPECTED [NAME...]
                                     changes all arrays, or these, through a mount, and creates others; saves the
                                     expected values in the folder EXPECTED
    shards.py check STORE EXPECTED   reads the arrays of a store with zarr-python and TensorStore

`write` compares the values in the mount after every change. Exit code 1 after a difference.
"""
import os
import shutil
import sys
import warnings

import numpy as np
import tensorstore
import zarr
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, ShardingCodec, ZstdCodec

warnings.simplefilter("ignore")


def nested(inner, outer, location="end"):
    """Returns the codec of shards that hold inner shards of shape `outer`, whose chunks have shape `inner`."""
    codecs = [ShardingCodec(chunk_shape=inner, codecs=[BytesCodec(), ZstdCodec(level=1)], index_location=location)]
    return ShardingCodec(chunk_shape=outer, codecs=codecs)


# name: chunks, shards, other arguments of create_array
ARRAYS = {
    "zstd": ((8, 10), (32, 50), {}),
    "plain": ((8, 10), (40, 20), dict(compressors=None)),
    "blosc": ((5, 7), (20, 70), dict(compressors=[BloscCodec(cname="lz4", shuffle="bitshuffle", typesize=4)])),
    "crc": ((16, 16), (16, 16), dict(compressors=[GzipCodec(level=1), Crc32cCodec()])),
    "start": ((40, 60), None, dict(serializer=ShardingCodec(chunk_shape=(8, 20), index_location="start"), compressors=None)),
    "around": ((40, 60), None, dict(serializer=ShardingCodec(chunk_shape=(8, 20)), compressors=[ZstdCodec(level=1)])),
    "nested": ((48, 60), None, dict(serializer=nested((4, 5), (16, 30)), compressors=None)),
    "nested_start": ((48, 60), None, dict(serializer=nested((4, 5), (24, 20), "start"), compressors=None)),
}
SHAPE = (70, 110)


def values(shape, seed):
    return np.random.default_rng(seed).normal(size=shape).astype("f4")


def tensorstore_spec(path):
    return {"driver": "zarr3", "kvstore": {"driver": "file", "path": path}}


def same(array, expected, what):
    found = array[...] if isinstance(array, zarr.Array) else array.read().result()
    if found.shape != expected.shape or not np.array_equal(found, expected, equal_nan=True):
        sys.exit(f"{what}: other values")


def view(root, name):
    return zarr.open_array(f"{root}/{name}", mode="r+")


def make(store):
    group = zarr.create_group(store)
    for seed, (name, (chunks, shards, more)) in enumerate(ARRAYS.items()):
        array = group.create_array(name, shape=SHAPE, chunks=chunks, shards=shards, dtype="f4", fill_value=1.5, **more)
        # some shards are missing, others lack chunks
        array[5:60, 20:77] = values((55, 57), seed)


def change(root, name, expected):
    """Changes one array in every way."""
    array = view(root, name)
    same(array, expected, f"{name} as it was")
    array[3:30, 5:107] = x = values((27, 102), 100)
    expected[3:30, 5:107] = x
    same(view(root, name), expected, f"{name} after chunk files")
    with open(f"{root}/{name}/data.raw", "r+b") as file:
        file.seek(4 * (33 * SHAPE[1] + 7))
        file.write(x[:5].tobytes())
    expected.reshape(-1)[33 * SHAPE[1] + 7 :][: x[:5].size] = x[:5].reshape(-1)
    same(array, expected, f"{name} after data.raw")
    chunks = array.chunks
    for i, j in [(1, 2), (2, 1), (3, 1)]:
        os.unlink(f"{root}/{name}/{i}.{j}")
        expected[i * chunks[0] : (i + 1) * chunks[0], j * chunks[1] : (j + 1) * chunks[1]] = 1.5
        if f"{i}.{j}" in os.listdir(f"{root}/{name}"):
            sys.exit(f"{name}: chunk {i}.{j} is listed after it was removed")
    same(array, expected, f"{name} after removing chunks")
    library = tensorstore.open(tensorstore_spec(f"{root}/{name}"), open=True).result()
    library[40:66, 1:9].write(x[:26, :8]).result()
    expected[40:66, 1:9] = x[:26, :8]
    same(view(root, name), expected, f"{name} after TensorStore")
    array = view(root, name)
    array.append(x[:9, :2].repeat(55, axis=1))
    expected = np.concatenate([expected, x[:9, :2].repeat(55, axis=1)])
    same(view(root, name), expected, f"{name} after append")
    # zarr-python deletes chunks outside the shape, keeps the part of a chunk outside of it, and shows that again
    plain = zarr.create_array({}, shape=expected.shape, chunks=array.chunks, dtype="f4", fill_value=1.5)
    plain[...] = expected
    for shape in [(61, 90), (75, 110)]:
        view(root, name).resize(shape)
        plain.resize(shape)
        same(view(root, name), plain[...], f"{name} with shape {shape}")
    return plain[...]


def create(root, folder):
    """Creates arrays in shards through the mount; the libraries write whole shards below `c`."""
    x = values((60, 44), 7)
    array = zarr.create_array(f"{root}/new", shape=x.shape, chunks=(5, 4), shards=(20, 44), dtype="f4", fill_value=0)
    array[...] = x
    same(array, x, "a new array")
    view(root, "new")[2:9] = 3
    x[2:9] = 3
    # the shard file below `c` must include chunks that are not stored yet
    same(array, x, "a new array, in shards")
    array[50:] = 4
    x[50:] = 4
    same(view(root, "new"), x, "a new array, in chunks")
    np.save(f"{folder}/new.npy", x)
    shards = {"name": "sharding_indexed", "configuration": {"chunk_shape": [10, 11], "codecs": [
        {"name": "bytes", "configuration": {"endian": "little"}}, {"name": "zstd", "configuration": {"level": 1}}]}}
    grid = {"name": "regular", "configuration": {"chunk_shape": [30, 22]}}
    metadata = {"shape": list(x.shape), "data_type": "float32", "fill_value": 2.0, "chunk_grid": grid, "codecs": [shards]}
    spec = tensorstore_spec(f"{root}/tensorstore") | {"create": True, "metadata": metadata}
    library = tensorstore.open(spec).result()
    library[:50].write(x[:50]).result()
    y = x.copy()
    y[50:] = 2
    same(view(root, "tensorstore"), y, "an array of TensorStore")
    view(root, "tensorstore")[7:9] = 5
    y[7:9] = 5
    same(library, y, "an array of TensorStore, in shards")
    np.save(f"{folder}/tensorstore.npy", y)
    shutil.copytree(f"{root}/new", f"{root}/gone", ignore=lambda _, names: [n for n in names if n != "zarr.json" and n != "c"])
    view(root, "gone")[:7] = 9
    shutil.rmtree(f"{root}/gone")


def write(root, folder, *names):
    for name in names or ARRAYS:
        expected = np.full(SHAPE, 1.5, "f4")
        expected[5:60, 20:77] = values((55, 57), list(ARRAYS).index(name))
        np.save(f"{folder}/{name}.npy", change(root, name, expected))
    create(root, folder)
    print(f"zarr {zarr.__version__}, TensorStore: {len(names or ARRAYS) + 2} arrays in shards were changed through a mount")


def check(store, folder):
    if os.path.exists(f"{store}/gone"):
        sys.exit("a removed array is there")
    for file in sorted(os.listdir(folder)):
        name, expected = file.removesuffix(".npy"), np.load(f"{folder}/{file}")
        same(zarr.open_array(f"{store}/{name}", mode="r"), expected, f"{name} in the store")
        # TensorStore does not support codecs around shards
        if name != "around":
            same(tensorstore.open(tensorstore_spec(f"{store}/{name}"), open=True).result(), expected, f"{name} for TensorStore")


if __name__ == "__main__":
    {"make": make, "write": write, "check": check}[sys.argv[1]](*sys.argv[2:])
