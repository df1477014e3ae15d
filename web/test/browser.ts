/** A real Chromium, users who sign in, and checks of pages. */
import { existsSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { chromium, type Browser, type BrowserContextOptions, type Locator, type Page } from "playwright-core";
import { afterAll, beforeAll, expect } from "vitest";
import { startStack, type Stack } from "./stack";

const CHROMIUM = process.env["CHROMIUM"] ?? "/usr/bin/chromium";
/** Chromium has a sandbox of its own for every user but root, as whom containers run. */
const SANDBOX = process.getuid?.() === 0 ? ["--no-sandbox"] : [];
/** Chromium must not look for updates and hosts of its vendor. */
/** A name whose owner lets it resolve to this machine (DNS rebinding). */
export const REBOUND = "evil.example";
const RESOLVE = `--host-resolver-rules=MAP ${REBOUND} 127.0.0.1`;
const QUIET = ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"];

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

export async function launch(): Promise<Browser> {
  if (!existsSync(CHROMIUM)) {
    throw new Error(`there is no ${CHROMIUM}: apt-get install chromium, or set CHROMIUM to the path of a Chromium`);
  }
  return chromium.launch({ executablePath: CHROMIUM, args: [...SANDBOX, ...QUIET, RESOLVE] });
}

/** Launches a browser with the extension in this folder. `click` clicks its button at a page. */
export async function launchWith(extension: string) {
  const context = await chromium.launchPersistentContext("", {
    executablePath: CHROMIUM,
    ignoreDefaultArgs: ["--disable-extensions"],
    args: [...SANDBOX, ...QUIET, `--load-extension=${extension}`, "--enable-unsafe-extension-debugging"],
  });
  context.setDefaultTimeout(10_000);
  const [worker = await context.waitForEvent("serviceworker")] = context.serviceWorkers();
  const id = new URL(worker.url()).host;
  const click = async (page: Page) => {
    const session = await context.browser()?.newBrowserCDPSession();
    const tabs = await session?.send("Target.getTargets", { filter: [{ type: "tab" }] });
    const tab = tabs?.targetInfos.find(({ url }) => url === page.url());
    // The types of playwright-core lack the command.
    await session?.send("Extensions.triggerAction" as never, { id, targetId: tab?.targetId } as never);
  };
  return { context, click };
}

export const PHONE = { viewport: { width: 390, height: 844 } };

/** A browser and a local stack for the tests of a file. */
export function useStack(): { browser: Browser; stack: Stack } {
  const both = {} as { browser: Browser; stack: Stack };
  beforeAll(async () => {
    [both.browser, both.stack] = await Promise.all([launch(), startStack()]);
  });
  afterAll(async () => {
    await Promise.all([both.browser?.close(), both.stack?.kill()]);
  });
  return both;
}

/** Holds the requests of a page to addresses like this, until the returned function is called. */
export async function hold(page: Page, addresses: RegExp): Promise<() => void> {
  let release = () => {};
  const released = new Promise<void>((done) => (release = done));
  await page.route(addresses, async (route) => {
    await released;
    await route.continue();
  });
  return release;
}

/** The errors that a page has reported: of scripts, and of its Content-Security-Policy. */
const problems = new WeakMap<Page, string[]>();

/** Opens a page in a browser profile of its own. */
export async function openPage(browser: Browser, options: BrowserContextOptions = {}): Promise<Page> {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, ...options });
  context.setDefaultTimeout(10_000);
  const page = await context.newPage();
  const found: string[] = [];
  problems.set(page, found);
  page.on("pageerror", (error) => found.push(error.message));
  page.on("console", (line) => {
    if (/Content Security Policy|TrustedHTML/.test(line.text())) found.push(line.text());
  });
  return page;
}

/** Opens the app, and signs a user in by the form. */
export async function signIn(page: Page, app: string, user: string): Promise<void> {
  await page.goto(app);
  await page.getByRole("button", { name: "Sign in" }).click();
  await enter(page, user);
}

/** Fills in the form of the sign-in page. */
export async function enter(page: Page, user: string): Promise<void> {
  await page.locator("input[name=user]").fill(user);
  await page.locator("button").click();
  await page.getByRole("button", { name: "Sign out" }).waitFor();
}

/** A page on which a user has signed in. */
export async function openApp(browser: Browser, app: string, user: string, options: BrowserContextOptions = {}) {
  const page = await openPage(browser, options);
  await signIn(page, app, user);
  return page;
}

/** Asks for a form of the page, unless the page shows it. */
export async function openForm(page: Page, name: string): Promise<Locator> {
  const form = page.getByRole("form", { name });
  const summary = page.locator("summary", { hasText: name });
  await summary.waitFor();
  if (!(await form.isVisible())) await summary.click();
  return form;
}

/**
 * Checks a page as it is: axe has no serious finding, nothing is wider than the screen, and the
 * page has reported no error.
 */
export async function expectSound(page: Page): Promise<void> {
  for (const colorScheme of ["light", "dark"] as const) {
    await page.emulateMedia({ colorScheme });
    await page.evaluate(AXE);
    const found = await page.evaluate(async () => {
      const { violations } = await (globalThis as unknown as { axe: typeof import("axe-core") }).axe.run();
      const serious = violations.filter(({ impact }) => impact === "serious" || impact === "critical");
      return serious.map(({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html).join(" ")}`);
    });
    expect(found, `${page.url()}, ${colorScheme}`).toEqual([]);
  }
  await page.emulateMedia({ colorScheme: "light" });
  const excess = await page.evaluate(() => {
    const { scrollWidth, clientWidth } = document.documentElement;
    return scrollWidth - clientWidth;
  });
  expect(excess, "the page is wider than the screen").toBe(0);
  expect(problems.get(page)).toEqual([]);
}

/** Writes a screenshot for the documentation, if `SCREENSHOTS` is set. */
export async function screenshot(page: Page, name: string): Promise<void> {
  if (process.env["SCREENSHOTS"] === undefined) return;
  const path = new URL(`../../docs/images/${name}.png`, import.meta.url).pathname;
  await page.screenshot({ path });
}
