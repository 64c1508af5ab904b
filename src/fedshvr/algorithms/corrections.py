"""Corrections of the local gradient: g + d_k + mu (theta_k - theta), and what each client remembers for it.

A local step is theta_k <- theta_k - eta (g + d_k + mu (theta_k - theta)). A correction says what d_k and mu are, and
how its memory changes after the round. Delta_k = (theta - theta_k) / (eta tau_k) is client k's mean corrected gradient.
"""

from collections.abc import Callable

from torch import Tensor

from fedshvr.errors import check

Gradient = Callable[[], Tensor]


class Correction:
    """No correction: FedAvg's and FedNova's local SGD."""

    memory = ""  # name of the vector of the size of theta that each client keeps, if any
    server_memory = False  # does the server keep a vector c, changed by the sum of what the clients report?
    needs_global_move = False  # is `after_round` wanted?
    plain_sgd = False  # is it derived for local SGD without momentum?
    mu = 0.0

    def offset(self, memory: Tensor, c: Tensor) -> Tensor | None:
        """d_k from what client k remembers and the server's c; also for many clients at once, (n, P)."""
        return None

    def after_client(self, memory: Tensor, c: Tensor, delta: Tensor, gradient: Gradient) -> Tensor | None:
        """Change the memory in place once the client is done; what it returns is summed with omega_k into c.

        `delta` may be overwritten.
        `gradient()` is the gradient of F_k at the server's model, computed when called.
        """
        return None

    def after_round(self, memory: Tensor, global_move: Tensor, eta: float, tau: int) -> None:
        """Change the memory in place once the server has made its step; global_move = theta - theta'."""


class Proximal(Correction):
    """FedProx (Li et al. 2020): the gradient of mu/2 |theta_k - theta|^2."""

    def __init__(self, mu: float) -> None:
        check(mu >= 0, f"algorithm.correction.mu={mu}: must be at least 0")
        self.mu = mu


class ControlVariates(Correction):
    """Fed-SHVR's variance reduction, which is SCAFFOLD's option II with the weights omega (Karimireddy et al. 2020).

    d_k = c - c_k;  c_k <- Delta_k - d_k (the client's mean raw gradient);  c <- c + sum_k omega_k (c_k' - c_k).
    So c = sum_k omega_k c_k and sum_k omega_k d_k = 0, also when only a part of the clients take part. With all of
    them this is the paper's d_k <- d_k + (theta - theta')/(eta tau_bar) - Delta_k.
    option "I" takes c_k = the gradient of F_k at the server's model, an extra pass over the client's data.
    """

    memory = "c_k"
    server_memory = True
    plain_sgd = True
    OPTIONS = ("I", "II")

    def __init__(self, option: str = "II") -> None:
        check(option in self.OPTIONS, f"algorithm.correction.option={option}: must be one of I, II")
        self.option = option

    def offset(self, memory: Tensor, c: Tensor) -> Tensor | None:
        return c - memory

    def after_client(self, memory: Tensor, c: Tensor, delta: Tensor, gradient: Gradient) -> Tensor | None:
        # II: c_k' - c_k = Delta_k - d_k - c_k = Delta_k - c
        change = gradient() - memory if self.option == "I" else delta.sub_(c)
        memory.add_(change)
        return change


class VRLSGD(Correction):
    """VRL-SGD (Liang et al. 2019) with each client's own tau_k: d_k <- d_k + (theta - theta')/(eta tau_k) - Delta_k."""

    memory = "d_k"
    plain_sgd = True
    needs_global_move = True

    def offset(self, memory: Tensor, c: Tensor) -> Tensor | None:
        return memory

    def after_client(self, memory: Tensor, c: Tensor, delta: Tensor, gradient: Gradient) -> Tensor | None:
        memory.sub_(delta)
        return None

    def after_round(self, memory: Tensor, global_move: Tensor, eta: float, tau: int) -> None:
        memory.add_(global_move, alpha=1 / (eta * tau))
