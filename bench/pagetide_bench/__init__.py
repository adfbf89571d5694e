"""What the benchmarks of Pagetide share, one noun a module.

Everything that changes the machine is a context manager. Signals become exceptions, so that the `with` blocks unwind;
what an exit leaves open is closed by `atexit`. The benchmarks need root, the memory controller of cgroup v1, and (for the
kernel's arm) zram.
"""
