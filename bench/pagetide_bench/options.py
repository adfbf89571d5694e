"""Options that several benchmarks have."""

import shlex
from pathlib import Path

from .paths import PAGETIDE, PRELOAD


def add_result_options(parser):
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to FILE")
    parser.add_argument("--store", action="store_true", help="write all figures to bench/runs/DATE-MACHINE/NAME.json")


def add_program_options(parser):
    parser.add_argument("--pagetide", type=Path, default=PAGETIDE, help="the program under test (default target/release)")
    add_result_options(parser)


def add_arm_options(parser):
    add_program_options(parser)
    parser.add_argument("--preload", type=Path, default=PRELOAD, help="its preload library, for runs with our allocator only")
    parser.add_argument("--run-options", type=shlex.split, default=[], metavar="OPTIONS", help="more options for `pagetide run`, in one word")
