#!/usr/bin/env python3
"""Writes OME-NGFF images, and compares them with the images that tifffile, ome-types, ITK, nibabel and pynrrd read
from the files of a mount.

    images.py write DIR           writes DIR/v2.zarr (OME-NGFF 0.2 and 0.4), DIR/v3.zarr (0.5) and DIR/systems.zarr (0.6)
    images.py check MOUNT STORE   compares the files of a mount of one of them with the written images
    images.py bioformats MOUNT STORE JAR      compares the image that Bio-Formats, in JAR, reads from data.tif

The OME-XML is validated against the schema that ome-types ships. Exit code 1 after differences.
"""
import json
import os
import subprocess
import sys
import tempfile
import warnings

import nibabel
import nrrd
import numpy as np
import ome_types
import SimpleITK as sitk
import tifffile
import xmlschema
import zarr

from expected import Different, same

warnings.simplefilter("ignore")

HOSTILE = "a<b> & \"c' \x01\n]]> \u00e9\U0001f52c " + "long " * 100
KINDS = {"t": "time", "c": "channel", "z": "space", "y": "space", "x": "space"}
# OME's symbol, and the size in meters or seconds
UNITS = {"micrometer": ("\u00b5m", 1e-6), "nanometer": ("nm", 1e-9), "angstrom": ("\u00c5", 1e-10), "second": ("s", 1),
         "millimeter": ("mm", 1e-3), "millisecond": ("ms", 1e-3), "hour": ("h", 3600), None: ("reference frame", None)}

# name: axes, shape, dtype, step of each axis, unit of space, unit of time, channels
IMAGES = {
    "tczyx": ("tczyx", (3, 2, 4, 6, 8), "<u2", (1.5, 1, 2, 0.25, 0.125), "micrometer", "second",
              [{"label": "DAPI", "color": "0000FF"}, {"label": "GFP \u00b5", "color": "80FF00"}]),
    "tzcyx": ("tzcyx", (2, 3, 2, 5, 4), ">f4", (20, 0.5, 1, 3, 4), "nanometer", "millisecond",
              [{"label": HOSTILE, "color": "FF0000"}, {"label": 7, "color": "none"}]),
    "czyx": ("czyx", (2, 3, 4, 5), "|u1", (1, 1.5, 0.65, 0.65), "angstrom", None, []),
    "tyx": ("tyx", (4, 6, 5), ">i2", (0.5, 1, 1), "micrometer", "hour", []),
    "t1zyx": ("tczyx", (3, 1, 4, 6, 8), "|i1", (2.5, 1, 2, 1, 1), "micrometer", "second", []),
    "yx": ("yx", (7, 9), "<f8", (0.5, 0.25), None, None, []),
    "complex": ("zyx", (2, 3, 4), "<c8", (2, 1, 1), "micrometer", None, []),
    "bools": ("zyx", (2, 3, 4), "|b1", (2, 1, 1), "micrometer", None, []),
    "old": ("tczyx", (2, 2, 1, 3, 4), "<i4", None, None, None, []),
    "lps": ("zyx", (2, 3, 4), "<i2", (3, 2, 1.5), "millimeter", None, []),
    "ras": ("zyx", (2, 3, 4), "<i2", (3, 2, 1.5), "millimeter", None, []),
    # the schema has no integers of 64 bits
    "wide": ("zyx", (2, 3, 4), "<u8", (2, 1, 1), "micrometer", None, []),
}
# the directions of anatomical axes (RFC 4), and the center of the first voxel
DIRECTIONS = {"lps": {"x": "right-to-left", "y": "anterior-to-posterior", "z": "inferior-to-superior"},
              "ras": {"x": "left-to-right", "y": "posterior-to-anterior", "z": "inferior-to-superior"}}
BODY = (30, 20, 10)
# images that have half the rows and columns, too, in the array 1
PYRAMIDS = ["tczyx", "czyx"]
TYPES = {"u1": "uint8", "i1": "int8", "u2": "uint16", "i2": "int16", "i4": "int32", "f4": "float", "f8": "double",
         "c8": "complex", "b1": "uint8"}


class Image:
    """An image: its values and metadata, as they are written and as the files must show them."""

    def __init__(self, name):
        self.name = name
        self.axes, self.shape, self.dtype, self.steps, self.space, self.time, self.channels = IMAGES[name]

    def values(self):
        ramp = np.arange(np.prod(self.shape)) % 113
        return (ramp * (1 - 0.5j) if "c" in self.dtype else ramp % 2 if "b" in self.dtype else ramp).astype(self.dtype).reshape(self.shape)

    def unit(self, axis):
        return {"t": self.time, "c": None}.get(axis, self.space)

    def step(self, axis):
        """Returns the step along an axis, or None if the array has no such axis or no steps."""
        return self.steps[self.axes.index(axis)] if self.steps and axis in self.axes else None

    def size(self, axis):
        return self.shape[self.axes.index(axis)] if axis in self.axes else 1

    def order(self):
        """Returns the order of dimensions, the fastest first. Dimensions that the array lacks come last."""
        present = self.axes[::-1].upper()
        return present + "".join(a for a in "ZCT" if a not in present)

    def metadata(self, has_half=False):
        """Returns the attributes `multiscales` and `omero`."""
        image = {"name": f"cells <{self.name}>", "datasets": [{"path": "0"}]}
        if has_half:
            image["datasets"].append({"path": "1"})
        if self.steps:
            image["axes"] = [{"name": a, "type": KINDS[a]} | ({"unit": self.unit(a)} if self.unit(a) else {}) for a in self.axes]
            image["datasets"][0]["coordinateTransformations"] = [{"type": "scale", "scale": list(self.steps)}]
        for axis in image.get("axes", []) if self.name in DIRECTIONS else []:
            axis["orientation"] = {"type": "anatomical", "value": DIRECTIONS[self.name][axis["name"]]}
        if self.name in DIRECTIONS:
            image["datasets"][0]["coordinateTransformations"].append({"type": "translation", "translation": BODY})
        attributes = {"multiscales": [image]}
        return attributes | ({"omero": {"channels": self.channels}} if self.channels else {})


def in_systems(image):
    """Returns the metadata of an image as version 0.6 has it."""
    axes = {"name": "physical", "axes": image.pop("axes")}
    [dataset] = image["datasets"]
    moves = dataset.pop("coordinateTransformations")
    dataset["coordinateTransformations"] = [
        {"type": "sequence", "input": {"path": "0"}, "output": {"name": "physical"}, "transformations": moves}]
    # a registered system is not that of the image
    turned = {"name": "atlas", "axes": axes["axes"]}
    away = {"type": "translation", "input": {"name": "physical"}, "output": {"name": "atlas"}, "translation": [7] * len(axes["axes"])}
    return image | {"coordinateSystems": [turned, axes], "coordinateTransformations": [away]}


def write(directory):
    root = zarr.open_group(os.path.join(directory, "v2.zarr"), "w")
    for name in IMAGES:
        image = Image(name)
        group = root.create_group(name)
        group.attrs.update(image.metadata(name in PYRAMIDS))
        chunks = tuple(max(1, n // 2) for n in image.shape)
        group.create_dataset("0", data=image.values(), chunks=chunks, dimension_separator="/", fill_value=None)
        if name in PYRAMIDS:
            half = image.values()[..., ::2, ::2]
            group.create_dataset("1", data=half, chunks=half.shape, dimension_separator="/", fill_value=None)
    # zarr-python 2 does not write v3
    for store in ["v3.zarr", "systems.zarr"]:
        put(os.path.join(directory, store, "zarr.json"), {"zarr_format": 3, "node_type": "group"})
    new = [("tczyx", "uint16"), ("t1zyx", "int8"), ("yx", "float64"), ("lps", "int16"), ("ras", "int16")]
    for store, version, name, data_type in [("v3.zarr", "0.5", *image) for image in new] + [("systems.zarr", "0.6", *image) for image in new]:
        store = os.path.join(directory, store)
        image = Image(name)
        attributes = {"ome": {"version": version} | image.metadata()}
        if version == "0.6":
            attributes["ome"]["multiscales"] = [in_systems(attributes["ome"]["multiscales"][0])]
        put(os.path.join(store, name, "zarr.json"), {"zarr_format": 3, "node_type": "group", "attributes": attributes})
        put(os.path.join(store, name, "0", "zarr.json"), {
            "zarr_format": 3, "node_type": "array", "shape": image.shape, "data_type": data_type, "fill_value": 0,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": image.shape}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
            "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}]})
        with open(os.path.join(store, name, "0", "c" + ".0" * len(image.shape)), "wb") as f:
            f.write(image.values().tobytes())


def put(path, document):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as f:
        json.dump(document, f)


def line(text):
    """Returns a text as a header has it: at most 200 characters, without control characters and those above U+FFFF."""
    words = "".join(" " if ord(c) < 32 else "\ufffd" if ord(c) > 0xffff else c for c in text).split(" ")
    return " ".join(word for word in words if word)[:200].strip()


def check_description(image, xml, schema):
    """Validates OME-XML, parses it with two libraries, and compares it with the image."""
    schema.validate(xml)
    [pixels] = [i.pixels for i in ome_types.from_xml(xml).images]
    found = tifffile.xml2dict(xml)["OME"]["Image"]
    same("name", found["Name"], f"cells <{image.name}>")
    found = found["Pixels"]
    wanted = {f"Size{a.upper()}": image.size(a) for a in "xyzct"}
    wanted |= {"DimensionOrder": image.order(), "Type": TYPES[image.dtype[1:]], "BigEndian": image.dtype[0] == ">"}
    for axis in "xyz":
        if image.step(axis) and (image.space or image.step(axis) != 1):
            wanted |= {f"PhysicalSize{axis.upper()}": image.step(axis), f"PhysicalSize{axis.upper()}Unit": UNITS[image.space][0]}
    if image.time:
        wanted |= {"TimeIncrement": image.step("t"), "TimeIncrementUnit": UNITS[image.time][0]}
    skipped = ("ID", "Interleaved", "Channel", "TiffData")
    same("pixels", {k: v for k, v in found.items() if k not in skipped}, wanted)
    same("planes", pixels.tiff_data_blocks[0].plane_count, int(np.prod(image.shape[:-2])))
    same("channels", len(pixels.channels), image.size("c"))
    for channel, told in zip(pixels.channels, image.channels):
        name, color = told["label"], told["color"]
        same("name of a channel", channel.name, line(name) if isinstance(name, str) else None)
        rgb = tuple(bytes.fromhex(color)) if len(color) == 6 else (255, 255, 255)
        same("color of a channel", channel.color.as_rgb_tuple()[:3], rgb)


def check_tiff(image, path, schema, has_pyramid):
    values = image.values().astype("u1") if image.dtype == "|b1" else image.values()
    with tifffile.TiffFile(path) as file:
        same("is OME", file.is_ome, image.name != "wide")
        same("is ImageJ's", bool(file.is_imagej), image.name == "wide")
        [series] = file.series
        same("values", series.asarray().reshape(values.shape), values)
        levels = [values, values[..., ::2, ::2]] if has_pyramid else [values]
        same("levels", len(series.levels), len(levels))
        for level, wanted in zip(series.levels, levels):
            same("values of a level", level.asarray().reshape(wanted.shape), wanted)
        if file.is_ome:
            same("axes", series.get_axes(False), image.order()[::-1] + "S")
            same("shape", series.get_shape(False), tuple(image.size(a.lower()) for a in image.order()[::-1]) + (1,))
            check_description(image, file.ome_metadata, schema)
    if values.dtype.itemsize <= 4 and values.dtype.kind != "c":
        read = sitk.ReadImage(path)
        same("values in ITK", sitk.GetArrayFromImage(read).reshape(values.shape), values)
        if image.space:
            millimeters = UNITS[image.space][1] * 1000
            close("spacing in ITK", read.GetSpacing()[:2], [image.step(a) * millimeters for a in "xy"])


def close(what, got, wanted):
    if not np.allclose(got, wanted, rtol=1e-3, atol=0):
        raise Different(f"{what}: {got} instead of {wanted}")


def check_nifti(image, path):
    """Checks data.nii with nibabel. Time is the fourth dimension, unless there are several channels of volumes."""
    read = nibabel.load(path)
    same("values in nibabel", np.asarray(read.dataobj).T.reshape(image.shape), image.values().astype("u1") if image.dtype == "|b1" else image.values())
    if image.time:
        place = 4 if image.size("c") > 1 and "z" in image.axes else 3
        same("times in nibabel", read.shape[place], image.size("t"))
        seconds = image.step("t") * UNITS[image.time][1]
        code, unit = ("msec", 1e-3) if image.time == "millisecond" else ("sec", 1)
        same("unit of time in nibabel", read.header.get_xyzt_units()[1], code)
        close("time step in nibabel", read.header.get_zooms()[place], seconds / unit)
    if image.space:
        units = 1e3 if read.header.get_xyzt_units()[0] == "mm" else 1e6
        close("steps in nibabel", read.header.get_zooms()[:2], [image.step(a) * UNITS[image.space][1] * units for a in "xy"])


def check_nrrd(image, path):
    _, header = nrrd.read(path, index_order="C")
    same("kinds", header["kinds"], ["time" if a == "t" else "domain" for a in image.axes[::-1]])
    if image.time:
        same("steps in pynrrd", [float(n) for n in np.diag(header["space directions"])], [float(n) for n in image.steps[::-1]])
        same("unit of time in pynrrd", header["space units"][-1], image.time)
    read = sitk.ReadImage(path)
    same("values in ITK", sitk.GetArrayFromImage(read).reshape(image.shape), image.values())


def check_body(image, at):
    """Compares the place of an image of a body in data.nii and data.nhdr, by nibabel and ITK."""
    of_nifti = nibabel.load(os.path.join(at, "data.nii"))
    same("directions in nibabel", "".join(nibabel.aff2axcodes(of_nifti.affine)), image.name.upper())
    signs = np.array([-1, -1, 1]) if image.name == "lps" else np.ones(3)
    close("first voxel in nibabel", of_nifti.affine[:3, 3], signs * BODY[::-1])
    of_itk = [sitk.ReadImage(os.path.join(at, name)) for name in ["data.nii", "data.nhdr"]]
    for what in ["GetDirection", "GetOrigin", "GetSpacing"]:
        found, wanted = [getattr(read, what)() for read in of_itk]
        close(f"{what} in ITK", found, wanted)


def check(mount, store):
    schema = xmlschema.XMLSchema(os.path.join(os.path.dirname(ome_types.__file__), "ome-2016-06.xsd"))

    def check_image(image, at):
        has_pyramid = image.name in PYRAMIDS and store.endswith("v2.zarr")
        check_tiff(image, os.path.join(at, "data.tif"), schema, has_pyramid)
        check_nifti(image, os.path.join(at, "data.nii"))
        if os.path.exists(os.path.join(at, "data.nhdr")):
            check_nrrd(image, os.path.join(at, "data.nhdr"))
        if image.name in DIRECTIONS:
            check_body(image, at)
    check_all("images", sorted(n for n in os.listdir(store) if n in IMAGES), mount, check_image)


def check_all(what, names, mount, check_image):
    faults = []
    for name in names:
        try:
            check_image(Image(name), os.path.join(mount, name, "0"))
        except Exception as e:  # the error of a library that cannot read the file
            faults.append(f"  {name}: {type(e).__name__}: {e}")
    print("\n".join([f"{what}: {len(names)} compared, {len(faults)} wrong", *faults]))
    sys.exit(bool(faults) or not names)


def bioformats(mount, store, jar):
    """Compares the metadata that showinf of Bio-Formats prints, and the values that bfconvert writes. The mount must
    not show data.nhdr, which Bio-Formats would read instead."""
    def tool(name, *args):
        command = ["java", "-cp", jar, f"loci.formats.tools.{name}", "-no-upgrade", *args]
        return subprocess.run(command, check=True, capture_output=True, text=True, encoding="utf-8").stdout

    def check_image(image, at):
        path = os.path.join(at, "data.tif")
        with tempfile.TemporaryDirectory() as folder:
            tool("ImageConverter", "-series", "0", path, os.path.join(folder, "out.tif"))
            found = tifffile.imread(os.path.join(folder, "out.tif")).reshape(image.shape)
        same("values", found.astype(found.dtype.newbyteorder("=")), image.values().astype(found.dtype.newbyteorder("=")))
        [pixels] = [i.pixels for i in ome_types.from_xml(tool("ImageInfo", "-nopix", "-noflat", "-omexml-only", path)).images]
        same("order", pixels.dimension_order.value, image.order())
        same("sizes", [getattr(pixels, f"size_{a}") for a in "xyzct"], [image.size(a) for a in "xyzct"])
        if image.space:
            same("pixel", (pixels.physical_size_x, pixels.physical_size_x_unit.value) == (image.step("x"), UNITS[image.space][0]), True)
        if image.time:
            same("time", (pixels.time_increment, pixels.time_increment_unit.value) == (image.step("t"), UNITS[image.time][0]), True)
        names = [line(c["label"]) if isinstance(c["label"], str) else None for c in image.channels] or [None] * image.size("c")
        same("channels", [c.name for c in pixels.channels], names)
    # Bio-Formats has no complex numbers, and reads no dimensions from a TIFF that is not OME-TIFF
    names = [n for n in sorted(os.listdir(store)) if n in IMAGES and n not in ("complex", "wide")]
    check_all("Bio-Formats", names, mount, check_image)


if __name__ == "__main__":
    {"write": write, "check": check, "bioformats": bioformats}[sys.argv[1]](*sys.argv[2:])
