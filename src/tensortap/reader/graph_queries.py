"""The structure queries of a dump: nodes, edges, devices, paths, attributes and source lines."""

from __future__ import annotations

from typing import Any

from tensortap.errors import NotThereError, UsageError
from tensortap.reader.debug_graph import DebugGraph, node_of, trace_inputs
from tensortap.records import Frame
from tensortap.store.stored_run import StoredRun

__all__ = ["GraphQueries"]


class GraphQueries:
    """Queries over the graphs of all devices of one run.

    A device name is optional wherever the node is on exactly one device. Queries raise `LookupError` when no
    graph was stored, and `ValueError` for nodes and devices that do not exist.
    """

    source: StoredRun

    def __init__(self) -> None:
        self._python_graph: Any = None
        self._tracebacks: dict[str, Any] = {}
        self._lines: dict[str, list[str]] = {}
        self._forget_graphs()

    def _find_graph(self, device: str) -> Any | None:
        return self.source.graph(device)

    def _forget_graphs(self) -> None:
        self._loaded: dict[str, DebugGraph] | None = None
        self._places: dict[str, list[str]] = {}

    @property
    def _graphs(self) -> dict[str, DebugGraph]:
        """The graphs by device, read when they are first needed."""
        if self._loaded is None:
            devices = list(self.source.devices)
            devices += [name for name in getattr(self.source, "graph_devices", list)() if name not in devices]
            found = {device: self._find_graph(device) for device in devices}
            self._loaded = {
                name: DebugGraph(graph, name) for name, graph in found.items() if graph is not None
            }
            for each in self._loaded.values():
                for node, where in each.devices.items():
                    places = self._places.setdefault(node, [])
                    if where not in places:
                        places.append(where)
        return self._loaded

    @property
    def _node_devices(self) -> dict[str, list[str]]:
        return self._places if self._graphs else {}

    def loaded_partition_graphs(self) -> bool:
        """Whether any graph is there."""
        return bool(self._graphs)

    def partition_graphs(self) -> list[Any]:
        """The graphs as GraphDefs, with the nodes a debugger put in."""
        self._need_graphs()
        return [graph.message for graph in self._graphs.values()]

    def reconstructed_non_debug_partition_graphs(self) -> dict[str, Any]:
        """The graphs as GraphDefs by device, without the nodes a debugger put in."""
        return {device: graph.without_debugger_nodes() for device, graph in self._graphs.items()}

    def nodes(self, device_name: str | None = None) -> list[str]:
        """Names of all nodes, or of those of one device."""
        self._need_graphs()
        if device_name is None:
            return [node for graph in self._graphs.values() for node in graph.inputs]
        if device_name not in self._graphs:
            raise UsageError(f"Invalid device name: {device_name!r}. There are {', '.join(self._graphs)}.")
        return list(self._graphs[device_name].inputs)

    def node_exists(self, node_name: str, device_name: str | None = None) -> bool:
        """Whether any graph, or the one of a device, has the node."""
        self._need_graphs()
        if device_name is None:
            return any(node_name in graph.inputs for graph in self._graphs.values())
        if device_name not in self._graphs:
            raise UsageError(f"The specified device_name {device_name!r} cannot be found.")
        return node_name in self._graphs[device_name].inputs

    def node_device(self, node_name: str) -> str | list[str]:
        """The device of a node; a list if several have it."""
        self._need_graphs()
        if node_name not in self._node_devices:
            raise UsageError(f"Node {node_name!r} does not exist in partition graphs.")
        places = list(self._node_devices[node_name])
        return places[0] if len(places) == 1 else places

    def node_op_type(self, node_name: str, device_name: str | None = None) -> str:
        """Op type of a node."""
        return self._graph_of(node_name, device_name).op_types[node_name]

    def node_attributes(self, node_name: str, device_name: str | None = None) -> Any:
        """Attributes of a node: AttrValue messages by name."""
        return self._graph_of(node_name, device_name).attributes[node_name]

    def node_inputs(
        self, node_name: str, is_control: bool = False, device_name: str | None = None
    ) -> list[str]:
        """What a node takes: tensor names, output 0 without its slot; or the nodes it waits for."""
        graph = self._graph_of(node_name, device_name)
        return list((graph.control_inputs if is_control else graph.inputs)[node_name])

    def node_recipients(
        self, node_name: str, is_control: bool = False, device_name: str | None = None
    ) -> list[str]:
        """The nodes that take an output of a node, once per input; or that wait for it."""
        graph = self._graph_of(node_name, device_name)
        return list((graph.control_recipients if is_control else graph.recipients)[node_name])

    def transitive_inputs(
        self,
        node_name: str,
        include_control: bool = True,
        include_reversed_ref: bool = False,
        device_name: str | None = None,
    ) -> list[str]:
        """Everything a node depends on, depth first; what lies before a Merge is left out."""
        graph = self._graph_of(node_of(node_name), device_name)
        edges = graph.edges(control=include_control, reversed_refs=include_reversed_ref)
        return trace_inputs(node_name, edges, graph.merges)[0]

    def find_some_path(
        self,
        src_node_name: str,
        dst_node_name: str,
        include_control: bool = True,
        include_reversed_ref: bool = False,
        device_name: str | None = None,
    ) -> list[str] | None:
        """Some path along the edges from one node to another, both included; None if there is none.

        Args:
            src_node_name: where the path starts, a node or a tensor.
            dst_node_name: where it ends.
            include_control: follow control edges too.
            include_reversed_ref: also go from a node that changes a variable to that variable.
            device_name: needed when the nodes are on several devices.
        """
        self._need_graphs()
        source, target = node_of(src_node_name), node_of(dst_node_name)
        places = [self._device_of(name, device_name) for name in (source, target)]
        if places[0] != places[1]:
            raise UsageError(
                f"Source ({src_node_name}) and destination ({dst_node_name}) are not on the same device: "
                f"{places[0]} and {places[1]}."
            )
        graph = self._graph_of(target, places[1])
        edges = graph.edges(control=include_control, reversed_refs=include_reversed_ref)
        return trace_inputs(target, edges, graph.merges, goal=source)[1]

    # --- source lines ------------------------------------------------------------------------------

    def set_python_graph(self, python_graph: Any) -> None:
        """Give the program's own graph object, whose operations know where they were created."""
        self._python_graph = python_graph
        self._tracebacks = {}
        if python_graph is not None:
            for op in python_graph.get_operations():
                self._tracebacks[op.name] = tuple(map(tuple, op.traceback))

    @property
    def python_graph(self) -> Any:
        """The graph object given to `set_python_graph`, None if none was."""
        return self._python_graph

    def node_traceback(self, element_name: str) -> tuple[tuple[str, int, str, str], ...]:
        """Where a node was created: of the Python graph if one was set, else the lines stored with the node.

        Returns:
            Frames, outermost first: file, line, function, and the text of the line, empty if its file was not stored.

        Raises:
            LookupError: there is no Python graph and no stored lines at all.
            KeyError: there is one, but it does not know the node.
        """
        node = node_of(element_name)
        if self._python_graph is not None:
            if node not in self._tracebacks:
                raise KeyError(f'Cannot find node "{node}" in Python graph.')
            found: tuple[tuple[str, int, str, str], ...] = self._tracebacks[node]
            return found
        for graph in self._graphs.values():
            frames = graph.traceback(node)
            if frames is not None:
                return tuple((each.file, each.line, each.function, self._line(each)) for each in frames)
        stored = any(
            "_source" in attributes for g in self._graphs.values() for attributes in g.attributes.values()
        )
        if stored:
            raise KeyError(f"There are no source lines for node {node!r}.")
        raise NotThereError(
            "Python graph is not available for traceback lookup, and the dump holds no source lines."
        )

    def _line(self, frame: Frame) -> str:
        """The text of a line, empty if its file was not stored."""
        if frame.file not in self._lines:
            try:
                self._lines[frame.file] = self.source_text(frame.file).splitlines()
            except (KeyError, OSError, ValueError):
                self._lines[frame.file] = []
        lines = self._lines[frame.file]
        return lines[frame.line - 1].strip() if 0 < frame.line <= len(lines) else ""

    def source_files(self) -> list[str]:
        """Paths of the source files stored with the run."""
        return self.source.source_files()

    def source_text(self, path: str) -> str:
        """The file as it was when the run was made; KeyError if it was not stored."""
        return self.source.source_text(path)

    # --- finding the graph -------------------------------------------------------------------------

    def _need_graphs(self) -> None:
        if not self._graphs:
            raise NotThereError("No partition graphs have been loaded: the dump holds none.")

    def _device_of(self, node_name: str, device_name: str | None) -> str:
        if device_name is not None:
            return device_name
        places = self._node_devices.get(node_name, [])
        if len(places) == 1:
            return places[0]
        if places:
            raise UsageError(
                f"There are multiple ({len(places)}) devices with nodes named {node_name!r} but device_name "
                "is not specified."
            )
        raise UsageError(f"None of the {len(self.source.devices)} device(s) has a node named {node_name!r}.")

    def _graph_of(self, node_name: str, device_name: str | None) -> DebugGraph:
        self._need_graphs()
        device = self._device_of(node_name, device_name)
        graph = self._graphs.get(device)
        if graph is None:
            # A node may carry another device name than the directory of its graph.
            graph = next(
                (each for each in self._graphs.values() if each.devices.get(node_name) == device), None
            )
        if graph is None:
            raise UsageError(f"There is no graph of device {device!r}; there are {', '.join(self._graphs)}.")
        if node_name not in graph.inputs:
            raise UsageError(f"Device {device!r} has no node named {node_name!r}.")
        return graph
