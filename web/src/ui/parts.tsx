/** The parts of pages. */
import type { ComponentChildren, JSX, TargetedSubmitEvent } from "preact";
import { useEffect, useId, useRef } from "preact/hooks";
import type { PendingCommand } from "../outbox";
import type { Command, Outcome, Query } from "./hooks";

/** Whether no page has been shown. A screen reader reads the first page without a focused heading. */
let isFirstPage = true;

/** A page with its heading, and with its forms beside the content. */
export function Page(props: { title: string; forms?: ComponentChildren; children: ComponentChildren }) {
  const { title, forms, children } = props;
  const heading = useRef<HTMLHeadingElement>(null);
  useEffect(() => {
    // A screen reader reads the new page, as after a real navigation.
    if (!isFirstPage) heading.current?.focus();
    isFirstPage = false;
  }, []);
  useEffect(() => void (document.title = `${title} – Ledgerline`), [title]);
  return (
    <>
      <h1 ref={heading} tabIndex={-1}>
        {title}
      </h1>
      {forms === undefined ? (
        children
      ) : (
        <div class="sides">
          <div>{children}</div>
          <div class="forms">{forms}</div>
        </div>
      )}
    </>
  );
}

/** Focuses the heading of the page: the focused element is about to disappear. */
export function focusHeading(): void {
  document.querySelector("h1")?.focus();
}

/** An input with its label. */
export function Field(props: { label: string; hint?: string } & JSX.IntrinsicElements["input"]) {
  const { label, hint, ...input } = props;
  const id = useId();
  return (
    <p class="field">
      <label for={id}>{label}</label>
      <input {...input} id={id} {...(hint === undefined ? {} : { "aria-describedby": `${id}-hint` })} />
      {hint !== undefined && (
        <small id={`${id}-hint`}>{hint}</small>
      )}
    </p>
  );
}

/** A day in UTC, with its zone: it may be another day where the user is. */
export function Day({ date }: { date: string }) {
  const form = { year: "numeric", month: "short", day: "numeric", timeZone: "UTC", timeZoneName: "short" } as const;
  return <time dateTime={date}>{new Intl.DateTimeFormat(undefined, form).format(new Date(date))}</time>;
}

/**
 * A form that sends a command, shown when the user asks for it. The form keeps its texts if the
 * API refuses the command. While a command has no answer, the form sends no other one. A second
 * command would have another key, so the API could carry out the same change twice.
 */
export function Form(props: {
  title: string;
  action: string;
  isOpen?: boolean;
  command: Command<never>;
  /** The commands of the form that have no answer yet. */
  entries?: PendingCommand[];
  onSend: (fields: (name: string) => string) => Promise<Outcome> | Outcome;
  children?: ComponentChildren;
}) {
  const { title, action, isOpen = false, command, entries = [], onSend, children } = props;
  const id = useId();
  const details = useRef<HTMLDetailsElement>(null);
  const isBlocked = command.isSending || entries.length > 0;

  async function submit(event: TargetedSubmitEvent<HTMLFormElement>) {
    event.preventDefault();
    if (isBlocked) return;
    const form = event.currentTarget;
    const data = new FormData(form);
    // The form is as at its beginning at once: a text that the user writes before the answer is a new one. A
    // command without an answer is in the outbox with its texts.
    form.reset();
    const outcome = await onSend((name) => String(data.get(name) ?? "").trim());
    if (outcome === "refused") restore(form, data);
    // The user may have closed it in the meantime.
    if (outcome !== "done" && details.current !== null) details.current.open = true;
  }

  return (
    <details ref={details} class="card" open={isOpen}>
      <summary id={id}>{title}</summary>
      <form onSubmit={(event) => void submit(event)} aria-labelledby={id}>
        {children}
        <Problem text={command.problem} />
        {entries.some(({ state }) => state === "unknown") && (
          <p class="quiet">A command has no answer. Under “Without an answer”, send it again or forget it.</p>
        )}
        <button type="submit" aria-disabled={isBlocked}>
          {command.isSending ? "Sending…" : action}
        </button>
      </form>
    </details>
  );
}

/** Writes texts back into the fields that the user has not changed. */
function restore(form: HTMLFormElement, data: FormData) {
  for (const field of form.elements) {
    if (!(field instanceof HTMLInputElement)) continue;
    const text = data.get(field.name);
    if (field.type === "radio") field.checked ||= field.value === text;
    else if (field.value === field.defaultValue && typeof text === "string") field.value = text;
  }
}

export function Problem({ text }: { text?: string | undefined }) {
  return (
    <div role="alert">{text !== undefined && <p class="problem">{text}</p>}</div>
  );
}

/** The states of a query: under way, failed, and read. */
export function Loaded<Data>(props: { query: Query<Data>; children: (data: Data) => ComponentChildren }) {
  const { data, problem, isLoading, reload } = props.query;
  return (
    <>
      {problem !== undefined && (
        <p class="problem" role="alert">
          {problem}{" "}
          <button
            type="button"
            onClick={() => {
              focusHeading();
              void reload();
            }}
          >
            Retry
          </button>
        </p>
      )}
      {data !== undefined ? props.children(data) : isLoading && <p class="quiet">Loading…</p>}
    </>
  );
}

/** Rows with a text if there are none, and a button for the next page. */
export function List<Row>(props: {
  query: Query<unknown> & { rows?: Row[] | undefined; more?: (() => Promise<void>) | undefined };
  label: string;
  empty: string;
  /** Items of commands that the rows do not show yet. */
  first?: JSX.Element[];
  children: (row: Row) => JSX.Element;
}) {
  const { query, label, empty, first = [], children } = props;
  return (
    <>
      <Loaded query={query}>
        {() => {
          const items = [...first, ...(query.rows ?? []).map(children)];
          return items.length === 0 ? (
            <p class="quiet">{empty}</p>
          ) : (
            <ul role="list" aria-label={label}>
              {items}
            </ul>
          );
        }}
      </Loaded>
      <More more={query.more} />
    </>
  );
}

/** The button for the next page of a list, if there is one. */
function More({ more }: { more?: (() => Promise<void>) | undefined }) {
  return more === undefined ? null : (
    <p>
      <button type="button" onClick={() => void more()}>
        Show more
      </button>
    </p>
  );
}

/** A link to a web page. Only http and https are links: other schemes could run a script. */
export function WebLink({ url, title }: { url: string; title?: string | null | undefined }) {
  const text = title || url;
  if (!/^https?:\/\//i.test(url)) return <span>{text}</span>;
  return (
    <a href={url} rel="noreferrer noopener" target="_blank">
      {text}
    </a>
  );
}
