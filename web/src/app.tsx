/** The frame of all pages: navigation, sign-in, messages, and commands without an answer. */
import { useCallback, useEffect, useMemo, useRef, useState } from "preact/hooks";
import { ledgerline, Problem } from "../client/index";
import type { paths } from "../client/schema";
import { link, SharedContext, type Application, type Shared } from "./application";
import type { Config } from "./config";
import { isAnswer, NotStored, openOutbox, type Entry, type Send } from "./outbox";
import { SessionEnded, signIn, type Session } from "./session";
import { usePlace } from "./ui/hooks";
import { focusHeading, Page } from "./ui/parts";

const OUTDATED = "This was changed in the meantime. Check the new state, and then send the change again.";
const BUSY = "The service is busy. Retry in a minute.";
const LOST = "The connection was lost. Check it, and retry.";
const ENDED = "Your session has ended.";
const NOT_STORED = "The browser stores nothing, so the app sent nothing. Free space, and retry.";
const FAILED = "The app failed. Reload the page.";

interface Message {
  text: string;
  isError: boolean;
  /** The place of the result. */
  href?: string | undefined;
  /** Tells two messages with the same text apart, so that a screen reader reads both. */
  number: number;
}

export function App(props: { config: Config; session: Session; applications: Application[] }) {
  const { config, session, applications } = props;
  const place = usePlace();
  const [message, setMessage] = useState<Message>({ text: "", isError: false, number: 0 });
  const [hasEnded, setEnded] = useState(false);
  const main = useRef<HTMLElement>(null);

  const shared = useMemo((): Shared => {
    const api = ledgerline<paths>({ baseUrl: config.api, token: () => session.token() });
    const kinds = applications.flatMap(({ name, commands }) =>
      Object.entries(commands(api)).map(([kind, send]): [string, Send<never>] => [`${name}.${kind}`, send]),
    );
    const outbox = openOutbox(session.user.subject, new Map(kinds));
    const tell = (text: string, isError = false, href?: string) =>
      setMessage(({ number }) => ({ text, isError, href, number: number + 1 }));
    session.onEnd(() => setEnded(true));
    const reloads = new Set<() => Promise<unknown>>();

    async function carriedOut(kind: string, input: unknown, label: string) {
      const [application, command = ""] = kind.split(".");
      const { results } = applications.find(({ name }) => name === application) ?? {};
      const place = results?.[command] as ((input: unknown) => string) | undefined;
      tell(`${label}: done.`, false, place?.(input));
      await Promise.all([...reloads].map((reload) => reload()));
    }

    async function explain(error: unknown): Promise<string> {
      if (error instanceof SessionEnded) return ENDED;
      if (error instanceof NotStored) return NOT_STORED;
      // A page of another origin cannot read a 401 of API Gateway, and sees a failed request.
      const isTooLate = error instanceof DOMException && error.name === "TimeoutError";
      const isUnclear = error instanceof TypeError || isTooLate || (error instanceof Problem && error.status === 401);
      if (isUnclear) {
        const ended = await session.check().catch((failed: unknown) => failed);
        return ended instanceof SessionEnded ? ENDED : LOST;
      }
      if (!(error instanceof Problem)) {
        console.error(error);
        return FAILED;
      }
      if (error.isOutdated) return OUTDATED;
      return error.status === 429 || error.status >= 500 ? BUSY : sentence(error.detail);
    }
    return { api, session, outbox, reloads, tell, carriedOut, explain };
  }, []);

  const [name = "", ...segments] = place.segments;
  const application = applications.find((other) => other.name === name) ?? applications[0];
  const page = application?.page({ segments: name === application.name ? segments : [], query: place.query });

  function signOut() {
    const { length } = shared.outbox.entries();
    const question = `Commands without an answer: ${length}. Sign out, and forget them?`;
    if (length > 0 && !confirm(question)) return;
    shared.outbox.close();
    void session.signOut();
  }

  function signInAgain() {
    // The commands without an answer are stored, so the browser need not ask.
    removeEventListener("beforeunload", ask);
    void signIn(config).catch(async (error: unknown) => shared.tell(await shared.explain(error), true));
  }

  // The commands without an answer end with the tab.
  const ask = useCallback((event: BeforeUnloadEvent) => {
    if (shared.outbox.entries().some(({ state }) => state !== "answered")) event.preventDefault();
  }, []);
  useEffect(() => {
    addEventListener("beforeunload", ask);
    return () => removeEventListener("beforeunload", ask);
  }, []);

  function skip(event: Event) {
    // The address stays as it is: it names the page.
    event.preventDefault();
    main.current?.focus();
  }

  return (
    <SharedContext.Provider value={shared}>
      <a class="skip" href={location.hash || "#/"} onClick={skip}>
        Skip to the content
      </a>
      <header>
        <nav aria-label="Applications">
          {applications.map(({ name, title }) => (
            <a key={name} href={link(name)} aria-current={name === application?.name ? "page" : undefined}>
              {title}
            </a>
          ))}
        </nav>
        <p>
          <span class="user">{session.user.name}</span>{" "}
          <button type="button" class="plain" onClick={signOut}>
            Sign out
          </button>
        </p>
      </header>
      <main ref={main} tabIndex={-1}>
        {hasEnded && (
          <p class="problem" role="alert">
            {ENDED} The app keeps commands without an answer.{" "}
            <button type="button" onClick={signInAgain}>
              Sign in again
            </button>
          </p>
        )}
        <p role="status" class={message.text === "" ? "message" : message.isError ? "message error" : "message done"}>
          <span key={message.number}>
            {message.text} {message.href !== undefined && <a href={message.href}>Show it</a>}
          </span>
        </p>
        <Unanswered shared={shared} />
        <div key={`${place.segments.join("/")}?${place.query}`}>
          {page ?? (
            <Page title="No such page">
              <p>
                <a href={link()}>To the start</a>
              </p>
            </Page>
          )}
        </div>
      </main>
    </SharedContext.Provider>
  );
}

/** The commands without an answer. The user may send each again: the API carries it out once. */
function Unanswered({ shared }: { shared: Shared }) {
  const { outbox, reloads, tell, carriedOut, explain } = shared;
  const [, render] = useState({});
  useEffect(() => outbox.subscribe(() => render({})), [outbox]);
  const entries = outbox.entries().filter(({ state, isRetry }) => state === "unknown" || isRetry);
  if (entries.length === 0) return null;

  async function retry(entry: Entry) {
    // The button remains, so that it keeps the focus.
    const { state, kind, input, label } = entry;
    if (state !== "unknown") return;
    try {
      await outbox.retry(entry, () => carriedOut(kind, input, label));
      focusHeading();
    } catch (error) {
      tell(`${label}: ${await explain(error)}`, true);
      // A refusal may mean that the page shows an older state.
      if (isAnswer(error)) {
        focusHeading();
        await Promise.all([...reloads].map((reload) => reload()));
      }
    }
  }

  function forget({ key, label }: Entry) {
    if (!confirm(`The service may have carried this out: ${label}. Forget it?`)) return;
    outbox.remove(key);
    focusHeading();
  }

  return (
    <section class="card problem" aria-labelledby="unanswered">
      <h2 id="unanswered">Without an answer</h2>
      <p>The service may have carried out these commands. It carries out each one once, even if you send it again.</p>
      <ul role="list">
        {entries.map((entry) => (
          <li key={entry.key}>
            <span>{entry.label}</span>
            <span class="actions">
              <button type="button" aria-disabled={entry.state !== "unknown"} onClick={() => void retry(entry)}>
                {entry.state === "unknown" ? "Send again" : "Sending…"}
              </button>
              <button type="button" class="plain" onClick={() => forget(entry)}>
                Forget
              </button>
            </span>
          </li>
        ))}
      </ul>
    </section>
  );
}

function sentence(text: string): string {
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`;
}
