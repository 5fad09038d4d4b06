// Follows what changes at the server, connects again when it is lost, and says which of both is the case.
import { type Client, Refused } from "./client";
import type { State } from "./types";

export type Connection = "connecting" | "live" | "lost" | "locked";

const FIRST_PAUSE = 500;
const LONGEST_PAUSE = 5000;

export class Live {
  private stop = new AbortController();

  constructor(
    private readonly client: Client,
    private readonly told: (state: State) => void,
    private readonly connected: (connection: Connection, message: string) => void,
  ) {}

  /** Follow a job from now on, instead of the one before. */
  follow(job: string | null): void {
    this.stop.abort();
    this.stop = new AbortController();
    void this.run(job, this.stop.signal);
  }

  end(): void {
    this.stop.abort();
  }

  private async run(job: string | null, signal: AbortSignal): Promise<void> {
    let pause = FIRST_PAUSE;
    while (!signal.aborted) {
      try {
        for await (const state of this.client.events(job, signal)) {
          if (signal.aborted) return;
          pause = FIRST_PAUSE;
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
