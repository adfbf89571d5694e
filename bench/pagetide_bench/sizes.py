"""Sizes in bytes, as options name them."""

import argparse

MIB = 1 << 20


def parse_bytes(text):
    """'256M' -> bytes. A plain number is bytes."""
    units = {"K": 10, "M": 20, "G": 30}
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].upper() in units else (text, "")
    try:
        return int(float(number) * (1 << units.get(unit, 0)))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no size: write 512M or 2G") from None


def whole_mib(size_bytes):
    """Rounded down, so that the cap that is asked for is never above the cap that is meant."""
    return size_bytes // MIB
