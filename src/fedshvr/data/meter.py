"""How far a long piece of work is, on the last line of the terminal."""

import sys
import time

SECONDS = 0.2  # between two updates on a terminal; in a log file a line for every tenth


class Meter:
    def __init__(self, what: str, total: int) -> None:
        self.what, self.total, self.done = what, total, 0
        self.started = self.shown = time.monotonic()
        self.tenths = 0

    def to(self, done: int) -> None:
        """So much is done now."""
        self.done = done
        now, tenths = time.monotonic(), 10 * done // max(self.total, 1)
        terminal = sys.stderr.isatty()
        if tenths > self.tenths or (terminal and now - self.shown > SECONDS):
            self.shown, self.tenths = now, tenths
            left = (now - self.started) * (self.total - done) / max(done, 1)
            line = f"{self.what}: {100 * done / max(self.total, 1):.0f} %, {left:.0f} s left"
            begin, end = ("\r\x1b[2K", "\n" if done >= self.total else "") if terminal else ("", "\n")
            print(f"{begin}{line}", end=end, file=sys.stderr, flush=True)
