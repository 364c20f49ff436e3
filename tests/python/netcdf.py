#!/usr/bin/env python3
"""Opens dataset.nc of a mount with netCDF-C (netCDF4), scipy and xarray, and compares it with the mounted store.

    netcdf.py make DIR             writes the store DIR/groups.zarr
    netcdf.py read MOUNT STORE     compares every group with what zarr-python and xarray read from the store
    netcdf.py write MOUNT STORE    changes values of every variable in place, and reads them with zarr-python
    netcdf.py refuse MOUNT STORE   checks that changes of the layout are refused and change nothing
    netcdf.py edit MOUNT STORE     changes attributes and values as netCDF-C and NCO do
    netcdf.py nco MOUNT STORE      does the same with NCO itself

With zarr 2.18, xarray, netCDF4 and scipy. The groups of the store: weather (by xarray, fits CDF-2), wide (needs CDF-5),
odd (names, attributes and arrays that netCDF cannot represent), large (four times 800 KB), tree/leaf (coordinates in the group
above).
"""
import json
import os
import subprocess
import sys
import warnings

import netCDF4
import numpy as np
import scipy.io
import xarray
import zarr
from numcodecs import Blosc, JSON, Zlib

warnings.simplefilter("ignore")

# dtypes of Zarr, and the types that netCDF has for them
KINDS = {"i1": "i1", "u1": "u1", "b1": "i1", "i2": "i2", "i4": "i4", "f2": "f4", "f4": "f4", "f8": "f8",
         "u2": "u2", "u4": "u4", "i8": "i8", "u8": "u8", "M8": "i8"}


def smooth(shape, dtype):
    return (np.arange(np.prod(shape, dtype=int)) % 113).reshape(shape).astype(dtype)


def make(directory):
    path = os.path.join(directory, "groups.zarr")
    root = zarr.open_group(path, "w")
    root.attrs["title"] = "groups"
    weather(path)
    wide(root.create_group("wide"))
    odd(root.create_group("odd"), path)
    large(root.create_group("large"))
    tree(root.create_group("tree"))


def weather(path):
    coordinates = {
        "time": ("time", np.arange(4, dtype="i8"), {"units": "days since 2000-01-01", "calendar": "standard"}),
        "lat": ("lat", 50 - 0.5 * np.arange(6), {"units": "degrees_north"}),
        "lon": ("lon", (10 + 0.25 * np.arange(10)).astype("f4"), {"units": "degrees_east"}),
        "station": ("station", np.array([b"Potsdam", b"Wien", b""])),
    }
    t = smooth((4, 6, 10), "f4") + np.float32(250)
    t[1, 2, 3] = np.nan
    packed = smooth((4, 6, 10), "f8") * 0.5 + 250
    packed[0, 0, :] = np.nan
    arrays = {
        "t": (("time", "lat", "lon"), t, {"units": "K", "cell_methods": "time: mean", "grid_mapping": "crs"}),
        "packed": (("time", "lat", "lon"), packed, {"long_name": "größe"}),
        "land": (("lat", "lon"), smooth((6, 10), "u1") > 50),
        "levels": (("lat", "lon"), smooth((6, 10), "u1") + np.uint8(140), {"levels": [1, 2, 3], "share": 0.5}),
        "flags": (("lat", "lon"), smooth((6, 10), "i1"), {"flag_meanings": "a b"}),
        "crs": ((), np.int32(0), {"grid_mapping_name": "latitude_longitude"}),
    }
    encoding = {
        "t": {"chunks": (3, 4, 4), "compressor": Blosc("zstd")},
        "packed": {"dtype": "i2", "scale_factor": 0.5, "add_offset": 250.0, "_FillValue": -999, "chunks": (2, 6, 10)},
    }
    group = xarray.Dataset(arrays, coordinates, {"Conventions": "CF-1.10", "n": 7})
    group.to_zarr(path, group="weather", encoding=encoding, consolidated=False)


def add(group, name, values, dimensions=None, **options):
    options.setdefault("chunks", tuple(max(1, (n + 1) // 2) for n in values.shape) or None)
    options.setdefault("fill_value", None)
    array = group.create_dataset(name, data=values, compressor=Zlib(1), overwrite=True, **options)
    if dimensions is not None:
        array.attrs["_ARRAY_DIMENSIONS"] = list(dimensions)
    return array


def wide(group):
    group.attrs["large"] = 1 << 40
    for dtype in ["<u2", ">u2", "<u4", ">u4", "<i8", ">i8", "<u8", ">u8", "|u1", "|i1", "|b1", "<f8", ">f8", ">f4", ">i2"]:
        name = dtype.replace("<", "little_").replace(">", "big_").replace("|", "")
        add(group, name, smooth((5, 7), dtype), "yx", order="F" if dtype[0] == ">" else "C")
    add(group, "time", np.array(["2000-01-01T12", "1969-12-31T00", "NaT"], "M8[s]"), ["time"])
    add(group, "missing", smooth(5, "<u4"), "y", fill_value=7).attrs["valid_range"] = [0, 100]


def odd(group, path):
    group.attrs.update({"list": [1, 2.5], "words": ["a", "b"], "object": {"a": None}, "a/b": 1, "a_b": 2})
    add(group, "plain", smooth((3, 4), "<i2"))
    add(group, "square", smooth((3, 3), "<i2"))
    add(group, "x", smooth(4, "<f4"), ["x"])
    add(group, "longer", smooth((3, 5), "<f4"), ["y", "x"])
    add(group, "ends with a space ", smooth(2, "<i4"))
    add(group, "-begins", smooth(2, "<i4"))
    add(group, "größe", smooth(2, "<i4"), ["größe"])
    add(group, "letters", np.array([[b"a", b"bc"], [b"", b"d"]], "S3"))
    add(group, "letter", np.array([b"a", b"b", b""], "S1"), ["y"])
    # the characters of netCDF, whose last dimension is the letters
    add(group, "chars", np.array([list("abc\0"), list("de\0\0"), list("fghi")], "S1"), ["y", "strlen"])
    add(group, "text", np.array(["b", "ä€"]))
    add(group, "half", smooth(2, ">f2"))
    for name, values in {"complex": smooth(2, "<c8"), "empty": np.zeros((0, 3), "i4"), "span": np.array([1, 2], "m8[s]"),
                         "pair": np.zeros(2, [("a", "i4"), ("b", "f8")])}.items():
        add(group, "no " + name, values)
    group.create_dataset("no object", data=np.array(["a", 1], object), object_codec=JSON())
    add(group, "no codec", smooth(2, "<i4"))
    change(path, "odd/no codec/.zarray", lambda document: document.update(compressor={"id": "unheard-of"}))
    add(group, "no sense", smooth(2, "<i4"))
    change(path, "odd/no sense/.zarray", lambda document: document.pop("dtype"))


def change(path, key, how):
    file = os.path.join(path, key)
    with open(file) as text:
        document = json.load(text)
    how(document)
    with open(file, "w") as text:
        json.dump(document, text)


def large(group):
    for name in "abcd":
        add(group, name, smooth((500, 400), "<i4"), ["y", "x"], chunks=(100, 400))


def tree(group):
    add(group, "lat", 50 - 0.5 * np.arange(6), ["lat"]).attrs["units"] = "degrees_north"
    add(group, "lon", smooth(10, "<f4"), ["lon"])
    leaf = group.create_group("leaf")
    add(leaf, "t", smooth((6, 10), "<i2"), ["lat", "lon"])
    add(leaf, "shorter", smooth(3, "<i2"), ["lat"])


def has_type(array):
    kind = array.dtype.str[1:3]
    return array.dtype.kind in "SU" and array.dtype.itemsize > 0 or kind in KINDS and "[25" not in array.dtype.str


def expected(group):
    """Returns the arrays that netCDF can represent, by their names in the file."""
    found = {}
    for name in os.listdir(os.path.join(group.store.path, group.path)):
        try:
            array = group[name]
        except Exception:
            continue
        if isinstance(array, zarr.Array) and has_type(array) and 0 not in array.shape and name != "no codec":
            name = {"ends with a space ": "ends with a space_", "-begins": "_-begins"}.get(name, name)
            found[name] = array
    return found


def raw(array):
    """Returns the values as netCDF4 returns them without unpacking."""
    values = array[...]
    if array.basename == "time" and values.dtype == "i8":
        return values.astype("f8")  # CDF-2 has no 64-bit integers
    if values.dtype.kind == "U":
        values = np.char.encode(values, "utf-8").astype(f"S{values.dtype.itemsize}")
    if array.basename == "chars" or values.dtype.str[1:] == "f2":
        return values.astype({"S": "S1", "f": "f4"}[values.dtype.kind])
    if values.dtype.kind == "S":
        return np.asarray(values).view("S1").reshape(values.shape + (values.dtype.itemsize,))
    return values.astype(KINDS[values.dtype.str[1:3]], copy=False) if values.dtype.kind in "b" else values


def same(got, want):
    if want.dtype.kind == "M":
        want = want.view("i8")
    if got.dtype.kind in "iu" and got.dtype.itemsize == 1:
        got, want = got.view("u1"), want.view("u1")
    assert got.dtype.newbyteorder("=") == want.dtype.newbyteorder("="), (got.dtype, want.dtype)
    np.testing.assert_array_equal(got, want)


def opened(path, mode="r"):
    dataset = netCDF4.Dataset(path, mode)
    dataset.set_auto_maskandscale(False)
    dataset.set_auto_chartostring(False)
    return dataset


def groups(store):
    """Returns the groups of a store by path."""
    found = [os.path.relpath(path, store) for path, _, files in os.walk(store) if ".zgroup" in files]
    return {path if path != "." else "": zarr.open_group(store, "r", path=path if path != "." else None) for path in sorted(found)}


def check_attributes(variable, array):
    for name, value in array.attrs.items():
        if name.startswith("_ARRAY") or name in ("units", "calendar") and array.dtype.kind == "M":
            continue
        got = variable.getncattr(name)
        assert np.array_equal(got, value), (variable.name, name, got, value)
        if name in ("_FillValue", "missing_value", "valid_range"):
            assert got.dtype == variable.dtype, (variable.name, name, got.dtype)


def read(mount, store):
    for path, group in groups(store).items():
        file = os.path.join(mount, path, "dataset.nc")
        arrays = expected(group)
        with opened(file) as dataset:
            variables = dict(dataset.variables)
            above = {name: zarr.open(store, "r")[os.path.dirname(path)][name] for name in set(variables) - set(arrays)}
            assert path == "tree/leaf" and sorted(above) == ["lat", "lon"] or not above, (path, sorted(above))
            assert not set(arrays) - set(variables), (path, set(arrays) - set(variables))
            for name, array in {**arrays, **above}.items():
                variable = variables[name]
                same(variable[...], raw(array))
                named = array.attrs.get("_ARRAY_DIMENSIONS")
                if named and path != "odd" and name != "shorter":
                    assert list(variable.dimensions)[:array.ndim] == named, (name, variable.dimensions)
                assert len(variable.dimensions) == array.ndim + (array.dtype.kind in "SU" and name != "chars")
                check_attributes(variable, array)
            model = dataset.data_model
            print(f"{path or '/'}: {model}, {len(variables)} variables equal")
            assert (model == "NETCDF3_64BIT_DATA") == (path == "wide"), model
            if path == "odd":
                check_odd(dataset, group)
            if path == "tree/leaf":
                assert variables["shorter"].dimensions == ("lat_3",)
        if model == "NETCDF3_64BIT_OFFSET":
            with scipy.io.netcdf_file(file, mmap=False) as dataset:
                for name, array in arrays.items():
                    # scipy decodes names as Latin-1
                    same(np.array(dataset.variables[name.encode().decode("latin-1")].data), raw(array))
        if path not in ("odd", "tree/leaf"):
            compare_with_xarray(file, store, path, ["netcdf4", "scipy"][: 1 if path == "wide" else 2])


def check_odd(dataset, group):
    left = dataset.getncattr("zarrfs_left_out").splitlines()
    names = sorted(line.split(":")[0] for line in left)
    assert names == sorted("no " + n for n in ["complex", "empty", "span", "pair", "object", "codec", "sense"]), left
    assert list(dataset.getncattr("list")) == [1, 2.5] and dataset.words == "a b"
    assert json.loads(dataset.getncattr("object")) == {"a": None}
    assert dataset.getncattr("a_b") == 1 and dataset.getncattr("a_b_2") == 2
    variables = dataset.variables
    assert variables["chars"].dimensions == ("y", "strlen")
    dataset.set_auto_mask(True)
    words = [b"".join(row).rstrip(b"\0").decode() for row in group["chars"][...]]
    assert list(netCDF4.chartostring(variables["chars"][...])) == words
    assert variables["plain"].dimensions == ("dim_3", "dim_4")
    assert variables["square"].dimensions == ("dim_3", "dim_3_2")
    assert variables["x"].dimensions == ("x",) and variables["longer"].dimensions == ("y", "x_5")
    assert variables["letters"].dimensions == ("dim_2", "dim_2_2", "string3")


def compare_with_xarray(file, store, path, engines):
    """Compares missing values, scaling, times, coordinates and attributes as xarray decodes both."""
    with xarray.open_zarr(store, group=path or None, consolidated=False) as group:
        group.load()
        for engine in engines:
            with xarray.open_dataset(file, engine=engine) as dataset:
                xarray.testing.assert_identical(dataset.load(), group)
                for name in group.variables:
                    assert dataset[name].dtype == group[name].dtype, (name, dataset[name].dtype, group[name].dtype)
    print(f"{path or '/'}: identical to the store in xarray, by {' and '.join(engines)}")


def write(mount, store):
    """Changes the middle value of the first variable, the first value of the second, all of the third, and so on."""
    for path, group in groups(store).items():
        want = {}
        with opened(os.path.join(mount, path, "dataset.nc"), "r+") as dataset:
            for i, (name, array) in enumerate(sorted(expected(group).items())):
                values = raw(array).copy()
                values = values.view("i8") if array.dtype.kind == "M" else values
                where = [tuple(n // 2 for n in values.shape), (0,) * values.ndim, ...][i % 3]
                # bytes in the middle of a text may be a part of a character, which cannot be replaced
                where = (0,) * values.ndim if array.dtype.kind == "U" else where
                values[where] = b"z" if array.dtype.kind in "SU" else values[where] == 0 if array.dtype.kind == "b" else 42
                signed = values.view("i1") if values.dtype == "u1" and dataset[name].dtype == "i1" else values
                dataset[name][where] = signed[where]
                want[name] = values
        found = expected(zarr.open_group(store, "r", path=path or None))
        for name, array in found.items():
            values = raw(array)
            same(values.view("i8") if array.dtype.kind == "M" else values, want[name])
        assert found.keys() == want.keys()
        print(f"{path or '/'}: {len(want)} variables changed in place")
    read(mount, store)


def refuse(mount, store):
    for path in ["weather", "large"]:
        file = os.path.join(mount, path, "dataset.nc")
        for how in [other_name, new_dimension, new_variable, long_attribute, another_file, scipy_appending]:
            refused(file, how)
        # writing the same bytes again is accepted and changes nothing
        with open(file, "r+b") as copy:
            bytes_of_it = copy.read()
            copy.seek(0)
            copy.write(bytes_of_it)
    read(mount, store)


def refused(path, how):
    """Checks that a change is refused. It runs in another process: if closing a file fails, netCDF4 tries again and
    crashes."""
    with open(path, "rb") as file:
        before = file.read()
    pid = os.fork()
    if pid == 0:
        try:
            how(path)
        except (OSError, RuntimeError) as e:
            print(f"{how.__name__}: {e}", flush=True)
            os._exit(3)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3, f"{how.__name__} was not refused"
    with open(path, "rb") as file:
        assert file.read() == before, f"{how.__name__} has changed values"


def with_netcdf4(path, change):
    dataset = netCDF4.Dataset(path, "r+")
    change(dataset)
    try:
        dataset.sync()
    finally:
        dataset.close()


def other_name(path):
    with_netcdf4(path, lambda dataset: dataset.renameVariable(next(iter(dataset.variables)), "other"))


def new_dimension(path):
    with_netcdf4(path, lambda dataset: dataset.createDimension("new", 5))


def new_variable(path):
    with_netcdf4(path, lambda dataset: dataset.createVariable("new", "f4", next(iter(dataset.dimensions))))


def long_attribute(path):
    """Sets an attribute that the header cannot hold: the library moves the data before it writes the header."""
    with_netcdf4(path, lambda dataset: dataset.setncattr("new", "x" * 70000))


def another_file(path):
    with open(path, "r+b") as file:
        file.write(b"CDF\x01")


def scipy_appending(path):
    dataset = scipy.io.netcdf_file(path, "a", mmap=False)
    next(iter(dataset.variables.values()))[...] = 1
    dataset.close()


def stored(store, path):
    with open(os.path.join(store, path, ".zattrs")) as file:
        return json.load(file)


def edit(mount, store):
    """Rewrites the header and values in place, as ncatted does, and by renaming a new file, as ncap2 and ncks do."""
    file = os.path.join(mount, "weather", "dataset.nc")
    with netCDF4.Dataset(file, "r+") as dataset:
        dataset.history = "edited\nby hand"
        dataset.numbers = np.array([1, 2, 3], "i4")
        dataset["t"].units = "degree_Celsius"
        dataset["t"].valid = np.float32(0.1)
        dataset["t"].delncattr("cell_methods")
        dataset["packed"].long_name = "x" * 5000
        dataset["lat"][0] = 51
    group, t = stored(store, "weather"), stored(store, "weather/t")
    assert group["history"] == "edited\nby hand" and group["numbers"] == [1, 2, 3], group
    assert t["units"] == "degree_Celsius" and t["valid"] == 0.1 and "cell_methods" not in t, t
    assert t["_ARRAY_DIMENSIONS"] == ["time", "lat", "lon"], t
    assert stored(store, "weather/packed")["long_name"] == "x" * 5000
    assert zarr.open_array(os.path.join(store, "weather/lat"))[0] == 51
    # attributes that the mount derives from the metadata cannot be changed
    refused(file, lambda path: with_netcdf4(path, lambda dataset: dataset["t"].setncattr("_ARRAY_DIMENSIONS", "x")))
    renamed(mount, store, "weather", "dataset.nc.pid4711.ncap2.tmp")
    renamed(mount, store, "weather", "another.nc")
    read(mount, store)


def same_layout(source, target, change):
    """Writes a file with the same variables in another order, as NCO does."""
    with netCDF4.Dataset(source) as old, netCDF4.Dataset(target, "w", format=old.data_model) as new:
        old.set_auto_maskandscale(False)
        for name, dimension in reversed(old.dimensions.items()):
            new.createDimension(name, len(dimension))
        for name, variable in sorted(old.variables.items(), reverse=True):
            fill = getattr(variable, "_FillValue", None)
            made = new.createVariable(name, variable.dtype, variable.dimensions, fill_value=fill)
            made.set_auto_maskandscale(False)
            made.setncatts({key: variable.getncattr(key) for key in variable.ncattrs() if key != "_FillValue"})
            made[...] = variable[...]
        new.setncatts({key: old.getncattr(key) for key in old.ncattrs()})
        change(new)


def renamed(mount, store, path, name):
    """Moves a new file onto dataset.nc with mv(1), which first looks up the target."""
    folder = os.path.join(mount, path)
    target, source = os.path.join(folder, "dataset.nc"), os.path.join(folder, name)

    def change(new):
        new.history = name
        new["t"].units = "K"
        new["lon"][...] = new["lon"][...] + 1
        new["time"][0] = new["time"][0] - 3

    before = {array: zarr.open_array(os.path.join(store, path, array))[...] for array in ["lon", "time", "t"]}
    same_layout(target, source, change)
    done = subprocess.run(["mv", "-f", source, target], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    after = {array: zarr.open_array(os.path.join(store, path, array))[...] for array in before}
    np.testing.assert_array_equal(after["lon"], before["lon"] + 1)
    np.testing.assert_array_equal(after["t"], before["t"])
    assert after["time"][0] == before["time"][0] - 3 and stored(store, path + "/t")["units"] == "K"
    assert stored(store, path)["history"] == name
    assert name not in os.listdir(folder) and name not in os.listdir(os.path.join(store, path))
    # a file with another layout changes nothing, and is deleted only if it is a temporary file of NCO
    same_layout(target, source, lambda new: new.createVariable("more", "f4", ("lon",)))
    done = subprocess.run(["mv", "-f", source, target], capture_output=True, text=True)
    assert done.returncode == 1 and "Operation not permitted" in done.stderr, done.stderr
    left = os.path.join(store, path, name)
    assert os.path.exists(left) == (".pid" not in name)
    if os.path.exists(left):
        os.remove(left)
    np.testing.assert_array_equal(zarr.open_array(os.path.join(store, path, "lon"))[...], after["lon"])


def nco(mount, store):
    """Runs NCO with the same file as input and output, as its users do."""
    folder = os.path.join(mount, "weather")
    before = set(os.listdir(os.path.join(store, "weather")))
    lat = zarr.open_array(os.path.join(store, "weather/lat"))[...]

    def run(command, *arguments):
        return subprocess.run([command, *arguments], cwd=folder, capture_output=True, text=True, timeout=60)

    for command, *arguments in [
        ("ncap2", "-O", "-s", "lat=lat+1.0", "dataset.nc", "dataset.nc"),
        ("ncap2", "-A", "-s", "lat=lat+1.0", "dataset.nc", "dataset.nc"),
        ("ncks", "-A", "dataset.nc", "dataset.nc"),
        ("ncks", "-O", "dataset.nc", "dataset.nc"),
        ("ncatted", "-a", "units,t,m,c,degree_Celsius", "dataset.nc"),
        ("ncatted", "-O", "-a", "note,global,c,c,by NCO", "dataset.nc"),
    ]:
        done = run(command, *arguments)
        assert done.returncode == 0, (command, arguments, done.stderr)
    np.testing.assert_array_equal(zarr.open_array(os.path.join(store, "weather/lat"))[...], lat + 2)
    group = stored(store, "weather")
    assert group["note"] == "by NCO" and group["history"].count("ncatted") == 2 and "ncap2" in group["history"], group
    assert stored(store, "weather/t")["units"] == "degree_Celsius"
    for command, *arguments in [
        ("ncrename", "-v", "lat,latitude", "dataset.nc"),
        ("ncap2", "-O", "-s", "more=lat*2", "dataset.nc", "dataset.nc"),
        ("ncks", "-O", "-v", "t", "dataset.nc", "dataset.nc"),
    ]:
        done = run(command, *arguments)
        assert done.returncode != 0 and "Operation not permitted" in done.stderr, (command, arguments, done.stderr)
        assert "subdirectory of itself" not in done.stderr
    assert set(os.listdir(os.path.join(store, "weather"))) == before
    read(mount, store)


if __name__ == "__main__":
    {"make": make, "read": read, "write": write, "refuse": refuse, "edit": edit, "nco": nco}[sys.argv[1]](*sys.argv[2:])
