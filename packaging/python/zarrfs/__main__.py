"""Runs the program that was installed with this package."""

import os
import sys
import sysconfig


def program():
    """Returns the path of the program: where pip installs programs for this package."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    folders = [
        sysconfig.get_path("scripts"),
        sysconfig.get_path("scripts", "posix_user"),
        # pip install --target
        os.path.join(package, "bin"),
        # pip install --prefix: PREFIX/lib/python3.X/site-packages
        os.path.join(package, "..", "..", "..", "bin"),
    ]
    for folder in folders:
        path = os.path.join(folder, "zarrfs")
        if os.access(path, os.X_OK):
            return path
    sys.exit("error: zarrfs: the program is not in any of {}; install the package again".format(", ".join(folders)))


if __name__ == "__main__":
    os.execv(program(), ["zarrfs"] + sys.argv[1:])
