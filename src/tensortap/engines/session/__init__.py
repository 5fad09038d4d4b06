"""What a session of any engine is: what it is asked for, what it gives back, how a step or a block becomes a run."""
