"""Estimators against exact expectations: every response of a tiny language is listed.

Two letters and an EOS, at most three tokens: 15 responses, and one row of three logits for each of
the 7 prefixes. A sum over all responses, weighted by their probabilities, replaces sampling, so
"unbiased" is an equality to 1e-12 and a bias is a number.
"""

import itertools

import pytest
import torch
from torch import Tensor
from toys import seeded

from data.collate import collate_responses
from gpt.log_probs import kl_from_logits
from harness.tensors import masked_mean, masked_sum
from rl.equations.advantages import (
    discounted_returns,
    gae,
    greedy_baseline_advantages,
    group_advantages,
    leave_one_out_advantages,
    maxrl_advantages,
)
from rl.equations.kl import absolute, k1, k1_importance, k2, k3, k3_importance
from rl.equations.losses import (
    cispo,
    clipped_surrogate,
    dual_clip,
    gmpo,
    gspo,
    length_normalized_returns,
    mixed_sampling_weights,
    policy_gradient,
    sapo,
    sequence_clipped_surrogate,
    token_covariances,
)
from rl.equations.token_rewards import at_last_token, token_level_rewards

EOS, LETTERS, T = 0, (1, 2), 3
UNFINISHED = [prefix for n in range(T) for prefix in itertools.product(LETTERS, repeat=n)]
# A response ends with its first EOS, or is cut off at T tokens.
RESPONSES = [(*prefix, EOS) for prefix in UNFINISHED] + list(itertools.product(LETTERS, repeat=T))
PREFIXES = {prefix: i for i, prefix in enumerate(UNFINISHED)}
LANGUAGE = collate_responses([[1]] * len(RESPONSES), RESPONSES, EOS)
TOKENS, MASK = LANGUAGE.response_tokens, LANGUAGE.response_mask  # (15, 3)
# The prefix before each token; behind the end it is never read.
STATES = torch.tensor([[PREFIXES.get(y[:t], 0) for t in range(T)] for y in RESPONSES])
REWARDS = torch.randn(len(RESPONSES), generator=torch.Generator().manual_seed(3)).double()


def table(seed: int) -> Tensor:
    """(7, 3): the logits of a policy."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(len(PREFIXES), 3, generator=generator, dtype=torch.float64)


THETA, OLD, REF = table(0), table(1), table(2)


def token_log_probs(logits: Tensor) -> Tensor:
    """(15, 3): log-probability of every token of every response, 0 behind its end."""
    taken = logits.log_softmax(-1)[STATES].gather(-1, TOKENS[..., None])[..., 0]
    return torch.where(MASK, taken, 0.0)


def probabilities(logits: Tensor) -> Tensor:
    """(15,): they add up to 1."""
    return token_log_probs(logits).sum(1).exp()


def gradient(function, at: Tensor = THETA) -> Tensor:
    """Gradient of function(theta), of theta's shape; 0 where none flows."""
    theta = at.clone().requires_grad_()
    value = function(theta)
    return torch.autograd.grad(value, theta)[0] if value.requires_grad else torch.zeros_like(at)


def expected_reward(theta: Tensor) -> Tensor:
    return probabilities(theta) @ REWARDS


def expected_gradient(token_loss, at=THETA, sampler=None):
    """E_{y ~ sampler}[gradient of sum_t token_loss(log_probs)]: weights without a gradient."""
    weights = probabilities(at if sampler is None else sampler).detach()
    return gradient(
        lambda theta: weights @ masked_sum(token_loss(token_log_probs(theta)), MASK), at
    )


def same(actual, expected):
    torch.testing.assert_close(actual, expected, atol=1e-12, rtol=0)


def differ(actual, expected):
    assert (actual - expected).abs().max() > 1e-3


def sequence_kl(theta, other=REF):
    """KL(pi || pi_ref) over whole responses."""
    log_ratios = token_log_probs(theta).sum(1) - token_log_probs(other).sum(1)
    return probabilities(theta) @ log_ratios


def prefix_weights(logits):
    """(7,): how often each prefix is visited."""
    weights = probabilities(logits)[:, None].expand(-1, T)[MASK]
    return torch.zeros(len(PREFIXES), dtype=torch.float64).index_add(0, STATES[MASK], weights)


def test_the_language_is_complete():
    assert len(RESPONSES) == 15 and len(PREFIXES) == 7
    for logits in (THETA, OLD, REF):
        same(probabilities(logits).sum(), torch.tensor(1.0, dtype=torch.float64))
    same(prefix_weights(THETA)[0], torch.tensor(1.0, dtype=torch.float64))


# --- the policy gradient ----------------------------------------------------------------------


def test_reinforce_is_the_policy_gradient():
    estimate = expected_gradient(lambda lp: policy_gradient(lp, REWARDS[:, None]))
    same(estimate, -gradient(expected_reward))


@pytest.mark.parametrize(
    "surrogate",
    [
        lambda lp, old, a: clipped_surrogate(lp, old, a, 0.2, 0.28),
        lambda lp, old, a: dual_clip(clipped_surrogate(lp, old, a, 0.2, 0.28), a, 3.0),
        lambda lp, old, a: cispo(lp, old, a, 0.28),
        lambda lp, old, a: sapo(lp, old, a),
    ],
)
def test_every_token_surrogate_starts_as_reinforce(surrogate):
    """At pi = pi_old the ratio is 1: no clip, and the gradient is REINFORCE's."""
    old = token_log_probs(THETA)
    estimate = expected_gradient(lambda lp: surrogate(lp, old, REWARDS[:, None]))
    same(estimate, -gradient(expected_reward))


def test_sequence_ratios_start_as_reinforce():
    """The product ratio counts its gradient at each of its L tokens; its L-th root once."""
    old, lengths = token_log_probs(THETA), MASK.sum(1, keepdim=True)

    def product(log_probs):
        loss = sequence_clipped_surrogate(log_probs, old, REWARDS[:, None], MASK, 0.2, 0.2)
        return loss / lengths

    def geometric(log_probs):
        return gspo(log_probs, old, REWARDS[:, None], MASK, 0.2, 0.2)

    def of_clipped(log_probs):
        return gmpo(log_probs, old, REWARDS[:, None], MASK, 0.4, 0.4)

    for surrogate in (product, geometric, of_clipped):
        same(expected_gradient(surrogate), -gradient(expected_reward))


def test_an_unclipped_sequence_ratio_corrects_for_an_old_sampler():
    """E_{y ~ old}[s * R] is the expected reward under pi, wherever pi is; token ratios are not."""
    old = token_log_probs(OLD)

    def product(log_probs):
        loss = sequence_clipped_surrogate(log_probs, old, REWARDS[:, None], MASK, 1e9, 1e9)
        return loss / MASK.sum(1, keepdim=True)

    exact = -gradient(expected_reward)
    same(expected_gradient(product, sampler=OLD), exact)
    token_ratio = expected_gradient(
        lambda lp: clipped_surrogate(lp, old, REWARDS[:, None], 1e9, 1e9), sampler=OLD
    )
    differ(token_ratio, exact)


@pytest.mark.parametrize("advantage", [1.0, -0.5])
def test_gmpo_lies_between_grpo_and_gspo(advantage):
    """Of one token GRPO's clip at exp(-low) and exp(high), unclipped GSPO, and below GRPO's mean."""
    log_probs, old, A = token_log_probs(THETA), token_log_probs(OLD), torch.tensor([[advantage]])
    first, A = MASK & (torch.arange(T) == 0), A.double().expand(len(RESPONSES), 1)

    def grad_of(loss):
        return lambda theta: masked_sum(loss(token_log_probs(theta)), MASK).sum()

    low, high = 0.05, 0.1
    one = gmpo(log_probs, old, A, first, low, high)[:, 0]
    clip = 1 - torch.tensor(-low).exp().item(), torch.tensor(high).exp().item() - 1
    torch.testing.assert_close(one, clipped_surrogate(log_probs, old, A, *clip)[:, 0])
    same(
        gradient(grad_of(lambda lp: gmpo(lp, old, A, MASK, 99.0, 99.0))),
        gradient(grad_of(lambda lp: gspo(lp, old, A, MASK, 99.0, 99.0))),
    )
    geometric = gmpo(log_probs, old, A, MASK, 99.0, 99.0)[:, 0]
    arithmetic = masked_mean(clipped_surrogate(log_probs, old, A, 99.0, 99.0), MASK)
    longer = MASK.sum(1) > 1
    assert (geometric.abs()[longer] < arithmetic.abs()[longer]).all()


def group_gradient(group_size, advantages_of, rewards=REWARDS):
    """E of the mean REINFORCE gradient of a group, over all 15^G groups."""
    weights, log_p = probabilities(THETA), torch.log(probabilities(THETA))
    groups = torch.cartesian_prod(*[torch.arange(15)] * group_size).view(-1, group_size)
    advantages = advantages_of(rewards[groups].flatten()).view(groups.shape)
    group_weights = log_p[groups].sum(1).exp()

    def loss(theta):
        sequence = token_log_probs(theta).sum(1)[groups]  # (15^G, G)
        return group_weights @ policy_gradient(sequence, advantages).mean(1)

    same(group_weights.sum(), weights.sum())
    return gradient(loss)


@pytest.mark.parametrize("group_size", [2, 3])
def test_leave_one_out_is_unbiased(group_size):
    estimate = group_gradient(group_size, lambda r: leave_one_out_advantages(r, group_size))
    same(estimate, -gradient(expected_reward))


@pytest.mark.parametrize("group_size", [1, 2, 3, 4])
def test_maxrl_is_the_start_of_the_series_of_the_log_likelihood(group_size):
    """sum_{k=1}^{G-1} 1/k grad(pass@k), pass@k = 1 - (1 - p)^k; alone the first term."""
    right = (REWARDS > REWARDS.median()).double()

    def series(theta):
        wrong = 1 - probabilities(theta) @ right
        return sum((1 - wrong**k) / k for k in range(1, max(group_size, 2)))

    estimate = group_gradient(group_size, lambda r: maxrl_advantages(r, group_size), right)
    same(estimate, -gradient(series))


def test_the_covariance_is_the_entropy_that_a_step_along_the_advantages_costs():
    """Ten tokens in the policy's own shares: logits + eta A changes the entropy by -eta mean(cov)."""
    p, A = torch.tensor([0.5, 0.3, 0.2]).double(), torch.tensor([1.0, -0.5, 0.25]).double()
    drawn = torch.tensor([0] * 5 + [1] * 3 + [2] * 2)
    mask = torch.ones(10, 1, dtype=torch.bool)
    cost = token_covariances(p.log()[drawn][:, None], A[drawn][:, None], mask).mean()

    def entropy(logits):
        return torch.special.entr(logits.softmax(0)).sum()

    eta = 1e-5
    change = (entropy(p.log() + eta * A) - entropy(p.log() - eta * A)) / (2 * eta)
    torch.testing.assert_close(change, -cost, atol=1e-9, rtol=0)
    assert cost > 0.05


def greedy_response(logits):
    """The response of the likeliest token after every prefix."""
    response = ()
    while len(response) < T and EOS not in response:
        response += (int(logits[PREFIXES[response]].argmax()),)
    return RESPONSES.index(response)


@pytest.mark.parametrize("theta", [THETA, OLD, REF])
@pytest.mark.parametrize("kl_coef", [0.0, 0.3])
def test_the_greedy_baseline_is_unbiased(theta, kl_coef):
    """With the KL to come in each advantage it is the gradient of E[R] - beta KL."""
    log_probs, ref = token_log_probs(theta), token_log_probs(table(5))
    baseline = REWARDS[greedy_response(theta)].expand(len(RESPONSES))
    assert abs(baseline[0]) > 0.05
    rewards = token_level_rewards(REWARDS, log_probs, ref, MASK, kl_coef)
    advantages = greedy_baseline_advantages(rewards, baseline, MASK)
    estimate = expected_gradient(lambda lp: policy_gradient(lp, advantages), theta)
    exact = gradient(lambda x: expected_reward(x) - kl_coef * sequence_kl(x, table(5)), theta)
    same(estimate, -exact)


def test_a_baseline_that_depends_on_the_answer_is_biased():
    """Here it is the greedy reward for eight of the responses, and for the others their own."""
    greedy = greedy_response(THETA)
    baseline = torch.where(torch.arange(15) < 8, REWARDS[greedy], REWARDS)
    advantages = greedy_baseline_advantages(at_last_token(REWARDS, MASK), baseline, MASK)
    differ(
        expected_gradient(lambda lp: policy_gradient(lp, advantages)), -gradient(expected_reward)
    )


@pytest.mark.parametrize("group_size", [2, 3])
def test_the_group_mean_shrinks_the_gradient_by_one_over_g(group_size):
    estimate = group_gradient(group_size, lambda r: group_advantages(r, group_size, scale="none"))
    same(estimate, -gradient(expected_reward) * (1 - 1 / group_size))


def test_dividing_by_the_group_std_changes_the_direction():
    """GRPO's z-score is not a scaled policy gradient: easy and hard groups weigh alike."""
    z_score = group_gradient(3, lambda r: group_advantages(r, 3)).flatten()
    exact = -gradient(expected_reward).flatten()
    cosine = torch.nn.functional.cosine_similarity(z_score, exact, dim=0)
    assert 0 < cosine < 0.999


# --- advantages per token ---------------------------------------------------------------------


def any_values():
    """A critic that is wrong everywhere, but a function of the prefix only."""
    return torch.randn(len(PREFIXES), generator=torch.Generator().manual_seed(4)).double()[STATES]


def true_values():
    """V of every prefix: the mean reward of the responses that start with it."""
    weights = probabilities(THETA)
    values = torch.zeros(len(PREFIXES), dtype=torch.float64)
    for prefix, i in PREFIXES.items():
        starts = torch.tensor(
            [r[: len(prefix)] == prefix and len(r) > len(prefix) for r in RESPONSES]
        )
        values[i] = (weights * REWARDS)[starts].sum() / weights[starts].sum()
    return values[STATES]


def gae_gradient(values, gae_lambda):
    advantages, _ = gae(at_last_token(REWARDS, MASK), values, MASK, 1.0, gae_lambda)
    return expected_gradient(lambda lp: policy_gradient(lp, advantages))


def test_gae_with_lambda_one_is_unbiased_for_any_critic():
    same(gae_gradient(any_values(), 1.0), -gradient(expected_reward))


def test_gae_with_a_perfect_critic_is_unbiased_for_any_lambda():
    for gae_lambda in (0.0, 0.5, 0.95):
        same(gae_gradient(true_values(), gae_lambda), -gradient(expected_reward))


def test_rewards_to_go_are_unbiased():
    returns = discounted_returns(at_last_token(REWARDS, MASK), MASK, 1.0)
    estimate = expected_gradient(lambda lp: policy_gradient(lp, returns))
    same(estimate, -gradient(expected_reward))


# --- KL in the reward and KL as a loss --------------------------------------------------------


def loss_gradient(penalty):
    return expected_gradient(lambda lp: penalty(lp, token_log_probs(REF)))


def per_prefix_gradient(kl_of_logits):
    """Gradient of the KL at each prefix, weighted by how often pi visits it."""
    visits = prefix_weights(THETA).detach()
    return gradient(lambda theta: visits @ kl_of_logits(theta))


def reverse_kl(theta):
    """KL(pi || pi_ref) at each prefix, (7,), by its definition."""
    return (theta.softmax(-1) * (theta.log_softmax(-1) - REF.log_softmax(-1))).sum(-1)


def forward_kl(theta):
    """KL(pi_ref || pi) at each prefix, (7,)."""
    return (REF.softmax(-1) * (REF.log_softmax(-1) - theta.log_softmax(-1))).sum(-1)


def test_the_rlhf_reward_is_reward_minus_beta_kl():
    rewards = token_level_rewards(REWARDS, token_log_probs(THETA), token_log_probs(REF), MASK, 0.3)
    returns = discounted_returns(rewards, MASK, 1.0)
    estimate = expected_gradient(lambda lp: policy_gradient(lp, returns))
    same(estimate, -gradient(lambda theta: expected_reward(theta) - 0.3 * sequence_kl(theta)))


def test_k3_in_the_reward_is_reverse_minus_forward_kl_of_one_token():
    """One token, the numbers worked out by hand in the table of estimators."""
    logits = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).log()
    ref = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64).log()[:, None]
    weights = logits.exp()

    def one_token(token_loss):
        return gradient(lambda x: weights @ token_loss(x.log_softmax(0)[:, None])[:, 0], logits)

    penalty = k3(logits[:, None], ref)
    expected = torch.tensor([0.046243, -0.020389, -0.025854], dtype=torch.float64)
    actual = one_token(lambda lp: policy_gradient(lp, -penalty))
    torch.testing.assert_close(actual, expected, atol=1e-6, rtol=0)
    reverse = torch.tensor([0.346243, -0.220389, -0.125854], dtype=torch.float64)
    forward = torch.tensor([0.3, -0.2, -0.1], dtype=torch.float64)
    for estimator, expected in (
        (k1, torch.zeros(3, dtype=torch.float64)),
        (k2, reverse),
        (k3, forward),
        (absolute, torch.tensor([0.5, -0.3, -0.2], dtype=torch.float64)),
    ):
        actual = one_token(lambda lp, estimator=estimator: estimator(lp, ref))
        torch.testing.assert_close(actual, expected, atol=1e-6, rtol=0)


def test_k1_as_a_loss_does_nothing():
    """Its expected gradient is 0, whatever the reference is."""
    same(loss_gradient(k1), torch.zeros_like(THETA))


def test_k2_as_a_loss_is_the_reverse_kl_at_each_prefix():
    same(loss_gradient(k2), per_prefix_gradient(reverse_kl))


def test_k3_as_a_loss_is_the_forward_kl_at_each_prefix():
    same(loss_gradient(k3), per_prefix_gradient(forward_kl))
    differ(loss_gradient(k3), per_prefix_gradient(reverse_kl))


def test_values_of_the_estimators():
    """k1 and k3 are unbiased for the sum of the KL at the visited prefixes; k2, abs are not."""
    weights, exact = probabilities(THETA), sequence_kl(THETA)
    log_probs, ref = token_log_probs(THETA), token_log_probs(REF)
    for estimator in (k1, k3):
        same(weights @ masked_sum(estimator(log_probs, ref), MASK), exact)
    for estimator in (k2, absolute):
        differ(weights @ masked_sum(estimator(log_probs, ref), MASK), exact)
    same(prefix_weights(THETA) @ kl_from_logits(THETA[None], REF[None])[0], exact)


def test_full_kl_as_a_loss_is_the_reverse_kl_at_each_prefix():
    visits = prefix_weights(THETA).detach()
    actual = gradient(lambda theta: visits @ kl_from_logits(theta[None], REF[None])[0])
    same(actual, per_prefix_gradient(reverse_kl))


# --- MiniLLM ----------------------------------------------------------------------------------


def test_minillm_splits_the_sequence_kl_into_single_step_and_long_part():
    """gradient of KL(q || p) = sum_t gradient of KL_t - E sum_t R_{t+1} grad log q_t."""
    rewards = token_log_probs(REF) - token_log_probs(THETA)
    after = discounted_returns(rewards, MASK, 1.0) - rewards  # R_{t+1}
    long_part = expected_gradient(lambda lp: policy_gradient(lp, after))
    single_step = per_prefix_gradient(lambda theta: kl_from_logits(theta[None], REF[None])[0])
    same(single_step + long_part, gradient(sequence_kl))


def test_length_normalisation_is_exact_where_one_token_is_left():
    """At the second to last token the mean over later tokens is their sum; at the last it is 0."""
    rewards = token_log_probs(REF) - token_log_probs(THETA)
    normalized = length_normalized_returns(rewards, MASK)
    after = discounted_returns(rewards, MASK, 1.0) - rewards
    left = MASK.long().flip(1).cumsum(1).flip(1) - 1
    same(normalized[MASK & (left <= 1)], after[MASK & (left <= 1)])
    same(2 * normalized[left == 2], after[left == 2])


def test_mixed_sampling_weights_undo_the_teachers_share():
    """E_{y ~ alpha p + (1 - alpha) q}[w f(y)] = E_{y ~ q}[f(y)], for one token."""
    q, p = THETA[:1].log_softmax(-1), REF[:1].log_softmax(-1)
    weights = mixed_sampling_weights(q, p, torch.ones_like(q, dtype=torch.bool), 0.2)
    mixed = 0.2 * p.exp() + 0.8 * q.exp()
    same(mixed * weights, q.exp())


# --- the penalty in the reward ------------------------------------------------------------------


def penalty_gradient(penalty):
    """The policy gradient of rewards that are -1 times the penalty and nothing else."""
    rewards = -penalty(token_log_probs(THETA), token_log_probs(REF))
    return expected_gradient(lambda lp: policy_gradient(lp, discounted_returns(rewards, MASK, 1.0)))


def test_only_k1_in_the_reward_has_the_policy_gradient_of_the_kl():
    """|k1| and k1^2 / 2 point elsewhere, at any length: no coefficient makes them the KL's."""
    exact = gradient(sequence_kl)
    same(penalty_gradient(k1), exact)
    for penalty in (absolute, k2):
        other = penalty_gradient(penalty)
        differ(other, exact)
        cosine = torch.nn.functional.cosine_similarity(other.flatten(), exact.flatten(), dim=0)
        assert cosine < 0.95


def test_one_mean_kl_a_response_pays_for_leaving_the_reference():
    """E[mean_t k1] of all policies is least at pi = pi_ref exp(c L - 1), with c such that they add up
    to 1: negative, and not at pi_ref, where the sum's is."""
    ref, lengths = probabilities(torch.zeros_like(REF)), MASK.sum(1).double()
    low, high = 0.0, 1.0
    for _ in range(60):
        c = (low + high) / 2
        too_much = float(ref @ (c * lengths - 1).exp()) > 1
        low, high = (low, c) if too_much else (c, high)
    policy = ref * (low * lengths - 1).exp()
    k1_sums = (policy / ref).log()
    numbers = (policy @ (k1_sums / lengths), policy @ k1_sums, ref @ lengths)
    expected = (-0.0530, 0.0661, 2.1111, 2.4220)
    assert [*map(float, numbers), float(policy @ lengths)] == pytest.approx(expected, abs=1e-4)
    nudged = torch.stack(
        [policy * (1 + 0.01 * torch.randn(15, generator=seeded(i))) for i in range(20)]
    )
    nudged = nudged / nudged.sum(1, keepdim=True)
    assert ((nudged * (nudged / ref).log() / lengths).sum(1) > numbers[0]).all()  # a minimum


# --- importance weights beyond one token ------------------------------------------------------


@pytest.mark.parametrize("estimator", [k1_importance, k3_importance])
def test_importance_forms_keep_the_prefixes_of_the_old_policy(estimator):
    """Summed over a response: exact at the prefixes that pi_old writes, and no KL of responses."""
    old, ref = token_log_probs(OLD), token_log_probs(REF)
    estimate = probabilities(OLD) @ masked_sum(estimator(token_log_probs(THETA), old, ref), MASK)
    same(estimate, prefix_weights(OLD) @ reverse_kl(THETA))
    assert estimate.item() == pytest.approx(1.1460, abs=5e-5)
    assert sequence_kl(THETA).item() == pytest.approx(1.1267, abs=5e-5)

    found = expected_gradient(lambda lp: estimator(lp, old, ref), sampler=OLD)
    same(found, gradient(lambda theta: prefix_weights(OLD) @ reverse_kl(theta)))
    true = gradient(sequence_kl)
    cosine = torch.cosine_similarity(found.flatten(), true.flatten(), dim=0)
    assert cosine.item() == pytest.approx(0.918, abs=5e-4)
