// The graph around a node: what it was made of above, what was made of it below. Click to walk.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { useAddress, useHere, useLoaded, useParams } from "../app/context";
import { go } from "../app/router";
import { Empty, Loading, Mark, Problem, SourceLink, TensorLink } from "../parts/parts";
import { baseName } from "../parts/text";
import { type Layout, laidOut } from "./layout";

export function GraphView() {
  const { client, job, params, state } = useHere();
  const change = useParams();
  const address = useAddress();
  const name = params.name ?? "";
  const run = params.run ?? "last";
  const task = params.rank === undefined ? null : Number(params.rank);
  const depth = Number(params.depth ?? 2);
  const { data, problem } = useLoaded(
    () => (name ? client.node({ job, run, task }, name, depth) : Promise.reject(new Error(""))),
    [client, job, run, task, name, depth, run === "last" ? state.runs : 0],
  );
  const layout = useMemo(() => {
    return data ? laidOut(data, new Set(params.open ? params.open.split("\n") : [])) : null;
  }, [data, params.open]);
  if (!name) {
    return (
      <Empty title="No node is chosen">
        <p>
          Choose a tensor in the <a href={address("overview")}>grid</a>, or follow a name of the answer.
        </p>
      </Empty>
    );
  }
  if (!data || !layout) return problem ? <Problem text={problem} /> : <Loading what="Reading the graph…" />;
  const node = data.node;
  const walk = (to: string) => go(address("graph", { ...params, name: to }));
  return (
    <>
      <section class="card">
        <div class="bar">
          <h2 class="name">
            <Mark health={node.health} />
            <bdi>{node.name}</bdi>
          </h2>
          <span class="mono muted">{node.op}</span>
          <span class="muted">{node.text}</span>
          <TensorLink name={node.tensor} run={run} rank={task} label="tensor" />
          {node.source && (
            <SourceLink {...node.source} run={run} rank={task} label={`${baseName(node.source.file)}:${node.source.line}`} />
          )}
          <span class="space" />
          <span class="muted">{depth === 1 ? "1 step" : `${depth} steps`} away</span>
          <button type="button" disabled={depth <= 1} onClick={() => change({ depth: depth - 1 })} aria-label="Fewer steps">
            −
          </button>
          <button type="button" disabled={depth >= 8} onClick={() => change({ depth: depth + 1 })} aria-label="More steps">
            +
          </button>
        </div>
        {problem && <Problem text={problem} />}
        <Drawing
          layout={layout}
          focus={node.name}
          choose={(box) => {
            if (box.node) walk(box.node.name);
            else {
              const inside = data.nodes.filter((each) => box.key.startsWith(`module ${each.module} `));
              change({ open: [...new Set([...(params.open ? [params.open] : []), ...inside.map((each) => each.module!)])].join("\n") });
            }
          }}
        />
        {data.left_out > 0 && <p class="muted small">{data.left_out} more nodes are not shown.</p>}
        {data.path.length > 1 && (
          <details class="path">
            <summary>Its way to the loss: {data.path.length - 1} steps</summary>
            <ol>
              {data.path.map((each) => (
                <li>
                  <a class="name" href={address("graph", { ...params, name: each })}>
                    <bdi>{each}</bdi>
                  </a>
                </li>
              ))}
            </ol>
          </details>
        )}
      </section>
      <section class="card">
        <h2>About this node</h2>
        <table class="plain">
          <tbody>
            {node.inputs.map((each) => (
              <tr>
                <td class="muted">input</td>
                <td>
                  <TensorLink name={each.tensor} run={run} rank={task} />
                </td>
                <td>{each.health}</td>
              </tr>
            ))}
            {node.outputs.map((each) => (
              <tr>
                <td class="muted">output</td>
                <td>
                  <TensorLink name={each.tensor} run={run} rank={task} />
                </td>
                <td>{each.health}</td>
              </tr>
            ))}
            {Object.entries(node.attributes).map(([key, value]) => (
              <tr>
                <td class="muted">{key}</td>
                <td class="mono" colSpan={2}>
                  <bdi>{value}</bdi>
                </td>
              </tr>
            ))}
            {[...node.stack].reverse().map((frame, place) => (
              <tr>
                <td class="muted">{place ? "from" : "line"}</td>
                <td colSpan={2}>
                  <SourceLink file={frame.file} line={frame.line} run={run} rank={task} /> <span class="muted">in <bdi>{frame.function}</bdi></span>
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </section>
    </>
  );
}

function Drawing(props: { layout: Layout; focus: string; choose: (box: Layout["boxes"][number]) => void }) {
  const { layout, focus } = props;
  const svg = useRef<SVGSVGElement>(null);
  const [view, setView] = useState({ x: 0, y: 0, width: layout.width, height: layout.height });
  const dragged = useRef(false);
  useEffect(() => {
    // As much as is readable, with the node in the middle.
    const box = layout.boxes.find((each) => each.key === focus) ?? layout.boxes[0];
    const room = svg.current?.getBoundingClientRect();
    const [width, height] = [Math.max(room?.width ?? 900, 300), Math.max(room?.height ?? 480, 200)];
    const scale = Math.min(1.6, Math.max(1, layout.width / width, layout.height / height));
    const [w, h] = [width * scale, height * scale];
    const centre = (at: number, whole: number, shown: number) => (whole <= shown ? (whole - shown) / 2 : Math.min(Math.max(at - shown / 2, 0), whole - shown));
    setView({ x: centre(box?.x ?? 0, layout.width, w), y: centre(box?.y ?? 0, layout.height, h), width: w, height: h });
  }, [layout, focus]);
  useEffect(() => {
    const element = svg.current;
    if (!element) return;
    const wheel = (event: WheelEvent) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      const box = element.getBoundingClientRect();
      const factor = Math.exp(Math.min(50, Math.max(-50, event.deltaY)) / 150);
      const [sx, sy] = [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
      setView((now) => ({
        x: now.x + now.width * sx * (1 - factor),
        y: now.y + now.height * sy * (1 - factor),
        width: now.width * factor,
        height: now.height * factor,
      }));
    };
    element.addEventListener("wheel", wheel, { passive: false });
    return () => element.removeEventListener("wheel", wheel);
  }, []);
  const down = (event: PointerEvent) => {
    const element = svg.current!;
    const start = { x: event.clientX, y: event.clientY, view };
    const scale = view.width / element.getBoundingClientRect().width;
    dragged.current = false;
    const move = (next: PointerEvent) => {
      const [dx, dy] = [next.clientX - start.x, next.clientY - start.y];
      if (Math.abs(dx) + Math.abs(dy) > 5) dragged.current = true;
      setView({ ...start.view, x: start.view.x - dx * scale, y: start.view.y - dy * scale });
    };
    const up = () => {
      removeEventListener("pointermove", move);
      removeEventListener("pointerup", up);
    };
    addEventListener("pointermove", move);
    addEventListener("pointerup", up);
  };
  return (
    <svg class="graph" ref={svg} viewBox={`${view.x} ${view.y} ${view.width} ${view.height}`} onPointerDown={down} role="group" aria-label="Graph">
      <defs>
        {["arrow", "arrow-path"].map((id) => (
          <marker id={id} viewBox="0 0 8 8" refX="7" refY="4" markerUnits="userSpaceOnUse" markerWidth="9" markerHeight="9" orient="auto">
            <path d="M0 0L8 4L0 8z" />
          </marker>
        ))}
      </defs>
      {layout.lines.map((line) => (
        <path key={line.key} class={`edge${line.isControl ? " control" : ""}${line.isPath ? " path" : ""}`} d={curve(line.points)} marker-end={line.isPath ? "url(#arrow-path)" : "url(#arrow)"}>
          <title>{line.tensor}</title>
        </path>
      ))}
      {layout.boxes.map((box) => (
        <g
          key={box.key}
          class={`box ${box.health}${box.key === focus ? " focus" : ""}${box.node ? "" : " folded"}`}
          transform={`translate(${box.x - box.width / 2} ${box.y - box.height / 2})`}
          tabindex={0}
          role="button"
          data-node={box.node?.name}
          onClick={() => !dragged.current && props.choose(box)}
          onKeyDown={(event) => event.key === "Enter" && props.choose(box)}
        >
          <title>{box.node ? `${box.node.name}\n${box.node.op}\n${box.node.text}` : `${box.title}: click to open`}</title>
          <rect width={box.width} height={box.height} rx="6" />
          <text class="sign" x="11" y="18">
            {box.health === "bad" ? "✗" : box.health === "good" ? "✓" : "?"}
          </text>
          <text class="title" x="24" y="18">
            {box.title}
          </text>
          <text class="under" x="24" y="34">
            {box.under}
          </text>
        </g>
      ))}
    </svg>
  );
}

function curve(points: { x: number; y: number }[]): string {
  if (points.length < 3) return points.map((point, place) => `${place ? "L" : "M"}${point.x} ${point.y}`).join("");
  let path = `M${points[0]!.x} ${points[0]!.y}`;
  for (let place = 1; place < points.length - 1; place++) {
    const [at, next] = [points[place]!, points[place + 1]!];
    const end = place === points.length - 2 ? next : { x: (at.x + next.x) / 2, y: (at.y + next.y) / 2 };
    path += `Q${at.x} ${at.y} ${end.x} ${end.y}`;
  }
  return path;
}
