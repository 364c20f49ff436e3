#!/usr/bin/env python3
"""Changes arrays in place through headers and containers with the libraries for which they exist. Then zarr-python
reads the store, and the values are compared with those that were written.

    headers_written.py MOUNT DIR      (with scripts/requirements/zarr2.txt; geo.py has written DIR, which changes)

Prints a line for each change; exit code 1 after a difference.
"""
import multiprocessing
import os
import sys
import warnings

import netCDF4
import numpy as np
import rasterio
import tifffile
import zarr

warnings.simplefilter("ignore")
MOUNT, DIRECTORY = sys.argv[1:]


def file(key, name):
    return os.path.join(MOUNT, key, name)


def stored(key):
    return zarr.open_array(os.path.join(DIRECTORY, "geo.zarr", key), mode="r")[...]


def holds(what, key, wanted):
    """Checks the values in the store and through each file of the mount."""
    with open(file(key, "data.raw"), "rb") as f:
        flat = f.read()
    found = {"store": stored(key), "data.npy": np.load(file(key, "data.npy")),
             "data.raw": np.frombuffer(flat, wanted.dtype).reshape(wanted.shape)}
    for where, values in found.items():
        if values.dtype != wanted.dtype or not np.array_equal(values, wanted):
            sys.exit(f"{what}: {where} of {key} does not have the written values")
    print(f"{what}: {key}")


def other(key):
    """Returns values that differ from those of the array."""
    values = stored(key)
    return (values[::-1] + 1).astype(values.dtype)


def by_map(key):
    wanted = stored(key)
    mapped = np.load(file(key, "data.npy"), mmap_mode="r+")
    place = tuple(slice(n // 3, None) for n in wanted.shape)
    mapped[place] = wanted[place] = wanted[place] + 7
    mapped.flush()
    del mapped
    holds("numpy.load(mmap_mode='r+')", key, wanted)


def by_open_memmap(key):
    wanted = other(key)
    mapped = np.lib.format.open_memmap(file(key, "data.npy"), mode="r+")
    mapped[...] = wanted
    mapped.flush()
    del mapped
    holds("open_memmap", key, wanted)


def by_save(key):
    wanted = other(key)
    np.save(file(key, "data.npy"), wanted)
    holds("numpy.save", key, wanted)
    for odd in (wanted.T.copy(), wanted.astype("i1" if wanted.dtype != "i1" else "i2")):
        try:
            np.save(file(key, "data.npy"), odd)
        except PermissionError:
            continue
        sys.exit(f"numpy.save of {odd.shape} {odd.dtype} was accepted")
    holds("numpy.save of another shape or dtype is refused", key, wanted)


def by_rasterio(key, name):
    wanted = other(key)
    with rasterio.open(file(key, name), "r+") as raster:
        raster.write(wanted.reshape(-1, *wanted.shape[-2:]))
    holds(f"rasterio, {name}", key, wanted)


def by_tifffile(key):
    wanted = other(key)
    mapped = tifffile.memmap(file(key, "data.tif"), mode="r+")
    mapped[...] = wanted.reshape(mapped.shape)
    mapped.flush()
    del mapped
    holds("tifffile.memmap(mode='r+')", key, wanted)


def by_netcdf(key):
    """Writes through netCDF4. The file is big-endian, also if the array is not."""
    group, name = os.path.split(key)
    wanted = other(key)
    with netCDF4.Dataset(file(group, "dataset.nc"), "r+") as dataset:
        dataset.set_auto_maskandscale(False)
        dataset[name][...] = wanted
        place = (0,) * wanted.ndim
        dataset[name][place] = wanted[place] = 3
    holds("netCDF4, r+", key, wanted)


def write_whole(path, done):
    array, n = zarr.open_array(path, mode="r+"), 0
    while not done.is_set():
        n += 1
        array[...] = n


def while_another_writes(key):
    """Checks that numpy.load never sees a part of a chunk that another process writes."""
    path = os.path.join(DIRECTORY, "geo.zarr", key)
    zarr.open_array(path, mode="r+")[...] = 0
    context = multiprocessing.get_context("spawn")
    done = context.Event()
    writer = context.Process(target=write_whole, args=(path, done))
    writer.start()
    seen, (lines, samples) = set(), zarr.open_array(path).chunks
    try:
        while len(seen) < 20 and writer.is_alive():
            values = np.load(file(key, "data.npy"))
            for i in range(0, values.shape[0], lines):
                for j in range(0, values.shape[1], samples):
                    chunk = set(values[i:i + lines, j:j + samples].flat)
                    if len(chunk) > 1:
                        sys.exit(f"a chunk of {key} was torn: {chunk}")
                    seen |= chunk
    finally:
        done.set()
        writer.join()
    if len(seen) < 20:
        sys.exit(f"the writer of {key} ended")
    print(f"numpy.load while zarr-python writes: {key}, {len(seen)} versions")


def main():
    for key in ("climate/t", "dtypes/be_f4", "orders/f", "orders/holes", "dtypes/le_i8"):
        by_map(key)
    by_open_memmap("southup/tas")
    by_save("utm/bands")
    by_save("dtypes/be_i4")
    for key in ("climate/pr", "dtypes/be_i2"):
        by_rasterio(key, "data.vrt")
        by_tifffile(key)
        by_netcdf(key)
    while_another_writes("orders/holes")


if __name__ == "__main__":
    main()
