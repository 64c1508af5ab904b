"""Mean Teacher (Tarvainen & Valpola 2017): agree with the moving average of yourself."""

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from fedshvr.algorithms.objectives.base import Objective
from fedshvr.algorithms.objectives.batch import Batch, Network, Parts, State
from fedshvr.algorithms.objectives.formulas import weighted
from fedshvr.algorithms.objectives.ramp import Ramp
from fedshvr.compute.stacked import cross_entropy
from fedshvr.compute.vector import together
from fedshvr.errors import check


class MeanTeacher(Objective):
    """CE(L_k) + w(t) MSE(f_theta(u'), f_teacher(u'')), teacher <- a teacher + (1-a) theta, a = min(1-1/(t+1), decay).

    t counts the client's steps, this one included, so the teacher is at first the plain mean of theta_0 .. theta_t.
    u' and u'' are two augmented views; no gradient through the teacher. The teacher is the client's own over all its
    rounds, or starts each round from the global model.
    Otherwise than published, the labelled images are not in the consistency term, CE is the mean over them alone (the
    public code divides it by the whole batch), and the teachers, being the clients', are not what is tested: that is
    theta, or with evaluate=ema its average over the rounds.
    """

    views = ("weak", "weak")
    memory = ("teacher",)
    parts = ("labeled", "unlabeled")
    TEACHERS = ("client", "global")

    def __init__(self, weight: float, decay: float, ramp: Ramp, teacher: str = "client") -> None:
        super().__init__(weight, ramp)
        check(0 <= decay < 1, f"algorithm.objective.decay={decay}: must be at least 0 and below 1")
        check(
            teacher in self.TEACHERS,
            f"algorithm.objective.teacher={teacher}: must be one of {', '.join(self.TEACHERS)}",
        )
        self.decay, self.teacher = decay, teacher

    def begin_client(self, state: State, theta: Tensor, done: Tensor) -> None:
        restart = torch.ones_like(done, dtype=torch.bool) if self.teacher == "global" else done == 0
        state["teacher"].copy_(torch.where(restart[..., None], theta, state["teacher"]))

    def loss(self, net: Network, batch: Batch, state: State) -> tuple[Tensor, Parts]:
        student_view, teacher_view = batch.u
        logits_x, logits_u = together(net, batch.x, student_view)
        target = net.at(state["teacher"])(teacher_view).detach().softmax(-1)
        return weighted(cross_entropy(logits_x, batch.y), self.alpha0, mse_loss(logits_u.softmax(-1), target))

    def after_step(self, state: State, theta_k: Tensor, done: Tensor) -> None:
        a = (1 - 1 / (done + 2)).clamp_max(self.decay).to(theta_k.dtype)
        state["teacher"].lerp_(theta_k, (1 - a)[..., None])
