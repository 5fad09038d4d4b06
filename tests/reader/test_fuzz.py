"""Damaged and hostile directories: a clear error or a partial read, never a crash, never a path outside."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tensortap.errors import TensortapError
from tensortap.reader import DebugDumpDir, DumpFormatError, SessionDir
from tensortap.store import export_npz, export_tfdbg
from tensortap.store.description import read_description
from tensortap.wire.tensor_proto import read_event, tensor_from_event
from tests.store.sample import write_sample

MANY = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def valid(tmp_path_factory):
    root = tmp_path_factory.mktemp("valid")
    run = write_sample(root / "packed")
    write_sample(root / "batches", batches=True)
    export_tfdbg(run, root / "tfdbg" / run.name)
    return root


def use(root: Path) -> None:
    """Everything a program would do with a directory; expected errors are fine."""
    session = SessionDir(root)
    session.tensors()
    session.history("fc/addmm:0")
    for run in session.runs:
        dump = run.open(validate=False)
        for datum in dump.dumped_tensor_data:
            try:
                str(datum.get_tensor())
            except DumpFormatError:
                pass
        if dump.loaded_partition_graphs():
            for node in dump.nodes():
                dump.node_exists(node)
        dump.notices, dump.core_metadata, dump.counts  # noqa: B018
        for path in dump.source_files():
            try:
                dump.source_text(path)
            except DumpFormatError:
                pass
        run.open()


@pytest.mark.parametrize("layout", ["packed", "batches", "tfdbg"])
@MANY
@given(data=st.data())
def test_flipped_and_missing_bytes(valid, tmp_path, layout, data):
    root = tmp_path / "copy"
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(valid / layout, root)
    file = data.draw(st.sampled_from(sorted(path for path in root.rglob("*") if path.is_file())))
    content = bytearray(file.read_bytes())
    if content and data.draw(st.booleans(), "flip"):
        for _ in range(data.draw(st.integers(1, 4))):
            content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    else:
        del content[data.draw(st.integers(0, max(len(content) - 1, 0))) :]
    file.write_bytes(content)
    try:
        use(root)
    except (TensortapError, ValueError, LookupError):
        pass


@MANY
@given(content=st.binary(max_size=400))
def test_foreign_bytes_to_the_parsers(tmp_path, content):
    file = tmp_path / "run.json"
    file.write_bytes(content)
    for parse in (read_description, lambda folder: tensor_from_event(read_event(folder / "run.json"))):
        try:
            parse(tmp_path)
        except DumpFormatError:
            pass


@MANY
@given(
    names=st.lists(
        st.text(max_size=12) | st.sampled_from(["../../x", "/a", "a\0", "..", "n" * 300]), max_size=4
    )
)
def test_hostile_names_never_leave_the_export(tmp_path, names):
    import numpy as np

    from tensortap.store import SessionStore
    from tests.store.sample import INFO, record

    root = tmp_path / "area" / "deep"
    shutil.rmtree(tmp_path / "area", ignore_errors=True)
    with SessionStore(root / "root") as store, store.new_run(INFO) as run:
        for number, name in enumerate(names):
            run.write(record(name.encode("utf-8", "replace").decode(), np.float32(number), after=number))
    report = export_tfdbg(run.path, root / "tfdbg")
    assert report.written + len(report.notices) == len(names)
    export_npz(run.path, root / "values.npz")
    assert sorted(path.name for path in (tmp_path / "area").iterdir()) == ["deep"]
    assert sorted(path.name for path in root.iterdir()) == ["root", "tfdbg", "values.npz"]
    assert DebugDumpDir(root / "tfdbg").size == report.written
