/**
 * The web app, deployed to an emulator of AWS. The files of the bucket have the headers of the
 * distribution. The user pool signs a user in, and the API answers. `cargo xtask e2e` runs this
 * test.
 *
 * The browser sees the addresses of AWS. The test sends their requests to the emulator.
 */
import { readFile } from "node:fs/promises";
import { extname, join } from "node:path";
import type { BrowserContext, Route } from "playwright-core";
import { expect, onTestFinished, test } from "vitest";
import { expectSound, launch, openPage } from "./browser";

interface Deployed {
  endpoint: string;
  url: string;
  files: string;
  /** The time in the caches that each file has from its upload: of the whole file, and of a part. */
  cacheControl: Record<string, [string | null, string | null]>;
  /** The headers by the pattern of paths, with whether each replaces that of the file. */
  headers: Record<string, Record<string, [value: string, isOverride: boolean]>>;
  api: string;
  username: string;
  password: string;
}

const deployed = JSON.parse(process.env["DEPLOYED"] ?? "{}") as Deployed;
const KINDS: Record<string, string> = { ".html": "text/html", ".js": "text/javascript", ".css": "text/css" };

/** Returns the headers of an answer: those of the file, and those that the distribution adds. */
function headersOf(path: string, cacheControl?: string | null): Record<string, string> {
  const headers: Record<string, string> = cacheControl == null ? {} : { "cache-control": cacheControl };
  const added = deployed.headers[path.startsWith("assets/") ? "assets/*" : "*"] ?? {};
  for (const [name, [value, isOverride]] of Object.entries(added)) {
    if (isOverride || headers[name] === undefined) headers[name] = value;
  }
  return headers;
}

/** Answers as the distribution does. */
async function file(route: Route): Promise<void> {
  const path = new URL(route.request().url()).pathname.slice(1) || "index.html";
  const body = await readFile(join(deployed.files, path)).catch(() => undefined);
  const headers = headersOf(path, deployed.cacheControl[path]?.[0]);
  const contentType = KINDS[extname(path)] ?? "application/octet-stream";
  await route.fulfill(body ? { body, headers, contentType } : { status: 403, headers });
}

/** Answers from the emulator. */
async function emulated(route: Route, path: string): Promise<void> {
  const response = await route.fetch({ url: deployed.endpoint + path, maxRedirects: 0 });
  const location = response.headers()["location"];
  if (location === undefined || response.status() < 300 || response.status() > 399) return route.fulfill({ response });
  // A page redirects the browser, because the test does not see the request after a real redirect.
  const next = new URL(location, route.request().url()).href.replaceAll("&", "&amp;");
  await route.fulfill({ contentType: "text/html", body: `<meta http-equiv="refresh" content="0;url=${next}">` });
}

async function connect(context: BrowserContext): Promise<void> {
  const pathOf = (route: Route) => route.request().url().replace(/^https:\/\/[^/]+/, "");
  const config = JSON.parse(await readFile(join(deployed.files, "config.json"), "utf8")) as Record<string, string>;
  await context.route(`${deployed.url}**`, file);
  await context.route(`${config["signIn"]}/**`, (route) => emulated(route, pathOf(route)));
  await context.route(`${config["api"]}/**`, (route) =>
    emulated(route, `/_aws/execute-api/${deployed.api}/$default${pathOf(route)}`),
  );
}

test("a browser keeps an asset for a year, and asks for a page and for a missing asset each time", () => {
  const assets = Object.keys(deployed.cacheControl).filter((path) => path.startsWith("assets/"));
  const cacheControl = (path: string, part: 0 | 1) => headersOf(path, deployed.cacheControl[path]?.[part])["cache-control"];
  expect(assets.length).toBeGreaterThan(1);
  expect(assets).not.toContain("assets/old-00000000.js");
  for (const part of [0, 1] as const) {
    for (const path of assets) expect(cacheControl(path, part), path).toBe("public, max-age=31536000, immutable");
    for (const path of ["index.html", "config.json"]) expect(cacheControl(path, part), path).toBe("no-cache");
    expect(cacheControl("assets/missing-00000000.js", part)).toBe("no-store");
    expect(cacheControl("missing.html", part)).toBe("no-cache");
  }
});

test("a user signs in at the user pool, and the app reads from the deployed API", async () => {
  const browser = await launch();
  onTestFinished(() => browser.close());
  const page = await openPage(browser);
  page.setDefaultTimeout(30_000);
  await connect(page.context());
  await page.goto(deployed.url);
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.locator("input[name=username]").fill(deployed.username);
  await page.locator("input[name=password]").fill(deployed.password);
  const [answer] = await Promise.all([
    page.waitForResponse((response) => response.url().includes(".execute-api.")),
    page.locator("input[name=password]").press("Enter"),
  ]);
  expect(answer.status()).toBe(200);
  await page.getByRole("heading", { level: 1 }).waitFor();
  expect(await page.locator(".user").innerText()).toBe(deployed.username);
  expect(page.url()).not.toContain("code=");
  expect(await page.locator(".problem").count()).toBe(0);
  await expectSound(page);
});
