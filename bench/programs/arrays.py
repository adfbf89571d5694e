"""NumPy: arrays that are sorted, multiplied and indexed at random."""

import hashlib

import numpy

random = numpy.random.default_rng(1)
rows = random.integers(0, 1 << 40, 12_000_000)
order = numpy.argsort(rows, kind="stable")
digest = hashlib.sha256(rows[order].tobytes())
counts = numpy.bincount(rows % 1_000_003)
digest.update(counts.tobytes())
matrix = random.integers(0, 100, (1500, 1500)).astype(float)
# Whole numbers below 2^53: the order of the sum does not matter.
digest.update((matrix @ matrix).astype(numpy.int64).tobytes())
print(len(rows), digest.hexdigest())
