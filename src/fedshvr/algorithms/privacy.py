"""How much of one client the server's model may show: as it comes, or bounded by central differential privacy.

DP-FedAvg (McMahan et al. 2018) with a fixed denominator, and a trusted server:

    move_k <- move_k min(1, clip / |move_k|)        on the client, before it remembers anything of its move
    direction = sum_{k in S} b_k move_k + n         b_k = the coefficient of k if all took part, over q = |S| / K
    n ~ N(0, (z clip max_k b_k)^2 I)

b_k does not depend on who else was drawn. Neighbours are two federations of which one client's samples differ, but not
their number: tau_k, omega_k and b_k are public. The sum then differs by at most 2 clip max_k b_k, twice what the
noise is measured by.

Control variates: with Delta_k = (clipped move_k) / (eta tau_k) the changes of c_k, Delta_k - c, have the sum

    sum_S omega_k (c_k' - c_k) = kappa sum_S b_k move_k - c sum_S omega_k,    kappa = omega_k / (eta tau_k b_k)

which follows from the direction, if kappa is the same for all clients: so the noisy direction is all that is released,
and c gets kappa n. Hence c = sum_k omega_k c_k + (the sum of kappa n over the rounds), and without noise the clients'
corrections cancel exactly. What a client keeps to itself (c_k, d_k, v_k, a teacher) is not released.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from math import inf

import torch
from torch import Tensor

from fedshvr.algorithms.aggregation import Average
from fedshvr.algorithms.corrections import Correction
from fedshvr.algorithms.objectives.base import Objective
from fedshvr.algorithms.objectives.batch import MODEL
from fedshvr.errors import check

ORDERS = (1.25, 1.5, 1.75, *range(2, 33), 40, 48, 64)  # of Renyi's divergence: higher ones take seconds with sampling


class Privacy:
    """None: moves stay as they are, and nothing is added."""

    private = False

    def clip_(self, theta_k: Tensor, theta: Tensor) -> None:
        """Bound the clients' moves from theta, (n, P) each, in place."""

    def check_method(self, objective: Objective, correction: Correction, aggregation: Average) -> None:
        """Refuse what would show more of a client."""


class Central(Privacy):
    """(epsilon, delta) of what leaves the server: clipped moves, and noise of `noise` times one client's most."""

    private = True

    def __init__(self, clip: float, noise: float, delta: float) -> None:
        check(0 < clip < inf, f"privacy.clip={clip}: must be positive and finite")
        check(0 <= noise < inf, f"privacy.noise={noise}: must be at least 0 and finite")
        check(0 < delta < 1, f"privacy.delta={delta}: must be above 0 and below 1")
        there = find_spec("dp_accounting") is not None
        check(there, "privacy=central: needs the package dp-accounting: pip install 'fedshvr[privacy]'")
        self.clip, self.noise, self.delta = clip, noise, delta

    def clip_(self, theta_k: Tensor, theta: Tensor) -> None:
        move = theta - theta_k
        norm = torch.linalg.vector_norm(move, dim=1, keepdim=True)
        theta_k.copy_(torch.where(norm > self.clip, theta - move * (self.clip / norm), theta_k))

    def check_method(self, objective: Objective, correction: Correction, aggregation: Average) -> None:
        kind, option = type(aggregation), getattr(correction, "option", "II")
        a_sum = kind.add is Average.add and kind.finish is Average.finish and not aggregation.groups
        check(
            a_sum,
            f"privacy=central: {kind.__name__} is no sum of the clients' moves, so one client's part in it has "
            "no such bound; algorithm/aggregation must be average or normalized",
        )
        check(
            MODEL not in objective.widths(1, 1),
            f"privacy=central: the clients of {type(objective).__name__} see each other's models; "
            "another algorithm/objective is needed",
        )
        check(
            option == "II",
            f"algorithm.correction.option={option}: must be II with privacy=central, because a gradient "
            "that is sent beside the move would need noise of its own",
        )

    def deviation(self, most: float) -> float:
        """The noise's standard deviation, if the largest coefficient of a client is `most`."""
        return self.noise * self.clip * most

    def epsilon(self, secret: Mapping[tuple[int, int], int], known: int) -> float:
        """At delta, by what holds of two accounts: inf without noise.

        `known`: whoever is drawn is known, and no client took part in more rounds than these.
        `secret`: {(K, m): rounds in which m of K clients were drawn without replacement, and who remains unknown}
        (Wang, Balle and Kasiviswanathan 2019); empty if that account does not hold.
        """
        if not self.noise:
            return inf
        from dp_accounting import GaussianDpEvent, NeighboringRelation, SampledWithoutReplacementDpEvent
        from dp_accounting.rdp import RdpAccountant

        replaced, one = NeighboringRelation.REPLACE_ONE, GaussianDpEvent(self.noise / 2)
        plain = RdpAccountant(neighboring_relation=replaced).compose(one, known)
        sampled = RdpAccountant(ORDERS, neighboring_relation=replaced)
        for (clients, drawn), rounds in secret.items():
            sampled.compose(SampledWithoutReplacementDpEvent(clients, drawn, one), rounds)
        return float(min(account.get_epsilon(self.delta) for account in (plain, *([sampled] if secret else []))))
