import { link, useShared, type Api } from "../application";
import type { PendingCommand } from "../outbox";
import { readUntil, useCommand } from "../ui/hooks";
import { Field, Form, WebLink } from "../ui/parts";
import { pageOf } from "./address";
import type { Rate } from "./commands";

/** A rating of a link by a user. */
export interface Rating {
  linkUrl: string;
  rating: number;
  title?: string | null | undefined;
  tags?: string[] | null | undefined;
}

export function Stars({ rating }: { rating: number }) {
  return (
    <span class="stars" role="img" aria-label={`${rating} of 5`}>
      {"★".repeat(rating)}
      {"☆".repeat(5 - rating)}
    </span>
  );
}

/**
 * A rating in a list, with the user who gave it if the list has more than one. A rating that the
 * user is sending has the state of its command.
 */
export function RatingItem(props: { rating: Rating; by?: string; state?: PendingCommand["state"] }) {
  const { rating, by, state } = props;
  return (
    <li class={state === undefined ? undefined : "pending"}>
      <span>
        <WebLink url={rating.linkUrl} title={rating.title} />
        {rating.tags?.map((tag) => (
          <span key={tag} class="tag">
            {tag}
          </span>
        ))}
        <br />
        <small>
          {by !== undefined && (
            <>
              <a href={link("links", "users", by)}>{by}</a>,{" "}
            </>
          )}
          <a href={pageOf(rating.linkUrl)}>all ratings</a>
          {state !== undefined && (state === "unknown" ? ", without an answer" : ", being sent")}
        </small>
      </span>
      <Stars rating={rating.rating} />
    </li>
  );
}

/** Reads a page of the ratings of a link, with the average. */
export async function ratingsOf(api: Api, url: string, query: { cursor?: string } = {}, signal?: AbortSignal) {
  const { data } = await api.GET("/links/ratings", { params: { query: { url, ...query } }, signal: signal ?? null });
  return { rows: data?.ratings ?? [], cursor: data?.cursor ?? null, average: data?.average, count: data?.count };
}

/**
 * The form to rate a link: that of the page, or any. The view is eventually consistent, so the
 * command stays in the outbox until the view shows the rating.
 */
export function RateForm(props: {
  userId: string;
  url?: string;
  /** The first text of the field, with which the form is open. */
  title?: string | undefined;
  entries?: PendingCommand[];
}) {
  const { userId, url, title: first, entries = [] } = props;
  const { api } = useShared();
  const rate = useCommand<Rate>("links.rate");

  function onSend(field: (name: string) => string) {
    const tags = field("tags").split(",").map((tag) => tag.trim()).filter((tag) => tag !== "");
    const title = field("title");
    const here = location.hash;
    const rating = Number(field("rating"));
    const input: Rate = {
      userId,
      linkUrl: url ?? field("url"),
      rating,
      // A field that is left out stays as it is.
      ...(title === "" ? {} : { title }),
      ...(tags.length === 0 ? {} : { tags }),
    };
    return rate.send(input, `Rate ${input.linkUrl}`, async () => {
      // The page of the link shows the rating. The user may have gone to another page meanwhile.
      if (url === undefined && location.hash === here) location.hash = pageOf(input.linkUrl);
      await readUntil(() => ratingsOf(api, input.linkUrl), ({ rows }) =>
        rows.some((row) => row.userId === userId && row.rating === rating && (title === "" || row.title === title)),
      );
    });
  }

  return (
    <Form title="Rate a link" action="Rate" isOpen={first !== undefined} command={rate} entries={entries} onSend={onSend}>
      {url === undefined && <Field label="Address" name="url" type="url" required placeholder="https://" />}
      <fieldset>
        <legend>Rating</legend>
        {[1, 2, 3, 4, 5].map((rating) => (
          <label key={rating}>
            <input type="radio" name="rating" value={rating} required /> {rating}
          </label>
        ))}
      </fieldset>
      <Field label="Title" name="title" maxLength={200} defaultValue={first ?? ""} />
      <Field label="Tags" name="tags" hint="Separated by commas" />
    </Form>
  );
}

/** Whether two texts are one address: the API writes each address in one way. */
export function isSameUrl(one: string, other: string): boolean {
  try {
    return new URL(one).href === new URL(other).href;
  } catch {
    return one === other;
  }
}
