"""The Python libraries that tests/formats/headers.rs uses as well, with the checks of headers.py."""
import nibabel
import nrrd
import netCDF4
import numpy
import rasterio
import SimpleITK
import tifffile
import xarray

import headers
from table import row

RASTERIO = f"{rasterio.__version__} (GDAL {rasterio.__gdal_version__})"
ITK = SimpleITK.Version.VersionString()
CHECKS = [
    ("npy", "numpy.load, also mapped", numpy.__version__, "every byte, values"),
    ("vrt", "rasterio", RASTERIO, "values, geotransform, CRS, nodata, scale, offset, units, bands' names"),
    ("envi", "rasterio", RASTERIO, "values, geotransform, CRS, nodata, scale, offset"),
    ("tiff_raster", "rasterio", RASTERIO, "values, geotransform, CRS, nodata, scale, offset"),
    ("tiff", "tifffile, also mapped", tifffile.__version__, "values"),
    ("pynrrd", "pynrrd", nrrd.__version__, "values, origin, directions, names of axes"),
    ("itk_nrrd", "SimpleITK", ITK, "values, spacing, origin, direction"),
    ("itk_meta_image", "SimpleITK", ITK, "values, spacing, origin, direction"),
    ("nifti", "nibabel", nibabel.__version__, "values, affine, scale, offset"),
    ("itk_nifti", "SimpleITK", ITK, "values"),
    ("itk_tiff", "SimpleITK", ITK, "values"),
]
DATASETS = [
    ("netcdf", "netCDF4-python", netCDF4.__version__, "types, dimensions, values, fill values, units"),
    ("xarray_netcdf", "xarray, engine netcdf4", xarray.__version__, "the data set of the Zarr group, with attributes"),
]

for name, program, number, what in CHECKS:
    takes = lambda array, name=name: not headers.beyond(name, array)  # noqa: E731
    row(headers.FILES[name], program, number, what, takes)(headers.CHECKS[name])
for name, program, number, what in DATASETS:
    takes = lambda group, name=name: headers.takes_group(name, group.arrays)  # noqa: E731
    row("dataset.nc", program, number, what, takes)(lambda group, name=name: headers.CHECKS[name](group.arrays))
