"""How the clients' moves theta - theta_k become one server direction: sum_k coefficient_k (theta - theta_k)."""

from torch import Tensor


class Average:
    """FedAvg: theta' = sum_k w_k theta_k, so the coefficient is the weight."""

    def coefficients(self, weights: Tensor, effective: Tensor) -> Tensor:
        """Weights w_k (sum 1) and effective steps a_k of the cohort -> coefficients."""
        return weights


class Normalized:
    """FedNova (Wang et al. 2020): theta' = theta - tau_bar sum_k w_k (theta - theta_k) / a_k.

    a_k is how far a client moves, in units of eta, for a constant unit gradient: tau_k for plain SGD.
    tau_bar = sum_k w_k a_k.
    """

    def coefficients(self, weights: Tensor, effective: Tensor) -> Tensor:
        return (weights * effective).sum() * weights / effective


def effective_steps(tau: int, eta: float, momentum: float, mu: float) -> float:
    """a_k: the move of tau steps under a constant unit gradient with momentum and proximal pull, over eta."""
    if not momentum and not mu:
        return float(tau)
    buffer = moved = 0.0
    for _ in range(tau):
        buffer = momentum * buffer + 1 - eta * mu * moved
        moved += buffer
    return moved
