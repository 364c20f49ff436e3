"""Runs the program that was installed with this package."""

import os
import sys

from zarrfs import Error, _program

if __name__ == "__main__":
    try:
        program = _program()
    except Error as e:
        sys.exit("error: {}".format(e))
    os.execv(program, ["zarrfs"] + sys.argv[1:])
