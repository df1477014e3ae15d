import { useId } from "preact/hooks";
import type { components } from "../../client/schema";
import { link, useShared } from "../application";
import { useCommand, useEntries, useList, useQuery } from "../ui/hooks";
import { Field, Form, List, Page, Problem, Shown } from "../ui/parts";
import type { Booking, Close, Transfer } from ".";
import { read, shown } from "./money";

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
  const credits = useEntries<Booking>("bank.credit", isHere);
  const debits = useEntries<Booking>("bank.debit", isHere);
  const sent = [
    ...credits.map((entry) => ({ ...entry, sign: 1 })),
    ...debits.map((entry) => ({ ...entry, sign: -1 })),
  ];
  // A command is based on a version. A later version contains it, or will never contain it.
  const pending = sent.filter(({ input }) => account.data !== undefined && account.data.version <= input.version);
  const refresh = () => Promise.all([account.reload(), transactions.reload()]);

  const title = account.data === undefined ? "Account" : `Account of ${account.data.owner}`;
  return (
    <Page title={title}>
      <Shown of={account}>
        {(data) =>
          data && (
            <>
              <Summary
                account={data}
                expected={pending.reduce((sum, { input, sign }) => sum + sign * input.amount, data.totalBalance)}
              />
              <h2>Bookings</h2>
              <Shown of={transactions}>
                {() => (
                  <List
                    label="Bookings"
                    empty="There are no bookings."
                    more={transactions.more}
                    items={[
                      ...pending.map(({ key, input, sign }) => (
                        <li key={key} class="pending">
                          <span>{input.reference ?? (sign > 0 ? "Credit" : "Debit")} (being booked)</span>
                          <span class="amount">{shown(sign * input.amount, data.currency)}</span>
                        </li>
                      )),
                      ...(transactions.rows ?? []).map(({ version, kind, amount, reference, bookedOn }) => (
                        <li key={version}>
                          <span>
                            {reference ?? (kind === "credit" ? "Credit" : "Debit")}{" "}
                            <time class="quiet" dateTime={bookedOn}>
                              {bookedOn}
                            </time>
                          </span>
                          <span class="amount">{shown(kind === "credit" ? amount : -amount, data.currency)}</span>
                        </li>
                      )),
                    ]}
                  />
                )}
              </Shown>
              {data.status === "open" && <Changes account={data} refresh={refresh} />}
            </>
          )
        }
      </Shown>
    </Page>
  );
}

/** The balance, and the one to expect after the commands that are under way. */
function Summary({ account, expected }: { account: Account; expected: number }) {
  const isPending = expected !== account.totalBalance;
  return (
    <dl class="card">
      <dt>Balance</dt>
      <dd class={isPending ? "balance pending" : "balance"}>{shown(expected, account.currency)}</dd>
      <dt>Status</dt>
      <dd>{isPending ? "being booked" : account.status}</dd>
      <dt>Number</dt>
      <dd>
        <code>{account.accountId}</code>
      </dd>
    </dl>
  );
}

/** The changes. Each is based on the version of the account that the user sees. */
function Changes({ account, refresh }: { account: Account; refresh: () => Promise<unknown> }) {
  const { tell } = useShared();
  const { accountId: id, version, currency } = account;
  const credit = useCommand<Booking>("bank.credit");
  const debit = useCommand<Booking>("bank.debit");
  const transfer = useCommand<Transfer>("bank.transfer");
  const close = useCommand<Close>("bank.close");

  function amountOf(field: (name: string) => string): number | undefined {
    const amount = read(field("amount"), currency);
    if (amount === undefined) tell(`Write an amount in ${currency}, such as 12.50.`, true);
    return amount;
  }

  /** After a refusal, the page shows the account as it is: it may have changed in the meantime. */
  async function settled(isDone: boolean): Promise<boolean> {
    if (!isDone) await refresh();
    return isDone;
  }

  const book = (command: typeof credit, name: string) => async (field: (name: string) => string) => {
    const amount = amountOf(field);
    if (amount === undefined) return false;
    const reference = field("reference");
    const input = { id, version, amount, ...(reference === "" ? {} : { reference }) };
    return settled(await command.send(input, `${name} ${shown(amount, currency)}`, refresh));
  };

  async function send(field: (name: string) => string) {
    const amount = amountOf(field);
    if (amount === undefined) return false;
    const reference = field("reference");
    const transferId = crypto.randomUUID();
    const isRequested = await transfer.send(
      {
        transferId,
        fromAccountId: id,
        toAccountId: field("to"),
        amount,
        currency,
        ...(reference === "" ? {} : { reference }),
      },
      `Transfer ${shown(amount, currency)}`,
    );
    if (isRequested) location.hash = link("bank", "transfers", transferId);
    return isRequested;
  }

  return (
    <div class="columns">
      <Form title="Pay in" action="Pay in" command={credit} onSend={book(credit, "Pay in")}>
        <Money />
      </Form>
      <Form title="Take out" action="Take out" command={debit} onSend={book(debit, "Take out")}>
        <Money />
      </Form>
      <Form title="Transfer" action="Transfer" command={transfer} onSend={send}>
        <Field label="To the account" name="to" required hint="The number of the account" />
        <Money />
      </Form>
      <section class="card" aria-label="Close the account">
        <Problem text={close.problem} />
        <button
          type="button"
          class="plain"
          disabled={close.isSending}
          onClick={() => void close.send({ id, version }, "Close the account", refresh).then(settled)}
        >
          Close the account
        </button>
      </section>
    </div>
  );
}

function Money() {
  const hint = useId();
  return (
    <>
      <Field key={hint} label="Amount" name="amount" required inputMode="decimal" autocomplete="off" />
      <Field label="Reference" name="reference" maxLength={140} autocomplete="off" />
    </>
  );
}
