"""A family that says which number its first process has."""

import os

from family import good, line

print(os.getpid(), good(), line(1))
