"""A family, and one object of 150 MiB of which every page is touched."""

from family import good, line

large = bytearray(150 << 20)
large[::4096] = bytes(len(large) >> 12)
print(good(), line(3), len(large))
