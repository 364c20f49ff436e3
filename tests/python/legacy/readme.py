"""The lines of README.txt."""
