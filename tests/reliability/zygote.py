"""Run the command line in a process per request, each forked from this one, which has done the imports.

Reads requests from standard input, one JSON object per line, and answers with the exit code.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from fairrf_lightning.cli import main
from tests.reliability import killed_run, slow_steps

TRAIN = Path(__file__).resolve().parents[2] / "train.py"


def serve() -> None:
    """Answer requests until standard input ends."""
    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            run(request)
        if request["moment"].startswith("signal:"):
            send_in_training(pid, int(request["moment"].partition(":")[2]), Path(request["output"]))
        _, status = os.waitpid(pid, 0)
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # the other ranks of a killed run
        print(os.waitstatus_to_exitcode(status), flush=True)  # noqa: T201 - the answer


def send_in_training(pid: int, number: int, output: Path) -> None:
    """Send a signal to a process once it trains; it may end before."""
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if output.is_file() and "training" in output.read_text(encoding="utf-8"):
            os.kill(pid, number)
            return
        time.sleep(0.02)


def run(request: dict[str, Any]) -> NoReturn:
    """Run a command in this process, as ``python train.py`` would, and end it."""
    os.setsid()
    os.chdir(request["folder"])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.update(request["env"])
    tempfile.tempdir = None  # TMPDIR may be another one
    code: Any = 0
    try:
        if request["moment"].startswith("signal:"):
            slow_steps.arrange()
            sys.argv = [str(TRAIN), *request["args"]]
        elif request["moment"]:
            # Other ranks are started by this command line.
            sys.argv = [str(killed_run.__file__), request["moment"], *request["args"]]
            killed_run.arrange(request["moment"])
        else:
            sys.argv = [str(TRAIN), *request["args"]]
        main(request["args"])
    except SystemExit as error:
        code = error.code or 0
    except BaseException:  # noqa: BLE001 - as the interpreter does
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    serve()
