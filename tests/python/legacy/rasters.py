"""GDAL's own programs and Spectral Python on data.vrt, data.raw.hdr and data.tif; GMT on dataset.nc."""
import json
import os
import tempfile

import numpy as np
import rasterio
import spectral.io.envi

from expected import planes, same
from headers import page
from table import decoded, row, run, version

GDAL = version("gdalinfo", "--version")
# GDAL has signed bytes since 3.7, and 3.6 refuses 64-bit integers in headers of ENVI; those of TIFF are left out as
# well
OLD = tuple(int(n) for n in GDAL.split(".")[:2]) < (3, 7)


def translated(path):
    """Returns the values of all bands as gdal_translate writes them."""
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "out.tif")
        run("gdal_translate", "-q", path, out)
        with rasterio.open(out) as raster:
            return raster.read()


def gdal(array, name, values=None, is_placed=True):
    info = json.loads(run("gdalinfo", "-json", name))
    values = planes(array.numbers()) if values is None else values
    bands = info["bands"]
    same("size", [len(bands), *info["size"][::-1]], list(values.shape))
    same("values", translated(name), values)
    if array.geotransform and is_placed:
        same("geotransform", info["geoTransform"], [float(x) for x in array.geotransform])
    if array.epsg and is_placed:
        same("EPSG code in the WKT", f'ID["EPSG",{array.epsg}]' in info["coordinateSystem"]["wkt"], True)
    if array.has_metadata:
        for band in bands:
            nodata = band.get("noDataValue")
            nodata = None if nodata is None else float(nodata)
            same(f"nodata is {array.fill()} and not {nodata}", array.is_fill(nodata), True)
            same("scale and offset", [band.get("scale", 1.0), band.get("offset", 0.0)],
                 [array.scale or 1.0, array.offset or 0.0])
    return bands


@row("data.vrt", "gdalinfo, gdal_translate", GDAL, "values, geotransform, CRS, nodata, scale, offset, units",
     lambda a: not (OLD and a.dtype.str[1:] == "i1"))
def vrt(array):
    for band in gdal(array, array.file("data.vrt")):
        if array.has_metadata:
            same("units", band.get("unit"), array.units)


@row("data.raw.hdr", "gdalinfo, gdal_translate", GDAL, "values, geotransform, CRS, nodata, scale, offset",
     lambda a: not (OLD and a.dtype.str[1:] in ("i8", "u8")))
def envi(array):
    gdal(array, array.file("data.raw"), is_placed=bool(array.geotransform) and array.geotransform[5] < 0)


@row("data.tif", "gdalinfo, gdal_translate", GDAL, "values, geotransform, CRS, nodata, scale, offset",
     lambda a: not (OLD and a.dtype.str[1:] in ("i1", "i8", "u8")))
def tif(array):
    for n, plane in enumerate(planes(array.numbers())):
        gdal(array, page(array, n), plane[None])


@row("data.raw.hdr", "Spectral Python", spectral.__version__, "values, by its memory map")
def spectral_python(array):
    image = spectral.io.envi.open(array.file("data.raw.hdr"), array.file("data.raw"))
    same("values", np.array(image.open_memmap(interleave="bsq")), planes(array.numbers()))


def north_up(array, values):
    return values[..., ::-1, :] if array.steps()[1] > 0 else values


@row("dataset.nc", "gdalinfo, gdal_translate", GDAL, "values, geotransform, CRS, nodata, scale, offset",
     lambda group: bool(group.grids()) and all(a.geotransform for a in group.grids()) and not group.is_cdf5())
def netcdf(group):
    for array in group.grids():
        name = f'NETCDF:"{group.file("dataset.nc")}":{array.name}'
        info = json.loads(run("gdalinfo", "-json", name))
        x, dx, _, y, _, dy = array.geotransform
        wanted = [x, dx, 0.0, y, 0.0, dy] if dy < 0 else [x, dx, 0.0, y + dy * array.shape[-2], 0.0, -dy]
        same(f"{array.name}: geotransform", info["geoTransform"], wanted)
        if array.epsg:
            same(f"{array.name}: EPSG code", f'ID["EPSG",{array.epsg}]' in info["coordinateSystem"]["wkt"], True)
        same(f"{array.name}: values", translated(name), planes(north_up(array, array.numbers())))
        for band in info["bands"]:
            if array.fill() is not None:
                same(f"{array.name}: nodata", float(band["noDataValue"]), array.fill())
            same(f"{array.name}: scale and offset", [band.get("scale", 1.0), band.get("offset", 0.0)],
                 [array.scale or 1.0, array.offset or 0.0])


def planes_on_a_grid(group):
    return [a for a in group.grids() if len(a.shape) == 2 and a.geotransform]


@row("dataset.nc", "gmt grdinfo, grd2xyz", version("gmt", "--version"), "values, coordinates",
     lambda group: bool(planes_on_a_grid(group)))
def gmt(group):
    for array in planes_on_a_grid(group):
        name = f"{group.file('dataset.nc')}?{array.name}"
        found = [float(x) for x in run("gmt", "grdinfo", "-C", name).split("\t")[1:12]]
        x, y = array.coordinates(1), array.coordinates(0)
        dx, dy = (abs(step) for step in array.steps())
        # GMT treats coordinates between whole steps as pixel centers, and shows the range from edge to edge
        edge = found[10] / 2
        same(f"{array.name}: region", found[:4],
             [min(x) - edge * dx, max(x) + edge * dx, min(y) - edge * dy, max(y) + edge * dy])
        same(f"{array.name}: steps", found[6:8], [dx, dy])
        values = np.frombuffer(run("gmt", "grd2xyz", name, "-ZTLd", binary=True), "<f8")
        wanted = north_up(array, group.signed(array, decoded(array)))
        same(f"{array.name}: values", values.reshape(wanted.shape), np.float32(wanted).astype("f8"))
