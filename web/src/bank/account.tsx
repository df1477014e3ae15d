import type { components } from "../../client/schema";
import { link, useShared } from "../application";
import type { PendingCommand } from "../outbox";
import { useCommand, usePendingCommands, useList, useQuery, type Outcome } from "../ui/hooks";
import { Day, Field, focusHeading, Form, List, Page, Problem, Loaded } from "../ui/parts";
import type { Booking, Close, Transfer } from "./commands";
import { askForMoney, formatMoney, parseMoney } from "./money";

type Account = components["schemas"]["Account"];

/** An account: its balance, its transactions, and the changes that its owner may make. */
export function AccountPage({ id }: { id: string }) {
  const { api } = useShared();
  const path = { id };
  // Both reads show the user's own commands: `minVersion`.
  const account = useQuery(
    async (signal) => {
      const query = api.ownWrites(`/accounts/${id}`);
      return (await api.GET("/accounts/{id}", { params: { path, query }, signal })).data;
    },
    [id],
  );
  const transactions = useList(
    async (query, signal) => {
      const own = { ...query, ...api.ownWrites(`/accounts/${id}`) };
      const { data } = await api.GET("/accounts/{id}/transactions", {
        params: { path, query: own },
        signal: signal ?? null,
      });
      return { rows: data?.transactions ?? [], cursor: data?.cursor ?? null };
    },
    [id],
  );
  const isHere = (input: { id: string }) => input.id === id;
  const credits = usePendingCommands<Booking>("bank.credit", isHere);
  const debits = usePendingCommands<Booking>("bank.debit", isHere);
  const others = [
    ...usePendingCommands<Close>("bank.close", isHere),
    ...usePendingCommands<Transfer>("bank.transfer", ({ fromAccountId }) => fromAccountId === id),
  ];
  const bookings = [
    ...credits.map((entry) => ({ ...entry, sign: 1 })),
    ...debits.map((entry) => ({ ...entry, sign: -1 })),
  ];
  // The API may never carry out a booking without an answer. A booking names the version on which
  // it is based. A later version contains the booking, or rules it out.
  const pending = bookings.filter(
    ({ input, state }) => state !== "unknown" && (account.data?.version ?? 0) <= input.version,
  );

  const title = account.data === undefined ? "Account" : `Account of ${account.data.owner}`;
  return (
    <Page title={title}>
      <Loaded query={account}>
        {(data) =>
          data && (
            <div class="sides">
              <Summary account={data} pending={pending.reduce((sum, { input, sign }) => sum + sign * input.amount, 0)} />
              <Changes account={data} entries={[...bookings, ...others]} />
              <section>
                <h2>Bookings</h2>
                <List
                  query={transactions}
                  label="Bookings"
                  empty="There are no bookings: pay money in, or give the number of the account to a payer."
                  first={pending.map(({ key, input, sign }) => (
                    <li key={key} class="pending">
                      <span>{input.reference ?? (sign > 0 ? "Credit" : "Debit")} (being booked)</span>
                      <span class="amount">{formatMoney(sign * input.amount, data.currency)}</span>
                    </li>
                  ))}
                >
                  {({ version, kind, amount, balance, reference, bookedOn }) => (
                    <li key={version}>
                      <span>
                        {reference ?? (kind === "credit" ? "Credit" : "Debit")}
                        <small>
                          <Day date={bookedOn} />
                        </small>
                      </span>
                      <span class="amount">
                        {formatMoney(kind === "credit" ? amount : -amount, data.currency)}
                        <small>Balance {formatMoney(balance, data.currency)}</small>
                      </span>
                    </li>
                  )}
                </List>
              </section>
            </div>
          )
        }
      </Loaded>
    </Page>
  );
}

/** The balance, as it will be after the booking that is under way. */
function Summary({ account, pending }: { account: Account; pending: number }) {
  const { totalBalance, currency, status, accountId } = account;
  return (
    <p>
      Balance
      <strong class={pending === 0 ? "balance" : "balance pending"}>{formatMoney(totalBalance + pending, currency)}</strong>
      <small>
        Number <code>{accountId}</code>, {status}
      </small>
    </p>
  );
}

/** The changes. Each is based on the version of the account that the user sees. */
function Changes({ account, entries }: { account: Account; entries: PendingCommand[] }) {
  const { accountId: id, version, currency } = account;
  const credit = useCommand<Booking>("bank.credit");
  const debit = useCommand<Booking>("bank.debit");
  const transfer = useCommand<Transfer>("bank.transfer");
  const close = useCommand<Close>("bank.close");

  /** Reads the texts of a form. Returns `undefined` if the amount is unclear. */
  function moneyOf(field: (name: string) => string) {
    const amount = parseMoney(field("amount"), currency);
    const reference = field("reference");
    return amount === undefined ? undefined : { amount, ...(reference === "" ? {} : { reference }) };
  }

  const question = (field: (name: string) => string) => askForMoney(field("amount"), currency);

  const book = (command: typeof credit, name: string) => async (field: (name: string) => string) => {
    const money = moneyOf(field);
    if (money === undefined) return command.refuse(question(field));
    const label = `${name} ${formatMoney(money.amount, currency)}`;
    return command.send({ id, version, ...money }, label);
  };

  async function send(field: (name: string) => string): Promise<Outcome> {
    const money = moneyOf(field);
    if (money === undefined) return transfer.refuse(question(field));
    const transferId = crypto.randomUUID();
    const here = location.hash;
    const input = { transferId, fromAccountId: id, toAccountId: field("to"), currency, ...money };
    const outcome = await transfer.send(input, `Request a transfer of ${formatMoney(money.amount, currency)}`);
    // The user may have gone to another page in the meantime.
    if (outcome === "done" && location.hash === here) location.hash = link("bank", "transfers", transferId);
    return outcome;
  }

  function end() {
    if (entries.length > 0 || !confirm("Close the account? It then accepts no bookings.")) return;
    focusHeading();
    void close.send({ id, version }, "Close the account");
  }

  if (account.status !== "open") {
    // The refusal that shows that the account has been closed.
    return <Problem text={[credit, debit, transfer, close].find(({ problem }) => problem !== undefined)?.problem} />;
  }
  return (
    <div class="forms">
      <Form title="Pay in" action="Pay in" command={credit} entries={entries} onSend={book(credit, "Pay in")}>
        <Money />
      </Form>
      <Form title="Take out" action="Take out" command={debit} entries={entries} onSend={book(debit, "Take out")}>
        <Money />
      </Form>
      <Form title="Transfer" action="Transfer" command={transfer} entries={entries} onSend={send}>
        <Field label="To the account" name="to" required hint="The number of the account" />
        <Money />
      </Form>
      <section aria-label="Close the account">
        <Problem text={close.problem} />
        <button type="button" class="plain" aria-disabled={entries.length > 0} onClick={end}>
          Close the account
        </button>
      </section>
    </div>
  );
}

function Money() {
  return (
    <>
      <Field label="Amount" name="amount" required inputMode="decimal" autocomplete="off" />
      <Field label="Reference" name="reference" maxLength={140} autocomplete="off" />
    </>
  );
}
