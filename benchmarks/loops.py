"""The measuring sticks, in plain PyTorch: the bare loop everybody writes, and the least work anybody can do by hand.

Nothing but torch is imported here: the peers' environments use this file too. As a script, `loops.py bare mlp 0`, it
makes a round and prints its seconds for every line that it reads.
"""

import ctypes
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import version
from math import prod
from statistics import median

import torch
from torch import Tensor, nn

CLASSES = 10
Indices = Callable[[int, int], Tensor]  # (round, client) -> (steps, batch), into the client's samples


@dataclass(frozen=True)
class Workload:
    """`clients` clients with `samples` images each; MLP shape - hidden - 10; one pass of batches a round."""

    name: str
    clients: int
    samples: int
    shape: tuple[int, int, int]
    hidden: int
    batch: int
    eta: float = 0.05
    epochs: float = 1

    @property
    def steps(self) -> int:
        return int(self.samples * self.epochs / self.batch)

    def shrunk(self) -> "Workload":
        """The same kind of work in a blink, for tests."""
        return replace(self, clients=4, samples=2 * self.batch, hidden=8)


MNIST = (1, 28, 28)
WORKLOADS = {
    w.name: w
    for w in (
        Workload("mlp", 10, 6_000, MNIST, 200, 32),
        Workload("tiny", 100, 64, (1, 8, 8), 32, 16),
        Workload("wide", 10, 1_200, MNIST, 5_000, 32),
    )
}


def one_thread() -> None:
    """One thread, and one malloc arena, so that a contestant in a thread of its own finds memory as the others do."""
    torch.set_num_threads(1)
    if sys.platform == "linux":
        ctypes.CDLL(None).mallopt(-8, 1)  # M_ARENA_MAX


def synthetic(work: Workload, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Images (clients, samples, *shape) as noise around one pattern a class, and their classes."""
    rng = torch.Generator().manual_seed(seed)
    pattern = torch.randn(CLASSES, *work.shape, generator=rng)
    y = torch.randint(CLASSES, (work.clients, work.samples), generator=rng)
    return torch.randn(*y.shape, *work.shape, generator=rng).add_(pattern[y], alpha=0.3), y


def network(work: Workload, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(prod(work.shape), work.hidden), nn.ReLU(), nn.Linear(work.hidden, CLASSES)
    )


def shuffled(work: Workload) -> Indices:
    """Passes over freshly shuffled samples."""

    def draw(round: int, client: int) -> Tensor:
        passes = -(-work.steps * work.batch // work.samples)
        order = torch.cat([torch.randperm(work.samples) for _ in range(passes)])
        return order[: work.steps * work.batch].view(work.steps, work.batch)

    return draw


class BareLoop:
    """FedAvg as one writes it in five minutes: nn.Module, torch.optim.SGD, state dicts."""

    def __init__(self, work: Workload, x: Tensor, y: Tensor, model: nn.Module, indices: Indices | None = None) -> None:
        self.work, self.x, self.y = work, x, y
        self.model, self.theta = model, {name: p.clone() for name, p in model.state_dict().items()}
        self.indices = indices or shuffled(work)
        self.rounds = 0

    def round(self) -> float:
        started = time.perf_counter()
        total = {name: torch.zeros_like(p) for name, p in self.theta.items()}
        for k in range(self.work.clients):
            self.model.load_state_dict(self.theta)
            self.train(self.x[k], self.y[k], self.indices(self.rounds, k))
            for name, p in self.model.state_dict().items():
                total[name] += p / self.work.clients
        self.theta = total
        self.rounds += 1
        return time.perf_counter() - started

    def train(self, x: Tensor, y: Tensor, indices: Tensor) -> None:
        optimizer = torch.optim.SGD(self.model.parameters(), lr=self.work.eta)
        for index in indices:
            optimizer.zero_grad()
            nn.functional.cross_entropy(self.model(x[index]), y[index]).backward()
            optimizer.step()


class Floor:
    """The same FedAvg by hand: one flat vector, preallocated tensors, the gradient written out, no autograd."""

    def __init__(self, work: Workload, x: Tensor, y: Tensor, model: nn.Module) -> None:
        self.work, self.x, self.y = work, x.flatten(2), y
        self.indices = shuffled(work)
        self.theta = torch.cat([p.detach().flatten() for p in model.parameters()])
        self.theta_k, self.mean = torch.empty_like(self.theta), torch.empty_like(self.theta)
        sizes, shapes = zip(*((p.numel(), p.shape) for p in model.parameters()), strict=True)
        self.w1, self.b1, self.w2, self.b2 = (v.view(s) for v, s in zip(self.theta_k.split(sizes), shapes, strict=True))
        self.batch = torch.empty(work.batch, self.x.shape[2])
        self.hidden, self.back = torch.empty(work.batch, work.hidden), torch.empty(work.batch, work.hidden)
        self.logits = torch.empty(work.batch, CLASSES)
        self.rows, self.ones = torch.arange(work.batch), torch.ones(work.batch)

    @torch.no_grad()
    def round(self) -> float:
        started = time.perf_counter()
        self.mean.zero_()
        for k in range(self.work.clients):
            self.theta_k.copy_(self.theta)
            indices = self.indices(0, k)
            for index, y in zip(indices, self.y[k][indices], strict=True):
                torch.index_select(self.x[k], 0, index, out=self.batch)
                self.step(self.batch, y)
            self.mean.add_(self.theta_k, alpha=1 / self.work.clients)
        self.theta, self.mean = self.mean, self.theta
        return time.perf_counter() - started

    def step(self, x: Tensor, y: Tensor) -> None:
        """z = W1 x + b1, h = relu(z), p = softmax(W2 h + b2); then every product straight into its parameter."""
        rate = -self.work.eta / len(x)
        h = torch.addmm(self.b1, x, self.w1.t(), out=self.hidden).relu_()
        p = torch.softmax(torch.addmm(self.b2, h, self.w2.t(), out=self.logits), 1)
        p[self.rows, y] -= 1
        back = torch.mm(p, self.w2, out=self.back).mul_(h > 0)
        self.w2.addmm_(p.t(), h, alpha=rate)
        self.b2.addmv_(p.t(), self.ones, alpha=rate)
        self.w1.addmm_(back.t(), x, alpha=rate)
        self.b1.addmv_(back.t(), self.ones, alpha=rate)


class Elsewhere:
    """A measuring stick in a process of its own, as its user would start it: no setting of ours reaches it."""

    def __init__(self, stick: str, name: str, small: bool) -> None:
        command = [sys.executable, __file__, stick, name, str(int(small))]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, **pipes)

    def round(self) -> float:
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def interleaved(rounds: dict[str, Callable[[], float]], repeats: int, warmup: int = 1) -> dict[str, list[float]]:
    """Seconds of each contestant: one round of each in turn, beginning with another one each time."""
    seconds: dict[str, list[float]] = {name: [] for name in rounds}
    names = list(rounds)
    for repeat in range(warmup + repeats):
        start = repeat % len(names)
        for name in names[start:] + names[:start]:
            spent = rounds[name]()
            if repeat >= warmup:
                seconds[name].append(spent)
    return seconds


def ratio(seconds: dict[str, list[float]], name: str, to: str) -> float:
    """The median over the repeats of one contestant's time over another's."""
    return median(a / b for a, b in zip(seconds[name], seconds[to], strict=True))


def accuracy(model: nn.Module, theta: dict[str, Tensor], x: Tensor, y: Tensor) -> float:
    model.load_state_dict(theta)
    with torch.no_grad():
        return float((model(x).argmax(1) == y).float().mean())


def chosen(arguments: list[str]) -> tuple[Workload, int]:
    """Workload and repeats of a script's command line: name, repeats, small (0 or 1)."""
    name, repeats, small = arguments[1:]
    return (WORKLOADS[name].shrunk() if int(small) else WORKLOADS[name]), int(repeats)


def report(seconds: dict[str, list[float]], package: str) -> None:
    """A peer's last line: the median ratio of all rounds but the first, seconds and version."""
    warm = {name: values[1:] for name, values in seconds.items()}
    medians = {name: median(values) for name, values in warm.items()}
    print(json.dumps({"ratio": ratio(warm, "peer", "bare"), "seconds": medians, "version": version(package)}))


if __name__ == "__main__":
    torch.set_num_threads(1)
    sizes = WORKLOADS[sys.argv[2]].shrunk() if int(sys.argv[3]) else WORKLOADS[sys.argv[2]]
    stick = {"bare": BareLoop, "floor": Floor}[sys.argv[1]](sizes, *synthetic(sizes), network(sizes))
    for _ in sys.stdin:
        print(stick.round(), flush=True)
