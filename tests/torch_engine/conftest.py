"""Contract tests run over both interceptors: a module that asks for `interceptor` is run with each."""

import pytest


@pytest.fixture(params=["dispatch", "native"])
def interceptor(request, monkeypatch):
    """The name of the interceptor that sessions of this test use."""
    monkeypatch.setenv("TENSORTAP_INTERCEPTOR", request.param)
    return request.param
