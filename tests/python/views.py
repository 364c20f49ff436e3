#!/usr/bin/env python3
"""Compares views of arrays in a mount with the values that xarray reads from the store, and written values with those
that xarray would store.

    views.py make DIR          (with zarr 2.18 and xarray, or zarr 3 and xarray)
    views.py read MOUNT DIR
    views.py write MOUNT DIR   (changes the store)
    views.py programs MOUNT DIR       (with scripts/requirements/zarr2.txt)

Several verbs are joined by commas. Exit code 1 after a difference.
"""
import mmap
import os
import sys
import warnings

import numpy as np
import xarray as xr
import zarr

warnings.simplefilter("ignore")
ZARR3 = int(zarr.__version__.split(".")[0]) >= 3
SHAPE, CHUNKS, NAMES = (6, 10, 14), (4, 4, 5), ("time", "lat", "lon")
PACKING = {"scale_factor", "add_offset", "_FillValue", "missing_value"}


def arrays():
    """Yields name, dtype, order, fill value of the Zarr array, and attributes."""
    yield "i2", "<i2", "C", None, {"scale_factor": 0.05, "add_offset": 260.0, "_FillValue": -32768, "units": "K"}
    yield "big", ">i2", "C", None, {"scale_factor": 0.05, "add_offset": 260.0, "_FillValue": -32768}
    yield "order_f", "<i2", "F", None, {"scale_factor": 0.5, "_FillValue": 7}
    yield "i4", "<i4", "C", None, {"scale_factor": 1e-4, "missing_value": 12}
    yield "i8", "<i8", "C", None, {"_FillValue": 3}
    yield "scale", "<u2", "C", None, {"scale_factor": 0.25}
    yield "offset", "<i2", "C", None, {"add_offset": -5.0}
    yield "integers", "<i4", "C", None, {"add_offset": -5, "scale_factor": 2}
    yield "two", "<i2", "C", None, {"_FillValue": 1, "missing_value": 2}
    yield "many", "|i1", "C", None, {"missing_value": [1, 2, 3]}
    yield "unsigned", "|i1", "C", None, {"_Unsigned": "true", "_FillValue": -1, "scale_factor": 0.5}
    yield "unsigned_i2", "<i2", "C", None, {"_Unsigned": "true", "missing_value": -1}
    yield "signed", "|u1", "C", None, {"_Unsigned": "false", "_FillValue": -1}
    yield "f4", "<f4", "C", None, {"missing_value": 3.0}
    yield "f8", "<f8", "C", None, {"missing_value": 3.0, "scale_factor": 2.0}
    yield "f4_scaled", "<f4", "C", None, {"missing_value": 3.0, "add_offset": 0.1}
    yield "plain", "<i2", "C", None, {"units": "K"}
    yield "text", "|S4", "C", None, {}
    if ZARR3:
        yield "base64", "<f4", "C", 0, {"_FillValue": "AAAAAAAACEA="}
        yield "fill", "<i2", "C", 9, {"units": "m"}
    else:
        yield "big_f4", ">f4", "C", None, {"_FillValue": 3.0}
        yield "fill", "<i2", "C", 9, {"units": "m"}
        yield "fill_f4", "<f4", "C", 0.1, {"_FillValue": 3.0}
        yield "fill_nan", "<f4", "C", "NaN", {}
        yield "fill_scaled", ">i4", "F", -9, {"scale_factor": 0.5}


def make(directory):
    group = zarr.open_group(directory, mode="w", **({"zarr_format": 3} if ZARR3 else {}))
    random = np.random.default_rng(18)
    for name, dtype, order, fill, attributes in arrays():
        options = {"shape": SHAPE, "chunks": CHUNKS, "dtype": dtype, "fill_value": fill}
        if ZARR3:
            options["fill_value"] = "" if fill is None and dtype == "|S4" else fill or 0
            if dtype == "|S4":
                options["fill_value"] = b""
            array = group.create_array(name, dimension_names=NAMES, order=order, **options)
        else:
            array = group.create(name, order=order, **options)
            attributes = {**attributes, "_ARRAY_DIMENSIONS": NAMES}
        array.attrs.update(attributes)
        # the last chunks are not stored, unless zarr 2 would then return uninitialized memory
        rows = SHAPE[0] if fill is None and not ZARR3 else CHUNKS[0]
        # small numbers, so that many are missing values
        numbers = random.integers(-8, 16, (rows, *SHAPE[1:])).astype(dtype if dtype != "|S4" else "i4")
        if np.dtype(dtype).kind == "f":
            numbers[0, 0, :3] = np.nan, np.inf, -np.inf
        if np.dtype(dtype).itemsize > 1 and np.dtype(dtype).kind == "i":
            numbers[0, 0, :2] = np.iinfo(dtype).min, np.iinfo(dtype).max
        array[:rows] = numbers.astype(dtype)


def opened(store):
    options = {"zarr_format": 3} if ZARR3 else {}
    return xr.open_zarr(store, consolidated=False, decode_times=False, chunks=None, **options)


def same(what, got, wanted):
    if not (got.dtype == wanted.dtype and got.shape == wanted.shape and got.tobytes() == wanted.tobytes()):
        where = np.argwhere(~((got == wanted) | (np.isnan(got) & np.isnan(wanted))))[:3]
        sys.exit(f"{what}: {got.dtype} {got.shape}, wanted {wanted.dtype} {wanted.shape}; differs at {where}")


def read(mount, store):
    random = np.random.default_rng(7)
    compared = 0
    for name, variable in opened(store).variables.items():
        view = os.path.join(mount, f"{name}.unpacked")
        is_packed = variable.dtype.kind == "f" and name not in ("plain", "text")
        if is_packed != os.path.isdir(view):
            sys.exit(f"{view}: {os.path.isdir(view)}, {variable.dtype}")
        if not is_packed:
            continue
        wanted = variable.values
        if wanted.dtype == np.float16:
            wanted = wanted.astype("f4")
        same(f"{name}: npy", np.load(f"{view}/data.npy"), wanted)
        same(f"{name}: map", np.array(np.load(f"{view}/data.npy", mmap_mode="r")), wanted)
        whole = wanted.tobytes()
        with open(f"{view}/data.raw", "rb") as f:
            same(f"{name}: raw", np.frombuffer(f.read(), wanted.dtype).reshape(wanted.shape), wanted)
            for _ in range(40):
                offset, length = random.integers(0, len(whole)), random.integers(0, 300)
                if os.pread(f.fileno(), length, offset) != whole[offset:offset + length]:
                    sys.exit(f"{name}: {length} bytes at {offset}")
        if os.stat(f"{view}/data.raw").st_size != len(whole):
            sys.exit(f"{name}: size")
        compared += 1
    print(f"{compared} arrays")


def stored(store, name):
    return zarr.open(store, mode="r")[name][...]


def expect(errno, call, *args):
    try:
        call(*args)
    except OSError as e:
        if e.errno == errno:
            return
        raise
    sys.exit(f"no error {errno}")


def write(mount, store):
    """Writes values to views, and compares the store with the items that the encoding of xarray stores. Checks that
    parts of items, and values that no item can represent, are refused."""
    random = np.random.default_rng(3)
    dataset = opened(store)
    for name in ("i2", "big", "order_f", "i4", "unsigned", "f8", "f4_scaled", "offset"):
        variable, path = dataset.variables[name], os.path.join(mount, f"{name}.unpacked", "data.raw")
        scale, offset = variable.encoding.get("scale_factor", 1), variable.encoding.get("add_offset", 0)
        numbers = random.integers(13, 100, SHAPE)
        values = ((numbers + random.choice([0, 0.2, 0.5, -0.4], SHAPE)) * scale + offset).astype(variable.dtype)
        if PACKING & {"_FillValue", "missing_value"} & set(variable.encoding):
            values[1, 2:4, 3:9] = np.nan
        encoding = {key: variable.encoding[key] for key in PACKING | {"_Unsigned"} if key in variable.encoding}
        encoded = xr.conventions.encode_cf_variable(
            xr.Variable(NAMES, values, {}, {**encoding, "dtype": np.dtype(variable.encoding["dtype"])})).values
        before, whole = stored(store, name), values.tobytes()
        handle = os.open(path, os.O_RDWR)
        # writes that are refused: a value at the end that no item can represent, parts of items, and a write past the
        # end
        if np.dtype(encoded.dtype).kind in "iu":
            expect(22, os.pwrite, handle, whole[:80] + values.dtype.type(1e30).tobytes(), 0)
        expect(22, os.pwrite, handle, whole[:9], 0)
        expect(22, os.pwrite, handle, whole[:8], 1)
        expect(27, os.pwrite, handle, whole[:8], len(whole))
        os.fsync(handle)
        if stored(store, name).tobytes() != before.tobytes():
            sys.exit(f"{name}: changed by a write that was refused")
        # through both files, in pieces of whole items
        half = len(whole) // 16 * 8
        os.pwrite(handle, whole[:half], 0)
        with open(path.replace(".raw", ".npy"), "r+b", buffering=0) as npy:
            npy.seek(half + 128)
            npy.write(whole[half:])
        flat = np.fromfile(os.path.join(mount, name, "data.raw"), variable.encoding["dtype"]).reshape(SHAPE)
        os.close(handle)
        same(f"{name}: stored", stored(store, name), encoded.astype(variable.encoding["dtype"]))
        same(f"{name}: flat", flat, stored(store, name))
        same(f"{name}: read", np.fromfile(path, values.dtype).reshape(SHAPE), opened(store)[name].values)
    maps(mount, store)


def maps(mount, store):
    """Checks that a write through a shared map is refused with an error and changes nothing."""
    path = os.path.join(mount, "i2.unpacked", "data.raw")
    before = stored(store, "i2")
    handle = os.open(path, os.O_RDWR)
    try:
        shared = mmap.mmap(handle, 0)
    except OSError as e:
        print(f"map: {e}")
    else:
        shared[:8] = np.float64(261).tobytes()
        try:
            shared.flush()
        except OSError as e:
            print(f"msync: {e}")
        else:
            sys.exit("a map was written")
        shared.close()
    try:
        os.close(handle)
    except OSError:
        pass
    if stored(store, "i2").tobytes() != before.tobytes():
        sys.exit("a map has changed the array")


def programs(mount, store):
    import nrrd
    import rasterio
    import SimpleITK as sitk

    wanted = opened(store)["i2"].values
    view = os.path.join(mount, "i2.unpacked")
    for name in ("data.vrt", "data.raw"):
        with rasterio.open(f"{view}/{name}") as raster:
            same(name, raster.read(), wanted)
            if not (np.isnan(raster.nodata) and raster.scales[0] == 1 and raster.offsets[0] == 0):
                sys.exit(f"{name}: {raster.nodata} {raster.scales} {raster.offsets}")
            if name == "data.vrt" and raster.units[0] != "K":
                sys.exit(f"{name}: {raster.units}")
    same("data.nhdr", nrrd.read(f"{view}/data.nhdr", index_order="C")[0], wanted)
    same("data.mhd", sitk.GetArrayFromImage(sitk.ReadImage(f"{view}/data.mhd")), wanted)
    items = stored(store, "i2")
    for index in range(SHAPE[0]):
        plane = os.path.join(mount, "i2.slices", str(index))
        same("slice", np.load(f"{plane}/data.npy"), items[index])
        same("slice as a map", np.array(np.load(f"{plane}/data.npy", mmap_mode="r")), items[index])
        with rasterio.open(f"{plane}/data.vrt") as raster:
            same("slice as a raster", raster.read(1), items[index])
            if raster.nodata != -32768 or raster.scales[0] != 0.05:
                sys.exit(f"{plane}: {raster.nodata} {raster.scales}")
        same("slice as an image", sitk.GetArrayFromImage(sitk.ReadImage(f"{plane}/data.nhdr")), items[index])


for verb in sys.argv[1].split(","):
    globals()[verb](*sys.argv[2:])
