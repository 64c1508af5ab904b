"""Progress on the terminal: round, client, local step, accuracy and time left; a warning when that is hours."""

import sys
import time

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from fedshvr.rounds.federated import Federated

HOURS = 2 * 3600  # a run that needs longer after its first round gets a hint
PLAIN_SECONDS = 10  # between lines where the output is not a terminal


def duration(seconds: float) -> str:
    minutes, s = divmod(int(seconds + 0.5), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02}:{s:02}" if hours else f"{m}:{s:02}"


class Progress(Callback):
    """One line, rewritten in place on a terminal; a line now and then in a file."""

    def __init__(self, rounds: int) -> None:
        self.rounds, self.terminal = rounds, sys.stderr.isatty()
        self.shown = 0.0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, Federated)
        self.module, self.started, self.first = pl_module, time.perf_counter(), trainer.current_epoch
        if trainer.is_global_zero:
            pl_module.bench.progress = self.tick

    def tick(self, client: int, step: int) -> None:
        """Called a few times a second by the clients, between blocks of local steps."""
        now = time.perf_counter()
        if self.terminal and now - self.shown > 0.1:
            tau = self.module.server.tau[client]
            self._show(f"client {client:>3}  step {step:>{len(str(tau))}}/{tau}", self.module.current_epoch, now)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        now, done = time.perf_counter(), trainer.current_epoch + 1
        if self.terminal or done == self.rounds or now - self.shown > PLAIN_SECONDS:
            self._show("", done, now)
        left = (self.rounds - done) * (now - self.started)
        if done == self.first + 1 and left > HOURS:
            end = "\n" if self.terminal else ""
            print(
                f"{end}The other {self.rounds - done} rounds will take about {left / 3600:.1f} hours here; "
                "scale=laptop ends within minutes.",
                file=sys.stderr,
            )

    def _show(self, detail: str, done: int, now: float) -> None:
        self.shown = now
        accuracy = self.module.row.get("test_acc")
        spent, finished = now - self.started, done - self.first
        eta = duration(spent / finished * (self.rounds - done)) if finished else "?"
        line = f"round {min(done + bool(detail), self.rounds):>{len(str(self.rounds))}}/{self.rounds}"
        line += f"  {detail}" if detail else ""
        line += f"  accuracy {100 * accuracy:.2f} %" if accuracy is not None else ""
        line += f"  {duration(spent)} spent, {eta} left"
        before, after = ("\r\x1b[2K", "") if self.terminal else ("", "\n")
        print(f"{before}{line}", end=after, file=sys.stderr, flush=True)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.terminal and trainer.is_global_zero:
            print(file=sys.stderr)
