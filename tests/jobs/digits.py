#!/usr/bin/env python3
"""80 MiB of hexadecimal digits, compared in the end with the same digits made anew.

Each byte is one of sixteen and nothing is said twice: LZ77 does not make a page of them smaller, Zstandard makes a half of it.
"""

import random

PAGES = 20_000


def pages():
    draw = random.Random(7)
    return (draw.randbytes(2048).hex() for _ in range(PAGES))


kept = list(pages())
print(sum(map(str.__ne__, kept, pages())), "of", PAGES, "differ")
