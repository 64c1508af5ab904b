"""Lemma 1 and the regularisers of the paper's objective, against numerical solvers and hand-worked values."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from fedshvr.algorithms.objectives.batch import Batch
from fedshvr.algorithms.objectives.formulas import kl_from_uniform
from fedshvr.algorithms.objectives.ramp import Ramp
from fedshvr.algorithms.objectives.soft_pseudo_label import SoftPseudoLabel
from fedshvr.compute.streams import Draws
from fedshvr.data.augment import Augment
from fedshvr.data.batches import Batcher
from fedshvr.errors import UserError
from fedshvr.federation.partition import Split
from fedshvr.federation.plan import LocalSGD, make_plan

NO_RAMP = Ramp(0, "none")


def objective(alpha0: float = 1.0, alpha1: float = 0.75, alpha2: float = 0.1, **options: object) -> SoftPseudoLabel:
    made = SoftPseudoLabel(alpha0, alpha1, alpha2, NO_RAMP, **options)
    made.begin_round(0)
    return made


@pytest.mark.parametrize(("alpha0", "alpha1"), [(1.0, 0.75), (0.3, 0.9), (2.0, 0.1)])
def test_lemma_1_is_the_minimiser(alpha0: float, alpha1: float) -> None:
    """v minimises -alpha0 <v, log f> + alpha1 KL(v || uniform) over the simplex."""
    f = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
    ours = objective(alpha0, alpha1).label(f.log()[None])[0].numpy()

    def cost(v: np.ndarray) -> float:
        return float(-alpha0 * (v * f.log().numpy()).sum() + alpha1 * (v * np.log(v * 4)).sum())

    simplex = {"type": "eq", "fun": lambda v: v.sum() - 1}
    solved = minimize(cost, np.full(4, 0.25), bounds=[(1e-9, 1)] * 4, constraints=simplex, tol=1e-14)
    np.testing.assert_allclose(ours, solved.x, atol=1e-5)
    assert cost(ours) <= solved.fun + 1e-12


def test_lemma_1_by_hand() -> None:
    """f = (0.8, 0.2), alpha0/alpha1 = 2: v = (0.64, 0.04)/0.68."""
    v = objective(1.0, 0.5).label(torch.tensor([[0.8, 0.2]], dtype=torch.float64).log())
    np.testing.assert_allclose(v[0].numpy(), [0.64 / 0.68, 0.04 / 0.68], atol=1e-15)


def test_a_vanishing_alpha1_gives_the_hard_label_without_overflow() -> None:
    logits = torch.tensor([[3.0, 2.9, -1000.0], [-900.0, 0.0, 0.5]])
    hard = objective(alpha1=0.0).label(logits)
    assert hard.tolist() == [[1, 0, 0], [0, 0, 1]]
    torch.testing.assert_close(objective(alpha1=1e-6).label(logits), hard)
    assert objective(alpha1=1e-30).label(logits).isfinite().all()


def test_the_exponent_during_the_ramp() -> None:
    """final: alpha0/alpha1 of the end; current: the ramped one, which flattens the labels."""
    logits = torch.tensor([[2.0, 0.0]], dtype=torch.float64)
    made = [SoftPseudoLabel(1.0, 0.5, 0.0, Ramp(10), exponent) for exponent in ("final", "current")]
    for one in made:
        one.begin_round(5)
        assert one.alpha0 == 0.5
    final, current = (one.label(logits)[0, 0].item() for one in made)
    assert final == pytest.approx(1 / (1 + math.exp(-4)), abs=1e-12)
    assert current == pytest.approx(1 / (1 + math.exp(-2)), abs=1e-12)


def test_the_first_round_of_a_ramp_from_a_tenth_is_that_of_a_constant_tenth() -> None:
    """So one option, ramp.start, searches alpha0 of round 1."""
    logits = torch.tensor([[2.0, 0.0, -1.0]], dtype=torch.float64)
    ramped = SoftPseudoLabel(1.0, 0.75, 0.1, Ramp(50, start=0.1), "current")
    ramped.begin_round(0)
    constant = objective(alpha0=0.1)
    assert ramped.alpha0 == constant.alpha0 == 0.1
    assert torch.equal(ramped.label(logits), constant.label(logits))


def test_ramps() -> None:
    assert [Ramp(50)(epoch) for epoch in (0, 25, 50, 99)] == [0, 0.5, 1, 1]
    assert Ramp(50, "exp")(0) == pytest.approx(math.exp(-5))
    assert Ramp(50, "exp")(25) == pytest.approx(math.exp(-1.25))
    assert Ramp(50, "none")(0) == 1
    assert [Ramp(50, start=0.2)(epoch) for epoch in (0, 25, 50, 99)] == pytest.approx([0.2, 0.6, 1, 1])
    assert Ramp(50, "exp", start=0.5)(25) == pytest.approx(0.5 + 0.5 * math.exp(-1.25))
    assert Ramp(50, "none", start=0.5)(0) == 1


def test_r2_by_hand_and_its_gradient() -> None:
    """KL(f || uniform) of f = (3/4, 1/4) is log 2 - H(f); the gradient in the logits is f_j (log f_j + H)."""
    f = torch.tensor([0.75, 0.25], dtype=torch.float64)
    entropy = -(f * f.log()).sum()
    logits = f.log()[None].clone().requires_grad_()
    r2 = kl_from_uniform(torch.log_softmax(logits, -1)).mean()
    assert r2.item() == pytest.approx(math.log(2) - entropy.item(), abs=1e-15)
    (gradient,) = torch.autograd.grad(r2, logits)
    torch.testing.assert_close(gradient[0], f * (f.log() + entropy))


def test_the_loss_is_the_papers_sum() -> None:
    """labelled CE + alpha0 CE(v) + alpha2 r2 for one labelled and one unlabelled sample, worked by hand."""
    logits = {1.0: [0.0, math.log(3)], 2.0: [math.log(4), 0.0]}  # f = (1/4, 3/4) and (4/5, 1/5)

    def net(x: torch.Tensor) -> torch.Tensor:
        return torch.tensor([logits[value] for value in x.flatten().tolist()], dtype=torch.float64)

    x, u = torch.tensor([[1.0]]), torch.tensor([[2.0]])
    batch = Batch(x, torch.tensor([1]), (u,), torch.tensor([[0.9, 0.1]], dtype=torch.float64))
    loss, parts = objective(alpha0=2.0, alpha2=0.1).loss(net, batch, {})  # type: ignore[arg-type]
    labeled = -math.log(3 / 4)
    unlabeled = -0.9 * math.log(4 / 5) - 0.1 * math.log(1 / 5)
    r2 = 0.8 * math.log(0.8) + 0.2 * math.log(0.2) + math.log(2)
    assert [part.item() for part in parts.values()] == pytest.approx([labeled, unlabeled, r2], abs=1e-15)
    assert loss.item() == pytest.approx(labeled + 2 * unlabeled + 0.1 * r2, abs=1e-15)


def test_the_label_cost_is_alpha1_r1() -> None:
    v = torch.tensor([[0.9, 0.1], [1.0, 0.0]], dtype=torch.float64)
    cost = objective(alpha1=0.5).label_cost(v)
    expected = [0.5 * (math.log(2) + 0.9 * math.log(0.9) + 0.1 * math.log(0.1)), 0.5 * math.log(2)]
    assert cost.tolist() == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize(
    ("option", "value", "valid"),
    [
        ("start", -0.1, "between 0 and 1"),
        ("start", 1.5, "between 0 and 1"),
        ("by", "batch", "one of round, epoch, step"),
    ],
)
def test_a_bad_ramp_is_refused(option: str, value: object, valid: str) -> None:
    with pytest.raises(UserError, match=rf"ramp\.{option}={value}: must be {valid}"):
        Ramp(50, **{option: value})


@pytest.mark.parametrize(("by", "second"), [("epoch", [0, 0, 0, 0.5, 0.5]), ("step", [0, 0.2, 0.4, 0.6, 0.8])])
def test_alpha0_of_each_step(by: str, second: list[float]) -> None:
    """Weight 4, ramp over 8 epochs, E = 2: in round 1 alpha0 grows from 1 to 2, for 5 steps or for 2."""
    local = LocalSGD(0.1, 2, 4, 4)
    plan = make_plan([Split(np.arange(1), np.arange(1, 1 + n), (0,)) for n in (10, 4)], local)
    assert plan.tau == [5, 2]
    batcher = Batcher(plan, local, SoftPseudoLabel(4.0, 1, 0, Ramp(8, by=by)), {"weak": Augment(), "clean": Augment()})
    noise = batcher.choose(Draws(0, 1, torch.tensor([0, 1])), 5).noise
    torch.testing.assert_close(noise["alpha0"][0], 1 + torch.tensor(second, dtype=torch.float64))
    assert noise["alpha0"][1, :2].tolist() == [1, 1.5]
    assert "alpha0" not in batcher.choose(Draws(0, 4, torch.tensor([0, 1])), 5).noise  # the ramp is over
