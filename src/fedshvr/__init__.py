"""Fed-SHVR: federated semi-supervised learning with class distribution mismatch."""

from fedshvr import torchvision_compat

__version__ = "0.1.0"

torchvision_compat.apply()
