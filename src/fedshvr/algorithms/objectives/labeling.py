"""Pseudo-labels of an objective: whether, when and from which view they are made."""

import torch
from torch import Tensor

from fedshvr.algorithms.objectives.batch import Batch, Network
from fedshvr.algorithms.objectives.formulas import mean_logits, mean_prediction
from fedshvr.compute.vector import Forward, together
from fedshvr.errors import check

LABEL_VIEWS: dict[str, tuple[str, ...]] = {"clean": ("clean",), "weak": ("weak",), "mean4": ("weak",) * 4, "own": ()}
RELABEL = ("round", "epoch", "step")


class Labeling:
    """The part of an objective that concerns its pseudo-labels; as it stands there are none."""

    views: tuple[str, ...] = ("weak",)  # "clean", "weak" or "strong", one per entry of Batch.u
    label_views: tuple[str, ...] = ("clean",)  # the views whose mean prediction `label` is given; none: that of `views`
    makes_labels = False  # does it have `label`?
    pseudo_labels = False  # does `label` make v at the start of each round?
    labels_each_epoch = False  # ... and from theta_k at the start of the client's later epochs of the round?
    in_one_pass = False  # are the labels of a step made by the pass that learns?
    labels_now = True  # ... or does it keep the labels of an earlier round this time?
    spread_samples = 0  # if `spread` makes them: the most unlabelled samples of a client that it takes at once
    label_everyone = False  # are the labels made for all clients, not only for those that take part?

    def set_labeling(self, relabel: str, label_view: str) -> None:
        """For methods with pseudo-labels: when they are made, and from which view.

        round: of all the client's samples, from theta; epoch: the same, and again from theta_k at the start of each
        later epoch of the round; step: of the samples of the batch, from theta_k.
        clean: the image as it is; weak: one augmented view, drawn anew for each labelling; mean4: the mean prediction
        over four of them; own: the view that is learned, which takes no pass of its own (with relabel=step).
        """
        choices = (("relabel", relabel, RELABEL), ("label_view", label_view, tuple(LABEL_VIEWS)))
        for name, value, valid in choices:
            check(value in valid, f"algorithm.objective.{name}={value}: must be one of {', '.join(valid)}")
        check(
            label_view != "own" or relabel == "step",
            f"algorithm.objective.label_view=own: there is such a view only with relabel=step, not {relabel}",
        )
        self.makes_labels = True
        self.label_views, self.pseudo_labels = LABEL_VIEWS[label_view], relabel != "step"
        self.labels_each_epoch = relabel == "epoch"
        self.views = ("weak",) if self.pseudo_labels else ("weak", *self.label_views)

    def label_in_one_pass(self, one_view: bool) -> None:
        """The network that labels is the one that learns, unit by unit; with one view all images are alike."""
        if self.makes_labels and not self.pseudo_labels:
            self.in_one_pass, self.views = True, ("weak",) if one_view else self.views

    def label(self, logits: Tensor) -> Tensor:
        """Pseudo-labels v of the images with these logits."""
        raise AssertionError("only asked of objectives with pseudo-labels")

    def spread(self, net: Forward, x: Tensor, y: Tensor, u: Tensor) -> Tensor:
        """Pseudo-labels of the images u of a client with the labelled images x, if spread_samples."""
        raise NotImplementedError

    def revise(self, v: Tensor, before: Tensor) -> Tensor:
        """The labels of a round, from those just made and those before; a row of zeros is no label."""
        return v

    def look(self, net: Network, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Logits of the labelled and of the unlabelled images that are learned, and v of the latter."""
        if not self.in_one_pass:
            logits_x, logits_u = together(net, batch.x, batch.u[0])
            return logits_x, logits_u, self.targets(net, batch)
        logits_x, logits_u, *looks = together(net, batch.x, batch.u[0], aside=batch.u[1:])
        with torch.no_grad():
            return logits_x, logits_u, self.label(mean_prediction(looks or [logits_u]))

    def targets(self, net: Network, batch: Batch) -> Tensor:
        """v of the batch: from the start of the round or epoch, or made now from the client's current model."""
        if self.pseudo_labels:
            return batch.v
        with torch.no_grad(), net.no_masks():
            return self.label(mean_logits(net.untracked, batch.u[1:] or batch.u))

    def label_cost(self, v: Tensor) -> Tensor:
        """The part of F that depends on v alone, per sample."""
        return v.new_zeros(len(v))
