"""The program of `make package`: wheel and sdist are built into dist/, held against the repository, and tried.

`archives` builds and lists both files; `description` reads what a package index shows; `environments` makes empty
virtual environments. `installs.py` installs the files there and runs `pipeline.py` in each environment, into the
`targets`. `make test-all` does not collect it, since it needs dist/ and takes minutes.
"""
