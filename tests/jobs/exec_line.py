"""Fills the swap file, starts to write more, and becomes itself again: LEFT times."""

import os
import random
import sys

left = int(os.environ["LEFT"])


def pages(count):
    random.seed(left)
    return (random.randbytes(4000) for _ in range(count))


held = list(pages(14000))
if not all(page == again for page, again in zip(held, pages(len(held)))):
    sys.exit("wrong")
if not left:
    sys.exit(print("good"))
os.environ["LEFT"] = str(left - 1)
held[:6000] = [page[::-1] for page in held[:6000]]
os.execv(sys.executable, [sys.executable, __file__])
