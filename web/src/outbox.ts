/**
 * The commands whose outcome is unknown. Each is stored before the app sends it, with its
 * Idempotency-Key, and until there is an answer. So a command survives a dropped connection and a
 * reload, and the app sends it again with the same key: the API carries it out once.
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
  /** Whether the app waits for the answer. */
  isSending: boolean;
}

/** Sends a command under its key. */
export type Send<Input> = (input: Input, key: string) => Promise<unknown>;

const STORAGE = "ledgerline-outbox";

export type Outbox = ReturnType<typeof openOutbox>;

/** Opens the outbox of a user, with the functions that send commands, by kind. */
export function openOutbox(user: string, kinds: Map<string, Send<never>>, storage: Storage = sessionStorage) {
  const listeners = new Set<() => void>();
  // Nothing is being sent after a reload.
  let entries = stored(storage).map((entry): Entry => ({ ...entry, isSending: false }));

  function write(changed: Entry[]) {
    entries = changed;
    storage.setItem(STORAGE, JSON.stringify(entries));
    for (const listener of listeners) listener();
  }

  function remove(key: string) {
    write(entries.filter((entry) => entry.key !== key));
  }

  async function attempt(entry: Entry, refresh?: () => Promise<void>): Promise<void> {
    const send = kinds.get(entry.kind) as Send<unknown> | undefined;
    if (send === undefined) return remove(entry.key);
    const others = entries.filter((other) => other.key !== entry.key);
    write([...others, { ...entry, isSending: true }]);
    try {
      await send(entry.input, entry.key);
      // The entry stays until the page shows the result, so that nothing flickers.
      await refresh?.().catch(() => {});
      remove(entry.key);
    } catch (error) {
      if (isAnswer(error)) remove(entry.key);
      else write(entries.map((other) => (other.key === entry.key ? { ...entry, isSending: false } : other)));
      throw error;
    }
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
      const key = crypto.randomUUID();
      return attempt({ key, user, kind, input, label, isSending: true }, refresh);
    },
    /** Sends a command again, with its key. */
    retry: attempt,
    /** Forgets a command. It may have been carried out. */
    remove,
  };
}

/** Whether an error says that the API did not carry the command out. */
function isAnswer(error: unknown): boolean {
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
