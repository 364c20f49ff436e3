"""Copies a directory store to an archive with zarr-python: zip_store.py DIRECTORY ARCHIVE"""

import sys
import warnings
import zipfile

import zarr

source, archive = sys.argv[1:]
with warnings.catch_warnings():
    # the last member with a name is the valid one
    warnings.filterwarnings("ignore", message="Duplicate name")
    with zarr.ZipStore(archive, compression=zipfile.ZIP_STORED, mode="w") as store:
        # write an earlier version of every document first, as zarr-python leaves one when attributes change
        for key in zarr.DirectoryStore(source):
            if key.endswith((".zattrs", ".zarray")):
                store[key] = b"{}"
        zarr.copy_store(zarr.DirectoryStore(source), store, if_exists="replace")
