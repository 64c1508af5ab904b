"""What differs between runs: in the configuration and in the result."""

from pathlib import Path
from typing import Any

from fedshvr.errors import check
from fedshvr.reporting.collect import Damaged, flat, read_summary

RESULTS: tuple[str, ...] = (
    "status",
    "test_acc",
    "val_acc",
    "test_acc_at_best_val",
    "rounds",
    "seconds",
    "seconds_per_round",
)
RESULTS += ("client_acc_mean", "client_acc_worst10", "client_acc_std", "bytes_up", "bytes_down")
RESULTS += ("peak_rss_mb", "partition_sha256", "theta_sha256")
LEFT_OUT = ("paths.", "logger.")


def compare(folders: list[str]) -> str:
    """Two or more run folders side by side; only lines that differ."""
    check(len(folders) >= 2, f"compare={folders}: name at least two run folders, as in compare=[run1,run2]")
    summaries = [load(Path(folder)) for folder in folders]
    names = [f"[{i + 1}]" for i in range(len(folders))]
    lines = [f"{name} {folder}" for name, folder in zip(names, folders, strict=True)]
    configs = [flat(summary.get("config", {})) for summary in summaries]
    keys = [k for k in dict.fromkeys(k for c in configs for k in c) if not k.startswith(LEFT_OUT) and k != "logger"]
    lines += block("configuration", names, [(k, [c.get(k, "-") for c in configs]) for k in keys])
    versions = [s.get("versions") or {} for s in summaries]
    lines += block("versions", names, [(k, [v.get(k, "-") for v in versions]) for k in versions[0]])
    lines += block("result", names, [(k, [s.get(k, "-") for s in summaries]) for k in RESULTS])
    return "\n".join(lines)


def load(folder: Path) -> dict[str, Any]:
    check((folder / "summary.json").is_file(), f"compare={folder}: there is no summary.json in this folder")
    try:
        return read_summary(folder)
    except Damaged as error:
        check(False, f"compare={folder}: {error}")
        raise AssertionError from None


def block(title: str, names: list[str], rows: list[tuple[str, list[Any]]]) -> list[str]:
    differing = [(key, [short(v) for v in values]) for key, values in rows if len(set(map(str, values))) > 1]
    if not differing:
        return ["", f"{title}: the same"]
    table = [(title, names), *differing]
    widths = [max(len(row[0]) for row in table), *(max(len(row[1][i]) for row in table) for i in range(len(names)))]
    return ["", *("  ".join(c.ljust(w) for c, w in zip((k, *v), widths, strict=True)).rstrip() for k, v in table)]


def short(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 40 else text[:37] + "..."
