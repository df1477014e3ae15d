/** The duties of a client, each against a local stack. */
import { randomUUID } from "node:crypto";
import { expect, inject, test } from "vitest";
import { ifMatch, ledgerline, type Options, Problem, type ProblemType, rows, versionOf } from "../../client/index";
import type { paths } from "../../client/schema";

const baseUrl = inject("url");

/** A caller of its own for each test, so that no test sees the accounts of another one. */
function caller(options: Pick<Options, "fetch" | "longestAttempt"> = {}) {
  const token = randomUUID();
  const slept: number[] = [];
  const sleep = async (time: number) => void slept.push(time);
  const api = ledgerline<paths>({ baseUrl, token: () => token, sleep, ...options });
  return { api, slept };
}

type Api = ReturnType<typeof caller>["api"];

async function open(api: Api, owner = "Ada") {
  const id = randomUUID();
  await api.POST("/accounts", { body: { accountId: id, owner, currency: "EUR" } });
  return { id, params: { path: { id } } };
}

test("a change that is based on an older version is refused as outdated", async () => {
  const { api } = caller();
  const { id, params } = await open(api);
  const query = api.ownWrites(`/accounts/${id}`);
  const { response } = await api.GET("/accounts/{id}", { params: { ...params, query } });
  const condition = { header: ifMatch(response) };
  const credit = { body: { amount: 5 }, params: { ...params, ...condition } };
  await api.POST("/accounts/{id}/credits", credit);

  const second = api.POST("/accounts/{id}/credits", { ...credit, body: { amount: 6 } });

  const problem = await second.catch((error: unknown) => error);
  expect(problem).toBeInstanceOf(Problem);
  expect(problem).toMatchObject({ status: 412, isOutdated: true, version: 2, field: "If-Match" });
});

test("a command whose answer is lost is sent again with the same key, and carried out once", async () => {
  const keys: (string | null)[] = [];
  let lost = 0;
  const { api, slept } = caller({
    async fetch(request) {
      if (request.url.endsWith("/credits")) keys.push(request.headers.get("idempotency-key"));
      const response = await fetch(request);
      if (!request.url.endsWith("/credits") || lost === 2) return response;
      lost += 1;
      if (lost === 1) throw new TypeError("the connection broke");
      // The second answer breaks off in its body.
      const broken = new ReadableStream({ start: (body) => body.error(new TypeError("the connection broke")) });
      return new Response(broken, response);
    },
  });
  const { params } = await open(api);

  const { data, response } = await api.POST("/accounts/{id}/credits", { body: { amount: 7 }, params });

  expect(data?.totalBalance).toBe(7);
  expect(response.headers.get("idempotent-replayed")).toBe("true");
  expect(keys).toHaveLength(3);
  expect(new Set(keys).size).toBe(1);
  expect(slept).toHaveLength(2);
});

/** A caller whose first token the API refuses. The second one is that of this user. */
function refused(user: string, send: (request: Request) => Promise<Response> = fetch) {
  const asked: (string | undefined)[] = [];
  const sent: { token: string | null; key: string | null }[] = [];
  const api = ledgerline<paths>({
    baseUrl,
    token(old) {
      asked.push(old);
      return ["an.old.token", user][asked.length - 1] ?? "a.third.token";
    },
    fetch(request) {
      sent.push({ token: request.headers.get("authorization"), key: request.headers.get("idempotency-key") });
      return send(request);
    },
    sleep: async () => {},
  });
  return { api, asked, sent };
}

test("a command whose token is refused is sent once more, with a new token and the same key", async () => {
  const user = randomUUID();
  const { api, asked, sent } = refused(user);

  await open(api);

  expect(asked).toEqual([undefined, "an.old.token"]);
  expect(sent.map(({ token }) => token)).toEqual(["Bearer an.old.token", `Bearer ${user}`]);
  expect(new Set(sent.map(({ key }) => key)).size).toBe(1);
});

test("a new token that is refused, too, is an error", async () => {
  const { api, sent } = refused("a.new.token");

  const list = api.GET("/accounts");

  await expect(list).rejects.toMatchObject({ name: "Problem", status: 401 });
  expect(sent).toHaveLength(2);
});

test("a refusal that the page cannot read has a new token in the next attempt", async () => {
  const user = randomUUID();
  const { api, sent } = refused(user, async (request) => {
    const response = await fetch(request);
    if (response.status === 401) throw new TypeError("the page may not read the answer");
    return response;
  });

  await open(api);

  expect(sent.map(({ token }) => token)).toEqual(["Bearer an.old.token", `Bearer ${user}`]);
});

test("a token that cannot be replaced is kept, and the end of a session ends the attempts", async () => {
  for (const [failure, attempts] of [[new TypeError("no connection"), 5], [new Error("the session has ended"), 1]] as const) {
    let sent = 0;
    const api = ledgerline<paths>({
      baseUrl,
      token(old) {
        if (old !== undefined) throw failure;
        return "ada";
      },
      async fetch() {
        sent += 1;
        throw new TypeError("the connection broke");
      },
      sleep: async () => {},
    });
    await expect(api.GET("/accounts")).rejects.toThrow(attempts === 1 ? failure.message : "the connection broke");
    expect(sent).toBe(attempts);
  }
});

test("an attempt without an answer ends, and a retry with the same key gets the answer", async () => {
  const keys: (string | null)[] = [];
  const { api } = caller({
    longestAttempt: 300,
    async fetch(request) {
      if (!request.url.endsWith("/credits")) return fetch(request);
      keys.push(request.headers.get("idempotency-key"));
      if (keys.length > 1) return fetch(request);
      // The API carries the command out, and the answer never arrives.
      await fetch(request.clone());
      return new Promise((_, failed) => request.signal.addEventListener("abort", () => failed(request.signal.reason)));
    },
  });
  const { params } = await open(api);

  const { data } = await api.POST("/accounts/{id}/credits", { body: { amount: 7 }, params });

  expect(data?.totalBalance).toBe(7);
  expect(keys).toHaveLength(2);
  expect(new Set(keys).size).toBe(1);
});

test("a read shows one's own write", async () => {
  const { api } = caller();
  const { id, params } = await open(api);
  await api.POST("/accounts/{id}/credits", { body: { amount: 8 }, params });
  const query = api.ownWrites(`/accounts/${id}`);
  expect(query).toEqual({ minVersion: 2 });

  const { data, response } = await api.GET("/accounts/{id}", { params: { ...params, query } });

  expect(data?.totalBalance).toBe(8);
  expect(versionOf(response)).toBe("2");
});

test("a refusal is an error with a kind, a field and a text", async () => {
  const { api } = caller();
  const { params } = await open(api);

  const debit = api.POST("/accounts/{id}/debits", { body: { amount: 9 }, params });
  const refused = (await debit.catch((error: unknown) => error)) as Problem;
  const invalid = (await api
    .POST("/accounts", { body: { owner: "", currency: "EUR" } })
    .catch((error: unknown) => error)) as Problem;

  const insufficient: ProblemType<paths["/accounts/{id}/debits"]["post"]> =
    "urn:ledgerline:problem:insufficient-funds";
  expect(refused).toMatchObject({ type: insufficient, status: 422, code: "insufficient-funds" });
  expect(refused.detail).toContain("does not cover 9");
  expect(invalid).toMatchObject({ status: 400, code: "invalid-request", field: "owner" });
});

test("a list is read page by page, on demand", async () => {
  const requests: string[] = [];
  const { api } = caller({
    fetch(request) {
      if (request.method === "GET") requests.push(new URL(request.url).search);
      return fetch(request);
    },
  });
  const owners = ["Ada", "Bob", "Cleo", "Dan", "Eve"];
  for (const owner of owners) {
    const { id, params } = await open(api, owner);
    const query = api.ownWrites(`/accounts/${id}`);
    await api.GET("/accounts/{id}", { params: { ...params, query } });
  }
  requests.length = 0;
  const list = () =>
    rows(
      (cursor) => api.GET("/accounts", { params: { query: { limit: 2, ...cursor } } }),
      (page) => page.accounts,
    );

  const all: string[] = [];
  for await (const account of list()) all.push(account.owner);
  const pages = requests.length;
  const first = await list().next();

  expect(all).toEqual(owners);
  expect(pages).toBe(3);
  expect(first.value?.owner).toBe("Ada");
  expect(requests).toHaveLength(4);
});

test("a throttled client waits as long as the API says, and then succeeds", async () => {
  const statuses: number[] = [];
  const token = randomUUID();
  const slept: number[] = [];
  const api = ledgerline<paths>({
    baseUrl,
    token: () => token,
    async fetch(request) {
      const response = await fetch(request);
      statuses.push(response.status);
      return response;
    },
    sleep: (time) => {
      slept.push(time);
      return new Promise((done) => setTimeout(done, time));
    },
  });

  const lists = Array.from({ length: 80 }, () => api.GET("/accounts"));
  const answers = await Promise.all(lists);

  expect(statuses).toContain(429);
  expect(slept.length).toBeGreaterThan(0);
  expect(Math.min(...slept)).toBeGreaterThanOrEqual(1_000);
  expect(answers.every(({ response }) => response.status === 200)).toBe(true);
});

test("a client behind a path of its own finds its own writes", async () => {
  const api = ledgerline<paths>({
    baseUrl: `${baseUrl}/api`,
    token: () => "ada",
    // As a distribution does that serves the API under a path.
    fetch: (request) => fetch(new Request(request.url.replace("/api/", "/"), request)),
  });

  const { id, params } = await open(api);
  await api.POST("/accounts/{id}/credits", { body: { amount: 1 }, params });

  expect(api.ownWrites(`/accounts/${id}`)).toEqual({ minVersion: 2 });
});

test("an abort ends a pause", async () => {
  const abort = new AbortController();
  const busy = () => Promise.resolve(new Response("{}", { status: 503, headers: { "retry-after": "30" } }));
  const api = ledgerline<paths>({ baseUrl, fetch: busy });

  const list = api.GET("/accounts", { signal: abort.signal });
  setTimeout(() => abort.abort(), 50);

  await expect(list).rejects.toMatchObject({ name: "AbortError" });
});
