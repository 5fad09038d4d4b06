"""Executed by every Python that starts below `tensortap run`, which has put this folder in front of PYTHONPATH.

It waits for the program to import a framework, and costs next to nothing until then. Then it has the process watched
like the one above it. It imports nothing by itself, and is written so that any Python can read it: most processes
that come here do not train. Whatever goes wrong, the process goes on as if nobody had asked.
"""

import os
import sys


class _Frameworks(object):  # noqa: UP004
    """Among the finders of modules: notices the import of a framework, and is gone then."""

    def __init__(self, names):
        self.names = names

    def find_spec(self, name, path=None, target=None):
        if name not in self.names:
            return None
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        try:
            from tensortap.commands.run_child import begin

            begin()
        except Exception:
            pass  # the process above notices that this one is not watched
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            spec = None if find is None else find(name, path, target)
            if spec is not None:
                return spec
        return None


def _step_aside():
    """Leave the place to a module of this name that the program, or the system, has."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [each for each in sys.path if os.path.abspath(each or os.curdir) != here]
    ours = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # noqa: F401
    except ImportError as error:
        if getattr(error, "name", "sitecustomize") != "sitecustomize":
            raise
    finally:
        sys.modules.setdefault("sitecustomize", ours)


def _wait_for_a_framework():
    job = os.environ.get("TENSORTAP_JOB", "")
    mine = '"python": "%d.%d %s"' % (sys.version_info[0], sys.version_info[1], sys.prefix)  # noqa: UP031
    if mine in job:  # another Python cannot load what this one has
        sys.meta_path.insert(0, _Frameworks(job.split('"frameworks": "')[1].split('"')[0].split()))


_wait_for_a_framework()
if __name__ == "sitecustomize":
    _step_aside()
