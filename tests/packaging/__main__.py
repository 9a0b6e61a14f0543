"""`python -m tests.packaging`: build wheel and sdist into dist/, hold them against the repository, collect wheels."""

from __future__ import annotations

import shutil
import sys

from tests.packaging.archives import all_requirements, build, faults
from tests.packaging.environments import collect_wheels
from tests.support.documents import tracked_files
from tests.support.processes import CHECKOUT


def main() -> int:
    """Return 0 if both archives hold exactly what they should hold."""
    folder = CHECKOUT / "dist"
    shutil.rmtree(folder, ignore_errors=True)
    archives = build(folder)
    found = faults(archives, [path.relative_to(CHECKOUT).as_posix() for path in tracked_files()])
    sys.stderr.writelines(f"{fault}\n" for fault in found)
    if not found:
        collect_wheels(all_requirements(archives.wheel))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
