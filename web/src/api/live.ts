// Follows what changes at the server, connects again when it is lost, and says which of both is the case.
import { type Client, Refused } from "./client";
import type { State } from "./types";

export type Connection = "connecting" | "live" | "lost" | "locked";

const FIRST_PAUSE = 500;
const LONGEST_PAUSE = 5000;

export class Live {
  private stop = new AbortController();
  private asked: string | null | undefined;
  private heard: string | undefined;

  constructor(
    private readonly client: Client,
    private readonly told: (state: State) => void,
    private readonly connected: (connection: Connection, message: string) => void,
  ) {}

  /** Follow a job from now on, instead of the one before; without a name, the first there is. */
  follow(job: string | null): void {
    const isFollowed = job === this.asked || (this.asked === null && job === this.heard);
    this.asked = job;
    if (isFollowed) return;
    this.heard = undefined;
    this.stop.abort();
    this.stop = new AbortController();
    void this.run(this.stop.signal);
  }

  end(): void {
    this.stop.abort();
  }

  private async run(signal: AbortSignal): Promise<void> {
    let pause = FIRST_PAUSE;
    while (!signal.aborted) {
      try {
        for await (const state of this.client.events(this.asked ?? null, signal)) {
          if (signal.aborted) return;
          pause = FIRST_PAUSE;
          this.heard = state.job;
          this.connected("live", "");
          this.told(state);
        }
        if (!signal.aborted) this.connected("lost", "The server has ended the connection.");
      } catch (error) {
        if (signal.aborted) return;
        const locked = error instanceof Refused && error.status === 401;
        this.connected(locked ? "locked" : "lost", error instanceof Error ? error.message : String(error));
        if (locked) return;
      }
      await new Promise((resolve) => setTimeout(resolve, pause));
      pause = Math.min(pause * 1.6, LONGEST_PAUSE);
    }
  }
}
