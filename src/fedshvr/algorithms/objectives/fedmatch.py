"""FedMatch (Jeong et al. 2021): labelled and unlabelled data train two halves of the model; near clients help."""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax
from torch.nn.utils import parametrize

from fedshvr.algorithms.objectives.base import Objective
from fedshvr.algorithms.objectives.batch import MODEL, Batch, Network, Parts, State
from fedshvr.algorithms.objectives.formulas import one_hot_argmax
from fedshvr.algorithms.objectives.halves import Halves
from fedshvr.algorithms.objectives.vat import kl
from fedshvr.compute.vector import together
from fedshvr.errors import check


class FedMatch(Objective):
    """CE(L_k; sigma + psi*) + [lambda_iccs Phi(sigma* + psi) + R(psi)] / lambda_s,  the model is sigma + psi.

    R = lambda_l2 |sigma* - psi|^2 + lambda_l1 |psi|_1
    This is the published loss over lambda_s, so that eta means what it means elsewhere (the published 0.001 is 0.01).
    Phi = mean_i 1[max p(u_i) >= threshold] CE(y_i, p(strong u_i)) + mean_j mean_i KL(p_j(u_i) || p(u_i)); * stops the
    gradient. y_i is the class with the most votes of the client's model and its helpers p_j, the lowest of several.
    The helpers are the other clients' models with the nearest outputs on one image of noise, renewed every
    `helpers_every` rounds from round 2 on (round 1: the first model). Plain SGD needs eta < lambda_s / lambda_l2.
    In the public code a client has helpers only in every 10th round and else votes alone, without the KL term; here it
    keeps them in between. There a helper is its psi on the receiver's sigma, here its own model; both means of Phi are
    over the sure images alone, here over all; p(u) is that of the clean image, here of the weak view; psi steps after
    sigma, here both at once; clients weigh alike, here with omega (weighting=uniform).
    """

    views = ("weak", "strong")
    parts = ("labeled", "unlabeled", "penalty")

    def __init__(
        self,
        lambda_s: float,
        lambda_iccs: float,
        lambda_l2: float,
        lambda_l1: float,
        threshold: float,
        helpers: int,
        helpers_every: int,
        zero_below: float,
    ) -> None:
        weights = {"lambda_iccs": lambda_iccs, "lambda_l2": lambda_l2, "lambda_l1": lambda_l1}
        check(lambda_s > 0, f"algorithm.objective.lambda_s={lambda_s}: must be positive")
        for name, value in (weights | {"zero_below": zero_below}).items():
            check(value >= 0, f"algorithm.objective.{name}={value}: must be at least 0")
        for name, value in (("helpers", helpers), ("helpers_every", helpers_every)):
            check(value >= 1, f"algorithm.objective.{name}={value}: must be at least 1")
        check(0 <= threshold < 1, f"algorithm.objective.threshold={threshold}: must be at least 0 and below 1")
        super().__init__(lambda_iccs)
        self.lambda_s, self.lambda_l2, self.lambda_l1, self.threshold = lambda_s, lambda_l2, lambda_l1, threshold
        self.memory, self.helpers_every = tuple(f"helper{j}" for j in range(helpers)), helpers_every
        self.halves = Halves(zero_below)

    def wrap(self, network: nn.Module) -> nn.Module:
        """The network with every parameter as two: net.params is sigma_1, psi_1, sigma_2, psi_2, ..."""
        owned = [(m, name) for m in network.modules() for name, _ in m.named_parameters(recurse=False)]
        for module, name in owned:
            parametrize.register_parametrization(module, name, self.halves)
        return network

    def plain(self, state: State) -> State:
        """sigma + psi as one parameter again."""
        self.halves.eval()
        merged = {}
        for name, tensor in state.items():
            whole, _, half = name.replace("parametrizations.", "").partition(".original")
            if half != "1":
                merged[whole] = self.halves(tensor, state[f"{name[:-1]}1"]) if half else tensor
        return merged

    def widths(self, parameters: int, classes: int) -> dict[str, int]:
        return super().widths(parameters, classes) | {MODEL: parameters}

    def exchanges(self, round_index: int) -> bool:
        return round_index % self.helpers_every == 1 % self.helpers_every

    def begin_client(self, state: State, theta: Tensor, done: Tensor) -> None:
        for helper in state.values():
            helper.copy_(torch.where((done == 0)[..., None], theta, helper))

    def labeled_loss(self, net: Network, batch: Batch) -> Tensor:
        self.halves.learns = "sigma"
        return cross_entropy(net(batch.x), batch.y)

    def loss(self, net: Network, batch: Batch, state: State) -> tuple[Tensor, Parts]:
        labeled = self.labeled_loss(net, batch)
        self.halves.learns = "psi"
        helpers = [net.at(state[name])(batch.u[0]).detach() for name in self.memory]
        logits_u, strong = together(net.untracked, *batch.u)
        unlabeled = self.agreement(logits_u.detach(), helpers, strong) + consistency(helpers, logits_u)
        penalty = self.penalty(net.params[0::2], net.params[1::2])
        loss = labeled + (self.alpha0 * unlabeled + penalty) / self.lambda_s
        return loss, {"labeled": labeled, "unlabeled": unlabeled, "penalty": penalty}

    def agreement(self, local: Tensor, helpers: list[Tensor], strong: Tensor) -> Tensor:
        """The cross-entropy of the strong view with the class that got most votes, where the client is sure."""
        votes = torch.stack([one_hot_argmax(logits) for logits in (local, *helpers)]).sum(0)
        sure = (local.softmax(-1).amax(-1) >= self.threshold).to(strong.dtype)
        return (sure * cross_entropy(strong, votes.argmax(-1), reduction="none")).mean()

    def penalty(self, sigma: list[Tensor], psi: list[Tensor]) -> Tensor:
        """lambda_l2 |sigma* - psi|^2 + lambda_l1 |psi|_1."""
        far = [(s.detach() - p).square().sum() for s, p in zip(sigma, psi, strict=True)]
        return (
            self.lambda_l2 * torch.stack(far).sum() + self.lambda_l1 * torch.stack([p.abs().sum() for p in psi]).sum()
        )


def consistency(helpers: list[Tensor], logits: Tensor) -> Tensor:
    """mean_j mean_i KL(p_j(u_i) || p(u_i))."""
    log_p = log_softmax(logits, -1)
    return torch.stack([kl(log_softmax(helper, -1), log_p) for helper in helpers]).mean()
