"""What JAX's own means find of programs with a bug: python benchmarks/jax_plants.py [--only NAME ...]

Every program of tests/jax_engine/planted.py is executed under `jax_debug_nans`, under that and `jax_debug_infs`, with
`checkify` put around every function that it compiles (all checks, as one would by hand; without changing the program
there is no way to). A row says what was raised and whether the message or the stack names the line of the bug, as
tensortap does for all of them. Each has a process of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import traceback
from pathlib import Path

ROOT = Path(__file__).parents[1]
WAYS = ("debug_nans", "debug_nans_infs", "checkify")


def execute(name, way):
    """Execute one program; what it said."""
    sys.path.insert(0, str(ROOT))
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
    import jax

    from tests.jax_engine import planted

    looking = contextlib.ExitStack()
    if way == "checkify":
        put_checkify_around(jax)
    else:
        # Both: what is said to all threads by `update` alone is forgotten by some calls after the first (jax 0.10.2).
        jax.config.update("jax_debug_nans", True)
        jax.config.update("jax_debug_infs", way == "debug_nans_infs")
        looking.enter_context(jax.debug_nans(True))
        looking.enter_context(jax.debug_infs(way == "debug_nans_infs"))
    lines = Path(planted.__file__).read_text().splitlines()
    caught: list[BaseException] = []
    import threading

    threading.excepthook = lambda told: caught.append(told.exc_value)
    with contextlib.redirect_stdout(sys.stderr), looking:
        try:
            planted.PLANTS[name].program()
        except Exception as error:
            caught.append(error)
    if not caught:
        return {"found": False, "line": False, "text": ""}
    error = caught[0]
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    # Anywhere in what is printed, causes and all: who looks for the line would find it there.
    told = "".join(traceback.format_exception(error))
    bugs = [number for number, line in enumerate(lines, 1) if line.rstrip().endswith("# BUG")]
    says = any(f'planted.py", line {number},' in told or f"planted.py:{number}" in told for number in bugs)
    is_nan = (
        isinstance(error, FloatingPointError)
        or "nan generated" in str(error)
        or "invalid value" in str(error)
    )
    is_found = is_nan or "division by zero" in str(error) or "out-of-bounds" in str(error)
    return {"found": is_found, "line": is_found and says, "text": text}


def put_checkify_around(jax):
    """Have `jax.jit` compile checked functions, whose errors are thrown after each call."""
    from jax.experimental import checkify

    original = jax.jit

    def jit(function=None, **options):
        if function is None:
            return lambda function: jit(function, **options)
        checked = original(checkify.checkify(function, errors=checkify.all_checks), **options)

        def call(*args, **kwargs):
            error, results = checked(*args, **kwargs)
            error.throw()
            return results

        return call

    jax.jit = jit


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--execute", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.execute:
        print(json.dumps(execute(*options.execute)))
        return
    sys.path.insert(0, str(ROOT))
    from tests.jax_engine.planted import PLANTS

    names = options.only or list(PLANTS)
    sums = {way: [0, 0] for way in WAYS}
    print("| program | " + " | ".join(WAYS) + " |")
    print("|---|" + "---|" * len(WAYS))
    for name in names:
        cells = []
        for way in WAYS:
            command = [sys.executable, __file__, "--execute", name, way]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
            try:
                found = json.loads(done.stdout.splitlines()[-1])
            except (IndexError, ValueError):
                cells.append("ended: " + (done.stderr.strip().splitlines() or ["?"])[-1][:60])
                continue
            sums[way][0] += found["found"]
            sums[way][1] += found["line"]
            if found["line"]:
                cells.append("line")
            elif found["found"]:
                cells.append("raised, another line")
            else:
                cells.append(f"refused: {found['text'][:50]}" if found["text"] else "nothing")
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
    print(
        f"| of {len(names)}: found, with the line | "
        + " | ".join(f"{a}, {b}" for a, b in sums.values())
        + " |"
    )


if __name__ == "__main__":
    main()
