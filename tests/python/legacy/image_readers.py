"""ITK, VTK, teem and ImageJ, on data.nhdr, data.mhd, data.xmf, data.nii and data.tif."""
import os
import tempfile

import numpy as np
import vtk
from vtk.util.numpy_support import vtk_to_numpy

from expected import same
from table import close, row, run, version

VTK = vtk.vtkVersion().GetVTKVersion()
IMAGEJ = "/usr/share/java/ij.jar"


@row("data.nhdr", "teem-unu save", version("dpkg-query", "-W", "teem-apps"), "values")
def unu(array):
    out = run("teem-unu", "save", "-f", "nrrd", "-e", "raw", "-i", array.file("data.nhdr"), "-o", "-", binary=True)
    header, _, values = out.partition(b"\n\n")
    order = ">" if b"endian: big" in header else "<"
    same("values", np.frombuffer(values, array.numbers().dtype.newbyteorder(order)).reshape(array.shape),
         array.numbers().astype(array.numbers().dtype.newbyteorder(order)))


def up_to_3d(array):
    return 1 < len(array.shape) < 4


def vtk_values(image, array, values=None):
    values = array.numbers() if values is None else values
    data = image.GetPointData().GetScalars() or image.GetPointData().GetArray(0)
    same("dimensions", [n for n in image.GetDimensions()][:len(array.shape)], list(array.shape[::-1]))
    same("values", vtk_to_numpy(data).reshape(array.shape), values.astype(values.dtype.newbyteorder("=")))


def quietly(reader):
    """Raises errors that VTK would only print."""
    faults = []
    reader.AddObserver("ErrorEvent", lambda *said: faults.append("an error of VTK"))
    reader.Update()
    same("errors", faults, [])
    return reader.GetOutputDataObject(0)


# VTK reads a fastest axis of fewer than 10 items as components, regardless of the header
@row("data.nhdr", "VTK vtkNrrdReader", VTK, "values", lambda a: up_to_3d(a) and a.shape[-1] >= 10, crashes=True)
def vtk_nrrd(array):
    reader = vtk.vtkNrrdReader()
    reader.SetFileName(array.file("data.nhdr"))
    vtk_values(quietly(reader), array)


@row("data.mhd", "VTK vtkMetaImageReader", VTK, "values, spacing, origin", up_to_3d, crashes=True)
def vtk_meta_image(array):
    reader = vtk.vtkMetaImageReader()
    reader.SetFileName(array.file("data.mhd"))
    image = quietly(reader)
    vtk_values(image, array)
    n = len(array.shape)
    same("spacing", list(image.GetSpacing())[:n], [abs(step) for step in array.steps()])
    same("origin", list(image.GetOrigin())[:n], array.origin())


def leaves(data):
    if data.IsA("vtkCompositeDataSet"):
        iterator = data.NewIterator()
        iterator.InitTraversal()
        while not iterator.IsDoneWithTraversal():
            yield iterator.GetCurrentDataObject()
            iterator.GoToNextItem()
    else:
        yield data


def places(grid, axis):
    """Returns the coordinates of a VTK grid along an axis; x is 0."""
    if grid.IsA("vtkRectilinearGrid"):
        return vtk_to_numpy([grid.GetXCoordinates, grid.GetYCoordinates, grid.GetZCoordinates][axis]()).tolist()
    first, step, n = grid.GetOrigin()[axis], grid.GetSpacing()[axis], grid.GetDimensions()[axis]
    return [first + step * i for i in range(n)]


@row("data.xmf", "VTK vtkXdmfReader, as ParaView", VTK, "values, coordinates, times", lambda a: 1 < len(a.shape) < 5, crashes=True)
def vtk_xdmf(array):
    reader = vtk.vtkXdmfReader()
    reader.SetFileName(array.file("data.xmf"))
    reader.UpdateInformation()
    times = reader.GetOutputInformation(0).Get(vtk.vtkStreamingDemandDrivenPipeline.TIME_STEPS()) or [None]
    values = array.numbers()
    is_in_time = len(array.shape) == 4 or array.axes[0]["name"] == "time"
    steps = values if is_in_time else [values]
    same("count of times", len(times), len(steps))
    if is_in_time and array.coordinates(0):
        close("times", times, array.coordinates(0))
    for time, wanted in zip(times, steps):
        if time is not None:
            reader.GetOutputInformation(0).Set(vtk.vtkStreamingDemandDrivenPipeline.UPDATE_TIME_STEP(), time)
        reader.Update()
        [grid] = leaves(reader.GetOutputDataObject(0))
        data = grid.GetPointData().GetArray(0)
        same("name", data.GetName(), array.name)
        same("values", vtk_to_numpy(data).reshape(wanted.shape), wanted.astype(wanted.dtype.newbyteorder("=")))
        for n in range(len(wanted.shape)):
            coordinates = array.coordinates(len(array.shape) - 1 - n)
            if coordinates:
                close(f"coordinates of {array.axes[-1 - n]['name']}", places(grid, n), coordinates)


# VTK reads the times of the fourth dimension as components
@row("data.nii", "VTK vtkNIFTIImageReader", VTK, "values", lambda a: up_to_3d(a) and a.dtype.kind != "c" and "time" not in a.names(), crashes=True)
def vtk_nifti(array):
    reader = vtk.vtkNIFTIImageReader()
    reader.SetFileName(array.file("data.nii"))
    # the reader reverses the slices of left-handed axes
    is_turned = len(array.shape) == 3 and np.prod(array.steps()) < 0
    vtk_values(quietly(reader), array, array.numbers()[::-1] if is_turned else array.numbers())


MACRO = """open("{path}");
for (s = 1; s <= nSlices; s++) {{
  setSlice(s);
  for (y = 0; y < getHeight; y++) for (x = 0; x < getWidth; x++) print(d2s(getPixel(x, y), 6));
}}
run("Quit");
"""


@row("data.tif", "ImageJ, in a macro", version("dpkg-query", "-W", "imagej"), "values",
     lambda a: a.dtype.str[1:] in ("u1", "u2", "i2", "f4") and 1 < len(a.shape) < 5)
def imagej(array):
    with tempfile.NamedTemporaryFile("w", suffix=".ijm") as macro:
        macro.write(MACRO.format(path=os.path.realpath(array.file("data.tif"))))
        macro.flush()
        said = run("xvfb-run", "-a", "java", "-jar", IMAGEJ, "-batch", macro.name)
    # ImageJ shows signed numbers shifted, so that the least is 0
    shift = 32768 if array.dtype.str[1:] == "i2" else 0
    close("values", [float(line) for line in said.split()], array.values().astype("f8") + shift, 5)
