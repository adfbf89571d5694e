# Fills a shared file of the tmpfs argv[1], has another file take the rest of it, and reads all pages of the first again.
import mmap
import os
import sys

directory, mib = sys.argv[1], int(sys.argv[2])
length = mib << 20
fd = os.open(f"{directory}/shared", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
os.ftruncate(fd, length)
memory = mmap.mmap(fd, length)
for at in range(0, length, 4096):
    memory[at : at + 4096] = at.to_bytes(8, "little") + os.urandom(4088)
with open(f"{directory}/other", "wb", buffering=0) as other:
    try:
        while other.write(bytes(4096)):
            pass
    except OSError as error:
        print(error.strerror)
wrong = sum(int.from_bytes(memory[at : at + 8], "little") != at for at in range(0, length, 4096))
print(f"{wrong} pages are wrong")
