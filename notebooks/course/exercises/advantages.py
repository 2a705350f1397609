"""How much better than expected: groups, returns, GAE, steps."""

import torch

from conformance.batches import Arguments, between, number, ragged_mask, some
from course.exercises.entries import case, exercise, lengths


def groups(generator: torch.Generator) -> Arguments:
    """Rewards of some groups, each with a level and a spread of its own, at times one without a spread.

    They are eighths, so that some are alike and the mean of equal ones is exactly theirs.
    """
    count, group_size = number(generator, 2, 5), number(generator, 2, 6)
    level = 3 * torch.randn(count, 1, generator=generator)
    spread = torch.rand(count, 1, generator=generator) + 0.2
    spread[0] *= number(generator, 0, 2)
    rewards = level + spread * torch.randn(count, group_size, generator=generator)
    return {"rewards": (8 * rewards).round().flatten() / 8, "group_size": group_size}


@exercise(
    case(
        "one group of four", [11 / 3, 10 / 3, 3.0, 2.0], rewards=[1.0, 2.0, 3.0, 6.0], group_size=4
    ),
    case(
        "two groups of two: each row's baseline is its neighbour", [5.0, 1.0, 2.0, 0.0],
        rewards=[1.0, 5.0, 0.0, 2.0], group_size=2,
    ),
    random=groups,
    constants="rewards",
    mistakes="""
        others / (group_size - 1) -> groups.mean(1, keepdim=True).expand_as(groups)
            your baseline contains row i itself: that is GRPO's group mean. Leave it out.
        others / (group_size - 1) -> (rewards.sum() - groups) / (len(rewards) - 1)
            you leave the row out, but take the mean over the whole batch. Only answers to the same prompt
            can be compared: stay within the group.
        (group_size - 1) -> group_size
            you divide by group_size. There are group_size - 1 others.
        (others / (group_size - 1)) -> (groups - others / (group_size - 1))
            this is the advantage, reward minus baseline. Return the baseline alone.
        groups.sum(1, keepdim=True)
        -> rewards.view(group_size, -1).sum(0).repeat(group_size).view_as(groups)
            you take every n-th row as a group. The rows of a group stand next to each other: view(-1,
            group_size).
    """,
)  # fmt: skip
def others_mean(rewards, group_size):
    """Return for each of the N rewards the mean of the *other* rewards of its group, (N,). The
    first group_size rows are one group, the next group_size rows the next one."""
    groups = rewards.view(-1, group_size)
    others = groups.sum(1, keepdim=True) - groups
    return (others / (group_size - 1)).flatten()


@exercise(
    case(
        "one group of four, rewards 1, 2, 3, 4",
        [[-1.161805], [-0.387268], [0.387268], [1.161805]], rewards=[1.0, 2.0, 3.0, 4.0],
        group_size=4,
    ),
    case(
        "a group of equal rewards beside 1 and 2", [[-0.707007], [0.707007], [0.0], [0.0]],
        rewards=[1.0, 2.0, 2.0, 2.0], group_size=2,
    ),
    case(
        "a group of two, rewards 0 and 1000", [[-0.707107], [0.707107]],
        rewards=[0.0, 1000.0], group_size=2,
    ),
    case(
        "two rewards that differ in their last bit alone", [[0.0], [0.0]],
        rewards=[0.3, 0.3 + 2**-25], group_size=2,
    ),
    random=groups,
    tolerance=1e-3,
    constants="rewards",
    kit="advantages",
    mistakes="""
        (groups - mean) / (std + 1e-4) -> groups - mean
            you subtract the group's mean but do not divide by its standard deviation. (That is Dr. GRPO's
            choice; GRPO divides.)
        .std(1, keepdim=True) -> .std(1, correction=0, keepdim=True)
            your standard deviation divides by n. The library divides by n - 1, as tensor.std() does unless
            you tell it otherwise.
        rewards.view(-1, group_size) -> rewards.view(group_size, -1)
            your rows are (G, prompts), so a row mixes prompts. Responses to one prompt are neighbours:
            rewards.view(-1, group_size), one row per prompt.
        groups.std(1, keepdim=True) -> groups.std()
        groups.std(1, keepdim=True) -> (groups - mean).std()
            your mean is the group's, but your standard deviation is the batch's (`scale="batch"` of the
            library). GRPO divides by that of the group.
        groups.mean(1, keepdim=True) -> groups.median(1, keepdim=True).values
        groups.mean(1, keepdim=True) -> groups.quantile(0.5, 1, keepdim=True)
            you subtract the median of the group. It is the mean.
        std + 1e-4 -> std.square() + 1e-4).sqrt(
            your 1e-4 stands under the root, where it counts as 0.01. Add it to the standard deviation.
        std + 1e-4 -> std + 1e-6
        std + 1e-4 -> std + 1e-8
            right, except for rewards that are equal up to rounding: an eps this small turns the rounding
            into an advantage. Add 1e-4.
    """,
)  # fmt: skip
def group_advantages(rewards, group_size):
    """From the rewards (N,) of N responses, G = group_size neighbours to each prompt, compute
    (reward - mean of its group) / (std of its group + 1e-4), of shape (N, 1)."""
    groups = rewards.view(-1, group_size)  # (prompts, G): neighbours answer the same prompt
    mean = groups.mean(1, keepdim=True)
    std = groups.std(1, keepdim=True)
    return ((groups - mean) / (std + 1e-4)).view(-1, 1)  # (N, 1)


def with_holes(generator: torch.Generator) -> Arguments:
    rows, columns = number(generator, 3, 6), number(generator, 6, 10)
    mask = torch.rand(rows, columns, generator=generator) < 0.6
    mask[:, 0] = mask[1:, -1] = True
    rewards = torch.randn(rows, columns, generator=generator)
    return {"token_rewards": rewards, "mask": mask, "gamma": between(generator, 0.5, 0.99)}


@exercise(
    case(
        "a call of two tokens, an answer of two, the last token, which earns 1",
        [[0.81, 0.9, 0.0, 0.0, 1.0]], token_rewards=[[0.0, 0.0, 5.0, 5.0, 1.0]],
        mask=[[True, True, False, False, True]], gamma=0.9,
    ),
    random=with_holes,
    constants="token_rewards",
    mistakes="""
        here, to_come) -> here, 0.0)
            your return starts anew at an answer, so that a call gets no credit for what it made possible:
            where the mask is False, keep what is to come.
        here, to_come) -> here, gamma * to_come)
            the answer's tokens discount too. The policy takes one step from its last token before an
            answer to its first one after it.
        torch.where(mask[:, t], here, to_come) -> here
            rewards where the mask is False are in your sum: they belong to nobody.
        gamma * to_come -> to_come
            you add without a discount: multiply what is to come by gamma.
        torch.where(mask, returns, 0.0) -> returns
            right where the mask is True. An answer's tokens are no actions: their result must be 0.
    """,
)  # fmt: skip
def answered_returns(token_rewards, mask, gamma):
    """From token_rewards and mask (N, T) and gamma compute the return of every token of the policy, its
    own reward included, (N, T): gamma counts the policy's tokens, and the result is 0 where the mask
    is False."""
    returns, to_come = torch.zeros_like(token_rewards), torch.zeros(len(token_rewards))
    for t in reversed(range(token_rewards.shape[1])):
        here = token_rewards[:, t] + gamma * to_come
        to_come = torch.where(mask[:, t], here, to_come)
        returns[:, t] = to_come
    return torch.where(mask, returns, 0.0)


@exercise(
    case(
        "1, 2, 3 and 4, 5, in responses of three tokens and of two",
        [[-1.264911, -0.632456, 0.0], [0.632456, 1.264911, 0.0]],
        x=[[1.0, 2.0, 3.0], [4.0, 5.0, 9.0]], mask=lengths(3, 2),
    ),
    random=some("x mask"),
    tolerance=1e-3,
    constants="x",
    kit="whiten",
    mistakes="""
        valid.std() -> valid.std(correction=0)
            your deviation divides by n. The library divides by n - 1, as tensor.std() does.
        torch.where(mask, whitened, 0.0) -> whitened
            right where the mask is True. In the padding the result must be 0.
        torch.where(mask, whitened, 0.0) -> (x - x.mean()) / x.std()
            the padding is in the mean and in the deviation, and is not set to 0: use the mask three times.
        x - valid.mean() -> x - torch.where(mask, x, 0.0).sum(1, keepdim=True) / mask.sum(1, keepdim=True)
            you subtract each response's own mean. Then nothing is left that compares responses.
    """,
)  # fmt: skip
def whiten(x, mask):
    """From x (N, T) and mask (N, T), compute (x - mean) / std with one mean and one standard
    deviation (n - 1) over all True positions of the batch; 0 in the padding. A small eps of
    1e-4 or less beside std is welcome."""
    valid = x[mask]
    whitened = (x - valid.mean()) / (valid.std() + 1e-4)
    return torch.where(mask, whitened, 0.0)


def with_a_hole(generator: torch.Generator) -> Arguments:
    """Ragged responses; in the second one, which is the longest, the third token is a tool's."""
    batch = some("rewards=x values mask", gamma=(0.5, 0.99), lam=(0.2, 0.9))(generator)
    batch["mask"][1, 2] = False
    return batch


def added_up_forwards(deltas, factor):
    """A mistake of gae: A_t = delta_t + factor A_{t-1}."""
    for t in range(1, deltas.shape[1]):
        deltas[:, t] += factor * deltas[:, t - 1]
    return deltas


TWO_RESPONSES = {
    "rewards": torch.tensor([[-0.1, 0.0, 0.2, 1.0], [0.0, 1.0, 9.0, 9.0]]),
    "values": torch.tensor([[0.5, 0.4, 0.3, 0.2], [0.6, 0.5, 7.0, 7.0]]),
    "mask": lengths(4, 2),
}


@exercise(
    case(
        "one response without padding, gamma 0.9, lambda 0.8", [[0.00647, 0.34232, 0.656, 0.8]],
        **{name: value[:1] for name, value in TWO_RESPONSES.items()}, gamma=0.9, lam=0.8,
    ),
    case(
        "a shorter one beside it, with sevens and nines in its padding",
        [[0.00647, 0.34232, 0.656, 0.8], [0.21, 0.5, 0.0, 0.0]],
        **TWO_RESPONSES, gamma=0.9, lam=0.8,
    ),
    case(
        "gamma 1, lambda 1: rewards to come, less the value",
        [[0.6, 0.8, 0.9, 0.8], [0.4, 0.5, 0.0, 0.0]], **TWO_RESPONSES, gamma=1.0, lam=1.0,
    ),
    case(
        "a hole in the mask: a tool's answer between the second token and the last",
        [[0.0445, 0.41, 0.0, 0.0, 0.2]], rewards=[[0.0, 0.0, 5.0, 5.0, 1.0]],
        values=[[0.5, 0.4, 7.0, 7.0, 0.8]], mask=[[True, True, False, False, True]],
        gamma=0.9, lam=0.5,
    ),
    random=with_a_hole,
    constants="rewards values",
    kit="gae",
    mistakes="""
        torch.where(valid, values[:, t], V) -> values[:, t]
            the value after the last token must be 0, because the response has ended. You use what stands
            in the padding.
        + gamma * V - values[:, t] -> + gamma * torch.where(A == 0, values[:, t], V) - values[:, t]
            the last token's own value stands behind it. There the response has ended: that value is 0.
        reversed(range(values.shape[1])) -> range(values.shape[1])
            you add up from the first token on. A token has earned what comes after it: begin at the end.
        + gamma * V - values[:, t] -> + gamma * V
            the token's own value is not subtracted: delta_t = r_t + gamma V_{t+1} - V_t.
        valid = mask[:, t] -> valid = mask[:, t]; A, V = A * valid, V * valid
            you start anew at a hole in the mask (a tool's answer): what comes after it gives nothing back
            to the tokens before it. Where the mask is False keep A and V as they are.
        valid = mask[:, t] -> valid = mask[:, t]; V = V * valid
            you keep A at a hole in the mask, but V becomes 0 there. The token before a tool's answer is
            followed by the state after it: keep that V.
        valid = mask[:, t] -> valid = mask[:, t]; A = A * valid
            you keep V at a hole in the mask, but A becomes 0 there: keep both.
        delta + gamma * lam * A, A) -> delta + gamma * lam * A, gamma * lam * A)
            a column where the mask is False discounts once more. Step over it: A stays what it is.
        torch.where(mask, advantages, 0.0)
        -> torch.where(mask, (advantages - advantages[mask].mean()) / advantages[mask].std(), 0.0)
            you whiten the advantages. That comes after GAE, and the critic's target needs them as they are.
        torch.where(mask, advantages, 0.0)
        -> mask * added_up_forwards(gae(rewards, values, mask, gamma, 0.0), gamma * lam)
            you add the TD errors up from the first token on. A token has earned what comes after it: begin
            at the end.
        gamma * V -> gamma * lam * V
            lam multiplies the next advantage alone: delta = r + gamma V_next - V.
    """,
)  # fmt: skip
def gae(rewards, values, mask, gamma, lam):
    """From token_rewards and values (N, T), response_mask (N, T), gamma and lam, compute
    delta_t = r_t + gamma V_{t+1} - V_t and A_t = delta_t + gamma lam A_{t+1}, from the last
    token back; V and A are 0 after the end, and the result is 0 in the padding."""
    advantages = torch.zeros_like(values)
    A, V = torch.zeros(len(values)), torch.zeros(len(values))  # of the next token; 0 after the end
    for t in reversed(range(values.shape[1])):
        valid = mask[:, t]
        delta = rewards[:, t] + gamma * V - values[:, t]
        A = torch.where(valid, delta + gamma * lam * A, A)
        V = torch.where(valid, values[:, t], V)
        advantages[:, t] = A
    return torch.where(mask, advantages, 0.0)


def steps_of_responses(generator: torch.Generator) -> Arguments:
    rows, steps = number(generator, 2, 5), number(generator, 3, 5)
    mask = ragged_mask(generator, rows, 6)
    ends = torch.rand(rows, steps, generator=generator) * mask.sum(1, keepdim=True)
    mask[1, 1] = False  # a tool's token
    return {
        "z_scores": torch.randn(rows, steps, generator=generator),
        "step_ends": ends.long().sort(1).values,
        "step_mask": ragged_mask(generator, rows, steps),
        "response_mask": mask,
    }


@exercise(
    case(
        "steps that end at 1 and 3, worth +1 and -2; one step that ends at 2, worth +0.5",
        [[-1.0, -1.0, -2.0, -2.0], [0.5, 0.5, 0.5, 0.0]], z_scores=[[1.0, -2.0], [0.5, 9.0]],
        step_ends=[[1, 3], [2, 0]], step_mask=lengths(2, 1), response_mask=lengths(4, 3),
    ),
    random=steps_of_responses,
    constants="z_scores",
    mistakes="""
        >= t -> <= t
            you add up the steps that have ended already. A token answers for what comes from it on, not
            for what came before.
        >= t -> > t
            the last token of a step does not get that step: use step_ends >= t, not >.
        >= t -> == t
            a step pays its last token alone. All tokens before its end have led there.
        step_ends[:, :, None] >= t -> t >= 0
            every token gets the sum over all steps. Then a step is blamed for errors before it, which is
            what process supervision avoids.
        step_mask[:, :, None] & (step_ends -> (step_ends
            padded steps are counted: leave out those where step_mask is False.
    """,
)  # fmt: skip
def process_advantages(z_scores, step_ends, step_mask, response_mask):
    """Give each token t the sum of the z-scores (N, K) of the steps with step_ends >= t, where
    step_mask is True: (N, T), and 0 where response_mask is False."""
    t = torch.arange(response_mask.shape[1])
    still_to_end = step_mask[:, :, None] & (step_ends[:, :, None] >= t)  # (N, K, T)
    return (z_scores[:, :, None] * still_to_end).sum(1) * response_mask
