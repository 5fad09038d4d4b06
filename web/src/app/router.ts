// Where we are: `#/JOB/VIEW?name=value`. Every view keeps its state here, so that an address shows the same again.
import { useEffect, useState } from "preact/hooks";

export interface Place {
  job: string | null;
  view: string;
  params: Record<string, string>;
}

export type Params = Record<string, string | number | null | undefined>;

export function parse(hash: string): Place {
  const [path = "", query = ""] = split(hash.replace(/^#\/?/, ""), "?");
  const [job = "", view = ""] = path.split("/");
  const params: Record<string, string> = {};
  for (const part of query.split("&")) {
    if (!part) continue;
    const [key, value = ""] = split(part, "=");
    params[decoded(key!)] = decoded(value);
  }
  return { job: job ? decoded(job) : null, view: view || "overview", params };
}

export function addressOf(job: string | null, view: string, params: Params = {}): string {
  const given = Object.entries(params).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const query = given.map(([key, value]) => `${key}=${encodeURIComponent(String(value))}`).join("&");
  return `#/${job ? encodeURIComponent(job) : ""}/${view}${query ? `?${query}` : ""}`;
}

/** Go somewhere; `replace` leaves no step in the history, for what changes while one looks. */
export function go(address: string, replace = false): void {
  if (address === location.hash) return;
  if (replace) {
    history.replaceState(null, "", address);
    dispatchEvent(new HashChangeEvent("hashchange"));
  } else {
    location.hash = address;
  }
}

export function usePlace(): Place {
  const [place, setPlace] = useState(() => parse(location.hash));
  useEffect(() => {
    const moved = () => setPlace(parse(location.hash));
    addEventListener("hashchange", moved);
    return () => removeEventListener("hashchange", moved);
  }, []);
  return place;
}

function split(text: string, by: string): [string, string | undefined] {
  const place = text.indexOf(by);
  return place < 0 ? [text, undefined] : [text.slice(0, place), text.slice(place + 1)];
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
