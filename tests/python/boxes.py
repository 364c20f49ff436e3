"""Compares parts of arrays that `zarrfs cat --box` prints with NumPy's slices of what zarr-python reads.

    boxes.py make DIR                      writes arrays with shards and transpositions (zarr 3)
    boxes.py compare PROGRAM STORE STEP    compares boxes of every STEP-th array (zarr 2 or 3)
    boxes.py programs PROGRAM STORE DIR    opens files of boxes of the sample store (scripts/requirements/zarr2.txt)

PROGRAM is zarrfs. Exit code 1 after a difference.
"""
import os
import subprocess
import sys
import warnings

import numpy as np
import zarr

warnings.simplefilter("ignore")
ZARR3 = zarr.__version__.startswith("3")


def make(directory):
    rng = np.random.default_rng(1)
    root = zarr.create_group(directory, zarr_format=3)
    transposed = {"filters": [zarr.codecs.TransposeCodec(order=(2, 0, 1))]}
    for layout, more in (("plain", {}), ("shards", {"shards": (8, 6, 10)}), ("transposed", transposed)):
        for dtype in ("bool", "i1", "<u2", "<i4", "<u8", "<f2", "<f4", "<f8", "<c16"):
            array = root.create_array(f"{layout}/{dtype[-3:]}", shape=(9, 7, 13), chunks=(4, 3, 5), dtype=dtype, **more)
            array[...] = rng.integers(0, 100, array.shape).astype(dtype)


def arrays(store):
    """Returns the arrays of a store by their paths."""
    found = {}
    for folder, _, files in sorted(os.walk(store)):
        if ".zarray" in files or "zarr.json" in files:
            try:
                found[folder] = zarr.open_array(folder, mode="r")
            except Exception:
                pass  # a group, or an array of a type that zarr-python lacks
    return found


def random_box(rng, shape):
    """Returns the text of a box and the index that NumPy takes for it."""
    words, index = [], []
    for length in shape:
        start, stop = sorted(int(n) for n in rng.integers(0, length + 1, 2))
        spelled = start - length if rng.integers(2) and start < length else start
        kind = rng.integers(4)
        if kind == 0 and start < length:
            words.append(f"{spelled}")
            index.append(start)
        elif kind == 1:
            words.append(":")
            index.append(slice(None))
        else:
            words.append(f"{spelled}:{stop}")
            index.append(slice(start, stop))
    while words and words[-1] == ":" and rng.integers(2):
        words.pop()
    return ",".join(words), tuple(index)


def printed(program, *args):
    return subprocess.run([program, *args], check=True, stdout=subprocess.PIPE).stdout


def compare(program, store, step):
    rng = np.random.default_rng(2)
    count = 0
    for path, array in list(arrays(store).items())[:: int(step)]:
        if array.fill_value is None or array.dtype.kind == "O":
            continue
        values = np.asarray(array[...])
        for _ in range(2):
            text, index = random_box(rng, array.shape)
            # a single item has the byte order of the machine
            wanted = np.ascontiguousarray(values[index]).astype(values.dtype)
            shown = printed(program, "cat", path, "--box", text)
            assert shown == wanted.tobytes(), (path, text)
            count += 1
    assert count > 20, count
    print(f"zarr {zarr.__version__}: {count} boxes")


def programs(program, store, directory):
    import io

    import nibabel
    import nrrd
    import rasterio
    import tifffile

    array = f"{store}/air_temperature"
    values = zarr.open_array(array, mode="r")[...]
    lat, lon = (zarr.open_array(f"{store}/{name}", mode="r")[...].astype(float) for name in ("lat", "lon"))
    steps = lon[1] - lon[0], lat[1] - lat[0]
    file = os.path.join(directory, "box").__add__

    def write(name, *args):
        with open(file(name), "wb") as out:
            out.write(printed(program, *args))
        return file(name)

    def placed(dataset, row, column):
        origin = lon[column] - steps[0] / 2, lat[row] - steps[1] / 2
        wanted = (origin[0], steps[0], 0, origin[1], 0, steps[1])
        assert np.allclose(dataset.transform.to_gdal(), wanted), (dataset.transform.to_gdal(), wanted)
        assert dataset.crs is None or dataset.crs.is_geographic

    plane, volume = values[10, 3:20, 5:40], values[-5:, 3:20, 5:40]
    boxes = ("--box", "10,3:20,5:40"), ("--box", "-5:,3:20,5:40")
    npy = np.load(io.BytesIO(printed(program, "cat", array, "--format", "npy", *boxes[1])))
    assert npy.dtype == values.dtype and np.array_equal(npy, volume)
    for name, box, part in (("1.tif", boxes[0], plane[None]), ("2.tif", boxes[1], volume)):
        path = write(name, "cat", array, "--format", "tif", *box)
        # GDAL shows one page of a stack
        with rasterio.open(path) as dataset:
            assert np.array_equal(dataset.read(), part[:1])
            placed(dataset, 3, 5)
        assert np.array_equal(tifffile.imread(path).reshape(part.shape), part)
    whole = np.load(io.BytesIO(printed(program, "cat", array, "--format", "npy")))
    assert np.array_equal(whole, values)
    image = nibabel.load(write(".nii", "cat", array, "--format", "nii", *boxes[1]))
    shown = np.asanyarray(image.dataobj.get_unscaled()).transpose()
    assert np.array_equal(shown.reshape(volume.shape), volume)
    corner = image.affine @ [0, 0, 0, 1]
    assert np.allclose(np.abs(corner[:2]), np.abs([lon[5], lat[3]])), corner
    os.mkdir(file("es"))
    flat = write("es/data.raw", "cat", array, *boxes[1])
    assert os.path.getsize(flat) == volume.nbytes
    with rasterio.open(write("es/data.vrt", "header", array, "--format", "vrt", *boxes[1])) as dataset:
        assert np.array_equal(dataset.read(), volume)
        placed(dataset, 3, 5)
    data, header = nrrd.read(write("es/data.nhdr", "header", array, "--format", "nrrd", *boxes[1]))
    assert np.array_equal(data.transpose(), volume)
    origin = header["space origin"] if "space origin" in header else header["axis mins"]
    assert {lon[5], lat[3]} <= {float(n) for n in origin}, header
    text = printed(program, "cat", array, "--format", "txt", *boxes[0]).decode()
    assert np.array_equal(np.loadtxt(io.StringIO(text)), plane)
    assert text == printed(program, "header", array, "--format", "txt", *boxes[0]).decode()
    print("numpy, rasterio, tifffile, nibabel, pynrrd: values and origins of boxes")


verb, *rest = sys.argv[1:]
{"make": make, "compare": compare, "programs": programs}[verb](*rest)
