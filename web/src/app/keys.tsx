// Keys that work everywhere, and the list of all of them.
import { useEffect, useRef } from "preact/hooks";
import { addressOf, go } from "./router";

const GRID_KEYS: [string, string][] = [
  ["↑ ↓", "row"],
  ["← →", "pan; fold or unfold with Shift"],
  ["+ −  0", "zoom in, out, everything"],
  ["Enter", "open the tensor"],
  ["b", "go to the first bad cell"],
  ["/", "filter by name"],
];

export function Keys(props: { views: [string, string, string][]; job: string | null; params: Record<string, string> }) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const pressed = (event: KeyboardEvent) => {
      const target = event.target as HTMLElement;
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (/^(INPUT|SELECT|TEXTAREA)$/.test(target.tagName)) return;
      const { name, run, rank } = props.params;
      const view = props.views.find(([, , key]) => key === event.key);
      if (view) go(addressOf(props.job, view[0], { name, run, rank }));
      else if (event.key === "?") dialog.current?.showModal();
      else if (event.key === "/") {
        const filter = document.querySelector<HTMLInputElement>("[data-filter]");
        if (!filter) return;
        event.preventDefault();
        filter.focus();
      }
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  });
  return (
    <>
      <button type="button" class="quiet" title="Keys (?)" onClick={() => dialog.current?.showModal()}>
        ?
      </button>
      <dialog ref={dialog} onClick={(event) => event.target === dialog.current && dialog.current?.close()}>
        <h2>Keys</h2>
        <dl class="keys">
          {props.views.map(([, title, key]) => (
            <>
              <dt>{key}</dt>
              <dd>{title}</dd>
            </>
          ))}
          {GRID_KEYS.map(([key, what]) => (
            <>
              <dt>{key}</dt>
              <dd>{what}</dd>
            </>
          ))}
        </dl>
        <form method="dialog">
          <button type="submit">Close</button>
        </form>
      </dialog>
    </>
  );
}
