// Hands a trace to Perfetto's own page, from this tab to that one. Only on a click; nothing is loaded into this page.
const ADDRESS = "https://ui.perfetto.dev";
const PATIENCE = 30_000;

export function openInPerfetto(trace: ArrayBuffer, title: string): boolean {
  const other = window.open(ADDRESS);
  if (!other) return false;
  const knock = setInterval(() => other.postMessage("PING", ADDRESS), 200);
  const stop = () => {
    clearInterval(knock);
    removeEventListener("message", heard);
  };
  const heard = (event: MessageEvent) => {
    if (event.source !== other || event.origin !== ADDRESS || event.data !== "PONG") return;
    stop();
    other.postMessage({ perfetto: { buffer: trace, title } }, ADDRESS);
  };
  addEventListener("message", heard);
  setTimeout(stop, PATIENCE);
  return true;
}
