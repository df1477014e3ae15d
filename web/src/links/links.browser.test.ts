/** Rated links in a real browser, against a local stack. */
import { mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import type { Page } from "playwright-core";
import { build } from "vite";
import { expect, test } from "vitest";
import { enter, expectSound, hold, launchWith, openApp, openForm, PHONE, screenshot, useStack } from "../../test/browser";

const suite = useStack();

async function open(user: string, options = {}): Promise<Page> {
  const page = await openApp(suite.browser, suite.stack.app, user, options);
  await page.getByRole("link", { name: "Links" }).click();
  await page.getByRole("heading", { name: "Your feed" }).waitFor();
  return page;
}

async function register(page: Page, name: string) {
  await page.getByRole("link", { name: "People you follow" }).click();
  const form = await openForm(page, "Register");
  await form.getByLabel("Name").fill(name);
  await form.getByLabel("Mail").fill(`${name}@example.com`);
  await form.getByRole("button").click();
  await page.getByText("Register: done.").waitFor();
}

async function rate(page: Page, fields: { url?: string; rating: number; title?: string; tags?: string }) {
  const form = await openForm(page, "Rate a link");
  if (fields.url !== undefined) await form.getByLabel("Address").fill(fields.url);
  await form.getByLabel(String(fields.rating), { exact: true }).check();
  await form.getByLabel("Title").fill(fields.title ?? "");
  await form.getByLabel("Tags").fill(fields.tags ?? "");
  await form.getByRole("button", { name: "Rate" }).click();
}

test("a rating is in the feed of a user who follows its author, until the user unfollows the author", async () => {
  const bob = await open("bob", PHONE);
  await expectSound(bob);
  await rate(bob, { url: "https://example.com/book", rating: 4, title: "A book", tags: "books, rust" });
  await bob.getByText("4 of 5 on average, by 1.").waitFor();
  await expectSound(bob);

  const ada = await open("ada");
  await ada.getByText("Nothing here: follow people").waitFor();
  await register(ada, "Ada");
  await ada.setViewportSize(PHONE.viewport);
  await expectSound(ada);
  await ada.setViewportSize({ width: 1280, height: 800 });
  const form = await openForm(ada, "Follow a user");
  await form.getByLabel("User id").fill("bob");
  await form.getByRole("button").click();
  await ada.getByRole("list", { name: "People" }).getByRole("link", { name: "bob" }).click();
  await ada.getByRole("heading", { name: "Ratings of bob" }).waitFor();
  await ada.getByRole("button", { name: "Unfollow bob" }).waitFor();
  await expectSound(ada);
  const feed = ada.getByRole("list", { name: "Feed" });
  const inFeed = feed.getByRole("link", { name: "A book" });
  await ada.getByRole("link", { name: "Links" }).click();
  await expect
    .poll(async () => {
      await ada.reload();
      await feed.or(ada.getByText("Nothing here: follow people")).waitFor();
      return inFeed.count();
    })
    .toBe(1);
  expect(await inFeed.getAttribute("rel")).toBe("noreferrer noopener");
  await expectSound(ada);
  await screenshot(ada, "links-feed");

  await ada.goto(`${suite.stack.app}#/links/users/bob`);
  await ada.getByRole("button", { name: "Unfollow bob" }).click();
  await ada.getByRole("button", { name: "Follow bob" }).waitFor();
  await ada.getByText("Unfollow bob: done.").waitFor();
  await ada.goto(`${suite.stack.app}#/links`);
  await ada.getByText("Nothing here: follow people").waitFor();
});

test("a rating is shown at once, and counts once", async () => {
  const cleo = await open("cleo");
  await cleo.goto(`${suite.stack.app}#/links/link?url=https%3A%2F%2Fexample.com%2Ffilm`);
  await cleo.getByText("No user has rated this link: be the first.").waitFor();
  const answer = await hold(cleo, /\/ratings$/);
  await rate(cleo, { rating: 5 });
  await cleo.getByText("being sent").waitFor();
  answer();
  await cleo.getByText("5 of 5 on average, by 1.").waitFor();
  await rate(cleo, { rating: 2 });
  await cleo.getByText("2 of 5 on average, by 1.").waitFor();
  const dan = await open("dan");
  await dan.goto(`${suite.stack.app}#/links/link?url=https%3A%2F%2Fexample.com%2Ffilm`);
  await rate(dan, { rating: 5 });
  await dan.getByText("3.5 of 5 on average, by 2.").waitFor();
});

test("a user who is not registered learns how to follow", async () => {
  const eve = await open("eve");
  await eve.goto(`${suite.stack.app}#/links/users/bob`);
  await eve.getByRole("button", { name: "Follow bob" }).click();
  await eve.locator("p.problem").getByText("There is no such user.").waitFor();
  await eve.getByRole("button", { name: "Follow bob" }).waitFor();
  await eve.getByRole("link", { name: "Register to follow people" }).click();
  await openForm(eve, "Register");
});

test("no address and no text of a rating runs a script", async () => {
  const mallory = await open("mallory");
  const script = "javascript:window.attacked=true";
  await rate(mallory, { url: script, rating: 1 });
  await mallory.getByRole("alert").getByText("URL").waitFor();
  await mallory.goto(`${suite.stack.app}#/links/link?url=${encodeURIComponent(script)}`);
  await mallory.getByText(script).first().waitFor();
  expect(await mallory.locator(`a[href^="javascript:"]`).count()).toBe(0);

  await mallory.goto(`${suite.stack.app}#/links`);
  const title = `<img src=x onerror="window.attacked=true">`;
  await rate(mallory, { url: "https://example.com/?q=<script>", rating: 1, title, tags: "<b>bold</b>" });
  await mallory.getByRole("link", { name: title }).waitFor();
  await mallory.goto(`${suite.stack.app}#/links/users/${encodeURIComponent("../../accounts")}`);
  await mallory.getByRole("heading", { name: "Ratings of ../../accounts" }).waitFor();
  expect(await mallory.evaluate(() => "attacked" in window)).toBe(false);
  expect(await mallory.locator("main img, main script, main b").count()).toBe(0);
});

test("the extension opens the form to rate the page of the active tab", async () => {
  process.env["APP"] = suite.stack.app;
  const configFile = fileURLToPath(new URL("extension/vite.config.ts", import.meta.url));
  const outDir = mkdtempSync(join(tmpdir(), "extension-"));
  await build({ configFile, logLevel: "warn", build: { outDir } });
  const { context, click } = await launchWith(outDir);
  try {
    const page = context.pages()[0] ?? (await context.newPage());
    // The extension does nothing at a page of the browser itself.
    await page.goto("about:blank");
    await click(page);
    await page.goto(`${suite.stack.url}/openapi?a=b&c`);
    const [url, title] = [page.url(), await page.title()];
    const opened = context.waitForEvent("page");
    await click(page);
    const rating = await opened;
    await rating.getByRole("button", { name: "Sign in" }).click();
    await enter(rating, "fay");
    const form = rating.getByRole("form", { name: "Rate a link" });
    expect(await form.getByLabel("Title").inputValue()).toBe(title);
    await form.getByLabel("4", { exact: true }).check();
    await form.getByRole("button", { name: "Rate" }).click();
    await rating.getByText("4 of 5 on average, by 1.").waitFor();
    await rating.getByRole("link", { name: url }).waitFor();
    expect(context.pages().length).toBe(2);
  } finally {
    await context.close();
  }
});
