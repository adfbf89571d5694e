"""A family that goes on once its input has ended: whoever started it may be dead by then."""

import sys

from family import good, line, pages

print("ready", flush=True)
sys.stdin.read()
print(good(), line(2))
more = [page[::-1] for page in pages]
print(good(), all(page[::-1] == other for page, other in zip(pages, more)), line(2))
