#!/usr/bin/env python3
"""Compares preview.png of a mount with images that NumPy computes from the values that zarr-python reads. GDAL decodes
the files.

    previews.py write STORE            writes arrays of many types and shapes
    previews.py check MOUNT STORE      compares each preview.png; arrays that can't have one must have none

Exit code 1 after differences.
"""
import os
import sys
import warnings

import numpy as np
import rasterio
import zarr

from expected import Different, same

warnings.simplefilter("ignore")

# the colors of viridis in matplotlib 3.10, in steps of a 256th
VIRIDIS = np.array(list(bytes.fromhex(
    "44015444025544035745055845065a45085b46095c460b5e460c5f460e61470f6247116347126547146647156747166947186a48196b"
    "481a6c481c6e481d6f481e70482071482172482273482374472575472676472777472878472a79472b7a472c7b462d7c462f7c46307d"
    "46317e45327f45347f453580453681443781443982433a83433b83433c84423d84423e854240854141864142864043874044873f4587"
    "3f47883e48883e49893d4a893d4b893d4c893c4d8a3c4e8a3b508a3b518a3a528b3a538b39548b39558b38568b38578c37588c37598c"
    "365a8c365b8c355c8c355d8c345e8d345f8d33608d33618d32628d32638d31648d31658d31668d30678d30688d2f698d2f6a8d2e6b8e"
    "2e6c8e2e6d8e2d6e8e2d6f8e2c708e2c718e2c728e2b738e2b748e2a758e2a768e2a778e29788e29798e287a8e287a8e287b8e277c8e"
    "277d8e277e8e267f8e26808e26818e25828e25838d24848d24858d24868d23878d23888d23898d22898d228a8d228b8d218c8d218d8c"
    "218e8c208f8c20908c20918c1f928c1f938b1f948b1f958b1f968b1e978a1e988a1e998a1e998a1e9a891e9b891e9c891e9d881e9e88"
    "1e9f881ea0871fa1871fa2861fa38620a48520a58521a68521a78422a78423a88323a98224aa8225ab8126ac8127ad8028ae7f29af7f"
    "2ab07e2bb17d2cb17d2eb27c2fb37b30b47a32b57a33b67935b77836b87738b97639b9763bba753dbb743ebc7340bd7242be7144be70"
    "45bf6f47c06e49c16d4bc26c4dc26b4fc36951c46853c56755c66657c66559c7645bc8625ec96160c96062ca5f64cb5d67cc5c69cc5b"
    "6bcd596dce5870ce5672cf5574d05477d05279d1517cd24f7ed24e81d34c83d34b86d44988d5478bd5468dd64490d64392d74195d73f"
    "97d83e9ad83c9dd93a9fd938a2da37a5da35a7db33aadb32addc30afdc2eb2dd2cb5dd2bb7dd29bade27bdde26bfdf24c2df22c5df21"
    "c7e01fcae01ecde01dcfe11cd2e11bd4e11ad7e219dae218dce218dfe318e1e318e4e318e7e419e9e419ece41aeee51bf1e51cf3e51e"
    "f6e61ff8e621fae622fde724"
)), "u1").reshape(256, 3)

NAN = float("nan")


def ramp(dtype, shape):
    """Returns values that differ along all dimensions, as many as the dtype distinguishes."""
    grids = np.meshgrid(*(np.linspace(0, 1, n) for n in shape), indexing="ij")
    whole = sum(grid * (i + 1) for i, grid in enumerate(grids)) + np.sin(7 * grids[-1])
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return whole > whole.mean()
    if dtype.kind in "mM":
        return (whole * 1e6).astype("i8").view(dtype)
    scale = {"u": 60, "i": 30, "f": 10, "c": 1}[dtype.kind]
    return (whole * scale).astype(dtype)


def cases():
    """Yields names, values, chunks, options of zarr, and attributes."""
    for dtype in ["|b1", "|u1", "|i1", "<u2", ">i2", "<i4", ">u4", "<i8", ">u8", "<f2", ">f2", "<f4", ">f8", "<M8[s]", "<m8[D]"]:
        yield "type_" + dtype.strip("<>|").replace("[", "_").strip("]") + ("_big" if dtype[0] == ">" else ""), \
            ramp(dtype, (20, 30)), (7, 11), {}, {}
    yield "order_f", ramp("<i4", (40, 25)), (16, 9), {"order": "F"}, {}
    yield "volume_f", ramp("<f4", (3, 4, 40, 25)), (2, 2, 16, 9), {"order": "F"}, {}
    yield "one", ramp("<f8", (1, 1)), (1, 1), {}, {}
    yield "row", ramp("<f4", (1, 700)), (1, 50), {}, {}
    yield "large", ramp("<f4", (1100, 900)), (300, 200), {}, {}
    yield "many_chunks", ramp("<i2", (600, 450)), (30, 30), {}, {}
    yield "oblong", ramp("<i2", (5000, 9)), (100, 2), {}, {}
    yield "oblong_wide", ramp("<i2", (200, 60000)), (50, 3000), {}, {}
    missing = ramp("<f4", (30, 40))
    missing[3:9, 5:20] = NAN
    missing[20, :] = np.inf
    yield "missing_nan", missing, (10, 10), {"fill_value": NAN}, {}
    filled = ramp("<i2", (30, 40))
    filled[10:15] = -9999
    yield "missing_fill", filled, (10, 10), {"fill_value": -9999}, {"_ARRAY_DIMENSIONS": ["row", "column"]}
    yield "packed", ramp("<i2", (30, 40)), (10, 10), {}, {"scale_factor": -0.5, "add_offset": 3.0}
    times = ramp("<M8[s]", (12, 13))
    times[4] = np.datetime64("NaT")
    yield "missing_times", times, (5, 5), {"fill_value": "NaT"}, {}
    yield "rgb", ramp("|u1", (30, 40, 3)), (10, 20, 2), {}, {"_ARRAY_DIMENSIONS": ["row", "column", "rgb"]}
    yield "band", ramp("|u1", (4, 300, 400)), (1, 30, 20), {}, {"_ARRAY_DIMENSIONS": ["band", "y", "x"]}
    yield "rgba", ramp("|u1", (700, 600, 4)), (200, 200, 4), {}, {"_ARRAY_DIMENSIONS": ["row", "column", "c"]}


def absent():
    yield "complex", ramp("<c8", (5, 6)), (5, 6)
    yield "text", np.array([["a", "b"]], "S1"), (1, 2)
    yield "line", ramp("<f4", (9,)), (9,)
    yield "empty", np.zeros((0, 5), "<f4"), (1, 5)


def write(store):
    group = zarr.open_group(store, mode="w")
    for name, values, chunks, options, attributes in cases():
        options = {"fill_value": None} | options
        array = group.create_dataset(name, shape=values.shape, chunks=chunks, dtype=values.dtype, **options)
        array[...] = values
        array.attrs.update(attributes)
    for name, values, chunks in absent():
        group.create_dataset(name, data=values, chunks=chunks)
    # chunks that are not stored have the fill value
    holes = group.create_dataset("holes", shape=(40, 40), chunks=(10, 10), dtype="<f4", fill_value=NAN)
    holes[:20, 10:] = ramp("<f4", (20, 30))
    zeros = group.create_dataset("zeros", shape=(40, 40), chunks=(10, 10), dtype="<f4", fill_value=0)
    zeros[:20, 10:] = ramp("<f4", (20, 30)) - 3
    image = group.create_group("ome")
    colors = ["FF0000", "00FF80", "2040FF"]
    for level, n in enumerate([1200, 600, 150]):
        data = ramp("<u2", (3, n, n)) + 100 * level
        array = image.create_dataset(str(level), data=data.astype("<u2"), chunks=(1, 200, 200), dimension_separator="/")
    image.attrs.update({
        "multiscales": [{"version": "0.4", "datasets": [
            {"path": str(i), "coordinateTransformations": [{"type": "scale", "scale": [1, 2 ** i, 2 ** i]}]} for i in range(3)],
            "axes": [{"name": "c", "type": "channel"}, {"name": "y", "type": "space"}, {"name": "x", "type": "space"}]}],
        "omero": {"channels": [{"color": color} for color in colors]}})


def sides(rows, columns):
    """Returns height and width of the image of an array."""
    longest = max(rows, columns)
    if longest <= 512:
        return rows, columns
    return tuple(max((2 * n * 512 + longest) // (2 * longest), min(n, 64)) for n in (rows, columns))


def centers(count, n):
    return [(2 * i + 1) * n // (2 * count) for i in range(count)]


def chosen(items, chunk, kept):
    """Returns the chunks along a dimension that are read for these items."""
    chunks = sorted({item // chunk for item in items})
    if len(chunks) > kept:
        chunks = [chunks[(2 * i + 1) * len(chunks) // (2 * kept)] for i in range(kept)]
    return chunks


def nearest(items, chunks, chunk, n):
    """Returns the item in one of the chunks that is nearest to each item."""
    spans = [(c * chunk, min((c + 1) * chunk, n) - 1) for c in chunks]
    return [min((min(max(item, a), b) for a, b in spans), key=lambda found: abs(found - item)) for item in items]


def sampled(values, chunks):
    """Returns the samples of a plane of values, of which at most 64 chunks are read."""
    size = sides(*values.shape)
    items = [centers(count, n) for count, n in zip(size, values.shape)]
    every = [len(chosen(items[i], chunks[i], 10 ** 9)) for i in range(2)]
    gaps = []
    for rows in range(1, min(every[0], 64) + 1):
        columns = min(every[1], 64 // rows)
        gap = max(size[0] / rows - size[0] / every[0], size[1] / columns - size[1] / every[1])
        gaps.append((gap, rows, columns))
    _, rows, columns = min(gaps, key=lambda gap: gap[0])
    found = [nearest(items[i], chosen(items[i], chunks[i], kept), chunks[i], values.shape[i]) for i, kept in enumerate((rows, columns))]
    return values[np.ix_(*found)]


def stretched(samples):
    """Returns samples between 0 and 1, from their percentiles 2 and 98."""
    finite = samples[np.isfinite(samples)]
    low, high = np.percentile(finite, [2, 98]) if finite.size else (0, 0)
    with np.errstate(all="ignore"):
        levels = np.where(samples <= low, 0, np.where(samples >= high, 1, (samples - low) / (high - low)))
    return np.where(np.isnan(samples), NAN, levels)


def numbers(array):
    """Returns the values as floats; NaN is missing."""
    values = array[...]
    floats = values.view("i8").astype("f8") if values.dtype.kind in "mM" else values.astype("f8")
    if values.dtype.kind in "mM":
        floats[np.isnat(values)] = NAN
    elif "_ARRAY_DIMENSIONS" in array.attrs and array.fill_value is not None:
        floats[values == array.fill_value] = NAN
    return floats * array.attrs.get("scale_factor", 1) + array.attrs.get("add_offset", 0)


def mapped(samples):
    """Returns pixels of viridis."""
    levels = stretched(samples)
    shown = VIRIDIS[np.minimum(np.nan_to_num(levels) * 256, 255).astype(int)]
    return np.concatenate([shown, np.where(np.isnan(levels), 0, 255)[..., None]], -1) * ~np.isnan(levels)[..., None]


def expected(name, array, group):
    """Returns the pixels of an image."""
    if name.startswith("ome"):
        level = group["ome/1" if name in ("ome/0", "ome/1") else "ome/2"]
        light = np.zeros(sides(*array.shape[1:]) + (3,))
        for band, color in zip(numbers(level), [(255, 0, 0), (0, 255, 128), (32, 64, 255)]):
            if name == "ome/0":
                # the level has 600 items a side, the image 512
                found = [centers(512, 600)] * 2
                assert len(chosen(found[0], 200, 64)) ** 2 <= 64
                band = band[np.ix_(*found)]
            else:
                band = sampled(band, level.chunks[1:])
            light += stretched(band)[..., None] * color
        light = np.round(np.minimum(light, 255))
        return np.concatenate([light, np.full(light.shape[:2] + (1,), 255)], -1)
    values = numbers(array)
    if name in ("rgb", "rgba", "band"):
        values, chunks = (np.moveaxis(values, 0, -1), array.chunks[1:]) if name == "band" else (values, array.chunks[:2])
        bands = [sampled(values[..., i], chunks) for i in range(4 if name == "rgba" else 3)]
        return np.stack(bands + ([np.full(bands[0].shape, 255.0)] if len(bands) == 3 else []), -1)
    plane = values[(0,) * (values.ndim - 2)]
    return mapped(sampled(plane, array.chunks[-2:]))


def check(mount, store):
    group = zarr.open_group(store, mode="r")
    found = []
    group.visititems(lambda name, item: found.append(name) if isinstance(item, zarr.Array) else None)
    without = {name for name, _, _ in absent()}
    for name in found:
        path = os.path.join(mount, name, "preview.png")
        if name in without:
            same(f"{name} is there", os.path.exists(path), False)
            same(f"{name} is listed", "preview.png" in os.listdir(os.path.dirname(path)), False)
            continue
        size = os.stat(path).st_size
        with open(path, "rb") as file:
            same(f"{name}: size", len(file.read()), size)
        with rasterio.open(path) as image:
            pixels = np.moveaxis(image.read(), 0, -1)
        wanted = expected(name, group[name], group)
        same(f"{name}: shape", pixels.shape, wanted.shape)
        differences = np.abs(pixels.astype(int) - np.round(wanted).astype(int)).max(axis=-1)
        # a sum that is rounded otherwise may lead to the next color
        same(f"{name}: largest difference", bool(differences.max() <= 6), True)
        same(f"{name}: pixels of another color", int((differences > 1).sum()) <= differences.size // 500, True)
    print(f"compared {len(found) - len(without)} previews")


if __name__ == "__main__":
    try:
        {"write": write, "check": check}[sys.argv[1]](*sys.argv[2:])
    except Different as e:
        sys.exit(str(e))
