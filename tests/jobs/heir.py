"""A grandchild reads and changes what it inherited after the death of its parent."""

import os
import time

pages = [b"%07d" % nth * 700 for nth in range(20000)]
reads, writes = os.pipe()
if not os.fork():
    parent = os.getpid()
    if not os.fork():
        while os.getppid() == parent:
            time.sleep(0.01)
        pages[::3] = [b"%07d" % -nth * 700 for nth in range(0, 20000, 3)]
        good = all(page == b"%07d" % (nth if nth % 3 else -nth) * 700 for nth, page in enumerate(pages))
        os.write(writes, b"good" if good else b"wrong")
    os._exit(0)
os.wait()
os.close(writes)
print(os.read(reads, 9).decode(), all(page == b"%07d" % nth * 700 for nth, page in enumerate(pages)))
