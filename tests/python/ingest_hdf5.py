#!/usr/bin/env python3
"""Writes files of HDF5 and netCDF-4 with netCDF-C, h5py, xarray and ncgen, and compares what they became.

    ingest_hdf5.py make DIR              writes files that become groups, and into DIR/refused such that do not, the
                                         expected reason of NAME in DIR/refused/NAME.txt
    ingest_hdf5.py compare DIR STORES    compares STORES/NAME with each file, by zarr-python and xarray
    ingest_hdf5.py shown DIR MOUNT [no]  compares NAME.nc.nc in a mount with each NAME.nc, by ncdump (unless `no`) and
                                         netCDF-C, and NAME.h5.h5 with each NAME.h5, by h5py
    ingest_hdf5.py write DIR MOUNT       has programs write and change files in both directories, and compares them
    ingest_hdf5.py sample DIR            writes files that tests damage

All but `compare` need netCDF4, h5py, h5netcdf and xarray; `compare` reads what `make` noted.
"""
import json
import os
import pickle
import subprocess
import sys
import warnings

import numpy as np

warnings.simplefilter("ignore")

TYPES = ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8", "S1", "str"]
CDL = {
    "types": """netcdf x { dimensions: n = 3 ; m = 2 ; variables: byte b(n) ; ubyte ub(n) ; short s(n) ; ushort us(n) ;
        int i(n) ; uint ui(n) ; int64 l(n) ; uint64 ul(n) ; float f(n) ; double d(n) ; char c(n, m) ; string t(n) ;
        f:_FillValue = NaNf ; i:units = "m" ; :title = "a" ; string :words = "x y", "z" ; :l = 9223372036854775807L ;
        data: b = -1, 2, 3 ; ub = 255, 2, 3 ; s = -1, 2, 3 ; us = 65535, 1, 2 ; i = 1, 2, 3 ; ui = 4294967295, 1, 2 ;
        l = -9223372036854775807, 1, 2 ; ul = 18446744073709551615, 1, 2 ; f = 1.5, _, 3 ; d = 1e300, -0.0, 3 ;
        c = "ab", "cd", "ef" ; t = "one", "", "größe" ; }""",
    "groups": """netcdf x { dimensions: t = 2 ; variables: int a(t) ; int t(t) ; :top = 1 ; data: a = 1, 2 ; t = 10, 20 ;
        group: g { dimensions: y = 3 ; variables: double b(t, y) ; b:units = "K" ; :in = "g" ; data: b = 1, 2, 3, 4, 5, 6 ;
        group: h { variables: short c(y) ; data: c = 7, 8, 9 ; } group: empty { :note = "nothing" ; } } }""",
    "empty": "netcdf x { }",
    "scalar": "netcdf x { variables: int i ; string s ; double d ; data: i = 7 ; s = \"text\" ; d = -0.0 ; }",
    "records": "netcdf x { dimensions: t = UNLIMITED ; x = 2 ; variables: short a(t, x) ; double t(t) ; byte b(x) ; "
               "a:_FillValue = -1s ; data: a = 1, 2, _, 4, 5, 6 ; t = 0, 1, 2 ; b = 1, 2 ; }",
    "no_records": "netcdf x { dimensions: t = UNLIMITED ; x = 2 ; variables: short a(t, x) ; int b(x) ; data: b = 3, 4 ; }",
    "odd_names": 'netcdf x { dimensions: a\\ b = 2 ; größe = 2 ; variables: int x.y(a\\ b) ; byte größe(größe) ; '
                 'short _u(a\\ b) ; _u:odd-name = 3s ; data: x.y = 1, 2 ; größe = 3, -4 ; _u = 5, 6 ; }',
}


def values(dtype, shape, seed=1):
    rng = np.random.default_rng(seed)
    count = int(np.prod(shape, dtype=int))
    if dtype == "str":
        flat = np.array([["", "größe", "x", "a longer text"][n] for n in rng.integers(0, 4, count)], object)
        return flat.reshape(shape)
    dtype = np.dtype(dtype)
    if dtype.kind == "S":
        flat = rng.integers(97, 123, (count, dtype.itemsize)).astype("u1").view(dtype)[:, 0]
    elif dtype.kind in "fc":
        flat = rng.normal(size=count).astype(dtype)
    else:
        flat = rng.integers(0, 2 if dtype.kind == "b" else 120, count).astype(dtype)
    return flat.reshape(shape)


def by_netcdf_c(directory):
    import netCDF4

    def dataset(name, file_format="NETCDF4"):
        return netCDF4.Dataset(os.path.join(directory, f"nc_{name}.nc"), "w", format=file_format)

    for kind in TYPES:
        with dataset(f"type_{kind}") as file:
            for name, length in [("t", 5), ("y", 3), ("x", 7)]:
                file.createDimension(name, length)
            file.title = "größe"
            for shape in [("t", "y", "x"), ("x",), ()]:
                fill = {"S1": b"?", "str": None}.get(kind) if kind in ("S1", "str") else np.array(99, kind)
                made = file.createVariable(f"v{len(shape)}", str if kind == "str" else kind, shape,
                                           fill_value=fill if shape else None)
                made.set_auto_maskandscale(False)
                made[...] = values(kind, tuple({"t": 5, "y": 3, "x": 7}[n] for n in shape)) if shape else \
                    ("text" if kind == "str" else values(kind, ())[()])
                made.units = "K"
                if kind not in ("S1", "str"):
                    made.valid_range = np.array([0, 100], kind)
    for endian in ["big", "little"]:
        with dataset(f"endian_{endian}") as file:
            file.createDimension("x", 9)
            for kind in ["i2", "u4", "i8", "f4", "f8"]:
                file.createVariable(kind, kind, ("x",), endian=endian, fill_value=np.array(5, kind))[:] = values(kind, (9,))
    layouts = {"contiguous": {"contiguous": True}, "chunked": {"chunksizes": (3, 10)}, "plain": {},
               "zlib": {"zlib": True, "complevel": 9, "shuffle": False, "chunksizes": (7, 7)},
               "shuffle": {"zlib": True, "shuffle": True, "fletcher32": True, "chunksizes": (32, 30)},
               "checksum": {"fletcher32": True}, "tiny": {"chunksizes": (1, 1)}}
    with dataset("layouts") as file:
        file.createDimension("y", 40)
        file.createDimension("x", 30)
        for name, options in layouts.items():
            file.createVariable(name, "f4", ("y", "x"), **options)[:] = values("f4", (40, 30), len(name))
    with dataset("compressors") as file:
        file.createDimension("y", 60)
        file.createDimension("x", 50)
        for name in ["zlib", "zstd", "bzip2", "blosc_lz", "blosc_lz4", "blosc_zstd", "blosc_zlib", "szip"]:
            made = file.createVariable(name, "i4", ("y", "x"), compression=name, fletcher32=name == "zstd", chunksizes=(16, 50))
            made[:] = values("i4", (60, 50), len(name))
    with dataset("two_unlimited") as file:
        file.createDimension("t", None)
        file.createDimension("s", None)
        file.createVariable("v", "i4", ("t", "s"))[:] = values("i4", (4, 6))
        file.createVariable("t", "f8", ("t",))[:] = range(4)
    with dataset("shorter_records") as file:
        file.createDimension("t", None)
        file.createDimension("x", 3)
        file.createVariable("long", "i2", ("t", "x"))[:] = values("i2", (5, 3))
        file.createVariable("short", "i2", ("t",))[:] = [7, 8]
        file.createVariable("filled", "f8", ("t",), fill_value=-9.0)[:] = [1.5]
        file.createVariable("none", "f4", ("t", "x"))
    with dataset("records", "NETCDF4_CLASSIC") as file:
        file.createDimension("time", None)
        file.createDimension("x", 4)
        file.createVariable("time", "f8", ("time",))[:] = range(6)
        file.createVariable("v", "f4", ("time", "x"), zlib=True)[:] = values("f4", (6, 4))
        file.createVariable("c", "S1", ("x",))[:] = values("S1", (4,))
    with dataset("never_written") as file:
        file.createDimension("x", 5)
        for kind in ["i1", "i4", "f8"]:
            file.createVariable(kind, kind, ("x",))
        file.createVariable("own", "i2", ("x",), fill_value=-3)
    with dataset("many_attributes") as file:
        file.createDimension("x", 2)
        made = file.createVariable("x", "f8", ("x",))
        made[:] = [1, 2]
        for n in range(40):
            made.setncattr(f"attribute_{n:02}", f"text {n}")
            file.setncattr(f"of_file_{n:02}", n)
    with dataset("many_variables") as file:
        file.createDimension("x", 3)
        for n in range(60):
            file.createVariable(f"v{n:03}", "i2", ("x",))[:] = [n, n + 1, n + 2]
    with dataset("coordinates") as file:
        for name, length in [("x", 3), ("y", 2), ("len", 4)]:
            file.createDimension(name, length)
        file.createVariable("v", "f8", ("y", "x"))[:] = values("f8", (2, 3))
        # a coordinate of two dimensions, and one that is defined after its data
        file.createVariable("y", "S1", ("y", "len"))[:] = values("S1", (2, 4))
        file.createVariable("x", "f4", ("x",))[:] = [1, 2, 3]
    with dataset("no_coordinate") as file:
        file.createDimension("x", 3)
        file.createDimension("y", 2)
        # a variable with the name of a dimension that it does not have
        file.createVariable("x", "i4", ("y",))[:] = [5, 6]
        file.createVariable("v", "i4", ("y", "x"))[:] = values("i4", (2, 3))
    with dataset("groups") as file:
        file.createDimension("t", 4)
        file.createVariable("t", "f8", ("t",))[:] = range(4)
        for name in ["a", "a/b", "a/b/c", "z"]:
            group = file.createGroup(name)
            group.createDimension("n", 3)
            group.createVariable("v", "i4", ("t", "n"))[:] = values("i4", (4, 3), len(name))
            group.createVariable("s", str, ("n",))[:] = values("str", (3,))
            group.path_of_it = name
    with dataset("enumeration") as file:
        kind = file.createEnumType("u1", "cloud", {"clear": 0, "few": 1, "overcast": 8})
        file.createDimension("x", 4)
        file.createVariable("v", kind, ("x",))[:] = np.array([0, 1, 8, 1], "u1")


def by_xarray(directory):
    import xarray
    path = lambda name: os.path.join(directory, f"xarray_{name}.nc")
    plain = values("f8", (5, 60, 70))
    hours = np.datetime64("2020-01-01", "ns") + np.arange(5) * np.timedelta64(1, "h")
    cases = {
        "packed": (xarray.Dataset({"p": (("t", "y", "x"), plain)}),
                   {"p": {"dtype": "i2", "scale_factor": 0.001, "add_offset": 1.0, "_FillValue": -32768, "zlib": True}}),
        "unsigned": (xarray.Dataset({"p": ("x", np.arange(200.0))}),
                     {"p": {"dtype": "i1", "_Unsigned": "true", "_FillValue": -1, "scale_factor": 2.0}}),
        "nan": (xarray.Dataset({"p": (("y", "x"), plain[0].astype("f4"), {"missing_value": np.float32("nan")})}), {}),
        "strings": (xarray.Dataset({"s": ("n", np.array(["a", "größe", ""], object)), "t": ((), "one")}, {"n": [1, 2, 3]}), {}),
        "times": (xarray.Dataset({"v": ("t", np.arange(5.0))}, {"t": hours}), {}),
        "booleans": (xarray.Dataset({"b": ("n", np.array([True, False, True]))}), {}),
        "coordinates": (xarray.Dataset({"v": (("y", "x"), plain[0])}, {"lat": (("y", "x"), plain[1]), "height": 2.0}), {}),
        "large": (xarray.Dataset({"v": (("t", "y", "x"), values("f4", (40, 300, 400)))}),
                  {"v": {"zlib": True, "chunksizes": (7, 90, 130)}}),
        "grid_mapping": (xarray.Dataset({"v": (("y", "x"), plain[0], {"grid_mapping": "crs"}),
                                         "crs": ((), 0, {"grid_mapping_name": "latitude_longitude", "semi_major_axis": 6378137.0})},
                                        {"y": np.arange(60.0), "x": np.arange(70.0)}), {}),
        "bounds": (xarray.Dataset({"v": ("t", np.arange(3.0)), "t_bnds": (("t", "nv"), plain[0, :3, :2])},
                                  {"t": ("t", [0.5, 1.5, 2.5], {"bounds": "t_bnds"})}), {}),
    }
    for name, (data, encoding) in cases.items():
        unlimited = ["t"] if name in ("times", "bounds") else []
        engine = "h5netcdf" if name in ("coordinates", "nan") else "netcdf4"
        data.to_netcdf(path(name), engine=engine, encoding=encoding, unlimited_dims=unlimited)


def by_h5py(directory):
    import h5py

    def file(name, **options):
        return h5py.File(os.path.join(directory, f"h5_{name}.h5"), "w", **options)

    for name, options in [("earliest", {}), ("latest", {"libver": "latest"}), ("v110", {"libver": ("earliest", "v110")}),
                          ("user_block", {"userblock_size": 1024}), ("ordered", {"track_order": True})]:
        with file(name, **options) as f:
            for kind in ["|b1", "i1", "<u2", ">i4", ">f8", "<f2", "<c8", ">c16", "S1", "S7"]:
                f[f"a_{kind.strip('<>|')}"] = values(kind, (4, 5))
            f["scalar"] = 3.5
            f["text"] = "größe"
            f["g/h/deep"] = values("i4", (3,))
            f["g"].attrs["note"] = "group"
            f.create_dataset("packed", data=values("i4", (50, 40)), chunks=(16, 16), compression="gzip", shuffle=True,
                             fletcher32=True)
            f.create_dataset("lzf", data=values("i4", (50, 40)), chunks=(16, 16), compression="lzf", shuffle=True)
            # each index of chunks
            f.create_dataset("one_chunk", data=values("i4", (6, 7)), chunks=(6, 7))
            f.create_dataset("fixed", data=values("i4", (60, 7)), chunks=(4, 7))
            f.create_dataset("growing", data=values("i4", (600, 7)), chunks=(4, 7), maxshape=(None, 7))
            f.create_dataset("growing_packed", data=values("i4", (600, 7)), chunks=(4, 7), maxshape=(None, 7), compression="gzip")
            f.create_dataset("growing_twice", data=values("i4", (60, 70)), chunks=(4, 7), maxshape=(None, None))
            f.create_dataset("scaled", data=values("i4", (60, 70)), chunks=(20, 70), scaleoffset=0)
            empty = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            empty.set_chunk((5, 7))
            empty.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
            space = h5py.h5s.create_simple((20, 14))
            early = h5py.Dataset(h5py.h5d.create(f.id, b"implicit", h5py.h5t.STD_I32LE, space, empty))
            early[...] = values("i4", (20, 14))
            compact = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            compact.set_layout(h5py.h5d.COMPACT)
            small = h5py.h5d.create(f.id, b"compact", h5py.h5t.STD_I16BE, h5py.h5s.create_simple((3, 2)), compact)
            h5py.Dataset(small)[...] = values("i2", (3, 2))
            sparse = f.create_dataset("sparse", (40, 40), "f4", chunks=(10, 10), fillvalue=7)
            sparse[12:15, 3:30] = 1
    with file("strings") as f:
        f["fixed"] = values("S12", (5,))
        for name, padding in [("null_padded", h5py.h5t.STR_NULLPAD), ("terminated", h5py.h5t.STR_NULLTERM),
                              ("spaces", h5py.h5t.STR_SPACEPAD)]:
            kind = h5py.h5t.C_S1.copy()
            kind.set_size(6)
            kind.set_strpad(padding)
            made = h5py.h5d.create(f.id, name.encode(), kind, h5py.h5s.create_simple((2,)))
            made.write(h5py.h5s.ALL, h5py.h5s.ALL, np.array([b"ab", b"cdefg"], "S6"))
        f.create_dataset("utf8", data=[n.encode() for n in ["größe", "x"]], dtype=h5py.string_dtype("utf-8", 8))
        f.create_dataset("vlen", data=["größe", "", "a" * 5000], dtype=h5py.string_dtype())
        f.create_dataset("ascii", data=[b"one", b"two"], dtype=h5py.string_dtype("ascii"))
        f.create_dataset("chunked", data=values("str", (100, 30)), dtype=h5py.string_dtype(), chunks=(7, 30), compression="gzip")
        f.create_dataset("unwritten", (9,), dtype=h5py.string_dtype(), chunks=(3,))
    with file("attributes") as f:
        a = f.create_dataset("a", data=[1, 2])
        a.attrs["int"], a.attrs["float"], a.attrs["bool"] = 7, 1.5, True
        a.attrs["list"] = [1, 2, 3]
        a.attrs["table"] = np.arange(6).reshape(2, 3)
        a.attrs["text"], a.attrs["bytes"] = "größe", np.bytes_("fixed")
        a.attrs["words"] = ["one", "two"]
        a.attrs["CLASS"], a.attrs["NAME"] = "CARRAY", "as PyTables has it"
        a.attrs["empty"] = h5py.Empty("S1")
        a.attrs["big"] = np.array([1, 2], ">i2")
        for n in range(30):
            f.attrs[f"dense_{n}"] = n
    with file("scales") as f:
        f["v"] = values("f8", (4, 3, 3))
        f["lat"], f["lon"] = np.arange(4.0), np.arange(3.0)
        for n, name in [(0, "lat"), (1, "lon")]:
            f[name].make_scale(name)
            f["v"].dims[n].attach_scale(f[name])
        f["v"].dims[2].label = "level"
    with file("links") as f:
        f["a"] = values("i2", (3,))
        f["g/b"] = values("i4", (2,))
        f["hard"] = f["a"]
        f["soft"] = h5py.SoftLink("/g/b")
        f["dangling"] = h5py.SoftLink("/nowhere")
        f["committed"] = np.dtype("f8")
    with file("empty_dimension") as f:
        f.create_dataset("none", (0, 3), "i4")
        f["some"] = [1, 2]
    with file("opaque") as f:
        f["v"] = np.array([b"abcd", b"ef"], "V4")


def refused(directory):
    import h5py
    import netCDF4
    os.mkdir(directory)

    def file(name, reason, ending="h5"):
        path = os.path.join(directory, f"{name}.{ending}")
        with open(path + ".txt", "w") as out:
            out.write(reason)
        return path

    with h5py.File(file("compound", "g/table: its items are a compound of x, y"), "w") as f:
        f["g/table"] = np.zeros(3, [("x", "f4"), ("y", "i2")])
    with h5py.File(file("sequences", "v: its items are sequences of variable length"), "w") as f:
        f.create_dataset("v", (2,), h5py.vlen_dtype("i4"))
    with h5py.File(file("references", "v: its items are references"), "w") as f:
        f.create_dataset("v", data=[f.ref], dtype=h5py.ref_dtype)
    with h5py.File(file("array", "v: its items are an array"), "w") as f:
        f.create_dataset("v", (2,), np.dtype(("i4", (3,))))
        made = h5py.h5t.array_create(h5py.h5t.STD_I32LE, (3,))
        del f["v"]
        h5py.h5d.create(f.id, b"v", made, h5py.h5s.create_simple((2,)))
    with h5py.File(file("bits", "v: its items are an integer of 4 bytes, some bits unused"), "w") as f:
        kind = h5py.h5t.STD_I32LE.copy()
        kind.set_precision(20)
        h5py.h5d.create(f.id, b"v", kind, h5py.h5s.create_simple((2,)))
    with h5py.File(file("bfloat", "v: its items are a float of 2 bytes that is not of IEEE 754"), "w") as f:
        kind = h5py.h5t.IEEE_F16LE.copy()
        kind.set_fields(15, 7, 8, 0, 7)
        kind.set_ebias(127)
        h5py.h5d.create(f.id, b"v", kind, h5py.h5s.create_simple((2,)))
    with h5py.File(file("null", "v: it has no dataspace"), "w") as f:
        f["v"] = h5py.Empty("f4")
    with h5py.File(file("cycle", "a group that contains itself"), "w") as f:
        f["g/h/v"] = 1
        f["g/h/again"] = f["g"]
    with h5py.File(file("external", 'a link to another file, "other.h5"'), "w") as f:
        f["v"] = h5py.ExternalLink("other.h5", "/v")
    with h5py.File(file("external_values", "v: HDF5: external raw data file"), "w") as f:
        f.create_dataset("v", (4,), "i4", external=[(os.path.join(directory, "raw"), 0, 16)])
    with h5py.File(file("virtual", "v: a virtual data set"), "w", libver="latest") as f:
        layout = h5py.VirtualLayout((4,), "i4")
        layout[:] = h5py.VirtualSource("other.h5", "v", (4,))
        f.create_virtual_dataset("v", layout)
    with h5py.File(file("attribute", 'v: attribute "r": references'), "w") as f:
        f["v"] = [1]
        f["v"].attrs["r"] = f.ref
    with h5py.File(file("hidden", "names that begin with a dot"), "w") as f:
        f[".hidden"] = [1]
    with h5py.File(file("huge", "v: its shape [1099511627776, 1024] has more items"), "w") as f:
        f.create_dataset("v", (1 << 40, 1 << 10), "f8", chunks=(1 << 10, 1 << 10))
    with netCDF4.Dataset(file("netcdf_compound", "v: its items are a compound of x, y", "nc"), "w") as f:
        kind = f.createCompoundType(np.dtype([("x", "f8"), ("y", "f8")]), "pair")
        f.createDimension("n", 2)
        f.createVariable("v", kind, ("n",))
    with open(file("cut", "the file ends before the bytes that it refers to"), "wb") as out:
        with open(os.path.join(directory, "compound.h5"), "rb") as whole:
            out.write(whole.read()[:800])
    for name in os.listdir(directory):
        if name == "raw":
            os.remove(os.path.join(directory, name))


def make(directory):
    by_netcdf_c(directory)
    by_xarray(directory)
    by_h5py(directory)
    for name, text in CDL.items():
        path = os.path.join(directory, f"ncgen_{name}.nc")
        subprocess.run(["ncgen", "-k", "nc4", "-o", path], input=text.encode(), check=True)
    for name in os.listdir(directory):
        path = os.path.join(directory, name)
        if name.endswith((".nc", ".h5")):
            with open(path + ".pickle", "wb") as out:
                pickle.dump(netcdf_content(path) if name.endswith(".nc") else hdf5_content(path), out)
    refused(os.path.join(directory, "refused"))


def netcdf_content(path):
    """Returns variables (dimensions, values, attributes) and attributes of each group, as netCDF-C reads them."""
    import netCDF4
    found = {}

    def visit(group, name):
        variables = {}
        for own, variable in group.variables.items():
            variable.set_auto_maskandscale(False)
            variable.set_auto_chartostring(False)
            data = np.asarray(variable[...])
            attributes = {key: variable.getncattr(key) for key in variable.ncattrs()}
            if isinstance(variable.datatype, netCDF4.EnumType):
                words = variable.datatype.enum_dict
                attributes |= {"flag_values": list(words.values()), "flag_meanings": " ".join(words)}
            if data.dtype.kind in "UO":
                data = np.array(data, object)
            variables[own] = (variable.dimensions, data.astype(data.dtype.newbyteorder("=")), attributes)
        found[name] = (variables, {key: group.getncattr(key) for key in group.ncattrs()})
        for own, child in group.groups.items():
            visit(child, f"{name}/{own}" if name else own)
    with netCDF4.Dataset(path) as file:
        visit(file, "")
    return found


def hdf5_content(path):
    """Returns the same as `netcdf_content`, as h5py reads it; the dimensions are `None`."""
    import h5py
    found = {"": ({}, {})}
    skipped = {"CLASS", "NAME", "DIMENSION_LIST", "REFERENCE_LIST", "DIMENSION_LABELS", "_Netcdf4Dimid", "_NCProperties"}

    def attributes(item, is_scale=False):
        names = [name for name in item.attrs if name not in skipped or name in ("CLASS", "NAME") and not is_scale]
        values_ = {name: item.attrs[name] for name in names}
        return {name: "" if isinstance(value, h5py.Empty) else value for name, value in values_.items()}

    def visit(group, name):
        variables = {}
        for own, child in group.items():
            if isinstance(child, h5py.Group):
                visit(child, f"{name}/{own}" if name else own)
            elif isinstance(child, h5py.Dataset):
                is_scale = child.attrs.get("CLASS") == b"DIMENSION_SCALE"
                if is_scale and child.attrs["NAME"].startswith(b"This is a netCDF dimension but not"):
                    continue
                if h5py.check_string_dtype(child.dtype) and child.dtype.kind == "O":
                    data = np.array(child.asstr()[...], object)
                else:
                    data = child[...]
                if data.dtype.kind == "V":
                    data = np.array(data)
                variables[own] = (None, data.astype(data.dtype.newbyteorder("=")), attributes(child, is_scale))
        found[name] = (variables, attributes(group))
    with h5py.File(path) as file:
        visit(file, "")
    return found


def same(expected, found, what):
    found = np.asarray(found)
    if expected.dtype.kind == "O":
        found = np.array(found, object)
        assert expected.shape == found.shape and (expected == found).all(), f"{what}: {expected} {found}"
        return
    found = found.astype(found.dtype.newbyteorder("="))
    assert expected.shape == found.shape and expected.dtype == found.dtype, \
        f"{what}: {expected.dtype} {expected.shape}, {found.dtype} {found.shape}"
    assert expected.tobytes() == np.ascontiguousarray(found).tobytes(), f"{what}: {expected} {found}"


def same_attributes(expected, found, what):
    assert set(expected) <= set(found), f"{what}: {set(expected) - set(found)}"
    for key, value in expected.items():
        one, other = np.asarray(value), np.asarray(found[key])
        if one.ndim and other.ndim == 0 and other.dtype.kind in "US":
            # several words are joined in a container; other texts, and numbers in rows, are JSON
            text = other.item().decode() if other.dtype.kind == "S" else str(other)
            other = np.array(json.loads(text) if text.startswith("[") else text.split(" "))
        if one.dtype.kind in "SUO" and one.dtype != other.dtype:
            one = np.array([text.decode() if isinstance(text, bytes) else text for text in one.ravel()])
            other = np.array([text.decode() if isinstance(text, bytes) else text for text in other.ravel()])
        is_float = one.dtype.kind == "f"
        assert np.array_equal(np.atleast_1d(one), np.atleast_1d(other), equal_nan=is_float), f"{what}:{key}: {value!r} {found[key]!r}"


def names(directory):
    return sorted(name for name in os.listdir(directory) if name.endswith((".nc", ".h5")))


def compare(directory, stores):
    import zarr
    count = 0
    for name in names(directory):
        with open(os.path.join(directory, name + ".pickle"), "rb") as file:
            content = pickle.load(file)
        store = os.path.join(stores, name)
        top = zarr.open_group(store, mode="r")
        for path, (variables, attributes) in content.items():
            group = top[path] if path else top
            assert set(group.array_keys()) == set(variables), \
                f"{name}/{path}: {set(group.array_keys()) ^ set(variables)}"
            same_attributes(attributes, dict(group.attrs), f"{name}/{path}")
            for variable, (dimensions, expected, its) in variables.items():
                what = f"{name}/{path}: {variable}"
                array = group[variable]
                same(expected, array[...], what)
                its = {key: value for key, value in its.items() if key != "_FillValue"}
                same_attributes(its, dict(array.attrs), what)
            if name.endswith(".nc"):
                compare_by_xarray(store, path, variables, attributes, f"{name}/{path}")
        count += 1
    print(count)


def compare_by_xarray(store, path, variables, attributes, what):
    import xarray
    is_v3 = os.path.exists(os.path.join(store, "zarr.json"))
    inherited = {}
    for variable, (dimensions, data, its) in variables.items():
        if data.dtype == "S1" and is_v3:
            # xarray cannot read the attribute for characters of Zarr v3
            its.pop("_FillValue", None)
        inherited |= dict(zip(dimensions, data.shape))
    raw = xarray.Dataset({n: (dims, data, a) for n, (dims, data, a) in variables.items()}, attrs=attributes)
    expected = xarray.decode_cf(raw)
    with xarray.open_zarr(store, group=path or None, consolidated=False) as found:
        found = found.load()
        for variable in found.variables:
            if found[variable].dtype.kind in "TU":
                found[variable] = found[variable].astype(object)
        for variable in expected.variables:
            if expected[variable].dtype.kind in "TU":
                expected[variable] = expected[variable].astype(object)
        try:
            xarray.testing.assert_identical(expected, found)
        except Exception as e:
            raise AssertionError(f"{what}: {e}") from e


def as_shown(expected, container):
    """Returns values as a container has them: HDF5 has no halves of floats and no strings of a fixed length."""
    if container == "h5" and expected.dtype == "f2":
        return expected.astype("f4")
    if expected.dtype.kind == "S" and (container == "h5" and expected.itemsize > 1):
        return np.array([text.decode() for text in expected.ravel()], object).reshape(expected.shape)
    return expected


def same_content(expected, found, container, what):
    for path, (variables, attributes) in expected.items():
        assert path in found, f"{what}: no group {path}"
        shown_variables, shown_attributes = found[path]
        same_attributes({key: value for key, value in attributes.items() if key not in HIDDEN}, shown_attributes, f"{what}/{path}")
        for variable, (dimensions, data, its) in variables.items():
            if container == "h5" and 0 in data.shape:
                # netCDF-C would take the dimension for an unlimited one
                assert variable not in shown_variables
                continue
            assert variable in shown_variables, f"{what}/{path}: no {variable}"
            shown_dimensions, shown_data, shown_its = shown_variables[variable]
            if what in OTHER_TYPES:
                shown_data = shown_data.astype(data.dtype)
            same(as_shown(data, container), shown_data, f"{what}/{path}: {variable}")
            assert what in OTHER_NAMES or dimensions == shown_dimensions, f"{what}/{path}: {dimensions} {shown_dimensions}"
            if data.dtype.kind in "SO":
                # the fill value of characters is not shown as one that stands for missing values
                its = {key: value for key, value in its.items() if key != "_FillValue"}
            its = {key: value for key, value in its.items() if key not in HIDDEN}
            if what in OTHER_TYPES:
                its = {key: value for key, value in its.items() if key not in ("_Unsigned", "_FillValue")}
            same_attributes(its, shown_its, f"{what}/{path}: {variable}")


# attributes of netCDF-C, which neither the store nor the shown file needs, and those that mark scales in a container
HIDDEN = {"_NCProperties", "_nc3_strict", "CLASS", "NAME"}


def dump(path):
    """Returns the lines of ncdump without attributes, whose types a store does not know, in the order of their text."""
    lines = subprocess.run(["ncdump", path], check=True, capture_output=True).stdout.decode().splitlines()[1:]
    kept = []
    is_attribute = False
    for line in lines:
        text = line.strip()
        is_attribute = is_attribute and not text == "data:" or text.split(" = ")[0].count(":") == 1 and " = " in text \
            or text.startswith("string ") and ":" in text.split(" = ")[0] and " = " in text
        if not is_attribute and text not in ("", "// global attributes:", "// group attributes:"):
            kept.append(text)
        is_attribute = is_attribute and not text.endswith(";")
    return sorted(kept)


def shown(directory, mount, compares_text="yes"):
    count = equal = 0
    for name in names(directory):
        ending = name.rsplit(".", 1)[1]
        path, other = os.path.join(directory, name), os.path.join(mount, f"{name}.{ending}")
        with open(path + ".pickle", "rb") as file:
            expected = pickle.load(file)
        with open(other, "rb") as file:
            container = "nc" if file.read(3) == b"CDF" else "h5"
        found = netcdf_content(other) if ending == "nc" else hdf5_content(other)
        same_content(expected, found, container, name)
        if ending == "nc" and compares_text == "yes":
            one, two = dump(path), dump(other)
            reason = {**OTHER_TYPES, **OTHER_NAMES, **OTHERWISE}.get(name)
            if reason is None:
                assert one == two, f"{name}: {set(one) ^ set(two)}"
                equal += 1
            else:
                assert one != two, f"{name} is equal, and not as {reason}"
        count += 1
    print(count)
    print(equal, "equal by ncdump", file=sys.stderr)


# the files that ncdump shows otherwise afterwards, with the reasons
OTHER_NAMES = {
    "nc_coordinates.nc": "a dimension without values has another name than the variable that has its name",
    "nc_no_coordinate.nc": "a dimension without values has another name than the variable that has its name",
}
OTHER_TYPES = {
    "xarray_times.nc": "a coordinate of 64 bits is a double in a container of dataset.nc, which programs without CDF-5 read",
    "xarray_unsigned.nc": "a container has the sign that _Unsigned states in its type",
}
OTHERWISE = {
    "nc_enumeration.nc": "a store has no enumerations: their names are flag_meanings",
    "nc_two_unlimited.nc": "HDF5 has unlimited dimensions in chunks alone, and classic netCDF one of them",
}


def programs(directory):
    """Has programs write files, open them again, and change and extend them."""
    import h5py
    import netCDF4
    import xarray
    path = lambda name: os.path.join(directory, name)
    with netCDF4.Dataset(path("records.nc"), "w") as file:
        file.createDimension("t", None)
        file.createDimension("x", 5)
        file.createVariable("v", "f4", ("t", "x"), fill_value=-9, zlib=True)[0] = 1
    with netCDF4.Dataset(path("records.nc"), "a") as file:
        for record in range(1, 4):
            file["v"][record] = record
        file.createVariable("w", "f8", ("x",))[:] = np.arange(5)
    with netCDF4.Dataset(path("groups.nc"), "w") as file:
        file.createDimension("x", 3)
        file.createVariable("v", "i2", ("x",))[:] = [1, 2, 3]
        file.createGroup("g").createVariable("w", "i4", ("x",))[:] = [4, 5, 6]
    with netCDF4.Dataset(path("groups.nc"), "r+") as file:
        file["g/w"][1] = 50
    with h5py.File(path("plain.h5"), "w") as file:
        file["a"] = np.arange(12).reshape(3, 4)
        file["g/text"] = "one"
    with h5py.File(path("plain.h5"), "r+") as file:
        file["a"][1, 2] = 100
    with h5py.File(path("plain.h5"), "a") as file:
        file["g/b"] = np.arange(3.0)
        file["g"].attrs["note"] = "added"
    with h5py.File(path("plain.h5"), "a") as file:
        del file["a"]
        file["c"] = values("f8", (200, 30))
    with h5py.File(path("latest.hdf5"), "w", libver="latest") as file:
        file.create_dataset("v", data=values("i4", (50, 40)), chunks=(16, 16), compression="gzip")
        file.flush()
        file["w"] = 1
    data = xarray.Dataset({"p": (("t", "y"), values("f8", (5, 6)))}, {"y": np.arange(6.0)})
    for engine in ["netcdf4", "h5netcdf"]:
        data.to_netcdf(path(f"{engine}.nc"), engine=engine)
        (data * 2).to_netcdf(path(f"{engine}.nc"), engine=engine)


def write(directory, mount):
    programs(directory)
    programs(mount)
    for name in sorted(os.listdir(directory)):
        read = netcdf_content if name.endswith(".nc") else hdf5_content
        one, other = os.path.join(directory, name), os.path.join(mount, name)
        with open(other, "rb") as file:
            container = "nc" if file.read(3) == b"CDF" else "h5"
        same_content(read(one), read(other), container, name)


def sample(directory):
    import h5py
    import netCDF4
    for name, libver in [("earliest", "earliest"), ("latest", "latest")]:
        with h5py.File(os.path.join(directory, f"{name}.h5"), "w", libver=libver) as f:
            f.create_dataset("packed", data=values("i4", (12, 9)), chunks=(4, 5), compression="gzip", shuffle=True, fletcher32=True)
            f.create_dataset("growing", data=values("i2", (9, 3)), chunks=(2, 3), maxshape=(None, 3))
            f.create_dataset("strings", data=["a", "größe", ""], dtype=h5py.string_dtype())
            f["g/h/v"] = values(">f8", (3, 2))
            f["g"].attrs["words"] = ["one", "two"]
            for n in range(12):
                f["packed"].attrs[f"a{n}"] = n
    with netCDF4.Dataset(os.path.join(directory, "netcdf.nc"), "w") as f:
        f.createDimension("t", None)
        f.createDimension("x", 3)
        f.createVariable("t", "f8", ("t",))[:] = range(4)
        f.createVariable("v", "i2", ("t", "x"), fill_value=-1)[:] = values("i2", (4, 3))
        f.createGroup("g").createVariable("s", str, ("x",))[:] = values("str", (3,))


if __name__ == "__main__":
    commands = {"make": make, "compare": compare, "shown": shown, "sample": sample, "write": write}
    commands[sys.argv[1]](*sys.argv[2:])
