/**
 * The commands without an answer. Each is stored with its Idempotency-Key before the app sends it,
 * until there is an answer. So a command survives a dropped connection and a reload, and the app
 * sends it again with the same key: the API carries it out once.
 *
 * A command is data, not a function, so that it can be stored. Its kind names the function that
 * sends it.
 */
import { Problem } from "../client/index";

/** A command as the app stores it. */
export interface Entry<Input = unknown> {
  /** The Idempotency-Key. */
  key: string;
  /** The subject of the user who sent the command. No other user sees it. */
  user: string;
  /** The name of the command, such as `bank.credit`. */
  kind: string;
  input: Input;
  /** The command in words. */
  label: string;
  /**
   * `sending`: the app waits for the answer. `unknown`: no answer came. `answered`: the API has
   * carried the command out, and the page reads the result.
   */
  state: "sending" | "unknown" | "answered";
  /** Whether an earlier attempt had no answer. */
  isRetry: boolean;
}

/** Sends a command under its key. */
export type Send<Input> = (input: Input, key: string) => Promise<unknown>;

const STORAGE = "ledgerline-outbox";

export type Outbox = ReturnType<typeof openOutbox>;

/** Opens the outbox of a user, with the functions that send commands, by kind. */
export function openOutbox(user: string, kinds: Map<string, Send<never>>, storage: Storage = sessionStorage) {
  const listeners = new Set<() => void>();
  // Nothing is being sent after a reload.
  let entries = stored(storage).map((entry): Entry => ({ ...entry, state: "unknown" }));

  function write(changed: Entry[]) {
    entries = changed;
    // An answer ends a command, also if the page is closed before it has read the result.
    storage.setItem(STORAGE, JSON.stringify(entries.filter(({ state }) => state !== "answered")));
    for (const listener of listeners) listener();
  }

  function set(key: string, state: Entry["state"]) {
    write(entries.map((entry) => (entry.key === key ? { ...entry, state } : entry)));
  }

  function remove(key: string) {
    write(entries.filter((entry) => entry.key !== key));
  }

  async function attempt({ key, kind, input }: Entry, refresh?: () => Promise<void>): Promise<void> {
    const send = kinds.get(kind) as Send<unknown> | undefined;
    if (send === undefined) return remove(key);
    try {
      await send(input, key);
    } catch (error) {
      if (isAnswer(error)) remove(key);
      else set(key, "unknown");
      throw error;
    }
    set(key, "answered");
    // The entry stays until the page shows the result, so that nothing flickers.
    await refresh?.().catch(() => {});
    remove(key);
  }

  return {
    /** The commands of this user, the oldest first. */
    entries: () => entries.filter((entry) => entry.user === user),
    subscribe(listener: () => void) {
      listeners.add(listener);
      return () => void listeners.delete(listener);
    },
    /**
     * Sends a command. The promise fails with the error of the last attempt. `refresh` reads what
     * the command changed.
     */
    send<Input>(kind: string, input: Input, label: string, refresh?: () => Promise<void>): Promise<void> {
      const entry: Entry = { key: crypto.randomUUID(), user, kind, input, label, state: "sending", isRetry: false };
      write([...entries, entry]);
      return attempt(entry, refresh);
    },
    /** Sends a command without an answer again, with its key. */
    retry(retried: Entry, refresh?: () => Promise<void>): Promise<void> {
      const again = { ...retried, state: "sending" as const, isRetry: true };
      write(entries.map((entry) => (entry.key === retried.key ? again : entry)));
      return attempt(again, refresh);
    },
    /** Forgets a command. It may have been carried out. */
    remove,
  };
}

/** Whether an error says that the API did not carry the command out. */
export function isAnswer(error: unknown): boolean {
  return error instanceof Problem && error.status < 500 && error.status !== 401 && error.status !== 429;
}

function stored(storage: Storage): Entry[] {
  try {
    const entries: unknown = JSON.parse(storage.getItem(STORAGE) ?? "[]");
    return Array.isArray(entries) ? (entries as Entry[]) : [];
  } catch {
    return [];
  }
}
