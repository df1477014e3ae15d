import { useShared } from "../application";
import { usePendingCommands, useList } from "../ui/hooks";
import { List, Page, WebLink } from "../ui/parts";
import { userIdOf, type Rate } from "./commands";
import { isSameUrl, RateForm, RatingItem, ratingsOf } from "./parts";

/** A link, and the ratings of all users. */
export function LinkPage({ url, title }: { url: string; title?: string | undefined }) {
  const { api, session } = useShared();
  const own = userIdOf(session.user.subject);
  const ratings = useList((query, signal) => ratingsOf(api, url, query, signal), [url]);
  const pending = usePendingCommands<Rate>("links.rate", (input) => isSameUrl(input.linkUrl, url));
  // The rating that the user is sending replaces the earlier one.
  const isSent = pending.some(({ state }) => state !== "unknown");
  const others = (ratings.rows ?? []).filter(({ userId }) => !isSent || userId !== own);
  return (
    <Page title="A link" forms={<RateForm userId={own} url={url} title={title} entries={pending} />}>
      <p>
        <WebLink url={url} />
      </p>
      {ratings.data?.average != null && (
        <p class="quiet">
          {ratings.data.average} of 5 on average, by {ratings.data.count}.
        </p>
      )}
      <List
        query={{ ...ratings, rows: others }}
        label="Ratings"
        empty="No user has rated this link: be the first."
        first={pending.map(({ key, input, state }) => (
          <RatingItem key={key} rating={input} by={own} state={state} />
        ))}
      >
        {(rating) => <RatingItem key={rating.userId} rating={{ ...rating, linkUrl: url }} by={rating.userId} />}
      </List>
    </Page>
  );
}
