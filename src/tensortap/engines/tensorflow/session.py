"""A session of TensorFlow's as a session of ours: fetches, feeds and options around `tf.compat.v1.Session.run`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Self

import tensorflow as tf
from tensorflow.python.client.session import SessionInterface

from tensortap.engines.tensorflow.failures import mapped_error
from tensortap.engines.tensorflow.graph import TensorFlowGraph, graph_of
from tensortap.engines.tensorflow.measuring import profile_of
from tensortap.engines.tensorflow.options import check_metadata, is_message, options_to_message, our_options
from tensortap.engines.tensorflow.request import Outcome, Request, resolve
from tensortap.engines.tensorflow.run import Watchable, WatchedRun, wants_values
from tensortap.engines.tensorflow.state import Variables
from tensortap.errors import FeedError, SessionClosedError
from tensortap.records import Device
from tensortap.seam import place
from tensortap.seam.base import NonFinite, default_session
from tensortap.seam.options import RunMetadata, RunOptions, TraceLevel
from tensortap.seam.structure import leaves

__all__ = ["Session", "raw_session_of", "session_of"]

_v1 = tf.compat.v1
_MINE = "_tensortap_session"


class Session(Watchable, SessionInterface):  # type: ignore[misc]
    """Runs a TensorFlow graph, with hooks, watches and everything else that goes around a session.

    Args:
        session: a `tf.compat.v1.Session`. Without one, a session is made for `graph`, and its variables initialised.
        step: what a run without fetches executes, such as `{"loss": loss, "train": train_op}`: tensors and ops by
            key, or in any other structure. Its keys can be fetched by name; whoever fetches one runs the whole step.
        graph: the `tf.Graph` of a new session; the default graph by default.
        config: a `tf.compat.v1.ConfigProto` for a new session.
        global_step: where to start counting runs, if the graph has no global step of its own.

    >>> import tensorflow as tf, numpy as np, tensortap as tt
    >>> with tf.Graph().as_default():
    ...     x = tf.compat.v1.placeholder(tf.float32, [None], name="x")
    ...     y = tf.reduce_sum(x, name="y")
    ...     session = tt.tensorflow.Session()
    >>> float(session.run(y, {x: np.ones(3)})), float(session.run("y:0", {"x": np.ones(4)}))
    (3.0, 4.0)
    """

    def __init__(
        self,
        session: Any = None,
        *,
        step: Any = None,
        graph: Any = None,
        config: Any = None,
        global_step: int = 0,
    ) -> None:
        if session is not None and (graph is not None or config is not None):
            raise TypeError("graph= and config= are for a new session; this one has them already.")
        if session is None:
            session = _v1.Session(graph=_tf_graph(graph), config=config)
            _initialize(session)
        raw = raw_session_of(session)
        if raw is None:
            raise TypeError(
                f"session= takes a tf.compat.v1.Session, got {type(session).__name__}: {session!r}."
            )
        super().__init__()
        self._runs = session
        self._graph = graph_of(raw.graph)
        self._closed = False
        self._counted = global_step
        self.variables = Variables(self)
        self.step = step
        self.step_keys: tuple[str, ...] = tuple(step) if isinstance(step, Mapping) else ()
        self._defaults: list[AbstractContextManager[Any]] = []
        if step is not None:
            for item in leaves(step):
                raw.graph.as_graph_element(item, allow_tensor=True, allow_operation=True)
        if raw is session:
            setattr(
                raw, _MINE, self
            )  # also where hooks of ours meet it in a monitored session of TensorFlow's

    # --- what a session is -------------------------------------------------------------------------

    @property
    def tf_session(self) -> Any:
        """The `tf.compat.v1.Session`; behind a monitored one, that of the moment."""
        raw = raw_session_of(self._runs)
        if raw is None:
            raise SessionClosedError("The monitored session of TensorFlow's is closed.")
        return raw

    @property
    def graph(self) -> TensorFlowGraph:  # type: ignore[override]
        """The graph, with all its ops, and what hooks derived."""
        return self._graph

    @property
    def graph_def(self) -> Any:
        """The graph as a `GraphDef` message."""
        return self._graph.as_graph_def()

    @property
    def sess_str(self) -> str:
        """Which runtime the session speaks to; empty for this process."""
        target = self.tf_session.sess_str
        return target.decode() if isinstance(target, bytes) else str(target)

    @property
    def global_step(self) -> int:
        """The global step of the graph; if it has none, completed runs plus the value it started from."""
        variable = self._graph.step_variable()
        if variable is None:
            return self._counted
        try:
            return int(self.tf_session.run(variable))
        except tf.errors.FailedPreconditionError:  # not initialised yet
            return 0

    @global_step.setter
    def global_step(self, value: int) -> None:
        variable = self._graph.step_variable()
        if variable is None:
            self._counted = int(value)
        else:
            self.variables.write({variable.name: int(value)})

    @property
    def closed(self) -> bool:
        """Whether `close()` has been called."""
        return self._closed

    def list_devices(self) -> list[Device]:
        """The devices of this session."""
        return [
            Device(each.name, each.device_type, each.memory_limit_bytes, each.incarnation)
            for each in self.tf_session.list_devices()
        ]

    def close(self) -> None:
        """Refuse further runs; harmless when called again. TensorFlow's session goes when nobody uses it any more."""
        self._closed = True
        self.watches.close()

    def reopen(self) -> None:
        """Accept runs again, as a monitored session does when it recovers."""
        self._closed = False

    def rank(self) -> int:
        """Other processes of a cluster have sessions of their own."""
        return place.number()

    def as_default(self) -> AbstractContextManager[Any]:
        """Make this the default session of the thread, for `tensor.eval()` too, without closing it on exit."""
        return self.default_through(self)

    @contextmanager
    def default_through(self, outer: Any) -> Iterator[Any]:
        """Make a session around this one the default of the thread, for TensorFlow as well."""
        shown = _ForTensorFlow(self.tf_session, outer)
        with default_session(outer), self.tf_session.graph.as_default(), _v1_default_session(shown):
            yield outer

    def __enter__(self) -> Self:
        default = self.as_default()
        default.__enter__()
        self._defaults.append(default)
        return self

    def __exit__(self, *error: Any) -> None:
        self._defaults.pop().__exit__(*error)
        self.close()

    # --- state -------------------------------------------------------------------------------------

    def save_state(self, path: Path) -> None:
        """Write all global variables to one file."""
        self.variables.save(path, self._counted)

    def load_state(self, path: Path) -> None:
        """Put the variables of a file in place."""
        self._counted = self.variables.load(path)

    def non_finite_state(self) -> Iterable[NonFinite]:
        """The variables that hold NaN or infinities."""
        return self.variables.non_finite()

    # --- running -----------------------------------------------------------------------------------

    def run(
        self,
        fetches: Any = None,
        feed_dict: Mapping[Any, Any] | None = None,
        options: Any = None,
        run_metadata: Any = None,
    ) -> Any:
        """Run the graph once.

        Args:
            fetches: tensors, ops and whatever else TensorFlow fetches, names of tensors and ops, keys of the step, in
                any structure; None for the whole step. Variables that are fetched by name are read after the run, the
                global step before it.
            feed_dict: values by tensor or name. A variable that is fed by name gets its value back afterwards.
            options: `RunOptions`, ours or TensorFlow's.
            run_metadata: ours or TensorFlow's; filled as its class says.

        Raises:
            OpError: an op failed; it is an error of TensorFlow's class too, with node and line.
        """
        self.check_open()
        ours = our_options(options)
        check_metadata(run_metadata)
        request = resolve(self, fetches, feed_dict)
        if not request.executes and not request.state_feeds and not ours.taps:
            return request.values(Outcome([], self.read(request), self._step_for(request)))
        run = self._watched(request, ours)
        step = run.info.global_step if run is not None else self._step_for(request)
        native = self._metadata_for(ours, run_metadata)
        try:
            with self.variables.fed(request.state_feeds):
                fetched = self._execute(request, ours, native, run)
        except Exception as error:
            self._finish(run, error, native)
            mapped = mapped_error(error, self._graph)
            if mapped is None:
                raise
            raise mapped from error
        except BaseException as error:
            self._finish(run, error, native)
            raise
        self._finish(run, None, native)
        self.count_run()
        self._fill(run_metadata, native, run, ours)
        return request.values(Outcome(fetched, self.read(request), step))

    def count_run(self) -> None:
        """A run is over; counted where the graph has no global step."""
        with self._lock:
            self._counted += 1

    def _execute(
        self, request: Request, options: RunOptions, native: Any, run: WatchedRun | None
    ) -> list[Any]:
        if not request.fetches:
            return []
        message = options_to_message(options)
        message = self.with_guard(message) if run is None else run.merged_into(message)
        fetched: list[Any] = self._runs.run(
            request.fetches,
            request.feeds or None,
            options=message if message.ByteSize() else None,
            run_metadata=native,
        )
        return fetched

    def _watched(self, request: Request, options: RunOptions) -> WatchedRun | None:
        if not wants_values(options):
            return None
        run = self.begin_watched(request.asked, request.feed_keys, options)
        run.open()
        return run

    def _finish(self, run: WatchedRun | None, error: BaseException | None, native: Any) -> None:
        if run is not None:
            run.finish(error, native)
            self.faults += run.faults

    def _metadata_for(self, options: RunOptions, given: Any) -> Any:
        if is_message(given):
            return given
        wanted = options.trace_level > TraceLevel.NO_TRACE or options.output_partition_graphs
        needs = wants_values(options) and self.watches.observer.needs_metadata
        return _v1.RunMetadata() if wanted or needs or options.native else None

    def _fill(self, metadata: Any, native: Any, run: WatchedRun | None, options: RunOptions) -> None:
        if not isinstance(metadata, RunMetadata):
            return
        metadata.nodes[:] = [] if run is None else run.nodes
        metadata.native = native
        if native is None:
            return
        metadata.partition_graphs[:] = list(native.partition_graphs)
        if options.trace_level > TraceLevel.NO_TRACE:
            metadata.profile = profile_of(native, self._graph)

    def read(self, request: Request) -> Mapping[str, Any]:
        """The variables that a request names, as they are now."""
        if not request.state:
            return {}
        try:
            values: Mapping[str, Any] = self.tf_session.run(request.state)
        except tf.errors.OpError as error:
            raise mapped_error(error, self._graph) or error from error
        return values

    def _step_for(self, request: Request) -> int:
        return self.global_step if request.needs_step else -1

    def make_callable(
        self, fetches: Any, feed_list: Sequence[Any] | None = None, accept_options: bool = False
    ) -> Callable[..., Any]:
        """A function that runs `fetches`, taking values for `feed_list` as positional arguments."""
        keys = list(feed_list or ())

        def run_fetches(*values: Any, options: Any = None, run_metadata: Any = None) -> Any:
            if len(values) != len(keys):
                raise FeedError(
                    f"This callable feeds {len(keys)} tensors ({keys}), got {len(values)} values."
                )
            if not accept_options and (options is not None or run_metadata is not None):
                raise TypeError("Make the callable with accept_options=True to pass options or run_metadata.")
            return self.run(fetches, dict(zip(keys, values, strict=True)), options, run_metadata)

        return run_fetches

    def partial_run_setup(self, fetches: Any, feeds: Any = None) -> Any:
        """TensorFlow's own: partial runs are not watched."""
        return self.tf_session.partial_run_setup(fetches, feeds)

    def partial_run(self, handle: Any, fetches: Any, feed_dict: Any = None) -> Any:
        """TensorFlow's own: partial runs are not watched."""
        return self.tf_session.partial_run(handle, fetches, feed_dict)

    def check_open(self) -> None:
        """Raise when the session is closed."""
        if self._closed:
            raise SessionClosedError("This session is closed; make a new one to run the graph again.")


class MonitoredByTensorFlow(Session):
    """A monitored session of TensorFlow's own: runs go through its hooks, its coordinator and its recovery."""

    def should_stop(self) -> bool:
        """Whether to leave the training loop."""
        return bool(self._runs.should_stop())

    def close(self) -> None:
        """Close the monitored session."""
        super().close()
        self._runs.close()

    def run_step_fn(self, step_fn: Callable[[Any], Any]) -> Any:
        """TensorFlow's own."""
        return self._runs.run_step_fn(step_fn)


class _ForTensorFlow(SessionInterface):  # type: ignore[misc]
    """What TensorFlow sees as its default session: its own graph, and runs that go through ours."""

    def __init__(self, tf_session: Any, outer: Any) -> None:
        self.tf_session = tf_session
        self._outer = outer

    @property
    def graph(self) -> Any:
        """TensorFlow's graph."""
        return self.tf_session.graph

    @property
    def sess_str(self) -> Any:
        """TensorFlow's."""
        return self.tf_session.sess_str

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """A run through our session."""
        return self._outer.run(*args, **kwargs)


def _v1_default_session(session: Any) -> AbstractContextManager[Any]:
    try:
        from tensorflow.python.framework.stack import default_session as made_default
    except ImportError:  # TensorFlow moves it
        from tensorflow.python.framework.ops import default_session as made_default
    context: AbstractContextManager[Any] = made_default(session)
    return context


def _tf_graph(graph: Any) -> Any:
    if graph is None:
        return None
    return graph.tf_graph if isinstance(graph, TensorFlowGraph) else graph


def _initialize(session: Any) -> None:
    """Initialise variables and tables, without an op being added to the graph."""
    keys = _v1.GraphKeys
    graph = session.graph
    variables = [*graph.get_collection(keys.GLOBAL_VARIABLES), *graph.get_collection(keys.LOCAL_VARIABLES)]
    session.run([each.initializer for each in variables])
    session.run(graph.get_collection(keys.TABLE_INITIALIZERS))


def raw_session_of(session: Any) -> Any:
    """The `tf.compat.v1.Session` that a session of TensorFlow's runs in the end; None for anything else."""
    for _ in range(10):  # monitored sessions wrap each other
        if isinstance(session, _v1.Session):
            return session
        if isinstance(session, Session):
            return session.tf_session
        inner = getattr(session, "_tf_sess", None)
        session = inner() if callable(inner) else getattr(session, "_sess", None)
        if session is None:
            return None
    return None


def session_of(session: Any) -> Session | None:
    """Our session around one of TensorFlow's, always the same as long as that lives; None for anything else."""
    raw = raw_session_of(session)
    if raw is None:
        return None
    known = getattr(session, _MINE, None)
    if isinstance(known, Session):
        return known
    made = Session(raw) if session is raw else MonitoredByTensorFlow(session)
    setattr(session, _MINE, made)
    return made
