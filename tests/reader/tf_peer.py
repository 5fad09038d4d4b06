"""Runs in a process of its own: TensorFlow writes dumps, or answers questions about a directory, as JSON."""

from __future__ import annotations

import json
import os
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"


def make(root):
    import numpy as np
    import tensorflow as tf
    from tensorflow.python.debug.wrappers import dumping_wrapper

    v1 = tf.compat.v1
    v1.disable_eager_execution()
    v1.disable_control_flow_v2()
    v1.disable_resource_variables()
    with tf.Graph().as_default():
        x = v1.placeholder(tf.float32, [None, None], name="in/x")
        w = v1.get_variable("w", initializer=tf.ones([3, 3]))
        unset = v1.get_variable("unset", initializer=tf.ones([2]))
        y = tf.matmul(x, w, name="fc/mm")
        values, places = tf.unique(tf.reshape(tf.cast(y, tf.int32), [-1]), name="uniq")
        text = tf.strings.join([tf.strings.as_string(places), tf.constant(b"\xff\0")], name="text")
        narrow = tf.identity(tf.cast(y, tf.bfloat16, name="bf") * 2, name="bf2")
        with tf.control_dependencies([w.assign_add(tf.ones([3, 3]), name="update").op]):
            z = tf.identity(y, name="z")
        loop = tf.while_loop(
            lambda i, s: i < 14, lambda i, s: (i + 1, s * 2.0), [tf.constant(0), z], name="loop"
        )
        bad = tf.math.log(y - 5.0, name="bad")
        empty = tf.identity(y[:0], name="empty")
        ready = v1.is_variable_initialized(unset)
        wrong = tf.matmul(tf.transpose(x, name="turned"), w, name="wrong")
        session = v1.Session()
        session.run(w.initializer)
        debug = dumping_wrapper.DumpingDebugWrapperSession(session, root)
        feed = {x: np.ones((2, 3), np.float32)}
        debug.run([z, values, text, narrow, loop, bad, empty, ready], feed_dict=feed)
        debug.run(z, feed_dict=feed)
        try:
            debug.run([wrong, y], feed_dict=feed)
        except Exception as error:
            print(type(error).__name__, file=sys.stderr)


def query(paths):
    from tensorflow.python.debug.lib import debug_data

    from tests.reader.answers import answers

    return {path: answers(debug_data.DebugDumpDir(path, validate=True)) for path in paths}


def analyze(paths):
    """What TensorFlow's command line shows of runs that are read by us."""
    from tensorflow.python.debug.cli import analyzer_cli, cli_config

    from tensortap.reader import DebugDumpDir

    def shown(path, command, *arguments):
        config = cli_config.CLIConfig(os.path.join(path, "config"))
        analyzer = analyzer_cli.DebugAnalyzer(DebugDumpDir(path, validate=False), config)
        return "\n".join(getattr(analyzer, command)(list(arguments)).lines)

    written_by_tensorflow, written_by_us = paths
    return [
        shown(written_by_tensorflow, "print_tensor", "unset:0"),
        shown(written_by_us, "node_info", "--traceback", "model/addmm"),
    ]


if __name__ == "__main__":
    if sys.argv[1] == "analyze":
        print(json.dumps(analyze(sys.argv[2:])))
        sys.exit()
    if sys.argv[1] == "make":
        make(sys.argv[2])
        targets = [os.path.join(sys.argv[2], name) for name in sorted(os.listdir(sys.argv[2]))]
    else:
        targets = sys.argv[2:]
    print(json.dumps(query(targets)))
