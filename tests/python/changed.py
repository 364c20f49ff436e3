"""Makes a store with zarr-python, and checks it with zarr-python after zarrfs has changed it.

    changed.py make STORE       (with zarr 2.18)
    changed.py check STORE      (with zarr 2.18 or zarr 3)
    changed.py consolidated STORE   (likewise; checks only the consolidated metadata)

The changes are in tests/commands/metadata.rs.
"""
import sys
import warnings

import numcodecs
import numpy as np
import zarr

warnings.simplefilter("ignore")

A = np.arange(70, dtype="<f8").reshape(10, 7)
F = np.arange(60, dtype="<i4").reshape(10, 6)


def make(store):
    root = zarr.open_group(store, mode="w")
    g = root.create_group("g")
    a = g.create_dataset("a", data=A, chunks=(4, 3), fill_value=-1.5, compressor=numcodecs.Blosc("zstd", 3, 2))
    a.attrs["units"] = "K"
    a.attrs["missing"] = float("nan")
    filters = [numcodecs.Delta("<i4")]
    f = g.create_dataset("f", data=F, chunks=(3, 4), order="F", filters=filters, dimension_separator="/",
                         compressor=numcodecs.Zlib(4), fill_value=9)
    f.attrs["note"] = "first"
    g.create_dataset("gone", data=F, chunks=(10, 6))
    zarr.consolidate_metadata(store)


def resized(data, shape, fill):
    whole = np.full(shape, fill, data.dtype)
    both = tuple(slice(min(old, new)) for old, new in zip(data.shape, shape))
    whole[both] = data[both]
    return whole


def consolidated(store):
    root = zarr.open_consolidated(store, mode="r")
    assert sorted(root) == ["g", "h"] and sorted(root["h"]) == ["b", "inner", "new"], sorted(root["h"])
    assert root["g/a"].shape == (11, 8) and root["g/a"].attrs["units"] == {"si": True}
    assert np.array_equal(root["h/b"][...], resized(F, (7, 9), 9))
    if zarr.__version__.startswith("2."):
        import json
        with open(f"{store}/.zmetadata") as file:
            ours = json.load(file)
        zarr.consolidate_metadata(store)
        with open(f"{store}/.zmetadata") as file:
            theirs = json.load(file)
        # compare as text, since NaN is not equal to itself
        assert json.dumps(ours, sort_keys=True) == json.dumps(theirs, sort_keys=True)
    print(f"zarr {zarr.__version__}: the consolidated metadata is right")


def check(store):
    is_2 = zarr.__version__.startswith("2.")
    plain = zarr.open_group(store, mode="r") if is_2 else zarr.open_group(store, mode="r", use_consolidated=False)
    for root in plain, zarr.open_consolidated(store, mode="r"):
        assert sorted(root) == ["g", "h"], sorted(root)
        assert sorted(root["g"]) == ["a"] and sorted(root["h"]) == ["b", "inner", "new"], sorted(root["h"])
        # after shrinking and growing again, removed items have the fill value
        a, f, new = root["g/a"], root["h/b"], root["h/new"]
        assert np.array_equal(a[...], resized(resized(A, (6, 8), -1.5), (11, 8), -1.5))
        assert a.attrs["units"] == {"si": True} and np.isnan(a.attrs["missing"])
        assert np.array_equal(f[...], resized(F, (7, 9), 9))
        assert f.attrs.asdict() == {"note": "second", "plain": "not JSON"}
        codecs = (f.compressor, f.filters) if is_2 else (f.compressors[0], list(f.filters))
        assert codecs == (numcodecs.Zlib(4), [numcodecs.Delta("<i4")]), codecs
        compressor = new.compressor if is_2 else new.compressors[0]
        assert compressor.codec_id == "zstd" and new.shape == (5,)
        assert (new[...] == 0).all()
    print(f"zarr {zarr.__version__}: the changed store is right")


{"make": make, "check": check, "consolidated": consolidated}[sys.argv[1]](sys.argv[2])
