"""Run the command line in a process per request, each forked from this one, which has done the imports.

Reads requests from standard input, one JSON object per line, and answers with the exit code.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from fairrf_lightning.cli import main
from tests.reliability import killed_run

TRAIN = Path(__file__).resolve().parents[2] / "train.py"


def serve() -> None:
    """Answer requests until standard input ends."""
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            run(json.loads(line))
        _, status = os.waitpid(pid, 0)
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # the other ranks of a killed run
        print(os.waitstatus_to_exitcode(status), flush=True)  # noqa: T201 - the answer


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
        if request["moment"]:
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
