"""Runs in a process of its own: TensorFlow's runtime, which runs and streams what lines of JSON ask for."""

from __future__ import annotations

import json
import os
import sys
import types

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"


def build(tf):
    """One graph with everything that is hard on the way."""
    v1 = tf.compat.v1
    x = v1.placeholder(tf.float32, [None], name="x")
    w = v1.get_variable("w", initializer=tf.constant([1.0, 2.0, 3.0]))
    y = tf.multiply(x, w, name="y")
    tf.reduce_sum(y, name="loss")
    tf.math.log(y - 2.0, name="bad")
    tf.strings.as_string(tf.cast(y, tf.int32), name="text")
    tf.strings.join([tf.strings.as_string(y), tf.constant(b"\x00\xff")], name="bytes")
    empty = tf.identity(y[:0], name="empty")
    tf.strings.as_string(empty, name="empty_text")
    tf.fill([1_200_000], y[1], name="large")  # 4.8 MB: two chunks
    words = tf.strings.as_string(tf.fill([2500], y[1]))
    tf.fill([400], tf.strings.reduce_join(words), name="large_text")  # 8 MB in strings of 20 kB
    tf.strings.join([tf.strings.as_string(tf.fill([400_000], y[2])), "abcdef"], name="many_texts")  # 5.6 MB
    tf.identity(tf.constant(list(range(1_100_000)), tf.int32, name="big_constant"), name="behind_constant")
    tf.cast(y, tf.bfloat16, name="narrow")
    v1.assign_add(w, [1.0, 1.0, 1.0], name="update")
    grown = tf.while_loop(lambda i, s: i < 3, lambda i, s: (i + 1, s * 2.0), [0, y], name="loop")[1]
    chosen = v1.cond(y[0] > 0.0, lambda: tf.sqrt(y), lambda: -y, name="either")
    tf.reduce_sum(grown + chosen, name="controlled")
    return v1.Session()


def serve(directory):
    """TensorFlow's own debug test server, in this process."""
    sys.modules["portpicker"] = types.ModuleType("portpicker")

    import socket

    def pick_unused_port():
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            return free.getsockname()[1]

    sys.modules["portpicker"].pick_unused_port = pick_unused_port
    from tensorflow.python.debug.lib import grpc_debug_test_server

    port, _, _, thread, server = grpc_debug_test_server.start_server_on_separate_thread(
        dump_to_filesystem=False
    )
    server._stream_handler_class = lambda: grpc_debug_test_server.EventListenerTestStreamHandler(
        directory, server
    )
    return port


def main():
    import numpy as np
    import tensorflow as tf
    from tensorflow.python.debug.lib import debug_utils
    from tensorflow.python.debug.wrappers import grpc_wrapper

    v1 = tf.compat.v1
    v1.disable_eager_execution()
    v1.disable_resource_variables()
    session = build(tf)
    session.run(v1.global_variables_initializer())
    feed = {"x:0": np.array([1.0, 1.0, 1.0], np.float32)}
    wrappers = []
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        if "serve" in asked:
            print(json.dumps(serve(asked["serve"])), flush=True)
            continue
        try:
            if "wrapper" in asked:
                wrapped = grpc_wrapper.TensorBoardDebugWrapperSession(session, asked["wrapper"])
                wrappers.append(wrapped)  # one that is let go closes its session
                results = wrapped.run(asked["fetch"], feed)
            else:
                options = v1.RunOptions()
                for node, ops in asked.get("watch", {}).items():
                    debug_utils.add_debug_tensor_watch(
                        options,
                        node,
                        debug_ops=ops,
                        debug_urls=asked["urls"],
                        global_step=asked.get("step", -1),
                    )
                results = session.run(asked["fetch"], feed, options=options)
            answer = [
                np.asarray(each, np.float64).tolist() if each is not None and each.dtype.kind != "O" else None
                for each in results
            ]
        except Exception as error:
            answer = f"{type(error).__name__}: {str(error)[:500]}"
        print(json.dumps(answer), flush=True)
    os._exit(0)  # the threads of TensorFlow's servers would wait for ever


if __name__ == "__main__":
    main()
