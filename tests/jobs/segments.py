"""Many segments of shared memory that are small each: segments.py COUNT KIB. Two children and the parent print what they find."""
import hashlib
import sys
from multiprocessing import Process, shared_memory

COUNT, SIZE = int(sys.argv[1]), int(sys.argv[2]) << 10


def found(segments):
    digest = hashlib.sha256()
    for segment in segments:
        digest.update(segment.buf[:SIZE])
    return digest.hexdigest()


def look(names):
    segments = [shared_memory.SharedMemory(name) for name in names]
    print(found(segments), flush=True)
    for segment in segments:
        segment.close()


if __name__ == "__main__":
    made = [shared_memory.SharedMemory(create=True, size=SIZE) for _ in range(COUNT)]
    for nth, segment in enumerate(made):
        for page in range(0, SIZE, 4096):
            segment.buf[page : page + 64] = bytes((nth * 31 + page // 4096 * 7 + byte) & 255 for byte in range(64))
    children = [Process(target=look, args=([segment.name for segment in made],)) for _ in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    print(found(made))
    for segment in made:
        segment.close()
        segment.unlink()
