"""Several times the cap, read again, also by a child, in a process that is not to be dumped."""

import ctypes
import os

ctypes.CDLL(None).prctl(4, 0)
pages = [bytes([nth % 251]) * 4000 + b"%d" % nth for nth in range(30000)]


def good():
    return all(page == bytes([nth % 251]) * 4000 + b"%d" % nth for nth, page in enumerate(pages))


child = os.fork()
if not child:
    os._exit(0 if good() else 1)
print(good(), os.waitpid(child, 0)[1])
