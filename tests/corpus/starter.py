"""Starts programs under `tensortap run`, each in a process of its own that need not import PyTorch again.

Reads requests from standard input, one JSON object a line, and answers each when the program is over.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import traceback


def watched(request):
    """In a forked process: what `tensortap run` does, to the end of the process."""
    output = os.open(request["log"], os.O_CREAT | os.O_WRONLY)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(os.path.dirname(request["program"]))
    os.environ["TENSORTAP_INTERCEPTOR"] = request["interceptor"]
    from tensortap.commands import main

    try:
        code = main(["run", "-o", request["root"], *request.get("options", ()), request["program"]])
    except SystemExit as error:
        code = error.code
    except BaseException:
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(int(code or 0))


def serve():
    import torch
    import torch._dynamo  # what making an optimizer imports

    torch.set_num_threads(1)
    import tensortap.analyze.session
    import tensortap.commands.run
    import tensortap.engines.torch.follow  # noqa: F401

    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            watched(request)
        _, status = os.waitpid(child, 0)
        print(json.dumps({"status": os.waitstatus_to_exitcode(status)}), flush=True)


if __name__ == "__main__":
    serve()
