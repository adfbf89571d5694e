"""What `%load_ext pagetide` shows under a cell of a notebook: the tide."""

import html
import time

# The colours of Pagetide's charts; a word stands beside each.
_PARTS = (("in the programs", "#3b82f6"), ("compressed", "#0fa58f"), ("other", "#7a828c"))
_WIDTH = 480


def _size(count):
    for unit in ("KiB", "MiB", "GiB"):
        count /= 1024
        if count < 999.5 or unit == "GiB":
            return f"{count:.1f} {unit}" if count < 9.95 else f"{count:.0f} {unit}"


class Tide:
    """Where the run's memory is after a cell, and what the cell cost; for IPython's display."""

    def __init__(self, seconds, before, after):
        self._after = after
        waited = (after.own_stalled_ns - before.own_stalled_ns) / 1e9
        faults = after.own_faults - before.own_faults
        cost = f"waited {waited:.1f} s for {faults} faults" if faults else "waited for no page"
        memory = f"{_size(after.memory)} of {_size(after.cap)} in memory"
        if after.pool:
            memory += f", {_size(after.pool)} of that compressed"
        swapped = f"{_size(after.swapped)} swapped" if after.swapped else "nothing swapped"
        self._text = f"{seconds:.1f} s, {cost}; {memory}; {swapped}"

    def __repr__(self):
        return f"pagetide: {self._text}"

    def _repr_html_(self):
        now = self._after
        resident = min(now.resident, max(now.memory - now.pool, 0))
        sizes = (resident, now.pool, max(now.memory - resident - now.pool, 0))
        scale, at, bars, words = _WIDTH / max(now.cap, now.memory, 1), 0.0, [], []
        for (name, colour), size in zip(_PARTS, sizes):
            bars.append(f'<rect x="{at:.1f}" y="0" width="{size * scale:.1f}" height="10" fill="{colour}"/>')
            words.append(f'<span style="color:{colour}" aria-hidden="true">■</span> {name} {_size(size)}')
            at += size * scale
        cap = now.cap * scale
        return (
            f'<div style="font-size:12px;line-height:1.6" role="group" aria-label="{html.escape(repr(self))}">'
            f'<svg width="{_WIDTH}" height="10" viewBox="0 0 {_WIDTH} 10" aria-hidden="true" style="max-width:100%">'
            f'<rect width="{cap:.1f}" height="10" fill="none" stroke="currentColor" stroke-opacity=".5"/>{"".join(bars)}</svg>'
            f"<div>{html.escape(self._text)}</div><div>{' · '.join(words)}</div></div>"
        )


class Watcher:
    """Shows the tide after each cell."""

    def __init__(self, ipython, stats, display):
        self._ipython, self._stats, self._display = ipython, stats, display
        self._before = None
        self._events = {"pre_run_cell": self.begin, "post_run_cell": self.end}

    def register(self):
        for name, call in self._events.items():
            self._ipython.events.register(name, call)

    def unregister(self):
        for name, call in self._events.items():
            self._ipython.events.unregister(name, call)

    def begin(self, _=None):
        self._before = (time.monotonic(), self._stats())

    def end(self, _=None):
        # The cell that loads the extension has not begun with it.
        if self._before is None:
            return
        (began, before), self._before = self._before, None
        after = self._stats()
        if before is not None and after is not None:
            self._display(Tide(time.monotonic() - began, before, after))
