"""The PyTorch engine: ordinary eager training steps, seen op by op.

Session       a training step as a session with fetches, feeds and hooks
monitor       the same around a loop you do not want to restructure
"""

from tensortap.engines.session.block import Monitor, MonitoredRun
from tensortap.engines.torch.loop import monitor
from tensortap.engines.torch.session import Session

__all__ = ["Monitor", "MonitoredRun", "Session", "monitor"]
