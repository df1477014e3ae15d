import { useShared } from "../application";
import { useEntries, useList } from "../ui/hooks";
import { List, Page, Shown, WebLink } from "../ui/parts";
import { userIdOf, type Rate } from ".";
import { isSameUrl, RateForm, RatingItem, ratingsOf } from "./parts";

/** A link, and the ratings of all users. */
export function LinkPage({ url }: { url: string }) {
  const { api, session } = useShared();
  const own = userIdOf(session.user.subject);
  const ratings = useList((query, signal) => ratingsOf(api, url, query, signal), [url]);
  const pending = useEntries<Rate>("links.rate", (input) => isSameUrl(input.linkUrl, url));
  // The rating that the user is sending replaces the earlier one.
  const isSent = pending.some(({ state }) => state !== "unknown");
  const others = (ratings.rows ?? []).filter(({ userId }) => !isSent || userId !== own);
  return (
    <Page title="A link">
      <p>
        <WebLink url={url} />
      </p>
      <Shown of={ratings}>
        {({ average, count }) => (
          <>
            {average != null && (
              <p class="quiet">
                {average} of 5 on average, by {count}.
              </p>
            )}
            <List
              label="Ratings"
              empty="No user has rated this link."
              more={ratings.more}
              items={[
                ...pending.map(({ key, input, state }) => <RatingItem key={key} of={input} by={own} state={state} />),
                ...others.map((rating) => (
                  <RatingItem key={rating.userId} of={{ ...rating, linkUrl: url }} by={rating.userId} />
                )),
              ]}
            />
          </>
        )}
      </Shown>
      <RateForm userId={own} url={url} entries={pending} />
    </Page>
  );
}
