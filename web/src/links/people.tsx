import { rows } from "../../client/index";
import { link, useShared } from "../application";
import { readUntil, useCommand, usePendingCommands, useQuery, type Query } from "../ui/hooks";
import { Field, Form, List, Page, Problem } from "../ui/parts";
import { userIdOf, type Following, type Register } from "./commands";

/** Returns the ids of the users whom the user follows: at most 1,000. */
export function useFollows(): Query<string[]> {
  const { api, session } = useShared();
  const id = userIdOf(session.user.subject);
  return useQuery(async (signal) => {
    const read = (cursor: { cursor?: string }) =>
      api.GET("/users/{id}/follows", { params: { path: { id }, query: { limit: 200, ...cursor } }, signal });
    const follows: string[] = [];
    for await (const { userId } of rows(read, (page) => page.follows)) follows.push(userId);
    return follows;
  }, [id]);
}

/** Begins or ends a following. The button shows the new state at once. */
export function FollowButton(props: {
  id: string;
  isFollowed: boolean;
  reload: () => Promise<string[] | undefined>;
}) {
  const { id, isFollowed, reload } = props;
  const { session } = useShared();
  const userId = userIdOf(session.user.subject);
  const follow = useCommand<Following>("links.follow");
  const unfollow = useCommand<Following>("links.unfollow");
  const isHere = ({ otherId }: Following) => otherId === id;
  const begun = usePendingCommands<Following>("links.follow", isHere);
  const ended = usePendingCommands<Following>("links.unfollow", isHere);
  // A command without an answer may never be carried out.
  const sent = [...begun, ...ended].find(({ state }) => state !== "unknown");
  const isShown = sent === undefined ? isFollowed : sent.kind === "links.follow";
  const name = isShown ? "Unfollow" : "Follow";

  function change() {
    if (sent !== undefined) return;
    const command = isShown ? unfollow : follow;
    const wanted = !isShown;
    const refresh = () => readUntil(reload, (following) => following.includes(id) === wanted);
    void command.send({ userId, otherId: id }, `${name} ${id}`, refresh);
  }

  return (
    <>
      <button
        type="button"
        class={isShown ? "plain" : undefined}
        aria-label={`${name} ${id}`}
        aria-disabled={sent !== undefined}
        onClick={change}
      >
        {name}
      </button>
      <Problem text={follow.problem ?? unfollow.problem} />
      {follow.code === "unknown-user" && <a href={link("links", "people")}>Register to follow people</a>}
    </>
  );
}

/** The users whom the user follows, and the registration that following needs. */
export function PeoplePage() {
  const { session } = useShared();
  const own = userIdOf(session.user.subject);
  const follows = useFollows();
  const follow = useCommand<Following>("links.follow");
  const register = useCommand<Register>("links.register");

  function onFollow(field: (name: string) => string) {
    const otherId = field("user");
    const refresh = () => readUntil(follows.reload, (following) => following.includes(otherId));
    return follow.send({ userId: own, otherId }, `Follow ${otherId}`, refresh);
  }

  const forms = (
    <>
      <Form title="Follow a user" action="Follow" command={follow} onSend={onFollow}>
        <Field label="User id" name="user" required maxLength={128} />
      </Form>
      <Form
        title="Register"
        action="Register"
        command={register}
        onSend={(field) => register.send({ name: field("name"), email: field("email") }, "Register")}
      >
        <Field label="Name" name="name" required maxLength={200} autocomplete="name" />
        <Field label="Email address" name="email" type="email" required autocomplete="email" hint="For the welcome email" />
      </Form>
    </>
  );
  return (
    <Page title="People you follow" forms={forms}>
      <p>
        Your user id is <code>{own}</code>. Other users need this id to follow you.
      </p>
      <List query={{ ...follows, rows: follows.data }} label="People" empty="You follow no users: follow one, and see each new rating in your feed.">
        {(id) => (
          <li key={id}>
            <a href={link("links", "users", id)}>{id}</a>
            <FollowButton id={id} isFollowed reload={follows.reload} />
          </li>
        )}
      </List>
    </Page>
  );
}
