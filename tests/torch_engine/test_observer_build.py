"""Building the native interceptor: with a real compiler, on sources small enough to compile in a moment."""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import pickle
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
import torch

from tensortap.engines import building, libraries
from tensortap.engines.torch.observer import build
from tensortap.engines.torch.observer.build import (
    SOURCE,
    NativeBuildError,
    ensure_built,
    find_built,
    library_path,
    remove_all,
)
from tests.patience import patient

REAL_COMPILER = next((path for name in building.COMPILERS if (path := shutil.which(name))), None)

pytestmark = pytest.mark.skipif(REAL_COMPILER is None, reason="there is no C++ compiler")

ANSWER = 'extern "C" __attribute__((visibility("default"))) int answer() { return 42; }\n'

# As a training program that needs the library: it says when it is about to ask, and asks when told to.
PROGRAM = """
import sys
from pathlib import Path
from tensortap.engines.torch.observer.build import ensure_built

print("ready", flush=True)
sys.stdin.readline()
print(ensure_built(Path(sys.argv[1]), force="force" in sys.argv), flush=True)
"""


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache and a temporary directory of the test's own."""
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("TENSORTAP_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))  # for processes that tests start
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    return tmp_path / "cache"


@pytest.fixture
def source(tmp_path):
    (tmp_path / "src").mkdir()
    path = tmp_path / "src" / "tiny.cpp"
    path.write_text(ANSWER)
    return path


@pytest.fixture
def compilations(tmp_path, monkeypatch):
    """A compiler that takes its time and notes every call in a file."""
    calls = tmp_path / "calls"
    calls.touch()
    use_compiler(tmp_path, monkeypatch, f'echo call >> {calls}\nsleep 0.5\nexec {REAL_COMPILER} "$@"')
    return lambda: len(calls.read_text().splitlines())


@pytest.fixture
def endless(tmp_path, monkeypatch):
    """A compiler that never ends; gives its process and the one it started, like a compiler driver's."""
    note = tmp_path / "processes"
    use_compiler(tmp_path, monkeypatch, f"sleep 600 &\necho $$ $! > {note}.new; mv {note}.new {note}; wait")
    yield lambda: [int(number) for number in eventually(note.exists) and note.read_text().split()]
    for number in note.read_text().split() if note.exists() else []:
        if is_alive(int(number)):
            os.kill(int(number), signal.SIGKILL)


def use_compiler(tmp_path, monkeypatch, script):
    path = tmp_path / "compiler"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("CXX", str(path))


def start(source, *arguments, prefix=()):
    """Start a process that will ask for the library when it is told to."""
    return subprocess.Popen(
        [*prefix, sys.executable, "-c", PROGRAM, str(source), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def go(*processes):
    """Let processes ask for the library, all at once."""
    for process in processes:
        assert process.stdout.readline() == "ready\n", process.stderr.read()
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()


def is_alive(process_id):
    try:
        state = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"  # killed, and nobody has asked about it


def eventually(condition, seconds=20):
    deadline = time.monotonic() + patient(seconds)
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return True


def answer(library):
    return ctypes.CDLL(str(library)).answer()


def content(directory):
    return sorted(path.name for path in directory.iterdir())


# What is built, and where it is kept.


def test_the_library_is_built_once_and_found_again(source, cache, compilations, caplog):
    library = ensure_built(source)
    assert library == library_path(source)
    assert library.is_relative_to(cache / "native")
    assert answer(library) == 42
    assert [record.getMessage() for record in caplog.records] == [
        f"Building the native interceptor for torch {torch.__version__} (once per torch version, about 30 s) ..."
    ]
    assert caplog.records[0].name == "tensortap.engine"
    caplog.clear()

    assert ensure_built(source) == find_built(source) == library
    assert compilations() == 1
    assert not caplog.records
    assert content(library.parent) == ["lock", "observer.so"]


def test_it_is_compiled_and_linked_against_torch_and_python(tmp_path):
    source = tmp_path / "linked.cpp"
    source.write_text(
        "#include <Python.h>\n#include <c10/util/thread_name.h>\n"
        'extern "C" __attribute__((visibility("default"))) PyObject* name() {\n'
        "  return PyUnicode_FromString(c10::getThreadName().c_str());\n}\n"
    )
    library = ctypes.PyDLL(str(ensure_built(source)))
    library.name.restype = ctypes.py_object
    assert library.name() == Path("/proc/self/comm").read_text().strip()


def test_the_key_tells_what_the_library_is_for(source):
    key = library_path(source).parent.name
    assert f"torch-{torch.__version__}-{torch.version.git_version[:8]}-cxx11abi" in key
    assert f"cpython-{sys.version_info.major}{sys.version_info.minor}" in key


def test_another_source_header_torch_or_python_has_another_library(source, monkeypatch):
    paths = [library_path(source)]
    source.write_text(ANSWER.replace("42", "43"))
    paths.append(library_path(source))
    (source.parent / "part.h").write_text("// included\n")
    paths.append(library_path(source))
    with monkeypatch.context() as patched:
        patched.setattr(torch, "__version__", "2.12.1")
        paths.append(library_path(source))
    with monkeypatch.context() as patched:
        patched.setattr(torch.version, "git_version", "0" * 40)
        paths.append(library_path(source))
    with monkeypatch.context() as patched:
        patched.setattr(torch, "compiled_with_cxx11_abi", lambda: False)
        paths.append(library_path(source))
    with monkeypatch.context() as patched:
        patched.setattr(building.sysconfig, "get_config_var", lambda name: "cpython-399-loong64")
        paths.append(library_path(source))
    assert len({path.parent for path in paths}) == len(paths)
    assert paths[2] == library_path(source)


def test_a_changed_source_leaves_the_old_library_alone(source):
    old = ensure_built(source)
    source.write_text(ANSWER.replace("42", "43"))
    assert answer(ensure_built(source)) == 43
    assert old.exists()


def test_the_language_standard_is_the_one_of_torch(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.6.0+cu124")
    assert "-std=c++17" in build._flags()
    monkeypatch.setattr(torch, "__version__", "2.14.0a0+git1234567")
    assert "-std=c++20" in build._flags()


def test_where_the_cache_is(source, tmp_path, monkeypatch):
    def root():
        return library_path(source).parents[2]

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert root() == tmp_path / "cache"
    monkeypatch.setenv("TENSORTAP_CACHE_DIR", "~/mine")
    assert root() == tmp_path / "home/mine"
    monkeypatch.delenv("TENSORTAP_CACHE_DIR")
    assert root() == tmp_path / "xdg/tensortap"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # to be ignored, says the specification
    assert root() == tmp_path / "home/.cache/tensortap"
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)  # a user without a home, as some containers have
    assert root() == tmp_path / f"tmp/tensortap-{os.geteuid()}"


def test_paths_may_hold_spaces_and_commas(tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORTAP_CACHE_DIR", str(tmp_path / "my cache, really"))
    source = tmp_path / "tiny source.cpp"
    source.write_text(ANSWER)
    assert answer(ensure_built(source)) == 42


def test_nothing_is_written_where_the_library_is_there(source):
    library = ensure_built(source)
    before = [(path, path.stat().st_mtime_ns) for path in library.parents[2].rglob("*")]
    ensure_built(source)
    assert [(path, path.stat().st_mtime_ns) for path in library.parents[2].rglob("*")] == before


def test_clean_removes_what_was_built_and_nothing_else(source, cache):
    first = ensure_built(source)
    source.write_text(ANSWER.replace("42", "43"))
    second = ensure_built(source)
    (cache / "native" / "of somebody else").mkdir()
    assert remove_all() == sorted([first.parent, second.parent])
    assert content(cache / "native") == ["of somebody else"]
    assert remove_all() == []


# What can be wrong with a machine.


def test_without_a_compiler_the_error_says_what_to_install(source, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(NativeBuildError) as caught:
        ensure_built(source)
    assert "no C++ compiler" in caught.value.reason
    assert "Install g++" in caught.value.fix
    assert f"({library_path(source)} is missing)" in caught.value.detail
    assert str(caught.value) == f"{caught.value.reason} {caught.value.fix}\n{caught.value.detail}"


def test_without_a_compiler_a_library_that_is_there_is_used(source, monkeypatch):
    library = ensure_built(source)
    monkeypatch.setenv("PATH", "")
    assert ensure_built(source) == library


def test_without_a_compiler_the_error_says_why_a_library_that_is_there_is_not_used(source, monkeypatch):
    ensure_built(source).chmod(0o777)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(NativeBuildError, match="no C\\+\\+ compiler") as caught:
        ensure_built(source)
    assert "open to other users" in caught.value.detail


@pytest.mark.parametrize("named", ["no-such-compiler -O3", "g++ 'unclosed"])
def test_a_compiler_that_is_not_there(source, named, monkeypatch):
    monkeypatch.setenv("CXX", named)
    with pytest.raises(NativeBuildError, match=re.escape(f"CXX names ({named!r}) was not found")):
        ensure_built(source)


def test_a_compiler_named_from_the_working_directory(source, tmp_path, compilations, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CXX", "./compiler")
    assert answer(ensure_built(source)) == 42


def test_a_compiler_that_makes_nothing(source, monkeypatch):
    monkeypatch.setenv("CXX", "true")
    with pytest.raises(NativeBuildError, match="made no library"):
        ensure_built(source)


def test_a_compiler_that_does_not_start(source, tmp_path, monkeypatch):
    use_compiler(tmp_path, monkeypatch, "")
    (tmp_path / "compiler").write_text("#!/no/such/shell\n")
    with pytest.raises(NativeBuildError, match="does not start"):
        ensure_built(source)


def test_a_compiler_may_be_given_with_arguments(source, monkeypatch):
    monkeypatch.setenv("CXX", f"{shutil.which('env')} {REAL_COMPILER} -g0")
    assert answer(ensure_built(source)) == 42


def test_without_the_headers_of_python(source, tmp_path, monkeypatch):
    monkeypatch.setattr(building.sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    with pytest.raises(NativeBuildError, match=r"Python.h is missing.*python3.\d+-dev"):
        ensure_built(source)


def test_without_the_headers_of_torch(source, tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "__file__", str(tmp_path / "torch" / "__init__.py"))
    with pytest.raises(NativeBuildError, match="without its C\\+\\+ headers"):
        ensure_built(source)


def test_without_the_source(tmp_path):
    with pytest.raises(NativeBuildError, match="Install tensortap again"):
        ensure_built(tmp_path / "gone.cpp")


def test_a_failing_compilation_keeps_its_output(source):
    source.write_text("int answer() { return undeclared_name; }\n")
    with pytest.raises(NativeBuildError) as caught:
        ensure_built(source)
    kept = library_path(source).parent / "build.log"
    assert "failed with exit code 1" in caught.value.reason
    assert str(kept) in caught.value.fix
    assert "undeclared_name" in caught.value.detail
    assert "undeclared_name" in str(caught.value)
    assert "-fvisibility=hidden" in kept.read_text()  # the command, for a bug report
    assert content(kept.parent) == ["build.log", "lock"]
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_failed_compilation_is_tried_again(source, monkeypatch):
    monkeypatch.setenv("CXX", shutil.which("false"))
    with pytest.raises(NativeBuildError, match="exit code 1"):
        ensure_built(source)
    monkeypatch.delenv("CXX")
    assert content(ensure_built(source).parent) == ["lock", "observer.so"]


def test_a_compiler_that_never_ends_is_ended(source, endless, monkeypatch):
    monkeypatch.setattr(building, "COMPILE_SECONDS", 1.0)
    with pytest.raises(NativeBuildError, match="took longer than 1 s"):
        ensure_built(source)
    eventually(lambda: not any(is_alive(number) for number in endless()))


def test_a_cache_that_cannot_be_made_gives_way_to_a_private_directory(source, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("TENSORTAP_CACHE_DIR", "/proc/tensortap")
    library = ensure_built(source)
    private = tmp_path / f"tmp/tensortap-{os.geteuid()}"
    assert library.is_relative_to(private)
    assert private.stat().st_mode & 0o777 == 0o700
    assert "/proc/tensortap cannot be written to" in caplog.text
    assert f"is kept in {private} instead" in caplog.text
    assert answer(library) == 42
    caplog.clear()
    assert ensure_built(source) == find_built(source) == library
    assert not caplog.records


def test_a_read_only_cache_gives_way_to_a_private_directory(source, cache, tmp_path):
    (cache / "native").mkdir(parents=True)
    (cache / "native").chmod(0o555)
    done, errors = finish(start(source, prefix=bound_by_permissions()))
    assert done.startswith(str(tmp_path / "tmp")), errors
    assert "Permission denied" in errors


def test_a_library_in_a_read_only_cache_is_used(source, cache):
    library = ensure_built(source)
    library.parent.chmod(0o555)
    assert finish(start(source, prefix=bound_by_permissions())) == (str(library), "")


def bound_by_permissions():
    """What to start a program with so that permissions count for it, which they do not for root."""
    if os.geteuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("root may write everywhere")
    return ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"]


def finish(process):
    go(process)
    out, errors = process.communicate(timeout=patient(60))
    return out.strip(), errors


def test_when_nothing_can_be_written_the_error_names_the_cache(source, tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORTAP_CACHE_DIR", "/proc/tensortap")
    monkeypatch.setattr(tempfile, "tempdir", "/proc")
    with pytest.raises(NativeBuildError, match=r"/proc/tensortap cannot be written to.*TENSORTAP_CACHE_DIR"):
        ensure_built(source)


def test_a_file_system_that_libraries_cannot_be_loaded_from(source, cache, monkeypatch):
    class NoExec:
        f_flag = os.ST_NOEXEC

    monkeypatch.setattr(os, "statvfs", lambda path: NoExec)
    with pytest.raises(NativeBuildError, match="noexec"):
        ensure_built(source)


# Who may have put a library there.


def test_a_cache_that_everybody_may_write_to_is_refused(source, cache, tmp_path, caplog):
    library = ensure_built(source)
    for exposed in (cache, cache / "native", library.parent, library):
        mode = exposed.stat().st_mode
        exposed.chmod(0o777)
        with pytest.raises(
            NativeBuildError, match=re.escape(f"{exposed}, which is open to other users (mode 777)")
        ):
            find_built(source)
        exposed.chmod(mode)
    assert find_built(source) == library

    cache.chmod(0o777)
    assert ensure_built(source).is_relative_to(tmp_path / "tmp")
    assert "open to other users" in caplog.text


def test_an_exposed_library_is_built_anew(source, compilations):
    library = ensure_built(source)
    library.chmod(0o666)
    assert ensure_built(source) == library
    assert compilations() == 2
    assert library.stat().st_mode & 0o022 == 0


def test_what_is_built_under_an_open_umask_is_not_open(source):
    before = os.umask(0)
    try:
        library = ensure_built(source)
    finally:
        os.umask(before)
    assert find_built(source) == library


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_belongs_to_somebody_else_is_refused(source, cache, tmp_path, monkeypatch):
    library = ensure_built(source)
    for foreign in (cache, cache / "native", library.parent, library):
        os.chown(foreign, 12345, -1)
        with pytest.raises(NativeBuildError, match="belongs to another user"):
            find_built(source)
        os.chown(foreign, 0, -1)
    somebodys_link = tmp_path / "link"
    somebodys_link.symlink_to(cache)
    os.chown(somebodys_link, 12345, -1, follow_symlinks=False)
    monkeypatch.setenv("TENSORTAP_CACHE_DIR", str(somebodys_link))
    with pytest.raises(NativeBuildError, match=f"{somebodys_link} belongs to another user"):
        find_built(source)
    assert remove_all() == []
    assert library.exists()


def test_a_link_of_the_users_own_is_followed(source, cache, tmp_path):
    (tmp_path / "scratch").mkdir()
    cache.symlink_to(tmp_path / "scratch")
    assert answer(ensure_built(source)) == 42
    assert (tmp_path / "scratch" / "native").is_dir()


def test_a_private_directory_that_others_may_look_into_is_refused(source, tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORTAP_CACHE_DIR", "/proc/tensortap")
    (tmp_path / f"tmp/tensortap-{os.geteuid()}").mkdir(mode=0o755)
    with pytest.raises(NativeBuildError):
        ensure_built(source)


# Damage, and processes that come together or are ended.


@pytest.mark.parametrize("damage", ["truncated", "empty", "changed", "another's"])
def test_a_damaged_library_is_noticed_and_built_anew(source, damage, compilations):
    library = ensure_built(source)
    whole = library.read_bytes()
    if damage == "another's":
        source.write_text(ANSWER.replace("42", "43"))
        library = library_path(source)
        library.parent.mkdir()
    library.write_bytes(
        {
            "truncated": whole[:-100],
            "empty": b"",
            "changed": whole[:2000] + b"?" + whole[2001:],
            "another's": whole,
        }[damage]
    )
    with pytest.raises(NativeBuildError, match="is damaged"):
        find_built(source)
    assert answer(ensure_built(source)) == (43 if damage == "another's" else 42)
    assert compilations() == 2


def test_a_whole_library_that_does_not_load_is_replaced_by_force(source, compilations):
    library = ensure_built(source)
    loaded = ctypes.CDLL(str(library))
    assert ensure_built(source, force=True) == library
    assert compilations() == 2
    assert loaded.answer() == 42  # who has the old one keeps it


@pytest.mark.parametrize("force", [False, True])
def test_processes_that_ask_together_compile_once(source, force, compilations):
    if force:
        ensure_built(source)
    processes = [start(source, *(["force"] if force else [])) for _ in range(2)]
    before = compilations()
    go(*processes)
    results = [process.communicate(timeout=patient(60)) for process in processes]
    assert [out.strip() for out, _ in results] == [str(library_path(source))] * 2
    assert compilations() == before + 1
    assert sorted("Waiting for another process" in errors for _, errors in results) == [False, True]


def test_threads_that_ask_together_compile_once(source, compilations):
    found = []
    threads = [threading.Thread(target=lambda: found.append(ensure_built(source))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [library_path(source)] * 3
    assert compilations() == 1


def test_waiting_for_another_process_ends(source, monkeypatch):
    library = ensure_built(source)
    hold = "import fcntl, sys; f = open(sys.argv[1], 'wb'); fcntl.lockf(f, fcntl.LOCK_EX); print(flush=True); input()"
    holder = subprocess.Popen(
        [sys.executable, "-c", hold, str(library.parent / "lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    holder.stdout.readline()
    monkeypatch.setattr(libraries, "WAIT_SECONDS", 0.3)
    with pytest.raises(NativeBuildError, match="Another process has been building"):
        ensure_built(source, force=True)
    holder.communicate(b"\n")
    assert ensure_built(source, force=True) == library


def test_without_file_locks_libraries_are_still_replaced_whole(source, monkeypatch):
    def no_locks(*arguments):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(libraries.fcntl, "lockf", no_locks)
    library = ensure_built(source)
    under_way = library.parent / ".build-of-another-process"
    under_way.mkdir()
    assert answer(ensure_built(source, force=True)) == 42
    assert under_way.exists()


def test_a_process_killed_in_the_middle_leaves_nothing_that_hinders(source, endless, monkeypatch):
    process = start(source)
    go(process)
    assert all(is_alive(number) for number in endless())
    process.kill()
    process.communicate()
    directory = library_path(source).parent
    assert not (directory / "observer.so").exists()
    monkeypatch.delenv("CXX")
    assert answer(ensure_built(source)) == 42
    assert content(directory) == ["lock", "observer.so"]


@pytest.mark.parametrize("is_rebuilt", [False, True])
def test_an_interrupt_ends_the_compiler_and_leaves_things_as_they_were(
    source, tmp_path, endless, monkeypatch, is_rebuilt
):
    if is_rebuilt:
        with monkeypatch.context() as patched:
            patched.delenv("CXX")
            ensure_built(source)
    process = start(source, "force")
    go(process)
    processes = endless()
    process.send_signal(signal.SIGINT)  # to this process only, not to the whole group as a terminal would
    _, errors = process.communicate(timeout=patient(20))
    assert "KeyboardInterrupt" in errors
    eventually(lambda: not any(is_alive(number) for number in processes))
    assert content(library_path(source).parent) == (["lock", "observer.so"] if is_rebuilt else ["lock"])
    assert list((tmp_path / "tmp").iterdir()) == []
    monkeypatch.delenv("CXX")
    assert answer(ensure_built(source)) == 42


def test_a_forked_child_does_not_wait_for_a_thread_it_does_not_have(source):
    with libraries._threads:
        child = os.fork()
        if child == 0:
            os._exit(0 if libraries._threads.acquire(blocking=False) else 1)
        assert os.waitpid(child, 0)[1] == 0


def test_the_log_stays_quiet_when_nothing_is_built(source, caplog):
    with caplog.at_level(logging.DEBUG, "tensortap"), pytest.raises(NativeBuildError, match="not been built"):
        find_built(source)
    assert not caplog.records


def test_the_source_is_where_the_package_is():
    assert SOURCE.parent == Path(build.__file__).parent
