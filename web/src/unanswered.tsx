import { useEffect, useState } from "preact/hooks";
import type { Shared } from "./application";
import { isAnswer, type PendingCommand } from "./outbox";
import { focusHeading } from "./ui/parts";

/** The commands without an answer. The user may send each again: the API carries it out once. */
export function Unanswered({ shared }: { shared: Shared }) {
  const { outbox, notify, carriedOut, reload, explain } = shared;
  const [, render] = useState({});
  useEffect(() => outbox.subscribe(() => render({})), [outbox]);
  const entries = outbox.entries().filter(({ state, isRetry }) => state === "unknown" || isRetry);
  if (entries.length === 0) return null;

  async function retry(entry: PendingCommand) {
    // The button remains, so that it keeps the focus.
    const { state, kind, input, label } = entry;
    if (state !== "unknown") return;
    try {
      await outbox.retry(entry, () => carriedOut(kind, input, label));
      focusHeading();
    } catch (error) {
      notify(`${label}: ${await explain(error)}`, true);
      // A refusal may mean that the page shows an older state.
      if (isAnswer(error)) {
        focusHeading();
        await reload();
      }
    }
  }

  function forget({ key, label }: PendingCommand) {
    if (!confirm(`The service may have carried this out: ${label}. Forget it?`)) return;
    outbox.remove(key);
    focusHeading();
  }

  return (
    <section class="card problem" aria-labelledby="unanswered">
      <h2 id="unanswered">Without an answer</h2>
      <p>The service may have carried out these commands. It carries out each one once, even if you send it again.</p>
      <ul role="list">
        {entries.map((entry) => (
          <li key={entry.key}>
            <span>{entry.label}</span>
            <span class="actions">
              <button type="button" aria-disabled={entry.state !== "unknown"} onClick={() => void retry(entry)}>
                {entry.state === "unknown" ? "Send again" : "Sending…"}
              </button>
              <button type="button" class="plain" onClick={() => forget(entry)}>
                Forget
              </button>
            </span>
          </li>
        ))}
      </ul>
    </section>
  );
}
