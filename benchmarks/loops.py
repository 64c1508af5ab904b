"""The measuring sticks, in plain PyTorch: the bare loops everybody writes, and the least work anybody can do by hand.

Nothing but torch is imported here: the peers' environments use this file too. As a script, `loops.py bare <workload>`,
it makes a round and prints its seconds for every line that it reads.
"""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.metadata import version
from math import prod
from statistics import median

import torch
from timing import Contestant, each_line, ratios, spread
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax

CLASSES = 10
Indices = Callable[[int, int], Tensor]  # (round, client) -> (steps, batch), into the client's samples


@dataclass(frozen=True)
class Workload:
    """`clients` clients with `samples` images each; MLP shape - hidden - 10; `epochs` passes of batches a round.

    With `labeled`, the first so many of a client's samples are labelled and the next held[k] (if given, else the
    others) are not, and a step has a batch of each.
    """

    name: str
    clients: int
    samples: int
    shape: tuple[int, ...]
    hidden: int
    batch: int
    eta: float = 0.05
    epochs: float = 1
    labeled: int = 0
    held: tuple[int, ...] = ()
    pixels: int = 0  # of random translation
    width: float = 0.0  # of CNN13 in place of the MLP

    @property
    def steps(self) -> int:
        return self.steps_on(self.samples)

    @property
    def unlabeled(self) -> tuple[int, ...]:
        return self.held or (self.samples - self.labeled,) * self.clients

    def steps_on(self, samples: int) -> int:
        return int(samples * self.epochs / self.batch)

    def shrunk(self) -> "Workload":
        """The same kind of work in a blink, for tests."""
        return replace(self, clients=4, samples=self.labeled + 2 * self.batch, held=(), hidden=8)

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, text: str) -> "Workload":
        fields = json.loads(text)
        return cls(**fields | {name: tuple(fields[name]) for name in ("shape", "held")})


MNIST = (1, 28, 28)
# The unlabelled samples of the clients of experiment=mnist_noniid scale=laptop with seed=0
NONIID = (4706, 5728, 5198, 5079, 4351, 3813, 4273, 4304, 4413, 6135)
WORKLOADS = {
    w.name: w
    for w in (
        Workload("mlp", 10, 6_000, MNIST, 200, 32),
        Workload("tiny", 100, 64, (1, 8, 8), 32, 16),
        Workload("wide", 10, 1_200, MNIST, 5_000, 32),
    )
}
PAPER = Workload("paper", 10, 6_000, MNIST, 5_000, 32, eta=0.01, epochs=2, labeled=60, pixels=2)
LAPTOP = replace(PAPER, name="laptop", samples=60 + max(NONIID), hidden=200, held=NONIID)


def workload(name: str, small: bool) -> Workload:
    return WORKLOADS[name].shrunk() if small else WORKLOADS[name]


def least_operations(work: Workload) -> int:
    """What a round of Fed-SHVR with the MLP cannot do without, as floating-point operations.

    2 a weight for each image that passes and 2 for its share of the weight's gradient; 2 a weight of the last layer for
    the gradient that flows back through it, none for the images'. A pseudo-label is one more pass of its image.
    """
    last = work.hidden * CLASSES
    weights = prod(work.shape) * work.hidden + last
    steps = sum(map(work.steps_on, work.unlabeled))
    return steps * 2 * work.batch * (4 * weights + 2 * last) + sum(work.unlabeled) * 2 * weights


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


@cache
def bare_loop(work: Workload) -> BareLoop:
    """Made once in a process; not in a script, because Ray copies what is defined in one with every message."""
    torch.set_num_threads(1)
    return BareLoop(work, *synthetic(work), network(work))


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


class BareShvr:
    """Fed-SHVR (the paper's Algorithm 1) as one writes it in an afternoon: autograd, and loops over the parameters."""

    alpha0, alpha1, alpha2 = 1.0, 0.75, 0.1

    def __init__(self, work: Workload, x: Tensor, y: Tensor, model: nn.Module) -> None:
        self.work, self.x, self.y, self.model = work, x, y, model
        self.params = list(model.parameters())
        self.theta = [p.detach().clone() for p in self.params]
        self.d = [[torch.zeros_like(p) for p in self.theta] for _ in range(work.clients)]
        samples = torch.tensor(work.unlabeled) + work.labeled
        self.omega = (samples / samples.sum()).tolist()

    def round(self) -> float:
        """theta <- theta - eta tau_bar sum_k omega_k Delta_k, Delta_k = (theta - theta_k) / (eta tau_k)."""
        started, eta = time.perf_counter(), self.work.eta
        taus = [self.work.steps_on(m) for m in self.work.unlabeled]
        deltas = []
        for k, tau in enumerate(taus):
            with torch.no_grad():
                for p, start in zip(self.params, self.theta, strict=True):
                    p.copy_(start)
            self.train(k, tau)
            deltas.append([(t - p.detach()) / (eta * tau) for t, p in zip(self.theta, self.params, strict=True)])
        mean = [sum(w * d for w, d in zip(self.omega, parts, strict=True)) for parts in zip(*deltas, strict=True)]
        tau_bar = sum(w * tau for w, tau in zip(self.omega, taus, strict=True))
        self.theta = [t - eta * tau_bar * m for t, m in zip(self.theta, mean, strict=True)]
        for d_k, delta in zip(self.d, deltas, strict=True):
            for d, own, all_ in zip(d_k, delta, mean, strict=True):
                d += all_ - own
        return time.perf_counter() - started

    def train(self, k: int, tau: int) -> None:
        """tau steps of theta_k <- theta_k - eta (g + d_k), with the pseudo-labels v of the round's start (Lemma 1)."""
        n, m, batch = self.work.labeled, self.work.unlabeled[k], self.work.batch
        x, y, u = self.x[k, :n], self.y[k, :n], self.x[k, n : n + m]
        with torch.no_grad():
            log_f = log_softmax(self.model(translated(u, self.work.pixels)), 1)
            v = torch.softmax(self.alpha0 / self.alpha1 * log_f, 1)
        for _ in range(tau):
            i, j = torch.randint(n, (batch,)), torch.randint(m, (batch,))
            loss = self.loss(translated(x[i], self.work.pixels), y[i], translated(u[j], self.work.pixels), v[j])
            grads = torch.autograd.grad(loss, self.params)
            with torch.no_grad():
                for p, g, d in zip(self.params, grads, self.d[k], strict=True):
                    p -= self.work.eta * (g + d)

    def loss(self, x: Tensor, y: Tensor, u: Tensor, v: Tensor) -> Tensor:
        """CE(x) + alpha0 CE(u, v) + alpha2 mean KL(f(u) || uniform), up to a constant."""
        log_f = log_softmax(self.model(u), 1)
        confidence = (log_f.exp() * log_f).sum(1).mean()
        return cross_entropy(self.model(x), y) - self.alpha0 * (v * log_f).sum(1).mean() + self.alpha2 * confidence


def translated(x: Tensor, pixels: int) -> Tensor:
    """Every image moved by up to so many pixels, with reflected borders."""
    if not pixels:
        return x
    count, _, height, width = x.shape
    padded = nn.functional.pad(x, [pixels] * 4, mode="reflect")
    down, right = torch.randint(2 * pixels + 1, (2, count, 1))
    rows, columns = down + torch.arange(height), right + torch.arange(width)
    picked = padded[torch.arange(count)[:, None, None], :, rows[:, :, None], columns[:, None, :]]
    return picked.permute(0, 3, 1, 2)


def accuracy(model: nn.Module, theta: dict[str, Tensor], x: Tensor, y: Tensor) -> float:
    model.load_state_dict(theta)
    with torch.no_grad():
        return float((model(x).argmax(1) == y).float().mean())


def stick(kind: str, work: Workload) -> Contestant:
    """A measuring stick in a process of its own, as its user would start it: no setting of ours reaches it."""
    return Contestant("loops.py", kind, work.text())


def chosen(arguments: list[str]) -> tuple[Workload, int]:
    """Workload and repeats of a peer's command line: name, repeats, small (0 or 1)."""
    name, repeats, small = arguments[1:]
    return workload(name, bool(int(small))), int(repeats)


def report(seconds: dict[str, list[float]], package: str) -> None:
    """A peer's last line: the median ratio of all rounds but the first with its quartiles, seconds and version."""
    warm = {name: values[1:] for name, values in seconds.items()}
    medians = {name: median(values) for name, values in warm.items()}
    found = spread(ratios(warm, "peer", "bare"))
    line = {"ratio": found["ours"], "quartiles": found["quartiles"], "seconds": medians, "version": version(package)}
    print(json.dumps(line))


if __name__ == "__main__":
    torch.set_num_threads(1)
    given = Workload.of(sys.argv[2])
    kinds = {"bare": BareLoop, "floor": Floor, "shvr": BareShvr}
    each_line(kinds[sys.argv[1]](given, *synthetic(given), network(given)).round)
