"""Becomes a program without an engine when it has one itself."""

import os

kept = [os.urandom(1 << 20) for _ in range(70)]
os.environ.pop("LD_PRELOAD")
os.execvp("sleep", ["sleep", "300"])
