"""What is measured: each case gives rows of the results, as ratios of interleaved rounds."""

from collections.abc import Callable
from functools import partial

from blocks import blocks
from curves import curves, many_clients
from fedavg import Rows, against_bare, profile, same_accuracy
from rules import rules
from shvr import against_fedavg, cnn13, control_variates, laptop, paper
from whole import memory, start_up

CASES: dict[str, Callable[[int, bool], Rows]] = {
    "mlp": partial(against_bare, "mlp"),
    "tiny": lambda repeats, small: against_bare("tiny", 4 * repeats, small),
    "wide": partial(against_bare, "wide"),
    "laptop": laptop,
    "paper": paper,
    "control_variates": control_variates,
    "cnn13": cnn13,
    "clients": many_clients,
    "start_up": start_up,
    "fed_shvr": against_fedavg,
    "memory": memory,
    "accuracy": same_accuracy,
    "profile": profile,
    "curves": curves,
    "rules": rules,
    "blocks": blocks,
}
