/** The frame of all pages: navigation, sign-in, messages, and commands without an answer. */
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { link, SharedContext, type Application, type Route, type Shared } from "./application";
import type { Config } from "./config";
import { ENDED } from "./explain";
import type { Outbox } from "./outbox";
import { signIn, type Session } from "./session";
import { share } from "./shared";
import { useRoute } from "./ui/hooks";
import { Page } from "./ui/parts";
import { Unanswered } from "./unanswered";

interface Message {
  text: string;
  isError: boolean;
  /** The route of the result. */
  href?: string | undefined;
  /** Tells two messages with the same text apart, so that a screen reader reads both. */
  number: number;
}

export function App(props: { config: Config; session: Session; applications: Application[] }) {
  const { config, session, applications } = props;
  const route = useRoute();
  const [message, setMessage] = useState<Message>({ text: "", isError: false, number: 0 });
  const main = useRef<HTMLElement>(null);
  const shared = useMemo(() => {
    const notify: Shared["notify"] = (text, isError = false, href) =>
      setMessage(({ number }) => ({ text, isError, href, number: number + 1 }));
    return share(config, session, applications, notify);
  }, []);
  const stopAsking = useQuestionBeforeUnload(shared.outbox);
  const application = applications.find(({ name }) => name === route.segments[0]) ?? applications[0];

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
      <Header applications={applications} current={application} shared={shared} />
      <main ref={main} tabIndex={-1}>
        <SignInAgain config={config} shared={shared} stopAsking={stopAsking} />
        <p role="status" class={message.text === "" ? "message" : message.isError ? "message error" : "message done"}>
          <span key={message.number}>
            {message.text} {message.href !== undefined && <a href={message.href}>Show it</a>}
          </span>
        </p>
        <Unanswered shared={shared} />
        <div key={`${route.segments.join("/")}?${route.query}`}>{pageOf(application, route)}</div>
      </main>
    </SharedContext.Provider>
  );
}

/** Returns the page of a route. The start of the app is that of the first application. */
function pageOf(application: Application | undefined, { segments, query }: Route) {
  const isStart = segments.length === 0;
  const isKnown = application !== undefined && (isStart || segments[0] === application.name);
  const page = isKnown ? application.page({ segments: segments.slice(1), query }) : undefined;
  return (
    page ?? (
      <Page title="No such page">
        <p>
          <a href={link()}>To the start</a>
        </p>
      </Page>
    )
  );
}

function Header(props: { applications: Application[]; current: Application | undefined; shared: Shared }) {
  const { applications, current, shared } = props;
  const { session, outbox } = shared;

  function signOut() {
    const { length } = outbox.entries();
    const question = `Commands without an answer: ${length}. Sign out, and forget them?`;
    if (length > 0 && !confirm(question)) return;
    outbox.close();
    void session.signOut();
  }

  return (
    <header>
      <nav aria-label="Applications">
        {applications.map(({ name, title }) => (
          <a key={name} href={link(name)} aria-current={name === current?.name ? "page" : undefined}>
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
  );
}

/** Asks the user to sign in again when the session has ended. */
function SignInAgain({ config, shared, stopAsking }: { config: Config; shared: Shared; stopAsking: () => void }) {
  const { session, notify, explain } = shared;
  const [hasEnded, setEnded] = useState(false);
  useEffect(() => session.onEnd(() => setEnded(true)), []);
  if (!hasEnded) return null;

  async function again() {
    // The commands without an answer are stored.
    stopAsking();
    await signIn(config).catch(async (error: unknown) => notify(await explain(error), true));
  }

  return (
    <p class="problem" role="alert">
      {ENDED} The app keeps commands without an answer.{" "}
      <button type="button" onClick={() => void again()}>
        Sign in again
      </button>
    </p>
  );
}

/**
 * Lets the browser ask before it closes a tab with commands without an answer, because they end with
 * the tab. Returns a function that ends this.
 */
function useQuestionBeforeUnload(outbox: Outbox): () => void {
  const stop = useRef(() => {});
  useEffect(() => {
    const ask = (event: BeforeUnloadEvent) => {
      if (outbox.entries().some(({ state }) => state !== "answered")) event.preventDefault();
    };
    addEventListener("beforeunload", ask);
    stop.current = () => removeEventListener("beforeunload", ask);
    return () => stop.current();
  }, []);
  return () => stop.current();
}
