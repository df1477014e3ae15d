/** The bank in a real browser, against a local stack. */
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Page } from "playwright-core";
import { expect, onTestFinished, test } from "vitest";
import { enter, expectSound, hold, openApp, openForm, openPage, PHONE, screenshot, signIn, useStack } from "../../test/browser";
import { startStack } from "../../test/stack";

const suite = useStack();

/** Opens an account for an owner, and returns its number. */
async function openAccount(page: Page, owner: string): Promise<string> {
  const form = await openForm(page, "Open an account");
  await form.getByLabel("Owner").fill(owner);
  await form.getByRole("button").click();
  await page.getByRole("heading", { name: `Account of ${owner}` }).waitFor();
  return page.locator("code").innerText();
}

/** Fills in a form of the page, and sends it. */
async function send(page: Page, form: string, fields: Record<string, string>) {
  const place = await openForm(page, form);
  for (const [label, text] of Object.entries(fields)) await place.getByLabel(label).fill(text);
  await place.getByRole("button", { name: form }).click();
}

const balance = (page: Page) => page.locator(".balance").first();

async function expectBalance(page: Page, text: string) {
  await expect.poll(() => balance(page).innerText()).toBe(text);
  await expect.poll(() => page.locator(".pending").count()).toBe(0);
}

/** Waits until an alert explains what became of the command. */
const explained = (page: Page, text: string) => page.getByRole("alert").getByText(text).waitFor();

test("a user of another origin opens an account, pays in, and is still signed in after a reload", async () => {
  const page = await openApp(suite.browser, suite.stack.app, "ada");
  const answers: (string | undefined)[] = [];
  page.on("response", (response) => {
    if (response.url().startsWith(`${suite.stack.url}/accounts`)) {
      answers.push(response.headers()["access-control-allow-origin"]);
    }
  });
  await page.getByText("You have no accounts: open one to pay money in").waitFor();
  await expectSound(page);
  await openAccount(page, "Ada");
  await page.getByText("There are no bookings: pay money in").waitFor();
  await send(page, "Pay in", { Amount: "50,5", Reference: "salary" });
  await expectBalance(page, "€50.50");
  await page.getByText("salary").waitFor();
  expect(new Set(answers)).toEqual(new Set([new URL(suite.stack.app).origin]));
  await expectSound(page);
  await send(page, "Take out", { Amount: "12.25", Reference: "groceries" });
  await expectBalance(page, "€38.25");
  const bookings = page.getByRole("list", { name: "Bookings" }).getByRole("listitem");
  await expect.poll(() => bookings.allInnerTexts()).toEqual([
    expect.stringMatching(/^groceries\n.*\n-€12\.25\nBalance €38\.25$/),
    expect.stringMatching(/^salary\n.*\n€50\.50\nBalance €50\.50$/),
  ]);

  const stored = await page.evaluate(() => JSON.stringify([{ ...localStorage }, { ...sessionStorage }, document.cookie]));
  expect(stored).not.toMatch(/eyJ|token/);
  await page.reload();
  await expectBalance(page, "€38.25");
  await screenshot(page, "bank-account");
  expect(page.url()).not.toContain("code=");

  const second = await page.context().newPage();
  await second.goto(suite.stack.app);
  await second.getByRole("button", { name: "Sign in" }).click();
  await second.getByRole("button", { name: "Sign out" }).waitFor();
  const revoked = page.waitForRequest((request) => request.url().endsWith("/oauth2/revoke"));
  await page.getByRole("button", { name: "Sign out" }).click();
  await revoked;
  // The other tab shows no data of the user, and a reload does not sign the user in again.
  await second.getByRole("button", { name: "Sign in" }).waitFor();
  expect(await second.getByText("Ada").count()).toBe(0);
  await second.reload();
  await second.getByRole("button", { name: "Sign in" }).waitFor();
  await page.getByRole("button", { name: "Sign in" }).click();
  expect(await page.locator("input[name=user]").isVisible(), "the form is shown again").toBe(true);
});

test("a transfer between two users is followed until the receiver has the money", async () => {
  const ada = await openApp(suite.browser, suite.stack.app, "ada-2", PHONE);
  const bob = await openApp(suite.browser, `${suite.stack.url}/app/`, "bob-2");
  const to = await openAccount(bob, "Bob");
  await openAccount(ada, "Ada");
  await send(ada, "Pay in", { Amount: "20" });
  await expectBalance(ada, "€20.00");
  await send(ada, "Transfer", { "To the account": to, Amount: "12.34", Reference: "rent" });
  await ada.getByRole("heading", { name: "Transfer" }).waitFor();
  await ada.getByText("Credited to the receiver").waitFor();
  await expectSound(ada);
  await screenshot(ada, "bank-transfer");
  await bob.reload();
  await expectBalance(bob, "€12.34");
  await bob.getByText("rent").waitFor();
  await ada.goBack();
  await expectBalance(ada, "€7.66");
  await expectSound(ada);
  // The bank refuses a transfer to an unknown account, and refunds the sender.
  await send(ada, "Transfer", { "To the account": crypto.randomUUID(), Amount: "1" });
  await ada.getByText("Refunded to the sender").waitFor();
});

test("a change that another page of the user made is not overwritten", async () => {
  const page = await openApp(suite.browser, suite.stack.app, "ada-3");
  await openAccount(page, "Ada");
  await send(page, "Pay in", { Amount: "10" });
  await expectBalance(page, "€10.00");
  const other = await page.context().newPage();
  await other.goto(page.url());
  await other.getByRole("button", { name: "Sign in" }).click();
  await expectBalance(other, "€10.00");
  await send(other, "Take out", { Amount: "9" });
  await expectBalance(other, "€1.00");

  await send(page, "Take out", { Amount: "8" });
  await explained(page, "This was changed in the meantime.");
  await expectBalance(page, "€1.00");
  await expect.poll(() => page.getByRole("form", { name: "Take out" }).getByLabel("Amount").inputValue()).toBe("8");
  await expectSound(page);

  await send(page, "Take out", { Amount: "8" });
  await explained(page, "does not cover");
  await expectBalance(page, "€1.00");
});

test("a booking is shown at once, and disappears if the bank refuses it", async () => {
  const page = await openApp(suite.browser, suite.stack.app, "ada-4");
  await openAccount(page, "Ada");
  const answer = await hold(page, /\/credits$/);
  await send(page, "Pay in", { Amount: "3" });
  await page.getByText("Credit (being booked)").waitFor();
  expect(await balance(page).innerText()).toBe("€3.00");
  answer();
  await expectBalance(page, "€3.00");
  await send(page, "Take out", { Amount: "4" });
  await explained(page, "does not cover");
  await expectBalance(page, "€3.00");
});

test("a page that the user returns to shows the result of a late answer", async () => {
  const page = await openApp(suite.browser, suite.stack.app, "ada-12");
  await openAccount(page, "Ada");
  const credit = await hold(page, /\/credits$/);
  const debit = await hold(page, /\/debits$/);
  await send(page, "Pay in", { Amount: "3" });
  await page.getByRole("link", { name: "Bank" }).click();
  await page.goBack();
  await page.getByText("Credit (being booked)").waitFor();
  credit();
  await page.getByText("Pay in €3.00: done.").waitFor();
  await expectBalance(page, "€3.00");
  await page.getByRole("list", { name: "Bookings" }).getByText("Credit").waitFor();

  // A refusal finds the user on every page.
  await send(page, "Take out", { Amount: "4" });
  await page.getByText("Debit (being booked)").waitFor();
  await page.getByRole("link", { name: "Bank" }).click();
  await page.getByRole("heading", { name: "Accounts" }).waitFor();
  debit();
  await page.getByRole("status").getByText("does not cover").waitFor();
});

test("a transfer that is sent again leads to its steps, and the tab is not closed without a question", async () => {
  const page = await openApp(suite.browser, suite.stack.app, "ada-13");
  const to = await openAccount(page, "Bob");
  await page.getByRole("link", { name: "Bank" }).click();
  const from = await openAccount(page, "Ada");
  await send(page, "Pay in", { Amount: "9" });
  await expectBalance(page, "€9.00");
  await page.route(/\/transfers$/, (route) => route.fulfill({ status: 500, json: {} }));
  // The API reads a number in capitals too.
  await page.goto(`${suite.stack.app}#/bank/accounts/${from.toUpperCase()}`);
  await send(page, "Transfer", { "To the account": to, Amount: "4" });
  await page.getByRole("form", { name: "Transfer" }).getByText("Under “Without an answer”").waitFor();
  const questions: string[] = [];
  page.on("dialog", (dialog) => {
    questions.push(dialog.type());
    void dialog.dismiss();
  });
  await page.close({ runBeforeUnload: true });
  await expect.poll(() => questions).toEqual(["beforeunload"]);
  await page.unrouteAll();
  await page.getByRole("button", { name: "Send again" }).click();
  await page.getByRole("link", { name: "Show it" }).click();
  await page.getByText("Credited to the receiver").waitFor();
});

test("a booking date is the day in UTC, with its zone", async () => {
  const page = await openApp(suite.browser, suite.stack.app, "ada-15", { timezoneId: "America/Los_Angeles" });
  await openAccount(page, "Ada");
  await send(page, "Pay in", { Amount: "1" });
  const date = page.getByRole("list", { name: "Bookings" }).locator("time");
  await date.waitFor();
  const day = new Date((await date.getAttribute("datetime")) ?? "");
  const form = { year: "numeric", month: "short", day: "numeric", timeZone: "UTC" } as const;
  expect(await date.innerText()).toBe(`${day.toLocaleDateString("en-US", form)}, UTC`);
});

test("a booking whose answers are lost is carried out once", async () => {
  const page = await openApp(suite.browser, suite.stack.app, "ada-5");
  await openAccount(page, "Ada");
  const keys: (string | undefined)[] = [];
  await page.route(/\/credits$/, async (route) => {
    keys.push(route.request().headers()["idempotency-key"]);
    if (keys.length > 2) return route.continue();
    await route.fetch();
    await route.abort("connectionreset");
  });
  await send(page, "Pay in", { Amount: "3" });
  await expectBalance(page, "€3.00");
  expect(keys).toHaveLength(3);
  expect(new Set(keys).size).toBe(1);
});

test("a user without a mouse opens an account and pays in", async () => {
  const page = await openApp(suite.browser, suite.stack.app, "ada-6", PHONE);
  await page.keyboard.press("Tab");
  expect(await page.evaluate(() => document.activeElement?.textContent)).toBe("Skip to the content");
  await page.keyboard.press("Enter");
  await page.keyboard.press("Tab");
  await page.keyboard.press("Enter");
  await page.keyboard.press("Tab");
  await page.keyboard.type("Ada");
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: "Account of Ada" }).waitFor();
  expect(await page.evaluate(() => document.activeElement?.tagName)).toBe("H1");
  for (const key of ["Tab", "Enter", "Tab"]) await page.keyboard.press(key);
  expect(await page.evaluate(() => (document.activeElement as HTMLInputElement).name)).toBe("amount");
  await page.keyboard.type("1");
  await page.keyboard.press("Enter");
  await expectBalance(page, "€1.00");
});

test("a new account has the currency that the user wrote, also after a refusal", async () => {
  const page = await openApp(suite.browser, suite.stack.app, "ada-11");
  const form = await openForm(page, "Open an account");
  await form.getByLabel("Currency").fill("XXQ");
  await form.getByLabel("Owner").fill("Ada");
  await form.getByRole("button", { name: "Open" }).click();
  await explained(page, "urrency");
  await expect.poll(() => form.getByLabel("Currency").inputValue()).toBe("XXQ");
  await form.getByLabel("Currency").fill("huf");
  await openAccount(page, "Ada");
  await send(page, "Pay in", { Amount: "0,5" });
  await expectBalance(page, "HUF\u00a00.50");
});

test("a wrong amount, an amount that may be two, and an unknown account are explained", async () => {
  const page = await openApp(suite.browser, suite.stack.app, "ada-7");
  await openAccount(page, "Ada");
  await send(page, "Pay in", { Amount: "much" });
  await explained(page, "Write an amount above 0 in EUR, such as €12.00.");
  await send(page, "Pay in", { Amount: "1.000" });
  await explained(page, "Does “1.000” mean €1.00 or €1,000.00?");
  await page.goto(`${suite.stack.app}#/bank/accounts/${crypto.randomUUID()}`);
  await page.getByText("There is no such account.").waitFor();
  await expectSound(page);
  await page.goto(`${suite.stack.app}#/bank/nothing`);
  await page.getByRole("heading", { name: "No such page" }).waitFor();
});

test("commands of two users are carried out once, although the stack is killed before it answers", async () => {
  const data = await mkdtemp(join(tmpdir(), "ledgerline-"));
  let own = await startStack({ more: ["--data", data] });
  onTestFinished(async () => {
    await own.kill();
    await rm(data, { recursive: true });
  });
  const port = Number(new URL(own.url).port);
  const app = `${own.url}/app/`;
  const [ada, bob] = await Promise.all([openApp(suite.browser, app, "ada"), openApp(suite.browser, app, "bob")]);
  const to = await openAccount(bob, "Bob");
  await openAccount(ada, "Ada");
  await send(ada, "Pay in", { Amount: "20" });
  await expectBalance(ada, "€20.00");

  // The stack carries out both commands, and is killed before the answers arrive.
  let dead: Promise<void> | undefined;
  let arrived = 0;
  let both = () => {};
  const bothArrived = new Promise<void>((done) => (both = done));
  for (const page of [ada, bob]) {
    await page.route(/\/(transfers|credits)$/, async (route) => {
      if (dead === undefined) {
        await route.fetch();
        arrived += 1;
        if (arrived === 2) both();
        await bothArrived;
        dead ??= own.kill();
        await dead;
      }
      await route.abort("connectionreset");
    });
  }
  await Promise.all([
    send(ada, "Transfer", { "To the account": to, Amount: "5" }),
    send(bob, "Pay in", { Amount: "7" }),
  ]);
  for (const page of [ada, bob]) await page.getByRole("heading", { name: "Without an answer" }).waitFor();
  await ada.getByText("It is unknown whether the command was carried out.").waitFor();
  // A second transfer would have another key.
  const form = await openForm(ada, "Transfer");
  await form.getByLabel("To the account").fill(to);
  await form.getByLabel("Amount").fill("5");
  await form.getByLabel("Amount").press("Enter");
  expect(await form.getByRole("button").getAttribute("aria-disabled")).toBe("true");
  expect(await ada.getByRole("button", { name: "Send again" }).count()).toBe(1);
  await expectSound(ada);

  own = await startStack({ port, more: ["--data", data] });
  for (const [page, user] of [[ada, "ada"], [bob, "bob"]] as const) {
    await page.unrouteAll();
    // A new stack refuses the tokens of the killed one.
    await page.getByRole("button", { name: "Send again" }).click();
    await page.getByRole("button", { name: "Sign in again" }).click();
    await enter(page, user);
    await page.getByRole("button", { name: "Send again" }).click();
    // The stored answer, and no refusal of another command.
    await page.getByRole("status").getByText(": done.").waitFor();
    await page.getByRole("heading", { name: "Without an answer" }).waitFor({ state: "detached" });
  }
  await expectBalance(ada, "€15.00");
  await expect
    .poll(async () => {
      await bob.reload();
      await balance(bob).waitFor();
      return balance(bob).innerText();
    })
    .toBe("€12.00");
});

test("no text of a user becomes HTML", async () => {
  const page = await openApp(suite.browser, suite.stack.app, "ada-9");
  const script = `<img src=x onerror="window.attacked = true"><script>window.attacked = true</script>`;
  await openAccount(page, script);
  await send(page, "Pay in", { Amount: "1", Reference: script });
  await page.getByText("onerror").nth(1).waitFor();
  await page.goto(`${suite.stack.app}#/bank/accounts/${encodeURIComponent(script)}`);
  await page.goto(`${suite.stack.app}?next=javascript:window.attacked=true#javascript:window.attacked=true`);
  await page.getByRole("heading", { name: "No such page" }).waitFor();
  expect(await page.evaluate(() => "attacked" in window)).toBe(false);
  expect(await page.locator("main img, main script").count()).toBe(0);
});

test("the end of a session loses no command", async () => {
  const page = await openPage(suite.browser);
  await page.clock.install();
  await signIn(page, suite.stack.app, "ada-10");
  await openAccount(page, "Ada");
  // The token has a minute left, and the app gets a new one without the user.
  const refreshed = page.waitForRequest(
    (request) => request.url().endsWith("/oauth2/token") && !!request.postData()?.includes("refresh_token"),
  );
  await page.clock.fastForward("59:30");
  await send(page, "Pay in", { Amount: "1" });
  await refreshed;
  await expectBalance(page, "€1.00");

  // The user was removed, or the refresh token has expired.
  await page.route(/\/oauth2\/token$/, (route) =>
    route.fulfill({ status: 400, json: { error: "invalid_grant" }, headers: { "access-control-allow-origin": "*" } }),
  );
  await page.clock.fastForward("59:30");
  await send(page, "Pay in", { Amount: "2" });
  await explained(page, "Your session has ended. The app keeps commands");
  await expectSound(page);
  await page.unrouteAll();
  await page.getByRole("button", { name: "Sign in again" }).click();
  await page.getByRole("button", { name: "Send again" }).click();
  await expectBalance(page, "€3.00");
});

test("a refused token is replaced, and a session ends whose new token is refused, too", async () => {
  const page = await openApp(suite.browser, suite.stack.app, "ada-14");
  await openAccount(page, "Ada");
  const requests: Record<string, string | undefined>[] = [];
  let refusals = 1;
  const unauthorized = { status: 401, json: { message: "Unauthorized" }, headers: { "access-control-allow-origin": "*" } };
  await page.route(/\/(credits|transactions\b.*)$/, (route) => {
    requests.push(route.request().headers());
    refusals -= 1;
    return refusals < 0 ? route.continue() : route.fulfill(unauthorized);
  });
  await send(page, "Pay in", { Amount: "1" });
  await expectBalance(page, "€1.00");
  const [first, second] = requests;
  expect(second?.["idempotency-key"]).toBe(first?.["idempotency-key"]);
  expect(second?.["authorization"]).not.toBe(first?.["authorization"]);

  // A read, too.
  refusals = 1;
  await page.getByRole("link", { name: "Bank" }).click();
  await page.goBack();
  await page.getByRole("list", { name: "Bookings" }).waitFor();
  expect(refusals).toBeLessThan(0);

  refusals = Number.POSITIVE_INFINITY;
  requests.length = 0;
  await send(page, "Pay in", { Amount: "2" });
  await explained(page, "Your session has ended. The app keeps commands");
  expect(requests).toHaveLength(2);
  expect(await page.getByText("It is unknown").count()).toBe(0);
});
