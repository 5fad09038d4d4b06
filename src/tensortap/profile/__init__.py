"""The profiler hook, the facts of a profiled step and its timeline; free of any framework."""
