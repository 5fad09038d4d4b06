"""The engines that execute a step, behind one seam (`base.py`); the only code that imports a framework."""
