import { useShared } from "../application";
import { useList } from "../ui/hooks";
import { List, Page, Loaded } from "../ui/parts";
import { userIdOf } from "./commands";
import { FollowButton, useFollows } from "./people";
import { RatingItem } from "./parts";

/** The ratings of a user. */
export function UserPage({ id }: { id: string }) {
  const { api, session } = useShared();
  const own = userIdOf(session.user.subject);
  const ratings = useList(
    async (query, signal) => {
      const { data } = await api.GET("/users/{id}/ratings", { params: { path: { id }, query }, signal: signal ?? null });
      return { rows: data?.ratings ?? [], cursor: data?.cursor ?? null };
    },
    [id],
  );
  const follows = useFollows();

  return (
    <Page title={id === own ? "Your ratings" : `Ratings of ${id}`}>
      {id !== own && (
        <Loaded query={follows}>
          {(following) => <FollowButton id={id} isFollowed={following.includes(id)} reload={follows.reload} />}
        </Loaded>
      )}
      <List query={ratings} label="Ratings" empty="No ratings.">
        {(rating) => <RatingItem key={rating.linkId} rating={rating} />}
      </List>
    </Page>
  );
}
