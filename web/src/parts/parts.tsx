// Small things that several views show.
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { useAddress } from "../app/context";

export function Loading({ what }: { what: string }) {
  return (
    <div class="state" role="status">
      <span class="spinner" /> {what}
    </div>
  );
}

export function Problem({ text }: { text: string }) {
  return (
    <div class="state problem" role="alert">
      {text}
    </div>
  );
}

export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <h2>{title}</h2>
      {children}
    </div>
  );
}

/** Health that can be told apart without its colour: a letter stands for it. */
export function Mark({ health }: { health: string }) {
  const letters: Record<string, string> = { bad: "✗", good: "✓", unknown: "?" };
  return (
    <span class={`mark ${health}`} title={health}>
      {letters[health] ?? "?"}
    </span>
  );
}

export function TensorLink(props: { name: string; run?: string | number; rank?: number | null; label?: string }) {
  const address = useAddress();
  return (
    <a class="name" href={address("tensor", { name: props.name, run: props.run, rank: props.rank })}>
      <bdi>{props.label ?? props.name}</bdi>
    </a>
  );
}

export function SourceLink(props: {
  file: string;
  line: number;
  run?: string | number;
  rank?: number | null;
  label?: string;
}) {
  const address = useAddress();
  const to = { path: props.file, line: props.line, run: props.run, rank: props.rank };
  return (
    <a class="name" href={address("source", to)}>
      <bdi>{props.label ?? `${props.file}:${props.line}`}</bdi>
    </a>
  );
}

export function Choice<V extends string>(props: {
  label: string;
  value: V;
  options: [V, string][];
  choose: (value: V) => void;
}) {
  return (
    <div class="choice" role="radiogroup" aria-label={props.label}>
      {props.options.map(([value, text]) => (
        <button
          type="button"
          role="radio"
          key={value}
          aria-checked={value === props.value}
          onClick={() => props.choose(value)}
        >
          {text}
        </button>
      ))}
    </div>
  );
}

export function Copy({ text }: { text: string }) {
  const [isCopied, setCopied] = useState(false);
  const copy = () => {
    void navigator.clipboard?.writeText(text).then(() => {
      setCopied(true);
      setTimeout(() => setCopied(false), 1200);
    });
  };
  return (
    <button type="button" class="quiet" onClick={copy} title="Copy">
      {isCopied ? "copied" : "copy"}
    </button>
  );
}

/** The size of an element, as it changes. */
export function useSize(): [preactRef: (element: Element | null) => void, width: number, height: number] {
  const [size, setSize] = useState({ width: 0, height: 0 });
  const observer = useRef<ResizeObserver | null>(null);
  useEffect(() => () => observer.current?.disconnect(), []);
  const [attach] = useState(() => (element: Element | null) => {
    observer.current?.disconnect();
    if (!element) return;
    observer.current = new ResizeObserver(() => {
      setSize({ width: element.clientWidth, height: element.clientHeight });
    });
    observer.current.observe(element);
  });
  return [attach, size.width, size.height];
}

export function save(content: BlobPart, name: string): void {
  const address = URL.createObjectURL(new Blob([content], { type: "application/octet-stream" }));
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
