#!/usr/bin/env python3
"""Makes a Python wheel of the program, which carries its library, and of the module: `pip install` puts the program on PATH.

    packaging/wheel.py BUILT DIST

The wheel's tag names the C library that the program really needs.
"""

import base64
import hashlib
import platform
import re
import subprocess
import sys
import zipfile
from pathlib import Path

HOUSE = Path(__file__).resolve().parent.parent
# No time of the build goes into the file: the same program gives the same wheel.
EPOCH = (1980, 1, 1, 0, 0, 0)


def record_line(name, contents):
    digest = base64.urlsafe_b64encode(hashlib.sha256(contents).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(contents)}\n"


def main(built, dist):
    manifest = (HOUSE / "Cargo.toml").read_text()
    version = re.search(r'^version = "(.*)"', manifest, re.M)[1]
    glibc = subprocess.run([HOUSE / "packaging/glibc", built / "pagetide"], check=True, capture_output=True, text=True).stdout.strip()
    tag = f"py3-none-manylinux_{glibc.replace('.', '_')}_{platform.machine()}"
    info = f"pagetide-{version}.dist-info"
    files = {
        f"pagetide-{version}.data/scripts/pagetide": (built / "pagetide").read_bytes(),
        **{f"pagetide/{path.name}": path.read_bytes() for path in sorted((HOUSE / "python/pagetide").glob("*.py"))},
        f"{info}/METADATA": "\n".join([
            "Metadata-Version: 2.1", "Name: pagetide", f"Version: {version}",
            "Summary: Swap in user space: run one program in less memory than it needs", "License: MIT OR Apache-2.0",
            "Requires-Python: >=3.6", "Description-Content-Type: text/markdown", "", (HOUSE / "README.md").read_text(),
        ]).encode(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: pagetide\nRoot-Is-Purelib: false\nTag: {tag}\n".encode(),
        **{f"{info}/licenses/{name}": (HOUSE / name).read_bytes() for name in ("LICENSE", "LICENSE-APACHE", "LICENSE-MIT")},
    }  # fmt: skip
    record = "".join(record_line(*file) for file in files.items()) + f"{info}/RECORD,,\n"
    files[f"{info}/RECORD"] = record.encode()
    path = dist / f"pagetide-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, contents in files.items():
            entry = zipfile.ZipInfo(name, EPOCH)
            entry.external_attr = (0o100755 if "/scripts/" in name else 0o100644) << 16
            wheel.writestr(entry, contents, zipfile.ZIP_DEFLATED)
    print(path)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
