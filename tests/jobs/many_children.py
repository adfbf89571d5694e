"""24 children that combine their parent's pages with bytes of their own. Prints how many found a wrong one."""

import os

data = [b"%07d" % nth * 600 for nth in range(1500)]
children = []
for child in range(24):
    pid = os.fork()
    if not pid:
        own = bytes([child]) * 4200
        mine = [own + page for page in data]
        wrong = sum(page != own + b"%07d" % nth * 600 for _ in range(3) for nth, page in enumerate(mine))
        os._exit(wrong > 0)
    children.append(pid)
print(sum(os.waitpid(pid, 0)[1] for pid in children))
