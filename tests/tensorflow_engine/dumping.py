"""Runs in a process of its own: TensorFlow's own debugger dumps every run of planted and healthy programs.

python -m tests.tensorflow_engine.dumping ROOT [NAME…]
"""

from __future__ import annotations

import os
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

from tests.tensorflow_engine.healthy import HEALTHY
from tests.tensorflow_engine.plants import PLANTS


def dump(tf, wrapper, build, root, has_refs=False, has_v1_loops=False):
    v1 = tf.compat.v1
    (v1.disable_resource_variables if has_refs else v1.enable_resource_variables)()
    (v1.disable_control_flow_v2 if has_v1_loops else v1.enable_control_flow_v2)()
    with tf.Graph().as_default():
        program = build(tf)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            debugged = wrapper(session, os.path.join(root, build.__name__))
            for feeds in program.feeds:
                debugged.run(program.fetches, {f"{name}:0": value for name, value in feeds.items()})


def main(root, names):
    import tensorflow as tf
    from tensorflow.python.debug.wrappers import dumping_wrapper

    tf.compat.v1.disable_eager_execution()
    wrapper = dumping_wrapper.DumpingDebugWrapperSession
    for plant in PLANTS:
        if not names or plant.name in names:
            dump(tf, wrapper, plant.build, root, plant.has_refs, plant.has_v1_loops)
    for build in HEALTHY:
        if not names or build.__name__ in names:
            dump(tf, wrapper, build, root)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
