"""Opens dataset.h5 and dataset.nc of a store of every type with each reader that is installed, as a whole, and compares all
values with those that zarr-python and xarray read from the store.

containers.py make STORE FORMAT      makes a store of Zarr v2 or v3
containers.py read MOUNT STORE       compares with h5py, netCDF4 and xarray with each of its engines
containers.py run MOUNT STORE        compares with the programs that are installed, and names those that are not
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import warnings

import h5py
import netCDF4
import numpy as np
import xarray
import zarr

ATTRIBUTES = {"text": "Straße", "empty": "", "integer": 3, "large": 2**62, "negative": -1.5, "true": True, "null": None,
              "list": [1, 2, 3], "floats": [0.5, 1.5], "texts": ["a", "bc"], "sentences": ["a b", "c"], "mixed": [1, "a"],
              "object": {"a": [1, None]}, "größe": "name"}
NUMBERS = ["<i1", "<i2", ">i2", "<i4", ">i4", "<i8", ">i8", "<u1", "<u2", ">u2", "<u4", "<u8", ">u8", "<f2", ">f2", "<f4", ">f4",
           "<f8", ">f8"]
RNG = np.random.default_rng(11)


def make(store, zarr_format):
    zarr_format = int(zarr_format)
    root = zarr.open_group(store, mode="w", zarr_format=zarr_format)
    root.attrs.update(ATTRIBUTES)

    def add(path, values, names, fill=None, attributes=(), write=True):
        values = np.asarray(values)
        dtype = values.dtype if values.dtype != object else str
        named = {"dimension_names": names} if zarr_format == 3 else {"attributes": {"_ARRAY_DIMENSIONS": names}}
        if fill is not None or zarr_format == 2:
            named["fill_value"] = fill if fill is not None or dtype is not str else "?"
        chunks = tuple(max(1, n // 2) for n in values.shape)
        array = root.create_array(path, shape=values.shape, dtype=dtype, chunks=chunks, **named)
        array.attrs.update(attributes)
        if fill is not None and zarr_format == 3:
            array.attrs["_FillValue"] = fill
        if write:
            array[...] = values
        return array

    for code in NUMBERS:
        kind = np.dtype(code)
        values = RNG.integers(1, 100, (4, 3)).astype(kind)
        if kind.kind == "f":
            values[0] = np.nan, np.inf, -np.inf
        else:
            values[0, :2] = np.iinfo(kind).min, np.iinfo(kind).max
        add(f"numbers/{kind.name}_{'big' if code[0] == '>' else 'little'}", values, ["y", "x"])
    add("numbers/bool", RNG.integers(0, 2, (4, 3)).astype("?"), ["y", "x"])
    for kind in ["c8", "c16"]:
        add(f"numbers/{kind}", (RNG.normal(size=(4, 3)) + 1j * RNG.normal(size=(4, 3))).astype(kind), ["y", "x"])
    add("numbers/scalar", np.float64(1.5), [])
    add("numbers/x", np.array([0.5, 1.5, 2.5]), ["x"])
    add("numbers/höhe", np.arange(12, dtype="f4").reshape(4, 3), ["y", "x"], attributes={"units": "°", "long_name": "Höhe"})
    add("numbers/inner/rain", np.arange(3, dtype="f4"), ["x"])

    add("texts/bytes", np.array([b"abc", b"", b"de"], "S3"), ["n"])
    add("texts/utf8", np.array(["é".encode(), b"", "日".encode()], "S4"), ["n"])
    add("texts/fixed", np.array(["é", "", "日本"], "<U4"), ["n"])
    add("texts/any", np.array(["Ωmega", "", "x" * 1000], object), ["n"])
    add("texts/station", np.array(["Zürich", "Bern"], "<U8"), ["station"])
    add("texts/height", np.array([408.0, 542.0]), ["station"])
    add("texts/scalar", np.array("été", "<U3"), [])
    add("texts/table", np.array([[f"{a}{b}" for b in "xyz"] for a in "pq"], object), ["station", "n"])
    add("texts/many", np.array([f"word {n} {'é' * (n % 40)}" for n in range(5000)], object), ["word"])
    add("one/name", np.array(["a", "bc", "ä"], object), ["n"])

    steps = np.datetime64("2026-01-01", "s") + 6 * 3600 * np.arange(6)
    add("series/time", steps, ["time"])
    add("series/lat", np.linspace(-60, 60, 5), ["lat"], attributes={"units": "degrees_north"})
    add("series/lon", np.linspace(0, 300, 4), ["lon"], attributes={"units": "degrees_east"})
    packed = RNG.integers(-50, 50, (6, 5, 4)).astype("<i2")
    packed[0, 0, :2] = -999
    add("series/packed", packed, ["time", "lat", "lon"], -999, {"scale_factor": 0.5, "add_offset": 280.0, "units": "K"})
    add("series/plain", RNG.normal(size=(6, 5, 4)).astype("<f4"), ["time", "lat", "lon"], attributes={"units": "m"})
    add("series/unwritten", np.zeros((6, 5), "<i4"), ["time", "lat"], -7, write=False)
    add("series/empty", np.zeros((0, 5), "<f8"), ["nothing", "lat"])
    add("series/no_text", np.zeros((0,), "<U3"), ["nothing"])


def unified(values):
    """Returns values in the one form in which all readers are compared: text as str, halves as floats, times in ns."""
    values = np.asarray(values)
    if values.dtype.names == ("r", "i"):
        return values["r"] + 1j * values["i"]
    if values.dtype.kind in "SUOT":
        text = [item.decode() if isinstance(item, bytes) else str(item) for item in values.ravel()]
        return np.array(text, object).reshape(values.shape)
    if values.dtype.kind == "M":
        return values.astype("M8[ns]")
    if values.dtype.kind == "f" and values.dtype.itemsize == 2:
        return values.astype("f4")
    return values


def compare(what, got, want):
    got, want = unified(got), unified(want)
    assert got.shape == want.shape, f"{what}: shape {got.shape}, not {want.shape}"
    assert got.dtype.newbyteorder("=") == want.dtype.newbyteorder("="), f"{what}: {got.dtype}, not {want.dtype}"
    equal = np.array_equal(got, want, equal_nan=want.dtype.kind in "fc")
    assert equal, f"{what}: {str(got.ravel()[:6])[:200]}, not {str(want.ravel()[:6])[:200]}"


def attribute(value):
    """Returns an attribute as docs/other-programs.md says that a container holds it."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, list) and all(isinstance(item, (int, float)) for item in value):
        return value
    if isinstance(value, list) and all(isinstance(item, str) and item and " " not in item for item in value):
        return " ".join(value)
    if isinstance(value, (str, int, float)):
        return value
    return json.dumps(value, separators=(",", ":"))


def check_attributes(what, found, stored):
    for name, value in stored.items():
        got = found[name]
        # h5netcdf and scipy have their own empty text
        got = "" if isinstance(got, h5py.Empty) or np.size(got) == 0 else got
        got = got.decode() if isinstance(got, bytes) else got
        assert np.array_equal(got, attribute(value)), f"{what}: {name}: {got!r}, not {value!r}"


def groups(store):
    """Returns the paths of the groups and the data sets that xarray opens from the store."""
    root = zarr.open_group(store, mode="r")
    paths = [""] + [path for path, item in root.members(max_depth=None) if isinstance(item, zarr.Group)]
    return {path: xarray.open_zarr(store, group=path or None, consolidated=False).load() for path in paths}


def left_out(path):
    """Returns the names of the arrays that a file says it lacks."""
    with netCDF4.Dataset(path) as dataset:
        listed = dataset.__dict__.get("zarrfs_left_out", "")
    return {line.split(":")[0] for line in listed.splitlines()}


def without(names, group):
    """Returns the names that are to be left out, of arrays below a group as that group calls them."""
    return {name[len(group) + 1:] if group else name for name in names if name.startswith(group + "/" if group else "")}


def is_cdf5(path):
    """Returns whether a file has a form that neither scipy nor GDAL nor ncdf4 of R opens."""
    with open(path, "rb") as file:
        return file.read(4) == b"CDF\x05"


EMPTY = ["series/empty", "series/no_text"]


def check_group(what, dataset, want, lacking):
    missing = set(want.variables) - set(dataset.variables)
    assert missing == lacking, f"{what}: {missing} are missing, not {lacking}"
    assert not dataset.encoding.get("unlimited_dims"), f"{what}: {dataset.encoding['unlimited_dims']} is unlimited"
    for name in set(want.variables) - lacking:
        compare(f"{what}: {name}", dataset.variables[name].values, want.variables[name].values)
        assert dataset.variables[name].dims == want.variables[name].dims, f"{what}: {name}: {dataset.variables[name].dims}"
        check_attributes(f"{what}: {name}", dataset.variables[name].attrs, want.variables[name].attrs)
    check_attributes(what, dataset.attrs, want.attrs)


def of_scipy(dataset):
    """Returns a data set of scipy, which takes the UTF-8 of names for Latin-1, with the names."""
    renamed = {name: name.encode("latin-1").decode() for name in dataset.variables}
    dataset.attrs = {name.encode("latin-1").decode(): value for name, value in dataset.attrs.items()}
    return dataset.rename({old: new for old, new in renamed.items() if old != new})


def read(mount, store):
    stored = groups(store)
    for path, want in stored.items():
        h5, nc = (os.path.join(mount, path, name) for name in ["dataset.h5", "dataset.nc"])
        empty = without(EMPTY, path)
        assert left_out(h5) == empty, (path, left_out(h5))
        here = {name for name in empty if "/" not in name}
        for engine in ["netcdf4", "h5netcdf"]:
            with xarray.open_dataset(h5, engine=engine) as dataset:
                check_group(f"{path}/dataset.h5, xarray with {engine}", dataset.load(), want, here)
            with xarray.open_dataset(os.path.join(mount, "dataset.h5"), engine=engine, group=path or None) as dataset:
                check_group(f"dataset.h5, group {path}, xarray with {engine}", dataset.load(), want, here)
        complexes = {name for name, variable in want.variables.items() if variable.dtype.kind == "c"}
        assert left_out(nc) == here | complexes, (path, left_out(nc))
        for engine in ["netcdf4"] if is_cdf5(nc) else ["netcdf4", "scipy"]:
            with xarray.open_dataset(nc, engine=engine) as dataset:
                dataset = of_scipy(dataset.load()) if engine == "scipy" else dataset.load()
                check_group(f"{path}/dataset.nc, xarray with {engine}", dataset, want, here | complexes)
    count = read_with_libraries(os.path.join(mount, "dataset.h5"), store)
    print(f"{len(stored)} groups and {count} arrays are equal")


def read_with_libraries(path, store):
    count = 0
    with h5py.File(path) as h5, netCDF4.Dataset(path) as nc:
        nc.set_auto_maskandscale(False)
        for name, array in zarr.open_group(store, mode="r").members(max_depth=None):
            if isinstance(array, zarr.Group) or name in EMPTY:
                continue
            want = array[...]
            want = np.asarray(want).view("i8") if np.asarray(want).dtype.kind == "M" else want
            text = h5py.check_string_dtype(h5[name].dtype)
            # netCDF-C 4.9.0 crashes on strings of a fixed length
            assert (text is not None and text.length is None) == (unified(want).dtype == object), (name, h5[name].dtype)
            compare(f"h5py: {name}", h5[name][()], want)
            found = nc[name][...]
            compare(f"netCDF4: {name}", found, np.asarray(want).view("i1") if np.asarray(want).dtype == bool else want)
            count += 1
        assert not any(dimension.isunlimited() for group in nc.groups.values() for dimension in group.dimensions.values())
    return count


PROGRAMS = {}


def program(name, *needed):
    """Adds a function that compares with a program, which is there if all commands succeed."""
    def add(function):
        PROGRAMS[name] = (function, needed)
        return function
    return add


def said(*words, **more):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=120, **more)
    assert done.returncode == 0, f"{words}: exit code {done.returncode}: {done.stdout[-500:]} {done.stderr[-500:]}"
    return done.stdout


def is_there(command):
    if not shutil.which(command[0]):
        return False
    return len(command) == 1 or subprocess.run(command, capture_output=True, timeout=120).returncode == 0


def numbers(want):
    """Returns the variables that are real numbers in each file."""
    return {name: variable for name, variable in want.variables.items() if variable.dtype.kind in "iuf"}


def texts(want):
    return {name: variable for name, variable in want.variables.items() if variable.dtype.kind in "SUOT"}


def raw(store, path):
    """Returns the variables of a group as they are stored."""
    options = {"decode_cf": False, "consolidated": False}
    found = xarray.open_zarr(store, group=path, **options).load()
    return found.drop_vars([name for name in found.variables if 0 in found[name].shape])


def close(what, got, want):
    got, want = np.asarray(got, "f8").ravel(), np.asarray(want, "f8").ravel()
    assert got.shape == want.shape, f"{what}: {got.size} numbers, not {want.size}"
    assert np.allclose(got, want, rtol=1e-6, equal_nan=True), f"{what}: {got[:6]}, not {want[:6]}"


def unescaped(word):
    """Returns a text of ncdump, which shows the bytes of characters that are not ASCII in octal."""
    return re.sub(rb"\\([0-7]{3})", lambda found: bytes([int(found[1], 8)]), word.encode()).decode()


@program("ncdump", ["ncdump"])
def ncdump(file, path, want):
    text = said("ncdump", "-p", "9,17", file)
    # the first group only
    data = text.partition("\ndata:\n")[2].partition("\ngroup: ")[0]
    sections = dict(re.findall(r'^ (\S+) =((?:[^;"]|"[^"]*")*);', data, re.M))
    for name, variable in texts(want).items():
        words = [unescaped(word).strip('"_') for word in re.findall(r'"[^"]*"|_', sections[name])]
        expected = unified(variable.values).ravel().tolist()
        # ncdump joins the characters of a row with those of the next ones in dataset.nc
        assert words == expected or "".join(words) == "".join(expected), f"{path}: {name}: {words[:5]}"
    for name, variable in numbers(want).items():
        words = [re.sub(r"(?<=[0-9.])[a-zA-Z]+$|(?<=NaN)f$|(?<=ity)f$", "", word) for word in re.findall(r"[^\s,]+", sections[name])]
        fill = variable.attrs.get("_FillValue", netCDF4.default_fillvals.get(variable.dtype.str[1:]))
        close(f"{path}: {name}", [fill if word == "_" else float(word) for word in words], variable.values)


@program("ncks of NCO", ["ncks"])
def nco(file, path, want):
    found = json.loads(said("ncks", "--jsn", "-g", "/", file).replace(": nan", ": NaN"))["variables"]
    for name, variable in texts(want).items():
        assert name in found, f"{path}: {name} is missing"
    for name, variable in numbers(want).items():
        # JSON has neither infinity nor NaN
        if np.isfinite(variable.values).all():
            fill = variable.attrs.get("_FillValue", netCDF4.default_fillvals.get(variable.dtype.str[1:]))
            words = np.array(found[name]["data"], object).ravel()
            close(f"{path}: {name}", [fill if word is None else word for word in words], variable.values)


@program("CDO", ["cdo"])
def cdo(file, path, want):
    if path == "series":
        assert said("cdo", "-s", "ntime", file).split() == ["6"]
        found = said("cdo", "-s", "outputf,%.9g,1", "-selname,plain", file).split()
        close(path, [float(word) for word in found], want["plain"].values)


@program("GDAL", ["gdal_translate"])
def gdal(file, path, want):
    if path == "series":
        with tempfile.TemporaryDirectory() as folder:
            for name, driver in [("plain", f'NETCDF:"{file}":plain')] + [("plain", f'HDF5:"{file}"://plain')] * file.endswith("h5"):
                out = os.path.join(folder, "out")
                said("gdal_translate", "-q", "-of", "ENVI", driver, out)
                found = np.fromfile(out, "f4").reshape(6, 5, 4)
                # GDAL's driver of netCDF turns rasters that begin in the south
                found = found[:, ::-1] if driver.startswith("NETCDF") else found
                close(f"{path}: {name}", found, want[name].values)
        said("gdalinfo", file)


@program("ncdf4 of R", ["Rscript", "-e", "library(ncdf4)"])
def r(file, path, want):
    if is_cdf5(file):
        return
    shown = [name for name, variable in numbers(want).items() if variable.dtype.itemsize < 8 or variable.dtype.kind == "f"]
    with tempfile.NamedTemporaryFile("w", suffix=".R") as script:
        script.write(f"library(ncdf4); nc <- nc_open('{file}')\n")
        for name in shown:
            script.write(f"cat('{name}', sprintf('%.17g', as.numeric(ncvar_get(nc, '{name}', raw_datavals=TRUE))), '\\n')\n")
        for name in texts(want):
            script.write(f"cat('{name}', paste0('<', ncvar_get(nc, '{name}'), '>'), '\\n')\n")
        script.flush()
        # an R script is in the encoding of the locale
        found = dict(line.split(" ", 1) for line in said("Rscript", script.name, env={**os.environ, "LC_ALL": "C.UTF-8"}).splitlines())
    for name in shown:
        # the smallest integer of four bytes is NA in R
        words = [-2.0**31 if word == "NA" else float(word) for word in found[name].split()]
        close(f"{path}: {name}", words, want[name].values)
    for name, variable in texts(want).items():
        words = re.findall("<(.*?)>", found[name])
        assert words == unified(variable.values).ravel().tolist(), f"{path}: {name}: {words[:5]}"


@program("netcdf of Octave", ["octave", "--no-gui", "--eval", "pkg load netcdf"])
def octave(file, path, want):
    names = [name for name in numbers(want) if name.isascii()]
    code = "".join(f"x = ncread('{file}', '{name}'); printf('{name}'); printf(' %.17g', double(x)); printf('\\n');" for name in names)
    found = dict(line.split(" ", 1) for line in said("octave", "--no-gui", "--eval", f"pkg load netcdf; {code}").splitlines())
    for name in names:
        values = xarray.decode_cf(want[[name]], decode_times=False)[name].values
        close(f"{path}: {name}", [float(word.replace("NA", "nan")) for word in found[name].split()], values)


def run(mount, store):
    for name, (compare_with, *needed) in PROGRAMS.items():
        if not all(is_there(command) for command in needed[0]):
            print(f"skipped: {name} is not installed")
            continue
        for path in ["numbers", "texts", "one", "series", "numbers/inner"]:
            want = raw(store, path)
            for container in ["dataset.h5", "dataset.nc"]:
                file = os.path.join(mount, path, container)
                compare_with(file, path, want)
        print(f"{name}: equal")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    globals()[sys.argv[1]](*sys.argv[2:])
