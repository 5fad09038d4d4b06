"""Run by TensorFlow, in a process of its own: real step statistics and what TensorFlow's timeline makes of them.

    python tensorflow_timelines.py DIRECTORY

writes for each case `<case>.pb`, the message, and `<case>.json`: text and allocator peaks for every combination
of flags.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
from pathlib import Path

import tensorflow as tf
from tensorflow.core.framework import step_stats_pb2
from tensorflow.python.client.timeline import Timeline

tf1 = tf.compat.v1


def run(fetch, **config):
    options = tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE)
    metadata = tf1.RunMetadata()
    with tf1.Session(config=tf1.ConfigProto(**config)) as session:
        session.run(tf1.global_variables_initializer())
        session.run(fetch, options=options, run_metadata=metadata)
    return metadata.step_stats


def matmul():
    with tf.Graph().as_default():
        x = tf.random.uniform([300, 300], name="x")
        w = tf1.get_variable("w", initializer=tf.random.uniform([300, 300]))
        y = tf.nn.relu(tf.matmul(x, w, name="y"))
        values, indices = tf.nn.top_k(y, 3)
        return run([tf.reduce_sum(values), indices, tf1.gradients(y, w)])


def while_loop():
    with tf.Graph().as_default():
        tf1.disable_control_flow_v2()
        body = lambda i, x: (i + 1, tf.matmul(x, x) * 0.01)
        return run(tf1.while_loop(lambda i, x: i < 4, body, (tf.constant(0), tf.random.uniform([50, 50]))))


def several_devices():
    with tf.Graph().as_default():
        with tf.device("/cpu:0"):
            x = tf.random.uniform([200, 200], name="x")
        with tf.device("/cpu:1"):
            y = tf.matmul(x, x, name="y")
        with tf.device("/cpu:2"):
            z = tf.add(x, y, name="z")
        return run(z, device_count={"CPU": 3})


def kernels():
    """A GPU's statistics, which no machine without one makes: nodes, their kernels, copies, a received tensor."""
    stats = step_stats_pb2.StepStats()
    gpu = stats.dev_stats.add(device="/job:localhost/replica:0/task:0/device:GPU:0")
    stream = stats.dev_stats.add(device="/job:localhost/replica:0/task:0/device:GPU:0/stream:all")
    copies = stats.dev_stats.add(device="/job:localhost/replica:0/task:0/device:GPU:0/memcpy")
    for name, call, start in (("x", "Const()", 100), ("y", "MatMul(x, x)", 250), ("z", "Add(x, y)", 400)):
        label, op = f"{name} = {call}", call.partition("(")[0]
        node = gpu.node_stats.add(
            node_name=name, timeline_label=label, all_start_micros=start, all_end_rel_micros=5
        )
        allocation = node.output.add().tensor_description.allocation_description
        allocation.requested_bytes, allocation.allocator_name = 4 * start, "GPU_0_bfc"
        for kernel in range(2):
            label = f"gemm_{kernel} regs:32 @@{name}:{op}#id=1#" if name != "z" else "no annotation"
            stream.node_stats.add(
                node_name=f"{name}:{op}",
                timeline_label=label,
                all_start_micros=start + 20 + 40 * kernel,
                all_end_rel_micros=30,
            )
    copies.node_stats.add(
        node_name="edge", timeline_label="MEMCPYHtoD", all_start_micros=90, all_end_rel_micros=9
    )
    gpu.node_stats.add(node_name="RecvTensor", timeline_label="[1B] x/_7 from a", all_start_micros=80)
    gpu.node_stats.add(node_name="odd", timeline_label="no label at all", all_start_micros=81)
    gpu.node_stats.add(node_name="w", timeline_label="w = Neg(x/_3, ^x, missing)", all_start_micros=600)
    return stats


def made_up(seed):
    """Statistics of all kinds: overlapping, empty, large; each node runs once, after those it needs."""
    choose = random.Random(seed)
    stats = step_stats_pb2.StepStats()
    devices = [
        stats.dev_stats.add(device=f"/job:worker/task:0/device:CPU:{i}") for i in range(choose.randint(1, 3))
    ]
    done = []
    for number in range(choose.randint(0, 60)):
        taken = choose.sample(done, min(len(done), choose.randint(0, 3)))
        start = max([end for _, end in taken], default=10) + choose.randint(0, 5)
        duration = choose.randint(1, 20)
        name = f"scope/node_{number}"
        label = f"{name} = Op{number % 7}({', '.join(tensor for tensor, _ in taken)})"
        node = choose.choice(devices).node_stats.add(
            node_name=name, timeline_label=label, all_start_micros=start, all_end_rel_micros=duration
        )
        for slot in range(choose.randint(0, 3)):
            output = node.output.add(slot=slot)
            output.tensor_description.dtype = 1
            allocation = output.tensor_description.allocation_description
            allocation.requested_bytes = choose.choice([4, 1024, 10**9])
            allocation.allocator_name = choose.choice(["cpu", "gpu_bfc"])
            done.append((f"{name}:{slot}" if slot else name, start + duration))
    return stats


def main(directory):
    cases = {
        "matmul": matmul(),
        "while_loop": while_loop(),
        "several_devices": several_devices(),
        "kernels": kernels(),
    }
    cases |= {f"made_up_{seed}": made_up(seed) for seed in range(20)}
    for name, stats in cases.items():
        message = stats.SerializeToString()
        (directory / f"{name}.pb").write_bytes(message)
        results = []
        for flags in itertools.product([True, False], [True, False], ["schedule", "gpu", "all"]):
            # TensorFlow's timeline writes into the message and is good for one use.
            one, other = (step_stats_pb2.StepStats.FromString(message) for _ in range(2))
            peaks = {
                allocator: [peak.timestamp, peak.num_bytes, sorted(peak.tensors)]
                for allocator, peak in Timeline(one).analyze_step_stats(*flags).allocator_maximums.items()
            }
            results.append([flags, Timeline(other).generate_chrome_trace_format(*flags), peaks])
        (directory / f"{name}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
