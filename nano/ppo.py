"""PPO for RLHF (Schulman et al. 2017, arXiv:1707.06347; Ouyang et al. 2022, arXiv:2203.02155).

    line 1-2   reference <- policy; critic <- policy, with a head of zeros
    line 3-4   for each batch of prompts: sample an answer to each, score it
    line 5-6   r_t = -beta (l_old - l_ref)_t, and R at the end
    line 7     A = GAE(r, V_old), returns = A + V_old; A = (A - mean) / std over the batch
    line 8-11  for some epochs of minibatches: descend L_CLIP + c_v L_VF, clip each model's gradient

What is new next to REINFORCE++: a critic says what a state is worth, so A_t is what came next
compared with what was expected.

    python nano/ppo.py          (the same numbers: rl/ppo_engine.py)
"""

import copy
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where nano is
from nano import gpt


class Critic(torch.nn.Module):
    """A copy of the policy under a head of zeros: V of the state before each token, (N, S - 1)."""

    def __init__(self, policy):
        super().__init__()
        self.gpt, weight = copy.deepcopy(policy), policy.wte.weight
        self.head = torch.nn.Linear(weight.shape[1], 1, dtype=weight.dtype)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)

    def forward(self, tokens):
        return self.head(self.gpt.hidden(tokens))[:, :-1, 0]


def train(
    policy,
    reward,  # (prompt, answer) -> number
    prompts,  # strings
    *,
    steps=60,
    prompts_per_step=64,
    epochs=2,
    minibatches=2,
    clip=0.2,  # epsilon, of the ratio and of the values
    kl_coef=0.04,  # beta
    gae_lambda=0.95,
    value_coef=0.1,  # c_v
    critic_lr=1e-3,
    lr=1e-3,
    max_grad_norm=1.0,
    max_new_tokens=8,
    seed=0,
):
    """Run PPO: change `policy` in place and return the numbers of each step."""
    reference = copy.deepcopy(policy)  # line 1
    critic = Critic(policy)  # line 2
    models = [dict(params=policy.parameters()), dict(params=critic.parameters(), lr=critic_lr)]
    optimizer = torch.optim.Adam(models, lr=lr, betas=(0.9, 0.95))
    sampling, shuffling = gpt.generator(seed, "sampling"), gpt.generator(seed, "minibatches")
    numbers = []
    for step in range(steps):
        asked = gpt.shuffled(prompts, step * prompts_per_step, prompts_per_step, seed)  # line 3
        tokens, mask = gpt.sample(policy, asked, max_new_tokens, sampling)  # line 4
        rewards = torch.tensor(list(map(reward, asked, gpt.decode(tokens, mask))))  # (N,)  line 4
        with torch.no_grad():
            old_log_probs = gpt.log_probs(policy, tokens)  # (N, S - 1)  line 5
            ref_log_probs = gpt.log_probs(reference, tokens)  # (N, S - 1)
            old_values = critic(tokens)  # (N, S - 1)
        k1 = (old_log_probs - ref_log_probs) * mask  # its sum over an answer estimates the KL
        last = mask & (mask.cumsum(1) == mask.sum(1, keepdim=True))  # an answer's last token
        token_rewards = last * rewards[:, None] - kl_coef * k1  # (N, S - 1)  line 6
        advantages = torch.zeros_like(old_values)  # line 7: GAE, without a discount
        A = V = torch.zeros(len(asked))  # of the token after this one; past an answer's end 0
        for t in reversed(range(mask.shape[1])):
            delta = token_rewards[:, t] + V - old_values[:, t]
            A = torch.where(mask[:, t], delta + gae_lambda * A, A)
            V = torch.where(mask[:, t], old_values[:, t], V)
            advantages[:, t] = A
        returns = advantages + old_values
        spread = (advantages[mask].var() + 1e-8).sqrt()
        advantages = (advantages - advantages[mask].mean()) / spread  # line 7

        losses, norms = [], []
        for _ in range(epochs):  # line 8
            order = torch.randperm(prompts_per_step, generator=shuffling)
            for rows in order.tensor_split(minibatches):
                A, m = advantages[rows], mask[rows]
                new_log_probs = gpt.log_probs(policy, tokens[rows])
                ratio = (new_log_probs - old_log_probs[rows]).exp()
                clipped = ratio.clamp(1 - clip, 1 + clip)
                loss = -torch.minimum(ratio * A, clipped * A)  # line 9: L_CLIP
                values, old = critic(tokens[rows]), old_values[rows]
                near = old + (values - old).clamp(-clip, clip)
                errors = torch.stack([values, near]) - returns[rows]
                loss = loss + value_coef * errors.square().amax(0) / 2  # c_v L_VF
                loss = (loss * m).sum() / m.sum()
                optimizer.zero_grad()
                loss.backward()
                norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), max_grad_norm)
                torch.nn.utils.clip_grad_norm_(critic.parameters(), max_grad_norm)
                optimizer.step()  # line 11
                losses.append(loss.item())
                norms.append(norm.item())
        gpt.report(numbers, reward=rewards, kl=k1.sum(1), loss=losses, grad_norm=norms)
    return numbers


def main(steps=60):
    policy = gpt.pretrained()
    gpt.show(policy)
    train(policy, gpt.gold, gpt.PROMPTS, steps=steps)
    gpt.show(policy)


if __name__ == "__main__":
    main()
