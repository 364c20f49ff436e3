"""Reads and changes dataset.h5 with h5py and netCDF-C, and compares it with what zarr-python reads from the store.

hdf5.py make FOLDER            makes a store with groups, coordinates and all types
hdf5.py read MOUNT STORE       compares all arrays that the file has, and says which it leaves out
hdf5.py raw MOUNT STORE        compares all arrays that the file has with their flat bytes in the mount
hdf5.py dimensions MOUNT       compares dimensions, attributes and the data sets that xarray opens
hdf5.py write MOUNT STORE      changes 1,000 random parts of arrays in place
hdf5.py spoil STORE            adds names, attributes and depths that are hard to show
hdf5.py survive MOUNT          opens a file of hostile documents with each program
hdf5.py entitle FOLDER         makes an archive, in each group of which one name is too long or odd
hdf5.py open_names MOUNT       opens each group of that archive with each program
hdf5.py refuse MOUNT STORE     changes what cannot be changed, and ends while the file is open
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import warnings
import zipfile

import h5py
import netCDF4
import numpy as np
import xarray
import zarr

NAME = "dataset.h5"


def make(folder):
    rng = np.random.default_rng(3)
    store = pathlib.Path(folder) / "types.zarr"
    root = zarr.open_group(store, mode="w", zarr_format=2)
    root.attrs.update({"title": "all types", "empty": "", "list": [1, 2, 3], "texts": ["a", "bc"], "nested": {"a": [1]},
                       "large": 2**62, "half": 0.5, "unicode": "é", "long": "x" * 70_000})

    def add(group, name, values, chunks=None, dimensions=None, **more):
        values = np.asarray(values)
        array = group.create_array(name, shape=values.shape, chunks=chunks or values.shape or (), dtype=values.dtype,
                                   **more)
        array[...] = values
        if dimensions:
            array.attrs["_ARRAY_DIMENSIONS"] = dimensions
        return array

    types = root.create_group("types")
    for code in ["<i1", "<i2", ">i2", "<i4", ">i4", "<i8", ">i8", "<u1", "<u2", ">u2", "<u4", "<u8", ">u8", "<f2", ">f2",
                 "<f4", ">f4", "<f8", ">f8"]:
        kind = np.dtype(code)
        low, high = (-100, 100) if kind.kind in "if" else (0, 200)
        values = rng.integers(low, high, (7, 5)).astype(code)
        if kind.kind == "f":
            values[0, :4] = np.nan, np.inf, -np.inf, -0.0
        else:
            values[0, :2] = np.iinfo(kind).min, np.iinfo(kind).max
        add(types, f"n{code[1:]}{'b' if code[0] == '>' else 'l'}", values, (3, 2), order="F" if code[1] == "f" else "C")
    add(types, "bool", rng.integers(0, 2, (6, 3)).astype("?"), (4, 2))
    add(types, "complex", (rng.normal(size=9) + 1j * rng.normal(size=9)).astype("<c8"))
    add(types, "complex128", (rng.normal(size=9) + 1j * rng.normal(size=9)).astype("<c16"))
    add(types, "bytes", np.array([b"abc", b"", b"de"], "S3"))
    add(types, "text", np.array(["é", "", "日本"], "<U4"))
    add(types, "struct", np.array([(1, 2.5, b"x"), (2, -1.0, b"yz")], [("a", "<i4"), ("b", "<f8"), ("c", "S2")]))
    add(types, "time", np.array(["2026-01-01", "NaT"], "<M8[s]"))
    add(types, "scalar", np.float64(1.5))
    add(types, "empty", np.zeros((0, 3), "<i4"), (1, 3))
    add(types, "large", rng.normal(size=(300, 300)).astype("<f4"), (64, 64))
    missing = types.create_array("missing", shape=(10,), chunks=(3,), dtype="<i2", fill_value=-7)
    missing[4] = 5
    cube = root.create_group("cube")
    add(cube, "time", np.arange(4.0), dimensions=["time"]).attrs["units"] = "days since 2000-01-01"
    add(cube, "lat", np.linspace(-10, 10, 5), dimensions=["lat"])
    air = add(cube, "air", rng.normal(size=(4, 5, 6)), (2, 5, 3), ["time", "lat", "lon"])
    air.attrs.update({"units": "K", "scale_factor": 1.0, "CLASS": "x", "_FillValue": -1.0})
    inner = cube.create_group("inner")
    add(inner, "rain", rng.normal(size=(4, 6)).astype("f4"), dimensions=["time", "lon"])
    add(inner, "lon", np.zeros((2, 2)), dimensions=["a", "a"])


def expected(array):
    """Returns the values of an array as the file is to hold them."""
    values = np.asarray(array[...])
    if values.dtype.kind in "mM":
        return values.view(values.dtype.str[0] + "i8")
    if values.dtype.kind == "f" and values.dtype.itemsize == 2:
        return values.astype(values.dtype.str[0] + "f4")
    if values.dtype.kind in "UOT":
        return np.char.encode(values.astype("U"), "utf-8")
    return values


def difference(values, read):
    """Returns how values that were read differ; None if they are the same bits."""
    read = np.asarray(read)
    if values.shape != read.shape:
        return f"shape {read.shape}, not {values.shape}"
    if values.dtype.kind == "S":
        # a string of HDF5 with variable length is an object
        same = read.dtype.kind in "SO" and (values == read.astype("S")).all()
        return None if same else f"{read.ravel()[:3]}"
    if values.dtype.kind == "V":
        return None if values.tobytes() == read.tobytes() else f"other bytes of {read.dtype}"
    if (values.dtype.kind, values.dtype.itemsize) != (read.dtype.kind, read.dtype.itemsize):
        return f"type {read.dtype}, not {values.dtype}"
    little = values.dtype.newbyteorder("<")
    same = values.astype(little).tobytes() == read.astype(little).tobytes()
    return None if same else f"{read.ravel()[:5]}, not {values.ravel()[:5]}"


def arrays(group, path=""):
    for name, item in sorted(group.members()):
        if isinstance(item, zarr.Array):
            yield path + name, item
        else:
            yield from arrays(item, f"{path}{name}/")


def has_netcdf_type(values):
    return values.dtype.kind in "iuS" or values.dtype.kind == "f" and values.dtype.itemsize in (4, 8)


def check_counts(h5):
    """Compares what the headers of a file state with what the objects have."""

    def check(name, item):
        info = h5py.h5o.get_info(item.id)
        attributes = len(list(item.attrs))
        assert (len(item.attrs), info.num_attrs) == (attributes, attributes), name
        assert info.rc == 1, name
        if isinstance(item, h5py.Group):
            assert len(item) == len(list(item)), name
        elif item.shape is not None:
            assert item.maxshape == item.shape, name
            # values of variable length have another size in memory
            is_stored = item.id.get_offset() is not None and item.dtype.kind != "O"
            assert not is_stored or item.id.get_storage_size() == item.size * item.id.get_type().get_size(), name

    check("/", h5)
    h5.visititems(check)
    assert h5.id.get_filesize() == os.path.getsize(h5.filename)


def read(mount, store):
    file = pathlib.Path(mount) / NAME
    counts = {"equal": 0, "through netCDF-C": 0, "left out": 0, "not read by zarr-python": 0}
    with h5py.File(file) as h5, netCDF4.Dataset(file) as nc:
        nc.set_auto_maskandscale(False)
        nc.set_auto_chartostring(False)
        left_out = h5.attrs.get("zarrfs_left_out", b"")
        left_out = left_out.decode() if isinstance(left_out, bytes) else left_out
        check_counts(h5)
        for path, array in arrays(zarr.open_group(store, mode="r")):
            if path not in h5:
                assert f"\n{path}: " in f"\n{left_out}", path
                counts["left out"] += 1
                continue
            try:
                values = expected(array)
            except Exception:
                counts["not read by zarr-python"] += 1
                continue
            assert not (why := difference(values, h5[path][...])), f"h5py, {path}: {why}"
            counts["equal"] += 1
            if has_netcdf_type(values):
                found = nc[path][...]
                if values.dtype.kind == "S":
                    found = np.char.encode(np.asarray(found).astype("U"), "utf-8")
                assert not (why := difference(values, found)), f"netCDF4, {path}: {why}"
                counts["through netCDF-C"] += 1
    print(*(f"{count} {what}," for what, count in counts.items()), "of", pathlib.Path(store).name)
    assert counts["equal"] > 0


def stored(values, flat):
    """Returns values that h5py has read as the bytes that data.raw may hold: texts are UCS-4 there, halves are halves."""
    text = h5py.check_string_dtype(values.dtype)
    if text and (text.encoding == "utf-8" or values.dtype == object):
        size = len(flat) // values.size
        letters = np.char.decode(values.astype("S"), "utf-8")
        in_ucs4 = [letters.astype(f"{order}U{max(1, size // 4)}").tobytes() for order in "<>"]
        return [*in_ucs4, values.astype(f"S{size}").tobytes()]
    if 2 * len(flat) == values.nbytes and values.dtype.kind == "f":
        return [values.astype(values.dtype.str[0] + "f2").tobytes()]
    return [values.tobytes()]


def raw(mount, store):
    counts = {"equal": 0, "through netCDF-C": 0, "left out": 0, "damaged": 0}
    with h5py.File(pathlib.Path(mount) / NAME) as h5, netCDF4.Dataset(pathlib.Path(mount) / NAME) as nc:
        nc.set_auto_maskandscale(False)
        left_out = h5.attrs.get("zarrfs_left_out", b"")
        left_out = left_out.decode() if isinstance(left_out, bytes) else left_out
        check_counts(h5)
        for file in sorted(pathlib.Path(mount).glob("**/data.raw")):
            path = "data" if file.parent == pathlib.Path(mount) else str(file.parent.relative_to(mount))
            try:
                flat = file.read_bytes()
            except OSError:
                counts["damaged"] += 1
                continue
            if path not in h5:
                assert f"\n{path}: " in f"\n{left_out}", path
                counts["left out"] += 1
                continue
            values = np.asarray(h5[path][...], h5[path].dtype)
            assert flat in stored(np.asarray(values), flat), f"{path}: {values.ravel()[:5]}"
            counts["equal"] += 1
            if has_netcdf_type(values) and not h5py.check_string_dtype(values.dtype):
                found = np.asarray(nc[path][...]).astype(values.dtype)
                assert found.tobytes() == values.tobytes(), f"netCDF4, {path}: {found.ravel()[:5]}"
                counts["through netCDF-C"] += 1
    print(*(f"{count} {what}," for what, count in counts.items()), "of", pathlib.Path(store).name)


def dimensions(mount):
    mount = pathlib.Path(mount)
    with netCDF4.Dataset(mount / NAME) as nc:
        cube = nc["cube"]
        assert cube["air"].dimensions == ("time", "lat", "lon"), cube["air"].dimensions
        assert nc["cube/inner/rain"].dimensions == ("time", "lon")
        assert {name: len(d) for name, d in cube.dimensions.items()} == {"time": 4, "lat": 5, "lon": 6}
        assert cube["air"].units == "K" and cube["air"]._FillValue == -1.0
        assert (nc.title, nc.unicode, nc.half, nc.large) == ("all types", "é", 0.5, 2**62)
        assert list(nc.list) == [1, 2, 3] and nc.nested == '{"a":[1]}'
        assert "long" not in nc.ncattrs()
    with h5py.File(mount / NAME) as h5:
        air = h5["cube/air"]
        assert [d.keys() for d in air.dims] == [["time"], ["lat"], [f"This is a netCDF dimension but not a netCDF variable.{6:10}"]]
        assert h5["types/missing"].fillvalue == -7 and h5["types/bool"].dtype == bool
    for words in [["h5dump", "-H"], ["h5dump", "-d", "/cube/air"], ["ncdump"], ["gdalinfo"]]:
        if shutil.which(words[0]):
            done = subprocess.run([*words, mount / NAME], capture_output=True, text=True, errors="replace")
            assert done.returncode == 0, (words, done.stderr)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for engine in ["netcdf4", "h5netcdf"]:
            with xarray.open_dataset(mount / NAME, group="cube", engine=engine) as found:
                stored = xarray.open_dataset(mount / "cube/dataset.nc", engine="netcdf4")
                xarray.testing.assert_equal(stored, found)
                stored.close()


def write(mount, store):
    file = pathlib.Path(mount) / NAME
    rng = np.random.default_rng(5)
    group = zarr.open_group(store, mode="r")
    models = {path: np.asarray(array[...]) for path, array in arrays(group)
              if array.dtype.kind in "iuf" and array.dtype.itemsize > 1 and array.ndim and array.size}
    models = {path: values for path, values in models.items() if values.dtype.itemsize > 2 or values.dtype.kind != "f"}
    for number in range(20):
        opened = h5py.File(file, "r+") if number % 2 else netCDF4.Dataset(file, "r+")
        if not number % 2:
            opened.set_auto_maskandscale(False)
        for _ in range(50):
            path = list(models)[rng.integers(len(models))]
            values = models[path]
            starts = [int(rng.integers(n)) for n in values.shape]
            part = tuple(slice(s, int(rng.integers(s, n)) + 1) for s, n in zip(starts, values.shape))
            values[part] = rng.integers(0, 120, values[part].shape).astype(values.dtype)
            opened[path][part] = values[part]
        opened.close()
        for path, values in models.items():
            assert not (why := difference(values, group[path][...])), f"after {number}, {path}: {why}"


def refuse(mount, store):
    file = pathlib.Path(mount) / NAME
    before = {path: array[...].tobytes() for path, array in arrays(zarr.open_group(store, mode="r")) if array.dtype != object}
    header = file.read_bytes()[:48]
    # HDF5 notes that the file is open for writing; a program that ends must not leave that
    script = f"import h5py, os; f = h5py.File({str(file)!r}, 'r+'); f['cube/lat'][0] = f['cube/lat'][0]; f.flush(); os._exit(3)"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 3
    assert file.read_bytes()[:48] == header
    for change in ["f.create_dataset('new', data=[1, 2])", "f.attrs['x'] = 1", "del f['cube/lat']", "f['types/text'][0] = 'other'"]:
        script = f"import h5py; f = h5py.File({str(file)!r}, 'r+'); {change}; f.close()"
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        assert done.returncode != 0, (change, done.stderr)
    assert file.read_bytes()[:48] == header
    with h5py.File(file, "r+"):
        # HDF5 itself locks a file that is written
        script = f"import h5py; h5py.File({str(file)!r}, 'r+')"
        assert subprocess.run([sys.executable, "-c", script], capture_output=True).returncode != 0
        env = {**os.environ, "HDF5_USE_FILE_LOCKING": "FALSE"}
        assert subprocess.run([sys.executable, "-c", script], env=env).returncode == 0
    after = {path: array[...].tobytes() for path, array in arrays(zarr.open_group(store, mode="r")) if array.dtype != object}
    assert before == after


ODD = ["a b", 'quote"', "new\nline", "ünï", "x" * 255, "%2F", "dataset.h5", "-", "..."]


def spoil(store):
    root = zarr.open_group(store, mode="a", zarr_format=2)
    for name in ODD:
        array = root.create_array(f"odd/{name}", shape=(2, 3), dtype="i2", fill_value=7)
        array.attrs[name] = name
        array.attrs["_ARRAY_DIMENSIONS"] = [name, "/"]
    for size in range(65_400, 65_600, 7):
        root.create_array(f"long/{size}", shape=(), dtype="i1").attrs.update({"text": "x" * size, "numbers": [1] * (size // 4)})
    deep = "/".join(["d"] * 120)
    root.create_array(f"{deep}/value", shape=(1,), dtype="f4")
    for number in range(300):
        folder = pathlib.Path(store) / f"many/a{number}"
        folder.mkdir(parents=True)
        shutil.copy(pathlib.Path(store) / "long/65400/.zarray", folder)


def survive(mount):
    file = pathlib.Path(mount) / NAME
    with h5py.File(file) as h5:
        found = []
        h5.visititems(lambda name, item: found.append((name, dict(item.attrs), getattr(item, "shape", None))))
        names = {name for name, *_ in found}
        left_out = h5.attrs["zarrfs_left_out"]
        expected = {f"odd/{name}" for name in ODD} | {f"many/a{n}" for n in range(300)} | {"/".join(["d"] * 120 + ["value"])}
        assert not expected - names, expected - names
        assert (h5["odd/a b"][...] == 7).all()
    netcdf = f"import netCDF4; d = netCDF4.Dataset({str(file)!r}); print(len(d.groups), d['odd'].variables.keys())"
    for words in [["h5dump", "-H"], ["ncdump", "-h"], [sys.executable, "-c", netcdf], ["gdalinfo"]]:
        if shutil.which(words[0]):
            words = words if words[0] == sys.executable else [*words, file]
            done = subprocess.run(words, capture_output=True, timeout=100)
            assert done.returncode >= 0, (words[0], done.returncode, done.stderr[-300:])
    print(f"{len(found)} objects, {len(left_out.splitlines())} left out")


# what has the name, and the name
NAMES = [
    *((what, "x" * length) for what in ["array", "group", "dimension", "attribute", "field"] for length in [255, 256, 300]),
    *((what, "\u00e9" * 150) for what in ["array", "group", "dimension", "attribute", "field"]),
    *((what, name) for what in ["dimension", "attribute", "field"] for name in [" x", "x ", "a/b", "x\x01", "(x)", ".", "x\0y", ""]),
    *((what, name) for what in ["array", "group"] for name in ["x ", "x\x01", "(x)"]),
]


def entitle(folder):
    with zipfile.ZipFile(pathlib.Path(folder) / "names.zip", "w") as archive:

        def add(path, document, attributes=None):
            archive.writestr(f"{path}/{document}".lstrip("/"), json.dumps({"zarr_format": 2, **(attributes or {})}))

        def add_array(path, dimension="d", dtype="<f4", **attributes):
            array = dict(shape=[2], chunks=[2], dtype=dtype, compressor=None, fill_value=None, order="C", filters=None)
            add(path, ".zarray", array)
            archive.writestr(f"{path}/.zattrs", json.dumps({"_ARRAY_DIMENSIONS": [dimension], **attributes}))

        add("", ".zgroup")
        for number, (what, name) in enumerate(NAMES):
            group = str(number)
            add(group, ".zgroup")
            add_array(f"{group}/good")
            if what == "array":
                add_array(f"{group}/{name}")
            elif what == "group":
                add(f"{group}/{name}", ".zgroup")
                add_array(f"{group}/{name}/x")
            elif what == "dimension":
                add_array(f"{group}/x", dimension=name)
            elif what == "attribute":
                add_array(f"{group}/x", **{name: 1})
            else:
                add_array(f"{group}/x", dtype=[[name, "<f4"]])


def open_names(mount):
    for number, (what, name) in enumerate(NAMES):
        case = f"{what} {name!r}"
        group = pathlib.Path(mount) / str(number)
        with h5py.File(group / NAME) as h5:
            check_counts(h5)
            assert "good" in h5, case
            is_object = what in ("array", "group")
            is_left_out = is_object and len(name.encode()) > 255
            assert not is_object or (name in h5) != is_left_out, case
            # a field without a name, or with a zero in it, makes the array unreadable
            assert ("zarrfs_left_out" in h5.attrs) == is_left_out or what == "field", case
        for file in [NAME, "dataset.nc"]:
            with netCDF4.Dataset(group / file) as nc:
                assert "good" in nc.variables, (case, file)
                for variable in nc.variables.values():
                    assert len(variable.ncattrs()) == len({name: variable.getncattr(name) for name in variable.ncattrs()})
            if shutil.which("ncdump"):
                done = subprocess.run(["ncdump", "-h", group / file], capture_output=True)
                assert done.returncode == 0, (case, file, done.stderr)


if __name__ == "__main__":
    # netCDF4 names the opaque types that it skips
    warnings.simplefilter("ignore")
    globals()[sys.argv[1]](*sys.argv[2:])
