"""The ladder network (Rasmus et al. 2015) around a classifier: ladder.py has the formulas."""

from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from fedshvr.algorithms.objectives.formulas import head_of, normals
from fedshvr.compute.streams import stream
from fedshvr.compute.vector import Forward
from fedshvr.models.mlp import MLP

EPS = 1e-5  # of batch norm


class Layer(NamedTuple):
    """One layer in a pass: z, and the statistics that batch norm took off."""

    z: Tensor
    mean: Any = 0.0
    std: Any = 1.0


class LadderNet(nn.Module):
    """The network in stages, each an activation and a linear map, with batch norm in between; and the decoder."""

    def __init__(self, network: nn.Module, noise: float, image_noise: float) -> None:
        super().__init__()
        self.stages, self.noise, self.image_noise = nn.ModuleList(stages_of(network)), noise, image_noise
        widths = [head_of(stage).out_features for stage in self.stages]
        self.norms = nn.ModuleList(nn.BatchNorm1d(n, EPS, affine=False) for n in widths)
        self.beta = nn.ParameterList(torch.zeros(n) for n in widths)
        self.gamma = nn.Parameter(torch.ones(widths[-1]))
        denoised = [head_of(self.stages[0]).in_features, *widths] if isinstance(network, MLP) else widths
        self.a = nn.ParameterList(torch.tensor([0.0, 1, 0, 0, 0] * 2)[:, None].repeat(1, n) for n in denoised)
        self.v = nn.ModuleList(linear_map(above, below, i) for i, (below, above) in enumerate(pairwise(denoised)))
        self.inside = "layers." if isinstance(network, MLP) else ""  # where the stages are in the network
        self.numbers: Tensor | None = None
        self.layers: list[Layer] | None = None  # of the pass that is watched

    def watch(self, net: Forward, x: Tensor, numbers: Tensor | None = None) -> tuple[Tensor, list[Layer]]:
        """A pass with noise from these numbers, if any: the logits and all layers."""
        self.numbers, self.layers = numbers, []
        logits, layers = net(x), self.layers
        self.numbers = self.layers = None
        return logits, layers

    def forward(self, x: Tensor) -> Tensor:
        layers = [Layer(self.corrupt(x.flatten(1) if len(self.v) else x, 0))]
        for stage, norm, beta in zip(self.stages, self.norms, (0.0, *self.beta), strict=False):
            pre = stage(layers[-1].z + beta)
            z = self.corrupt(norm(pre), len(layers))
            layers.append(Layer(z, *statistics(norm, pre)))
        if self.layers is not None:
            self.layers += layers
        return self.gamma * (layers[-1].z + self.beta[-1])

    def corrupt(self, z: Tensor, layer: int) -> Tensor:
        if self.numbers is None:
            return z
        return z + (self.noise if layer else self.image_noise) * normals(self.numbers[layer], z)

    def denoise(self, logits: Tensor, clean: list[Layer], noisy: list[Layer]) -> list[Tensor]:
        """The cost of each layer that is denoised, the lowest first."""
        n, u, costs = len(self.a), standard(logits.softmax(-1)), []
        for i in reversed(range(n)):
            target, estimate = clean[i - n], combine(self.a[i], noisy[i - n].z, u)
            costs.append(mse_loss((estimate - target.mean) / target.std, target.z))
            u = standard(self.v[i - 1](estimate)) if i else u
        return costs[::-1]

    def folded(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """The clean pass as the network alone: W <- s W, b <- s (b - mean) + g beta, s = g / std; g = gamma on top."""
        own: dict[str, Tensor] = {}
        for i, stage in enumerate(self.stages):
            own |= {f"{self.inside}{name}": state[f"stages.{i}.{name}"] for name in stage.state_dict()}
            head = head_of(stage)
            name = self.inside + next(name for name, layer in stage.named_modules() if layer is head)
            norm = (f"norms.{i}.running_mean", f"norms.{i}.running_var", f"beta.{i}")
            mean, var, beta = (state[key].double() for key in norm)
            g = state["gamma"].double() if i == len(self.stages) - 1 else torch.ones_like(beta)
            s = g * (var + EPS).rsqrt()
            own[f"{name}.weight"] = (s[:, None] * own[f"{name}.weight"]).to(state["gamma"].dtype)
            own[f"{name}.bias"] = (s * (own[f"{name}.bias"] - mean) + g * beta).to(state["gamma"].dtype)
        return own


def stages_of(network: nn.Module) -> list[nn.Module]:
    """An MLP's linear layers, each with the activation before it; any other network as one."""
    if not isinstance(network, MLP):
        return [network]
    ends = [i + 1 for i, layer in enumerate(network.layers) if isinstance(layer, nn.Linear)]
    return [network.layers[begin:end] for begin, end in pairwise([0, *ends])]


def linear_map(fan_in: int, fan_out: int, layer: int) -> nn.Linear:
    """V, which starts as published: normal with variance 1 / fan_in."""
    made = nn.Linear(fan_in, fan_out, bias=False)
    nn.init.normal_(made.weight, std=fan_in**-0.5, generator=stream("decoder", layer))
    return made


def combine(a: Tensor, z: Tensor, u: Tensor) -> Tensor:
    """e = (z~ - m(u)) s(u) + m(u)."""
    m, s = (b[0] * (b[1] * u + b[2]).sigmoid() + b[3] * u + b[4] for b in a.chunk(2))
    return (z - m) * s + m


def statistics(norm: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """The mean and standard deviation with which batch norm scales x: those of the batch, or in evaluation its own."""
    var, mean = torch.var_mean(x, 0, correction=0) if norm.training else (norm.running_var, norm.running_mean)
    return mean, (var + norm.eps).sqrt()


def standard(x: Tensor) -> Tensor:
    """BN without memory."""
    return nn.functional.batch_norm(x, None, None, training=True)
