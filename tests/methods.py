"""Every objective with options that suit the tiny federation."""

from collections.abc import Callable

from fedshvr.algorithms.objectives.base import Objective
from fedshvr.algorithms.objectives.ds3l import DS3L
from fedshvr.algorithms.objectives.fedmatch import FedMatch
from fedshvr.algorithms.objectives.fedsem import FedSem
from fedshvr.algorithms.objectives.fixmatch import FixMatch
from fedshvr.algorithms.objectives.hard_pseudo_label import HardPseudoLabel
from fedshvr.algorithms.objectives.label_propagation import LabelPropagation
from fedshvr.algorithms.objectives.ladder import Ladder
from fedshvr.algorithms.objectives.manifold import Manifold
from fedshvr.algorithms.objectives.mean_teacher import MeanTeacher
from fedshvr.algorithms.objectives.mixmatch import MixMatch
from fedshvr.algorithms.objectives.pi_model import PiModel
from fedshvr.algorithms.objectives.ramp import Ramp
from fedshvr.algorithms.objectives.s3vm import S3VM
from fedshvr.algorithms.objectives.self_training import SelfTraining
from fedshvr.algorithms.objectives.soft_pseudo_label import SoftPseudoLabel
from fedshvr.algorithms.objectives.supervised import Supervised
from fedshvr.algorithms.objectives.vat import VAT

RAMP = Ramp(2)
STEPWISE = Ramp(3, start=0.2, by="step")
MADE: dict[str, Callable[[], Objective]] = {
    "supervised": Supervised,
    "hard_round": lambda: HardPseudoLabel(1.0, RAMP, "round"),
    "hard_step": lambda: HardPseudoLabel(1.0, RAMP, "step"),
    "hard_mean4": lambda: HardPseudoLabel(1.0, RAMP, "step", "mean4"),
    "soft": lambda: SoftPseudoLabel(1.0, 0.75, 0.1, RAMP),
    "soft_clean": lambda: SoftPseudoLabel(1.0, 0.75, 0.1, RAMP, label_view="clean"),
    "soft_mean4": lambda: SoftPseudoLabel(1.0, 0.75, 0.1, RAMP, label_view="mean4"),
    "hard_epoch": lambda: HardPseudoLabel(1.0, RAMP, "epoch", "weak"),
    "soft_epoch": lambda: SoftPseudoLabel(1.0, 0.75, 0.1, RAMP, relabel="epoch", label_view="mean4"),
    "soft_step": lambda: SoftPseudoLabel(1.0, 0.75, 0.1, RAMP, relabel="step", label_view="weak"),
    "soft_own": lambda: SoftPseudoLabel(1.0, 0.75, 0.1, RAMP, relabel="step", label_view="own"),
    "soft_stepwise": lambda: SoftPseudoLabel(1.0, 0.75, 0.1, STEPWISE, "current", "step"),
    "hard_stepwise": lambda: HardPseudoLabel(1.0, STEPWISE),
    "teacher_client": lambda: MeanTeacher(5.0, 0.9, RAMP, "client"),
    "teacher_global": lambda: MeanTeacher(5.0, 0.9, RAMP, "global"),
    "pi_model": lambda: PiModel(5.0, RAMP),
    "vat": lambda: VAT(1.0, 2.0, RAMP, entropy=0.1),
    "mixmatch": lambda: MixMatch(5.0, 0.5, 0.75, RAMP),
    "fixmatch": lambda: FixMatch(1.0, 0.4, RAMP),
    "fedsem": lambda: FedSem(1, 1),
    "ds3l": lambda: DS3L(10.0, 1e-2, 1e-2, RAMP),
    "ds3l_clean": lambda: DS3L(10.0, 1e-2, 1e-2, RAMP, "clean"),
    "ds3l_stepwise": lambda: DS3L(10.0, 1e-2, 1e-2, STEPWISE),
    "vat_stepwise": lambda: VAT(1.0, 2.0, STEPWISE),
    "mixmatch_stepwise": lambda: MixMatch(5.0, 0.5, 0.75, STEPWISE),
    "ds3l_mean4": lambda: DS3L(10.0, 1e-2, 1e-2, RAMP, "mean4"),
    "fedmatch": lambda: FedMatch(1.0, 1.0, 1.0, 1e-4, 0.4, helpers=2, helpers_every=2, zero_below=0.01),
    "manifold": lambda: Manifold(10.0, 2, RAMP),
    "s3vm": lambda: S3VM(1.0, 0.5, RAMP),
    "self_training": lambda: SelfTraining(1.0, 0.4, RAMP),
    "self_training_keep": lambda: SelfTraining(1.0, 0.4, RAMP, keep=True),
    "label_propagation": lambda: LabelPropagation(1.0, 0.9, 3, 5, 10, RAMP),
    "ladder": lambda: Ladder(1.0, 0.3, 0.5, [10.0, 1.0, 0.1], 1.0, RAMP),
}
STACKED = [name for name in MADE if name != "ladder"]  # it has batch norm
