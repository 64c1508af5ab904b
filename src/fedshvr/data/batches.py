"""Batches without a loader: a round's random choices at once, then gathers from in-memory tensors in blocks."""

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from fedshvr.algorithms.objectives.base import Objective
from fedshvr.algorithms.objectives.batch import Batch
from fedshvr.compute.recurring import Uses
from fedshvr.compute.streams import Draws
from fedshvr.data.augment import Augment
from fedshvr.federation.plan import LocalSGD, Plan, Sets, local_epoch

BLOCK_BYTES = 4 << 20  # about the size of a cache: larger blocks gain nothing
HELD = ("has_labels", "has_others")  # in Batch.noise, if some client lacks labelled or unlabelled samples


class Pool(NamedTuple):
    """The training set on the device, by sample index."""

    x: Tensor  # (N, C, H, W)
    y: Tensor  # (N,), -1 where the label is not known to the clients
    v: Tensor  # (N, classes), pseudo-labels of the unlabelled samples


class Choices(NamedTuple):
    """The random choices of n clients' round; dimensions (n, steps, ...)."""

    labeled: Tensor  # sample indices (n, steps, B_l)
    unlabeled: Tensor  # sample indices (n, steps, B_u)
    move_x: Tensor  # numbers for the augmentation of the labelled images
    move_u: tuple[Tensor, ...]  # ... and of each view of the unlabelled ones
    noise: dict[str, Tensor]

    def steps(self, start: int, stop: int) -> "Choices":
        return self._map(lambda t: t[:, start:stop])

    def at(self, client: int, step: int) -> "Choices":
        return self._map(lambda t: t[client, step])

    def to(self, device: torch.device) -> "Choices":
        """On the device, but for the augmentations' numbers: see Augment."""
        labeled, unlabeled = (t.to(device, non_blocking=True) for t in (self.labeled, self.unlabeled))
        noise = {name: t.to(device, non_blocking=True) for name, t in self.noise.items()}
        return self._replace(labeled=labeled, unlabeled=unlabeled, noise=noise)

    def _map(self, f: Callable[[Tensor], Tensor]) -> "Choices":
        a, b, x, u, noise = self
        return Choices(f(a), f(b), f(x), tuple(map(f, u)), {name: f(t) for name, t in noise.items()})


class Batcher:
    """Makes every client's batches."""

    def __init__(
        self, plan: Plan, local: LocalSGD, objective: Objective, augments: dict[str, Augment], dropout: bool = False
    ) -> None:
        self.plan, self.local, self.objective = plan, local, objective
        self.augments = {"labeled": augments["weak"]} | augments
        self.dropout = dropout  # does the network ask for a number a step?
        self.labeled, self.unlabeled, self.batch_labeled = plan.labeled, plan.unlabeled, local.batch_labeled
        self.lacking = objective.uses_unlabeled and bool(plan.lacking)
        if self.lacking:  # a client's other samples stand in without their labels, and rounds/terms.py gives no weight
            self.labeled, self.unlabeled = plan.labeled.or_else(plan.unlabeled), plan.unlabeled.or_else(plan.labeled)
            self.batch_labeled = local.batch_labeled if plan.with_labels else 1

    def choose(self, draws: Draws, steps: int) -> Choices:
        """xi ~ L_k and zeta ~ U_k uniformly at random, `steps` times."""
        local, n = self.local, len(draws.clients)
        sizes_l, sizes_u = (steps, self.batch_labeled), (steps, local.batch_unlabeled)
        views = self.objective.views
        if self.objective.uses_unlabeled:
            unlabeled = self._pick(draws, "unlabeled", self.unlabeled, sizes_u)
        else:
            unlabeled = torch.empty(n, steps, 0, dtype=torch.long)
        return Choices(
            labeled=self._pick(draws, "labeled", self.labeled, sizes_l),
            unlabeled=unlabeled,
            move_x=draws("move labeled", (*sizes_l, self.augments["labeled"].numbers)),
            move_u=tuple(draws(f"move {i}", (*sizes_u, self.augments[v].numbers)) for i, v in enumerate(views)),
            noise=self._noise(draws, steps),
        )

    def _noise(self, draws: Draws, steps: int) -> dict[str, Tensor]:
        noise = self.objective.draw(draws, steps, self.batch_labeled, self.local.batch_unlabeled)
        if self.lacking:
            sizes = (sets.size[draws.clients] for sets in (self.plan.labeled, self.plan.unlabeled))
            noise |= {name: (n > 0)[:, None].expand(-1, steps) for name, n in zip(HELD, sizes, strict=True)}
        return noise | self._alpha0(draws, steps) | ({"masks": draws("masks", (steps,))} if self.dropout else {})

    def _alpha0(self, draws: Draws, steps: int) -> dict[str, Tensor]:
        """alpha0 of each step, (clients, steps), as long as it changes within the round.

        At step s client k has made E s / tau_k epochs of the round; with ramp.by=epoch only whole ones count.
        """
        epochs, ramp, begin = self.local.epochs, self.objective.ramp, draws.path[1] * self.local.epochs
        if ramp.by == "round" or ramp.over(begin):
            return {}

        def share(step: int, tau: int) -> float:
            passed = epochs * step / tau if ramp.by == "step" else local_epoch(step, tau, epochs)
            return ramp(begin + passed)

        taus = [self.plan.tau[k] for k in draws.clients.tolist()]
        shares = torch.tensor([[share(step, tau) for step in range(steps)] for tau in taus], dtype=torch.float64)
        return {"alpha0": self.objective.weight * shares}

    def _pick(self, draws: Draws, name: str, sets: Sets, shape: tuple[int, int]) -> Tensor:
        size, start = (t[draws.clients, None, None] for t in (sets.size, sets.start))
        if self.local.sampling == "replacement":
            return sets.flat[start + (draws(name, shape) * size).long()]
        return torch.stack([self._shuffled(draws, name, sets[int(k)], shape, i) for i, k in enumerate(draws.clients)])

    def _shuffled(self, draws: Draws, name: str, indices: Tensor, shape: tuple[int, int], row: int) -> Tensor:
        """Passes over a freshly shuffled set; a batch never straddles two passes, so it holds no sample twice.

        What a pass has left over is dropped or, with rounding=ceil, makes a last batch that is filled up with samples
        of the same pass, which are random as their order is. (A batch that is short would make the clients' batches
        unequal, and a mean over them would weigh its samples more; this one weighs all alike on average.)
        """
        steps, batch = shape
        one = Draws(*draws.path, draws.clients[row : row + 1])
        if len(indices) < batch:  # samples that only stand in
            return indices[(one(name, shape)[0] * len(indices)).long()]
        size, keep = len(indices), self.local.rounding == "ceil" and len(indices) % batch > 0
        per_pass = size // batch + keep
        passes = -(-steps // per_pass)
        order = one(name, (passes, size))[0].argsort(-1)
        whole = order[:, : size - size % batch]
        order = torch.cat([whole, order[:, size - batch :]], 1) if keep else whole
        return indices[order].reshape(-1, batch)[:steps]

    def blocks(self, choices: Choices, pool: Pool, cuts: Iterable[int] = ()) -> Iterator[Batch]:
        """The steps' batches gathered block by block: Batch with dimensions (n, steps of the block, ...).

        A block is gathered when it is asked for, and none reaches beyond a cut: there the pseudo-labels may change.
        """
        n, steps = choices.labeled.shape[:2]
        images = choices.labeled.shape[2] + len(self.objective.views) * choices.unlabeled.shape[2]
        size = max(1, BLOCK_BYTES // max(1, n * images * pool.x[0].numel() * pool.x.element_size()))
        ends = sorted({cut for cut in cuts if cut < steps} | {steps})
        for begin, end in pairwise([0, *ends]):
            for start in range(begin, end, size):
                yield self.gather(choices.steps(start, min(start + size, end)).to(pool.x.device), pool)

    def recurring(self, choices: Choices, pool: Pool) -> Uses | None:
        """The labelled samples of these clients' round, where they are few beside the numbers in one and come often.

        None for an objective that differentiates inside its loss, as VAT's: there no step may be made in passing.
        """
        if self.augments["labeled"].numbers or not self.objective.compiles or pool.x.device.type != "cpu":
            return None
        steps, batch = choices.labeled.shape[1:]
        found = [labeled.unique(return_inverse=True) for labeled in choices.labeled]
        most = max(len(distinct) for distinct, _ in found)
        if 4 * most > pool.x[0].numel() or 2 * most > steps * batch:
            return None
        filled = torch.stack([torch.cat([d, d[:1].expand(most - len(d))]) for d, _ in found])
        return Uses(self._images(pool.x, filled).flatten(2), torch.stack([place for _, place in found]))

    def fixed(self, labeled: Tensor, unlabeled: Tensor) -> Choices:
        """One step of one client with exactly these samples."""
        none, held = torch.empty(1, 1, 0), {}
        if self.lacking:
            held = {name: torch.tensor([[len(s) > 0]]) for name, s in zip(HELD, (labeled, unlabeled), strict=True)}
            labeled, unlabeled = (labeled if len(labeled) else unlabeled), (unlabeled if len(unlabeled) else labeled)
        noise = held | self.objective.draw(Draws(0, 0, torch.tensor([0])), 1, len(labeled), len(unlabeled))
        return Choices(labeled[None, None], unlabeled[None, None], none, (none,) * len(self.objective.views), noise)

    def gather(self, choices: Choices, pool: Pool, clean: bool = False) -> Batch:
        """Images, labels and pseudo-labels of these choices; `clean` leaves the images as they are."""
        u_clean = self._images(pool.x, choices.unlabeled) if self.objective.views else None
        return Batch(
            x=self._augment("labeled", self._images(pool.x, choices.labeled), choices.move_x, clean),
            y=pool.y[choices.labeled].clamp_min(0) if self.lacking else pool.y[choices.labeled],
            u=tuple(
                self._augment(view, u_clean, move, clean)
                for view, move in zip(self.objective.views, choices.move_u, strict=True)
                if u_clean is not None
            ),
            v=pool.v[choices.unlabeled] if self.objective.pseudo_labels else (),
            noise=choices.noise,
        )

    @staticmethod
    def _images(x: Tensor, index: Tensor) -> Tensor:
        return x.index_select(0, index.flatten()).view(*index.shape, *x.shape[1:])

    def _augment(self, view: str, images: Tensor, move: Tensor, clean: bool) -> Tensor:
        augment = self.augments[view]
        if clean or not augment.numbers:
            return images
        return augment.apply(images.flatten(0, 2), move.flatten(0, 2)).view_as(images)


def per_step(batch: Batch, dim: int) -> Iterator[Batch]:
    """One Batch per step of a block whose steps lie along `dim`."""
    x, y = batch.x.unbind(dim), batch.y.unbind(dim)
    u = list(zip(*(t.unbind(dim) for t in batch.u), strict=True)) or [()] * len(x)
    v = batch.v.unbind(dim) if isinstance(batch.v, Tensor) else [()] * len(x)
    noise = {name: t.unbind(dim) for name, t in batch.noise.items()}
    for s in range(len(x)):
        yield Batch(x[s], y[s], u[s], v[s], {name: t[s] for name, t in noise.items()})
