// Elements as numbers, a window at a time.
import { useState } from "preact/hooks";
import type { RunPlace } from "../api/client";
import type { Nested, Pictured } from "../api/types";
import { useHere, useLoaded } from "../app/context";
import { Loading, Problem } from "../parts/parts";
import { asNumber, count } from "../parts/text";

const ROWS = 24;
const COLUMNS = 10;

export function ValueTable(props: { place: RunPlace; name: string; execution: number; pictured: Pictured }) {
  const { client } = useHere();
  const [top, setTop] = useState(0);
  const [left, setLeft] = useState(0);
  const { shape } = props.pictured;
  const [rows, columns] = shape.length > 1 ? [shape[shape.length - 2]!, shape[shape.length - 1]!] : [shape[0] ?? 1, 1];
  const isSliced = props.name.includes("[");
  const windowed = `${top}:${top + ROWS}${shape.length > 1 ? `, ${left}:${left + COLUMNS}` : ""}`;
  const leading = Array.from({ length: Math.max(0, shape.length - 2) }, () => "0, ").join("");
  // What is sliced already is cut here, what is not at the server.
  const asked = isSliced || !shape.length || client.isReport ? props.name : `${props.name}[${leading}${windowed}]`;
  const { data, problem } = useLoaded(() => client.value(props.place, asked, props.execution), [client, props.place, asked, props.execution]);
  if (problem) return <Problem text={problem} />;
  if (!data) return <Loading what="Reading elements…" />;
  if (data.note) return <p class="muted">{data.note}</p>;
  const whole = matrix(data.value);
  const isWhole = asked === props.name;
  const shown = isWhole ? whole.slice(top, top + ROWS).map((row) => row.slice(left, left + COLUMNS)) : whole;
  return (
    <div class="elements">
      <div class="scroll">
        <table>
          <thead>
            <tr>
              <th />
              {shown[0]?.map((_, column) => <th>{shape.length > 1 ? left + column : ""}</th>)}
            </tr>
          </thead>
          <tbody>
            {shown.map((row, line) => (
              <tr>
                <th>{top + line}</th>
                {row.map((cell) => {
                  const [text, kind] = element(cell);
                  return <td class={kind}>{text}</td>;
                })}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {(rows > ROWS || columns > COLUMNS) && (
        <div class="bar pages">
          <button type="button" disabled={!top} onClick={() => setTop(Math.max(0, top - ROWS))}>↑</button>
          <button type="button" disabled={top + ROWS >= rows} onClick={() => setTop(top + ROWS)}>↓</button>
          <button type="button" disabled={!left} onClick={() => setLeft(Math.max(0, left - COLUMNS))}>←</button>
          <button type="button" disabled={left + COLUMNS >= columns} onClick={() => setLeft(left + COLUMNS)}>→</button>
          <span class="muted">
            rows {count(top)}–{count(Math.min(rows, top + ROWS) - 1)} of {count(rows)}
            {shape.length > 1 && <>, columns {count(left)}–{count(Math.min(columns, left + COLUMNS) - 1)} of {count(columns)}</>}
          </span>
        </div>
      )}
    </div>
  );
}

/** The first matrix of what was nested. */
function matrix(value: Nested | null): Nested[][] {
  if (value === null) return [];
  if (!Array.isArray(value)) return [[value]];
  let found: Nested[] = value;
  while (Array.isArray(found[0]) && Array.isArray(found[0][0])) found = found[0];
  return found.map((row) => (Array.isArray(row) ? row : [row]));
}

function element(cell: Nested): [string, string] {
  if (typeof cell === "boolean") return [String(cell), ""];
  if (typeof cell === "number") return [Number.isInteger(cell) ? String(cell) : cell.toPrecision(6), ""];
  const number = asNumber(cell as string);
  if (cell === "nan") return ["NaN", "nan"];
  return Number.isNaN(number) ? [String(cell), ""] : [number > 0 ? "+inf" : "−inf", "inf"];
}
