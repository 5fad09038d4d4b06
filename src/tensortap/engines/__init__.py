"""The engines that execute a step, behind one seam (`tensortap/seam`); the only code that imports a framework."""
