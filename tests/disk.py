"""A small file system of its own for a test, to be filled, made read-only and made larger."""

import subprocess
from pathlib import Path

import pytest


class Disk:
    """A tmpfs at a folder; every file takes whole pages of 4 kB, as on most disks."""

    def __init__(self, folder: Path, kilobytes: int) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        done = call("mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder))
        if done.returncode:
            pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")

    def become(self, *options: str) -> None:
        done = call("mount", "-o", ",".join(("remount", *options)), str(self.folder))
        assert done.returncode == 0, done.stderr

    def end(self) -> None:
        assert call("umount", "-l", str(self.folder)).returncode == 0


def call(*command: str) -> subprocess.CompletedProcess:
    try:
        return subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError as error:
        pytest.skip(f"no file system can be mounted here: {error}")
