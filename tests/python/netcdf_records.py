#!/usr/bin/env python3
"""Opens dataset.nc of a mount, with records, doubles and strings, with netCDF-C (netCDF4), scipy, xarray, NCO and
CDO, appends records to it, and compares the values with those that zarr-python reads from the mounted store.

    netcdf_records.py make DIR             writes the store DIR/growing.zarr
    netcdf_records.py read MOUNT STORE     compares values, dimensions and strings; computes means with ncra and cdo
    netcdf_records.py write MOUNT STORE    changes values of doubles and strings in place
    netcdf_records.py append MOUNT STORE   appends records as netCDF-C, NCO and CDO do
    netcdf_records.py refuse MOUNT STORE   checks that appending is refused and changes nothing
    netcdf_records.py move MOUNT STORE     checks that a header that outgrows its space changes nothing

With zarr 2.18, xarray, netCDF4 and scipy. The groups of the store: mixed (all kinds of arrays), simple (a grid that CDO
reads), series (a single record variable of three bytes).
"""
import os
import shutil
import subprocess
import sys
import tempfile
import warnings

import numpy as np
import scipy.io
import xarray
import zarr
from netcdf import opened, smooth
from numcodecs import VLenUTF8, Zlib

warnings.simplefilter("ignore")

COUNT = 3


def add(group, name, values, dimensions, **attributes):
    values = np.asarray(values)
    codec = {"object_codec": VLenUTF8(), "fill_value": ""} if values.dtype == object else {"fill_value": attributes.pop("fill", None)}
    chunks = tuple(max(1, (n + 1) // 2) for n in values.shape)
    array = group.create_dataset(name, data=values, chunks=chunks, compressor=Zlib(1), **codec)
    array.attrs.update({"_ARRAY_DIMENSIONS": dimensions, **attributes})


def grid(group):
    add(group, "time", np.arange(COUNT, dtype="<i8"), ["time"], units="days since 2000-01-01", calendar="standard")
    add(group, "lat", 50 - 0.5 * np.arange(5), ["lat"], units="degrees_north", standard_name="latitude")
    add(group, "lon", (10 + 0.25 * np.arange(7)).astype("f4"), ["lon"], units="degrees_east", standard_name="longitude")
    add(group, "t", smooth((COUNT, 5, 7), "<f4") + 250, ["time", "lat", "lon"], units="K")
    add(group, "packed", smooth((COUNT, 5, 7), "<i2"), ["time", "lat", "lon"], scale_factor=0.5, add_offset=250.0)


def make(directory):
    root = zarr.open_group(os.path.join(directory, "growing.zarr"), "w")
    grid(root.create_group("simple"))
    mixed = root.create_group("mixed")
    grid(mixed)
    add(mixed, "count", smooth((COUNT,), "<u2") + 65000, ["time"], fill=9)
    add(mixed, "large", smooth((COUNT,), ">u8") * 4096 + np.uint64(1 << 63), ["time"], fill=0)
    add(mixed, "mask", smooth((COUNT, 5), "|u1") + 140, ["time", "lat"])
    add(mixed, "wide", smooth((5,), ">u4") + np.uint32(1 << 31), ["x"])
    add(mixed, "ids", smooth((5,), "<i8") - (1 << 40), ["x"])
    add(mixed, "stamp", np.array(["2000-01-01T12", "1969-12-31T00", "NaT", "2020-02-29"], "M8[s]"), ["y"])
    add(mixed, "label", np.array(["a", "größe", ""], "<U5"), ["time"])
    add(mixed, "station", np.array(["Potsdam", "Wien", "München", "東京"], ">U7"), ["y"])
    add(mixed, "remark", np.array(["short", "", "a longer one: ä", "x"], object), ["y"])
    add(mixed, "note", np.array(["first", "2nd", "ß"], object), ["time"])
    # the file has no variable for this array, but the array has its dimension
    add(mixed, "complex", smooth((COUNT, 2), "<c8"), ["time", "side"], fill=0)
    add(mixed, "half", smooth((COUNT, 2), "<f2"), ["time", "side"], fill=0)
    add(mixed, "elevation", smooth((5, 7), "<f8"), ["lat", "lon"])
    add(root.create_group("series"), "s", smooth((COUNT, 3), "|i1"), ["time", "x"])


def text(values):
    """Returns the strings of an array of characters, whose last dimension is the string."""
    return np.array([b"".join(row).rstrip(b"\0").decode() for row in np.asarray(values).reshape(-1, values.shape[-1])])


def same(values, array, name):
    want = array[...]
    if want.dtype.kind in "UO":
        np.testing.assert_array_equal(text(values), [str(word) for word in want.ravel()], name)
    else:
        want = want.view("i8") if want.dtype.kind == "M" else want
        np.testing.assert_array_equal(np.asarray(values), want.astype(values.dtype), name)
        np.testing.assert_array_equal(np.asarray(values).astype(want.dtype), want, name)


def letters(text, width):
    return np.array([bytes([byte]) for byte in text.encode().ljust(width, b"\0")])


TYPES = {"count": "f8", "large": "f8", "mask": "i1", "wide": "f8", "ids": "f8", "stamp": "f8", "time": "f8", "half": "f4"}


def read(mount, store):
    for name in ["simple", "mixed", "series"]:
        group, file = zarr.open_group(store, "r", path=name), os.path.join(mount, name, "dataset.nc")
        count = len(group["s" if name == "series" else "time"])
        with opened(file) as dataset:
            assert dataset.data_model == "NETCDF3_64BIT_OFFSET", dataset.data_model
            assert dataset.dimensions["time"].isunlimited() and len(dataset.dimensions["time"]) == count
            assert set(dataset.variables) == set(group.array_keys()) - {"complex"}, list(dataset.variables)
            for key, variable in dataset.variables.items():
                same(variable[...], group[key], key)
                assert variable.dtype.str[1:] == TYPES.get(key, variable.dtype.str[1:]), (key, variable.dtype)
                assert ("time" in variable.dimensions) == ("time" in group[key].attrs["_ARRAY_DIMENSIONS"])
            if name == "mixed":
                left = dataset.zarrfs_left_out.splitlines()
                assert [line.split(":")[0] for line in left] == ["complex"], left
        # another implementation of the format
        with scipy.io.netcdf_file(file, mmap=False) as dataset:
            for key, variable in dataset.variables.items():
                values = np.array(variable.data)
                same(values.astype(values.dtype.newbyteorder("=")), group[key], key)
        with xarray.open_dataset(file) as shown, xarray.open_zarr(store, group=name, consolidated=False) as stored:
            # xarray reads the fill value as a missing value
            stored = stored.assign({key: stored[key].fillna("") for key in ["remark", "note"] if key in stored})
            xarray.testing.assert_equal(shown.load(), stored.load().drop_vars("complex", errors="ignore"))
        print(f"{name}: {count} records equal")
    mean = zarr.open_array(os.path.join(store, "simple/t"))[...].mean(axis=0)
    for command in [["ncra", "-O", "-v", "t"], ["cdo", "-s", "-O", "timmean", "-selname,t"]]:
        if shutil.which(command[0]):
            with tempfile.TemporaryDirectory() as folder:
                run(*command, os.path.join(mount, "simple/dataset.nc"), os.path.join(folder, "mean.nc"))
                with opened(os.path.join(folder, "mean.nc")) as dataset:
                    np.testing.assert_allclose(dataset["t"][0], mean, 1e-6)
        else:
            print(f"skipped: {command[0]} is not installed")


def write(mount, store):
    """Changes one value of every variable, and writes texts of other lengths."""
    with opened(os.path.join(mount, "mixed/dataset.nc"), "r+") as dataset:
        for name in ["count", "mask", "wide", "ids", "large", "stamp", "time", "t", "packed"]:
            variable = dataset[name]
            variable[(1,) * variable.ndim] = 42
        dataset["station"][1] = letters("Öl", 28)
        dataset["label"][0] = letters("größe", 20)
    group = zarr.open_group(store, "r", path="mixed")
    for name in ["count", "mask", "wide", "ids", "large", "time", "t", "packed"]:
        assert group[name][(1,) * group[name].ndim] == 42, name
    assert group["stamp"][1] == np.datetime64(42, "s")
    assert group["station"][1] == "Öl" and group["label"][0] == "größe" and group["station"][2] == "München"
    for name, value in [("count", -1), ("ids", 0.5), ("wide", 2.0**32)]:
        refused(os.path.join(mount, "mixed/dataset.nc"), lambda dataset: dataset[name].__setitem__(0, value))
    long = letters("123456", 20)
    refused(os.path.join(mount, "mixed/dataset.nc"), lambda dataset: dataset["label"].__setitem__(0, long))
    refused(os.path.join(mount, "mixed/dataset.nc"), lambda dataset: dataset["remark"].__setitem__((0, 0), b"S"))
    read(mount, store)


def refused(path, change):
    """Checks that a change is refused. It runs in another process: if closing a file fails, netCDF4 tries again and
    crashes."""
    with open(path, "rb") as file:
        before = file.read()
    pid = os.fork()
    if pid == 0:
        try:
            dataset = opened(path, "r+")
            change(dataset)
            dataset.sync()
            dataset.close()
        except (OSError, RuntimeError) as e:
            print(f"refused: {e}", flush=True)
            os._exit(3)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3, "was not refused"
    with open(path, "rb") as file:
        assert file.read() == before, "values have changed"


def run(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, **options)
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


def lengths(store, name):
    group = zarr.open_group(store, "r", path=name)
    return {len(array) for _, array in group.arrays() if array.attrs["_ARRAY_DIMENSIONS"][0] == "time"}


def put(dataset, first, count):
    """Writes records from number `first` on."""
    at = slice(first, first + count)
    dataset["t"][at] = np.arange(count * 35).reshape(count, 5, 7) + first
    dataset["time"][at] = np.arange(first, first + count)
    dataset["packed"][at] = np.full((count, 5, 7), first)


def append(mount, store):
    simple, mixed = (os.path.join(mount, name, "dataset.nc") for name in ["simple", "mixed"])
    with opened(simple, "r+") as dataset:
        put(dataset, 3, 2)
        dataset.history = "appended"
    check(store, 3, 2)
    assert zarr.open_group(store, "r", path="simple").attrs["history"] == "appended"
    with opened(simple, "r+") as dataset:
        dataset.set_fill_off()
        for i in range(5, 40):
            put(dataset, i, 1)
            if i % 10 == 0:
                dataset.sync()
    check(store, 39, 1)
    with opened(mixed, "r+") as dataset:
        put(dataset, 3, 3)
        dataset["count"][4] = 65535
        dataset["label"][5] = letters("grün!", 20)
    group = zarr.open_group(store, "r", path="mixed")
    assert lengths(store, "mixed") == {6}, lengths(store, "mixed")
    # items that were not written have the fill value of the array
    np.testing.assert_array_equal(group["count"][3:], [9, 65535, 9])
    np.testing.assert_array_equal(group["large"][3:], np.zeros(3))
    assert list(group["label"][3:]) == ["", "", "grün!"]
    with opened(os.path.join(mount, "series/dataset.nc"), "r+") as dataset:
        dataset["s"][3:1000] = 5
    assert zarr.open_group(store, "r", path="series")["s"].shape == (1000, 3)
    assert (zarr.open_group(store, "r", path="series")["s"][3:] == 5).all()
    with_programs(store, simple)
    read(mount, store)


def check(store, first, count):
    group = zarr.open_group(store, "r", path="simple")
    assert lengths(store, "simple") == {first + count}, lengths(store, "simple")
    np.testing.assert_array_equal(group["time"][...], np.arange(first + count))
    np.testing.assert_array_equal(group["t"][first:], np.arange(count * 35).reshape(count, 5, 7) + first)
    np.testing.assert_array_equal(group["packed"][first:], np.full((count, 5, 7), first))


def with_programs(store, path):
    """Appends with NCO, in place and by renaming a new file, and with CDO."""
    commands = [("ncrcat", "-h", "--rec_apn"), ("ncrcat", "--rec_apn", "--no_tmp_fl"), ("cdo", "-s", "cat")]
    with tempfile.TemporaryDirectory() as folder:
        for command in commands:
            if not shutil.which(command[0]):
                print(f"skipped: {command[0]} is not installed")
                continue
            count, more = len(zarr.open_array(os.path.join(store, "simple/time"))), os.path.join(folder, "more.nc")
            run("ncks", "-O", "-d", "time,0,1", path, more)
            with opened(more, "r+") as dataset:
                dataset["t"][...] = np.arange(70).reshape(2, 5, 7) + count
                dataset["time"][...] = [count, count + 1]
                dataset["packed"][...] = count
            print(*command, run(*command, more, path))
            check(store, count, 2)
        left = set(os.listdir(os.path.join(store, "simple")))
        assert left <= {".zgroup", ".zattrs", "time", "lat", "lon", "t", "packed"}, left


def refuse(mount, store):
    path = os.path.join(mount, "simple/dataset.nc")
    refused(path, lambda dataset: put(dataset, 3, 2))
    with tempfile.TemporaryDirectory() as folder:
        more = os.path.join(folder, "more.nc")
        run("ncks", "-O", path, more)
        done = subprocess.run(["ncrcat", "-h", "--rec_apn", more, path], capture_output=True, text=True)
        assert done.returncode != 0 and "File too large" in done.stderr, done.stderr
    # other changes of the same file are accepted
    run("ncatted", "-a", "units,t,o,c,kelvin", path)
    with opened(path, "r+") as dataset:
        put(dataset, 1, 2)
    check(store, 1, 2)


def move(mount, store):
    """Sets attributes that the header cannot hold: netCDF-C moves all records, the last one first, before it writes the
    header."""
    path = os.path.join(mount, "simple/dataset.nc")
    refused(path, lambda dataset: dataset.setncattr("new", "x" * 70000))

    def both(dataset):
        put(dataset, 3, 2)
        dataset.setncattr("new", "x" * 70000)

    refused(path, both)
    assert lengths(store, "simple") == {3}
    with opened(path, "r+") as dataset:
        # a long header that still fits, which netCDF-C writes in several pieces
        dataset.setncattr("new", "x" * 30000)
        dataset["t"].setncattr("note", "x" * 20000)
        del dataset["t"].units
    group = zarr.open_group(store, "r", path="simple")
    assert group.attrs["new"] == "x" * 30000 and "units" not in group["t"].attrs
    run("ncatted", "-a", "new,global,d,,", "-a", "units,t,c,c,K", "-a", "level,t,c,f,2.5", path)
    group = zarr.open_group(store, "r", path="simple")
    assert "new" not in group.attrs and "ncatted" in group.attrs["history"]
    assert group["t"].attrs["units"] == "K" and group["t"].attrs["level"] == 2.5
    read(mount, store)


if __name__ == "__main__":
    verbs = {"make": make, "read": read, "write": write, "append": append, "refuse": refuse, "move": move}
    verbs[sys.argv[1]](*sys.argv[2:])
