#!/usr/bin/env python3
"""Writes a store with the conventions of scientific data, and a file with the metadata that other programs must find.

    geo.py DIR      (with zarr 2.18, xarray and rasterio)

DIR gets geo.zarr, written by xarray and zarr-python, and expected.json, from xarray and numpy alone. For each array it
contains the key, shape, dtype, digest of the flat bytes, some values and, if the group defines them, dimensions,
coordinates, geotransform (GDAL's, from corner to corner), EPSG code, nodata, scale, offset, units and long name.
Groups: climate (north-up), southup, gauss (irregular latitudes), utm (a grid mapping), image (OME-NGFF), gdal (GDAL's
conventions), dtypes, shapes and orders (without metadata).
"""
import hashlib
import json
import os
import shutil
import sys
import warnings

import numpy as np
import rasterio.crs
import xarray
import zarr
from numcodecs import Blosc, Delta, Zlib

warnings.simplefilter("ignore")

DTYPES = ["<f4", ">f4", "<f8", ">f8", "|i1", "|u1", "<i2", ">i2", "<u2", ">u2", "<i4", ">i4", "<u4", ">u4", "<i8", ">i8",
          "<u8", "<f2", "<c8", "<c16", "|b1", "|S5", "<U3", "<M8[s]", "|V4"]
SHAPES = {"d0": (), "d1": (17,), "d2": (5, 7), "d3": (4, 6, 10), "d4": (2, 3, 5, 7), "d5": (2, 3, 2, 5, 4),
          "d6": (2, 2, 3, 2, 3, 2), "one": (1, 1, 1), "zero": (3, 0, 4), "long": (70000,)}
UTM, WGS84 = 32633, 4326


# arrays whose attribute _Unsigned states the sign: the type as stored, the type of the values, _FillValue
SIGNS = {"sign_i1": ("|i1", "|u1", -2), "sign_i2": (">i2", ">u2", -1), "sign_u1": ("|u1", "|i1", 254)}


def smooth(shape, dtype="f8", scale=1.0):
    """Returns values that repeat after 113 items, and are exact in every dtype if `scale` is 1."""
    values = np.arange(np.prod(shape, dtype=int)) % 113 * scale
    return values.reshape(shape).astype(dtype)


def latitudes(values):
    return ("lat", values, {"units": "degrees_north", "standard_name": "latitude", "axis": "Y"})


def longitudes():
    values = 10 + 0.25 * np.arange(10)
    return ("lon", values, {"units": "degrees_east", "standard_name": "longitude", "axis": "X"})


def times(dtype):
    return ("time", np.arange(4, dtype=dtype), {"units": "days since 2000-01-01", "calendar": "standard", "axis": "T"})


def mapping(epsg, name):
    attributes = {"grid_mapping_name": name, "crs_wkt": rasterio.crs.CRS.from_epsg(epsg).to_wkt()}
    return ((), np.int32(0), attributes)


def climate():
    levels = ("lev", np.array([1000.0, 850.0, 500.0]), {"units": "hPa", "positive": "down", "axis": "Z"})
    t = smooth((4, 3, 6, 10), "f4", 0.5) + np.float32(250)
    t[1, 2, 3, 4:7] = -9999
    pr = smooth((4, 6, 10), "i2", 3)
    pr[2, 1, :5] = -32768
    sst = smooth((6, 10), ">f8", 0.125)
    return xarray.Dataset({
        "t": (("time", "lev", "lat", "lon"), t, {"units": "K", "long_name": "air temperature", "_FillValue": np.float32(-9999)}),
        "pr": (("time", "lat", "lon"), pr, {"units": "mm day-1", "long_name": "precipitation", "scale_factor": 0.01,
                                            "add_offset": 5.0, "_FillValue": np.int16(-32768)}),
        "sst": (("lat", "lon"), sst, {"units": "degC", "missing_value": -1e30, "_FillValue": -1e30}),
        "mask": (("lat", "lon"), smooth((6, 10), "u1") % 2 * 200, {"long_name": "land"}),
        "zonal": (("lat",), smooth((6,), "f4"), {"units": "K"}),
        "total": ((), np.float64(12.5), {"units": "kg"}),
    }, {"time": times("i8"), "lev": levels, "lat": latitudes(50 - 0.5 * np.arange(6)), "lon": longitudes()},
        {"title": "Small climate", "Conventions": "CF-1.8", "version": 3, "bounds": [1.5, 2.5]})


def southup():
    tas = smooth((4, 6, 10), "f4", 0.25)
    return xarray.Dataset({
        "tas": (("time", "lat", "lon"), tas, {"units": "K", "grid_mapping": "crs", "_FillValue": np.float32("nan")}),
        "crs": mapping(WGS84, "latitude_longitude"),
    }, {"time": times("f8"), "lat": latitudes(-50 + 0.5 * np.arange(6)), "lon": longitudes()})


def gauss():
    nodes, _ = np.polynomial.legendre.leggauss(8)
    rain = smooth((4, 8, 10), "f4", 0.5)
    return xarray.Dataset({"rain": (("time", "lat", "lon"), rain, {"units": "mm", "_FillValue": np.float32(1e20)})},
                          {"time": times("i4"), "lat": latitudes(np.degrees(np.arcsin(nodes))[::-1]), "lon": longitudes()})


def utm():
    x = ("x", 500000 + 30.0 * np.arange(9), {"units": "m", "standard_name": "projection_x_coordinate"})
    y = ("y", 5400000 - 30.0 * np.arange(7), {"units": "m", "standard_name": "projection_y_coordinate"})
    bands = smooth((3, 7, 9), "i2", 11)
    return xarray.Dataset({
        "dem": (("y", "x"), smooth((7, 9), "i2", 7), {"units": "m", "grid_mapping": "spatial_ref", "_FillValue": np.int16(-1)}),
        "bands": (("band", "y", "x"), bands, {"grid_mapping": "spatial_ref", "long_name": "reflectance"}),
        "spatial_ref": mapping(UTM, "transverse_mercator"),
    }, {"y": y, "x": x})


def write_gridded(root):
    """Writes groups with xarray, which stores `_FillValue` as the array's fill value."""
    chunks = {"t": (2, 2, 4, 6), "pr": (3, 4, 6), "tas": (2, 6, 10), "rain": (4, 3, 4), "dem": (4, 5), "bands": (1, 7, 9)}
    for name, dataset in {"climate": climate(), "southup": southup(), "gauss": gauss(), "utm": utm()}.items():
        encoding = {v: {"chunks": c, "compressor": Blosc("zstd", 3)} for v, c in chunks.items() if v in dataset}
        for variable in dataset.variables:
            encoding.setdefault(variable, {}).setdefault("compressor", Zlib(1))
        if "pr" in dataset:
            encoding["pr"]["filters"] = [Delta("<i2")]
        dataset.to_zarr(os.path.join(root, name), mode="w", consolidated=False, encoding=encoding)


def write_image(root):
    """Writes an OME-NGFF 0.4 image, with a scale for each level and one for the whole image."""
    group = zarr.open_group(os.path.join(root, "image"), "w")
    axes = [{"name": "c", "type": "channel"}] + [{"name": n, "type": "space", "unit": "micrometer"} for n in "zyx"]
    levels = []
    for level, shape in enumerate([(2, 4, 16, 20), (2, 4, 8, 10)]):
        group.create_dataset(str(level), data=smooth(shape, "<u2", 3), chunks=(1, 2, 8, 8), dimension_separator="/")
        step = 0.25 * 2 ** level
        scale = {"type": "scale", "scale": [1.0, 2.0, step, step]}
        translation = {"type": "translation", "translation": [0.0, 10.0, 20 + step / 2, 30 + step / 2]}
        levels.append({"path": str(level), "coordinateTransformations": [scale, translation]})
    whole = [{"type": "scale", "scale": [1.0, 0.5, 1.0, 1.0]}]
    group.attrs["multiscales"] = [{"version": "0.4", "name": "cells", "axes": axes, "datasets": levels,
                                   "coordinateTransformations": whole}]


def write_gdal(root):
    """Writes a raster as GDAL's Zarr driver does."""
    group = zarr.open_group(os.path.join(root, "gdal"), "w")
    height = group.create_dataset("height", data=smooth((8, 12), "<f4", 2), chunks=(4, 4), fill_value=-32767)
    crs = rasterio.crs.CRS.from_epsg(UTM)
    height.attrs.update({"_ARRAY_DIMENSIONS": ["Y", "X"], "units": "metre",
                         "_CRS": {"wkt": crs.to_wkt(), "url": f"http://www.opengis.net/def/crs/EPSG/0/{UTM}"}})
    for name, first, step, n in [("X", 400010.0, 20.0, 12), ("Y", 5000990.0, -20.0, 8)]:
        axis = group.create_dataset(name, data=first + step * np.arange(n), fill_value=None)
        axis.attrs["_ARRAY_DIMENSIONS"] = [name]


def items(dtype, shape):
    dtype = np.dtype(dtype)
    ramp = smooth(shape)
    if dtype.kind in "SU":
        return np.array([f"{int(v)}" for v in ramp.ravel()], dtype).reshape(shape)
    if dtype.kind == "V":
        return ramp.astype("<u4").view(dtype)
    if dtype.kind == "M":
        return ramp.astype("<i8").astype(dtype)
    return (ramp * (1 - 0.5j)).astype(dtype) if dtype.kind == "c" else ramp.astype(dtype)


def write_bare(root):
    dtypes = zarr.open_group(os.path.join(root, "dtypes"), "w")
    for dtype in DTYPES:
        name = dtype.translate({ord(a): b for a, b in {"<": "le_", ">": "be_", "|": "", "[": "_", "]": None}.items()})
        dtypes.create_dataset(name, data=items(dtype, (4, 6, 10)), chunks=(3, 4, 4), compressor=Zlib(1), fill_value=None)
    for name, (stored, shown, fill) in SIGNS.items():
        values = (np.arange(240) * 257).reshape(4, 6, 10).astype(shown)
        array = dtypes.create_dataset(name, data=values.view(stored), chunks=(3, 4, 4), compressor=Zlib(1), fill_value=None)
        array.attrs.update({"_Unsigned": "true" if np.dtype(shown).kind == "u" else "false", "_FillValue": fill})
    words = dtypes.create_dataset("words", shape=5, chunks=2, dtype=str)
    words[:] = np.array(["one", "two", "", "four", "f\u00fcnf"], object)
    shapes = zarr.open_group(os.path.join(root, "shapes"), "w")
    for name, shape in SHAPES.items():
        chunks = tuple(max(1, n // 2) for n in shape)
        shapes.create_dataset(name, data=smooth(shape, "<f4"), chunks=chunks, fill_value=None)
    orders = zarr.open_group(os.path.join(root, "orders"), "w")
    orders.create_dataset("f", data=smooth((5, 6, 7), "<f8"), chunks=(2, 3, 4), order="F", fill_value=None)
    orders.create_dataset("bigendian", data=smooth((5, 6, 7), ">f4"), chunks=(2, 3, 4), compressor=None, fill_value=None)
    holes = orders.create_dataset("holes", shape=(8, 9), chunks=(4, 3), dtype="<i4", fill_value=-7)
    holes[:4, 3:6] = smooth((4, 3), "i4")


def axis(name, coordinates):
    """Describes an axis: by the first coordinate and the step if the coordinates are regular, otherwise by all
    coordinates."""
    found = {"name": name}
    if coordinates is not None and len(coordinates) > 1 and coordinates.dtype.kind in "iuf":
        steps = np.diff(coordinates.astype("f8"))
        if np.all(np.abs(steps - steps[0]) <= 1e-6 * abs(steps[0])):
            found |= {"first": float(coordinates[0]), "step": float(steps[0])}
        else:
            found["values"] = coordinates.tolist()
    return found


def geotransform(axes):
    if len(axes) >= 2 and all("step" in a for a in axes[-2:]):
        y, x = axes[-2:]
        return [x["first"] - x["step"] / 2, x["step"], 0, y["first"] - y["step"] / 2, 0, y["step"]]
    return None


def number(value):
    """Returns a number for JSON, which has no NaN."""
    return None if value is None else str(value) if np.isnan(value) else np.asarray(value).item()


def samples(array):
    if array.dtype.kind not in "iufb" or not array.size:
        return []
    places = [np.unravel_index(n, array.shape) for n in {0, array.size // 3, array.size // 2, array.size - 1}]
    return [{"index": [int(i) for i in place], "value": number(array[place])} for place in sorted(places)]


def digest(array):
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def plain(key, array):
    return {"key": key, "shape": list(array.shape), "dtype": array.dtype.str, "sha256": digest(array), "samples": samples(array)}


def told(root, group):
    """Yields the properties of each array in a group with the conventions of xarray or GDAL, as xarray reads them."""
    dataset = xarray.open_zarr(os.path.join(root, group), consolidated=False, mask_and_scale=False, decode_times=False)
    for name, variable in dataset.variables.items():
        attributes, values = variable.attrs, zarr.open_array(os.path.join(root, group, name), mode="r")[...]
        entry = plain(f"{group}/{name}", values)
        axes = [axis(d, dataset[d].values if d in dataset.variables else None) for d in variable.dims]
        where = attributes.get("grid_mapping") or variable.encoding.get("grid_mapping")
        epsg = {"crs": WGS84, "spatial_ref": UTM}.get(where) or (UTM if "_CRS" in attributes else None)
        entry |= {"axes": axes, "geotransform": geotransform(axes), "epsg": epsg,
                  "nodata": number(attributes.get("_FillValue", attributes.get("missing_value"))),
                  "scale": attributes.get("scale_factor"), "offset": attributes.get("add_offset"),
                  "units": attributes.get("units"), "long_name": attributes.get("long_name")}
        yield entry


def told_image(root):
    group = zarr.open_group(os.path.join(root, "image"), "r")
    [image] = group.attrs["multiscales"]
    for level in image["datasets"]:
        scale, shift = (np.array(t[t["type"]]) for t in level["coordinateTransformations"])
        whole = np.array(image["coordinateTransformations"][0]["scale"])
        array = group[level["path"]][...]
        axes = [{"name": a["name"]} for a in image["axes"]]
        for n in range(1, 4):
            axes[n] |= {"first": float(shift[n] * whole[n]), "step": float(scale[n] * whole[n]), "unit": "micrometer"}
        yield plain(f"image/{level['path']}", array) | {"axes": axes, "geotransform": geotransform(axes)}


def main():
    [directory] = sys.argv[1:]
    root = os.path.join(directory, "geo.zarr")
    shutil.rmtree(root, ignore_errors=True)
    zarr.open_group(root, "w").attrs["title"] = "arrays for programs that know nothing of Zarr"
    write_gridded(root)
    write_image(root)
    write_gdal(root)
    write_bare(root)
    entries = [e for group in ("climate", "southup", "gauss", "utm", "gdal") for e in told(root, group)]
    entries += told_image(root)
    for group in ("dtypes", "shapes", "orders"):
        for name, array in sorted(zarr.open_group(os.path.join(root, group), "r").arrays()):
            if name in SIGNS:
                shown = np.dtype(SIGNS[name][1])
                fill = np.array(SIGNS[name][2]).astype(SIGNS[name][0]).view(shown)
                entries.append(plain(f"{group}/{name}", array[...].view(shown)) | {"nodata": number(fill)})
            elif array.dtype != object:
                entries.append(plain(f"{group}/{name}", array[...]))
    with open(os.path.join(directory, "expected.json"), "w") as f:
        json.dump(entries, f, indent=1)
    print(f"{root}: {len(entries)} arrays")


if __name__ == "__main__":
    main()
