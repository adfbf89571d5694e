"""Writes a history with some 900 000 objects (450 a commit) for `git fast-import`: the same each time.

    git init --quiet large && python3 repository.py [COMMITS] | git -C large fast-import --quiet
"""

import random
import sys

DIRECTORIES, FILES = 200, 100  # in each directory
COMMITS, CHANGES = 2000, 250  # files that each commit changes
WORDS = [f"word{number}" for number in range(4096)]


def main():
    rng = random.Random(1)
    out = sys.stdout.buffer
    for commit in range(int(sys.argv[1]) if len(sys.argv) > 1 else COMMITS):
        parts = [
            b"commit refs/heads/main\n",
            b"committer Test <test@example.org> %d +0000\n" % (1_700_000_000 + commit),
            b"data 7\ncommit\n\n",
        ]
        for _ in range(CHANGES):
            directory, file = rng.randrange(DIRECTORIES), rng.randrange(FILES)
            text = f"{commit}\n{' '.join(rng.choices(WORDS, k=rng.randrange(5, 60)))}\n".encode()
            parts.append(b"M 100644 inline d%03d/f%03d\ndata %d\n%s\n" % (directory, file, len(text), text))
        out.write(b"".join(parts))


if __name__ == "__main__":
    main()
