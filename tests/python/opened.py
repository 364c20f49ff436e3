"""Stores that some programs can't open, and the same values in the files of a mount, for tests/formats/opened.rs.

write STORE VALUES              writes the arrays with zarr-python and TensorStore, and what they read back
refuse STORE                    checks which arrays this zarr-python can't open
NAME MOUNT VALUES               reads an array in the mount with programs that know nothing of its codecs
"""

import json
import os
import pathlib
import sys

import numpy as np

SHAPE = (60, 100)
RNG = np.random.default_rng(51)


def document(path, data_type, codecs, fill):
    """Writes the document of an array of four chunks."""
    os.makedirs(f"{path}/c")
    chunks = {"name": "regular", "configuration": {"chunk_shape": [30, 50]}}
    keys = {"name": "default", "configuration": {"separator": "."}}
    text = {"zarr_format": 3, "node_type": "array", "shape": SHAPE, "data_type": data_type, "chunk_grid": chunks,
            "chunk_key_encoding": keys, "fill_value": fill, "codecs": codecs, "attributes": {},
            "dimension_names": ["y", "x"]}
    pathlib.Path(f"{path}/zarr.json").write_text(json.dumps(text))


def write_scaled(path):
    """Stores numbers as integers of 2 bytes, as the rules of scale_offset and cast_value state: (x - offset) * scale."""
    import numcodecs

    stored = RNG.integers(-3000, 3000, SHAPE).astype("<i2")
    codecs = [{"name": "scale_offset", "configuration": {"offset": 256.0, "scale": 32.0}},
              {"name": "cast_value", "configuration": {"data_type": "int16", "rounding": "nearest-even"}},
              {"name": "bytes", "configuration": {"endian": "little"}},
              {"name": "zstd", "configuration": {"level": 3, "checksum": False}}]
    document(path, "float64", codecs, 256.0)
    for i in range(2):
        for j in range(2):
            chunk = np.ascontiguousarray(stored[30 * i : 30 * i + 30, 50 * j : 50 * j + 50])
            pathlib.Path(f"{path}/c.{i}.{j}").write_bytes(numcodecs.Zstd(3).encode(chunk))
    return stored / 32.0 + 256.0


def write(store, values):
    import tensorstore
    import zarr

    os.makedirs(values)
    group = zarr.create_group(store, zarr_format=3)
    options = {"shape": SHAPE, "dimension_names": ["y", "x"], "fill_value": 0}
    arrays = {"sharded": {"chunks": (10, 10), "shards": (30, 50), "dtype": "f4"},
              "checksum": {"chunks": (30, 50), "dtype": "i2", "compressors": [zarr.codecs.Crc32cCodec()]}}
    for name, more in arrays.items():
        array = group.create_array(name, **options, **more)
        array[:] = RNG.integers(-3000, 3000, SHAPE).astype(more["dtype"])
        np.save(f"{values}/{name}.npy", zarr.open_array(f"{store}/{name}", mode="r")[:])
    names = np.array([["", "α", "long " * 40], ["a b", "tab\tin", "0"]], dtype=object)
    array = group.create_array("names", shape=names.shape, chunks=(1, 2), dtype="str")
    array[:] = names
    np.save(f"{values}/names.npy", np.array(zarr.open_array(f"{store}/names", mode="r")[:], dtype=object))
    metadata = {"shape": SHAPE, "data_type": "bfloat16", "dimension_names": ["y", "x"], "fill_value": 0,
                "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [30, 50]}},
                "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "gzip", "configuration": {"level": 1}}]}
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{store}/brain"}, "create": True, "metadata": metadata}
    brain = tensorstore.open(spec).result()
    brain.write(RNG.standard_normal(SHAPE).astype(brain.dtype.numpy_dtype)).result()
    np.save(f"{values}/brain.npy", np.asarray(brain.read().result()).astype("f4"))
    np.save(f"{values}/scaled.npy", write_scaled(f"{store}/scaled"))


def refuse(store):
    """Prints which arrays can't be opened and read."""
    import zarr

    refused = []
    for name in ("sharded", "checksum", "brain", "scaled", "names"):
        try:
            zarr.open_array(f"{store}/{name}", mode="r")[:]
        except Exception:
            refused.append(name)
    print(zarr.__version__.split(".")[0], *refused)


def same(found, expected, program):
    found = np.asarray(found)
    if found.shape != expected.shape or not np.array_equal(found, expected):
        sys.exit(f"{program} reads other values: {found}")


def flat(path, name, expected):
    """Numbers: as flat bytes, in a header of NumPy, in GDAL, in the netCDF file of the group, through a map of pages."""
    import warnings

    import netCDF4
    import rasterio

    warnings.simplefilter("ignore", rasterio.errors.NotGeoreferencedWarning)

    dtype = expected.dtype.newbyteorder("<")
    same(np.memmap(f"{path}/{name}/data.raw", dtype, "r", shape=SHAPE), expected, "numpy.memmap")
    same(np.fromfile(f"{path}/{name}/data.raw", dtype).reshape(SHAPE), expected, "numpy.fromfile")
    same(np.load(f"{path}/{name}/data.npy", mmap_mode="r"), expected, "numpy.load")
    with rasterio.open(f"{path}/{name}/data.vrt") as raster:
        same(raster.read(1), expected, "GDAL")
    with netCDF4.Dataset(f"{path}/dataset.nc") as dataset:
        dataset.set_auto_mask(False)
        same(dataset[name][:], expected, "netCDF4")


def brain(path, expected):
    """The upper half of a float32 is a bfloat16: any program with bit shifts reads it."""
    stored = np.memmap(f"{path}/brain/data.raw", "<u2", "r", shape=SHAPE)
    same((stored.astype("<u4") << 16).view("<f4"), expected, "numpy.memmap")


verb, *arguments = sys.argv[1:]
if verb in ("write", "refuse"):
    globals()[verb](*arguments)
else:
    expected = np.load(f"{arguments[1]}/{verb}.npy", allow_pickle=verb == "names")
    if verb == "brain":
        brain(arguments[0], expected)
    elif verb == "names":
        print(json.dumps(expected.ravel().tolist()))
    else:
        flat(arguments[0], verb, expected)
