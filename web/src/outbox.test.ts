import { expect, test } from "vitest";
import { Problem } from "../client/index";
import { NotStored, openOutbox, type Send } from "./outbox";

function storage(): Storage {
  const items = new Map<string, string>();
  return {
    getItem: (name: string) => items.get(name) ?? null,
    setItem: (name: string, text: string) => void items.set(name, text),
  } as unknown as Storage;
}

const kinds = (send: Send<never>) => new Map([["bank.credit", send]]);
const problem = (status: number) => new Problem("urn:x", status, "no");

test("a command without an answer survives a reload, and is sent again with its key", async () => {
  const kept = storage();
  const keys: string[] = [];
  const lost = kinds(async (_, key) => {
    keys.push(key);
    throw new TypeError("the connection broke");
  });
  const first = openOutbox("ada", lost, kept);
  await expect(first.send("bank.credit", { amount: 5 }, "Pay in")).rejects.toThrow("broke");

  const sent = kinds(async (_, key) => void keys.push(key));
  const second = openOutbox("ada", sent, kept);
  const [entry] = second.entries();
  expect(entry).toMatchObject({ input: { amount: 5 }, label: "Pay in", state: "unknown" });
  if (entry) await second.retry(entry);

  expect(second.entries()).toEqual([]);
  expect(openOutbox("ada", sent, kept).entries()).toEqual([]);
  expect(keys).toHaveLength(2);
  expect(new Set(keys).size).toBe(1);
});

test("a refusal removes a command, and an error that a retry can resolve keeps it", async () => {
  for (const [status, kept] of [[400, 0], [409, 0], [412, 0], [422, 0], [401, 1], [429, 1], [500, 1], [503, 1]]) {
    const outbox = openOutbox("ada", kinds(() => Promise.reject(problem(status ?? 0))), storage());
    await outbox.send("bank.credit", {}, "Pay in").catch(() => {});
    expect(outbox.entries(), `${status}`).toHaveLength(kept ?? 0);
  }
});

test("a command is shown until the page has read the result", async () => {
  const seen: (string | undefined)[] = [];
  const kept = storage();
  const outbox = openOutbox("ada", kinds(async () => {}), kept);
  outbox.subscribe(() => seen.push(outbox.entries()[0]?.state));
  await outbox.send("bank.credit", {}, "Pay in", async () => {
    // A page that is closed here does not ask the user to send the command again.
    expect(openOutbox("ada", kinds(async () => {}), kept).entries()).toEqual([]);
    seen.push("read");
  });
  expect(seen).toEqual(["sending", "answered", "read", undefined]);
});

test("a command that the browser cannot store is not sent", async () => {
  const full = { ...storage(), setItem: () => { throw new DOMException("full", "QuotaExceededError"); } };
  let sent = 0;
  const outbox = openOutbox("ada", kinds(async () => void (sent += 1)), full);
  await expect(outbox.send("bank.credit", {}, "Pay in")).rejects.toBeInstanceOf(NotStored);
  expect([sent, outbox.entries()]).toEqual([0, []]);
});

test("a stored command that the app cannot read or send is not lost as if it were done", async () => {
  const kept = storage();
  const entry = { key: "k", user: "ada", kind: "bank.gone", input: {}, label: "Pay in" };
  kept.setItem("ledgerline-outbox", JSON.stringify([{}, null, "x", { ...entry, input: 7 }, entry]));
  const outbox = openOutbox("ada", kinds(async () => {}), kept);
  const [known] = outbox.entries();
  if (known) await expect(outbox.retry(known)).rejects.toThrow("bank.gone");
  expect(outbox.entries()).toMatchObject([{ key: "k", state: "unknown" }]);
});

test("a late answer stores nothing after the sign-out", async () => {
  const kept = storage();
  let answer = () => {};
  const answered = new Promise<void>((done) => (answer = done));
  const outbox = openOutbox("ada", kinds(() => answered), kept);
  const sending = outbox.send("bank.credit", {}, "Pay in");
  outbox.close();
  answer();
  await sending;
  expect(kept.getItem("ledgerline-outbox")).toBe("[]");
});

test("no other user sees or sends a command", async () => {
  const kept = storage();
  const outbox = openOutbox("ada", kinds(() => Promise.reject(problem(503))), kept);
  await outbox.send("bank.credit", {}, "Pay in").catch(() => {});
  expect(openOutbox("bob", kinds(async () => {}), kept).entries()).toEqual([]);
  expect(openOutbox("ada", kinds(async () => {}), kept).entries()).toHaveLength(1);
});
