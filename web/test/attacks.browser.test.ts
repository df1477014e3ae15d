/** Attacks on the app and its sign-in, in a real browser. */
import { generateKeyPairSync, sign } from "node:crypto";
import { readFileSync } from "node:fs";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import type { Page } from "playwright-core";
import { afterAll, beforeAll, expect, test } from "vitest";
import { expectSound, openApp, openPage, REBOUND, signIn, useStack } from "./browser";

const suite = useStack();
/** A web server of another origin. */
let foreign: Server;
let foreignUrl: string;

beforeAll(async () => {
  foreign = createServer((_, response) => {
    response.setHeader("content-type", "text/html");
    response.end(`<!doctype html><title>foreign</title><iframe src="${suite.stack.app}"></iframe>`);
  });
  await new Promise<void>((done) => foreign.listen(0, "127.0.0.1", done));
  foreignUrl = `http://127.0.0.1:${(foreign.address() as AddressInfo).port}/`;
});

afterAll(() => {
  foreign?.close();
});

/** The routes of the contract without parameters, by method, that a user may call. */
function routes(method: "get" | "post"): string[] {
  const document = JSON.parse(readFileSync(new URL("../../docs/schemas/openapi.json", import.meta.url), "utf8"));
  type Operation = { parameters?: { required?: boolean }[]; security?: { token?: string[] }[] };
  const paths = document.paths as Record<string, Record<string, Operation>>;
  const scope = method === "get" ? "ledgerline/read" : "ledgerline/write";
  return Object.entries(paths)
    .filter(([path, { [method]: operation }]) => {
      const isFree = !path.includes("{") && !operation?.parameters?.some(({ required }) => required);
      return isFree && operation?.security?.[0]?.token?.includes(scope);
    })
    .map(([path]) => path);
}

/** Sends a request from a page, and returns the status; nothing if the page cannot read the answer. */
async function sent(page: Page, url: string, init: RequestInit): Promise<number | undefined> {
  return page.evaluate(
    ([url, init]) => fetch(url, init).then((answer) => answer.status, () => undefined),
    [url, init] as const,
  );
}

/** The requests of an attack on the stack: each without a preflight request, and with a token. */
const ATTACKS: RequestInit[] = [
  {},
  { mode: "no-cors" },
  { method: "POST", body: "{}" },
  { method: "POST", body: "{}", mode: "no-cors" },
  { headers: { authorization: "Bearer eve" } },
];

/** Attacks every port of the stack from a page, and returns the statuses that the browser got and the page read. */
async function attack(page: Page, host: string, open: (port: number) => Promise<unknown>) {
  const got = new Set<number>();
  const read = new Set<number | undefined>();
  page.on("response", (response) => {
    if (response.request().resourceType() === "fetch") got.add(response.status());
  });
  const ports = suite.stack.ports();
  const printed = [suite.stack.url, suite.stack.app].map((url) => Number(new URL(url).port));
  expect(ports).toEqual(expect.arrayContaining(printed));
  for (const port of ports) {
    await open(port);
    for (const path of new Set(["/", "/oauth2/token", ...routes("get"), ...routes("post")])) {
      for (const init of ATTACKS) read.add(await sent(page, `http://${host}:${port}${path}`, init));
    }
  }
  return { got: [...got], read: [...read] };
}

test("a page of another origin reads nothing and writes nothing on any port", async () => {
  const page = await openPage(suite.browser);
  const { got, read } = await attack(page, "127.0.0.1", () => page.goto(foreignUrl));
  // An answer without CORS has the status 0 for the page.
  expect([got, read]).toEqual([[403], [undefined, 0]]);
});

test("a page whose name resolves to this machine reads nothing and writes nothing on any port", async () => {
  const page = await openPage(suite.browser);
  // The page comes from another server of its name, before the name resolves to this machine.
  await page.route(`http://${REBOUND}:*/page`, (route) => route.continue({ url: foreignUrl }));
  const { got, read } = await attack(page, REBOUND, (port) => page.goto(`http://${REBOUND}:${port}/page`));
  expect([got, read]).toEqual([[421], [421]]);
});

test("a user signs in under both names of this machine", async () => {
  for (const app of [suite.stack.app, `${suite.stack.url}/app/`]) {
    for (const name of ["127.0.0.1", "localhost"]) {
      const page = await openPage(suite.browser);
      const accounts = page.waitForResponse((answer) => new URL(answer.url()).pathname === "/accounts");
      await signIn(page, app.replace("127.0.0.1", name), "ada");
      expect((await accounts).status(), `${app} under ${name}`).toBe(200);
    }
  }
});

test("a link of another origin opens a page, and no frame shows it", async () => {
  const page = await openPage(suite.browser);
  const url = `${suite.stack.url}/openapi`;
  await page.goto(foreignUrl);
  const opened = page.waitForResponse(url);
  await page.evaluate((url) => (location.href = url), url);
  expect((await opened).status()).toBe(200);
  await page.waitForURL(url);
  await page.goto(foreignUrl);
  const framed = page.waitForResponse(url);
  await page.evaluate((url) => (document.querySelector("iframe")!.src = url), url);
  expect((await framed).status()).toBe(403);
});

test("a page of another origin cannot show the app in a frame", async () => {
  const page = await openPage(suite.browser);
  await page.goto(foreignUrl);
  await page.locator("iframe").waitFor();
  await expect.poll(() => page.frames()[1]?.url()).toBe("chrome-error://chromewebdata/");
});

test("the sign-in sends no browser to an address of another origin", async () => {
  const page = await openApp(suite.browser, suite.stack.app, "ada");
  const query = new URLSearchParams({ response_type: "code", client_id: "AppClient", state: "x" });
  query.append("code_challenge_method", "S256");
  query.append("code_challenge", "x".repeat(43));
  for (const address of [foreignUrl, `${suite.stack.app}.evil.example/`, "javascript:alert(1)", "//evil.example/app/"]) {
    for (const [path, name] of [["oauth2/authorize", "redirect_uri"], ["logout", "logout_uri"]] as const) {
      const url = `${suite.stack.url}/${path}?${query}&${name}=${encodeURIComponent(address)}`;
      const response = await page.goto(url);
      expect([response?.status(), page.url()], address).toEqual([400, url]);
    }
  }
});

test("a code of another user signs no user in", async () => {
  const page = await openPage(suite.browser);
  const requests: string[] = [];
  page.on("request", (request) => requests.push(new URL(request.url()).pathname));
  for (const query of ["code=stolen&state=guessed", "code=stolen", "error=<script>window.attacked=true</script>"]) {
    await page.goto(`${suite.stack.app}?${query}`);
    await page.getByRole("button", { name: "Sign in" }).waitFor();
    expect(page.url(), "the code leaves the address").toBe(suite.stack.app);
  }
  expect(requests).not.toContain("/oauth2/token");
  await expectSound(page);
  expect(await page.evaluate(() => "attacked" in window)).toBe(false);
});

test("the API refuses tokens of another issuer, without a signature, and with changed claims", async () => {
  const page = await openPage(suite.browser);
  let token = "";
  page.on("request", (request) => {
    token = request.headers()["authorization"]?.replace("Bearer ", "") || token;
  });
  await page.goto(`${suite.stack.url}/app/`);
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.locator("input[name=user]").fill("ada");
  await page.locator("button").click();
  await expect.poll(() => token).not.toBe("");
  const [path = ""] = routes("get");
  const status = (token: string) =>
    sent(page, suite.stack.url + path, { headers: { authorization: `Bearer ${token}` } });
  expect(await status(token)).toBe(200);

  const [header = "", payload = "", signature = ""] = token.split(".");
  const claims = JSON.parse(Buffer.from(payload, "base64url").toString());
  const encoded = (value: unknown) => Buffer.from(JSON.stringify(value)).toString("base64url");
  const { privateKey } = generateKeyPairSync("ec", { namedCurve: "P-256" });
  const signed = (claims: object) => {
    const text = `${header}.${encoded(claims)}`;
    return `${text}.${sign("sha256", Buffer.from(text), { key: privateKey, dsaEncoding: "ieee-p1363" }).toString("base64url")}`;
  };
  for (const [name, other] of Object.entries({
    "another key": signed(claims),
    "another issuer": signed({ ...claims, iss: "https://evil.example" }),
    "no signature": `${encoded({ alg: "none" })}.${payload}.`,
    "another user": `${header}.${encoded({ ...claims, sub: "bob" })}.${signature}`,
    "a later expiry": `${header}.${encoded({ ...claims, exp: claims.exp + 86_400 })}.${signature}`,
  })) {
    expect(await status(other), name).toBe(401);
  }
});

test("a browser keeps an asset that the app has, and asks for one that it lacks each time", async () => {
  const page = await (await fetch(suite.stack.app)).text();
  const asset = /src="\.\/(assets\/[^"]+)"/.exec(page)?.[1] ?? "";
  const kept = async (path: string, range?: string) => {
    const { status, headers } = await fetch(suite.stack.app + path, range === undefined ? {} : { headers: { range } });
    return [status, headers.get("cache-control")];
  };
  const year = "public, max-age=31536000, immutable";
  expect([await kept(asset), await kept(asset, "bytes=0-9")]).toEqual([[200, year], [206, year]]);
  for (const missing of ["assets/index-deadbeef.js", "assets/", `${asset}/`]) {
    expect([await kept(missing), await kept(missing, "bytes=0-9")]).toEqual([[404, "no-store"], [404, "no-store"]]);
  }
  expect([await kept("assets"), await kept("index.html/")]).toEqual([[404, "no-cache"], [404, "no-cache"]]);
});
