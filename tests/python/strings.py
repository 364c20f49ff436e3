#!/usr/bin/env python3
"""Compares the strings in values.txt, dataset.nc and dataset.h5 of a mount with those that zarr-python reads, and the
names of categories with those that were written as AnnData's on-disk format has them. rasterio reads the names of bands
whose coordinates are strings of xarray.

    strings.py write STORE EXPECTED       writes arrays of strings of any length with the zarr-python that runs this: 2
                                          writes v2, 3 writes v2 and v3; and what it reads from them
    strings.py refer STORE EXPECTED       writes references with strings in json2, as Kerchunk 0.2.9 did; needs zarr 2
    strings.py bands MOUNT                compares the names of bands; needs rasterio
    strings.py check MOUNT EXPECTED       compares the files of the mount; needs netCDF4, and h5py for
                                          dataset.h5

Exit code 1 after differences.
"""
import base64
import json
import os
import subprocess
import sys
import warnings

import numpy as np

from expected import same

if sys.argv[1] == "check":
    import netCDF4

    try:
        import h5py
    except ImportError:
        h5py = None
elif sys.argv[1] != "bands":
    import numcodecs
    import xarray
    import zarr

warnings.simplefilter("ignore")

WORDS = ["abc", "", "a b", "q\"uote", "tab\t", "\u00e9", "back\\slash", "\U0001f52c microscope", "#x", "a\u2028b"]
BLOBS = [b"abc", b"", b"a b", b"\xff\x00\x01", b"\xc3\xa9", b"q\"", b"\x1b[2J"]
SHAPES = {"word": (), "words": (11,), "rows": (3, 4), "planes": (2, 3, 2)}


REFUSED = ["hidden", "mixed", "order F"]
NAMES = ["B cell", "NK", "T cell \u03b3\u03b4"]
BANDS = ["red", "near IR", "\u00e9"]
CODES = [0, 2, -1, 1, 0]


def of_shape(items, shape):
    count = int(np.prod(shape))
    values = np.empty(count, object)
    values[:] = [items[i % len(items)] for i in range(count)]
    return values.reshape(shape)


def write_2(folder):
    root = zarr.open_group(os.path.join(folder, "v2"), "w")
    for name, shape in SHAPES.items():
        chunks = tuple(max(1, n // 2 + 1) for n in shape)
        for order in "CF":
            for word, items, codec in [("utf8", WORDS, numcodecs.VLenUTF8()), ("bytes", BLOBS, numcodecs.VLenBytes())]:
                values = of_shape(items, shape)
                array = root.create(f"{name}_{word}_{order}", shape=shape, chunks=chunks, dtype=object, object_codec=codec, order=order, fill_value=None)
                array[...] = values
        for order in "CF" if len(shape) < 2 else "C":
            array = root.create(f"{name}_json_{order}", shape=shape, chunks=chunks, dtype=object, object_codec=numcodecs.JSON(), order=order, fill_value=None)
            array[...] = of_shape(WORDS, shape)
    root.create("missing", shape=(3,), dtype=object, object_codec=numcodecs.JSON())[:] = np.array(["a", None, "c"], object)
    root.create("mixed", shape=(2,), dtype=object, object_codec=numcodecs.JSON())[:] = np.array(["a", 1], object)
    # zarr-python 2.18 reads the rows of such an array as columns
    root.create("order F", shape=(2, 2), dtype=object, object_codec=numcodecs.JSON(), order="F")[:] = of_shape(WORDS, (2, 2))
    filled = root.create("filled", shape=(5,), chunks=(2,), dtype=object, object_codec=numcodecs.VLenUTF8(), fill_value="n a")
    filled[:2] = np.array(["x", "y"], object)
    # no program may run a pickle, and a list is no string
    root.create("no pickle", shape=(2,), dtype=object, object_codec=numcodecs.Pickle())[:] = np.array(["a", "b"], object)
    root.create("no lists", shape=(2,), dtype=object, object_codec=numcodecs.VLenArray("i4"))[:] = of_shape([np.arange(2)], (2,))
    root.create("hidden", shape=(2,), dtype=object, object_codec=numcodecs.VLenBytes())[:] = np.array([b"ab", b"a\0"], object)
    categories = categorical(root).create("categories", shape=(3,), dtype=object, object_codec=numcodecs.VLenUTF8())
    categories[:] = np.array(NAMES, object)
    yield "v2", root


def categorical(root):
    """Returns a group of AnnData's encoding categorical 0.2.0 without its categories."""
    group = root.create_group("obs").create_group("cell_type")
    group.attrs.update({"encoding-type": "categorical", "encoding-version": "0.2.0", "ordered": False})
    create = group.create_array if hasattr(group, "create_array") else group.create
    create("codes", shape=(5,), dtype="i1", chunks=(2,), fill_value=0)[:] = np.array(CODES, "i1")
    return group


def write_3(folder):
    for version in [2, 3]:
        root = zarr.open_group(os.path.join(folder, f"by_3_v{version}"), mode="w", zarr_format=version)
        for name, shape in SHAPES.items():
            chunks = tuple(max(1, n // 2 + 1) for n in shape)
            array = root.create_array(name, shape=shape, chunks=chunks, dtype=np.dtypes.StringDType(), fill_value="n a")
            array[...] = of_shape(WORDS, shape).astype(np.dtypes.StringDType())
            array = root.create_array(name + "_holes", shape=shape, chunks=chunks, dtype=np.dtypes.StringDType(), fill_value="n a")
        if version == 3:
            sharded = root.create_array("shards", shape=(40,), chunks=(4,), shards=(20,), dtype="string")
            sharded[:] = of_shape(WORDS, (40,)).astype(np.dtypes.StringDType())
            blobs = root.create_array("blobs", shape=(9,), chunks=(4,), dtype="variable_length_bytes", fill_value=b"x y")
            blobs[:8] = of_shape(BLOBS, (8,))
        categories = categorical(root).create_array("categories", shape=(3,), dtype=np.dtypes.StringDType())
        categories[:] = np.array(NAMES, np.dtypes.StringDType())
        yield f"by_3_v{version}", root


def write(folder, expected):
    """Writes the store, and the strings of its arrays as zarr-python reads them."""
    found = {}
    os.makedirs(folder)
    for group, root in (write_2 if zarr.__version__[0] == "2" else write_3)(folder):
        for name, array in root.arrays():
            if name.startswith("no ") or name in REFUSED:
                continue
            values = np.asarray(array[...], object)
            is_bytes = any(isinstance(v, bytes) for v in values.ravel())
            texts = [v.decode("latin-1") if is_bytes else "" if v is None else str(v) for v in values.ravel()]
            found[f"{group}/{name}"] = {"shape": values.shape, "bytes": is_bytes, "items": texts}
    write_bands(os.path.join(folder, "bands"))
    with open(expected, "w") as file:
        json.dump(found, file)


def write_bands(path):
    """Writes a group with bands by three kinds of strings, and one by numbers, as xarray writes them."""
    kinds = {"fixed": np.array(BANDS), "objects": np.array(BANDS, object), "bytes": np.char.encode(BANDS, "utf-8"), "numbers": np.array([4, 8, 9])}
    values = np.arange(3 * 4 * 5, dtype="i2").reshape(3, 4, 5)
    arrays = {f"by_{kind}": (("time", kind, "y", "x"), np.stack([values, values])) for kind in kinds}
    coordinates = {"time": np.array(["2020-01-01", "2020-02-01"], "M8[ns]"), **kinds}
    xarray.Dataset(arrays, coords=coordinates).to_zarr(path, mode="w")


def bands(mount):
    import rasterio

    faults = []
    for kind in ["fixed", "objects", "bytes", "numbers"]:
        folder = os.path.join(mount, "bands", f"by_{kind}")
        labels = [4, 8, 9] if kind == "numbers" else BANDS
        wanted = [f"time=2020-0{month}-01T00:00:00, {kind}={label}" for month in (1, 2) for label in labels]
        try:
            with rasterio.open(os.path.join(folder, "data.vrt")) as dataset:
                same("data.vrt", list(dataset.descriptions), wanted)
                same("values", dataset.read().ravel().tolist(), 2 * list(range(60)))
            with rasterio.open(os.path.join(folder, "data.raw"), driver="ENVI") as dataset:
                same("data.raw.hdr", list(dataset.descriptions), [name.replace(",", ";") for name in wanted])
            with open(os.path.join(folder, "README.txt"), encoding="utf-8") as file:
                labels = [line[16:] for line in file.read().splitlines() if line.startswith("  labels ")]
            same("README.txt", labels, [] if kind == "numbers" else [f"{kind}: {', '.join(BANDS)}"])
        except Exception as e:
            faults.append(f"  {kind}: {type(e).__name__}: {e}")
    print("\n".join([f"bands: {len(faults)} wrong", *faults]))
    sys.exit(bool(faults))


def refer(path, expected):
    values = {"names": of_shape(WORDS, (10,)), "table": of_shape(WORDS, (3, 2))}
    store = {}
    root = zarr.open_group(store)
    for name, items in values.items():
        root.create_dataset(f"inline/{name}", data=items, object_codec=numcodecs.JSON(), compressor=None, fill_value=None)
    texts = {key: bytes(value).decode() for key, value in store.items()}
    # Kerchunk spells a chunk in base64 if it is no ASCII; a reader must know both
    texts["inline/table/0.0"] = "base64:" + base64.b64encode(store["inline/table/0.0"]).decode()
    with open(path, "w") as file:
        json.dump({"version": 1, "refs": texts}, file)
    found = {f"inline/{name}": {"shape": items.shape, "bytes": False, "items": list(items.ravel())} for name, items in values.items()}
    with open(expected, "w") as file:
        json.dump(found, file)


def word(text):
    """Returns an item as values.txt must spell it."""
    text = text.decode("utf-8", "surrogateescape") if isinstance(text, bytes) else text
    quoted = ""
    for c in text:
        if "\udc80" <= c <= "\udcff":
            quoted += f"\\x{ord(c) - 0xdc00:02x}"
        elif c in '"\\':
            quoted += "\\" + c
        elif c == "\t":
            quoted += "\\t"
        elif ord(c) < 32 or c == "\u2028":
            quoted += f"\\u{ord(c):04x}"
        else:
            quoted += c
    is_plain = text and not any(c.isspace() or c == '"' for c in text) and quoted == text.replace("\\", "\\\\")
    return text if is_plain else f'"{quoted}"'


def compare_text(path, values):
    with open(path, encoding="utf-8", newline="\n") as file:
        text = file.read()
    same("size", os.stat(path).st_size, len(text.encode()))
    rows = values.reshape(-1, values.shape[-1] if values.ndim > 1 else 1)
    same("lines", [line for line in text.split("\n") if line], [" ".join(map(word, row)) for row in rows])


def compare_readme(path, is_bytes):
    with open(path, encoding="utf-8") as file:
        lines = dict(line.split(None, 1) for line in file.read().splitlines() if line.startswith("  "))
    same("README.txt", lines["item"].startswith("bytes of any length" if is_bytes else "text of any length"), True)
    same("README.txt", lines["data.raw"].startswith("none"), True)


def compare_datasets(folder, name, values, is_bytes):
    wanted = [v if is_bytes else v.encode() for v in values.ravel()]
    with netCDF4.Dataset(os.path.join(folder, "dataset.nc")) as dataset:
        variable = dataset[name]
        variable.set_auto_chartostring(False)
        variable.set_auto_mask(False)
        letters = np.ascontiguousarray(variable[...])
        same("netCDF", letters.view(f"S{letters.shape[-1]}").ravel().tolist(), wanted)
        same("encoding in netCDF", getattr(variable, "_Encoding", None), None if is_bytes else "utf-8")
    if h5py is None:
        return
    with h5py.File(os.path.join(folder, "dataset.h5")) as dataset:
        same("HDF5", np.asarray(dataset[name][...]).ravel().tolist(), wanted)
        same("encoding in HDF5", h5py.check_string_dtype(dataset[name].dtype).encoding, "ascii" if is_bytes else "utf-8")


def compare_categories(folder):
    """Compares what is said of AnnData's codes in README.txt and as CF's flags, and joins codes and names as text."""
    with open(os.path.join(folder, "codes", "README.txt"), encoding="utf-8") as file:
        heading = file.read().split("\n\nFor programs")[0].splitlines()
    first = next(n for n, line in enumerate(heading) if line.startswith("  categories "))
    same("README.txt", [line[16:] for line in heading[first:]], [f"{n} {name}" for n, name in enumerate(NAMES)])
    same("missing", heading[first - 1].split(), ["missing", "-1"])
    flags = [(name.replace(" ", "_"), n) for n, name in enumerate(NAMES)]
    with netCDF4.Dataset(os.path.join(folder, "dataset.nc")) as dataset:
        codes = dataset["codes"]
        same("type of netCDF's flags", codes.flag_values.dtype, np.dtype("i1"))
        same("netCDF's flags", list(zip(codes.flag_meanings.split(" "), codes.flag_values.tolist())), flags)
        same("codes", codes[...].tolist(), CODES)
    command = ["awk", 'NR == FNR { name[n++] = $0; next } { print $1 < 0 ? "-" : name[$1] }', "categories/values.txt", "codes/values.txt"]
    joined = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout
    same("awk", joined.splitlines(), ["-" if n < 0 else word(NAMES[n]) for n in CODES])
    if h5py is None:
        return
    with h5py.File(os.path.join(folder, "..", "..", "dataset.h5")) as dataset:
        attributes = dataset["obs/cell_type/codes"].attrs
        meanings = attributes["flag_meanings"]
        meanings = meanings.decode() if isinstance(meanings, bytes) else meanings
        same("HDF5's flags", list(zip(meanings.split(" "), attributes["flag_values"].tolist())), flags)


def check(mount, expected):
    with open(expected) as file:
        arrays = json.load(file)
    faults, compared = [], 0
    for path, array in arrays.items():
        values = np.array([v.encode("latin-1") if array["bytes"] else v for v in array["items"]] + [None], object)[:-1].reshape(array["shape"])
        group, name = path.split("/")
        try:
            compare_text(os.path.join(mount, path, "values.txt"), values)
            compare_readme(os.path.join(mount, path, "README.txt"), array["bytes"])
            compare_datasets(os.path.join(mount, group), name, values, array["bytes"])
            compared += 1
        except Exception as e:
            faults.append(f"  {path}: {type(e).__name__}: {e}")
    for group in sorted({path.split("/")[0] for path in arrays}):
        try:
            with netCDF4.Dataset(os.path.join(mount, group, "dataset.nc")) as dataset:
                left = getattr(dataset, "zarrfs_left_out", "").splitlines()
            same("left out", [line.split(":")[0] for line in left], sorted(["no lists", "no pickle", *REFUSED]) if group == "v2" else [])
            for name in ["no pickle", "no lists", *REFUSED] if group == "v2" else []:
                same(name, "values.txt" in os.listdir(os.path.join(mount, group, name)), False)
            if group != "inline":
                compare_categories(os.path.join(mount, group, "obs", "cell_type"))
        except Exception as e:
            faults.append(f"  {group}: {type(e).__name__}: {e}")
    print("\n".join([f"strings: {compared} compared, {len(faults)} wrong", *faults]))
    sys.exit(bool(faults) or not compared)


if __name__ == "__main__":
    {"write": write, "bands": bands, "refer": refer, "check": check}[sys.argv[1]](*sys.argv[2:])
