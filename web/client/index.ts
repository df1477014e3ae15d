/**
 * A client of an HTTP API of Ledgerline, on `openapi-fetch` and the types that `openapi-typescript`
 * makes from the contract. It does what every client of such an API has to do:
 *
 * 1. A change names the version that it is based on: {@link ifMatch}.
 * 2. A command has an Idempotency-Key, and each attempt at it has the same one.
 * 3. A read can ask for one's own write: {@link Client.ownWrites}.
 * 4. Problem details are errors with types: {@link Problem}.
 * 5. Lists are read page by page: {@link rows}.
 * 6. A client that is asked to wait waits, by `Retry-After`.
 */
import createClient, { type Client as FetchClient, type Middleware } from "openapi-fetch";

/** How a client calls the API. */
export interface Options {
  /** The address of the API, such as `http://127.0.0.1:3000`. */
  baseUrl: string;
  /** Returns the access token of the user. */
  token?: () => string | undefined | Promise<string | undefined>;
  /** The most attempts at a request. */
  attempts?: number;
  /** Sends a request. Tests replace it. */
  fetch?: (request: Request) => Promise<Response>;
  /** Waits. Tests replace it. */
  sleep?: (milliseconds: number) => Promise<void>;
}

/** A client of the API with these paths. */
export type Client<Paths extends {}> = FetchClient<Paths, "application/json"> & {
  /**
   * Returns the parameter of a read that shows the client's own writes to an aggregate, by the
   * aggregate's path: `/accounts/163…`.
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

  /** Whether somebody changed the aggregate after the version that the request was based on. */
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
/** The first pause before another attempt, in milliseconds, if the API names none. It doubles. */
const PAUSE = 200;
/** The longest pause before another attempt, in milliseconds. */
const LONGEST_PAUSE = 10_000;

/** Creates a client. */
export function ledgerline<Paths extends {}>(options: Options): Client<Paths> {
  const { baseUrl, token, attempts = ATTEMPTS } = options;
  const sleep = options.sleep ?? ((time) => new Promise((done) => setTimeout(done, time)));
  const send = options.fetch ?? ((request) => fetch(request));
  const versions = new Map<string, number>();

  const middleware: Middleware = {
    async onRequest({ request }) {
      const bearer = await token?.();
      if (bearer) request.headers.set("authorization", `Bearer ${bearer}`);
      // The key belongs to the command, and not to the attempt: the API carries it out once.
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

  /** Sends a request until it is answered, or until there were too many attempts. */
  async function attempt(request: Request): Promise<Response> {
    for (let number = 1; ; number += 1) {
      const isLast = number >= attempts;
      try {
        const response = await send(request.clone());
        if (isLast || !asksToRetry(response)) return response;
        await sleep(pause(number, response.headers.get("retry-after")));
      } catch (error) {
        // The connection broke: nobody knows whether the request was carried out. The next attempt
        // has the same key, so the answer is that of the first.
        if (isLast || !(error instanceof TypeError)) throw error;
        await sleep(pause(number, null));
      }
    }
  }

  const client = createClient<Paths, "application/json">({ baseUrl, fetch: attempt });
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

/** Returns the pause before another attempt, in milliseconds, with a part that is random. */
function pause(number: number, retryAfter: string | null): number {
  const asked = Number(retryAfter ?? Number.NaN) * 1_000;
  const time = Number.isFinite(asked) ? asked : PAUSE * 2 ** (number - 1);
  return Math.min(time + Math.random() * PAUSE, LONGEST_PAUSE);
}

/** Notes the version of the aggregate that a command changed. */
function note(versions: Map<string, number>, baseUrl: string, request: Request, response: Response) {
  const version = Number(versionOf(response));
  const url = response.headers.get("location") ?? new URL(request.url).pathname;
  const base = new URL(baseUrl).pathname.replace(/\/$/, "");
  const [collection, id] = url.replace(base, "").split("/").filter((part) => part !== "");
  if (!Number.isFinite(version) || id === undefined) return;
  const path = `/${collection}/${id}`;
  versions.set(path, Math.max(version, versions.get(path) ?? 0));
}

/** Returns the version in the ETag of a response: `3` of `"3"`, and of `"3.9f86d081"`. */
export function versionOf(response: Response): string | undefined {
  return /^(?:W\/)?"(\d+)/.exec(response.headers.get("etag") ?? "")?.[1];
}

/** Returns the header that makes a change depend on the version that a response showed. */
export function ifMatch(response: Response): { "If-Match": string } {
  const version = versionOf(response);
  if (version === undefined) throw new TypeError("the response shows no version");
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
 * Reads the rows of a list, page by page, as they are asked for.
 *
 * ```ts
 * for await (const account of rows((cursor) => api.GET("/accounts", { params: { query: { ...cursor } } }), (page) => page.accounts)) { … }
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
