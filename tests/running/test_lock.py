"""One run, one folder."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from fedshvr.errors import UserError
from fedshvr.running.lock import locked

HOLD = (
    "import sys, time; sys.path.insert(0, sys.argv[2]); from pathlib import Path\n"
    "from fedshvr.running.lock import locked\n"
    "with locked(Path(sys.argv[1])):\n    print('held', flush=True); time.sleep(60)\n"
)


@pytest.mark.fault("a process killed")
def test_the_second_is_refused_by_name_and_the_lock_of_a_killed_one_is_free(tmp_path: Path) -> None:
    source = str(Path(__file__).resolve().parents[2] / "src")
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path), source], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        refusal = f"process {holder.pid} on {socket.gethostname()} is at work in it"
        with pytest.raises(UserError, match=refusal), locked(tmp_path):
            pass
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    with locked(tmp_path):
        assert (tmp_path / ".lock").read_text() == f"process {os.getpid()} on {socket.gethostname()}\n"


def test_it_is_let_go_of_at_the_end(tmp_path: Path) -> None:
    for _ in range(2):
        with locked(tmp_path / "new"):
            pass
