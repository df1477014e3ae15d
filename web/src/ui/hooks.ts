import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { Problem } from "../../client/index";
import { useShared, type Route } from "../application";
import { ENDED } from "../explain";
import { isAnswer, type PendingCommand } from "../outbox";

/** Reads the route in the app from the address: `#/bank/accounts?x=y`. */
export function readRoute(): Route {
  const [path = "", query = ""] = location.hash.slice(1).split("?");
  const segments = path.split("/").filter((segment) => segment !== "");
  return { segments: segments.map(decoded), query: new URLSearchParams(query) };
}

/** Decodes a segment of the address. A segment that is not valid stays as it is. */
function decoded(segment: string): string {
  try {
    return decodeURIComponent(segment);
  } catch {
    return segment;
  }
}

export function useRoute(): Route {
  const [route, setRoute] = useState(readRoute);
  useEffect(() => {
    const moved = () => setRoute(readRoute());
    addEventListener("hashchange", moved);
    return () => removeEventListener("hashchange", moved);
  }, []);
  return route;
}

export interface Query<Data> {
  data?: Data;
  /** Why the last read failed. */
  problem?: string;
  isLoading: boolean;
  reload: () => Promise<Data | undefined>;
}

/** Reads data when the component appears, and when the inputs change. */
export function useQuery<Data>(read: (signal: AbortSignal) => Promise<Data>, inputs: unknown[]): Query<Data> {
  const { explain, queries } = useShared();
  const [state, setState] = useState<{ data?: Data; problem?: string; isLoading: boolean }>({ isLoading: true });
  const latest = useRef<AbortController | null>(null);

  const reload = useCallback(async () => {
    // An answer to an earlier read must not replace that of a later one.
    latest.current?.abort();
    const own = new AbortController();
    latest.current = own;
    try {
      const data = await read(own.signal);
      if (!own.signal.aborted) setState({ data, isLoading: false });
      return data;
    } catch (error) {
      if (own.signal.aborted) return undefined;
      const problem = await explain(error);
      if (!own.signal.aborted) setState((before) => ({ ...before, problem, isLoading: false }));
      return undefined;
    }
  }, inputs);

  useEffect(() => {
    setState({ isLoading: true });
    void reload();
    queries.add(reload);
    return () => {
      queries.delete(reload);
      latest.current?.abort();
    };
  }, [reload]);

  return { ...state, reload };
}

export interface Rows<Row> {
  rows: Row[];
  cursor?: string | null;
}

/** Reads a list: the first page at once, and later pages when the user asks for them. */
export function useList<First extends Rows<unknown>>(
  read: (query: { cursor?: string }, signal?: AbortSignal) => Promise<First>,
  inputs: unknown[],
) {
  const { explain, notify } = useShared();
  const first = useQuery((signal) => read({}, signal), inputs);
  const [later, setLater] = useState<Rows<First["rows"][number]> | undefined>();
  useEffect(() => setLater(undefined), [first.data]);
  const cursor = later === undefined ? first.data?.cursor : later.cursor;

  const isReading = useRef(false);
  const shown = useRef(first.data);
  shown.current = first.data;

  async function more() {
    // A second click would add the same page twice.
    if (isReading.current) return;
    isReading.current = true;
    try {
      const begun = first.data;
      const page = await read(cursor ? { cursor } : {});
      // A page of an older list does not belong to this one.
      if (shown.current === begun) {
        setLater((before) => ({ ...page, rows: [...(before?.rows ?? []), ...page.rows] }));
      }
    } catch (error) {
      notify(await explain(error), true);
    } finally {
      isReading.current = false;
    }
  }

  const rows: First["rows"][number][] | undefined = first.data && [...first.data.rows, ...(later?.rows ?? [])];
  return { ...first, rows, more: cursor ? more : undefined };
}

/** The commands of a kind whose results the page does not show yet. */
export function usePendingCommands<Input>(kind: string, isAbout: (input: Input) => boolean = () => true): PendingCommand<Input>[] {
  const { outbox } = useShared();
  const [, render] = useState({});
  useEffect(() => outbox.subscribe(() => render({})), [outbox]);
  const entries = outbox.entries() as PendingCommand<Input>[];
  return entries.filter((entry) => entry.kind === kind && isAbout(entry.input));
}

/** The outcome of a command: carried out, refused, or without an answer. */
export type Outcome = "done" | "refused" | "unknown";

export interface Command<Input> {
  /** Sends the command. `settled` waits until an eventually consistent view shows the change. */
  send: (input: Input, label: string, settled?: () => Promise<unknown>) => Promise<Outcome>;
  isSending: boolean;
  /** Why the API did not carry out the last command. */
  problem?: string | undefined;
  /** The code of that problem, such as `unknown-user`. */
  code?: string | undefined;
  /** Refuses an input that cannot be sent. */
  refuse: (problem: string) => Outcome;
}

/** A command of the page. */
export function useCommand<Input>(kind: string): Command<Input> {
  const { outbox, reload, explain, notify, carriedOut } = useShared();
  const [isSending, setSending] = useState(false);
  const [refusal, setRefusal] = useState<{ problem?: string; code?: string }>({});
  const isShown = useRef(true);
  useEffect(() => () => void (isShown.current = false), []);

  async function send(input: Input, label: string, settled?: () => Promise<unknown>): Promise<Outcome> {
    setRefusal({});
    setSending(true);
    try {
      await outbox.send(kind, input, label, async () => {
        await settled?.();
        await carriedOut(kind, input, label);
      });
      return "done";
    } catch (error) {
      const problem = await explain(error);
      if (!isAnswer(error)) {
        notify(`${label}: ${problem}${problem === ENDED ? "" : " It is unknown whether the command was carried out."}`, true);
        return "unknown";
      }
      // The user may have gone to another page in the meantime.
      if (!isShown.current) notify(`${label}: ${problem}`, true);
      setRefusal({ problem, ...(error instanceof Problem ? { code: error.code } : {}) });
      // A refusal may mean that the page shows an older state.
      await reload();
      return "refused";
    } finally {
      setSending(false);
    }
  }

  function refuse(problem: string): Outcome {
    // A screen reader reads a text again only if it was away.
    setRefusal({});
    setTimeout(() => setRefusal({ problem }));
    return "refused";
  }

  return { send, isSending, refuse, ...refusal };
}

/**
 * Reads until the data show a change, for a view that is eventually consistent and has no version.
 * Gives up after about five seconds: the change is stored, and the view shows it later.
 */
export async function readUntil<Data>(reload: () => Promise<Data | undefined>, isShown: (data: Data) => boolean) {
  const end = Date.now() + 5_000;
  while (Date.now() < end) {
    const data = await reload();
    if (data !== undefined && isShown(data)) return;
    await new Promise((done) => setTimeout(done, 300));
  }
}
