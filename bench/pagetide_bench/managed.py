"""How much of a run's memory is managed."""

import json
import subprocess


class Managed:
    """Looks at a run, as `pagetide stat` shows it: how much is managed when most is there."""

    def __init__(self, pagetide):
        self.pagetide, self.most, self.managed, self.unmanaged = pagetide, 0, 0, 0

    def look(self, pid):
        command = [self.pagetide, "stat", str(pid), "--json"]
        try:
            report = json.loads(subprocess.run(command, capture_output=True, timeout=30).stdout)
        except (ValueError, subprocess.TimeoutExpired):
            return
        now = report["bytes"]["now"]
        out = 4096 * max(report["nr_swapped"] - report["nr_swapcached"], 0)
        managed = now["resident"] + now["frames"] + out
        if managed + now["unmanaged"] > self.most:
            self.most, self.managed, self.unmanaged = managed + now["unmanaged"], managed, now["unmanaged"]

    def share(self):
        return self.managed / self.most if self.most else None
