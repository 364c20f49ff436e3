#!/usr/bin/env python3
"""Opens headers and containers with the libraries for which they exist. Compares the values with those that zarr-python
reads from the store.

    headers.py MOUNT DIR CHECK...      (with scripts/requirements/zarr2.txt; geo.py has written DIR)

Prints a line with the number of comparisons for each check; exit code 1 after differences.
"""
import io
import os
import sys
import warnings

import netCDF4
import nibabel
import nrrd
import numpy as np
import rasterio
import SimpleITK as sitk
import tifffile
import xarray

from expected import Different, load, planes, same

warnings.simplefilter("ignore")

CHECKS = {}


def check(function):
    CHECKS[function.__name__] = function
    return function


def npy_file(values):
    """Returns the bytes that numpy.save writes."""
    out = io.BytesIO()
    np.save(out, np.ascontiguousarray(values).reshape(values.shape))
    return out.getvalue()


@check
def npy(array):
    """NumPy: every byte of the file, and the values of numpy.load, also as a map."""
    values = array.stored_values()
    with open(array.file("data.npy"), "rb") as f:
        content = f.read()
    wanted = npy_file(values)
    same("header", content[:len(content) - values.nbytes], wanted[:len(wanted) - values.nbytes])
    same("file", content == wanted, True)
    same("values", np.load(array.file("data.npy")), values)
    if values.size:
        mapped = np.load(array.file("data.npy"), mmap_mode="r")
        same("dtype", mapped.dtype, values.dtype)
        same("map", np.array(mapped), values)


def raster(array, name, driver, values=None, is_placed=True):
    with rasterio.open(name) as dataset:
        same("driver", dataset.driver, driver)
        same("values", dataset.read(), planes(array.numbers()) if values is None else values)
        if array.geotransform and is_placed:
            same("geotransform", list(dataset.transform.to_gdal()), array.geotransform)
        if array.epsg and is_placed:
            same("CRS", dataset.crs and dataset.crs.to_epsg(), array.epsg)
        if array.has_metadata:
            for band in dataset.nodatavals:
                same(f"nodata is {array.fill()} and not {band}", array.is_fill(band), True)
            same("scales", set(dataset.scales), {array.scale or 1.0})
            same("offsets", set(dataset.offsets), {array.offset or 0.0})
        return dataset.descriptions, dataset.units


@check
def vrt(array):
    """rasterio: values, geotransform, CRS, nodata, scale, offset, units and the bands' names."""
    descriptions, units = raster(array, array.file("data.vrt"), "VRT")
    if array.has_metadata:
        same("units", set(units), {array.units})
    for description, label in zip(descriptions, array.labels() if array.is_named() else ()):
        for name, coordinate in label if array.group != "image" else ():
            shown = f"{name}={coordinate:g}" if coordinate is not None else name
            if name == "time" and coordinate is not None:
                shown = f"time={np.datetime64('2000-01-01T00:00:00') + np.timedelta64(int(coordinate * 86400), 's')}"
            same(f"{shown} in the band's name {description!r}", shown in description, True)


@check
def envi(array):
    """rasterio: values, geotransform, CRS, nodata, scale and offset."""
    # "map info" cannot state that rows go north
    north_up = bool(array.geotransform) and array.geotransform[5] < 0
    raster(array, array.file("data.raw"), "ENVI", is_placed=north_up)


def page(array, n):
    """Returns the name that GDAL gives to a plane of data.tif."""
    return f"GTIFF_DIR:{n + 1}:{array.file('data.tif')}"


@check
def tiff_raster(array):
    """rasterio: values, geotransform, CRS, nodata, scale and offset of each page."""
    for n, plane in enumerate(planes(array.numbers())):
        raster(array, page(array, n), "GTiff", plane[None])


@check
def tiff(array):
    """tifffile: values, also as a map."""
    values = array.numbers()
    found = tifffile.imread(array.file("data.tif"))
    same("values", found.reshape(values.shape), values)
    if values.itemsize <= 8:  # tifffile maps no larger items
        mapped = tifffile.memmap(array.file("data.tif"), mode="r")
        same("map", np.array(mapped).reshape(values.shape), values)


@check
def itk_tiff(array):
    """SimpleITK: values."""
    image = sitk.ReadImage(array.file("data.tif"))
    same("values", sitk.GetArrayFromImage(image).reshape(array.shape), array.numbers())


@check
def pynrrd(array):
    """pynrrd: values, names of axes, origin and directions."""
    values, header = nrrd.read(array.file("data.nhdr"), index_order="C")
    same("values", values, array.numbers())
    if array.is_regular():
        same("origin", list(header["space origin"]), array.origin())
        same("directions", np.array(header["space directions"]), np.diag(array.steps()))
    if array.is_named():
        same("labels", header["labels"], array.names()[::-1])


def itk(array, name):
    """Compares values, spacing, origin, and direction, which has the signs of the steps."""
    image = sitk.ReadImage(array.file(name))
    values, n = array.numbers(), image.GetDimension()
    same("values", sitk.GetArrayFromImage(image).reshape(values.shape), values)
    if array.is_regular() and n == len(array.shape):
        same("steps", [s * d for s, d in zip(image.GetSpacing(), image.GetDirection()[::n + 1])], array.steps())
        same("origin", list(image.GetOrigin()), array.origin())


@check
def itk_nrrd(array):
    """SimpleITK: values, spacing, origin and direction."""
    itk(array, "data.nhdr")


@check
def itk_meta_image(array):
    """SimpleITK: values, spacing, origin and direction."""
    itk(array, "data.mhd")


@check
def nifti(array):
    """nibabel: values, affine, scale and offset."""
    image = nibabel.load(array.file("data.nii"))
    values = array.values()
    same("values", np.asarray(image.dataobj.get_unscaled()).reshape(values.T.shape).T, values)
    if array.has_metadata:
        found = [float(image.dataobj.slope), float(image.dataobj.inter)]
        same("scale and offset", np.float32(found), np.float32([array.scale or 1, array.offset or 0]))
    if array.is_regular() and len(array.shape) == 3:
        same("steps", np.float32(np.diag(image.affine)[:3]), np.float32(array.steps()))
        same("origin", np.float32(image.affine[:3, 3]), np.float32(array.origin()))


@check
def itk_nifti(array):
    """SimpleITK: values, which it scales."""
    image = sitk.ReadImage(array.file("data.nii"))
    found, values = sitk.GetArrayFromImage(image).reshape(array.shape), array.numbers()
    if array.scale or array.offset:
        found, values = np.round(found, 3), np.round((values * array.scale + array.offset).astype(found.dtype), 3)
    same("values", found, values)


def dataset_of(arrays):
    return os.path.join(os.path.dirname(arrays[0].path), "dataset.nc")


def is_variable(array):
    """Whether netCDF has a type for an array. A dimension of length 0 would be the unlimited one."""
    return array.dtype.kind in "iuf" and 0 not in array.shape


@check
def netcdf(arrays):
    """netCDF4: each array of numbers is a variable with its dimensions, values, fill value and units."""
    with netCDF4.Dataset(dataset_of(arrays)) as dataset:
        dataset.set_auto_maskandscale(False)
        for array in filter(is_variable, arrays):
            variable = dataset[array.name]
            # 64-bit integer times are shown as floats, which more programs read
            is_time = array.dtype.str[1:] == "i8" and " since " in (array.units or "")
            is_half = array.dtype.str[1:] == "f2"
            dtype = np.dtype("f8" if is_time else "f4" if is_half else array.dtype.newbyteorder("="))
            found = np.asarray(variable[...])
            has_sign = hasattr(variable, "_Unsigned")
            if has_sign:
                found = found.view(dtype)
            same(f"{array.key}: dtype", found.dtype.newbyteorder("="), dtype)
            same(f"{array.key}: values", found, array.values().astype(dtype))
            if array.is_named() and array.group != "image":
                same(f"{array.key}: dimensions", list(variable.dimensions), array.names())
            if array.fill() is not None:
                fill = np.asarray(variable._FillValue)
                same(f"{array.key}: fill value", float(fill.view(dtype) if has_sign else fill), array.fill())
            if array.units and array.group != "image":
                same(f"{array.key}: units", variable.units, array.units)


@check
def xarray_netcdf(arrays):
    """xarray: the dataset must equal that of the Zarr group: decoded values, coordinates and attributes."""
    found = xarray.open_dataset(dataset_of(arrays), engine="netcdf4").load()
    wanted = xarray.open_zarr(os.path.dirname(arrays[0].stored), consolidated=False).load()
    xarray.testing.assert_equal(found, wanted)
    for name in wanted.variables:
        same(f"attributes of {name}", plain(found[name].attrs), plain(wanted[name].attrs))
    same("attributes of the group", plain(found.attrs), plain(wanted.attrs))


def plain(attributes):
    """Converts NumPy values to lists and numbers."""
    return {name: np.asarray(value).tolist() for name, value in attributes.items()}


REAL = {np.dtype(c).str[1:] for c in "bBhHiIqQfd"}
NUMBERS = REAL | {"c8", "c16"}
EVERY = None
# the headers, with the types of items and the numbers of dimensions that they can describe
HEADERS = {
    "data.npy": (EVERY, EVERY),
    "README.txt": (EVERY, EVERY),
    "data.vrt": (NUMBERS, range(1, 33)),
    "data.raw.hdr": (NUMBERS - {"i1"}, range(1, 33)),
    "data.nhdr": (REAL, range(2, 5)),
    "data.mhd": (REAL - {"i8", "u8"}, range(2, 4)),
    "data.xmf": (REAL - {"u8"}, range(2, 5)),
}


def wanted_files(array):
    """Returns the names of the headers that can describe an array correctly."""
    item = array.dtype.str[1:].replace("b1", "u1")
    has_items = array.dtype.kind in "biufc" and 0 not in array.shape
    return {name for name, (items, dimensions) in HEADERS.items()
            if items is EVERY or has_items and item in items and len(array.shape) in dimensions}


CONTAINERS = {"data.nii", "data.tif", "dataset.nc", "preview.png"}


@check
def presence(array):
    """Directory: it lists exactly the headers that can describe the array, and finds only them by name."""
    wanted = wanted_files(array)
    names = set(os.listdir(array.path))
    known = set(HEADERS)
    same("listed", sorted(names & known), sorted(wanted))
    same("found by name", sorted(name for name in known if array.has(name)), sorted(wanted))
    for name in sorted(names & (known | CONTAINERS)):
        with open(array.file(name), "rb") as f:
            same(f"size of {name}", len(f.read()), os.stat(array.file(name)).st_size)


FILES = {"npy": "data.npy", "vrt": "data.vrt", "envi": "data.raw.hdr", "tiff": "data.tif", "tiff_raster": "data.tif",
         "pynrrd": "data.nhdr", "itk_nrrd": "data.nhdr", "itk_meta_image": "data.mhd", "nifti": "data.nii",
         "itk_nifti": "data.nii", "itk_tiff": "data.tif", "presence": "data.raw"}


def beyond(name, array):
    """Whether a file is correct, but of a kind that this reader does not support."""
    if name == "itk_tiff":
        # the TIFF reader of ITK has no 64-bit samples, and reads half floats as integers
        return array.dtype.itemsize > 4 or array.dtype.str[1:] == "f2"
    # SimpleITK is built for 2 to 5 dimensions
    return name.startswith("itk") and not 2 <= len(array.shape) <= 5


def takes_group(name, arrays):
    """Whether a check can read a group. xarray reads only arrays that name their dimensions as it does, and not the
    attributes of GDAL, which are neither strings nor numbers."""
    return name != "xarray_netcdf" or arrays[0].has_metadata and arrays[0].group not in ("image", "gdal")


def subjects(name, arrays):
    """Returns the arrays or groups for a check, by name."""
    if name in FILES:
        return {a.key: a for a in arrays if a.has(FILES[name]) and not beyond(name, a)}
    groups = {}
    for array in arrays:
        groups.setdefault(array.group, []).append(array)
    return {key: members for key, members in groups.items() if takes_group(name, members)}


def main():
    mount, directory, *names = sys.argv[1:]
    arrays = load(mount, directory)
    failed = False
    for name in names:
        there, faults = subjects(name, arrays), []
        for key, subject in there.items():
            try:
                CHECKS[name](subject)
            except Different as e:
                faults.append(f"  {key}: {e}")
            except Exception as e:  # the error of a library that cannot read the file
                faults.append(f"  {key}: {type(e).__name__}: {e}")
        print("\n".join([f"{name}: {len(there)} compared, {len(faults)} wrong", *faults]))
        failed |= bool(faults) or not there
    sys.exit(failed)


if __name__ == "__main__":
    main()
