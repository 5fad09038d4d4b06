"""The PyTorch engine, as users import it: `tensortap.torch.Session`, `tensortap.torch.monitor`."""

from tensortap.extras import require

require("torch", "tensortap.torch")

from tensortap.engines.torch import Monitor, MonitoredRun, Session, monitor  # noqa: E402

__all__ = ["Monitor", "MonitoredRun", "Session", "monitor"]
