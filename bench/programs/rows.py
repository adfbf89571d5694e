"""A dictionary of lists that grows, changes and is sorted: `rows.py STEPS`."""

import hashlib
import sys

steps = int(sys.argv[1])
rows, state = {}, 1
for step in range(steps):
    state = (state * 1103515245 + 12345) & 0x7FFFFFFF
    key = f"row {(state >> 4) % (steps // 3)}"
    if step % 6 == 5:
        rows.pop(key, None)
    else:
        rows[key] = [step, f"note {state % 9973}"]
digest = hashlib.sha256()
for key in sorted(rows):
    digest.update(f"{key}{rows[key]}".encode())
print(len(rows), digest.hexdigest())
