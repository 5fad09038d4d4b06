"""Placeholder until the hook runner lands."""


class Monitor: ...


class MonitoredRun: ...


def monitor(): ...
