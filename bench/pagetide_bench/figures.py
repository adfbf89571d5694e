"""Figures of several runs, and tables of them."""

import statistics
import sys


def quartiles(values):
    """(first quartile, median, third quartile)."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, statistics.median(values), high


def show_quartiles(values, digits=0):
    low, median, high = quartiles(values)
    return f"{median:.{digits}f} ({low:.{digits}f}–{high:.{digits}f})"


def print_table(header, rows):
    texts = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[i]) for row in texts) for i in range(len(header))]
    for number, row in enumerate(texts):
        cells = (cell.ljust(width) if i == 0 else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths)))
        print("  ".join(cells).rstrip())
        if number == 0:
            print("  ".join("-" * width for width in widths))
    sys.stdout.flush()
