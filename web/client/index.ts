/**
 * A client of an HTTP API of Ledgerline, on `openapi-fetch` and the types that `openapi-typescript`
 * makes from the contract. The client carries out the duties of every client of
 * such an API:
 *
 * 1. A change names the version that it is based on: {@link ifMatch}.
 * 2. A command has an Idempotency-Key, and each attempt at it has the same one.
 * 3. A query can be read-your-writes: {@link Client.ownWrites}.
 * 4. Problem details are errors with types: {@link Problem}.
 * 5. Lists are read page by page: {@link rows}.
 * 6. Retries follow `Retry-After`, or a backoff that doubles.
 * 7. A retry after a refused token has a new one.
 */
import createClient, { type Client as FetchClient, type Middleware } from "openapi-fetch";

/** The options of a client. */
export interface Options {
  /** The address of the API, such as `http://127.0.0.1:3000`. */
  baseUrl: string;
  /** Returns the access token of the user: a new one if the API refused this one. */
  token?: (refused?: string) => string | undefined | Promise<string | undefined>;
  /** The most attempts at a request. */
  attempts?: number;
  /** The longest attempt, in milliseconds. API Gateway answers within 30 seconds. */
  longestAttempt?: number;
  /** Sends a request. Tests replace it. */
  fetch?: (request: Request) => Promise<Response>;
  /** Waits, unless the signal ends the request. Tests replace it. */
  sleep?: (milliseconds: number, signal?: AbortSignal) => Promise<void>;
}

/** A client of the API with these paths. */
export type Client<Paths extends {}> = FetchClient<Paths, "application/json"> & {
  /**
   * Returns the parameter of a read that shows the client's own writes to an aggregate, by the
   * aggregate's path: `/accounts/163…`. A route whose commands belong to another aggregate than the
   * one in its path has no such reads.
   */
  ownWrites(path: string): { minVersion?: number };
};

/** An error of the API (RFC 9457), or of API Gateway in front of it. */
export class Problem extends Error {
  override name = "Problem";
  constructor(
    /** The kind of problem, which is stable: `urn:ledgerline:problem:insufficient-funds`. */
    readonly type: string,
    readonly status: number,
    /** This occurrence, for people. */
    readonly detail: string,
    /** The wrong field, parameter or header. */
    readonly field?: string,
    /** The version of the aggregate, if the request expected another one. */
    readonly version?: number,
  ) {
    super(detail);
  }

  /** The last part of the kind: `insufficient-funds`. */
  get code(): string {
    return this.type.slice(this.type.lastIndexOf(":") + 1);
  }

  /** Whether another writer changed the aggregate after the version that the request names. */
  get isOutdated(): boolean {
    return this.code === "precondition-failed" || this.code === "overtaken";
  }
}

/** The kinds of problems that an operation answers, such as `paths["/accounts/{id}/debits"]["post"]`. */
export type ProblemType<Operation> = Operation extends { responses: infer Responses }
  ? Responses[keyof Responses] extends infer Response
    ? Response extends { content: { "application/problem+json": { type: infer Type } } }
      ? Type
      : never
    : never
  : never;

const ATTEMPTS = 5;
/** The first pause before a retry, in milliseconds, if the API names none. Later pauses double. */
const PAUSE = 200;
/** The longest pause that the client itself chooses, in milliseconds. */
const LONGEST_PAUSE = 10_000;
const LONGEST_ATTEMPT = 35_000;
/** The longest time for which the client waits if the API asks for it, in milliseconds. */
const LONGEST_WAIT = 60_000;

/** The most aggregates whose versions are stored. */
const MOST_VERSIONS = 1_000;

/** Creates a client. */
export function ledgerline<Paths extends {}>(options: Options): Client<Paths> {
  const { baseUrl, token, attempts = ATTEMPTS, longestAttempt = LONGEST_ATTEMPT } = options;
  const sleep = options.sleep ?? wait;
  const send = options.fetch ?? ((request) => fetch(request));
  const versions = new Map<string, number>();

  const middleware: Middleware = {
    onRequest({ request }) {
      // The key belongs to the command, not to the attempt, so the API carries the command out once.
      if (request.method !== "GET" && !request.headers.has("idempotency-key")) {
        request.headers.set("idempotency-key", crypto.randomUUID());
      }
      return request;
    },
    async onResponse({ request, response }) {
      if (!response.ok && response.status !== 304) throw await problem(response);
      if (request.method !== "GET") note(versions, baseUrl, request, response);
      return response;
    },
  };

  /** Sends a request, and retries until an answer or the last attempt. */
  async function attempt(request: Request): Promise<Response> {
    let bearer = await token?.();
    let isRenewed = false;

    /** Replaces the token, once. Returns whether there is another one. */
    async function renew(): Promise<boolean> {
      const refused = bearer;
      if (isRenewed || refused === undefined) return false;
      isRenewed = true;
      try {
        bearer = await token?.(refused);
      } catch (error) {
        if (!isLost(error)) throw error;
      }
      return bearer !== refused;
    }

    for (let number = 1; ; number += 1) {
      const isLast = number >= attempts;
      try {
        if (bearer) request.headers.set("authorization", `Bearer ${bearer}`);
        // The body belongs to the attempt: a connection may break in the middle of it.
        const signal = AbortSignal.any([request.signal, AbortSignal.timeout(longestAttempt)]);
        const response = await read(await send(new Request(request.clone(), { signal })));
        if (response.status === 401 && (await renew())) continue;
        const time = pause(number, response.headers.get("retry-after"));
        if (isLast || !asksToRetry(response) || time > LONGEST_WAIT) return response;
        await sleep(time, request.signal);
      } catch (error) {
        // The connection broke, so the outcome is unknown. A retry of a command has the same key, so
        // the API does not carry the command out twice.
        if (isLast || !isLost(error)) throw error;
        // A page of another origin may be unable to read a 401, and sees a broken connection.
        await renew();
        await sleep(pause(number, null), request.signal);
      }
    }
  }

  // An answer belongs to its user: no copy of it may stay in the cache of the browser.
  const client = createClient<Paths, "application/json">({ baseUrl, fetch: attempt, cache: "no-store" });
  client.use(middleware);
  return Object.assign(client, {
    ownWrites(path: string) {
      const minVersion = versions.get(path);
      return minVersion === undefined ? {} : { minVersion };
    },
  });
}

/** Whether the API asks the client to send the request again: throttled, busy, or contended. */
function asksToRetry(response: Response): boolean {
  return response.headers.has("retry-after") || response.status === 429 || response.status === 503;
}

/** Whether an error is that of a broken connection, or of an attempt that took too long. */
function isLost(error: unknown): boolean {
  return error instanceof TypeError || (error instanceof DOMException && error.name === "TimeoutError");
}

/** Reads a whole response. */
async function read(response: Response): Promise<Response> {
  const { status, statusText, headers } = response;
  const body = await response.arrayBuffer();
  const hasNone = status === 204 || status === 205 || status === 304;
  return new Response(hasNone ? null : body, { status, statusText, headers });
}

function wait(time: number, signal?: AbortSignal): Promise<void> {
  return new Promise((done, failed) => {
    signal?.throwIfAborted();
    const timer = setTimeout(done, time);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      failed(signal.reason);
    });
  });
}

/** Returns the pause before a retry, in milliseconds, with a part that is random. */
function pause(number: number, retryAfter: string | null): number {
  const asked = Number(retryAfter ?? Number.NaN) * 1_000;
  const own = Math.min(PAUSE * 2 ** (number - 1), LONGEST_PAUSE);
  return (Number.isFinite(asked) ? asked : own) + Math.random() * PAUSE;
}

/** Notes the version of the aggregate that a command changed, by the path of the aggregate. */
function note(versions: Map<string, number>, baseUrl: string, request: Request, response: Response) {
  const version = Number(versionOf(response));
  const base = new URL(baseUrl).pathname.replace(/\/$/, "");
  const { pathname } = new URL(request.url);
  const own = pathname.startsWith(`${base}/`) ? pathname.slice(base.length) : pathname;
  const [collection, id] = (response.headers.get("location") ?? own).split("/").filter((part) => part !== "");
  if (!Number.isFinite(version) || id === undefined) return;
  const path = `/${collection}/${id}`;
  const newest = Math.max(version, versions.get(path) ?? 0);
  // The newest note is the last one, and the oldest one is dropped.
  versions.delete(path);
  versions.set(path, newest);
  const [oldest] = versions.keys();
  if (versions.size > MOST_VERSIONS && oldest !== undefined) versions.delete(oldest);
}

/** Returns the version in the ETag of a response: `3` of `"3"`, and of `"3.9f86d081"`. */
export function versionOf(response: Response): string | undefined {
  return /^(?:W\/)?"(\d+)/.exec(response.headers.get("etag") ?? "")?.[1];
}

/** Returns the header that makes a change depend on the version that a response showed. */
export function ifMatch(response: Response): { "If-Match": string } {
  const version = versionOf(response);
  if (version === undefined) throw new TypeError("the response shows no version: the header `ETag` is missing");
  return { "If-Match": `"${version}"` };
}

async function problem(response: Response): Promise<Problem> {
  const body: unknown = await response.json().catch(() => ({}));
  const fields = typeof body === "object" && body !== null ? (body as Record<string, unknown>) : {};
  const text = (name: string) => (typeof fields[name] === "string" ? fields[name] : undefined);
  const version = typeof fields["version"] === "number" ? fields["version"] : undefined;
  // API Gateway's own errors are `{"message": …}`.
  const detail = text("detail") ?? text("message") ?? response.statusText;
  const type = text("type") ?? `about:blank:${response.status}`;
  return new Problem(type, response.status, detail, text("field"), version);
}

/** A page of a list. */
interface Page {
  cursor?: string | null;
}

/**
 * Reads the rows of a list on demand, page by page.
 *
 * ```ts
 * const read = (query: { cursor?: string }) => api.GET("/accounts", { params: { query } });
 * for await (const account of rows(read, (page) => page.accounts)) { … }
 * ```
 */
export async function* rows<Body extends Page, Row>(
  read: (cursor: { cursor?: string }) => Promise<{ data?: Body }>,
  select: (page: Body) => Row[],
): AsyncGenerator<Row, void, undefined> {
  let cursor: string | null | undefined;
  do {
    const { data } = await read(cursor ? { cursor } : {});
    if (data === undefined) return;
    yield* select(data);
    cursor = data.cursor;
  } while (cursor);
}
