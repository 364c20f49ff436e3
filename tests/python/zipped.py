"""Puts a folder into an archive, its names relative to the folder: zipped.py FOLDER ARCHIVE stored|deflated"""

import os
import sys
import zipfile

folder, archive, how = sys.argv[1:]
method = {"stored": zipfile.ZIP_STORED, "deflated": zipfile.ZIP_DEFLATED}[how]
with zipfile.ZipFile(archive, "w", method) as out:
    for directory, _, names in sorted(os.walk(folder)):
        for name in sorted(names):
            path = os.path.join(directory, name)
            out.write(path, os.path.relpath(path, folder))
