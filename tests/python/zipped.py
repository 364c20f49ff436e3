"""Creates archives of folders, with names relative to the folder.

    zipped.py stored|deflated FOLDER ARCHIVE [FOLDER ARCHIVE...]
"""

import os
import sys
import zipfile

method = {"stored": zipfile.ZIP_STORED, "deflated": zipfile.ZIP_DEFLATED}[sys.argv[1]]
for folder, archive in zip(sys.argv[2::2], sys.argv[3::2]):
    # archives have no dates before 1980
    with zipfile.ZipFile(archive, "w", method, strict_timestamps=False) as out:
        for directory, _, names in sorted(os.walk(folder)):
            for name in sorted(names):
                path = os.path.join(directory, name)
                out.write(path, os.path.relpath(path, folder))
