#!/usr/bin/env python3
"""Writes netCDF and NPY files with netCDF-C, scipy, xarray, NumPy and ncgen, and compares the arrays that they became.

    ingest.py make DIR               writes the files, and beside each NAME.nc its content as netCDF-C reads it
    ingest.py compare DIR STORES     compares STORES/NAME with each file, by zarr-python and xarray of any version
    ingest.py shown DIR MOUNT        compares NAME.nc.nc in a mount with each NAME.nc, by netCDF-C but for the types of
                                     attributes, and NAME.npy.npy with each NAME.npy
    ingest.py write DIR MOUNT        has programs write the same files into both directories, and compares the files
    ingest.py written DIR STORE      compares the groups and arrays of these files

`make` needs netCDF4, scipy and xarray.
"""
import os
import pickle
import subprocess
import sys
import warnings

import numpy as np
import xarray
import zarr

warnings.simplefilter("ignore")

CLASSIC = {"i1": "i1", "c": "S1", "i2": "i2", "i4": "i4", "f4": "f4", "f8": "f8"}
WIDE = CLASSIC | {"u1": "u1", "u2": "u2", "u4": "u4", "i8": "i8", "u8": "u8"}
FORMATS = {"cdf1": "NETCDF3_CLASSIC", "cdf2": "NETCDF3_64BIT_OFFSET", "cdf5": "NETCDF3_64BIT_DATA"}
CDL = {
    "nothing": "netcdf x { }",
    "attributes": 'netcdf x { :t = "a\\nb" ; :empty = "" ; :b = 1b, -2b ; :f = 1.5f ; :d = 1e300 ; :m = NaN ; }',
    "no_records": "netcdf x { dimensions: t = UNLIMITED ; y = 2 ; variables: float a(t, y) ; int b(t) ; }",
    "scalars": "netcdf x { variables: int i ; char c ; double d ; data: i = 7 ; c = \"q\" ; d = -0.0 ; }",
    "odd_names": 'netcdf x { dimensions: a\\ b = 2 ; größe = 2 ; variables: int x.y(a\\ b) ; byte größe(größe) ; '
                 'short _u(a\\ b) ; _u:odd-name = 3s ; data: x.y = 1, 2 ; größe = 3, -4 ; _u = 5, 6 ; }',
    "one_record_variable": "netcdf x { dimensions: t = UNLIMITED ; n = 3 ; variables: byte b(t, n) ; "
                           "data: b = 1, 2, 3, 4, 5, 6, 7, 8, 9 ; }",
    "one_short_record": "netcdf x { dimensions: t = UNLIMITED ; variables: short s(t) ; data: s = 1, 2, 3 ; }",
    "mixed_records": "netcdf x { dimensions: t = UNLIMITED ; n = 3 ; variables: byte b(t, n) ; short s(t) ; double d(n) ; "
                     'b:_FillValue = -1b ; data: b = 1, 2, 3, _, 5, 6 ; s = 1, 2 ; d = 0.5, 1e10, -2 ; }',
}
DTYPES = ["|b1", "|i1", "|u1", "<i2", ">i4", "<i8", ">u2", "<u4", ">u8", "<f2", ">f4", "<f8", "<c8", ">c16", "|S5", "<U3", ">U2",
          "<M8[s]", "<m8[ms]"]


def values(dtype, shape, seed):
    rng = np.random.default_rng(seed)
    dtype = np.dtype(dtype)
    count = int(np.prod(shape, dtype=int))
    if dtype.kind in "SU":
        letters = np.array(list("abcxyz")).astype(dtype.char + "1")
        flat = letters[rng.integers(0, 6, (count, dtype.itemsize // letters.itemsize))]
        flat = np.array(["".join(map(str, row)) if dtype.kind == "U" else b"".join(row) for row in flat], dtype)
    elif dtype.kind == "V":
        flat = np.zeros(count, dtype)
        for name in dtype.names:
            flat[name] = values(dtype[name], (count,), seed)
    elif dtype.kind in "fc":
        flat = rng.normal(size=count).astype(dtype)
        flat[count // 2:count // 2 + 1] = np.nan
    else:
        flat = rng.integers(0, 2 if dtype.kind == "b" else 120, count).astype(dtype)
    return flat.reshape(shape)


def by_netcdf_c(path, kinds, file_format, is_record):
    import netCDF4
    with netCDF4.Dataset(path, "w", format=file_format) as file:
        file.createDimension("t", None if is_record else 5)
        file.createDimension("y", 3)
        file.createDimension("x", 7)
        file.title = "größe"
        file.numbers = np.array([1, 2, 3], "i2")
        for seed, (name, kind) in enumerate(kinds.items()):
            for shape in [("t", "y", "x"), ("x",), ()]:
                fill = b"?" if kind == "S1" else np.array(99, kind)
                variable = file.createVariable(f"{name}_{len(shape)}", kind, shape, fill_value=fill if shape else None)
                variable.set_auto_maskandscale(False)
                data = values(kind, tuple({"t": 5, "y": 3, "x": 7}[n] for n in shape), seed)
                variable[...] = data
                variable.units = "K"
                if kind != "S1":
                    variable.valid_range = np.array([0, 100], kind)


def by_scipy(path, version):
    import scipy.io
    with scipy.io.netcdf_file(path, "w", version=version) as file:
        file.createDimension("time", None)
        file.createDimension("x", 4)
        file.history = "scipy"
        for name, kind in [("a", "f4"), ("b", "i2"), ("c", "f8")]:
            variable = file.createVariable(name, kind, ("time", "x"))
            for record in range(3):
                variable[record, :] = values(kind, (4,), record)
        file.createVariable("x", "i4", ("x",))[:] = np.arange(4)


def by_xarray(directory):
    hours = np.datetime64("2020-01-01", "ns") + np.arange(5) * np.timedelta64(1, "h")
    plain = values("<f8", (5, 60, 70), 1)
    cases = {
        "packed": (xarray.Dataset({"p": (("t", "y", "x"), plain)}),
                   {"p": {"dtype": "i2", "scale_factor": 0.001, "add_offset": 1.0, "_FillValue": -32768}}),
        "unsigned": (xarray.Dataset({"p": ("x", np.arange(200, dtype="f8"))}),
                     {"p": {"dtype": "i1", "_Unsigned": "true", "_FillValue": -1, "scale_factor": 2.0}}),
        "nan": (xarray.Dataset({"p": (("y", "x"), plain[0].astype("f4"), {"missing_value": np.float32("nan")})}), {}),
        "strings": (xarray.Dataset({"s": ("n", np.array(["a", "größe", ""]))}, {"n": [1, 2, 3]}), {}),
        "times": (xarray.Dataset({"v": ("t", np.arange(5.0))}, {"t": hours}), {}),
        "booleans": (xarray.Dataset({"b": ("n", np.array([True, False, True]))}), {}),
        "coordinates": (xarray.Dataset({"v": (("y", "x"), plain[0])},
                                       {"lat": (("y", "x"), plain[1]), "height": 2.0}), {}),
        "large": (xarray.Dataset({"v": (("t", "y", "x"), values("<f4", (40, 300, 400), 3))}), {}),
    }
    for name, (data, encoding) in cases.items():
        unlimited = ["t"] if "t" in data.dims else []
        path = os.path.join(directory, f"xarray_{name}.nc")
        data.to_netcdf(path, format="NETCDF3_64BIT", encoding=encoding, unlimited_dims=unlimited)


def make(directory):
    for name, file_format in FORMATS.items():
        for is_record in [False, True]:
            path = os.path.join(directory, f"{name}_{'records' if is_record else 'fixed'}.nc")
            by_netcdf_c(path, WIDE if name == "cdf5" else CLASSIC, file_format, is_record)
    for version in [1, 2]:
        by_scipy(os.path.join(directory, f"scipy_{version}.nc"), version)
    by_xarray(directory)
    for name, text in CDL.items():
        path = os.path.join(directory, f"ncgen_{name}.nc")
        subprocess.run(["ncgen", "-k", "cdf5", "-o", path], input=text.encode(), check=True)
    for name in os.listdir(directory):
        if name.endswith(".nc"):
            record(os.path.join(directory, name))
    make_npy(directory)


def record(path):
    """Writes the content of a netCDF file, as netCDF-C reads it, beside it."""
    import netCDF4
    with netCDF4.Dataset(path) as file:
        file.set_auto_maskandscale(False)
        file.set_auto_chartostring(False)
        content = {name: (variable.dimensions, np.asarray(variable[...]), {key: variable.getncattr(key) for key in variable.ncattrs()})
                   for name, variable in file.variables.items()}
        with open(path + ".pickle", "wb") as out:
            pickle.dump((content, {key: file.getncattr(key) for key in file.ncattrs()}), out)


def make_npy(directory):
    for seed, dtype in enumerate(DTYPES):
        for order, shape in [("C", (5, 6, 7)), ("F", (4, 9)), ("C", ()), ("C", (0, 3))]:
            array = np.asarray(values(dtype, shape, seed), order=order)
            name = np.dtype(dtype).str.replace("|", "").replace("<", "le_").replace(">", "be_").replace("[", "_").rstrip("]")
            np.save(os.path.join(directory, f"npy_{name}_{order}{len(shape)}{array.size}.npy"), array)
    np.save(os.path.join(directory, "npy_large_F.npy"), np.asfortranarray(values("<f4", (300, 70, 80), 1)))
    with open(os.path.join(directory, "npy_version_3.npy"), "wb") as file:
        np.lib.format.write_array(file, values(">i4", (4, 5), 1), version=(3, 0))


def same(expected, found, what):
    found = np.asarray(found)
    assert expected.shape == found.shape and expected.dtype.newbyteorder("=") == found.dtype.newbyteorder("="), \
        f"{what}: {expected.dtype} {expected.shape}, {found.dtype} {found.shape}"
    assert expected.astype(expected.dtype.newbyteorder("=")).tobytes() == \
        np.ascontiguousarray(found.astype(found.dtype.newbyteorder("="))).tobytes(), what


def compare(directory, stores):
    count = 0
    for name in sorted(os.listdir(directory)):
        path, store = os.path.join(directory, name), os.path.join(stores, name)
        if name.endswith(".npy") and os.path.isdir(store):
            same(np.load(path), zarr.open_array(store, mode="r")[...], name)
        elif name.endswith(".nc"):
            with open(path + ".pickle", "rb") as file:
                content, attributes = pickle.load(file)
            compare_group(name, content, attributes, store)
        else:
            continue
        count += 1
    print(count)


def compare_group(name, content, attributes, store):
    group = zarr.open_group(store, mode="r")
    assert set(group.array_keys()) == set(content), name
    for variable, (_, expected, its) in content.items():
        same(expected, group[variable][...], f"{name}: {variable}")
        if expected.dtype == "S1" and os.path.exists(os.path.join(store, "zarr.json")):
            # xarray cannot read the attribute for characters of Zarr v3
            its.pop("_FillValue", None)
    raw = xarray.Dataset({n: (dims, data, a) for n, (dims, data, a) in content.items()}, attrs=attributes)
    expected = xarray.decode_cf(raw)
    with xarray.open_zarr(store, consolidated=False) as found:
        try:
            xarray.testing.assert_identical(expected, found.load())
        except Exception as e:
            raise AssertionError(f"{name}: {e}") from e


def shown(directory, mount):
    import netCDF4
    count = 0
    for name in sorted(os.listdir(directory)):
        if name.endswith(".npy"):
            same(np.load(os.path.join(directory, name)), np.load(os.path.join(mount, name + ".npy")), name)
            count += 1
        if not name.endswith(".nc"):
            continue
        with open(os.path.join(directory, name + ".pickle"), "rb") as file:
            content, attributes = pickle.load(file)
        with netCDF4.Dataset(os.path.join(mount, name + ".nc")) as found:
            found.set_auto_maskandscale(False)
            found.set_auto_chartostring(False)
            assert_attributes(attributes, found, name)
            for variable, (dimensions, expected, its) in content.items():
                same(expected, found[variable][...], f"{name}: {variable}")
                assert found[variable].dimensions == dimensions, f"{name}: {variable}"
                if expected.dtype == "S1":
                    # the fill value of characters is not shown as one that stands for missing values
                    its.pop("_FillValue", None)
                assert_attributes(its, found[variable], f"{name}: {variable}")
        count += 1
    print(count)


def assert_attributes(expected, found, what):
    for key, value in expected.items():
        again = found.getncattr(key)
        is_float = np.asarray(value).dtype.kind == "f"
        assert np.array_equal(np.atleast_1d(again), np.atleast_1d(value), equal_nan=is_float), f"{what}:{key}: {value!r} {again!r}"


def programs(directory):
    """Has programs write files in their usual ways: all at once, in pieces, and by opening a file again."""
    import netCDF4
    import scipy.io
    path = lambda name: os.path.join(directory, name)
    with netCDF4.Dataset(path("records.nc"), "w", format="NETCDF3_CLASSIC") as file:
        file.createDimension("t", None)
        file.createDimension("x", 5)
        variable = file.createVariable("v", "f4", ("t", "x"), fill_value=-9)
        for record in range(3):
            variable[record] = record
            # the child closes its copy of the descriptor
            subprocess.run(["true"], close_fds=False, check=True)
    with netCDF4.Dataset(path("records.nc"), "r+") as file:
        file["v"][1, 2] = 77
        file["v"].units = "km"
    with netCDF4.Dataset(path("records.nc"), "a") as file:
        file["v"][3] = 5
        file.createVariable("w", "f8", ("x",))[:] = np.arange(5)
    with scipy.io.netcdf_file(path("scipy.nc"), "w", version=2) as file:
        file.createDimension("x", 4)
        file.createVariable("q", "i4", ("x",))[:] = range(4)
        file.title = "scipy"
    times = np.datetime64("2020-01-01", "ns") + np.arange(5) * np.timedelta64(1, "h")
    data = xarray.Dataset({"p": (("t", "y"), values("<f8", (5, 6), 1))}, {"t": times})
    for engine in ["scipy", "netcdf4"]:
        data.to_netcdf(path(f"{engine}.x.nc"), format="NETCDF3_64BIT", engine=engine)
    (data * 2).to_netcdf(path("scipy.x.nc"), format="NETCDF3_64BIT", engine="scipy")
    np.save(path("saved.npy"), values("<f4", (7, 8), 2))
    mapped = np.lib.format.open_memmap(path("mapped.npy"), mode="w+", dtype="i4", shape=(300,))
    mapped[:] = np.arange(300)
    mapped.flush()
    del mapped
    mapped = np.load(path("mapped.npy"), mmap_mode="r+")
    mapped[7] = 1000
    mapped.flush()
    del mapped


WRITTEN = ["records.nc", "scipy.nc", "scipy.x.nc", "netcdf4.x.nc", "saved.npy", "mapped.npy"]


def write(directory, mount):
    import netCDF4
    programs(directory)
    programs(mount)
    for name in WRITTEN:
        one, other = os.path.join(directory, name), os.path.join(mount, name)
        if name.endswith(".npy"):
            same(np.load(one), np.load(other), name)
            continue
        record(one)
        with open(one + ".pickle", "rb") as file:
            content, attributes = pickle.load(file)
        with netCDF4.Dataset(one) as expected, netCDF4.Dataset(other) as found:
            assert [(n, len(d), d.isunlimited()) for n, d in expected.dimensions.items()] == \
                [(n, len(d), d.isunlimited()) for n, d in found.dimensions.items()], name
            found.set_auto_maskandscale(False)
            found.set_auto_chartostring(False)
            assert_attributes(attributes, found, name)
            for variable, (dimensions, values_, its) in content.items():
                same(values_, found[variable][...], f"{name}: {variable}")
                assert found[variable].dimensions == dimensions, f"{name}: {variable}"
                assert_attributes(its, found[variable], f"{name}: {variable}")


def written(directory, store):
    for name in WRITTEN:
        path, node = os.path.join(directory, name), os.path.join(store, os.path.splitext(name)[0])
        if name.endswith(".npy"):
            same(np.load(path), zarr.open_array(node, mode="r")[...], name)
        else:
            with open(path + ".pickle", "rb") as file:
                compare_group(name, *pickle.load(file), node)


if __name__ == "__main__":
    {"make": make, "compare": compare, "shown": shown, "write": write, "written": written}[sys.argv[1]](*sys.argv[2:])
