"""The frameworks there are engines for, as they are known from outside: nothing here imports one.

Whoever adds an engine adds a line here; `tensortap.engines.registry` loads what belongs to it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tensortap.suggest import alternatives

__all__ = ["ANY_FRAMEWORK", "FRAMEWORKS", "Framework"]


@dataclass(frozen=True)
class Framework:
    """One framework.

    Attributes:
        name: of the engine's folder, of the extra that installs it, and of `tensortap.NAME`.
        title: as people write it.
        module: what a program imports.
        packages: the packages that bring it.
        library: beginning of the file name of the library by which a process is known to use it.
        helpers: in command lines, what marks processes that the framework starts to serve itself.
        launchers: modules and programs that import it only to start the ranks of a job; those that are called
            otherwise on a command line, with that.
        start_ranks: what to type to start several ranks, with `{ranks}` and `{program}` in it.
        loop_advice: what to do about a program in which no step was found.
        has_sessions: whether it has sessions and hooks of its own, which meet ours (`tensortap.seam.native`).
        has_optimizers: whether it has optimizers of its own, by which updates are known.

    >>> [framework.title for framework in FRAMEWORKS]
    ['PyTorch', 'TensorFlow', 'JAX']
    """

    name: str
    title: str
    module: str
    packages: tuple[str, ...]
    library: str
    helpers: tuple[str, ...] = ()
    launchers: dict[str, str] = field(default_factory=dict)
    start_ranks: str = ""
    loop_advice: str = ""
    has_sessions: bool = False
    has_optimizers: bool = True

    @property
    def version(self) -> str | None:
        """What is installed of it; None if it is not."""
        import importlib.metadata  # takes longer than all commands that do not ask

        for package in self.packages:
            try:
                return importlib.metadata.version(package)
            except importlib.metadata.PackageNotFoundError:
                continue
        return None

    @property
    def install(self) -> str:
        """The command that installs it with tensortap."""
        return f"pip install 'tensortap[{self.name}]'"


FRAMEWORKS = (
    Framework(
        name="torch",
        title="PyTorch",
        module="torch",
        packages=("torch",),
        library="libtorch",
        helpers=("torch/_inductor/compile_worker",),
        launchers={
            "torchrun": "torchrun",
            "torch.distributed.run": "torchrun",
            "torch.distributed.launch": "torchrun",
            "accelerate": "accelerate",
            "accelerate-launch": "accelerate-launch",
            "accelerate.commands.launch": "accelerate launch",
            "deepspeed": "deepspeed",
        },
        start_ranks="torchrun --nproc-per-node {ranks} -m tensortap run {program}",
        loop_advice=(
            "it called no module, made no optimizer and worked out no gradients. Put hooks around your loop with "
            "tt.torch.monitor, or make the step a session (docs/torch.md)"
        ),
    ),
    Framework(
        name="tensorflow",
        title="TensorFlow",
        module="tensorflow",
        packages=("tensorflow-cpu", "tensorflow", "tensorflow-intel", "tf-nightly"),
        library="libtensorflow",
        has_sessions=True,
        loop_advice=(
            "it ran no session, called no tf.function that trains and no Keras fit. Put @tf.function around the step "
            "of your loop, or hooks around your session (docs/tensorflow.md)"
        ),
    ),
    Framework(
        name="jax",
        title="JAX",
        module="jax",
        packages=("jax",),
        library="libjax_common",
        has_optimizers=False,
        loop_advice=(
            "it called nothing that was compiled. Put hooks around your loop with tt.jax.monitor, or make the step a "
            "session (docs/jax.md)"
        ),
    ),
)
"""In the order in which they are looked for."""

ANY_FRAMEWORK = alternatives([framework.module for framework in FRAMEWORKS])
"""In sentences about a process of which it is not known which of them it uses."""
