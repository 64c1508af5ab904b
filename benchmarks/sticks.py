"""Measuring sticks of the machine and of a network: sticks.py product <size>, sticks.py passes <workload> <labels?>."""

import sys
import time
from collections.abc import Callable

import source  # noqa: F401
import torch
from loops import CLASSES, Workload
from timing import Contestant, each_line

from fedshvr.models.cnn13 import CNN13

PRODUCTS = 2  # a round of the first stick


def product_operations(size: int) -> float:
    return PRODUCTS * 2.0 * size**3


def product(size: int, threads: int) -> Contestant:
    """Large matrix products, as fast as torch makes them with so many threads."""
    return Contestant("sticks.py", "product", str(size), threads=threads)


def passes(work: Workload, labels: bool) -> Contestant:
    """The passes of the network that a client of Fed-SHVR cannot do without, in torch's default layout."""
    return Contestant("sticks.py", "passes", work.text(), str(int(labels)))


def timed_products(size: int) -> Callable[[], float]:
    a, b, c = (torch.randn(size, size) for _ in range(3))

    def run() -> float:
        started = time.perf_counter()
        for _ in range(PRODUCTS):
            torch.mm(a, b, out=c)
        return time.perf_counter() - started

    return run


def timed_passes(work: Workload, labels: bool) -> Callable[[], float]:
    """Forward and backward on both batches of each step; a pass without gradient over the images to be labelled."""
    net = CNN13(work.shape, CLASSES, width=work.width)
    params, one = list(net.parameters()), torch.ones(2 * work.batch, CLASSES)
    x, images = torch.randn(2 * work.batch, *work.shape), torch.randn(work.unlabeled[0], *work.shape)

    def run() -> float:
        started = time.perf_counter()
        if labels:
            with torch.no_grad():
                net.eval()(images)
        net.train()
        for _ in range(work.steps_on(work.unlabeled[0])):
            torch.autograd.grad(net(x), params, one)
        return time.perf_counter() - started

    return run


if __name__ == "__main__":
    kind, what, *more = sys.argv[1:]
    each_line(timed_products(int(what)) if kind == "product" else timed_passes(Workload.of(what), more == ["1"]))
