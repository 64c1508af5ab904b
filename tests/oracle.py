"""Algorithm 1 and its relatives, written from the papers' formulas in plain loops: an oracle for the framework.

It shares no code with the framework. Only what is drawn comes from outside: who takes part in a round, and which
samples each local step uses. Names are the paper's: theta, theta_k, tau, omega, d_k, Delta, v; S is a round's cohort.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Cohort = Callable[[int], list[int]]  # round -> the clients that take part
Draw = Callable[[int, int, int], tuple[Tensor, Tensor]]  # round, client, steps -> xi (steps, B_l), zeta (steps, B_u)


@dataclass(frozen=True)
class Data:
    """Client k holds the labelled samples L[k] and the unlabelled samples U[k]; images are flat vectors."""

    x: Tensor
    y: Tensor
    L: list[Tensor]
    U: list[Tensor]
    C: int


@dataclass(frozen=True)
class Soft:
    """The constants of the paper's objective; alpha0 grows linearly from `start` of it in `ramp` epochs."""

    alpha0: float
    alpha1: float
    alpha2: float
    ramp: float
    exponent: str = "final"  # of Lemma 1: alpha0/alpha1 at the end of the ramp, or the current one
    start: float = 0.0
    by: str = "round"  # alpha0 grows each round, or with each epoch or step of a client
    relabel: str = "round"  # or "epoch": also from theta_k, whenever a client begins a further epoch of its round


@dataclass(frozen=True)
class Local:
    """theta_k <- theta_k - eta m, m <- rho m + (corrected gradient + decay theta_k)."""

    eta: float
    E: float
    B_l: int
    B_u: int
    rho: float = 0.0
    decay: float = 0.0


def predict(theta: Tensor, x: Tensor, C: int) -> Tensor:
    """f = softmax(W2 relu(W1 x + b1) + b2), theta = (W1, b1, W2, b2) in one vector; for logits that exp can take."""
    inputs = x.shape[1]
    h = (len(theta) - C) // (inputs + 1 + C)
    W1, b1, W2, b2 = theta.split([h * inputs, h, C * h, C])
    z = torch.relu(x @ W1.view(h, inputs).T + b1) @ W2.view(C, h).T + b2
    return z.exp() / z.exp().sum(1, keepdim=True)


class FedAvg:
    """theta' = sum_k w_k theta_k after tau_k local steps; and the loop that all methods share."""

    def __init__(self, data: Data, local: Local, theta: Tensor, soft: Soft | None = None, eta_g: float = 1.0) -> None:
        self.data, self.local, self.theta, self.soft, self.eta_g = data, local, theta.clone(), soft, eta_g
        samples = [len(L) + len(U) for L, U in zip(data.L, data.U, strict=True)]
        self.omega = [n / sum(samples) for n in samples]
        self.tau = [self.steps(k) for k in range(len(samples))]
        self.d_k = torch.zeros(len(samples), len(theta), dtype=theta.dtype)
        self.c_k, self.c = torch.zeros_like(self.d_k), torch.zeros_like(theta)
        self.mean_g = torch.zeros_like(self.d_k)  # client k's mean raw gradient of its last round
        self.v = torch.full((len(data.x), data.C), torch.nan, dtype=theta.dtype)

    def steps(self, k: int) -> int:
        """tau_k = max(floor(M_k E / B_u), floor(N_k E / B_l)), at least 1; supervised learning has no M_k."""
        a, data = self.local, self.data
        by_unlabelled = len(data.U[k]) * a.E // a.B_u if self.soft else 0
        return int(max(by_unlabelled, len(data.L[k]) * a.E // a.B_l, 1))

    def run(self, rounds: int, cohort: Cohort, draw: Draw) -> None:
        for t in range(rounds):
            S = cohort(t)
            if self.soft:
                self.begun = t * self.local.E
                self.alpha0 = self.grown(self.begun)
                for k in S:
                    self.label(self.data.U[k])
            theta_k = {k: self.client(k, *draw(t, k, self.tau[k])) for k in S}
            theta_new = self.theta - self.eta_g * self.direction(theta_k, self.weights(S))
            self.remember(theta_k, theta_new)
            self.theta = theta_new

    def grown(self, epochs: float) -> float:
        """alpha0 after so many epochs."""
        assert self.soft
        a = self.soft
        return a.alpha0 * (a.start + (1 - a.start) * epochs / a.ramp if epochs < a.ramp else 1.0)

    def label(self, U: Tensor, theta: Tensor | None = None) -> None:
        """Lemma 1: v = f^(alpha0/alpha1) / sum f^(alpha0/alpha1) at theta; the hard label if alpha1 = 0."""
        assert self.soft
        f = predict(self.theta if theta is None else theta, self.data.x[U], self.data.C)
        if self.soft.alpha1:
            power = f ** ((self.soft.alpha0 if self.soft.exponent == "final" else self.alpha0) / self.soft.alpha1)
            self.v[U] = power / power.sum(1, keepdim=True)
        else:
            self.v[U] = (f == f.max(1, keepdim=True).values).to(f.dtype)

    def client(self, k: int, xi: Tensor, zeta: Tensor) -> Tensor:
        """tau_k times: theta_k <- theta_k - eta (g_k(theta_k, v_k) + d_k), with momentum if rho > 0."""
        a, theta_k, m = self.local, self.theta, torch.zeros_like(self.theta)
        self.mean_g[k] = 0
        for s in range(self.tau[k]):
            epoch, before = (int(a.E * step / self.tau[k]) for step in (s, max(s - 1, 0)))
            if self.soft and self.soft.by != "round":
                self.alpha0 = self.grown(self.begun + (epoch if self.soft.by == "epoch" else a.E * s / self.tau[k]))
            if self.soft and self.soft.relabel == "epoch" and epoch > before:
                self.label(self.data.U[k], theta_k)
            g = self.gradient(theta_k, xi[s], zeta[s]) + a.decay * theta_k
            self.mean_g[k] += g / self.tau[k]
            m = a.rho * m + g + self.d(k) + self.pull(theta_k)
            theta_k = theta_k - a.eta * m
        if self.soft:
            self.alpha0 = self.grown(self.begun)
        return theta_k

    def gradient(self, theta: Tensor, xi: Tensor, zeta: Tensor) -> Tensor:
        """Of F_k on these samples, in theta; v is fixed."""
        theta = theta.detach().requires_grad_()
        return torch.autograd.grad(self.F(theta, xi, zeta), theta)[0]

    def F(self, theta: Tensor, xi: Tensor, zeta: Tensor) -> Tensor:
        """CE(L) + alpha0 CE(U, v) + alpha2 r2: what depends on theta."""
        x, y, C = self.data.x, self.data.y, self.data.C
        CE = -predict(theta, x[xi], C)[range(len(xi)), y[xi]].log().mean()
        if not self.soft:
            return CE
        f = predict(theta, x[zeta], C)
        CE_v = -(self.v[zeta] * f.log()).sum(1).mean()
        return CE + self.alpha0 * CE_v + self.soft.alpha2 * self.r2(f)

    def r2(self, f: Tensor) -> Tensor:
        """mean_i KL(f_i || uniform)."""
        return (f * (f * self.data.C).log()).sum(1).mean()

    def weights(self, S: list[int]) -> dict[int, float]:
        """w_k = omega_k / sum_S omega."""
        return {k: self.omega[k] / sum(self.omega[j] for j in S) for k in S}

    def Delta(self, k: int, theta_k: Tensor) -> Tensor:
        return (self.theta - theta_k) / (self.local.eta * self.tau[k])

    def direction(self, theta_k: dict[int, Tensor], w: dict[int, float]) -> Tensor:
        """theta - theta'."""
        return self.theta - sum(w[k] * theta_k[k] for k in w)

    def d(self, k: int) -> Tensor:
        return self.d_k[k]

    def pull(self, theta_k: Tensor) -> Tensor:
        return torch.zeros_like(theta_k)

    def remember(self, theta_k: dict[int, Tensor], theta_new: Tensor) -> None:
        """What changes on the clients and the server besides theta."""


class FedProx(FedAvg):
    """The local loss gets mu/2 |theta_k - theta|^2."""

    mu = 0.7

    def pull(self, theta_k: Tensor) -> Tensor:
        return self.mu * (theta_k - self.theta)


class FedNova(FedAvg):
    """theta' = theta - tau_bar sum_k w_k (theta - theta_k) / a_k, tau_bar = sum_k w_k a_k. (Fed-SH if soft.)"""

    def a(self, k: int) -> float:
        """|a_k|_1 = sum_s (1 - rho^s) / (1 - rho), s = 1..tau_k: tau_k without momentum."""
        rho, tau = self.local.rho, self.tau[k]
        return (tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho)

    def direction(self, theta_k: dict[int, Tensor], w: dict[int, float]) -> Tensor:
        tau_bar = sum(w[k] * self.a(k) for k in w)
        return tau_bar * torch.stack([w[k] * (self.theta - theta_k[k]) / self.a(k) for k in w]).sum(0)


class FedSHVR(FedNova):
    """Algorithm 1 as it stands, for full participation: d_k <- d_k + (theta - theta')/(eta tau_bar) - Delta_k.

    c_k = the mean raw gradient and c = sum_k omega_k c_k are not used: the framework keeps them instead of d_k.
    """

    def remember(self, theta_k: dict[int, Tensor], theta_new: Tensor) -> None:
        tau_bar = sum(self.omega[k] * self.tau[k] for k in theta_k)
        for k in theta_k:
            self.d_k[k] += (self.theta - theta_new) / (self.local.eta * tau_bar) - self.Delta(k, theta_k[k])
        self.c_k = self.mean_g.clone()
        self.c = torch.tensor(self.omega, dtype=self.c_k.dtype) @ self.c_k


class Scaffold(FedAvg):
    """y <- y - eta (g - c_k + c); c' = c + sum_S omega_k (c_k' - c_k), where omega_k = 1/K for equal clients."""

    def variate(self, k: int, theta_k: Tensor) -> Tensor:
        """Option II: c_k' = c_k - c + (x - y_k)/(tau_k eta)."""
        return self.c_k[k] - self.c + self.Delta(k, theta_k)

    def remember(self, theta_k: dict[int, Tensor], theta_new: Tensor) -> None:
        new = {k: self.variate(k, theta_k[k]) for k in theta_k}
        for k in new:
            self.c = self.c + self.omega[k] * (new[k] - self.c_k[k])
            self.c_k[k] = new[k]
        self.d_k = self.c - self.c_k


class ScaffoldI(Scaffold):
    def variate(self, k: int, theta_k: Tensor) -> Tensor:
        """Option I: the gradient at theta on all of the client's data, with the decay that every local step has."""
        return self.gradient(self.theta, self.data.L[k], self.data.U[k]) + self.local.decay * self.theta


class FedSHVRPartial(Scaffold, FedNova):
    """Fed-SHVR when a part of the clients take part: SCAFFOLD's variates with FedNova's server step."""


class VRLSGD(FedAvg):
    """x_k <- x_k - eta (g - D_k); D_k <- D_k + (x' - x_k)/(eta tau_k); d_k = -D_k. (Fed-SVR if soft.)"""

    def remember(self, theta_k: dict[int, Tensor], theta_new: Tensor) -> None:
        for k in theta_k:
            self.d_k[k] -= (theta_new - theta_k[k]) / (self.local.eta * self.tau[k])
