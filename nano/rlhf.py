"""All of RLHF in one file: read it from top to bottom, run it in 40 seconds to 3 minutes.

    1  the world         customers of a restaurant write a line, somebody has to answer
    2  the GPT           a small GPT-2
    3  pre-training      it learns to write answers like those of the staff, good and bad
    4  comparisons       an annotator with a weakness for long answers says which of two is better
    5  the reward model  learns from the comparisons to score an answer, and learns the weakness too
    6  GRPO              the policy learns to write answers that score high
    7  before and after  with a penalty for leaving the start the answers get better; without it they
                         get long, score higher still, and are worse

`gold` is the true worth of an answer. In real life nobody can compute it. Here the annotator looks at
it, no training step reads it, and at the end it shows whether RLHF did what it was for.

    python nano/rlhf.py          40 seconds to 3 minutes on one core; another seed: python nano/rlhf.py 30

What to expect: the lowest and the highest of 30 runs, seeds 30 to 39, each with three CPU instruction
sets. The settings were chosen on other seeds, which may leave these ranges (seed 7: a KL of 105).

                  gold             learned reward    KL in nats    sentences
    start         -0.1 to 0.1      about 0           0             about 2
    beta 0.4      0.4 to 0.6       0.8 to 1.3        1 to 2        3 to 4      better answers
    beta 0        -0.7 to 0.3      1.3 to 1.9        23 to 79      4 to 10     scored higher, and worse

In each of the 30 beta 0.4 raised the gold, by 0.30 to 0.56, and beta 0 ended 0.10 to 1.21 below that,
in 25 of them below the start, with a learned reward 0.4 to 0.9 higher: the reward model is exploited.
"""

import copy
import itertools
import math
import random
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

# --- 1. The world -------------------------------------------------------------------------------

ITEMS = ["soup", "fish", "bread", "cake", "tea", "wine"]
PRAISE, COMPLAINT = ["great", "perfect"], ["cold", "late"]
PROMPTS = [f"the {item} was {word} :" for item in ITEMS for word in PRAISE + COMPLAINT]
PROMPT_LENGTH = 5  # words, the same for all of them

# What a sentence adds to the worth of an answer: (to praise, to a complaint).
WORTH = {
    "thank you .": (0.5, -0.2),
    "so glad .": (0.5, -0.5),
    "so sorry .": (-0.5, 0.5),
    "it is free .": (-0.2, 0.5),
    "nice weather .": (-0.2, -0.2),
    "your fault .": (-0.5, -0.5),
    "go away .": (-0.5, -0.5),
}
END = "<end>"
WORDS = sorted({word for text in [*PROMPTS, *WORTH] for word in text.split()}) + [END]


def kind(prompt):
    """0 for praise, 1 for a complaint."""
    return 0 if prompt.split()[3] in PRAISE else 1


def gold(prompt, answer):
    """The true worth of an answer: 1 for two fitting sentences and nothing else.

    Nonsense and repetitions cost as much as idle talk, so a long answer can be worth less than none.
    """
    sentences = [sentence.strip() + " ." for sentence in answer.split(".")[:-1]]  # finished ones
    worth = 0.0  # of no answer at all
    for i, sentence in enumerate(sentences):
        if sentence in WORTH and sentence not in sentences[:i]:
            worth += WORTH[sentence][kind(prompt)]
        else:
            worth -= 0.2
    return worth


def staff_answer(prompt):
    """What the staff writes: 1 to 4 different sentences in any order, fitting ones more often."""
    weights = [4 if worth[kind(prompt)] > 0 else 1 for worth in WORTH.values()]
    sentences, count = [], random.randint(1, 4)
    while len(sentences) < count:
        (sentence,) = random.choices(list(WORTH), weights)
        if sentence not in sentences:
            sentences.append(sentence)
    return " ".join(sentences)


# --- 2. The GPT ---------------------------------------------------------------------------------

CONTEXT, LAYERS, HEADS, WIDTH = 32, 2, 2, 32
NEW_TOKENS = 24  # the longest answer


def encode(text):
    """Words -> tokens, a token being a word's place in WORDS."""
    unknown = set(text.split()) - set(WORDS)
    if unknown:
        raise ValueError(f"{sorted(unknown)} are no words of this world: use those of WORDS")
    return [WORDS.index(word) for word in text.split()]


def decode(tokens):
    """Tokens -> words, up to the first END."""
    words = [WORDS[token] for token in tokens]
    return " ".join(words[: words.index(END)] if END in words else words)


class Block(nn.Module):
    """Attention moves information between places, the MLP works on it at each place."""

    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(approximate="tanh"), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x):
        x = x + self.attention(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))

    def attention(self, x):
        """softmax(Q K^T / sqrt(d)) V: each place gathers from itself and the places before it.

        N texts of S tokens; each of the HEADS works on its own d of the WIDTH numbers of a place.
        """
        N, S, _ = x.shape
        heads = self.qkv(x).view(N, S, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        queries, keys, values = heads  # three times (N, HEADS, S, d)
        scores = queries @ keys.transpose(-2, -1) / math.sqrt(WIDTH // HEADS)  # (N, HEADS, S, S)
        later = torch.ones(S, S, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(later, float("-inf")).softmax(-1)
        return self.out((weights @ values).transpose(1, 2).reshape(N, S, WIDTH))


class GPT(nn.Module):
    """From tokens (N, S) to what the model makes of each place, (N, S, WIDTH)."""

    def __init__(self):
        super().__init__()
        self.token, self.place = nn.Embedding(len(WORDS), WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.ln = nn.LayerNorm(WIDTH)
        for weight in (self.token.weight, self.place.weight):
            nn.init.normal_(weight, std=0.02)

    def forward(self, tokens):
        S = tokens.shape[1]
        if S > CONTEXT:
            raise ValueError(f"{S} tokens do not fit a context of {CONTEXT}: shorten the text")
        return self.ln(self.blocks(self.token(tokens) + self.place(torch.arange(S))))

    def next_token(self, tokens):
        """log-probabilities of the token after each place, (N, S, words).

        The next word is likely to be one whose embedding points in the direction of the output.
        """
        return (self(tokens) @ self.token.weight.T).log_softmax(-1)


def log_probs(policy, tokens):
    """log pi of every token after the first, given those before it: (N, S) -> (N, S - 1)."""
    predicted = policy.next_token(tokens)[:, :-1]  # for every word that might come
    return predicted.gather(-1, tokens[:, 1:, None])[:, :, 0]  # for the one that came


@torch.no_grad()
def sample(policy, prompts):
    """One answer to each prompt: the tokens of both (N, S), and the answers as text."""
    tokens = torch.tensor([encode(prompt) for prompt in prompts])
    end = WORDS.index(END)
    ended = torch.zeros(len(tokens), dtype=torch.bool)
    for _ in range(NEW_TOKENS):
        drawn = policy.next_token(tokens)[:, -1].exp().multinomial(1)[:, 0]
        drawn[ended] = end  # what follows an answer's END is padding
        tokens = torch.cat([tokens, drawn[:, None]], 1)
        ended |= drawn == end
        if ended.all():
            break
    return tokens, [decode(row[PROMPT_LENGTH:]) for row in tokens.tolist()]


def answer_mask(tokens):
    """True at an answer's tokens up to its END, (N, S) -> (N, S - 1): entry j is about token j + 1."""
    end = tokens == WORDS.index(END)
    after_end = end.cumsum(1) - end.long() > 0  # an END stands before it
    after_prompt = torch.arange(tokens.shape[1]) >= PROMPT_LENGTH
    return (after_prompt & ~after_end)[:, 1:]


def padded(rows):
    """Token lists as one tensor, with END as padding."""
    width = max(len(row) for row in rows)
    return torch.tensor([row + [WORDS.index(END)] * (width - len(row)) for row in rows])


def descend(optimizer, loss, model):
    """One step against the gradient of the loss; a gradient longer than 1 is cut to 1."""
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def bar(share, width=30):
    """A number from 0 to 1 as a picture."""
    filled = round(min(max(share, 0), 1) * width)
    return "#" * filled + "." * (width - filled)


# --- 3. Pre-training ----------------------------------------------------------------------------


def pretrain(steps):
    """A GPT that writes as the staff does: it makes each next token of their answers likely."""
    policy = GPT()
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
    clueless = math.log(len(WORDS))  # the loss of a model to which all words are equally likely
    for step in range(1, steps + 1):
        prompts = random.choices(PROMPTS, k=64)
        tokens = padded([encode(f"{prompt} {staff_answer(prompt)} {END}") for prompt in prompts])
        loss = -log_probs(policy, tokens)[answer_mask(tokens)].mean()
        descend(optimizer, loss, policy)
        if step == 1 or step % 50 == 0:
            print(f"  step {step:3d}   loss {loss:.3f}   {bar(loss.item() / clueless)}")
    return policy


# --- 4. Comparisons -----------------------------------------------------------------------------


def compare(prompt, a, b):
    """The annotator's verdict on two answers, (tokens, text) each: the better one, the worse one.

    It has a common weakness: to it, an answer that says more looks better. And it makes mistakes,
    most often where two answers look about equally good.
    """
    looks = [gold(prompt, text) + 0.3 * text.count(".") for _, text in (a, b)]
    first_wins = random.random() < 1 / (1 + math.exp(-8 * (looks[0] - looks[1])))
    return (a, b) if first_wins else (b, a)


def collect_pairs(policy, count):
    """Pairs of answers with their prompt, the better one first, as tokens (count, 2, S)."""
    pairs = []
    while len(pairs) < count:
        prompts = random.choices(PROMPTS, k=125)
        tokens, texts = sample(policy, prompts * 4)  # four answers to each prompt
        rows = list(zip(tokens.tolist(), texts, strict=True))
        for i, prompt in enumerate(prompts):
            four = rows[i :: len(prompts)]
            for a, b in itertools.combinations(four, 2):  # six comparisons
                if gold(prompt, a[1]) != gold(prompt, b[1]):  # equally good ones are left out
                    pairs.append([tokens for tokens, _ in compare(prompt, a, b)])
    return padded([row for pair in pairs[:count] for row in pair]).view(count, 2, -1)


# --- 5. The reward model ------------------------------------------------------------------------


class RewardModel(nn.Module):
    """A copy of the pre-trained GPT under a head that gives one number: how good is this answer?"""

    def __init__(self, policy):
        super().__init__()
        self.gpt, self.head = copy.deepcopy(policy), nn.Linear(WIDTH, 1)
        self.mean, self.std = 0.0, 1.0  # of the scores, measured after training

    def forward(self, tokens):
        """(N, S) -> (N,), read at the answer's last token, which has seen all the others."""
        last = PROMPT_LENGTH + answer_mask(tokens).sum(1) - 1
        hidden = self.gpt(tokens[:, : last.max() + 1])[torch.arange(len(tokens)), last]
        return (self.head(hidden)[:, 0] - self.mean) / self.std


def train_reward_model(policy, pairs, epochs=2, size=32):
    """Make the verdicts likely, where P(a beats b) = sigmoid(R(a) - R(b)) (Bradley and Terry 1952).

    Not even a perfect one would agree with all verdicts: nearly one in ten is a mistake.
    """
    reward_model = RewardModel(policy)
    batches = len(pairs) // size
    optimizer = torch.optim.Adam(reward_model.parameters(), lr=2e-3)
    # The learning rate falls to a fiftieth: small last steps average over many batches, so that the
    # mistakes in the last few of them leave no mark on the scores.
    slower = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.02, total_iters=epochs * batches)
    for epoch in range(epochs):
        right = 0
        for rows in torch.randperm(len(pairs))[: batches * size].view(batches, size):
            better, worse = reward_model(pairs[rows].flatten(0, 1)).view(-1, 2).unbind(1)
            gap = better - worse
            descend(optimizer, -F.logsigmoid(gap).mean(), reward_model)
            slower.step()
            right += (gap > 0).sum().item()
        accuracy = right / (batches * size)
        print(f"  epoch {epoch + 1}   agrees with the annotator {accuracy:.3f} {bar(accuracy)}")
    with torch.no_grad():  # only differences were learned: the average is to be 0, the spread 1
        scores = reward_model(pairs.flatten(0, 1))
        reward_model.mean, reward_model.std = scores.mean(), scores.std()
    return reward_model


# --- 6. GRPO ------------------------------------------------------------------------------------


@torch.no_grad()
def measure(policy, reference, reward_model, times=12):
    """Means over answers to all prompts; the KL is the distance from the reference, in nats."""
    prompts = PROMPTS * times
    tokens, texts = sample(policy, prompts)
    mask = answer_mask(tokens)
    kl = (log_probs(policy, tokens) - log_probs(reference, tokens)) * mask
    return {
        "gold": sum(map(gold, prompts, texts)) / len(texts),
        "sentences": sum(text.count(".") for text in texts) / len(texts),
        "reward": reward_model(tokens).mean().item(),
        "kl": kl.sum(1).mean().item(),
    }


def show_step(step, policy, reference, reward_model):
    """The same prompts at every step, with random numbers of their own, so that training has its own."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        m = measure(policy, reference, reward_model, times=4)
    print(
        f"  step {step:3d}   learned reward {m['reward']:5.2f}   KL {m['kl']:5.2f}"
        f"   gold {m['gold']:.2f} {bar(m['gold'])}"
    )


def grpo(policy, reward_model, beta, steps, group=8, clip=0.2):
    """Group Relative Policy Optimization (Shao et al. 2024, arXiv:2402.03300); returns a new policy."""
    reference = policy
    policy = copy.deepcopy(reference)
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    show_step(0, policy, reference, reward_model)
    for step in range(1, steps + 1):
        # Eight prompts, a group of eight answers to each, and what the reward model thinks of them.
        prompts = [prompt for prompt in random.sample(PROMPTS, 8) for _ in range(group)]
        tokens, texts = sample(policy, prompts)
        mask = answer_mask(tokens)  # (N, S - 1)
        with torch.no_grad():
            rewards = reward_model(tokens)  # (N,)
            old, ref = log_probs(policy, tokens), log_probs(reference, tokens)  # (N, S - 1)
        # An answer's advantage: how much better it is than the others to the same prompt.
        groups = rewards.view(-1, group)
        advantages = (groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)
        A = advantages.view(-1, 1)  # (N, 1), the same for all tokens of an answer
        for _ in range(2):  # two updates from the same answers
            new = log_probs(policy, tokens)
            # Make the tokens of good answers likelier and those of bad ones less likely. The min ends
            # this push at a token of a good answer once it is a fifth likelier than when it was drawn,
            # at one of a bad answer once it is a fifth less likely. A token that has moved the other
            # way, however far, is still pushed: the clip limits gains, it is no fence on both sides.
            ratio = (new - old).exp()
            loss = -torch.minimum(ratio * A, ratio.clamp(1 - clip, 1 + clip) * A)
            # And stay near the reference: an estimate of the KL that is never negative.
            loss = loss + beta * ((ref - new).exp() - (ref - new) - 1)
            descend(optimizer, ((loss * mask).sum(1) / mask.sum(1)).mean(), policy)
        if step <= 10 or step % 10 == 0:
            show_step(step, policy, reference, reward_model)
    return policy


# --- 7. Before and after ------------------------------------------------------------------------


def verdict(start, held, free):
    """Are the answers of `held` better, and does `free` exploit the reward model? Says so in words."""
    gain, lost = held["gold"] - start["gold"], held["gold"] - free["gold"]
    higher = free["reward"] - held["reward"]
    improved, exploited = gain > 0.2, higher > 0 and lost > 0.1
    print(f"\nWith the penalty the gold changed by {gain:+.2f}:", end=" ")
    print("the answers got better." if improved else "on this seed RLHF did not do its work.")
    up, down = ("higher" if x > 0 else "lower" for x in (higher, -lost))
    print(f"Without it the learned reward ended {abs(higher):.2f} {up}", end=" ")
    print(f"and the gold {abs(lost):.2f} {down}:", end=" ")
    if not exploited:
        print("on this seed\nthe policy did not exploit the reward model.")
    elif free["sentences"] < held["sentences"] + 1:
        print("the policy\nexploited the reward model, and not by length: look at its answers.")
    else:
        print(
            "the policy\nexploited the reward model. It learned from the annotator to like length, and"
        )
        print(
            f"the answers have {free['sentences']:.1f} sentences now instead of {held['sentences']:.1f}."
        )
    return improved, exploited


def main(seed=0, pretraining_steps=200, pairs=8000, grpo_steps=60):
    torch.manual_seed(seed)
    random.seed(seed)
    print("Pre-training on what the staff writes")
    start = pretrain(pretraining_steps)
    print(f"{pairs} comparisons, then the reward model")
    reward_model = train_reward_model(start, collect_pairs(start, pairs))
    # beta sets how far the policy can go (0.04 in the paper, 0.1 in the engine): at the balance point
    # (page 05, section 6) the odds of a good answer have grown 7-fold with 0.4 and 75-fold with 0.04. The
    # paper's learning rate, 1e-6, keeps it far from there.
    print("GRPO, beta = 0.4")
    held = grpo(start, reward_model, 0.4, grpo_steps)
    print("The same with beta = 0 and twice the steps: nothing holds the policy near its start")
    free = grpo(start, reward_model, 0.0, 2 * grpo_steps)

    models = {"start": start, "beta 0.4": held, "beta 0": free}
    for prompt in ("the soup was perfect :", "the fish was late :"):
        print(f"\n{prompt}")
        for name, model in models.items():
            for answer in sample(model, [prompt] * 2)[1]:
                print(f"  {name:10}{answer}   (gold {gold(prompt, answer):.1f})")
    print(f"\n{'':12}gold   sentences   learned reward   KL in nats    (means over 288 answers)")
    measured = {name: measure(model, start, reward_model) for name, model in models.items()}
    for name, m in measured.items():
        print(
            f"  {name:10}{m['gold']:.2f}   {m['sentences']:9.1f}   {m['reward']:14.2f}   {m['kl']:10.2f}"
        )
    verdict(*measured.values())
    return measured


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
