/**
 * The commands without an answer. The app stores each command with its Idempotency-Key before
 * sending it, and removes the command at the answer. So a command survives a dropped connection and
 * a reload. A retry has the same key, so the API carries the command out once.
 *
 * A command is data, not a function, so that the app can store it. Its kind names the function that
 * sends it.
 */
import { Problem } from "../client/index";

/** A command as the app stores it. */
export interface PendingCommand<Input = unknown> {
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
/** The longest time for which a page reads the result of a command, in milliseconds. */
const LONGEST_REFRESH = 10_000;

/** The browser stores nothing, so the app did not send a command. */
export class NotStored extends Error {
  override name = "NotStored";
}

export type Outbox = ReturnType<typeof openOutbox>;

/** Opens the outbox of a user, with the functions that send commands, by kind. */
export function openOutbox(user: string, kinds: Map<string, Send<never>>, storage: Storage = sessionStorage) {
  const listeners = new Set<() => void>();
  // Nothing is being sent after a reload.
  let entries = stored(storage).map((entry): PendingCommand => ({ ...entry, state: "unknown" }));

  let isClosed = false;

  function store(changed: PendingCommand[]) {
    // An answer ends a command, also if the page is closed before it has read the result.
    if (!isClosed) storage.setItem(STORAGE, JSON.stringify(changed.filter(({ state }) => state !== "answered")));
  }

  function write(changed: PendingCommand[]) {
    entries = changed;
    try {
      store(changed);
    } catch {
      // Without storage, the list is still right until the page is closed.
    }
    for (const listener of listeners) listener();
  }

  function set(key: string, state: PendingCommand["state"]) {
    write(entries.map((entry) => (entry.key === key ? { ...entry, state } : entry)));
  }

  function remove(key: string) {
    write(entries.filter((entry) => entry.key !== key));
  }

  async function attempt({ key, kind, input }: PendingCommand, refresh?: () => Promise<void>): Promise<void> {
    const send = kinds.get(kind) as Send<unknown> | undefined;
    try {
      if (send === undefined) throw new Error(`this version of the app has no command ${kind}`);
      await send(input, key);
    } catch (error) {
      if (isAnswer(error)) remove(key);
      else set(key, "unknown");
      throw error;
    }
    set(key, "answered");
    // The entry stays until the page shows the result, so that nothing flickers.
    const tooLong = new Promise((done) => setTimeout(done, LONGEST_REFRESH));
    await Promise.race([refresh?.().catch(() => {}), tooLong]);
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
     * Sends a command. The promise fails with the error of the last attempt, or with
     * {@link NotStored}. `refresh` reads what the command changed.
     */
    async send<Input>(kind: string, input: Input, label: string, refresh?: () => Promise<void>): Promise<void> {
      const entry: PendingCommand = { key: crypto.randomUUID(), user, kind, input, label, state: "sending", isRetry: false };
      try {
        store([...entries, entry]);
      } catch {
        throw new NotStored();
      }
      write([...entries, entry]);
      await attempt(entry, refresh);
    },
    /** Sends a command without an answer again, with its key. */
    retry(retried: PendingCommand, refresh?: () => Promise<void>): Promise<void> {
      const again = { ...retried, state: "sending" as const, isRetry: true };
      write(entries.map((entry) => (entry.key === retried.key ? again : entry)));
      return attempt(again, refresh);
    },
    /** Forgets a command. The API may have carried it out. */
    remove,
    /** Forgets all commands, and stores no more. */
    close() {
      write([]);
      isClosed = true;
    },
  };
}

/** Whether an error says that the API did not carry the command out. */
export function isAnswer(error: unknown): boolean {
  if (error instanceof NotStored) return true;
  return error instanceof Problem && error.status < 500 && error.status !== 401 && error.status !== 429;
}

function stored(storage: Storage): PendingCommand[] {
  try {
    const entries: unknown = JSON.parse(storage.getItem(STORAGE) ?? "[]");
    return Array.isArray(entries) ? entries.filter(isEntry) : [];
  } catch {
    return [];
  }
}

function isEntry(value: unknown): value is PendingCommand {
  const entry = (value ?? {}) as Record<string, unknown>;
  const hasTexts = ["key", "user", "kind", "label"].every((name) => typeof entry[name] === "string");
  return hasTexts && typeof entry["input"] === "object" && entry["input"] !== null;
}
