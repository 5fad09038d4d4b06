"""`tensortap build`, as a user types it, on a source that compiles in a moment."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tensortap.commands import main
from tensortap.engines import building, registry
from tensortap.engines.torch.observer import build
from tensortap.errors import NativeBuildError
from tensortap.frameworks import FRAMEWORKS

pytestmark = pytest.mark.skipif(
    not any(shutil.which(name) for name in building.COMPILERS), reason="there is no C++ compiler"
)


@pytest.fixture(autouse=True)
def source(tmp_path, monkeypatch):
    """A small source, a cache and a temporary directory of the test's own."""
    path = tmp_path / "tiny.cpp"
    path.write_text('extern "C" __attribute__((visibility("default"))) int answer() { return 42; }\n')
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(build, "SOURCE", path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("TENSORTAP_CACHE_DIR", str(tmp_path / "cache"))
    return path


def run(capsys, *arguments):
    code = main(["build", "torch", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_build_prints_the_path_and_how_to_use_it_in_an_image(source, tmp_path, capsys):
    code, out, err = run(capsys)
    assert code == 0
    assert out == f"{build.library_path(source)}\n"
    assert Path(out.strip()).is_file()
    assert "Built in " in err
    assert f"TENSORTAP_CACHE_DIR={tmp_path / 'cache'}" in err


def test_what_is_there_is_not_built_again_except_by_force(source, capsys):
    run(capsys)
    built = build.library_path(source).stat().st_mtime_ns
    assert "It was there already." in run(capsys)[2]
    assert build.library_path(source).stat().st_mtime_ns == built
    assert "Built in " in run(capsys, "--force")[2]
    assert build.library_path(source).stat().st_mtime_ns > built


def test_check_never_builds_and_says_why(source, tmp_path, capsys):
    code, out, err = run(capsys, "--check")
    assert (code, out) == (1, "")
    assert "has not been built for torch" in err
    assert "Build it with `tensortap build`." in err
    assert not (tmp_path / "cache").exists()

    run(capsys)
    assert run(capsys, "--check") == (0, f"{build.library_path(source)}\n", "note: It was there already.\n")

    build.library_path(source).write_bytes(b"half")
    code, _, err = run(capsys, "--check")
    assert code == 1
    assert "is damaged" in err
    assert "--force" in err


def test_json_is_for_scripts(source, capsys):
    library = str(build.library_path(source))
    code, out, _ = run(capsys, "--check", "--json")
    assert code == 1
    (missing,) = json.loads(out)
    assert (missing["library"], missing["is_built"]) == (library, False)
    assert "has not been built" in missing["reason"]
    (built,) = json.loads(run(capsys, "--json")[1])
    assert built.pop("seconds") > 0
    assert built == {"framework": "torch", "library": library, "is_built": True, "is_new": True}
    assert json.loads(run(capsys, "--json")[1])[0]["is_new"] is False
    assert json.loads(run(capsys, "--clean", "--json")[1]) == {"removed": [os.path.dirname(library)]}


def test_clean_removes_what_was_built_for_any_torch(source, tmp_path, capsys):
    run(capsys)
    old = tmp_path / "cache/native/torch-1.13.1-of-long-ago"
    old.mkdir()
    code, out, err = run(capsys, "--clean")
    assert code == 0
    assert out.splitlines() == sorted([str(old), str(build.library_path(source).parent)])
    assert "Removed 2 directories." in err
    assert run(capsys, "--clean") == (0, "", "note: Removed 0 directories.\n")
    assert run(capsys, "--check")[0] == 1


def test_what_cannot_be_built_is_explained_without_a_traceback(source, capsys, monkeypatch):
    source.write_text("int answer() { return undeclared_name; }\n")
    code, out, err = run(capsys)
    assert (code, out) == (2, "")
    assert "tensortap build: The native interceptor could not be compiled" in err
    assert "undeclared_name" in err
    assert "build.log" in err
    monkeypatch.setenv("PATH", "")
    code, _, err = run(capsys)
    assert code == 2
    assert "tensortap build: There is no C++ compiler here" in err
    assert "has not been built for torch" in err
    assert "Traceback" not in err


def test_one_thing_at_a_time(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["build", "--check", "--clean"])
    assert stopped.value.code == 2
    assert "not allowed with" in capsys.readouterr().err


def test_help_teaches(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["build", "--help"])
    assert stopped.value.code == 0
    assert "TENSORTAP_CACHE_DIR=/opt/tensortap tensortap build" in capsys.readouterr().out


def in_a_process_without(modules, *arguments):
    hide = "; ".join(f"sys.modules[{module!r}] = None" for module in modules)
    program = (
        f"import sys; {hide}\nfrom tensortap.commands import main\nsys.exit(main({['build', *arguments]!r}))"
    )
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)


@pytest.mark.parametrize("named", [(), ("torch",)])
def test_without_a_framework_the_error_says_what_to_install(named):
    done = in_a_process_without([each.module for each in FRAMEWORKS], *named)
    assert done.returncode == 2
    assert done.stderr.startswith("tensortap build: ")
    assert "pip install 'tensortap[torch]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_all_frameworks_that_are_installed_are_built_for(source, tmp_path, capsys, monkeypatch):
    class Other:
        """An engine with a native part of its own."""

        SOURCE = source

        def find_built(self, source):
            raise NativeBuildError("The other one is not there.", "Build it.")

        def library_path(self, source):
            return tmp_path / "other.so"

    real = registry.load_engine

    class Engine:
        def builder(self):
            return Other()

    def load(framework):
        return real(framework) if framework.name == "torch" else Engine()

    monkeypatch.setattr(registry, "load_engine", load)
    monkeypatch.setattr("tensortap.commands.build.missing_packages", lambda name: [])
    run(capsys)
    assert main(["build", "--check", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [each["framework"] for each in found] == [each.name for each in FRAMEWORKS]
    assert [each["is_built"] for each in found] == [each.name == "torch" for each in FRAMEWORKS]


def test_a_framework_that_there_is_no_engine_for(capsys):
    assert main(["build", "tensorflw"]) == 2
    assert "tensorflow" in capsys.readouterr().err
