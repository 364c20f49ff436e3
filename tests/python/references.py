#!/usr/bin/env python3
"""Makes NetCDF-4, HDF5 and TIFF files, and references to them by Kerchunk, VirtualiZarr and tifffile; and compares mounts
of the references with what netCDF4, h5netcdf and tifffile read from the files.

    references.py make FOLDER SET=PREFIX...    writes the files into FOLDER/originals, and references to PREFIX/NAME
                                               into FOLDER/SET.*.json
    references.py check FOLDER NAME=MOUNT...   compares mounts of FOLDER/NAME.json

Exit code 1 after differences.
"""
import json
import os
import sys
import warnings

import h5netcdf
import h5py
import netCDF4
import numpy as np
import tifffile

warnings.simplefilter("ignore")

RNG = np.random.default_rng(5)


def netcdf(path, first):
    with netCDF4.Dataset(path, "w") as file:
        for name, size in {"t": None, "y": 21, "x": 34}.items():
            file.createDimension(name, size)
        packed = file.createVariable("temp", "i2", ("t", "y", "x"), zlib=True, shuffle=True, chunksizes=(1, 10, 15), fill_value=-99)
        packed.set_auto_maskandscale(False)
        packed.scale_factor, packed.add_offset = 0.01, 273.15
        packed[:] = RNG.integers(-3000, 3000, (3, 21, 34))
        time = file.createVariable("t", "f8", ("t",), chunksizes=(3,))
        time[:], time.units = [first, first + 1, first + 2], "days since 2000-01-01"
        checked = file.createVariable("checked", "i4", ("y", "x"), fletcher32=True, zlib=True, chunksizes=(10, 34))
        checked[:] = RNG.integers(-9, 9, (21, 34))
        file.createVariable("plain", "f4", ("y", "x"))[:] = RNG.random((21, 34))
        big = file.createVariable("big", "f8", ("x",), endian="big", zlib=True)
        big[:] = np.arange(34)
        sparse = file.createVariable("sparse", "u1", ("y", "x"), chunksizes=(7, 17), fill_value=7)
        sparse[8:9, 3:5] = 1
        file.createGroup("g").createVariable("inner", "u8", ("x",), zlib=True)[:] = np.arange(34) << 40


def hdf5(path):
    with h5py.File(path, "w") as file:
        file.create_dataset("a/b/values", data=RNG.random((50, 41)), chunks=(16, 41), compression="gzip")
        file.create_dataset("shuffled", data=RNG.integers(0, 1 << 40, 1000), chunks=(300,), shuffle=True, compression="gzip")
        file.create_dataset("flat", data=RNG.integers(0, 99, (5, 6, 7)).astype("<u2"))
        file.create_dataset("scalar", data=np.float32(2.5))
        file.create_dataset("texts", data=np.array([b"abc", b"", b"xyzzy"], "S5"))


def tiff(path):
    tifffile.imwrite(path, RNG.integers(0, 60000, (100, 130)).astype("u2"), tile=(32, 48), compression="zlib", predictor=False)


def make(folder):
    originals = os.path.join(folder, "originals")
    os.makedirs(originals)
    netcdf(os.path.join(originals, "first.nc"), 0)
    netcdf(os.path.join(originals, "second.nc"), 3)
    hdf5(os.path.join(originals, "h.h5"))
    tiff(os.path.join(originals, "image.tif"))


def write(stem, name, references):
    with open(stem + name + ".json", "w") as file:
        json.dump(references, file)


def kerchunk(path, url, inline=0):
    from kerchunk.hdf import SingleHdf5ToZarr

    with open(path, "rb") as file:
        return SingleHdf5ToZarr(file, url, inline_threshold=inline).translate()


def combined(originals, prefix):
    """Returns references to the records of two files, which Kerchunk reads again."""
    from kerchunk.combine import MultiZarrToZarr

    files = [os.path.join(originals, name) for name in ["first.nc", "second.nc"]]
    single = [kerchunk(file, file) for file in files]
    both = MultiZarrToZarr(single, concat_dims=["t"], identical_dims=["big", "plain", "checked", "sparse"])
    return json.loads(json.dumps(both.translate()).replace(originals, prefix))


def virtual(path, target):
    import virtualizarr
    from obspec_utils.registry import ObjectStoreRegistry
    from obstore.store import LocalStore

    registry = ObjectStoreRegistry({"file://": LocalStore()})
    options = {"registry": registry, "parser": virtualizarr.parsers.HDFParser(), "loadable_variables": ["t"]}
    with virtualizarr.open_virtual_dataset("file://" + path, decode_times=False, **options) as dataset:
        references = dataset.vz.to_kerchunk(format="dict")
    # VirtualiZarr has no relative paths
    return json.loads(json.dumps(references).replace(path, target))


def refer(folder, group, prefix):
    stem = os.path.join(folder, group + ".")
    originals = os.path.abspath(os.path.join(folder, "originals"))
    for name in ["first", "second"]:
        path, target = os.path.join(originals, name + ".nc"), f"{prefix}/{name}.nc"
        write(stem, "kerchunk-" + name, kerchunk(path, target, 300 if name == "second" else 0))
        write(stem, "virtualizarr-" + name, virtual(path, target))
    write(stem, "kerchunk-h", kerchunk(os.path.join(originals, "h.h5"), prefix + "/h.h5"))
    write(stem, "kerchunk-combined", combined(originals, prefix))
    for name, version in [("tifffile", 1), ("tifffile-0", 0)]:
        with tifffile.TiffFile(os.path.join(originals, "image.tif")) as image, image.aszarr() as store:
            template = {"templatename": "u"} if version else {}
            store.write_fsspec(stem + name + ".json", url=prefix + "/", version=version, **template)


def arrays(mount):
    """Returns the arrays of a mount by their paths."""
    found = {}
    for above, _, names in os.walk(mount):
        if "data.raw" in names:
            npy = np.load(os.path.join(above, "data.npy"), mmap_mode="r", allow_pickle=False)
            raw = np.fromfile(os.path.join(above, "data.raw"), npy.dtype)
            if raw.tobytes() != npy.tobytes():
                sys.exit(f"{above}: data.npy and data.raw differ")
            found[os.path.relpath(above, mount)] = np.asarray(npy)
    return found


def expected(name, folder):
    """Returns the arrays of the originals."""
    name = name.split(".")[-1]
    original = lambda name: os.path.join(folder, "originals", name)
    if name.startswith("tifffile"):
        return {".": tifffile.imread(original("image.tif"))}
    if name == "kerchunk-h":
        values = {}
        with h5py.File(original("h.h5")) as file:
            file.visititems(lambda path, node: values.update({path: node[()]}) if isinstance(node, h5py.Dataset) else None)
        return values
    if name == "kerchunk-combined":
        first, second = [expected("kerchunk-" + part, folder) for part in ("first", "second")]
        joined = {path: np.concatenate([first[path], second[path]]) for path in ("temp", "t")}
        # Kerchunk joins what is in groups, too
        return {path: values for path, values in first.items() if "/" not in path} | joined
    values = {}
    path = original(name.split("-")[1] + ".nc")
    with netCDF4.Dataset(path) as file, h5netcdf.File(path) as other:
        for group, above in [(file, ""), (file["g"], "g/")]:
            for variable in group.variables.values():
                variable.set_auto_maskandscale(False)
                variable.set_auto_mask(False)
                values[above + variable.name] = variable[:]
                if not np.array_equal(variable[:], other[above + variable.name][...]):
                    sys.exit(f"netCDF4 and h5netcdf differ: {variable.name}")
    return values


def check(name, mount, folder):
    found, wanted = arrays(mount), expected(name, folder)
    count = 0
    for path, values in found.items():
        if path not in wanted:
            continue
        original = np.asarray(wanted[path])
        if found[path].shape != original.shape or not np.array_equal(values, original):
            sys.exit(f"{name}: {path}: {values} instead of {original}")
        count += 1
    missing = sorted(set(wanted) - set(found))
    print(f"{name}: {count} arrays are equal; not referenced: {missing}")
    if count < (1 if "tifffile" in name else 5):
        sys.exit(1)


if __name__ == "__main__":
    verb, *args = sys.argv[1:]
    if verb == "make":
        make(args[0])
        for pair in args[1:]:
            refer(args[0], *pair.split("=", 1))
    else:
        for pair in args[1:]:
            check(*pair.split("=", 1), args[0])
