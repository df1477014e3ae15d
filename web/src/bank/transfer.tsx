import { useEffect, useState } from "preact/hooks";
import type { components } from "../../client/schema";
import { link, useShared } from "../application";
import { isAnswer } from "../outbox";
import { Page, Problem } from "../ui/parts";
import { formatMoney } from "./money";

type Transfer = components["schemas"]["Transfer"];

/** The state of a step. */
type Step = [text: string, state: "done" | "current" | "failed" | "later"];

const REQUESTED: Step = ["Requested", "done"];
const DEBITED: Step = ["Debited from the sender", "done"];
const REFUSED: Step = ["Refused by the account of the receiver", "failed"];

/** The steps of a transfer, by its status. */
const STEPS: Record<Transfer["status"], Step[]> = {
  requested: [REQUESTED, ["Debit the sender", "current"], ["Credit the receiver", "later"]],
  refused: [REQUESTED, ["Refused by the account of the sender", "failed"]],
  debited: [REQUESTED, DEBITED, ["Credit the receiver", "current"]],
  completed: [REQUESTED, DEBITED, ["Credited to the receiver", "done"]],
  returning: [REQUESTED, DEBITED, REFUSED, ["Refund the sender", "current"]],
  refunded: [REQUESTED, DEBITED, REFUSED, ["Refunded to the sender", "done"]],
  stuck: [REQUESTED, DEBITED, REFUSED, ["The refund was refused: an operator decides", "failed"]],
  settling: [REQUESTED, DEBITED, REFUSED, ["Credit the account that an operator chose", "current"]],
  settled: [REQUESTED, DEBITED, REFUSED, ["Credited to the account that an operator chose", "done"]],
};

/** A newer API may have statuses that this app does not know. */
function stepsOf({ status }: Transfer): Step[] {
  return STEPS[status] ?? [[status, "current"]];
}

const FINAL: Transfer["status"][] = ["refused", "completed", "refunded", "settled"];

/** The pause between two reads of a transfer, in milliseconds. It grows until the transfer changes. */
const PAUSE = 400;
const LONGEST_PAUSE = 10_000;

/** A transfer, followed until it has ended. */
export function TransferPage({ id }: { id: string }) {
  const { transfer, problem } = useTransfer(id);
  return (
    <Page title="Transfer">
      <Problem text={problem} />
      {transfer === undefined ? (
        problem === undefined && <p class="quiet">Loading…</p>
      ) : (
        <>
          <dl class="card">
            <dt>Amount</dt>
            <dd class="balance">{formatMoney(transfer.amount, transfer.currency)}</dd>
            {transfer.reference != null && (
              <>
                <dt>Reference</dt>
                <dd>{transfer.reference}</dd>
              </>
            )}
            <dt>From</dt>
            <dd>
              <a href={link("bank", "accounts", transfer.fromAccountId)}>{transfer.fromAccountId}</a>
            </dd>
            <dt>To</dt>
            <dd>
              <code>{transfer.toAccountId}</code>
            </dd>
          </dl>
          <ol class="steps" aria-label="Steps" aria-live="polite">
            {stepsOf(transfer).map(([text, state]) => (
              <li key={text} class={state} aria-current={state === "current" ? "step" : undefined}>
                {text}
                {state === "failed" && transfer.reason != null && <span class="quiet"> ({transfer.reason})</span>}
              </li>
            ))}
          </ol>
        </>
      )}
    </Page>
  );
}

function useTransfer(id: string): { transfer?: Transfer; problem?: string | undefined } {
  const { api, session, explain } = useShared();
  const [state, setState] = useState<{ transfer?: Transfer; problem?: string }>({});

  useEffect(() => {
    const page = new AbortController();
    const { signal } = page;
    const forget = session.onEnd(() => page.abort());

    /** Reads the transfer if it has changed since this tag. */
    async function parseMoney(tag: string | undefined) {
      const header = tag === undefined ? {} : { "If-None-Match": tag };
      const query = api.ownWrites(`/transfers/${id}`);
      return api.GET("/transfers/{id}", { params: { path: { id }, query, header }, signal });
    }

    async function follow() {
      let seen: Transfer | undefined;
      let tag: string | undefined;
      let pause = PAUSE;
      while (!signal.aborted && !(seen && FINAL.includes(seen.status))) {
        try {
          const { data, response } = await parseMoney(tag);
          if (data !== undefined) {
            seen = data;
            tag = response.headers.get("etag") ?? undefined;
            pause = PAUSE;
          }
          setState(seen === undefined ? {} : { transfer: seen });
        } catch (error) {
          if (signal.aborted) return;
          const problem = await explain(error);
          if (!signal.aborted) setState((before) => ({ ...before, problem }));
          // A transfer that this user may not see stays like that.
          if (isAnswer(error)) return;
        }
        await new Promise((done) => setTimeout(done, pause));
        // A hidden tab sends no requests.
        if (document.hidden) await new Promise((done) => addEventListener("visibilitychange", done, { once: true }));
        pause = Math.min(pause * 1.3, LONGEST_PAUSE);
      }
    }

    void follow();
    return () => {
      forget();
      page.abort();
    };
  }, [id]);

  return state;
}
