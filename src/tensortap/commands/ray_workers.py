"""Workers of a Ray cluster that is up already: Ray is handed an environment in which they join a job.

On one machine `tensortap run` needs none of this, because Ray starts its processes with the environment of the program.
"""

from __future__ import annotations

import os
import secrets
import sys
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from tensortap.launch.job import JOB, PYTHON, SITE, Job, joined

__all__ = ["join_here", "ray_runtime_env"]


def ray_runtime_env(directory: str | os.PathLike[str], *options: str) -> dict[str, Any]:
    """An environment for `ray.init(runtime_env=...)` in which every worker that uses a framework is watched.

    Args:
        directory: the session directory, on the machine of each worker; one on a shared disk is that of all.
        options: of `tensortap run`, such as `"--stream", "head:6064/job-17"`.

    Raises:
        UsageError: these are no options of `tensortap run`.

    >>> sorted(ray_runtime_env("/shared/job-17", "--stream", "head:6064/job-17"))
    ['env_vars', 'worker_process_setup_hook']
    """
    from tensortap.commands.run_options import options_of, words_of

    root = os.path.abspath(directory)
    name = f"{os.path.basename(root)}-{secrets.token_hex(4)}"
    job = Job(root, name, words_of(options_of(options)), "the workers of Ray", [], stream=name)
    return {"env_vars": {JOB: job.text}, "worker_process_setup_hook": f"{__name__}.join_here"}


def join_here() -> None:
    """Join the job that the environment tells of; called by Ray in each worker, when it begins."""
    job = Job.of(os.environ)
    if job is None or os.getpid() in joined(Path(job.root)):
        return
    from tensortap.commands.run_child import begin
    from tensortap.frameworks import FRAMEWORKS
    from tensortap.store.layout import write_marker

    os.environ[JOB] = replace(job, python=PYTHON).text  # the same program, perhaps installed elsewhere
    root = Path(job.root)
    root.mkdir(parents=True, exist_ok=True)
    write_marker(root)
    if any(framework.module in sys.modules for framework in FRAMEWORKS):
        begin()
    else:
        _wait_for_a_framework()


def _wait_for_a_framework() -> None:
    spec = spec_from_file_location("tensortap_site", f"{SITE}/sitecustomize.py")
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))
