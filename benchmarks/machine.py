"""Facts about the machine of a run that explain its numbers; no host name, no path."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from pathlib import Path

import pyarrow as pa
import pyspark


def machine() -> dict[str, str]:
    """The facts by name, in the order in which reports show them."""
    return {
        "cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
        "processor": _processor(),
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.machine()}",
        "Python": platform.python_version(),
        "Java": _java(),
        "Spark": pyspark.__version__,
        "pyarrow": pa.__version__,
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*: (.*)", info.read_text()) if info.exists() else None
    return found[1].strip() if found else "unknown"


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else "java"
    said = subprocess.run([program, "-version"], capture_output=True, text=True, check=False).stderr  # noqa: S603
    found = re.search(r'version "([^"]+)"', said)
    return found[1] if found else "unknown"
