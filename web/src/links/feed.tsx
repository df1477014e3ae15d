import { link, useShared } from "../application";
import { useList } from "../ui/hooks";
import { List, Page } from "../ui/parts";
import { userIdOf } from "./commands";
import { RateForm, RatingItem } from "./parts";

/** The feed: the ratings of the users whom the user follows. */
export function FeedPage() {
  const { api, session } = useShared();
  const id = userIdOf(session.user.subject);
  const feed = useList(async (query, signal) => {
    const { data } = await api.GET("/users/{id}/feed", { params: { path: { id }, query }, signal: signal ?? null });
    return { rows: data?.feed ?? [], cursor: data?.cursor ?? null };
  }, []);

  return (
    <Page title="Your feed" forms={<RateForm userId={id} />}>
      <p class="actions">
        <a href={link("links", "users", id)}>Your ratings</a>
        <a href={link("links", "people")}>People you follow</a>
      </p>
      <List query={feed} label="Feed" empty="Nothing here: follow people, and their ratings appear.">
        {(rating) => <RatingItem key={rating.linkId} rating={rating} by={rating.userId} />}
      </List>
    </Page>
  );
}
