#!/usr/bin/env python3
"""Writes TIFF files with tifffile and GDAL (rasterio), and compares the arrays that they became.

    ingest_tiff.py make DIR            writes the files, beside each its values and what GDAL says of its place, and into
                                       DIR/refused files that become no array, with the reason
    ingest_tiff.py compare DIR STORES  compares STORES/NAME with each file, by zarr-python of any version
    ingest_tiff.py shown DIR MOUNT     compares NAME.tif in a mount with each file, by tifffile and rasterio
    ingest_tiff.py write DIR MOUNT     has programs write the same files into both directories, and compares them
    ingest_tiff.py sample DIR          writes small files of different layouts

`make`, `shown`, `write` and `sample` need tifffile with imagecodecs, and rasterio.
"""
import json
import os
import sys
import warnings

import numpy as np

warnings.simplefilter("ignore")
DTYPES = ["u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "c8", "c16"]
UTM = dict(crs="EPSG:32633", transform=(10.0, 0.0, 600_000.0, 0.0, -10.0, 5_100_040.0))
DEGREES = dict(crs="EPSG:4326", transform=(0.25, 0.0, -180.0, 0.0, -0.25, 90.0))


def values(dtype, shape, seed=1):
    rng = np.random.default_rng(seed)
    dtype = np.dtype(dtype)
    if dtype.kind in "fc":
        return (np.cumsum(rng.normal(size=shape), axis=-1) * (1 if dtype.kind == "f" else 1 + 2j)).astype(dtype)
    info = np.iinfo(dtype)
    steps = np.cumsum(rng.integers(0, 7, shape), axis=-1).astype(dtype)
    steps.flat[:4] = [info.min, info.max, 1, 0]
    return steps


def by_tifffile(write):
    """Calls `write(name, values, dimensions, **options of imwrite)` for each file."""
    yx, byx, pyx = ["y", "x"], ["band", "y", "x"], ["page", "y", "x"]
    for dtype in DTYPES:
        for order in "<>":
            bits = 8 * np.dtype(dtype).itemsize
            name = f"{dtype}_{'little' if order == '<' else 'big'}"
            data = values(dtype, (37, 53))
            write(name, data, yx, byteorder=order)
            write(f"{name}_tiled", data, yx, byteorder=order, tile=(16, 32))
            write(f"{name}_deflate", data, yx, byteorder=order, compression="deflate", rowsperstrip=5)
            if dtype[0] in "ui":
                write(f"{name}_differences", data, yx, byteorder=order, compression="lzw", predictor=2, rowsperstrip=7)
                bands = values(dtype, (3, 37, 53))
                write(f"{name}_bands", np.moveaxis(bands, 0, -1), byx, byteorder=order, compression="deflate", predictor=2,
                      tile=(16, 16), photometric="rgb", planarconfig="contig")
            if dtype[0] == "f":
                write(f"{name}_floats", data, yx, byteorder=order, compression="zstd", predictor=3, tile=(16, 16))
                bands = values(dtype, (2, 37, 53))
                write(f"{name}_bands", np.moveaxis(bands, 0, -1), byx, byteorder=order, compression="deflate", predictor=3,
                      rowsperstrip=4, photometric="minisblack", planarconfig="contig")
    data = values("u2", (3, 41, 29))
    last = np.moveaxis(data, 0, -1)
    for compression in [None, "packbits", "lzw", "zstd", "deflate"]:
        options = dict(compression=compression, photometric="rgb")
        write(f"contiguous_{compression}", last, byx, planarconfig="contig", **options)
        write(f"planes_{compression}", data, byx, planarconfig="separate", rowsperstrip=6, **options)
        write(f"tiled_planes_{compression}", data, byx, planarconfig="separate", tile=(16, 16), **options)
        write(f"pages_{compression}", data, pyx, compression=compression, photometric="minisblack")
    write("big", data, pyx, bigtiff=True, photometric="minisblack")
    write("big_big_endian", data, pyx, bigtiff=True, byteorder=">", photometric="minisblack", compression="deflate")
    pages = values("u1", (4, 3, 30, 20))
    write("color_pages", np.moveaxis(pages, 1, -1), ["page", "band", "y", "x"], photometric="rgb")
    write("alpha", values("u1", (30, 20, 4)), byx, photometric="rgb", extrasamples=["unassalpha"])
    write("many_bands", values("u1", (30, 20, 7)), byx, photometric="rgb", planarconfig="contig",
          extrasamples=["unspecified"] * 4)
    stack = values("u2", (2, 3, 4, 30, 20))
    write("imagej", stack, ["t", "z", "c", "y", "x"], imagej=True, metadata={"axes": "TZCYX"})
    write("ome.x", stack, ["t", "c", "z", "y", "x"], ome=True, metadata={"axes": "TCZYX"}, photometric="minisblack")
    write("resolution", values("u1", (30, 20)), yx, resolution=(72, 300.5), resolutionunit="INCH", description="size 5",
          software="a test", metadata=None)
    write("one_strip", values("u2", (600, 500)), yx, compression="deflate", rowsperstrip=600)
    write("white_is_zero", values("u1", (30, 20)), yx, photometric="miniswhite")
    write("one_pixel", values("u1", (4, 4))[:1, :1], yx)


def by_gdal(write):
    """Calls `write(name, bands, options, changes)` for each file."""
    three = values("i2", (3, 50, 70))
    one = three[:1]
    write("utm", one, UTM | {"nodata": -32768})
    tiled = {"compress": "LZW", "predictor": 3, "tiled": True, "blockxsize": 16, "blockysize": 32}
    write("degrees", values("f4", (1, 50, 70)), DEGREES | tiled | {"nodata": -9999.5})
    write("japan", one, DEGREES | {"crs": "EPSG:6668"})
    write("not_a_number", values("f4", (1, 50, 70)), DEGREES | {"nodata": np.nan})
    write("mercator", values("u1", (1, 50, 70)), UTM | {"crs": "EPSG:3857", "nodata": 255, "compress": "DEFLATE"})
    write("national", one, UTM | {"crs": "EPSG:2154"})
    write("rotated", one, UTM | {"transform": (10.0, 3.0, 6e5, 2.0, -10.0, 5e6)})
    write("south_up", one, UTM | {"transform": (10.0, 0.0, 6e5, 0.0, 10.0, 5e6)})
    write("no_system", one, {"transform": UTM["transform"]})
    write("points", one, UTM, tags={"AREA_OR_POINT": "Point"})
    layouts = [{}, {"compress": "ZSTD", "predictor": 2}, {"tiled": True, "blockxsize": 16, "blockysize": 16, "BIGTIFF": "YES"}]
    for interleave in ["pixel", "band"]:
        for more in layouts:
            name = f"bands_{interleave}_{len(more)}"
            write(name, three, UTM | more | {"interleave": interleave, "nodata": 7}, scales=(0.5,) * 3, offsets=(3.0,) * 3,
                  units=("K",) * 3, descriptions=("one", "two", "three"))
    write("described", one, UTM, scales=(0.01,), offsets=(273.15,), units=("K",), descriptions=("a & b < c",),
          tags={"project": "x > y", "TIFFTAG_SOFTWARE": "gdal"})
    sparse = np.zeros((1, 200, 300), "u2")
    sparse[0, 20:30, 40:50] = 5
    write("sparse", sparse, UTM | {"tiled": True, "blockxsize": 64, "blockysize": 64, "SPARSE_OK": "TRUE", "nodata": 0})
    write("overviews", values("u1", (1, 512, 512)), UTM | {"compress": "LZW", "tiled": True}, overviews=[2, 4])
    write("useless_nodata", values("u1", (1, 50, 70)), UTM | {"nodata": None}, tags={})
    write("palette", values("u1", (1, 50, 70)), UTM | {"nodata": 0, "compress": "LZW"},
          colors={1: (10, 20, 30), 200: (255, 7, 0)})
    write("complex_bands", values("c8", (2, 50, 70)), UTM | {"compress": "DEFLATE"})


def gdal_write(path, bands, options, tags=None, overviews=None, colors=None, **about):
    import rasterio
    options = dict(options)
    if "transform" in options:
        options["transform"] = rasterio.Affine(*options["transform"])
    with rasterio.open(path, "w", driver="GTiff", count=len(bands), height=bands.shape[1], width=bands.shape[2],
                       dtype=bands.dtype, **options) as file:
        if colors:
            file.write_colormap(1, colors)
        if tags:
            file.update_tags(**tags)
        for index, band in enumerate(bands):
            if np.any(band) or "SPARSE_OK" not in options:
                file.write(band, index + 1)
        for name, value in about.items():
            setattr(file, name, value)
    if overviews:
        with rasterio.open(path, "r+") as file:
            file.build_overviews(overviews)


def place(path):
    """What GDAL says of a file, but for its bands."""
    import rasterio
    with rasterio.open(path) as file:
        nodata = file.nodata
        colors = file.colormap(1) if file.colorinterp[0].name == "palette" else {}
        return {"colors": {str(n): color for n, color in colors.items()},
                "crs": file.crs and file.crs.to_string(), "transform": list(file.transform)[:6],
                "nodata": None if nodata is None else repr(nodata), "scale": file.scales[0], "offset": file.offsets[0],
                "unit": file.units[0]}


def make(directory):
    import rasterio
    import tifffile
    refused = os.path.join(directory, "refused")
    os.makedirs(refused)

    def keep(name, array, dimensions, said):
        np.save(os.path.join(directory, f"{name}.npy"), array)
        with open(os.path.join(directory, f"{name}.json"), "w") as file:
            json.dump({"dimensions": dimensions} | said, file)

    def tiff(name, array, dimensions, **options):
        path = os.path.join(directory, f"{name}.tif")
        tifffile.imwrite(path, array, **options)
        found = tifffile.imread(path)
        assert same(found, array), name
        if "band" in dimensions and options.get("planarconfig") != "separate":
            array = np.moveaxis(array, -1, -3)
        keep(name, array, dimensions, {})

    def gdal(name, bands, options, **about):
        path = os.path.join(directory, f"{name}.tif")
        gdal_write(path, bands, options, **about)
        with rasterio.open(path) as file:
            assert same(file.read(), bands), name
        array = bands if len(bands) > 1 else bands[0]
        keep(name, array, ["band", "y", "x"][3 - array.ndim:], place(path))

    by_tifffile(tiff)
    by_gdal(gdal)
    make_refused(refused)


def make_refused(directory):
    import rasterio
    import tifffile
    data = values("u1", (1, 64, 64))
    path = lambda name: os.path.join(directory, f"{name}.tif")

    def reason(name, text):
        with open(path(name) + ".txt", "w") as file:
            file.write(text)

    for name, options, text in [
        ("jpeg", {"compression": "jpeg"}, "compression by JPEG"),
        ("webp", {"compression": "webp", "photometric": "rgb"}, "compression by WebP"),
        ("lerc", {"compression": "lerc"}, "compression by LERC"),
        ("lzma", {"compression": "lzma"}, "compression by LZMA"),
    ]:
        array = np.repeat(data[0][..., None], 3, 2) if name == "webp" else data[0]
        tifffile.imwrite(path(name), array, **options)
        reason(name, text)
    tifffile.imwrite(path("bits"), data[0] > 5, photometric="minisblack")
    reason("bits", "samples of 1 bits")
    gdal_write(path("bits_12"), values("u2", (1, 20, 20)) & 0xfff, {"NBITS": 12})
    reason("bits_12", "12 bits")
    colors = np.zeros((3, 256), "u2")
    tifffile.imwrite(path("palettes"), values("u1", (2, 64, 64)), photometric="palette", colormap=colors)
    reason("palettes", "several pages with palettes")
    colors = np.zeros((3, 1 << 16), "u2")
    tifffile.imwrite(path("wide_palette"), values("u2", (8, 8)), photometric="palette", colormap=colors)
    reason("wide_palette", "a palette of other numbers than bytes")
    with tifffile.TiffWriter(path("two_forms")) as file:
        file.write(data[0])
        file.write(data[0, :32])
    reason("two_forms", "page 2: another size")
    tifffile.imwrite(path("imagej"), values("u2", (5, 8, 8)), imagej=True)
    with open(path("imagej"), "rb") as file:
        cut = bytearray(file.read())
    with tifffile.TiffFile(path("imagej")) as file:
        first = file.pages[0]
        last = first.offset + 2 + 12 * len(first.tags)
    cut[last:last + 4] = bytes(4)
    with open(path("imagej"), "wb") as file:
        file.write(cut)
    reason("imagej", "ImageJ's stack of 5 images in 1 pages")
    gdal_write(path("own_system"), data, UTM | {"crs": "+proj=laea +lat_0=12 +lon_0=3"})
    reason("own_system", "which has no EPSG code")
    gdal_write(path("heights"), data, UTM | {"crs": "EPSG:4326+5773"})
    reason("heights", "with heights in a system of their own")
    points = [rasterio.control.GroundControlPoint(row, col, col * 10.0, row * 9.0 + col) for row, col in
              [(0, 0), (0, 60), (60, 0), (60, 60)]]
    gdal_write(path("control_points"), data, {"gcps": points, "crs": "EPSG:4326"})
    reason("control_points", "control points")
    gdal_write(path("scales"), values("u1", (2, 8, 8)), UTM, scales=(0.5, 0.25))
    reason("scales", "different values of scale_factor")
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True):
        gdal_write(path("mask"), data, UTM)
        with rasterio.open(path("mask"), "r+") as file:
            file.write_mask(data[0] > 3)
    reason("mask", "page 2: a mask")
    whole = open(os.path.join(os.path.dirname(directory), "u2_little_deflate.tif"), "rb").read()
    with open(path("cut"), "wb") as file:
        file.write(whole[:-300])
    reason("cut", "truncated")


def same(found, expected):
    found, expected = np.asarray(found), np.asarray(expected)
    kind = found.dtype.kind in "fc"
    return found.shape == expected.shape and np.array_equal(found, expected, equal_nan=kind)


def files(directory):
    for name in sorted(os.listdir(directory)):
        if name.endswith(".tif"):
            stem = name[:-4]
            with open(os.path.join(directory, f"{stem}.json")) as file:
                yield stem, np.load(os.path.join(directory, f"{stem}.npy")), json.load(file)


def compare(directory, stores):
    import zarr
    count = 0
    for name, expected, said in files(directory):
        array = zarr.open_array(os.path.join(stores, name), mode="r")
        assert same(array[...], expected), name
        wanted = "f4" if expected.dtype == "f2" else expected.dtype.str[1:]
        assert array.dtype.str[1:] == wanted and array.dtype.str[0] in "<|", f"{name}: {array.dtype}"
        attributes = dict(array.attrs)
        metadata = getattr(array, "metadata", None)
        names = attributes.get("_ARRAY_DIMENSIONS") or metadata.dimension_names
        assert list(names) == said["dimensions"], f"{name}: {names}"
        if said.get("crs"):
            assert attributes["proj:code"] == said["crs"], name
        if "transform" in said:
            assert attributes["spatial:transform"] == said["transform"], name
            assert attributes["spatial:dimensions"] == ["y", "x"], name
        if "band" not in said["dimensions"] and array.nchunks > 1:
            # whole strips or tiles
            assert all(chunk > 1 for chunk in array.chunks[-2:]), f"{name}: {array.chunks}"
        count += 1
    many = zarr.open_array(os.path.join(stores, "bands_pixel_0"), mode="r").attrs
    assert many["long_name"] == ["one", "two", "three"] and many["scale_factor"] == 0.5, dict(many)
    assert (many["add_offset"], many["units"]) == (3.0, "K"), dict(many)
    described = zarr.open_array(os.path.join(stores, "described"), mode="r").attrs
    assert (described["long_name"], described["project"]) == ("a & b < c", "x > y"), dict(described)
    resolution = zarr.open_array(os.path.join(stores, "resolution"), mode="r").attrs
    assert resolution["TIFFTAG_IMAGEDESCRIPTION"] == "size 5" and resolution["TIFFTAG_SOFTWARE"] == "a test"
    print(count)


def shown(directory, mount):
    import tifffile
    count = 0
    for name, expected, said in files(directory):
        path = os.path.join(mount, f"{name}.tif")
        if not os.path.exists(path):
            raise AssertionError(f"{name} is not shown")
        found = tifffile.imread(path)
        assert same(found.reshape(expected.shape), expected), name
        if "transform" in said:
            again = json.loads(json.dumps(place(path)))
            of_place = {key: said[key] for key in again}
            assert again == of_place, f"{name}: {again} {of_place}"
        count += 1
    with tifffile.TiffFile(os.path.join(mount, "imagej.tif")) as file:
        assert file.series[0].axes == "TZCYX", file.series
    with tifffile.TiffFile(os.path.join(mount, "white_is_zero.tif")) as file:
        assert file.pages[0].photometric == 0
    with tifffile.TiffFile(os.path.join(mount, "resolution.tif")) as file:
        page = file.pages[0]
        assert (page.resolution, page.resolutionunit) == ((72, 300.5), 2), page.resolution
    print(count)


def programs(directory):
    import rasterio
    import tifffile
    path = lambda name: os.path.join(directory, name)
    tifffile.imwrite(path("saved.tif"), values("u2", (40, 30)))
    tifffile.imwrite(path("saved.tif"), values("u2", (40, 30), 2), compression="deflate")
    tifffile.imwrite(path("stack.tiff"), values("u1", (3, 40, 30)), photometric="minisblack")
    gdal_write(path("gdal.tif"), values("i2", (1, 40, 30)), UTM | {"nodata": -1, "compress": "LZW"})
    with rasterio.open(path("gdal.tif"), "r+") as file:
        changed = file.read(1)
        changed[3, 4] = 77
        file.write(changed, 1)


def write(directory, mount):
    import tifffile
    programs(directory)
    programs(mount)
    for name in ["saved.tif", "stack.tiff", "gdal.tif"]:
        one, other = os.path.join(directory, name), os.path.join(mount, name)
        assert same(tifffile.imread(other), tifffile.imread(one)), name
    assert place(os.path.join(mount, "gdal.tif")) == place(os.path.join(directory, "gdal.tif"))


def sample(directory):
    import tifffile
    data = values("i2", (2, 40, 30))
    path = lambda name: os.path.join(directory, name)
    tifffile.imwrite(path("strips.tif"), data, photometric="minisblack", compression="lzw", predictor=2, rowsperstrip=8)
    tifffile.imwrite(path("tiles.tif"), data[0], bigtiff=True, tile=(16, 16), compression="deflate", byteorder=">")
    tifffile.imwrite(path("bands.tif"), np.moveaxis(data, 0, -1).astype("f4"), compression="zstd", predictor=3,
                     photometric="minisblack", planarconfig="contig")
    tifffile.imwrite(path("plain.tif"), data, photometric="minisblack", imagej=True)
    tifffile.imwrite(path("packed.tif"), data[0], compression="packbits", rowsperstrip=8)
    gdal_write(path("placed.tif"), data, UTM | {"nodata": 3, "compress": "DEFLATE"}, scales=(0.5, 0.5))


if __name__ == "__main__":
    commands = {"make": make, "compare": compare, "shown": shown, "write": write, "sample": sample}
    commands[sys.argv[1]](*sys.argv[2:])
