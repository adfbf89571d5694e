#!/usr/bin/env python3
"""A forked child reads all that its parent holds, several times and at random, and writes nothing to it. The parent waits."""

import os
import random
import zlib

PAGES = 30_000
ROUNDS = 4

draw = random.Random(11)
words = [draw.randbytes(6).hex().encode() for _ in range(1000)]
held = [b" ".join(draw.choices(words, k=300)) for _ in range(PAGES)]
expected = [zlib.crc32(page) for page in held]
child = os.fork()
if not child:
    wrong = 0
    for _ in range(ROUNDS):
        for nth in draw.sample(range(PAGES), PAGES):
            wrong += zlib.crc32(held[nth]) != expected[nth]
    print(wrong, "of", ROUNDS * PAGES, "differ", flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(sum(zlib.crc32(page) != sum_ for page, sum_ in zip(held, expected)), "of", PAGES, "differ")
