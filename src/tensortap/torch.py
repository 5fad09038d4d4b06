"""The PyTorch engine, as users import it: `tensortap.torch.Session`, `tensortap.torch.monitor`."""

from tensortap.engines.torch import Monitor, MonitoredRun, Session, monitor

__all__ = ["Monitor", "MonitoredRun", "Session", "monitor"]
