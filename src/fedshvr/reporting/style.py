"""One name, colour and marker per algorithm, in every figure and on the page."""

from zlib import crc32

# Okabe and Ito's palette without black (invisible on a dark page); the grey is theirs too, darkened
COLORS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#7F7F7F")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<")

NAMES = {
    "fed_shvr": "Fed-SHVR",
    "fed_mt": "Fed-MT",
    "fed_pseudo": "Fed-Pseudo",
    "fedavg": "FedAvg",
    "fed_sh": "Fed-SH",
    "fed_svr": "Fed-SVR",
    "fedavg_full": "FedAvg, all labels",
    "fedprox": "FedProx",
    "scaffold": "SCAFFOLD",
    "fednova": "FedNova",
    "vrl_sgd": "VRL-SGD",
    "fed_fixmatch": "Fed-FixMatch",
    "fed_vat": "Fed-VAT",
    "fed_mixmatch": "Fed-MixMatch",
    "fedmatch": "FedMatch",
    "grouping": "Grouping",
    "fed_ladder": "Fed-Ladder",
    "fed_self_training": "Fed-Self-Training",
    "fed_label_propagation": "Fed-LabelProp",
    "fed_manifold": "Fed-Manifold",
    "fed_s3vm": "Fed-S3VM",
    "fed_pi": "Fed-Pi",
    "fed_ds3l": "Fed-DS3L",
    "fedsem": "FedSem",
    "fedavgm": "FedAvgM",
    "fedadam": "FedAdam",
}


def name(algorithm: str) -> str:
    return NAMES.get(algorithm, algorithm)


def _index(algorithm: str) -> int:
    """Those of configs/algorithm in the order above: no two look alike. Others by nothing but their name."""
    names = list(NAMES)
    return names.index(algorithm) if algorithm in names else len(names) + crc32(algorithm.encode())


def color(algorithm: str) -> str:
    return COLORS[_index(algorithm) % len(COLORS)]


def dash(algorithm: str) -> int:
    """Which line style: those whose colour has been given before get another."""
    return _index(algorithm) // len(COLORS) % 4


def marker(algorithm: str) -> str:
    return MARKERS[_index(algorithm) % len(MARKERS)]
