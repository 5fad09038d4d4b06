// What every view has: the client, where we are, and what has changed at the server.
import { createContext } from "preact";
import { useContext, useEffect, useState } from "preact/hooks";
import type { Client } from "../api/client";
import type { State } from "../api/types";
import { type Params, addressOf, go, parse } from "./router";

export interface Context {
  client: Client;
  job: string;
  params: Record<string, string>;
  view: string;
  state: State;
  isLive: boolean;
}

export const Here = createContext<Context>(null as unknown as Context);

export function useHere(): Context {
  return useContext(Here);
}

/** The address of a view of this job. */
export function useAddress(): (view: string, params?: Params) => string {
  const { job } = useHere();
  return (view, params) => addressOf(job, view, params);
}

/** Change some parameters of this view. */
export function useParams(): (changes: Params, replace?: boolean) => void {
  const { job, view } = useHere();
  // Of the address as it is now: two changes may come before the page is drawn again.
  return (changes, replace = true) => go(addressOf(job, view, { ...parse(location.hash).params, ...changes }), replace);
}

export interface Loaded<A> {
  data: A | null;
  problem: string;
  isLoading: boolean;
}

/** An answer of the server, asked for again when one of the keys changes; the old one stays until the new is there. */
export function useLoaded<A>(load: () => Promise<A>, keys: unknown[]): Loaded<A> {
  const [found, setFound] = useState<Loaded<A>>({ data: null, problem: "", isLoading: true });
  useEffect(() => {
    let isWanted = true;
    setFound((before) => ({ ...before, isLoading: true }));
    load().then(
      (data) => isWanted && setFound({ data, problem: "", isLoading: false }),
      (error: unknown) =>
        isWanted &&
        setFound((before) => ({
          data: before.data,
          problem: error instanceof Error ? error.message : String(error),
          isLoading: false,
        })),
    );
    return () => {
      isWanted = false;
    };
  }, keys);
  return found;
}
