"""The built page is that of the sources, small, and made of nothing that names a place on the network."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess

import pytest

from tensortap import web
from tests.patience import finished
from tests.server.tools import PROJECT

WEB = PROJECT / "web"
BUNDLE = PROJECT / "src" / "tensortap" / "web" / "bundle"
FILES = ("icon.svg", "index.html", "page.css", "page.js")


def built_with():
    """Why the page cannot be built here, or nothing."""
    if shutil.which("node") is None:
        return "building the page needs Node"
    if not (WEB / "node_modules" / "esbuild").is_dir():
        done = subprocess.run(["npm", "ci", "--silent"], cwd=WEB, capture_output=True)
        if done.returncode:
            return "the packages of web/ cannot be installed here (npm ci)"
    return ""


def test_the_bundle_is_stamped_with_the_digest_of_its_sources():
    digest = hashlib.sha256()
    names = ["package.json", "package-lock.json", "build.mjs"]
    names += [path.relative_to(WEB).as_posix() for path in (WEB / "src").rglob("*") if path.is_file()]
    for name in sorted(names):
        digest.update(f"{name}\0".encode() + (WEB / name).read_bytes() + b"\0")
    for name in ("page.js", "page.css"):
        stamp = (BUNDLE / name).read_text().partition("\n")[0]
        assert stamp == f"/* {digest.hexdigest()} */", "web/ has changed: run `make page`"


def test_building_again_gives_the_same_bytes(tmp_path):
    if reason := built_with():
        pytest.skip(reason)
    done = finished(["node", "build.mjs", str(tmp_path)], cwd=WEB)
    assert done.returncode == 0, done.stderr
    for name in FILES:
        assert (tmp_path / name).read_bytes() == (BUNDLE / name).read_bytes(), name


def test_its_types_are_right():
    if reason := built_with():
        pytest.skip(reason)
    done = finished(["npx", "tsc", "--noEmit"], cwd=WEB)
    assert done.returncode == 0, done.stdout


def test_it_is_small():
    assert sum(len(web.packed(name)) for name in FILES) < 300_000


def test_the_lock_file_names_no_registry():
    lock = json.loads((WEB / "package-lock.json").read_text())
    assert not [name for name, facts in lock["packages"].items() if "resolved" in facts]
