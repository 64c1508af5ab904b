"""DS3L (Guo et al. 2020): a small network learns which unlabelled images help the labelled ones."""

import torch
from torch import Tensor
from torch.func import grad, jvp
from torch.nn.functional import cross_entropy, linear

from fedshvr.algorithms.objectives.base import Objective
from fedshvr.algorithms.objectives.batch import Batch, Network, Parts, State
from fedshvr.algorithms.objectives.formulas import mean_logits, weighted
from fedshvr.algorithms.objectives.ramp import Ramp
from fedshvr.compute.streams import stream
from fedshvr.compute.vector import flatten, split_like
from fedshvr.errors import check

HIDDEN = 100
BETA1, BETA2, EPS = 0.9, 0.999, 1e-8  # Adam


class DS3L(Objective):
    """CE(L_k) + c(t) sum_i W_i l_i(theta),  l_i = MSE(f_theta(u_i'), f_theta(u_i)*),  W_i = w_i / sum_j w_j.

    w_i = WNet_a(f_theta(u_i)*), softmax - 100 ReLU - 1 sigmoid. Before each step a makes an Adam step on
        CE(L_k) at theta^(a) = theta - eta_meta grad_theta [CE(L_k) + c(t) sum_i W_i(a) l_i].
    As theta^ is linear in W, its exact gradient is that of -eta_meta c(t) sum_i W_i(a) s_i, where
        s_i = <grad CE(L_k) at theta^, grad l_i at theta>.
    WNet stays with the client: which classes are foreign differs from client to client.
    The target f(u_i)* is that of `label_view`: in the public code a second noisy pass (crop, flip, noise and dropout),
    so `weak`. There CE(L_k) is divided by the number of all images, labelled or not, here by that of the labelled ones:
    with equal batches its c = 10 is 20 here.
    """

    memory = ("wnet",)  # a, and Adam's two moments of it
    parts = ("labeled", "unlabeled")
    adapts = True
    whole = "weighs unlabelled images by what they do for labelled ones"

    def __init__(self, weight: float, eta_meta: float, eta_wnet: float, ramp: Ramp, label_view: str = "weak") -> None:
        super().__init__(weight, ramp)
        check(label_view != "own", "algorithm.objective.label_view=own: DS3L compares two views of an image")
        self.set_labeling("step", label_view)
        self.makes_labels = False  # the predictions themselves are the targets
        for name, value in (("eta_meta", eta_meta), ("eta_wnet", eta_wnet)):
            check(value > 0, f"algorithm.objective.{name}={value}: must be positive")
        self.eta_meta, self.eta_wnet = eta_meta, eta_wnet

    def widths(self, parameters: int, classes: int) -> dict[str, int]:
        return {"wnet": 3 * sum(shape.numel() for shape in wnet_shapes(classes))}

    def begin_client(self, state: State, theta: Tensor, done: Tensor) -> None:
        a = state["wnet"].chunk(3, -1)[0]
        a.copy_(torch.where((done == 0)[..., None], first_wnet(a.shape[-1]).to(a), a))

    def adapt(self, net: Network, batch: Batch, state: State, done: Tensor) -> State:
        a, m, v = state["wnet"].chunk(3, -1)
        g = self.meta_gradient(net, batch, a)
        m, v, t = BETA1 * m + (1 - BETA1) * g, BETA2 * v + (1 - BETA2) * g**2, (done + 1).to(a.dtype)
        a = a - self.eta_wnet * (m / (1 - BETA1**t)) / ((v / (1 - BETA2**t)).sqrt() + EPS)
        return {"wnet": torch.cat([a, m, v], -1)}

    @torch.no_grad()
    def meta_gradient(self, net: Network, batch: Batch, a: Tensor) -> Tensor:
        """The gradient with respect to a of CE(L_k) at theta^(a)."""
        theta, (view, *looks) = flatten(net.params), batch.u
        p = mean_logits(net.at(theta), looks).softmax(-1)
        share = shares(a, p)
        labeled = lambda theta: cross_entropy(net.at(theta)(batch.x), batch.y)  # noqa: E731
        losses = lambda theta: consistency(net.at(theta)(view), p)  # noqa: E731
        inner = grad(lambda theta: labeled(theta) + self.alpha0 * (share * losses(theta)).sum())(theta)
        s = jvp(losses, (theta,), (grad(labeled)(theta - self.eta_meta * inner),))[1]
        return grad(lambda a: -self.eta_meta * self.alpha0 * (shares(a, p) * s).sum())(a)

    def loss(self, net: Network, batch: Batch, state: State) -> tuple[Tensor, Parts]:
        view, *looks = batch.u
        p = mean_logits(net.untracked, looks).detach().softmax(-1)
        share = shares(state["wnet"].chunk(3, -1)[0], p).detach()
        unlabeled = (share * consistency(net.untracked(view), p)).sum()
        return weighted(cross_entropy(net(batch.x), batch.y), self.alpha0, unlabeled)


def consistency(logits: Tensor, p: Tensor) -> Tensor:
    """l_i of each image: the mean over classes of the squared difference."""
    return (logits.softmax(-1) - p).square().mean(-1)


def shares(a: Tensor, p: Tensor) -> Tensor:
    """W_i: WNet's weights of the images with predictions p, summing to 1."""
    w1, b1, w2, b2 = split_like(a, wnet_shapes(p.shape[-1]))
    w = linear(linear(p, w1, b1).relu(), w2, b2).sigmoid()[:, 0]
    return w / w.sum()


def wnet_shapes(classes: int) -> list[torch.Size]:
    return [torch.Size(s) for s in ((HIDDEN, classes), (HIDDEN,), (1, HIDDEN), (1,))]


def first_wnet(size: int) -> Tensor:
    """a at the start, the same for all clients: uniform in +-1/sqrt(fan-in), as torch's linear layers."""
    classes = (size - 1) // HIDDEN - 2  # size = 100 (classes + 1) + 100 + 1
    fan_in = torch.tensor([classes, HIDDEN]).repeat_interleave(torch.tensor([HIDDEN * (classes + 1), HIDDEN + 1]))
    return (2 * torch.rand(size, generator=stream("wnet")) - 1) / fan_in.sqrt()
