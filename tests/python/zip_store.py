"""Copies a directory store into an archive by zarr-python: zip_store.py DIRECTORY ARCHIVE"""

import sys
import warnings
import zipfile

import zarr

source, archive = sys.argv[1:]
with warnings.catch_warnings():
    # the last member of a name is the one that counts, also for zarr-python
    warnings.filterwarnings("ignore", message="Duplicate name")
    with zarr.ZipStore(archive, compression=zipfile.ZIP_STORED, mode="w") as store:
        # a first version of every document, as zarr-python leaves it when attributes change
        for key in zarr.DirectoryStore(source):
            if key.endswith((".zattrs", ".zarray")):
                store[key] = b"{}"
        zarr.copy_store(zarr.DirectoryStore(source), store, if_exists="replace")
