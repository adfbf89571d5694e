"""Pages that take 100 MB, read again by this process and by children of children."""

import os

pages = [bytes([nth % 251]) * 5000 + b"%d" % nth for nth in range(20000)]


def good():
    return all(page == bytes([nth % 251]) * 5000 + b"%d" % nth for nth, page in enumerate(pages))


def line(generations):
    """Whether a line of so many descendants finds all pages as they were."""
    child = os.fork()
    if not child:
        os._exit(0 if good() and (generations == 0 or line(generations - 1)) else 1)
    return os.waitpid(child, 0)[1] == 0
