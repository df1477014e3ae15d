/** Attacks on the app and its sign-in, in a real browser. */
import { generateKeyPairSync, sign } from "node:crypto";
import { readFileSync } from "node:fs";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import type { Page } from "playwright-core";
import { afterAll, beforeAll, expect, test } from "vitest";
import { expectSound, openApp, openPage, useStack } from "./browser";

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

test("a page of another origin reads nothing and writes nothing", async () => {
  const page = await openPage(suite.browser);
  await page.goto(foreignUrl);
  for (const path of routes("get")) {
    for (const headers of [{}, { authorization: "Bearer eve" }]) {
      expect(await sent(page, suite.stack.url + path, { headers }), path).toBeUndefined();
    }
  }
  // A form needs no preflight request. So the API itself must refuse it, without a token.
  const statuses: number[] = [];
  page.on("response", (response) => statuses.push(response.status()));
  for (const path of routes("post")) {
    await sent(page, suite.stack.url + path, { method: "POST", body: "{}" });
    await sent(page, suite.stack.url + path, { method: "POST", body: "{}", mode: "no-cors" });
  }
  expect(new Set(statuses)).toEqual(new Set([401]));
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
