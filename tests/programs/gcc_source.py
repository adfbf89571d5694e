#!/usr/bin/env python3
"""Writes a C file on which `gcc -O2 -c` needs much memory (about 500 MiB at --scale 1) but little time.

Half of it are functions with large switch statements and long expressions, which cost time and temporary memory; half
is a generated table of structures with strings, as parser and locale generators write them, which costs memory that
stays until the end of the unit.
"""

import argparse
import random
import sys

FUNCTIONS_AT_SCALE_1 = 50
ROWS_AT_SCALE_1 = 150_000
CASES = 60
OPERATORS = ("+", "-", "*", "^", "|", "&")


def expression(rng, depth):
    if depth == 0:
        return rng.choice(("a", "b", "c", "d", f"t[{rng.randrange(64)}]", f"{rng.randrange(1, 9999)}u"))
    return f"({expression(rng, depth - 1)} {rng.choice(OPERATORS)} {expression(rng, depth - 1)})"


def function(rng, number):
    lines = [f"unsigned f{number}(unsigned a, unsigned b, unsigned *t) {{", "  unsigned c = a ^ b, d = a + b;"]
    lines.append(f"  for (unsigned i = 0; i < b; i++) switch ((a + i) % {CASES}u) {{")
    for case in range(CASES):
        lines.append(f"    case {case}: c = {expression(rng, 3)}; t[(c + {case}) % 64] = {expression(rng, 3)};")
        callee = f"f{rng.randrange(number)}(c, d % 3, t)" if number and case % 8 == 0 else expression(rng, 2)
        lines.append(f"      if (c > d) d += {callee}; else d ^= {expression(rng, 2)}; break;")
    lines += ["  }", "  return c * d;", "}"]
    return "\n".join(lines)


def print_table(rng, row_count, output):
    print("struct row { const char *name, *text; unsigned id; double weight; const struct row *next; };", file=output)
    print(f"const struct row table[{row_count}] = {{", file=output)
    for i in range(row_count):
        text = f"{rng.getrandbits(64):016x} row {i}"
        print(f'  {{"name_{i}", "{text}", {i * 7}u, {i * 0.25 + 0.1}, &table[{rng.randrange(row_count)}]}},', file=output)
    print("};", file=output)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="memory in units of about 500 MiB (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=argparse.FileType("w"), default=sys.stdout)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    print_table(rng, max(1, int(ROWS_AT_SCALE_1 * options.scale)), options.output)
    for number in range(max(1, int(FUNCTIONS_AT_SCALE_1 * options.scale))):
        print(function(rng, number), file=options.output)


if __name__ == "__main__":
    main()
