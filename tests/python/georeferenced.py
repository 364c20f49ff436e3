#!/usr/bin/env python3
"""Opens georeferenced arrays of many conventions and orders of dimensions with GDAL (rasterio) in a mount.

    georeferenced.py make DIR         writes DIR/cf.zarr, as xarray and rioxarray do (zarr 2, rioxarray)
    georeferenced.py geozarr DIR      writes DIR/geozarr.zarr by GeoZarr and DIR/eopf.zarr by EOPF (zarr 3)
    georeferenced.py read MOUNT DIR STORE  compares the headers of STORE, mounted at MOUNT, with what was written

Each writer leaves DIR/expected: for each array its values as bands of rows and columns, its reference system and its
transform, as rasterio's Affine has them.
"""
import json
import os
import shutil
import subprocess
import sys
import warnings

import numpy as np

warnings.simplefilter("ignore")
UTM = "EPSG:32633"
ROWS, COLUMNS = 5, 7
NORTH_UP = (10.0, 0.0, 600_000.0, 0.0, -10.0, 5_100_040.0)
ALL, NO_TIFF, VRT = ["data.vrt", "data.raw", "data.tif"], ["data.vrt", "data.raw"], ["data.vrt"]


class Expected:
    """What readers have to find, by store and path of the array."""

    def __init__(self, folder):
        self.folder = os.path.join(folder, "expected")
        os.makedirs(self.folder, exist_ok=True)

    def add(self, store, path, bands, crs, transform, files=ALL, overviews=(), scale=1):
        name = f"{store}-{path.replace('/', '-')}"
        np.save(os.path.join(self.folder, name + ".npy"), bands)
        fields = {"path": path, "crs": crs, "transform": transform, "files": files, "overviews": list(overviews),
                  "scale": scale}
        with open(os.path.join(self.folder, name + ".json"), "w") as file:
            json.dump(fields, file)

    def of(self, store):
        for name in sorted(os.listdir(self.folder)):
            if name.startswith(store + "-") and name.endswith(".json"):
                with open(os.path.join(self.folder, name)) as file:
                    fields = json.load(file)
                yield fields, np.load(os.path.join(self.folder, name[:-5] + ".npy"))


def bands(rng, count):
    return rng.integers(0, 1000, (count, ROWS, COLUMNS)).astype("i2")


def centers(transform):
    dx, _, left, _, dy, top = transform
    return {"x": left + dx * (np.arange(COLUMNS) + 0.5), "y": top + dy * (np.arange(ROWS) + 0.5)}


def make(folder):
    import pyproj
    import rasterio
    import rioxarray  # noqa: F401  adds the accessor
    import xarray

    rng = np.random.default_rng(7)
    expected = Expected(folder)
    store = os.path.join(folder, "cf.zarr")

    def write(name, array, *found, **more):
        array.rename("v").to_dataset(promote_attrs=True).to_zarr(store, group=name, mode="w", consolidated=False)
        expected.add("cf", f"{name}/v", *found, **more)

    def array(values, coordinates, crs=UTM):
        three = xarray.DataArray(values, {"band": np.arange(len(values)), **coordinates}, ["band", "y", "x"])
        return three.rio.write_crs(crs)

    # orders of dimensions; xarray would divide by a scale_factor of the encoding
    packed_with = {"scale_factor": 0.5, "add_offset": 3.0, "units": "K"}
    for name, order, files in [
        ("sequential", ["band", "y", "x"], ALL),
        ("by_line", ["y", "band", "x"], NO_TIFF),
        ("by_pixel", ["y", "x", "band"], ALL),
        ("transposed", ["band", "x", "y"], VRT),
        ("columns_first", ["x", "band", "y"], VRT),
    ]:
        values = bands(rng, 3)
        packed = array(values, centers(NORTH_UP)).transpose(*order).assign_attrs(packed_with)
        write(name, packed, values, UTM, NORTH_UP, files, scale=0.5)

    # what a grid mapping says without coordinates
    for name, transform, files in [
        ("rotated", tuple(rasterio.Affine.translation(600_000, 5_100_000) * rasterio.Affine.rotation(30)
                          * rasterio.Affine.scale(10, -10))[:6], ALL),
        ("sheared", (10.0, 2.0, 600_000.0, 1.0, -20.0, 5_100_000.0), ["data.vrt", "data.tif"]),
    ]:
        values = bands(rng, 1)
        placed = array(values, {}).rio.write_transform(rasterio.Affine(*transform))
        write(name, placed, values, UTM, transform, files)
    values = bands(rng, 1)[:, :1]
    one_row = xarray.DataArray(values, {"x": centers(NORTH_UP)["x"], "y": [5_100_035.0]}, ["band", "y", "x"])
    placed = one_row.rio.write_crs(UTM).rio.write_transform(rasterio.Affine(*NORTH_UP))
    write("one_row", placed, values, UTM, NORTH_UP)
    # the height of the row is not known, but the reference system is; GDAL reads it from no ENVI header then
    write("one_row_alone", one_row.rio.write_crs(UTM), values, UTM, None, ["data.vrt", "data.tif"])

    # units of the axes differ from those of the reference system
    values = bands(rng, 1)
    kilometers = {name: (name, x / 1000, {"units": "km"}) for name, x in centers(NORTH_UP).items()}
    write("kilometers", array(values, kilometers), values, UTM, NORTH_UP)
    height, step = 35_786_023.0, 5.6e-5
    angles = {"x": ("x", step * np.arange(COLUMNS), {"units": "rad", "standard_name": "projection_x_coordinate"}),
              "y": ("y", -step * np.arange(ROWS), {"units": "rad", "standard_name": "projection_y_coordinate"})}
    goes = pyproj.CRS(f"+proj=geos +lon_0=-75 +h={height} +sweep=x +a=6378137 +rf=298.257222096 +units=m")
    seen = xarray.DataArray(values[0].view("u2"), angles, ["y", "x"], attrs={"grid_mapping": "goes"})
    seen.rename("v").to_dataset().assign(goes=xarray.DataArray(np.int32(0), attrs={
        "grid_mapping_name": "geostationary", "perspective_point_height": height, "semi_major_axis": 6378137.0,
        "semi_minor_axis": 6356752.31414, "longitude_of_projection_origin": -75.0, "sweep_angle_axis": "x",
    })).to_zarr(store, group="goes", mode="w", consolidated=False)
    d = step * height
    expected.add("cf", "goes/v", values.view("u2"), goes.to_wkt(), (d, 0.0, -d / 2, 0.0, -d, d / 2))

    one_row = xarray.DataArray(values[:, :1], {"x": kilometers["x"], "y": ("y", [5100.035], {"units": "km"})},
                               ["band", "y", "x"])
    placed = one_row.rio.write_crs(UTM).rio.write_transform(rasterio.Affine(*NORTH_UP))
    write("row_in_kilometers", placed, values[:, :1], UTM, NORTH_UP)

    # each pixel has a longitude and a latitude
    y, x = np.mgrid[0:ROWS, 0:COLUMNS].astype("f8")
    curvilinear = xarray.DataArray(values[0], {
        "lon": (("j", "i"), 10 + 0.5 * x - 0.1 * y, {"units": "degrees_east", "standard_name": "longitude"}),
        "lat": (("j", "i"), 50 - 0.4 * y - 0.1 * x, {"units": "degrees_north", "standard_name": "latitude"}),
    }, ["j", "i"])
    write("curvilinear", curvilinear, values, None, None)


def geozarr(folder):
    import zarr

    rng = np.random.default_rng(8)
    expected = Expected(folder)
    root = zarr.open_group(os.path.join(folder, "geozarr.zarr"), mode="w", zarr_format=3)
    named = {"spatial:dimensions": ["northing", "easting"], "spatial:transform": list(NORTH_UP)}
    code = {"proj:code": UTM}
    left, top = NORTH_UP[2], NORTH_UP[5]
    box = [left, top - 10.0 * ROWS, left + 10.0 * COLUMNS, top]
    shape = {"spatial:shape": [ROWS, COLUMNS]}
    # the transform of nodes is that of the centers of pixels
    nodes = [10.0, 0.0, left + 5, 0.0, -10.0, top - 5]
    of_nodes = {"spatial:registration": "node"}
    node_box = [box[0] + 5, box[1] + 5, box[2] - 5, box[3] - 5]
    projjson = {"type": "ProjectedCRS", "name": "x", "id": {"authority": "EPSG", "code": 32633}}
    for name, of_group, of_array in [
        ("array", {}, named | code),
        ("group", code, named),
        ("all_of_group", named | code, {}),
        ("overridden", code | {"spatial:transform": [1.0, 0, 0, 0, -1.0, 0]} | shape, named),
        ("other_shape", {"spatial:transform": [1.0, 0, 0, 0, -1.0, 0], "spatial:shape": [50, 70],
                         "spatial:bbox": box, "spatial:dimensions": ["northing", "easting"]}, code),
        ("bounds", {}, {"spatial:dimensions": named["spatial:dimensions"], "spatial:bbox": box} | code),
        ("nodes", {}, named | code | of_nodes | {"spatial:transform": nodes}),
        ("bounds_of_nodes", code, {"spatial:dimensions": named["spatial:dimensions"], "spatial:bbox": node_box} | of_nodes),
        ("projjson", {}, named | {"proj:projjson": projjson}),
        # a statement that places nothing hides none that does
        ("useless_bounds", code | named, {"spatial:bbox": [5, 5, 5, 5]}),
    ]:
        group = root.create_group(name, attributes=of_group)
        values = bands(rng, 2)
        array = group.create_array("v", shape=values.shape, chunks=(1, 3, 4), dtype=values.dtype, attributes=of_array,
                                   dimension_names=["band", "northing", "easting"])
        array[:] = values
        # the PROJJSON is none that GDAL accepts, and ENVI does not have it
        files = ["data.tif"] if name == "projjson" else ALL
        expected.add("geozarr", f"{name}/v", values, UTM, NORTH_UP, files)

    # codes of which only ranges tell what they are, and unlike scales of samples
    for name, crs in [("lambert", "EPSG:2154"), ("nad83", "EPSG:4269"), ("crs84", "OGC:CRS84")]:
        values = bands(rng, 1)[0]
        array = root.create_array(f"codes/{name}", shape=values.shape, chunks=values.shape, dtype=values.dtype,
                                  attributes=named | {"proj:code": crs}, dimension_names=["northing", "easting"])
        array[:] = values
        crs = "EPSG:4326" if name == "crs84" else crs
        expected.add("geozarr", f"codes/{name}", values[None], crs, NORTH_UP, ["data.vrt", "data.tif"])

    # levels that are none: another number of bands, of no rows, transposed
    for name, shapes in [("fewer_bands", [(2, 4, 6), (1, 2, 3)]), ("no_rows", [(2, 4, 6), (2, 0, 3)])]:
        layout = [{"asset": str(level)} for level in range(2)]
        group = root.create_group(name, attributes=named | code | {"multiscales": {"layout": layout}})
        for level, shape in enumerate(shapes):
            group.create_array(str(level), shape=shape, chunks=(1, 2, 3), dtype="i2",
                               dimension_names=["band", "northing", "easting"])
        expected.add("geozarr", f"{name}/0", np.zeros(shapes[0], "i2"), UTM, NORTH_UP)

    # a pyramid of groups and one of arrays
    levels = [bands(rng, 2)]
    levels += [levels[0][:, ::2, ::2], levels[0][:, ::4, ::4]]
    for name, path in [("groups", "{}/v"), ("arrays", "{}")]:
        layout = [{"asset": "r10"}] + [
            {"asset": f"r{10 * factor}", "derived_from": "r10", "transform": {"scale": [factor, factor]}}
            for factor in [2, 4]
        ]
        # the levels of arrays have transforms, those of groups cover the bounds
        for level in layout if name == "arrays" else []:
            factor = int(level["asset"][1:]) // 10
            level["spatial:transform"] = [10.0 * factor, 0.0, left, 0.0, -10.0 * factor, top]
        group = root.create_group(name, attributes=named | code | {"multiscales": {"layout": layout}, "spatial:bbox": box})
        for number, values in enumerate(levels):
            array = group.create_array(path.format(f"r{10 * 2 ** number}"), shape=values.shape, chunks=values.shape,
                                       dtype=values.dtype, dimension_names=["band", "northing", "easting"])
            array[:] = values
            dx, dy = 10.0 * COLUMNS / values.shape[2], 10.0 * ROWS / values.shape[1]
            if name == "arrays":
                dx = dy = 10.0 * 2 ** number
            expected.add("geozarr", f"{name}/{array.basename if name == 'arrays' else array.path.split('/', 1)[1]}",
                         values, UTM, (dx, 0.0, left, 0.0, -dy, top), overviews=[v.shape for v in levels[number + 1:]])

    root = zarr.open_group(os.path.join(folder, "eopf.zarr"), mode="w", zarr_format=2)
    root.attrs["stac_discovery"] = {"type": "Feature", "properties": {"proj:epsg": 32633}}
    for name, attributes in [
        ("b02", {"proj:epsg": 32633, "proj:transform": [*NORTH_UP, 0.0, 0.0, 1.0], "proj:shape": [ROWS, COLUMNS]}),
        ("b03", {"proj:bbox": box, "proj:shape": [ROWS, COLUMNS]}),
    ]:
        values = bands(rng, 1).view("u2")
        array = root.create_array(f"measurements/r10m/{name}", shape=values[0].shape, chunks=(5, 5), dtype="<u2")
        array.attrs.update(attributes | {"_ARRAY_DIMENSIONS": ["y", "x"]})
        array[:] = values[0]
        expected.add("eopf", f"measurements/r10m/{name}", values, UTM, NORTH_UP)


def read(mount, folder, store):
    import rasterio
    import tifffile
    from rasterio import warp
    from rasterio.crs import CRS

    count = 0
    for fields, values in Expected(folder).of(store):
        for name in fields["files"]:
            path = os.path.join(mount, fields["path"], name)
            with rasterio.open(path) as shown:
                what = f"{fields['path']}/{name}"
                found = shown.read()
                if name == "data.tif" and len(found) < len(values):
                    # the bands are pages
                    found = np.concatenate([rasterio.open(f"GTIFF_DIR:{n + 1}:{path}").read() for n in range(len(values))])
                np.testing.assert_array_equal(found, values, what)
                transform = fields["transform"] or (1, 0, 0, 0, 1, 0)
                if fields["crs"] is None or fields["crs"].startswith("EPSG"):
                    crs = fields["crs"] and CRS.from_user_input(fields["crs"])
                    assert shown.crs == crs, (what, shown.crs)
                elif name == "data.vrt":
                    # GDAL may spell a system without a code in other words: a point tells whether it is the same
                    point = [transform[2] + 3e5], [transform[5] - 2e6]
                    found_at, expected_at = (warp.transform(crs, UTM, *point) for crs in (shown.crs, fields["crs"]))
                    assert np.isfinite(expected_at).all() and np.allclose(found_at, expected_at, atol=1e-3), what
                assert np.allclose(tuple(shown.transform)[:6], transform, rtol=1e-12, atol=1e-9), (what, shown.transform)
                assert set(shown.scales) == {fields["scale"]}, (what, shown.scales)
                if name == "data.vrt":
                    factors = shown.overviews(1)
                    assert len(factors) == len(fields["overviews"]), (what, factors)
                    for level, shape in enumerate(fields["overviews"]):
                        with rasterio.open(path, overview_level=level) as small:
                            step = values.shape[2] // shape[2] + values.shape[2] % 2
                            assert (small.count, small.height, small.width) == tuple(shape), what
                            np.testing.assert_array_equal(small.read(), values[:, ::step, ::step], what)
                if name == "data.tif" and fields["overviews"]:
                    with tifffile.TiffFile(path) as file:
                        for band, page in enumerate(file.pages):
                            page = page.aspage()
                            np.testing.assert_array_equal(page.asarray(), values[band], what)
                            assert len(page.pages) == len(fields["overviews"]), what
                            for shape, small in zip(fields["overviews"], page.pages):
                                step = values.shape[2] // shape[2] + values.shape[2] % 2
                                np.testing.assert_array_equal(small.asarray(), values[band, ::step, ::step], what)
                count += 1
        # the grid mapping of a convention that netCDF's readers do not know; unsigned integers are in CDF-5
        if store == "geozarr" and not fields["path"].startswith(("projjson", "codes")):
            group, name = os.path.split(fields["path"])
            with rasterio.open(f"netcdf:{os.path.join(mount, group, 'dataset.nc')}:{name}") as shown:
                what = f"{fields['path']} in dataset.nc"
                np.testing.assert_array_equal(shown.read(), values, what)
                assert shown.crs == CRS.from_user_input(fields["crs"]), (what, shown.crs)
                assert np.allclose(tuple(shown.transform)[:6], fields["transform"]), (what, shown.transform)
    assert count, store
    if store == "cf":
        with rasterio.open(os.path.join(mount, "curvilinear/v/data.vrt")) as shown:
            tags = shown.tags(ns="GEOLOCATION")
        for axis, name in [("X", "lon"), ("Y", "lat")]:
            path = os.path.join(mount, "curvilinear/v", tags[f"{axis}_DATASET"])
            with rasterio.open(path) as shown:
                assert shown.shape == (ROWS, COLUMNS)
                y, x = np.mgrid[0:ROWS, 0:COLUMNS].astype("f8")
                degrees = 10 + 0.5 * x - 0.1 * y if name == "lon" else 50 - 0.4 * y - 0.1 * x
                np.testing.assert_array_equal(shown.read(1), degrees)
        if shutil.which("gdalwarp"):
            source, target = os.path.join(mount, "curvilinear/v/data.vrt"), os.path.join(folder, "warped.tif")
            subprocess.run(["gdalwarp", "-q", "-overwrite", "-geoloc", source, target], check=True)
            with rasterio.open(target) as warped:
                assert warped.crs == CRS.from_epsg(4326)
                # half a pixel around longitudes from 9.6 to 13 and latitudes from 47.8 to 50
                assert np.allclose(warped.bounds, (9.6, 47.8, 13.0, 50.0), atol=0.5), warped.bounds
    print(f"{store}: {count} files equal")


if __name__ == "__main__":
    {"make": make, "geozarr": geozarr, "read": read}[sys.argv[1]](*sys.argv[2:])
