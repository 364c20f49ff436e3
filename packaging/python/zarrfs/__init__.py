"""The program zarrfs, as a Python package: run `zarrfs`, or `python -m zarrfs`."""
