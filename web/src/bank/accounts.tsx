import { link, useShared } from "../application";
import { useCommand, usePendingCommands, useList } from "../ui/hooks";
import { Field, Form, List, Page } from "../ui/parts";
import type { Open } from "./commands";
import { formatMoney } from "./money";

/** The user's accounts, and a form to open one. */
export function AccountsPage() {
  const { api } = useShared();
  const accounts = useList(async (query, signal) => {
    const { data } = await api.GET("/accounts", { params: { query }, signal: signal ?? null });
    return { rows: data?.accounts ?? [], cursor: data?.cursor ?? null };
  }, []);
  const open = useCommand<Open>("bank.open");
  const opening = usePendingCommands<Open>("bank.open");

  async function onOpen(field: (name: string) => string) {
    const accountId = crypto.randomUUID();
    const owner = field("owner");
    const currency = field("currency").toUpperCase();
    const here = location.hash;
    const outcome = await open.send(
      { accountId, owner, currency: currency as Open["currency"] },
      `Open an account for ${owner}`,
    );
    // The list is eventually consistent, and the page of the account is read-your-writes. The user
    // may have gone to another page in the meantime.
    if (outcome === "done" && location.hash === here) location.hash = link("bank", "accounts", accountId);
    return outcome;
  }

  const form = (
    <Form title="Open an account" action="Open" command={open} entries={opening} onSend={onOpen}>
      <Field label="Owner" name="owner" required maxLength={200} autocomplete="name" />
      <Field label="Currency" name="currency" required pattern="[A-Za-z]{3}" defaultValue="EUR" hint="Such as EUR" />
    </Form>
  );
  return (
    <Page title="Accounts" forms={form}>
      <List
        query={accounts}
        label="Your accounts"
        empty="You have no accounts: open one to pay money in, take it out, and transfer it."
        first={opening.map(({ key, input, state }) => (
          <li key={key} class="pending">
            <span>{input.owner}</span>
            <span>{state === "unknown" ? "without an answer" : "being opened"}</span>
          </li>
        ))}
      >
        {({ accountId, owner, status, totalBalance, currency }) => (
          <li key={accountId}>
            <a href={link("bank", "accounts", accountId)}>{owner}</a>
            <span class="amount">
              {status === "closed" && <span class="tag">closed</span>} {formatMoney(totalBalance, currency)}
            </span>
          </li>
        )}
      </List>
    </Page>
  );
}
