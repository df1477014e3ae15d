/** The frame of all pages: navigation, sign-in, messages, and commands without an answer. */
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { ledgerline, Problem } from "../client/index";
import type { paths } from "../client/schema";
import { link, SharedContext, type Application, type Shared } from "./application";
import type { Config } from "./config";
import { openOutbox, type Entry, type Send } from "./outbox";
import { SessionEnded, signIn, type Session } from "./session";
import { usePlace } from "./ui/hooks";
import { Page } from "./ui/parts";

const OUTDATED = "This was changed in the meantime. Check the new state, and then send the change again.";
const BUSY = "The service is busy, so the outcome is unknown.";
const LOST = "The connection was lost, so the outcome is unknown.";
const ENDED = "Your session has ended.";

interface Message {
  text: string;
  isError: boolean;
}

export function App(props: { config: Config; session: Session; applications: Application[] }) {
  const { config, session, applications } = props;
  const place = usePlace();
  const [message, setMessage] = useState<Message>({ text: "", isError: false });
  const [hasEnded, setEnded] = useState(false);
  const [revision, setRevision] = useState(0);
  const main = useRef<HTMLElement>(null);

  const shared = useMemo((): Shared => {
    const api = ledgerline<paths>({ baseUrl: config.api, token: () => session.token() });
    const kinds = applications.flatMap(({ name, commands }) =>
      Object.entries(commands(api)).map(([kind, send]): [string, Send<never>] => [`${name}.${kind}`, send]),
    );
    const outbox = openOutbox(session.user.subject, new Map(kinds));
    const tell = (text: string, isError = false) => setMessage({ text, isError });

    /** Explains an error of a request, and finds out whether the session has ended. */
    async function explain(error: unknown): Promise<string> {
      if (error instanceof SessionEnded) {
        setEnded(true);
        return ENDED;
      }
      // A page of another origin cannot read a 401 of API Gateway, and sees a failed request.
      const isUnclear = error instanceof TypeError || (error instanceof Problem && error.status === 401);
      if (isUnclear) {
        const ended = await session.check().catch((failed: unknown) => failed);
        return ended instanceof SessionEnded ? explain(ended) : LOST;
      }
      if (!(error instanceof Problem)) throw error;
      if (error.isOutdated) return OUTDATED;
      return error.status === 429 || error.status >= 500 ? BUSY : sentence(error.detail);
    }
    return { api, session, outbox, tell, explain };
  }, []);

  // A message belongs to the page on which it appeared.
  const [name = "", ...segments] = place.segments;
  useEffect(() => setMessage({ text: "", isError: false }), [name]);
  const application = applications.find((other) => other.name === name) ?? applications[0];
  const page = application?.page({ segments: name === application.name ? segments : [], query: place.query });

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
            <a href={link(name)} aria-current={name === application?.name ? "page" : undefined}>
              {title}
            </a>
          ))}
        </nav>
        <p>
          <span class="user">{session.user.name}</span>{" "}
          <button type="button" class="plain" onClick={() => session.signOut()}>
            Sign out
          </button>
        </p>
      </header>
      <main ref={main} tabIndex={-1}>
        {hasEnded && (
          <p class="problem" role="alert">
            {ENDED} Commands without an answer are kept.{" "}
            <button type="button" onClick={() => void signIn(config)}>
              Sign in again
            </button>
          </p>
        )}
        <p role="status" class={message.text === "" ? "message" : message.isError ? "message error" : "message done"}>
          {message.text}
        </p>
        <Unanswered shared={shared} onAnswer={() => setRevision((before) => before + 1)} />
        <div key={`${location.hash} ${revision}`}>
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
function Unanswered({ shared, onAnswer }: { shared: Shared; onAnswer: () => void }) {
  const { outbox, tell, explain } = shared;
  const [, render] = useState({});
  useEffect(() => outbox.subscribe(() => render({})), [outbox]);
  const entries = outbox.entries().filter((entry) => !entry.isSending);
  if (entries.length === 0) return null;

  async function retry(entry: Entry) {
    try {
      await outbox.retry(entry);
      tell(`${entry.label}: done.`);
      onAnswer();
    } catch (error) {
      tell(await explain(error), true);
    }
  }

  return (
    <section class="card problem" aria-labelledby="unanswered">
      <h2 id="unanswered">Without an answer</h2>
      <p>These commands may have been carried out. Sending one again does not carry it out twice.</p>
      <ul>
        {entries.map((entry) => (
          <li key={entry.key}>
            <span>{entry.label}</span>
            <span class="actions">
              <button type="button" onClick={() => void retry(entry)}>
                Send again
              </button>
              <button type="button" class="plain" onClick={() => outbox.remove(entry.key)}>
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
