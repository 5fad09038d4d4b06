// The server wants a token: asked for once, kept in this browser, sent in a header.
import { useState } from "preact/hooks";

export function TokenForm({ isSecond, unlock }: { isSecond: boolean; unlock: (token: string) => void }) {
  const [token, setToken] = useState("");
  const submit = (event: Event) => {
    event.preventDefault();
    if (token) unlock(token);
  };
  return (
    <main class="locked">
      <form onSubmit={submit}>
        <h1>tensortap</h1>
        <label for="token">This server wants its token, as given to `tensortap serve --token`.</label>
        <input
          id="token"
          type="password"
          autocomplete="current-password"
          value={token}
          onInput={(event) => setToken(event.currentTarget.value)}
        />
        <button type="submit" class="primary">
          Open
        </button>
        {isSecond && (
          <p class="problem" role="alert">
            That was not the token.
          </p>
        )}
      </form>
    </main>
  );
}
