"""Starts a command with an empty environment: cleared.py COMMAND ..."""

import subprocess
import sys

sys.exit(subprocess.run(sys.argv[1:], env={}).returncode)
